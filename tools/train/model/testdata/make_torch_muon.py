"""Writes torch_muon.json: what torch.optim.Muon makes of some matrices.

    python make_torch_muon.py torch_muon.json

The matrices are given by a formula, which newton_schulz_test.cc has too. torch
iterates in bf16; here it is made to do so in float64, so that the comparison is
with its algorithm and not with its rounding. Written with torch 2.15.0.
"""

import json
import math
import sys

import torch

SHAPES = [(4, 7), (7, 4), (5, 5), (1, 6), (6, 1), (16, 33)]
LEARNING_RATE = 0.1
STEPS = 3


def element(index, step):
    """The formula of the gradients."""
    return math.sin(1.7 * index + 0.3 * step) + 0.1 * math.cos(index * index)


def gradient(rows, columns, step):
    values = [element(i, step) for i in range(rows * columns)]
    return torch.tensor(values, dtype=torch.float64).reshape(rows, columns)


def updates(rows, columns):
    """The change of a parameter from zeros over all steps, over the rate."""
    parameter = torch.nn.Parameter(
        torch.zeros(rows, columns, dtype=torch.float64)
    )
    optimizer = torch.optim.Muon(
        [parameter],
        lr=LEARNING_RATE,
        momentum=0.95,
        nesterov=True,
        weight_decay=0,
        eps=1e-30,
        adjust_lr_fn="match_rms_adamw",
    )
    for step in range(STEPS):
        parameter.grad = gradient(rows, columns, step)
        optimizer.step()
    return (parameter.detach() / -LEARNING_RATE).flatten().tolist()


def main():
    torch.bfloat16 = torch.float64
    cases = [
        {"rows": rows, "columns": columns, "updates": updates(rows, columns)}
        for rows, columns in SHAPES
    ]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"steps": STEPS, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

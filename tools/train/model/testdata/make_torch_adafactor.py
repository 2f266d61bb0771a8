"""Writes torch_adafactor.json: what torch.optim.Adafactor makes of some weights.

    python make_torch_adafactor.py torch_adafactor.json

Weights and gradients are given by formulas, which reference_optimizers_test.cc has
too.
The parts of a fused tensor are separate parameters, as in published models.
Written with torch 2.15.0.
"""

import json
import math
import sys

import torch

STEPS = 5
# The name, the rows of each part, and the columns (0: vectors).
TENSORS = [
    ("embedding.weight", [11], 5),
    ("layers.0.attention.qkv.weight", [6, 3, 3], 5),
    ("layers.0.attention.qkv.bias", [6, 3, 3], 0),
    ("layers.0.attention.output.weight", [5], 6),
    ("layers.0.mlp.gate_up.weight", [7, 7], 5),
    ("layers.0.mlp.experts.gate_up.weight", [4, 4, 4, 4, 4, 4], 5),
    ("layers.0.mlp.experts.down.weight", [5, 5, 5], 4),
    ("layers.0.mlp_norm.weight", [5], 0),
    ("layers.1.mlp.down.weight", [1], 9),
]
CASES = [
    {"learning_rate": 0.02, "weight_decay": 0.1, "beta2_decay": -0.8,
     "epsilon2": 1e-3, "threshold": 1.0},
    {"learning_rate": 3.0, "weight_decay": 0.0, "beta2_decay": -0.5,
     "epsilon2": 0.5, "threshold": 1.5},
    {"learning_rate": 0.0, "weight_decay": 0.1, "beta2_decay": -0.8,
     "epsilon2": 1e-3, "threshold": 1.0},
]


def weight(index):
    return 0.5 * math.sin(0.37 * index + 1) + 0.1


def gradient(name, index, columns, step):
    """The formula of the gradients; some rows of the embedding have none."""
    if name == "embedding.weight" and index // columns % 4 == 3:
        return 0.0
    return math.sin(1.7 * index + 0.3 * step) * 10.0 ** -(index % 6)


def tensor(values, columns):
    values = torch.tensor(values, dtype=torch.float64)
    return values.reshape(-1, columns) if columns else values


def train(case, name, parts, columns):
    """The weights of all parts after STEPS steps."""
    width = max(columns, 1)
    trained, begin = [], 0
    for rows in parts:
        indices = range(begin, begin + rows * width)
        begin += rows * width
        parameter = torch.nn.Parameter(
            tensor([weight(i) for i in indices], columns)
        )
        optimizer = torch.optim.Adafactor(
            [parameter],
            lr=case["learning_rate"],
            beta2_decay=case["beta2_decay"],
            eps=(None, case["epsilon2"]),
            d=case["threshold"],
            weight_decay=case["weight_decay"],
        )
        for step in range(STEPS):
            parameter.grad = tensor(
                [gradient(name, i, width, step) for i in indices], columns
            )
            optimizer.step()
        trained += parameter.detach().flatten().tolist()
    return trained


def main():
    cases = [
        {
            **case,
            "tensors": [
                {"name": name, "rows": sum(parts), "columns": columns,
                 "weights": train(case, name, parts, columns)}
                for name, parts, columns in TENSORS
            ],
        }
        for case in CASES
    ]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"steps": STEPS, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

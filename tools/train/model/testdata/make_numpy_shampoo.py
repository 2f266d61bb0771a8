"""Writes numpy_shampoo.json: what Shampoo makes of some weights.

    python make_numpy_shampoo.py numpy_shampoo.json

The formulas of shampoo.h in float64, with the inverse roots from eigenvalues
(numpy.linalg.eigh) and with the bias corrections of all averages. Weights and
gradients are given by formulas, which reference_optimizers_test.cc has too. The
parts of a fused tensor are separate matrices, as in published models; tensors
that are not hidden matrices have AdamW. Written with numpy 2.
"""

import json
import math
import sys

import numpy

STEPS = 5
# The name, the rows of each part, the columns (0: vectors), and whether the
# parts are preconditioned.
TENSORS = [
    ("embedding.weight", [11], 5, False),
    ("layers.0.attention.qkv.weight", [6, 3, 3], 5, True),
    ("layers.0.attention.qkv.bias", [6, 3, 3], 0, False),
    ("layers.0.attention.output.weight", [5], 6, True),
    ("layers.0.mlp.gate_up.weight", [7, 7], 5, True),
    ("layers.0.mlp.experts.gate_up.weight", [4, 4, 4, 4, 4, 4], 5, True),
    ("layers.0.mlp.experts.down.weight", [5, 5, 5], 4, True),
    ("layers.0.mlp_norm.weight", [5], 0, False),
    ("layers.1.mlp.down.weight", [1], 9, True),
]
CASES = [
    {"learning_rate": 0.02, "weight_decay": 0.1, "block": 1024, "every": 1,
     "epsilon": 1e-6},
    {"learning_rate": 0.05, "weight_decay": 0.0, "block": 3, "every": 2,
     "epsilon": 1e-6},
    {"learning_rate": 0.02, "weight_decay": 0.1, "block": 4, "every": 10,
     "epsilon": 1e-3},
]
BETA1, BETA2, ADAM_EPSILON = 0.9, 0.95, 1e-8


def weight(index):
    return 0.5 * math.sin(0.37 * index + 1) + 0.1


def gradient(name, index, columns, step):
    """The formula of the gradients; some rows of the embedding have none."""
    if name == "embedding.weight" and index // columns % 4 == 3:
        return 0.0
    return math.sin(1.7 * index + 0.3 * step) * 10.0 ** -(index % 6)


def inverse_root(average, epsilon):
    """(A + epsilon ||A|| I)^(-1/4)"""
    norm = numpy.linalg.norm(average)
    values, vectors = numpy.linalg.eigh(
        average + epsilon * norm * numpy.eye(len(average))
    )
    return (vectors * values**-0.25) @ vectors.T


class Block:
    """A part of a matrix that is preconditioned separately."""

    def __init__(self, shape):
        self.left = numpy.zeros((shape[0], shape[0]))
        self.right = numpy.zeros((shape[1], shape[1]))

    def update(self, case, step, g, moment, adam):
        self.left = BETA2 * self.left + (1 - BETA2) * g @ g.T
        self.right = BETA2 * self.right + (1 - BETA2) * g.T @ g
        if (step - 1) % case["every"] == 0:
            bias = 1 - BETA2**step
            self.left_root = inverse_root(self.left / bias, case["epsilon"])
            self.right_root = inverse_root(self.right / bias, case["epsilon"])
        product = self.left_root @ moment @ self.right_root
        return product * numpy.linalg.norm(adam) / numpy.linalg.norm(product)


def train_part(case, name, begin, shape, columns, preconditioned):
    """The weights of one matrix or vector after STEPS steps."""
    indices = range(begin, begin + math.prod(shape))
    weights = numpy.array([weight(i) for i in indices]).reshape(shape)
    first, second = numpy.zeros(shape), numpy.zeros(shape)
    size = case["block"]
    blocks = {}
    for step in range(1, STEPS + 1):
        g = numpy.array(
            [gradient(name, i, columns, step - 1) for i in indices]
        ).reshape(shape)
        first = BETA1 * first + (1 - BETA1) * g
        second = BETA2 * second + (1 - BETA2) * g * g
        moment = first / (1 - BETA1**step)
        update = moment / (
            numpy.sqrt(second / (1 - BETA2**step)) + ADAM_EPSILON
        )
        if preconditioned:
            adam = update.copy()
            for row in range(0, shape[0], size):
                for column in range(0, shape[1], size):
                    at = numpy.s_[row : row + size, column : column + size]
                    block = blocks.setdefault(
                        (row, column), Block(g[at].shape)
                    )
                    update[at] = block.update(
                        case, step, g[at], moment[at], adam[at]
                    )
        rate = case["learning_rate"]
        weights = weights * (1 - rate * case["weight_decay"]) - rate * update
    return weights.flatten().tolist()


def train(case, name, parts, columns, preconditioned):
    """The weights of all parts."""
    width = max(columns, 1)
    trained = []
    for rows in parts:
        shape = (rows, columns) if columns else (rows,)
        trained += train_part(
            case, name, len(trained), shape, width, preconditioned
        )
    return trained


def main():
    cases = [
        {
            **case,
            "tensors": [
                {"name": name, "rows": sum(parts), "columns": columns,
                 "weights": train(case, name, parts, columns, preconditioned)}
                for name, parts, columns, preconditioned in TENSORS
            ],
        }
        for case in CASES
    ]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"steps": STEPS, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

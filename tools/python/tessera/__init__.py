"""Tessera from Python: training, meshes of ranks, pipeline schedules, the planner, checkpoints, and AdamW on the CPU.

    tessera.train      starts a training run and iterates over its metrics; the command `tessera` runs all tools
    tessera.topology   ranks on a mesh of named axes, their groups; clusters, and the placement of ranks on them
    tessera.pipeline   schedules: generate, synthesise, validate, simulate, draw; PyTorch's formats
    tessera.plan       the fastest ways to train a model on a cluster
    tessera.estimate   memory and traffic of a training run before it starts
    tessera.launch     starts the ranks of a program
    tessera.checkpoint the trainer's checkpoints as arrays of numpy or tensors; resharding, export, import
    tessera.optim      CPUAdamW, a torch.optim.Optimizer (imports torch)
    tessera.zero       torch modules sharded over ranks (imports tessera_torch)
    tessera.errors     the exceptions

Only modules that need torch import it.
"""

from __future__ import annotations

import importlib
from typing import Any

from tessera import checkpoint, errors, estimate, launch, pipeline, plan, topology
from tessera.errors import StatusError
from tessera.topology import Cluster, Mesh
from tessera.training import train

__all__ = [
    "Cluster",
    "Mesh",
    "StatusError",
    "checkpoint",
    "errors",
    "estimate",
    "launch",
    "optim",
    "pipeline",
    "plan",
    "topology",
    "train",
    "zero",
]


def __getattr__(name: str) -> Any:
    if name in ("optim", "zero"):
        return importlib.import_module(f"tessera.{name}")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("tessera")
    raise AttributeError(f"module 'tessera' has no attribute {name!r}")

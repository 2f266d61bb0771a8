"""Tessera from Python: meshes of ranks, pipeline schedules, checkpoints, and AdamW on the CPU.

    tessera.topology   ranks on a mesh of named axes, their groups
    tessera.pipeline   schedules: generate, synthesise, validate, simulate, draw; PyTorch's formats
    tessera.checkpoint the trainer's checkpoints as arrays of numpy or tensors
    tessera.optim      CPUAdamW, a torch.optim.Optimizer (imports torch)
    tessera.errors     the exceptions

torch is imported by what needs it only.
"""

from __future__ import annotations

import importlib
from typing import Any

from tessera import checkpoint, errors, pipeline, topology
from tessera.errors import StatusError
from tessera.topology import Mesh

__version__ = "0.1.0"
__all__ = ["Mesh", "StatusError", "checkpoint", "errors", "optim", "pipeline", "topology"]


def __getattr__(name: str) -> Any:
    if name == "optim":
        return importlib.import_module("tessera.optim")
    raise AttributeError(f"module 'tessera' has no attribute {name!r}")

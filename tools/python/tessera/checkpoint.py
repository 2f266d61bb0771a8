"""The trainer's checkpoints, read as arrays.

    checkpoint = tessera.checkpoint.open("run")
    for name, parameter in checkpoint.part().items():
        print(name, parameter.shape, parameter.numpy().mean())

Every block that is read is verified against its checksum. Arrays share the memory that was read; nothing is copied.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Mapping
from typing import Any

from tessera import _core
from tessera.errors import InvalidArgument, NotFound

__all__ = ["Checkpoint", "Parameter", "Part", "open"]

_NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i8": "<i1", "u8": "<u1"}
_TORCH = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "uint8",
}


def open(path: str | os.PathLike[str]) -> Checkpoint:  # noqa: A001
    """Opens a checkpoint: its directory, or that of a run or of several checkpoints, for the newest complete one.

    Raises:
      NotFound: there is none. StatusError with code "DATA_LOSS": its manifest is damaged.
    """
    path = os.fspath(path)
    if not os.path.exists(os.path.join(path, "manifest.json")):
        of_run = os.path.join(path, "checkpoints")
        path = _core.latest_checkpoint(of_run if os.path.exists(of_run) else path)
    return Checkpoint(path)


class Checkpoint:
    """A complete checkpoint. Its parts are the models of the shard groups: one, or "pp0-tp1" of tensor and pipeline ranks."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest = _core.read_manifest(path)

    @property
    def step(self) -> int:
        return self._manifest.step

    @property
    def world_size(self) -> int:
        """The ranks that wrote it."""
        return self._manifest.world_size

    @property
    def parts(self) -> list[str]:
        return self._manifest.parts

    def part(self, name: str | None = None) -> Part:
        """The parameters of one part; the name may be left out where there is one part."""
        if name is None:
            if len(self.parts) != 1:
                raise InvalidArgument(f"{self.path} has {len(self.parts)} parts; name one of {', '.join(self.parts[:8])}")
            name = self.parts[0]
        return Part(self.path, name)

    def verify(self) -> None:
        """Reads every byte; raises StatusError with the first error."""
        _core.verify_checkpoint(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r}, step={self.step}, parts={len(self.parts)})"


class Part(Mapping[str, "Parameter"]):
    """The parameters of a part, by name in the model's order."""

    def __init__(self, path: str, name: str) -> None:
        self._part = _core.CheckpointPart(path, name)
        self._parameters = {entry[0]: Parameter(self._part, *entry) for entry in self._part.parameters}

    @property
    def metadata(self) -> dict[str, str]:
        """What the trainer stored beside: settings, position in the data."""
        return self._part.metadata

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


class Parameter:
    """A parameter; its elements are read when asked for."""

    def __init__(self, part: _core.CheckpointPart, name: str, shape: list[int], dtype: str, trainable: bool) -> None:
        self._part = part
        self.name = name
        self.shape = tuple(shape)
        self.dtype = dtype
        self.trainable = trainable

    def _read(self, state: str) -> _core.StateBytes:
        read = self._part.read(self.name, state)
        if read.block:
            raise InvalidArgument(f"{state} of {self.name} is in 8-bit blocks of {read.block}; use read()")
        return read

    def read(self, state: str = "value") -> memoryview:
        """The bytes of "value", "master", "first_moment" or "second_moment", as stored."""
        return memoryview(self._part.read(self.name, state))  # type: ignore[arg-type]

    def numpy(self, state: str = "value") -> Any:
        """An array. numpy has neither bf16 nor fp8: their bits come as unsigned integers; `torch` has them."""
        import numpy

        read = self._read(state)
        bits = {"bf16": "<u2", "fp8_e4m3": "<u1", "fp8_e5m2": "<u1"}
        return numpy.frombuffer(read, dtype=_NUMPY.get(read.dtype) or bits[read.dtype]).reshape(self.shape)

    def torch(self, state: str = "value") -> Any:
        """A tensor."""
        import torch

        read = self._read(state)
        dtype = getattr(torch, _TORCH[read.dtype])
        if not builtins.memoryview(read).nbytes:  # type: ignore[arg-type]
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(read, dtype=dtype).reshape(self.shape)

    def has(self, state: str) -> bool:
        """Whether there is such a state."""
        try:
            self._part.read(self.name, state)
        except NotFound:
            return False
        return True

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.shape}, dtype={self.dtype})"

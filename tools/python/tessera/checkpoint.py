"""The trainer's checkpoints, read as arrays.

    checkpoint = tessera.checkpoint.open("run")
    for name, parameter in checkpoint.part().items():
        print(name, parameter.shape, parameter.numpy().mean())

Every block that is read is verified against its checksum. Arrays share the memory that was read, without copies.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Mapping
from typing import Any

from tessera import _core
from tessera.errors import InvalidArgument, NotFound

__all__ = ["Checkpoint", "Parameter", "Part", "export", "export_adapter", "import_model", "open", "reshard"]

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
    """Opens a checkpoint, or the newest complete one in the directory of a run or of several checkpoints.

    Raises:
      NotFound: there is no checkpoint.
      StatusError: with code "DATA_LOSS", its manifest is damaged.
    """
    return Checkpoint(_core.resolve_checkpoint(os.fspath(path)))


def reshard(source: str | os.PathLike[str], directory: str | os.PathLike[str], mesh: str, zero: int = 3) -> Checkpoint:
    """Writes a checkpoint for another mesh or ZeRO stage into `directory`; the state is bit-identical.

    Args:
      source: as for `open`.
      directory: a directory of checkpoints; created if missing. The new checkpoint appears atomically.
      mesh: such as "dp2,pp2,tp2".
      zero: the stage, 0 to 3.

    Raises:
      InvalidArgument: the model cannot be divided this way.
      StatusError: with code "ALREADY_EXISTS", there is a checkpoint of that step already; "DATA_LOSS", the source is damaged.
    """
    return Checkpoint(_core.reshard(os.fspath(source), os.fspath(directory), mesh, zero))


def export(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    dtype: str = "fp32",
    max_shard_bytes: int = 5_000_000_000,
    tokenizer: str | os.PathLike[str] = "",
) -> None:
    """Writes the weights as a Hugging Face model: config.json and safetensors, from masters where there are any.

    Args:
      source: as for `open`. LoRA adapters are added to the weights.
      directory: a new or empty directory, which is written atomically.
      dtype: "fp32", "bf16" or "fp16", rounded to nearest.
      max_shard_bytes: the largest number of bytes of weights in a file.
      tokenizer: a directory whose tokenizer files are copied.
    """
    _core.export_model(os.fspath(source), os.fspath(directory), _type(dtype), max_shard_bytes, os.fspath(tokenizer))


def export_adapter(
    source: str | os.PathLike[str], directory: str | os.PathLike[str], base: str, *, dtype: str = "fp32"
) -> None:
    """Writes the LoRA adapters of a run in PEFT's format, for the base model with the name or path `base`."""
    _core.export_adapter(os.fspath(source), os.fspath(directory), base, _type(dtype))


def import_model(
    model: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    mesh: str = "dp1",
    zero: int = 3,
    *,
    dtype: str | None = None,
) -> Checkpoint:
    """Writes a Hugging Face model as a checkpoint of step 0, from which a run resumes.

    Args:
      model: a directory with config.json and safetensors.
      directory: as in `reshard`.
      mesh: as in `reshard`.
      zero: as in `reshard`.
      dtype: the type of the run: "fp32", "bf16" or "fp16"; default: the type in config.json.
    """
    kind = None if dtype is None else _type(dtype)
    return Checkpoint(_core.import_model(os.fspath(model), os.fspath(directory), mesh, zero, kind))


def _type(dtype: str) -> str:
    known = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
    if dtype not in known:
        raise InvalidArgument(f"dtype={dtype!r}; use {', '.join(known)}")
    return known[dtype]


class Checkpoint:
    """A complete checkpoint. It has one part, or a part such as "pp0-tp1" per pipeline and tensor rank (per shard group)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest = _core.read_manifest(path)

    @property
    def step(self) -> int:
        return self._manifest.step

    @property
    def world_size(self) -> int:
        """The number of ranks that wrote the checkpoint."""
        return self._manifest.world_size

    @property
    def parts(self) -> list[str]:
        return self._manifest.parts

    def part(self, name: str | None = None) -> Part:
        """The parameters of one part; the name is optional if there is only one part."""
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
        """The trainer's metadata: settings, position in the data."""
        return self._part.metadata

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


class Parameter:
    """A parameter, whose elements are read on demand."""

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
        """An array. numpy has neither bf16 nor fp8: their bits are returned as unsigned integers; `torch` has these types."""
        import numpy

        read = self._read(state)
        bits = {"bf16": "<u2", "fp8_e4m3": "<u1", "fp8_e5m2": "<u1"}
        return numpy.frombuffer(memoryview(read), dtype=_NUMPY.get(read.dtype) or bits[read.dtype]).reshape(self.shape)

    def torch(self, state: str = "value") -> Any:
        """A tensor."""
        import torch

        read = self._read(state)
        dtype = getattr(torch, _TORCH[read.dtype])
        if not builtins.memoryview(read).nbytes:  # type: ignore[arg-type]
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(read, dtype=dtype).reshape(self.shape)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The value for numpy.from_dlpack, torch.from_dlpack and similar functions: read from the file, then shared."""
        if stream is not None or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self.name} is read into the memory of the CPU")
        if copy is False:
            raise BufferError(f"{self.name} is in a file: reading it is a copy")
        read = self._read("value")
        return _core.to_dlpack(read, read.dtype, list(self.shape), max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def has(self, state: str) -> bool:
        """True if the parameter has this state."""
        try:
            self._part.read(self.name, state)
        except NotFound:
            return False
        return True

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.shape}, dtype={self.dtype})"

"""AdamW on the CPU, in one pass over memory; the same bits for any number of threads.

    optimizer = tessera.optim.CPUAdamW(model.parameters(), lr=3e-4, moments="bfloat16", max_norm=1.0)   # a torch.optim.Optimizer

    adamw = tessera.optim.AdamW(lr=3e-4)                  # for arrays of numpy and any other library with DLPack
    adamw.step({"w": (w, gradient_of_w)})

torch is imported for CPUAdamW only.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from tessera import _core
from tessera.errors import InvalidArgument

__all__ = ["AdamW", "CPUAdamW"]

MOMENTS = {"float32": "f32", "bfloat16": "bf16", "int8": "int8"}

# Names of array types.
FLOATS = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def moments_format(moments: str) -> str:
    if moments not in MOMENTS:
        raise InvalidArgument(f"moments {moments!r}; use {', '.join(MOMENTS)}")
    return MOMENTS[moments]


def __getattr__(name: str) -> Any:
    if name == "CPUAdamW":
        return importlib.import_module("tessera.torch_optim").CPUAdamW
    raise AttributeError(f"module 'tessera.optim' has no attribute {name!r}")


def foreign(array: Any, what: str, *, writable: bool = False) -> _core.ForeignTensor:
    """Wraps a dense floating-point array of another library in CPU memory, without a copy."""
    if not hasattr(array, "__dlpack__"):
        raise InvalidArgument(f"{what} is a {type(array).__name__}; give an array with __dlpack__, such as numpy's")
    device, _ = array.__dlpack_device__()
    if device != 1:
        raise InvalidArgument(f"{what} is on DLPack device {device}; only memory of the CPU (1) is stepped")
    try:
        capsule = array.__dlpack__(max_version=(1, 1))
    except TypeError:  # Older than DLPack 1.0.
        capsule = array.__dlpack__()
    except BufferError as error:
        raise InvalidArgument(f"{what}: {error}") from error
    tensor = _core.ForeignTensor(capsule)
    if tensor.dtype not in FLOATS:
        raise InvalidArgument(f"{what} is of type {tensor.dtype}; {', '.join(FLOATS.values())} can be stepped")
    if not tensor.is_contiguous:
        raise InvalidArgument(f"{what} of shape {tuple(tensor.shape)} is not contiguous")
    if writable and tensor.is_read_only:
        raise InvalidArgument(f"{what} is read-only")
    return tensor


def _zeros(size: int, dtype: str = "u8") -> tuple[bytearray, _core.Memory]:
    memory = bytearray(size)
    view = _core.bytes_of(memory)
    return memory, _core.Memory(view, dtype, size)


class AdamW:
    """AdamW (arXiv 1711.05101) for arrays of numpy, torch, JAX and others in CPU memory, updated in place.

    Args:
      lr: as torch.optim.AdamW; may change between steps.
      betas: as torch.optim.AdamW.
      eps: as torch.optim.AdamW.
      weight_decay: as torch.optim.AdamW.
      moments: "float32", "bfloat16" (stochastic rounding) or "int8" (blocks of 2048 with a scale each); moments of float64
        parameters are always float64.
      threads: number of threads.
      seed: seed of the stochastic rounding.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        moments: str = "float32",
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self._moments = moments_format(moments)
        self.lr = lr
        self._rest = (float(betas[0]), float(betas[1]), float(eps), float(weight_decay), seed)
        self._pool = _core.ThreadPool(threads)
        self._states: dict[str, tuple[int, str, int, Any, Any]] = {}
        _core.AdamW(self.lr, *self._rest, self._pool)  # Rejects invalid numbers.

    def step(self, parameters: Mapping[str, tuple[Any, Any]], max_norm: float = 0) -> float:
        """Steps every named parameter, given as (parameter, gradient), and returns the norm of all gradients together.

        Parameters are float32 or float64; gradients may also be bfloat16 or float16. With `max_norm`, gradients are scaled
        so that their total norm does not exceed it. Moments are stored by name and start at zero.

        Raises InvalidArgument, before anything is written, for unsupported arrays.
        """
        steps: dict[int, list[tuple[_core.Parameter, tuple[int, str]]]] = {}
        keeps, gradients, states = [], [], {}
        for name, (parameter, gradient) in parameters.items():
            own = foreign(parameter, f"parameter {name!r}", writable=True)
            its = foreign(gradient, f"the gradient of {name!r}")
            size = math.prod(own.shape)
            if list(own.shape) != list(its.shape):
                raise InvalidArgument(
                    f"the gradient of {name!r} has shape {tuple(its.shape)}, the parameter {tuple(own.shape)}"
                )
            keeps += [own, its]
            gradients.append(_core.Memory(its.address, its.dtype, size))
            count, first, second = self._state(name, own.dtype, size)
            states[name] = (count + 1, own.dtype, size, first, second)
            slot = _core.Parameter(
                name, _core.Memory(own.address, own.dtype, size), first[1], second[1], None, self._moments
            )
            steps.setdefault(count + 1, []).append((slot, (its.address, its.dtype)))
        norm, non_finite = _core.gradient_norm(gradients, self._pool)
        if max_norm and non_finite:
            raise InvalidArgument(f"{non_finite} elements of the gradients are infinite or not a number; nothing was stepped")
        clip = _core.clip_factor(norm, max_norm)
        stepper = _core.AdamW(float(self.lr), *self._rest, self._pool)
        for count, group in steps.items():
            stepper.step(count, clip, group)
        self._states.update(states)
        return norm

    def _state(self, name: str, dtype: str, size: int) -> tuple[int, Any, Any]:
        if name in self._states:
            count, known, elements, first, second = self._states[name]
            if (known, elements) != (dtype, size):
                raise InvalidArgument(
                    f"parameter {name!r} has {size} elements of {dtype}; its moments are for {elements} of {known}"
                )
            return count, first, second
        bytes_each = 8 * size if dtype == "f64" else _core.moment_bytes(self._moments, size)
        return 0, _zeros(bytes_each), _zeros(bytes_each)

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the moments by parameter: steps, type, elements, and the bytes of both moments."""
        return {
            name: (count, dtype, size, bytes(first[0]), bytes(second[0]))
            for name, (count, dtype, size, first, second) in self._states.items()
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, bit for bit."""
        loaded = {}
        for name, (count, dtype, size, first, second) in states.items():
            restored = []
            for saved in (first, second):
                memory, view = _zeros(len(saved))
                memory[:] = saved
                restored.append((memory, view))
            loaded[name] = (count, dtype, size, *restored)
        self._states = loaded

"""CPUAdamW, a torch.optim.Optimizer: see tessera.optim."""

from __future__ import annotations

import copy
import ctypes
import os
from typing import Any

import torch

from tessera import _core
from tessera.errors import InvalidArgument
from tessera.optim import moments_format

__all__ = ["CPUAdamW"]

_NAMES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

_ALLOWED = "CPUAdamW steps dense, contiguous tensors of the CPU in float32, float64, bfloat16 or float16"


def _check(tensor: torch.Tensor, what: str) -> None:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{what} is on {tensor.device}; {_ALLOWED}")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{what} is {tensor.layout}; {_ALLOWED}")
    if tensor.dtype not in _NAMES:
        raise InvalidArgument(f"{what} is {tensor.dtype}; {_ALLOWED}")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{what} has strides {tuple(tensor.stride())} for the shape {tuple(tensor.shape)}; {_ALLOWED}")


def _memory(tensor: torch.Tensor) -> _core.Memory:
    return _core.Memory(tensor.data_ptr(), _NAMES[tensor.dtype], tensor.numel())


def _bytes(tensor: torch.Tensor) -> _core.Memory:
    return _core.Memory(tensor.data_ptr(), "u8", tensor.numel() * tensor.element_size())


def _openmp_team() -> int:
    """The address of GOMP_parallel in torch's OpenMP runtime; 0 if torch uses another runtime.

    Torch's threads spin for some milliseconds after a backward pass. A step on these threads does not compete with them.
    """
    try:
        libgomp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return ctypes.cast(libgomp.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


class _Known:
    """A parameter as of its last step: valid while its memory and its states are unchanged."""

    __slots__ = ("address", "dtype", "elements", "first", "second", "master", "stepped")

    def __init__(self, parameter: torch.Tensor, state: dict[str, Any], name: str, moments: str) -> None:
        self.address = parameter.data_ptr()
        self.dtype = parameter.dtype
        self.elements = parameter.numel()
        self.first, self.second, self.master = state["exp_avg"], state["exp_avg_sq"], state.get("master")
        own = _memory(parameter)
        self.stepped = _core.Parameter(
            name,
            own if self.master is None else _memory(self.master),
            _bytes(self.first),
            _bytes(self.second),
            None if self.master is None else own,
            moments,
        )

    def fits(self, parameter: torch.Tensor, state: dict[str, Any]) -> bool:
        return (
            self.address == parameter.data_ptr()
            and self.dtype is parameter.dtype
            and self.elements == parameter.numel()
            and parameter.is_contiguous()
            and self.first is state["exp_avg"]
            and self.second is state["exp_avg_sq"]
            and self.master is state.get("master")
        )


class CPUAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) for parameters in CPU memory.

    Args:
      params: parameters or groups of them: contiguous CPU tensors in float32, float64, bfloat16 or float16. Parameters in
        bfloat16 and float16 have masters in float32, which are updated and rounded to the parameter.
      lr: as torch.optim.AdamW; may change between steps.
      betas: as torch.optim.AdamW.
      eps: as torch.optim.AdamW.
      weight_decay: as torch.optim.AdamW.
      moments: "float32", "bfloat16" (stochastic rounding) or "int8" (blocks of 2048 with a scale each); moments of float64
        parameters are always float64.
      max_norm: the largest norm of all gradients together. Replaces torch.nn.utils.clip_grad_norm_: the
        gradients are scaled as they are read and are not changed. 0: no clipping. `last_norm` is the norm in the last step.
        A step with non-finite gradients raises a StatusError and changes nothing.
      offload_dir: a directory for a file of masters and moments, which is deleted when the process ends. They are read
        ahead and written behind while others are stepped.
      near_bytes: memory for these buffers; at least a few blocks of 24 MiB.
      threads: number of threads; default torch.get_num_threads().
      seed: seed of the stochastic rounding.

    Gradients may be of the parameter's type or float32, bfloat16, float16. `step` raises InvalidArgument, before anything is
    written, for unsupported tensors.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        moments: str = "float32",
        max_norm: float = 0,
        offload_dir: str | os.PathLike[str] | None = None,
        near_bytes: int = 128 << 20,
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self._moments = moments_format(moments)
        if not 0 <= max_norm < float("inf"):
            raise InvalidArgument(f"max_norm={max_norm}; give a number above 0, or 0 for no clipping")
        if near_bytes < 1:
            raise InvalidArgument(f"near_bytes={near_bytes}; give 1 or more")
        self.max_norm = max_norm
        self.last_norm: float | None = None
        self._seed = seed
        self._pool = _core.ThreadPool(torch.get_num_threads() if threads is None else threads, _openmp_team())
        self._files = None if offload_dir is None else _core.StateFiles(os.fspath(offload_dir), near_bytes)
        self._steppers: dict[tuple[float, ...], _core.AdamW] = {}
        self._known: dict[torch.Tensor, _Known] = {}
        self._filed: dict[torch.Tensor, tuple[int, _core.FiledParameter]] = {}
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            self._stepper(group)  # Rejects invalid numbers.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            _check(parameter, "a parameter")

    def _stepper(self, group: dict[str, Any]) -> _core.AdamW:
        key = (float(group["lr"]), *map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"]))
        if key not in self._steppers:
            # Learning-rate schedules change the rate in every step.
            if len(self._steppers) >= 16:
                self._steppers.clear()
            lr, beta1, beta2, eps, weight_decay = key
            self._steppers[key] = _core.AdamW(lr, beta1, beta2, eps, weight_decay, self._seed, self._pool)
        return self._steppers[key]

    def _new_moment(self, parameter: torch.Tensor) -> torch.Tensor:
        if parameter.dtype == torch.float64:
            return torch.zeros_like(parameter)
        if self._moments == "int8":
            return torch.zeros(_core.moment_bytes("int8", parameter.numel()), dtype=torch.uint8)
        dtype = torch.bfloat16 if self._moments == "bf16" else torch.float32
        return torch.zeros(parameter.shape, dtype=dtype)

    @staticmethod
    def _has_master(parameter: torch.Tensor) -> bool:
        return parameter.dtype in (torch.bfloat16, torch.float16)

    def _create_state(self, parameter: torch.Tensor) -> dict[str, Any]:
        state = {"step": 0, "exp_avg": self._new_moment(parameter), "exp_avg_sq": self._new_moment(parameter)}
        if self._has_master(parameter):
            state["master"] = parameter.detach().float().contiguous()
        return state

    def _in_memory(self, parameter: torch.Tensor, name: str) -> _core.Parameter:
        state = self.state[parameter]
        if not state:
            state.update(self._create_state(parameter))
        known = self._known.get(parameter)
        if known is None or not known.fits(parameter, state):
            _check(parameter, name)
            for part in ("exp_avg", "exp_avg_sq", "master"):
                if part in state and not state[part].is_contiguous():
                    raise InvalidArgument(f"the state {part} of {name} is not contiguous")
            known = self._known[parameter] = _Known(parameter, state, name, self._moments)
        return known.stepped

    def _in_files(self, parameter: torch.Tensor, name: str) -> _core.FiledParameter:
        """The parameter with its states in files. If its memory has moved, its states move to new files."""
        address = parameter.data_ptr()
        known = self._filed.get(parameter)
        if known is not None and known[0] == address and parameter.is_contiguous() and known[1].elements == parameter.numel():
            return known[1]
        assert self._files is not None
        _check(parameter, name)
        if known is not None and known[1].elements != parameter.numel():
            raise InvalidArgument(f"{name} has {parameter.numel()} elements; its states are for {known[1].elements}")
        state = {} if known is None else self._read_state(parameter)
        filed = _core.FiledParameter(self._files, name, _memory(parameter), self._moments)
        self._filed[parameter] = (address, filed)
        self._write_state(parameter, state)
        return filed

    def _read_state(self, parameter: torch.Tensor) -> dict[str, Any]:
        _, filed = self._filed[parameter]
        state = {"step": filed.steps, "exp_avg": self._new_moment(parameter), "exp_avg_sq": self._new_moment(parameter)}
        if self._has_master(parameter):
            state["master"] = torch.empty(parameter.shape, dtype=torch.float32)
        for part in ("exp_avg", "exp_avg_sq", "master"):
            if part in state:
                filed.copy(part, _bytes(state[part]), False)
        return state

    def _write_state(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        _, filed = self._filed[parameter]
        for part in ("exp_avg", "exp_avg_sq", "master"):
            if part in state:
                filed.copy(part, _bytes(state[part].contiguous()), True)
        filed.steps = int(state.get("step", 0))

    def _dense(self, gradient: torch.Tensor, name: str, elements: int) -> torch.Tensor:
        """The gradient, or a contiguous copy of it."""
        if gradient.dtype not in _NAMES or gradient.layout is not torch.strided:
            _check(gradient, f"the gradient of {name}")
        if gradient.numel() != elements:
            raise InvalidArgument(f"{name} has {elements} elements, its gradient {gradient.numel()}")
        return gradient if gradient.is_contiguous() else gradient.contiguous()

    def _clip_factor(self, gradients: list[torch.Tensor]) -> float:
        if not self.max_norm or not gradients:
            return 1.0
        self.last_norm, non_finite = _core.gradient_norm([_memory(gradient) for gradient in gradients], self._pool)
        if non_finite:
            raise InvalidArgument(f"{non_finite} elements of the gradients are infinite or not a number; nothing was stepped")
        return _core.clip_factor(self.last_norm, self.max_norm)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Steps all parameters that have gradients; returns the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients: list[torch.Tensor] = []  # Copies live until the end of the step.
        # Parameters that are stepped together, with their states: parameters of one group with equal numbers of steps.
        together: list[tuple[dict[str, Any], int, list[tuple[Any, tuple[int, str]]], list[dict[str, Any]]]] = []
        for group in self.param_groups:
            by_count: dict[int, tuple[list[tuple[Any, tuple[int, str]]], list[dict[str, Any]]]] = {}
            for number, parameter in enumerate(group["params"]):
                elements = parameter.numel()
                if parameter.grad is None or elements == 0:
                    continue
                name = f"parameter {number}"
                gradient = self._dense(parameter.grad, name, elements)
                gradients.append(gradient)
                state: dict[str, Any] = {}
                if self._files is None:
                    stepped: Any = self._in_memory(parameter, name)
                    state = self.state[parameter]
                    count = state["step"] + 1
                else:
                    stepped = self._in_files(parameter, name)
                    count = stepped.steps + 1
                if count not in by_count:
                    by_count[count] = ([], [])
                parameters, states = by_count[count]
                parameters.append((stepped, (gradient.data_ptr(), _NAMES[gradient.dtype])))
                states.append(state)
            together += [(group, count, *lists) for count, lists in by_count.items()]
        clip = self._clip_factor(gradients)
        for group, count, parameters, states in together:
            if self._files is not None:
                self._stepper(group).step_filed(count, clip, parameters)
                continue
            self._stepper(group).step(count, clip, parameters)
            for state in states:
                state["step"] = count
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Like torch's state_dict; reads states in files into memory."""
        if self._files is None:
            return super().state_dict()
        numbers = {p: n for n, p in enumerate(p for group in self.param_groups for p in group["params"])}
        saved = super().state_dict()
        saved["state"] = {numbers[parameter]: self._read_state(parameter) for parameter in self._filed}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores every state bit for bit; torch's own would round masters and moments to the parameter's type."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(saved, own):
            if number not in state_dict["state"]:
                continue
            state = state_dict["state"][number]
            if self._files is None:
                self.state[parameter] = copy.deepcopy(state)
            elif parameter.numel():
                self.state.pop(parameter, None)
                self._in_files(parameter, "a parameter")
                self._write_state(parameter, state)

"""AdamW on the CPU, as a torch.optim.Optimizer.

    optimizer = tessera.optim.CPUAdamW(model.parameters(), lr=3e-4, moments="bfloat16")

One pass over memory for each parameter on all threads; the same bits for any number of threads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from tessera import _core
from tessera.errors import InvalidArgument

__all__ = ["CPUAdamW"]

_NAMES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_MOMENTS = {"float32": "f32", "bfloat16": "bf16", "int8": "int8"}


def _memory(tensor: torch.Tensor, of_bytes: bool = False) -> _core.Memory:
    if of_bytes:
        return _core.Memory(tensor.data_ptr(), "u8", tensor.numel() * tensor.element_size())
    return _core.Memory(tensor.data_ptr(), _NAMES[tensor.dtype], tensor.numel())


class CPUAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) for parameters in CPU memory.

    Args:
      params: parameters or groups of them: contiguous tensors of the CPU in float32, float64, bfloat16 or float16. Those of
        bfloat16 and float16 have masters in float32, which are stepped and rounded to the parameter.
      lr, betas, eps, weight_decay: as torch.optim.AdamW. `lr` may change between steps.
      moments: "float32", "bfloat16" (stochastic rounding) or "int8" (blocks of 2048 with a scale each); those of float64
        parameters are always float64.
      threads: default torch.get_num_threads().
      seed: of the stochastic rounding.

    Gradients may be of the parameter's type or float32, bfloat16, float16. `step` raises InvalidArgument, before anything is
    written, for tensors that it cannot step.
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
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        if moments not in _MOMENTS:
            raise InvalidArgument(f"moments {moments!r}; use {', '.join(_MOMENTS)}")
        self._moments = _MOMENTS[moments]
        self._seed = seed
        self._pool = _core.ThreadPool(torch.get_num_threads() if threads is None else threads)
        self._steppers: dict[tuple[float, ...], _core.AdamW] = {}
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            self._stepper(group)  # Refuses invalid numbers.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self._check(parameter, "a parameter")

    @staticmethod
    def _check(tensor: torch.Tensor, what: str) -> None:
        allowed = "CPUAdamW steps dense, contiguous tensors of the CPU in float32, float64, bfloat16 or float16"
        if tensor.device.type != "cpu":
            raise InvalidArgument(f"{what} is on {tensor.device}; {allowed}")
        if tensor.layout != torch.strided:
            raise InvalidArgument(f"{what} is {tensor.layout}; {allowed}")
        if tensor.dtype not in _NAMES:
            raise InvalidArgument(f"{what} is {tensor.dtype}; {allowed}")
        if not tensor.is_contiguous():
            raise InvalidArgument(f"{what} has strides {tuple(tensor.stride())} for the shape {tuple(tensor.shape)}; {allowed}")

    def _stepper(self, group: dict[str, Any]) -> _core.AdamW:
        key = (float(group["lr"]), *map(float, group["betas"]), float(group["eps"]), float(group["weight_decay"]))
        if key not in self._steppers:
            # Schedules change the rate in every step.
            if len(self._steppers) >= 16:
                self._steppers.clear()
            lr, beta1, beta2, eps, weight_decay = key
            self._steppers[key] = _core.AdamW(lr, beta1, beta2, eps, weight_decay, self._moments, self._seed, self._pool)
        return self._steppers[key]

    def _create_state(self, parameter: torch.Tensor) -> dict[str, Any]:
        if parameter.dtype == torch.float64:
            first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
        elif self._moments == "int8":
            size = _core.moment_bytes("int8", parameter.numel())
            first, second = (torch.zeros(size, dtype=torch.uint8) for _ in range(2))
        else:
            dtype = torch.bfloat16 if self._moments == "bf16" else torch.float32
            first, second = (torch.zeros(parameter.shape, dtype=dtype) for _ in range(2))
        state = {"step": 0, "exp_avg": first, "exp_avg_sq": second}
        if parameter.dtype in (torch.bfloat16, torch.float16):
            state["master"] = parameter.detach().float().contiguous()
        return state

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of all parameters that have gradients; returns what `closure` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        steps: list[tuple[_core.AdamW, int, list[Any], list[dict[str, Any]]]] = []
        for group in self.param_groups:
            by_step: dict[int, tuple[list[Any], list[dict[str, Any]]]] = {}
            for number, parameter in enumerate(group["params"]):
                gradient = parameter.grad
                if gradient is None or parameter.numel() == 0:
                    continue
                name = f"parameter {number}"
                self._check(parameter, name)
                if gradient.layout == torch.strided and not gradient.is_contiguous():
                    gradient = gradient.contiguous()
                self._check(gradient, f"the gradient of {name}")
                state = self.state[parameter]
                if not state:
                    state.update(self._create_state(parameter))
                master = state.get("master")
                ranges, states = by_step.setdefault(int(state["step"]) + 1, ([], []))
                ranges.append(
                    (
                        name,
                        _memory(parameter if master is None else master),
                        _memory(gradient),
                        _memory(state["exp_avg"], of_bytes=True),
                        _memory(state["exp_avg_sq"], of_bytes=True),
                        None if master is None else _memory(parameter),
                    )
                )
                states.append({"state": state, "keeps": gradient})
            for number, (ranges, states) in by_step.items():
                steps.append((self._stepper(group), number, ranges, states))
        for stepper, number, ranges, states in steps:
            stepper.step(number, ranges)
            for entry in states:
                entry["state"]["step"] = number
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores every state bit for bit; torch's own would round masters and moments to the parameter's type."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(saved, own):
            if number in state_dict["state"]:
                self.state[parameter] = copy.deepcopy(state_dict["state"][number])

"""ZeRO for torch modules: parameters, gradients and optimizer states sharded over the ranks of a process group.

    import torch
    import torch.distributed as dist
    from tessera_torch import zero

    dist.init_process_group("tessera")
    optimizer = zero.shard(model, "adamw", lr=3e-4, clip_norm=1.0)
    for batch in batches:
        model(batch).loss.backward()
        optimizer.step()
    optimizer.save("checkpoints")

The state is Tessera's ShardedState, as in its trainer: the same kernels, tiers and checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from tessera_torch import _C

__all__ = ["ZeroOptimizer", "predict", "shard"]

_MOMENTS = {"float32": "f32", "bfloat16": "bf16", "int8": "int8"}


class _Unit:
    """Parameters that are gathered and reduced together: those of a module except of units inside it."""

    def __init__(self, index: int, module: torch.nn.Module) -> None:
        self.index = index
        self.module = module
        self.parameters: list[tuple[int, torch.nn.Parameter]] = []
        self.is_started = False  # A gather has started and was not awaited yet.
        self.is_gathered = False
        self.is_dirty = False  # Gradients that were not reduced yet.
        self.is_reduced = False  # In this step.
        self.missing: set[int] = set()  # Trainable parameters without a gradient in this backward pass.

    @property
    def trainable(self) -> list[int]:
        return [i for i, parameter in self.parameters if parameter.requires_grad]

    @property
    def has_frozen(self) -> bool:
        return any(not parameter.requires_grad for _, parameter in self.parameters)


def _find_units(module: torch.nn.Module, units: Sequence[torch.nn.Module | type] | None) -> list[torch.nn.Module]:
    if units is None:
        # The layers of a model: its own elements, and those of the outermost lists in it.
        found: list[torch.nn.Module] = []
        inside: set[torch.nn.Module] = set()
        for child in module.modules():
            if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and child not in inside:
                found.extend(child)
                if child is not module:
                    inside.update(descendant for element in child for descendant in element.modules())
        return found
    types = tuple(unit for unit in units if isinstance(unit, type))
    named = {unit for unit in units if not isinstance(unit, type)}
    found = [child for child in module.modules() if child is not module and (child in named or isinstance(child, types))]
    if absent := named.difference(found, {module}):
        raise ValueError(f"tessera: units={type(absent.pop()).__name__} is not inside the module")
    return found


def _divide(module: torch.nn.Module, units: Sequence[torch.nn.Module | type] | None) -> tuple[list[str], list[_Unit]]:
    """Returns the names of all parameters and the units; the first one is that of the whole module."""
    root = _Unit(0, module)
    found = [_Unit(0, child) for child in _find_units(module, units)]
    users: dict[torch.nn.Parameter, list[_Unit]] = {}
    for unit in [root, *found]:
        others = {inner.module for inner in found if inner is not unit}
        stack, seen = [unit.module], set()
        while stack:
            child = stack.pop()
            if child in seen or (child in others and child is not unit.module):
                continue
            seen.add(child)
            stack.extend(child.children())
            for parameter in child._parameters.values():
                if parameter is not None and unit not in users.setdefault(parameter, []):
                    users[parameter].append(unit)
    names = []
    for name, parameter in module.named_parameters():
        used = users[parameter]
        # Parameters of several units are whole while the module runs.
        (used[0] if len(used) == 1 else root).parameters.append((len(names), parameter))
        names.append(name)
    if not names:
        raise ValueError("tessera: the module has no parameters")
    kept = [unit for unit in [root, *found] if unit is root or unit.parameters]
    for index, unit in enumerate(kept):
        unit.index = index
    return names, kept


def _settings(arguments: Mapping[str, Any], stage: int, optimizer: str, moments: str, offload: Any) -> _C.ZeroSettings:
    settings = _C.ZeroSettings()
    settings.stage, settings.optimizer = stage, optimizer
    if moments not in _MOMENTS:
        raise ValueError(f"tessera: moments={moments!r}; use {', '.join(_MOMENTS)}")
    settings.moments = _MOMENTS[moments]
    settings.threads = torch.get_num_threads()
    if optimizer == "lion":
        settings.betas = [0.9, 0.99]
    if offload is not None:
        settings.offload = json.dumps(dict(offload))
    for name, value in arguments.items():
        if not hasattr(settings, name):
            known = [key for key in dir(settings) if not key.startswith("_")]
            raise TypeError(f"tessera: unknown argument {name}={value!r}; use {', '.join(known)}")
        setattr(settings, name, list(value) if name == "betas" else value)
    return settings


def _parameters_of(names: list[str], units: list[_Unit]) -> _C.ZeroParameters:
    places = sorted((i, unit.index, parameter) for unit in units for i, parameter in unit.parameters)
    tensors = [parameter.data for _, _, parameter in places]
    trainable = [parameter.requires_grad for _, _, parameter in places]
    return _C.ZeroParameters(names, tensors, trainable, [unit for _, unit, _ in places])


class _Passes:
    """Gathers, releases and reduces units as the forward and backward passes reach them."""

    def __init__(self, state: _C.ZeroState, units: list[_Unit], stage: int) -> None:
        self.state = state
        self.units = units
        self.stage = stage
        self.is_held = False  # Parameters stay whole.
        self.reduces = True
        self.has_gradients = False  # Since the last step.

    @property
    def shards_parameters(self) -> bool:
        return self.stage == 3

    def start_gather(self, index: int) -> None:
        if index >= len(self.units) or not self.shards_parameters:
            return
        unit = self.units[index]
        if not unit.is_gathered and not unit.is_started:
            self.state.start_gather(index)
            unit.is_started = True

    def gather(self, unit: _Unit) -> None:
        if unit.is_gathered:
            return
        if not unit.is_started:
            self.state.start_gather(unit.index)
        self.state.await_gather(unit.index)
        unit.is_started = False
        unit.is_gathered = True
        if not self.state.is_dry:
            for index, parameter in unit.parameters:
                parameter.data = self.state.gathered(index)

    def release(self, unit: _Unit) -> None:
        if not self.shards_parameters or self.is_held:
            return
        if unit.is_started:
            self.state.await_gather(unit.index)
        elif not unit.is_gathered:
            return
        elif not self.state.is_dry:
            for _, parameter in unit.parameters:
                parameter.data = torch.empty(0, dtype=parameter.dtype)
        unit.is_started = unit.is_gathered = False
        self.state.release(unit.index)

    def reduce(self, unit: _Unit) -> None:
        if self.reduces:
            unit.is_dirty, unit.is_reduced = False, True
            self.state.reduce(unit.index)

    def begin_forward(self, unit: _Unit) -> None:
        self.gather(unit)
        self.start_gather(unit.index + 1)

    def end_forward(self, unit: _Unit, keeps_root: bool) -> None:
        """The parameters of the first unit are needed from the beginning of the backward pass to its end."""
        if unit.index > 0 or not keeps_root:
            self.release(unit)
        if unit.index == 0:
            for other in self.units[1:]:
                self.release(other)

    def begin_backward(self) -> None:
        for unit in self.units:
            unit.missing = set(unit.trainable)

    def begin_backward_of(self, unit: _Unit) -> None:
        self.gather(unit)
        if unit.index > 1 and self.units[unit.index - 1].missing:
            self.start_gather(unit.index - 1)

    def add_gradient(self, unit: _Unit, index: int, gradient: torch.Tensor | None) -> None:
        if unit.is_reduced and self.stage < 2:
            raise RuntimeError(
                f"tessera: stage {self.stage} reduces gradients once a step; use no_sync() for all but the last backward pass"
            )
        self.state.add_gradient(index, gradient)
        unit.is_dirty = self.has_gradients = True
        unit.missing.discard(index)
        if not unit.missing:
            self.reduce(unit)
            # A frozen weight may still be needed for the gradients of the unit's inputs.
            if not unit.has_frozen:
                self.release(unit)

    def end_backward_of(self, unit: _Unit) -> None:
        if not unit.missing:
            self.release(unit)

    def end_backward(self) -> None:
        """Also reduces the units in which some parameter was not used, so that all ranks reduce all units."""
        for unit in self.units:
            if unit.is_dirty or unit.missing:
                unit.missing = set()
                self.reduce(unit)
            self.release(unit)

    def step(self) -> _C.ZeroReport:
        for unit in self.units:
            if unit.is_dirty:
                self.reduce(unit)
            self.release(unit)
        report = self.state.step()
        self.has_gradients = False
        for unit in self.units:
            unit.is_reduced = False
        self.await_values()
        return report

    def await_values(self) -> None:
        """Below stage 3 new values are gathered into the same memory."""
        if not self.shards_parameters:
            for unit in self.units:
                self.state.await_gather(unit.index)

    def run_dry(self) -> None:
        """A step in which the outermost module runs first and last, and the others in their order."""
        root, *others = self.units
        self.gather(root)
        for unit in others:
            self.begin_forward(unit)
            self.end_forward(unit, True)
        self.end_forward(root, True)
        self.begin_backward()
        self.begin_backward_of(root)
        for index in root.trainable[1:]:
            self.add_gradient(root, index, None)
        for unit in reversed(others):
            self.begin_backward_of(unit)
            for index in unit.trainable:
                self.add_gradient(unit, index, None)
        self.end_backward()
        self.step()


def shard(
    module: torch.nn.Module,
    optimizer: str = "adamw",
    *,
    stage: int = 3,
    moments: str = "float32",
    offload: Mapping[str, Any] | None = None,
    units: Sequence[torch.nn.Module | type] | None = None,
    group: dist.ProcessGroup | None = None,
    **arguments: Any,
) -> ZeroOptimizer:
    """Shards a module over the ranks of a group, in place, and returns its optimizer. A collective of the group.

    Between forward and backward passes a parameter of stage 3 is an empty tensor; see ZeroOptimizer.full_parameters.
    Gradients are averaged over the ranks while the backward pass continues, and `parameter.grad` stays None.

    Args:
      module: its parameters and buffers become those of the group's rank 0. Parameters: float64, float32 or bfloat16, which
        has masters in float32; `requires_grad` is read here and must not change. Modules on the meta device are refused.
      optimizer: "adamw", "sgd" or "lion".
      stage: 0 nothing is sharded, 1 the optimizer's states, 2 gradients too, 3 parameters too.
      moments: "float32", "bfloat16" (stochastic rounding) or "int8" (blocks of 2048 with a scale each).
      offload: the state that is kept in files or compressed, such as {"optimizer": True, "parameters": True, "directory":
        "/scratch", "host_budget": 1 << 30, "codec": "lossless"}: the fields of Tessera's OffloadConfig.
      units: modules, or their classes, that are gathered one after the other. Default: the elements of the outermost
        ModuleLists and Sequentials, which are the layers of most models. The parameters outside of units, and those
        that several units share, are whole during the forward and the backward pass.
      group: a process group of backend "tessera"; default the world.
      arguments: of the optimizer: lr, betas, eps, weight_decay, momentum; clip_norm, the largest norm of all gradients;
        parameter_groups, such as "*norm*:decay=0;embed*:lr=0.1,decay=0"; threads; bucket_bytes, the size of messages at
        stage 1 and 2; persistence_threshold: parameters with fewer elements are not sharded at stage 3.

    Raises ValueError for invalid arguments, before anything is changed.
    """
    return ZeroOptimizer(module, _settings(arguments, stage, optimizer, moments, offload), units, group)


def predict(
    module: torch.nn.Module,
    ranks: int,
    optimizer: str = "adamw",
    *,
    stage: int = 3,
    moments: str = "float32",
    units: Sequence[torch.nn.Module | type] | None = None,
    **arguments: Any,
) -> dict[str, int]:
    """Returns the bytes of a rank's model state if the module were sharded over `ranks` ranks.

    "current" is held between steps, of it "parameters", "gradients", "optimizer" and "buffers"; "peak" also in a step. These are the
    numbers of ZeroOptimizer.memory, from the same code without communication or memory. Arguments as in `shard`.
    """
    names, divided = _divide(module, units)
    settings = _settings(arguments, stage, optimizer, moments, None)
    state = _C.ZeroState.dry(ranks, _parameters_of(names, divided), settings)
    _Passes(state, divided, stage).run_dry()
    return state.memory


class ZeroOptimizer(torch.optim.Optimizer):
    """The optimizer of a sharded module: see `shard`. Works with torch's learning-rate schedules.

    Every rank makes the same calls in the same order, and its forward and backward passes use the units in the same order;
    otherwise all ranks get an error that names a parameter.
    """

    last_norm: float | None = None  # The norm of all gradients in the last step, before clipping.
    last_step_skipped = False  # A gradient of the last step was infinite or NaN, so that nothing was changed.

    def __init__(
        self,
        module: torch.nn.Module,
        settings: _C.ZeroSettings,
        units: Sequence[torch.nn.Module | type] | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.module = module
        names, divided = _divide(module, units)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_meta:
                raise ValueError(f"tessera: {name} is on the meta device; initialise the module before it is sharded")
        group = dist.group.WORLD if group is None else group
        self._rate = settings.lr
        self._is_backward = False
        super().__init__(module.parameters(), {"lr": settings.lr})
        self._state = _C.ZeroState(group, _parameters_of(names, divided), settings)
        self._passes = _Passes(self._state, divided, settings.stage)
        self._set_values(group)
        for unit in divided:
            self._add_hooks(unit)
            self._passes.gather(unit)
            self._passes.release(unit)

    def _set_values(self, group: dist.ProcessGroup) -> None:
        source = dist.get_global_rank(group, 0)
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.data, source, group=group)
        self._state.fill([parameter.data for parameter in self.module.parameters()])

    def _add_hooks(self, unit: _Unit) -> None:
        unit.module.register_forward_pre_hook(
            lambda _, args, kwargs: self._before_forward(unit, (args, kwargs)), prepend=True, with_kwargs=True
        )
        unit.module.register_forward_hook(lambda _, args, output: self._after_forward(unit, output), always_call=True)
        for index, parameter in unit.parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda parameter, index=index: self._take_gradient(unit, index, parameter)
                )

    def _before_forward(self, unit: _Unit, inputs: Any) -> None:
        if _in_backward():  # A checkpoint is recomputed.
            self._passes.gather(unit)
            return
        if unit.index == 0:
            self._is_backward = False  # Also after a backward pass that has failed.
        self._passes.begin_forward(unit)
        if unit.has_frozen and unit.index > 0:
            _on_gradients(inputs, lambda: self._passes.end_backward_of(unit), "all")

    def _after_forward(self, unit: _Unit, output: Any) -> None:
        if _in_backward():
            return
        has_gradients = _on_gradients(output, lambda: self._before_backward(unit), "any")
        self._passes.end_forward(unit, keeps_root=has_gradients)

    def _before_backward(self, unit: _Unit) -> None:
        if not self._is_backward:
            self._is_backward = True
            self._passes.begin_backward()
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        self._passes.begin_backward_of(unit)

    def _take_gradient(self, unit: _Unit, index: int, parameter: torch.nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        self._passes.add_gradient(unit, index, gradient)

    def _end_backward(self) -> None:
        self._is_backward = False
        self._passes.end_backward()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add up gradients, which the first backward pass outside or `step` reduces.

        Stages 2 and 3 reduce after every backward pass without it, and need less memory; stages 0 and 1 can reduce only once a step.
        """
        self._passes.reduces = False
        try:
            yield
        finally:
            self._passes.reduces = True

    @contextlib.contextmanager
    def full_parameters(self) -> Iterator[None]:
        """All parameters are whole inside, on every rank: to read them, as in `model.state_dict()`. A collective.

        Changes to them are lost. Copies that outlive it must be clones.
        """
        if self._passes.is_held:
            yield
            return
        for unit in self._passes.units:
            self._passes.gather(unit)
        self._passes.is_held = True
        try:
            yield
        finally:
            self._passes.is_held = False
            for unit in self._passes.units:
                self._passes.release(unit)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with the gradients since the last step. A collective.

        A step with infinite or NaN gradients changes nothing; see last_step_skipped.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._passes.has_gradients:
            raise RuntimeError("tessera: step() without gradients; call backward() before it")
        rate = float(self.param_groups[0]["lr"])
        if rate != self._rate:
            self._state.set_learning_rate(rate)
            self._rate = rate
        report = self._passes.step()
        self.last_norm, self.last_step_skipped = report.gradient_norm, report.skipped
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Has no effect: `step` resets the gradients. Gradients that were not used yet cannot be dropped."""
        if self._passes.has_gradients:
            raise RuntimeError("tessera: zero_grad() would drop gradients of a backward pass; call step() first")

    @property
    def steps(self) -> int:
        return self._state.steps

    @property
    def memory(self) -> dict[str, int]:
        """The bytes of the state in this rank's memory, as in `predict`; "peak" so far."""
        return self._state.memory

    def save(self, directory: str | os.PathLike[str], *, keep: int = 0, metadata: Mapping[str, str] | None = None) -> str:
        """Writes a checkpoint of this step and returns its path. A collective; the ranks share a file system.

        It appears atomically, with checksums. The newest `keep` checkpoints of the directory are kept; 0: all. `load` reads it with
        any stage, units and number of ranks, and so does `tessera.checkpoint.open`.
        """
        return self._state.save(os.fspath(directory), keep, dict(metadata or {}))

    def load(self, path: str | os.PathLike[str]) -> dict[str, str]:
        """Restores a checkpoint, or the newest one in a directory, and returns its metadata. A collective.

        Everything but the learning rate is restored exactly.
        """
        path = os.fspath(path)
        if not os.path.exists(os.path.join(path, "manifest.json")):
            path = _C.latest_checkpoint(path)
        for unit in self._passes.units:
            self._passes.release(unit)
        metadata = self._state.load(path)
        self._passes.await_values()
        return metadata

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("tessera: the state is sharded; use save(directory)")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        raise NotImplementedError("tessera: the state is sharded; use load(path)")


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _on_gradients(values: Any, call: Callable[[], None], mode: str) -> bool:
    """Calls the function when the gradients of any or all tensors are computed; returns False if none will be."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not tensors or not torch.is_grad_enabled():
        return False
    torch.autograd.graph.register_multi_grad_hook(tensors, lambda _: call(), mode=mode)
    return True

"""Predicts what a training run needs: memory of each rank, bytes along each axis, pipeline bubble, operations.

    estimate = tessera.estimate.run("llama-7b", "dp2,tp4", batch=16, length=2048, dtype="bf16", memory="640GB")
    print(estimate.fits, estimate.peak_bytes, estimate.ranks[0]["memory"])

The numbers come from a dry run of the trainer's own code, which counts memory and messages instead of using them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tessera import _core
from tessera.errors import InvalidArgument, flags_as_arguments

__all__ = ["Advice", "Estimate", "run", "settings"]


class Advice(NamedTuple):
    """A change of the settings that reduces the memory of the run."""

    setting: str  # Such as "recompute=full", or "offload=all offload_dir=DIR".
    needed: int  # Bytes on this machine with the change.
    fits: bool
    and_before: bool  # In addition to the advice before it.


class Estimate:
    """A prediction in bytes and floating-point operations; `report` contains all of it."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report

    @property
    def world_size(self) -> int:
        return self.report["world_size"]

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return self.report["parameters"]

    @property
    def bubble(self) -> float:
        """The share of the pipeline's time during which ranks are idle."""
        return self.report["bubble"]

    @property
    def flops(self) -> float:
        """Operations per step, without recomputation."""
        return self.report["flops"]["model"]

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Coordinates, memory by purpose and traffic by axis of each rank (above 64 ranks: of one per pipeline rank)."""
        return self.report["ranks"]

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the rank that needs most."""
        return max(rank["memory"]["resident"] for rank in self.ranks)

    @property
    def needed_bytes(self) -> int:
        """Peak memory of all ranks together."""
        return self.report["memory"]["needed"]

    @property
    def fits(self) -> bool:
        return self.report["memory"]["fits"]

    @property
    def advice(self) -> list[Advice]:
        """What to change if it does not fit."""
        return [
            Advice(entry["flag"].replace("--", ""), entry["needed"], entry["fits"], entry["and_before"])
            for entry in self.report["advice"]
        ]

    def __repr__(self) -> str:
        return (
            f"Estimate(world_size={self.world_size}, parameters={self.parameters}, peak_bytes={self.peak_bytes}, "
            f"fits={self.fits})"
        )


def settings() -> dict[str, tuple[Any, str]]:
    """The settings of the trainer's command line by name, each with its default and description."""
    defaults = json.loads(_core.default_settings())
    return {name: (defaults[name], text) for name, text in _core.settings()}


def run(model: str, mesh: str = "dp1", *, memory: int | str = 0, vocabulary: int = 0, **others: Any) -> Estimate:
    """Predicts a training run.

    Args:
      model: one of tessera.plan.presets(), or a directory with a config.json of Hugging Face.
      mesh: such as "dp2,pp2,tp2".
      memory: memory for all ranks together, such as "640GB"; 0: the available memory of this machine.
      vocabulary: vocabulary size of the tokenizer; 0: the model's.
      others: see settings().

    Raises:
      InvalidArgument: a setting is unknown or its value invalid, or the model cannot be divided over the mesh.
    """
    chosen: dict[str, Any] = {"model": model, "mesh": mesh, **others}
    try:
        text = json.dumps(chosen)
    except TypeError as error:
        raise InvalidArgument(f"settings are numbers, strings, booleans and lists of strings: {error}") from error
    with flags_as_arguments():
        size = _core.parse_bytes(memory) if isinstance(memory, str) else memory
        return Estimate(json.loads(_core.estimate(text, vocabulary, size)))

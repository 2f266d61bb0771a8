"""The planner: the fastest ways to train a model on a cluster among those that fit.

    plans = tessera.plan.find("llama-7b", "hosts=2,gpus=8,memory=80GB")
    print(plans[0].mesh, plans[0].step_seconds, plans[0].command)
    print(plans)                                       # a table
    tessera.estimate.run(**plans[0].settings)          # its memory and traffic in detail
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any, overload

from tessera import _core
from tessera.errors import flags_as_arguments
from tessera.topology import Cluster

__all__ = ["Plan", "Plans", "find", "presets"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """One way to train, with its predicted times (seconds per step) and memory (bytes of the rank that needs most)."""

    mesh: str
    dp: int
    pp: int
    cp: int
    tp: int
    ep: int
    schedule: str
    chunks: int
    zero: int
    reduce: str
    recompute: str
    micro_batch: int
    micro_batches: int
    sequence_parallel: bool
    step_seconds: float
    pipeline_seconds: float
    data_seconds: float
    optimizer_seconds: float
    bubble: float
    tokens_per_second: float
    mfu: float
    memory_bytes: int
    settings: dict[str, Any]
    command: str


class Plans(Sequence[Plan]):
    """The best plan of each mesh, fastest first."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self._plans = [Plan(**plan) for plan in report["plans"]]

    @property
    def candidates(self) -> int:
        """The number of ways that were considered."""
        return self.report["candidates"]

    @property
    def assumptions(self) -> list[str]:
        return self.report["assumptions"]

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | list[Plan]:
        return self._plans[index]

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self._plans)

    def __str__(self) -> str:
        lines = [f"{'mesh':24}{'schedule':18}{'zero':>5}{'recompute':>11}{'batch':>6}{'step s':>9}{'tokens/s':>10}{'mfu':>7}{'GiB':>7}"]
        for plan in self:
            schedule = "-" if plan.pp == 1 else plan.schedule if plan.chunks == 1 else f"{plan.schedule} x{plan.chunks}"
            lines.append(
                f"{plan.mesh:24}{schedule:18}{plan.zero:5}{plan.recompute:>11}{plan.micro_batch:6}{plan.step_seconds:9.4g}"
                f"{plan.tokens_per_second:10.4g}{plan.mfu:7.1%}{plan.memory_bytes / 2**30:7.3g}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Plans({[plan.mesh for plan in self]})"


def presets() -> list[str]:
    """The names of the preset models."""
    return _core.model_presets()


def find(
    model: str,
    cluster: str | Cluster,
    *,
    ranks: int = 0,
    memory: int | str = 0,
    batch: int = 0,
    length: int = 2048,
    dtype: str = "bf16",
    tflops: float = 0,
    efficiency: float = 0,
    top: int = 5,
) -> Plans:
    """The fastest plans among all meshes, schedules, ZeRO stages, kinds of recomputation and micro-batches.

    Args:
      model: one of presets(), or a directory with a config.json of Hugging Face.
      cluster: a Cluster, or its description, such as "hosts=16,gpus=8,memory=80GB".
      ranks: number of ranks; 0: one per device.
      memory: memory per rank, such as "80GB" or a number of bytes; 0: the memory of the cluster's devices.
      batch: sequences per step, over all ranks; 0: about four million tokens, a multiple of the ranks.
      length: tokens per sequence.
      dtype: "fp32", "bf16" or "fp16".
      tflops: peak of a device in 10^12 operations per second; 0: an H100's for GPUs, 0.05 for CPU ranks.
      efficiency: the share of the peak that products and attention reach; 0: by shape for GPUs, 0.5 for CPU ranks.
      top: the number of meshes to return.

    Raises:
      InvalidArgument: a value is invalid, or no mesh is possible.
      StatusError: with code "RESOURCE_EXHAUSTED", nothing fits; the message names the plan that needs the least memory.
    """
    if isinstance(cluster, str):
        cluster = Cluster(cluster)
    with flags_as_arguments():
        report = _core.find_plans(
            model,
            cluster._cluster,
            ranks,
            _core.parse_bytes(memory) if isinstance(memory, str) else memory,
            batch,
            length,
            dtype,
            tflops,
            efficiency,
            top,
        )
    return Plans(json.loads(report))

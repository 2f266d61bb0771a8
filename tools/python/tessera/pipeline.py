"""Pipeline schedules as values: generate or synthesise, validate, simulate, draw; and PyTorch's formats.

    >>> from tessera import pipeline
    >>> schedule = pipeline.generate("zb_h1", ranks=3, microbatches=6)
    >>> pipeline.validate(pipeline.lower(schedule)).messages
    24
    >>> timeline = pipeline.simulate(schedule)
    >>> timeline.makespan, round(timeline.bubble_rate, 3)
    (20.0, 0.1)

The actions have the notation of torch.distributed.pipelining: "2F7" is the forward of micro-batch 7 in stage 2.
"""

from __future__ import annotations

import csv
import io
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera import _core
from tessera._core import Proof, Schedule, StageCosts, Synthesis, Timeline

__all__ = [
    "Proof",
    "Schedule",
    "StageCosts",
    "Synthesis",
    "Timeline",
    "actions",
    "draw",
    "from_csv",
    "from_json",
    "generate",
    "generators",
    "lower",
    "print_timeline",
    "simulate",
    "stage_costs",
    "synthesize",
    "to_torch",
    "validate",
]


def generators() -> dict[str, str]:
    """The names that `generate` accepts, with their papers."""
    return {name: paper for name, paper, _ in _core.generators()}


def generate(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """The schedule of a published method.

    Args:
      name: one of generators().
      ranks: number of pipeline ranks.
      microbatches: number of micro-batches per step.
      chunks: stages per rank; by default what the method needs, or 1.

    Raises:
      InvalidArgument: the method is unknown or does not support this shape; the message lists the nearest supported shapes.
    """
    if chunks is None:
        chunks = {known: count for known, _, count in _core.generators()}.get(name, 1) or 1
    return _core.generate(name, ranks, microbatches, chunks)


def from_csv(text: str, name: str = "csv") -> Schedule:
    """Reads the tables of torch.distributed.pipelining; `Schedule.to_csv` writes them."""
    return _core.read_csv(text, name)


def from_json(text: str) -> Schedule:
    """Reads what `Schedule.to_json` writes."""
    return _core.read_json(text)


def lower(schedule: Schedule) -> Schedule:
    """Adds all sends and receives to the schedule, in an order that cannot deadlock."""
    return _core.lower(schedule)


def validate(schedule: Schedule, buffers: int = 0) -> Proof:
    """Proves that the schedule is complete, ordered and free of deadlocks.

    Args:
      schedule: lowered, or with computations only.
      buffers: the number of sent messages that a channel holds; 0: a send waits for its receive.

    Raises:
      InvalidArgument: the message describes the first error: rank, action, and for a deadlock its cycle.
    """
    return _core.validate(schedule, buffers)


def stage_costs(**values: float) -> StageCosts:
    """The costs of one micro-batch in a stage: times in any unit, memory in bytes.

    forward, backward_input, backward_weight, communication (1, 1, 1, 0); forward_bytes, backward_input_bytes,
    backward_weight_bytes that an action adds (1, 0, -1); activation_bytes and gradient_bytes of messages (0); optimizer (0).
    """
    costs = StageCosts()
    for name, value in values.items():
        if name.startswith("_") or not hasattr(costs, name):
            known = [other for other in dir(costs) if not other.startswith("_")]
            raise TypeError(f"stage_costs has no argument {name!r}; there are {', '.join(known)}")
        setattr(costs, name, value)
    return costs


Costs = StageCosts | Mapping[str, float] | Sequence["StageCosts | Mapping[str, float]"] | None


def _list_of(costs: Costs) -> list[StageCosts]:
    if costs is None:
        return [StageCosts()]
    if isinstance(costs, (StageCosts, Mapping)):
        costs = [costs]
    return [stage if isinstance(stage, StageCosts) else stage_costs(**stage) for stage in costs]


def simulate(
    schedule: Schedule,
    costs: Costs = None,
    *,
    latency: float = 0,
    bandwidth: float = math.inf,
    overlap: bool = True,
) -> Timeline:
    """Begin, end and memory of every action.

    Args:
      schedule: lowered or not.
      costs: the costs of every stage, or a list with the costs of each stage.
      latency: latency of a message between ranks, in the unit of the costs.
      bandwidth: bytes of a message per unit of time.
      overlap: if true, messages overlap with computation and take no time of the ranks.
    """
    return _core.simulate(schedule, _list_of(costs), latency, bandwidth, overlap)


def synthesize(
    ranks: int,
    microbatches: int,
    costs: Costs = None,
    *,
    chunks: int = 1,
    memory_limit: int = 0,
    latency: float = 0,
    bandwidth: float = math.inf,
    overlap: bool = True,
    effort: float = 1,
    seed: int = 1,
    prefer_makespan: bool = False,
    placement: str = "",
) -> Synthesis:
    """Searches for the fastest schedule for given costs within a memory limit (bytes per rank; 0: no limit).

    `placement` fixes the rank of each stage: "linear", "loop" (interleaved) or "zigzag" (V-shaped). Without it the search
    may place stages on two ranks, as DualPipe does, which PyTorch's runtime does not support.

    The result is not slower than any of generators(); its `gap` is the distance from the proven lower bound.
    An interrupt (Ctrl-C) ends it.
    """
    arguments = (ranks, microbatches, chunks, _list_of(costs), latency, bandwidth, overlap)
    limits = (memory_limit, effort, seed, prefer_makespan, placement)
    return _interruptible(lambda stop: _core.synthesize(*arguments, *limits, stop))


def _interruptible(function: Callable[[_core.Stop], Any]) -> Any:
    """Calls a function that ignores signals on another thread, and stops it when this thread is interrupted."""
    stop = _core.Stop()
    done = threading.Event()  # After an interrupt, later calls of Thread.join may return early.
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = function(stop)
        except BaseException as error:  # Raised again in the caller's thread.
            outcome["error"] = error
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not done.wait(0.05):
            pass
    except BaseException:
        stop.request()
        done.wait()
        raise
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def _titled(timelines: Timeline | Mapping[str, Timeline], title: str) -> list[tuple[str, Timeline]]:
    return [(title, timelines)] if isinstance(timelines, Timeline) else list(timelines.items())


def draw(
    timelines: Timeline | Mapping[str, Timeline], path: str | os.PathLike[str] | None = None, *, title: str = "", unit: str = "s"
) -> str:
    """Draws one timeline, or several by title on the same scales, as SVG; returns the document and writes it to `path`."""
    svg = _core.draw_svg(_titled(timelines, title), unit, _microseconds(unit))
    if path is not None:
        temporary = f"{os.fspath(path)}.tmp{os.getpid()}"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(svg)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
    return svg


def print_timeline(
    timelines: Timeline | Mapping[str, Timeline], *, title: str = "", unit: str = "s", width: int = 80
) -> None:
    """Prints one timeline, or several by title, a line for each rank."""
    print(_core.draw_terminal(_titled(timelines, title), unit, _microseconds(unit), width), end="")


def _microseconds(unit: str) -> float:
    units = {"s": 1e6, "ms": 1e3, "us": 1.0}
    if unit not in units:
        raise ValueError(f"unit {unit!r}; use {', '.join(units)}")
    return units[unit]


def actions(schedule: Schedule) -> list[list[str]]:
    """The cells of each rank: actions such as "2F7", and pairs that run together."""
    rows = csv.reader(io.StringIO(schedule.to_csv()))
    return [[cell for cell in row if cell] for row in rows]


def to_torch(schedule: Schedule) -> dict[int, list[Any]]:
    """Converts the schedule to the form of torch.distributed.pipelining: a list of `_Action` for each rank.

    torch's `_PipelineScheduleRuntime` adds the communication itself, so pass a schedule that is not lowered:

        runtime = _PipelineScheduleRuntime(stages, n_microbatches=..., loss_fn=...)
        runtime._prepare_schedule_with_comms(to_torch(schedule))
    """
    from torch.distributed.pipelining.schedules import _Action

    return {rank: [_Action.from_str(cell) for cell in cells] for rank, cells in enumerate(actions(schedule))}

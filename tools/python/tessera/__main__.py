"""The command line of the package: `python -m tessera --help`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import Any, NoReturn

from tessera import __version__, checkpoint, estimate, launch, pipeline, plan
from tessera.errors import InvalidArgument, StatusError
from tessera.topology import Mesh


class _Parser(argparse.ArgumentParser):
    """Reports bad usage in one line, as all of Tessera's tools do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tessera: {message}; see {self.prog} --help\n")


def _mesh(args: argparse.Namespace) -> None:
    mesh = Mesh(args.axes, order=args.order)
    for axes in args.groups or mesh.axes:
        for group in mesh.groups(axes):
            print(f"{mesh.group_name(group[0], axes)}: {' '.join(map(str, group))}")


def _schedule(args: argparse.Namespace) -> None:
    if args.name == "auto":
        costs = {"forward": args.forward, "backward_input": args.backward_input, "backward_weight": args.backward_weight}
        schedule = pipeline.synthesize(args.ranks, args.microbatches, costs, chunks=args.chunks or 1).schedule
    else:
        schedule = pipeline.generate(args.name, args.ranks, args.microbatches, args.chunks)
    if args.csv:
        print(schedule.to_csv(), end="")
        return
    timeline = pipeline.simulate(
        schedule, {"forward": args.forward, "backward_input": args.backward_input, "backward_weight": args.backward_weight}
    )
    if args.svg:
        pipeline.draw(timeline, args.svg, title=args.name)
    else:
        pipeline.print_timeline(timeline, title=args.name, width=args.width)


def _plan(args: argparse.Namespace) -> None:
    plans = plan.find(
        args.model, args.cluster, ranks=args.ranks, memory=args.memory, batch=args.batch, length=args.length, dtype=args.dtype
    )
    if args.json:
        print(json.dumps(plans.report, indent=2))
    else:
        print(f"{plans}\n\n{plans[0].command}")


def _value(text: str) -> Any:
    """A setting's value: a number, true or false, or text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _estimate(args: argparse.Namespace) -> None:
    settings = {}
    for setting in args.settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise InvalidArgument(f"{setting}: expected name=value, such as zero=3")
        settings[name] = _value(value)
    found = estimate.run(args.model, args.mesh, memory=args.memory, **settings)
    if args.json:
        print(json.dumps(found.report, indent=2))
        return
    print(f"{found.parameters} parameters on {found.world_size} ranks, {found.flops:.4g} operations a step, bubble {found.bubble:.1%}")
    print(f"{found.peak_bytes / 2**30:.3g} GiB on the rank that needs most, {found.needed_bytes / 2**30:.3g} GiB in all:", end=" ")
    print("fits" if found.fits else "does not fit")
    for advice in found.advice:
        print(f"  {advice.setting}: {advice.needed / 2**30:.3g} GiB in all{', fits' if advice.fits else ''}")


def _launch(args: argparse.Namespace) -> int:
    described = {
        "command": args.command[1:] if args.command[:1] == ["--"] else args.command,
        "environment": [f"{name}={value}" for name, value in os.environ.items()],
        "colour": sys.stdout.isatty() and sys.stderr.isatty() and not os.environ.get("NO_COLOR"),
    }
    described |= {name: getattr(args, name) for name in LAUNCH_OPTIONS}
    exit_code, code, message = launch._launch(described)
    if code != "OK":
        print(f"tessera: {message}", file=sys.stderr)
    return exit_code


def _reshard(args: argparse.Namespace) -> None:
    print(checkpoint.reshard(args.source, args.directory, args.mesh, args.zero).path)


def _export(args: argparse.Namespace) -> None:
    checkpoint.export(args.source, args.directory, dtype=args.dtype, tokenizer=args.tokenizer)
    print(args.directory)


# Options of `launch` with their defaults and help.
LAUNCH_OPTIONS: dict[str, tuple[Any, str]] = {
    "np": (1, "ranks to start on this node"),
    "nnodes": (1, "nodes of the job; launch runs once on each"),
    "node_rank": (0, "this node's number"),
    "master_addr": ("", "the address of node 0"),
    "master_port": (0, "0: a free port on one node, 29500 on several"),
    "timeout": (math.inf, "seconds after which the ranks are ended"),
    "grace": (5.0, "seconds between SIGTERM and SIGKILL"),
    "output": ("prefix", "prefix, raw, or a directory for rank0.log and so on"),
    "bind": ("none", "core binds each rank to a core of its own"),
}


def main(argv: list[str] | None = None) -> int:
    parser = _Parser(
        prog="python -m tessera", description="Meshes of ranks, pipeline schedules, plans, estimates, ranks and checkpoints."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")

    mesh = commands.add_parser("mesh", help="print the groups of a mesh")
    mesh.add_argument("axes", help="such as dp2,pp2,tp2")
    mesh.add_argument("groups", nargs="*", help="sets of axes, such as tp or dp,cp; default every axis")
    mesh.add_argument("--order", help="fastest axis first, such as tp-cp-ep-dp-pp")
    mesh.set_defaults(run=_mesh)

    schedule = commands.add_parser("schedule", help="print or draw a pipeline schedule")
    schedule.add_argument("name", help="auto, or one of: " + ", ".join(pipeline.generators()))
    schedule.add_argument("--ranks", type=int, default=4)
    schedule.add_argument("--microbatches", type=int, default=8)
    schedule.add_argument("--chunks", type=int, help="stages of a rank")
    for name in ("forward", "backward-input", "backward-weight"):
        schedule.add_argument(f"--{name}", type=float, default=1, help="its time")
    schedule.add_argument("--svg", metavar="FILE", help="draw it")
    schedule.add_argument("--csv", action="store_true", help="print PyTorch's table")
    schedule.add_argument("--width", type=int, default=80)
    schedule.set_defaults(run=_schedule)

    planner = commands.add_parser("plan", help="the fastest ways to train a model on a cluster")
    planner.add_argument("model", help="one of: " + ", ".join(plan.presets()) + "; or a directory of Hugging Face")
    planner.add_argument("cluster", help="such as hosts=2,gpus=8,memory=80GB")
    planner.add_argument("--ranks", type=int, default=0)
    planner.add_argument("--memory", default="0", help="of a rank, such as 80GB")
    planner.add_argument("--batch", type=int, default=0, help="sequences per step")
    planner.add_argument("--length", type=int, default=2048, help="tokens per sequence")
    planner.add_argument("--dtype", default="bf16", help="fp32, bf16 or fp16")
    planner.add_argument("--json", action="store_true", help="all figures")
    planner.set_defaults(run=_plan)

    estimator = commands.add_parser("estimate", help="memory and traffic of a training run")
    estimator.add_argument("model")
    estimator.add_argument("mesh", help="such as dp2,pp2,tp2")
    estimator.add_argument("settings", nargs="*", help="of the trainer, such as zero=3 dtype=bf16 batch=64")
    estimator.add_argument("--memory", default="0", help="of all ranks together; default what this machine has")
    estimator.add_argument("--json", action="store_true", help="all figures")
    estimator.set_defaults(run=_estimate)

    launcher = commands.add_parser("launch", help="start the ranks of a program")
    for name, (default, text) in LAUNCH_OPTIONS.items():
        launcher.add_argument(f"--{name}", type=type(default), default=default, help=text)
    launcher.add_argument("command", nargs=argparse.REMAINDER, help="-- program arguments")
    launcher.set_defaults(run=_launch)

    resharder = commands.add_parser("reshard", help="write a checkpoint for another mesh")
    resharder.add_argument("source", help="a checkpoint, or a run's directory")
    resharder.add_argument("directory")
    resharder.add_argument("mesh")
    resharder.add_argument("--zero", type=int, default=3)
    resharder.set_defaults(run=_reshard)

    exporter = commands.add_parser("export", help="write a checkpoint's weights as a Hugging Face model")
    exporter.add_argument("source")
    exporter.add_argument("directory")
    exporter.add_argument("--dtype", default="fp32")
    exporter.add_argument("--tokenizer", default="")
    exporter.set_defaults(run=_export)

    args = parser.parse_args(argv)
    try:
        return args.run(args) or 0
    except (StatusError, OSError) as error:
        print(f"tessera: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The command line of the package: `python -m tessera --help`."""

from __future__ import annotations

import argparse
import sys

from tessera import __version__, pipeline
from tessera.errors import StatusError
from tessera.topology import Mesh


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tessera", description="Meshes of ranks and pipeline schedules.")
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

    args = parser.parse_args(argv)
    try:
        args.run(args)
    except (StatusError, OSError) as error:
        print(f"tessera: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

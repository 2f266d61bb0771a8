"""Times torch.distributed over tessera and over gloo, in turn in one run.

    OMP_NUM_THREADS=1 python benchmark.py --ranks=2 --sizes=8,4096,262144,16777216 [--operations=all_reduce,broadcast]

Under torchrun it uses torchrun's ranks. Prints for each operation and size in bytes the median time of rank 0 in microseconds with each backend, and gloo's divided by
tessera's. Rounds of both alternate, so that other work on the machine disturbs both equally.
"""

import argparse
import os
import statistics
import time

import ranks
import torch
import torch.distributed as dist


def operations(size, world):
    """Operations by name, on float32 tensors of `size` bytes in total; each takes a group."""
    count = max(1, size // 4)
    block = max(1, count // world)
    whole, one, other = torch.ones(block * world), torch.ones(block), torch.ones(block * world)
    flat = torch.ones(count)
    rank = dist.get_rank()

    def exchange(group):
        peer = rank ^ 1
        if peer >= world:
            return
        if rank < peer:
            dist.send(flat, peer, group=group)
            dist.recv(flat, peer, group=group)
        else:
            dist.recv(flat, peer, group=group)
            dist.send(flat, peer, group=group)

    return {
        # MAX keeps the numbers finite.
        "all_reduce": lambda group: dist.all_reduce(flat, op=dist.ReduceOp.MAX, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(one, whole, op=dist.ReduceOp.MAX, group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(whole, one, group=group),
        "broadcast": lambda group: dist.broadcast(flat, 0, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(other, whole, group=group),
        "send_recv": exchange,
    }


def time_of(call, group, repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        call(group)
    return (time.perf_counter() - begin) / repeats * 1e6


def measure(call, groups, size, rounds):
    repeats = max(1, min(50, 2_000_000 // max(size, 1)))
    times = {name: [] for name in groups}
    for round_number in range(rounds + 1):
        for name, group in groups.items():
            dist.barrier(group)
            took = time_of(call, group, repeats)
            if round_number > 0:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def print_overhead(port):
    """Measures a call on one rank against torch's "fake" backend, which does nothing.

    Turns off torch's flight recorder, which takes 2 us of each call on every backend except "fake".
    """
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
    ranks.register()
    dist.init_process_group("tessera")
    groups = {"tessera": dist.group.WORLD, "fake": dist.new_group([0], backend="fake")}
    tensor = torch.ones(2)
    times = {name: [] for name in groups}
    for _ in range(30):
        for name, group in groups.items():
            times[name].append(time_of(lambda group: dist.all_reduce(tensor, group=group), group, 2000))
    medians = {name: statistics.median(values) for name, values in times.items()}
    over = medians["tessera"] - medians["fake"]
    print(f"all_reduce of 8 bytes on one rank: {medians['tessera']:.2f} us, {over:.2f} us more than a backend that does nothing")
    dist.destroy_process_group()


def run_rank(args):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ranks.register()
    dist.init_process_group("tessera")
    groups = {
        "tessera": dist.group.WORLD,
        "gloo": dist.new_group(list(range(world)), backend="gloo"),
    }
    if rank == 0:
        print(f"{'operation':16}{'bytes':>12}{'tessera us':>12}{'gloo us':>12}{'ratio':>8}")
    for name in args.operations.split(","):
        for size in map(int, args.sizes.split(",")):
            medians = measure(operations(size, world)[name], groups, size, args.rounds)
            if rank == 0:
                ratio = medians["gloo"] / medians["tessera"]
                print(f"{name:16}{size:12}{medians['tessera']:12.1f}{medians['gloo']:12.1f}{ratio:8.2f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,4096,262144,16777216")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operations", default="all_reduce,reduce_scatter,all_gather,broadcast,all_to_all,send_recv")
    args = parser.parse_args()
    if args.ranks == 1 and "RANK" not in os.environ:
        return print_overhead(ranks.free_port())
    ranks.run(args.ranks, run_rank, args)


if __name__ == "__main__":
    main()

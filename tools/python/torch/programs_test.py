"""Runs random programs of groups and collectives on the installed tessera_torch, and restarts a job under torchrun.

    python programs_test.py [--programs=1] [--steps=40] [--ranks=2,3,8] [--backend=tessera]

A program creates overlapping, repeated, one-rank and split groups, destroys and creates them again, and awaits collectives in
the callbacks of futures. Every result is compared with a value that is computed directly. With --backend=gloo the programs
await every callback at once and do not nest them, because gloo supports neither.
"""

import argparse
import datetime
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

TIMEOUT = datetime.timedelta(seconds=60)


class Program:
    """One rank's view of a program. All ranks make the same random choices."""

    def __init__(self, dist, torch, seed, backend):
        self.dist, self.torch = dist, torch
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.random = random.Random(seed)
        self.simple = backend == "gloo"
        self.groups = [(dist.group.WORLD, list(range(self.size)))]
        self.pending = []  # Futures with the expected value.
        self.step = 0
        self.what = ""

    def run(self, steps):
        actions = [self.create] * 3 + [self.destroy] * 2 + [self.split] + [self.collect] * 4 + [self.chain] * 4
        for self.step in range(steps):
            self.random.choice(actions)()
        self.finish()

    def values(self, members):
        return [float((1 + member) * (1 + self.step % 7)) for member in members]

    def check(self, tensor, expected):
        expected = self.torch.tensor(expected)
        assert self.torch.equal(tensor, expected), f"step {self.step}, {self.what}: {tensor} instead of {expected}"

    def create(self):
        members = self.random.sample(range(self.size), self.random.randint(1, self.size))
        if self.random.random() < 0.3:  # The members of an existing group.
            members = list(self.random.choice(self.groups)[1])
        members.sort()
        self.groups.append((self.dist.new_group(members, timeout=TIMEOUT), members))
        self.collect(self.groups[-1])

    def split(self):
        cut = self.random.randint(1, self.size)
        parts = [part for part in (list(range(cut)), list(range(cut, self.size))) if part]
        if self.simple:
            made = [self.dist.new_group(part, timeout=TIMEOUT) for part in parts]
        else:
            own = self.dist.split_group(split_ranks=parts, timeout=TIMEOUT)
            made = [own] * len(parts)
        self.groups.extend(zip(made, parts))

    def destroy(self):
        self.finish()
        if len(self.groups) == 1:
            return
        group, members = self.groups.pop(self.random.randrange(1, len(self.groups)))
        if self.rank in members:
            self.dist.destroy_process_group(group)

    def collect(self, chosen=None):
        group, members = chosen or self.random.choice(self.groups)
        kind, is_async, root = self.random.randrange(3), self.random.random() < 0.5, self.random.choice(members)
        self.what = f"collective {kind} on {members}"
        if self.rank not in members:
            return
        values = self.values(members)
        own = self.torch.full((3,), values[members.index(self.rank)])
        if kind == 0:
            output, expected = own, [sum(values)] * 3
            work = self.dist.all_reduce(own, group=group, async_op=is_async)
        elif kind == 1:
            output, expected = own, [values[members.index(root)]] * 3
            work = self.dist.broadcast(own, root, group=group, async_op=is_async)
        else:
            output, expected = self.torch.empty(3 * len(members)), [value for value in values for _ in range(3)]
            work = self.dist.all_gather_into_tensor(output, own, group=group, async_op=is_async)
        if is_async:
            work.wait()
        self.check(output, expected)

    def chain(self):
        """Collectives that are started and awaited in callbacks, while the caller goes on."""
        group, members = self.random.choice(self.groups)
        depth, waits = self.random.randint(1, 3), self.random.random() < 0.5
        if self.simple:
            depth, waits = 1, True
        self.what = f"chain of {depth} on {members}"
        if self.rank not in members:
            return

        def callback(left):
            def next_sum(future):
                tensor = future.value()
                tensor = (tensor[0] if isinstance(tensor, (list, tuple)) else tensor).clone()
                result = self.dist.all_reduce(tensor, group=group, async_op=True).get_future()
                if left > 1:
                    result = result.then(callback(left - 1))
                result = result.wait()
                return result[0] if isinstance(result, (list, tuple)) else result

            return next_sum

        values = self.values(members)
        own = self.torch.full((2,), values[members.index(self.rank)])
        future = self.dist.all_reduce(own, group=group, async_op=True).get_future().then(callback(depth))
        self.pending.append((future, self.what, [sum(values) * len(members) ** depth] * 2))
        if waits:
            self.finish()

    def finish(self):
        for future, self.what, expected in self.pending:
            self.check(future.wait(), expected)
        self.pending = []


def run_rank(options):
    import torch
    import torch.distributed as dist

    if options.backend == "tessera":
        import tessera_torch  # noqa: F401
    torch.set_num_threads(1)
    for program in range(options.programs):
        # The default group is remade for every program.
        dist.init_process_group(options.backend, timeout=TIMEOUT)
        Program(dist, torch, 1000 * dist.get_world_size() + program, options.backend).run(options.steps)
        dist.barrier()
        dist.destroy_process_group()
    print("passed", flush=True)
    if options.backend == "gloo":
        os._exit(0)  # The interpreter's exit may abort: gloo's threads still release callbacks.


def run_restarted(options):
    """Fails on all ranks in the first attempt, after the groups were made; passes in the second one."""
    import torch
    import torch.distributed as dist

    import tessera_torch  # noqa: F401

    store = dist.FileStore(options.store, int(os.environ["WORLD_SIZE"]))
    dist.init_process_group(
        "tessera", store=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), timeout=TIMEOUT
    )
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=dist.new_group([0, 1]))
    assert tensor[0].item() == 2
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)
    print("restarted", flush=True)
    os._exit(0)


def test_programs(options):
    for ranks in map(int, options.ranks.split(",")):
        begin = time.time()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, os.path.abspath(__file__), "rank", *sys.argv[1:]]
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
        processes = [
            subprocess.Popen(command, env=dict(env, RANK=str(rank)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=300)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, output in enumerate(outputs):
            if processes[rank].returncode != 0 or "passed" not in output:
                sys.exit(f"rank {rank} of {ranks} ended with {processes[rank].returncode}: {output}")
        print(f"{options.programs} programs on {ranks} ranks passed in {time.time() - begin:.1f} s", flush=True)


def test_restart():
    """The keys of the first attempt are still in the store when the second one begins."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max_restarts=1"]
        command += [os.path.abspath(__file__), "restarted", "--store=" + os.path.join(directory, "store")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if result.returncode != 0 or result.stdout.count("restarted") != 2:
        sys.exit(f"the restarted job ended with {result.returncode}: {result.stdout}{result.stderr}")
    print("passed after a restart", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", default="test", choices=["test", "rank", "restarted"])
    parser.add_argument("--backend", default="tessera", choices=["tessera", "gloo"])
    parser.add_argument("--programs", type=int, default=1)
    parser.add_argument("--ranks", default="2,3,8")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--store", help="a file, for the restarted job")
    options = parser.parse_args()
    if options.role == "rank":
        run_rank(options)
    elif options.role == "restarted":
        run_restarted(options)
    else:
        test_programs(options)
        if options.backend == "tessera":
            test_restart()


if __name__ == "__main__":
    main()

"""What the installed tessera_torch does when ranks die, fork, or exit with operations under way.

    python fault_test.py
"""

import datetime
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

DEADLINE = 120


# ---- What the ranks of each test do. ----


def killed(dist, torch, rank):
    """Rank 2 dies; the others print when they noticed and how."""
    tensor = torch.ones(1000)
    for step in range(100):
        if rank == 2 and step == 50:
            print(f"died {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            print(f"noticed {time.time()} {error}", flush=True)
            os._exit(0)


def forked(dist, torch, rank):
    """A forked child uses and drops its parent's group, and leaves through the interpreter's normal exit."""
    work = dist.all_reduce(torch.ones(4), async_op=True)
    message = dist.isend(torch.ones(3), 1 - rank)
    child = os.fork()
    if child == 0:
        for call in (
            lambda: dist.all_reduce(torch.ones(4)),
            lambda: dist.send(torch.ones(4), 1 - rank),
            lambda: work.wait(),
            lambda: message.wait(),
        ):
            try:
                call()
                print("worked in the child", flush=True)
            except RuntimeError as error:
                assert "before this process was forked" in str(error), error
        dist.destroy_process_group()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    work.wait()
    tensor = torch.empty(3)
    dist.recv(tensor, 1 - rank)
    message.wait()
    dist.all_reduce(tensor)
    print("sum", tensor[0].item(), flush=True)
    dist.destroy_process_group()


def workers(dist, torch, rank):
    """Forked workers of a data loader live beside the group."""
    loader = torch.utils.data.DataLoader(torch.arange(40.0), batch_size=4, num_workers=2, multiprocessing_context="fork")
    total = torch.zeros(1)
    for batch in loader:
        part = batch.sum()
        dist.all_reduce(part)
        total += part
    print("sum", total.item(), flush=True)


def pending(dist, torch, rank):
    """Rank 0 exits while an operation and a message wait for rank 1."""
    if rank == 1:
        time.sleep(30)
        os._exit(0)
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.irecv(torch.ones(4), 1)
    print("leaves", flush=True)


def abandoned(dist, torch, rank):
    """Sends whose works and tensors are dropped arrive whole."""
    if rank == 0:
        for i in range(8):
            dist.isend(torch.full((200_000,), float(i)), 1)
        for _ in range(50):
            torch.empty(200_000).fill_(-1)
        dist.barrier()
    else:
        time.sleep(0.5)
        tensor = torch.empty(200_000)
        for i in range(8):
            dist.recv(tensor, 0)
            assert (tensor == i).all(), (i, tensor)
        print("whole", flush=True)
        dist.barrier()


def large(dist, torch, rank):
    """More than 64 MB, each rank."""
    tensor = torch.ones(32 << 20)
    dist.all_reduce(tensor)
    print("sum", tensor[-1].item(), flush=True)
    dist.destroy_process_group()


def runs_on(dist, torch, rank):
    tensor = torch.ones(1000)
    print("runs", flush=True)
    while True:
        dist.all_reduce(tensor)
        tensor.fill_(1)


def late(dist, torch, rank):
    """Rank 3 stops; the others print how they noticed within the timeout."""
    dist.all_reduce(torch.ones(1000))
    if rank == 3:
        print("stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    begin = time.time()
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        print(f"noticed {time.time() - begin} {error}", flush=True)
    os._exit(0)


def runs_until_error(dist, torch, rank):
    tensor = torch.ones(1000)
    print("runs", flush=True)
    while True:
        last = time.time()
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        except RuntimeError as error:
            print(f"noticed {time.time() - last} {error}", flush=True)
            os._exit(0)


def message(dist, torch, rank):
    """Rank 3 dies while rank 0 receives from it."""
    dist.barrier()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.time()
    try:
        dist.recv(torch.ones(3), 3, tag=5)
    except RuntimeError as error:
        print(f"noticed {time.time() - begin} {error}", flush=True)
    os._exit(0)


def run_rank(name):
    import torch
    import torch.distributed as dist

    import tessera_torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("tessera", timeout=datetime.timedelta(seconds=float(os.environ.get("TIMEOUT", 60))))
    globals()[name](dist, torch, dist.get_rank())


# ---- The tests. ----


def shared_files():
    return {name for name in os.listdir("/dev/shm")} | {name for name in os.listdir("/tmp") if "tessera" in name}


class FaultTest(unittest.TestCase):
    def start(self, name, ranks, prefix=()):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for rank in range(ranks):
            env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
            command = [*prefix, sys.executable, os.path.abspath(__file__), "rank", name]
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.kill)
            processes.append(process)
        return processes

    def run_ranks(self, name, ranks, prefix=()):
        """Returns the outputs of all ranks; every rank must exit with 0."""
        processes = self.start(name, ranks, prefix)
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
        for rank, process in enumerate(processes):
            self.assertEqual(process.returncode, 0, f"rank {rank}: {outputs[rank]}")
        return outputs

    def test_a_killed_rank_is_named_within_a_second(self):
        processes = self.start("killed", 4)
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
        self.assertEqual(processes[2].returncode, -signal.SIGKILL, outputs[2])
        died = float(re.search(r"died (\S+)", outputs[2]).group(1))
        for rank in (0, 1, 3):
            noticed = re.search(r"noticed (\S+) (.*)", outputs[rank], re.S)
            self.assertIsNotNone(noticed, outputs[rank])
            self.assertRegex(noticed.group(2), r"rank 2\b")
            self.assertLess(float(noticed.group(1)) - died, 1, outputs[rank])
            print(f"rank {rank} noticed after {float(noticed.group(1)) - died:.3f} s", file=sys.stderr)

    def test_forked_child_fails_without_breaking_group(self):
        for output in self.run_ranks("forked", 2):
            self.assertEqual(output.strip(), "sum 2.0")

    def test_forked_workers_of_a_data_loader_do_no_harm(self):
        for output in self.run_ranks("workers", 2):
            self.assertIn("sum 1560.0", output)

    def test_the_interpreter_exits_with_operations_under_way(self):
        zero, one = self.start("pending", 2)
        output = zero.communicate(timeout=20)[0]
        self.assertEqual(zero.returncode, 0, output)
        self.assertIn("leaves", output)
        one.kill()
        one.communicate()

    def test_sends_whose_works_are_dropped_arrive(self):
        self.assertIn("whole", self.run_ranks("abandoned", 2)[1])

    def test_killing_all_ranks_leaves_nothing(self):
        before = shared_files()
        processes = self.start("runs_on", 3)
        for process in processes:
            self.assertIn("runs", process.stdout.readline())
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        self.assertEqual(shared_files() - before, set())

    def test_a_small_or_read_only_dev_shm_does_not_matter(self):
        with tempfile.TemporaryDirectory() as directory:
            script = os.path.join(directory, "in_namespace")
            for options in ("size=64m", "ro"):
                with open(script, "w") as file:
                    file.write(f'#!/bin/sh\nmount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"\n')
                os.chmod(script, 0o755)
                namespace = ["unshare", "--mount", script] if os.geteuid() == 0 else ["unshare", "-r", "--mount", script]
                if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
                    self.skipTest("mounts are not permitted here")
                for output in self.run_ranks("large", 2, namespace):
                    self.assertIn("sum 2.0", output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(sys.argv[2])
    else:
        unittest.main(verbosity=2)

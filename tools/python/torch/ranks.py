"""Ranks of tests and benchmarks: processes of this host, or those of torchrun."""

import os
import socket
import sys
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def register():
    """torch finds the backend by itself from 2.14 on."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        import tessera_torch  # noqa: F401


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run(size, function, *args):
    """Calls the function on `size` new processes with torchrun's variables; on a rank of torchrun only there."""
    if "RANK" in os.environ:
        return function(*args)
    mp.spawn(_run_new_rank, (size, free_port(), function, args), nprocs=size)


def _run_new_rank(rank, size, port, function, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    function(*args)


def run_tests(case):
    """Runs the tests of a TestCase, which all ranks do in the same order. Prints the errors of every rank."""
    rank = dist.get_rank()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    stream = sys.stderr if rank == 0 else open(os.devnull, "w")
    result = unittest.TextTestRunner(stream=stream, verbosity=2).run(suite)
    if not result.wasSuccessful():
        for _, text in result.failures + result.errors:
            print(f"rank {rank}: {text}", file=sys.stderr)
        os._exit(1)
    dist.destroy_process_group()

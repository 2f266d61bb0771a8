"""Runs torch's own tests of torch.distributed on the backend "tessera", from the installed packages, unchanged.

    WORLD_SIZE=3 python run_torch_tests.py -v [TestDistBackendWithSpawn.test_all_reduce_sum ...]

With HOSTS=2,1 the first two processes are on one of two simulated hosts (hosts_test.py), and the third is on the other one.
With ALIAS=gloo the backend takes the name "gloo" too, so that the tests for gloo alone run as well. Fails if a test fails that
is not among the EXCEPTIONS, or if one of those passes.
"""

import ctypes
import os
import sys
import tempfile
import unittest

BACKEND = os.environ.get("ALIAS", "tessera")
os.environ["BACKEND"] = BACKEND
os.environ.setdefault("WORLD_SIZE", "3")
HOSTS = [int(ranks) for ranks in os.environ.get("HOSTS", "").split(",") if ranks]
if HOSTS:
    import hosts_test

    os.environ["WORLD_SIZE"] = str(sum(HOSTS))
    hosts_test.make_hosts()
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], name), exist_ok=True)

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

import tessera_torch  # noqa: E402

DistTestCases.backend_feature.setdefault("plugin", set()).add("tessera")
for feature in ("ddp", "subgroup"):
    DistTestCases.backend_feature[feature].add("tessera")

if BACKEND == "gloo":

    def create(options, backend_options=None):
        return tessera_torch._C.create(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id,
            list(options.global_ranks_in_group),
            "gloo",
        )

    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(create, True)

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    """Every test runs in processes of its own."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, rank, *args, **kwargs):
        if HOSTS:
            enter_host(int(rank >= HOSTS[0]))
        super()._run(rank, *args, **kwargs)


def enter_host(host):
    with open(f"/run/netns/host{host}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter host{host}")
    os.environ["GLOO_SOCKET_IFNAME"] = f"cable{host}"


# Tests that cannot pass, with the reason.
EXCEPTIONS = {
    "test_ddp_logging_data_cpu": "expects the plugin's name where torch writes \"custom\" for every plugin",
}


def main():
    result = unittest.main(argv=sys.argv, exit=False).result
    failed = {test.id().rpartition(".")[2] for test, _ in result.failures + result.errors}
    expected = set() if BACKEND == "gloo" else {name for name in EXCEPTIONS if len(sys.argv) < 3 or name in " ".join(sys.argv)}
    for name in sorted(failed & expected):
        print(f"{name} failed, as it must: it {EXCEPTIONS[name]}")
    print(f"{result.testsRun} tests, {len(result.skipped)} skipped; unexpected results: {sorted(failed ^ expected) or 'none'}")
    return 1 if failed ^ expected or result.testsRun == len(result.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())

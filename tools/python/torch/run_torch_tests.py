"""Runs torch's own tests of torch.distributed on the backend "tessera", from the installed packages, unchanged.

    WORLD_SIZE=3 python run_torch_tests.py -v [TestDistBackendWithSpawn.test_all_reduce_sum ...]

With ALIAS=gloo the backend takes the name "gloo" too, so that the tests for gloo alone run as well.
"""

import os
import sys
import tempfile
import unittest

BACKEND = os.environ.get("ALIAS", "tessera")
os.environ["BACKEND"] = BACKEND
os.environ.setdefault("WORLD_SIZE", "3")
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv)

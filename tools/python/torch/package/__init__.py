"""A torch.distributed backend for the tensors of a host's CPUs: Tessera's collectives over shared memory.

    import torch.distributed as dist
    import tessera_torch  # not needed from torch 2.14 on

    dist.init_process_group("tessera")
    dist.all_reduce(tensor)

Ranks are processes of one host. `"cpu:tessera,cuda:nccl"` uses it only for CPU tensors.
"""

import atexit
import importlib.metadata

import torch
import torch.distributed as dist

from tessera_torch import _C

try:
    __version__ = importlib.metadata.version("tessera_torch")
except importlib.metadata.PackageNotFoundError:
    __version__ = "unknown"

__all__ = ["empty_shared", "register"]


def _create(options, backend_options=None):
    """Creates the backend of one group. torch calls it on all members."""
    return _C.create(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        list(options.global_ranks_in_group),
    )


def register():
    """Registers the backend with torch.distributed as "tessera". Importing the package does so, too."""
    if not hasattr(dist.Backend, "TESSERA"):
        dist.Backend.register_backend("tessera", _create, extended_api=True, devices=["cpu"])


def empty_shared(*shape, dtype=None, group=None):
    """Returns an uninitialised tensor in memory that all ranks of the group share.

    Collectives on such tensors make no copies. The call is not collective.

    Args:
      shape: integers, or one sequence of them.
      dtype: torch.dtype; default torch.get_default_dtype().
      group: a process group of backend "tessera"; default the world.
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    group = dist.group.WORLD if group is None else group
    return _C.empty_shared(group, list(shape), torch.get_default_dtype() if dtype is None else dtype)


register()
atexit.register(_C.end_all_jobs)

"""A torch.distributed backend for tensors of CPUs: Tessera's collectives over shared memory, and torch's gloo between hosts.

    import torch.distributed as dist
    import tessera_torch  # not needed from torch 2.14 on

    dist.init_process_group("tessera")
    dist.all_reduce(tensor)

Ranks are processes of any number of hosts. `"cpu:tessera,cuda:nccl"` uses it only for CPU tensors.
"""

import atexit
import functools
import importlib.metadata
import inspect

import torch
import torch.distributed as dist

from tessera_torch import _C

try:
    __version__ = importlib.metadata.version("tessera_torch")
except importlib.metadata.PackageNotFoundError:
    __version__ = "unknown"

__all__ = ["empty_shared", "register", "replace_gloo"]


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


def _connect_gloo(store, rank, size, timeout, **address):
    """Connects ranks of several hosts. The backend calls it on all of them with the interface or host name to listen on."""
    if not dist.is_gloo_available():
        raise RuntimeError("this torch was built without gloo, which connects several hosts")
    options = dist.ProcessGroupGloo._Options()
    create = dist.ProcessGroupGloo.create_device if address else dist.ProcessGroupGloo.create_default_device
    options._devices = [create(**address)]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def register():
    """Registers the backend with torch.distributed as "tessera". Importing the package does so, too."""
    if not hasattr(dist.Backend, "TESSERA"):
        dist.Backend.register_backend("tessera", _create, extended_api=True, devices=["cpu"])


def _without_gloo(backend):
    """A backend as init_process_group takes it, such as "cpu:gloo,cuda:nccl", with "tessera" in the place of "gloo"."""
    parts = [part.rpartition(":") for part in str(backend).split(",")]
    return ",".join(device + colon + ("tessera" if name.lower() == "gloo" else name) for device, colon, name in parts)


def replace_gloo():
    """Creates process groups with backend "tessera" where a program asks for "gloo", also as the default backend of CPUs.

    Call it before init_process_group. The environment variable TESSERA_REPLACE_GLOO=1 does so when torch is imported.
    """
    register()
    c10d = dist.distributed_c10d
    create = c10d._new_process_group_helper
    if hasattr(create, "__wrapped__"):
        return
    signature = inspect.signature(create)

    @functools.wraps(create)
    def create_without_gloo(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        if given.arguments["backend"] is not None:
            given.arguments["backend"] = _without_gloo(given.arguments["backend"])
        return create(*given.args, **given.kwargs)

    c10d._new_process_group_helper = create_without_gloo
    dist.Backend.default_device_backend_map["cpu"] = "tessera"


def empty_shared(
    *shape: int | list[int], dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Returns an uninitialised tensor in memory that the ranks of the group on this host share.

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

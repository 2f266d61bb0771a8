"""Ranks on a mesh of named axes, the groups that communicate, and the machines that the ranks run on.

    >>> from tessera.topology import Mesh
    >>> mesh = Mesh("dp2,pp2,tp2", order="tp-cp-ep-dp-pp")
    >>> mesh.coordinates(5)
    {'tp': 1, 'dp': 0, 'pp': 1}
    >>> mesh.groups("tp,dp")
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    >>> from tessera.topology import Cluster, place
    >>> cluster = Cluster("hosts=2,gpus=4,memory=80GB")
    >>> cluster.link(3, 4).level
    'network'
    >>> shape = dict(layers=32, hidden=4096, kv_hidden=4096, sequence=4096, micro_batches=8, dense_parameters=7e9)
    >>> place("dp2,tp4", cluster, **shape).mesh.order
    'tp-dp'

Invalid arguments raise InvalidArgument.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tessera import _core
from tessera.errors import InvalidArgument

__all__ = [
    "AxisCost",
    "Cluster",
    "Device",
    "Link",
    "Mesh",
    "Placement",
    "Traffic",
    "layers_per_stage",
    "parallel_config",
    "place",
    "transformer_traffic",
]


def _pairs(axes: str | Mapping[str, int]) -> list[tuple[str, int]]:
    return _core.parse_axes(axes) if isinstance(axes, str) else list(axes.items())


def _names(axes: str | list[str] | tuple[str, ...]) -> str:
    return axes if isinstance(axes, str) else ",".join(axes)


class Mesh:
    """Ranks on a grid of named axes: rank = c0 + c1 * s0 + c2 * s0 * s1 + ..., with the fastest axis first."""

    def __init__(self, axes: str | Mapping[str, int], order: str | None = None, first_rank: int = 0) -> None:
        """Makes a mesh.

        Args:
          axes: "dp2,pp2,tp2", or sizes by name.
          order: names joined by "-", the fastest-varying first, such as Megatron-LM's "tp-cp-ep-dp-pp"; default the order
            of `axes`.
          first_rank: the smallest rank.

        Raises:
          InvalidArgument: a name, a size or the order is invalid.
        """
        self._mesh = _core.Mesh(_pairs(axes), order, first_rank)

    @classmethod
    def _of(cls, mesh: _core.Mesh) -> Mesh:
        self = cls.__new__(cls)
        self._mesh = mesh
        return self

    @property
    def world_size(self) -> int:
        return self._mesh.world_size

    @property
    def first_rank(self) -> int:
        return self._mesh.first_rank

    @property
    def order(self) -> str:
        """The names of the axes, fastest first, joined by "-"."""
        return self._mesh.order

    @property
    def axes(self) -> dict[str, int]:
        """Sizes by name, fastest first."""
        return dict(self._mesh.axes)

    def size_of(self, axis: str) -> int:
        """The size of an axis, including axes that `redivide` has added."""
        return self._mesh.size_of(axis)

    def coordinates(self, rank: int) -> dict[str, int]:
        return dict(zip(self.axes, self._mesh.coordinates(rank)))

    def coordinate(self, rank: int, axis: str) -> int:
        return self._mesh.coordinate(rank, axis)

    def rank_at(self, **coordinates: int) -> int:
        """The rank at the given coordinates; axes that are not named have coordinate 0."""
        axes = self.axes
        for name in coordinates:
            self.size_of(name)
            if name not in axes:
                raise ValueError(f"{name} is an axis of another division; use {', '.join(axes)}")
        return self._mesh.rank_at([coordinates.get(name, 0) for name in axes])

    def groups(self, axes: str | list[str] | tuple[str, ...]) -> list[list[int]]:
        """All groups along a set of axes, such as "tp" or "dp,cp": ranks that differ only in these coordinates."""
        return self._mesh.groups(_names(axes))

    def group_of(self, rank: int, axes: str | list[str] | tuple[str, ...]) -> list[int]:
        """The group of one rank, ascending."""
        return self._mesh.group_of(rank, _names(axes))

    def group_name(self, rank: int, axes: str | list[str] | tuple[str, ...]) -> str:
        """A name that is the same on all members and unique in the mesh, such as "tp_group_dp1_pp0"."""
        return self._mesh.group_name(rank, _names(axes))

    def redivide(self, axes: str, parts: str | Mapping[str, int]) -> Mesh:
        """A mesh in which `axes` can also be used as other axes, fastest first: hybrid sharding is
        `redivide("dp", {"dp_shard": 4, "dp_replicate": 2})`."""
        return Mesh._of(self._mesh.redivide(axes, _pairs(parts)))

    def with_expert_axes(self, ep: int, etp: int = 1) -> Mesh:
        """A mesh with the axes etp, ep and edp for experts in addition to dp, cp and tp (arXiv 2504.14960)."""
        return Mesh._of(self._mesh.with_expert_axes(ep, etp))

    def __repr__(self) -> str:
        return "Mesh(%r)" % ",".join(f"{name}{size}" for name, size in self.axes.items())


class Device(NamedTuple):
    """A device of a cluster: a GPU, or a core that holds one rank."""

    host: int
    host_name: str
    local: int  # Index on its host.
    kind: str  # "gpu" or "cpu".
    model: str
    memory_bytes: int  # 0 if unknown.
    socket: int
    numa_node: int
    nvlink_domain: int | None


class Link(NamedTuple):
    """The link between two devices. A message takes latency + bytes / bandwidth."""

    level: str  # "device", "nvlink", "numa_node", "socket", "host", "network".
    kind: str  # "memory", "nvlink", "pcie", "infiniband" and so on.
    latency: float  # Seconds.
    bandwidth: float  # Bytes per second in one direction.


class Cluster:
    """Hosts, their devices, and the links between any two devices."""

    def __init__(self, line: str) -> None:
        """Makes a cluster from key=value items: "hosts=16,gpus=8,memory=80GB,network=100Gb,nics=1".

        hosts; gpus or cpus of each; sockets, numa (nodes of a socket), nics; memory; the bandwidths nvlink, numa_node, socket,
        host, network, and their latencies nvlink_latency=3.4us and so on; nvlink_hosts; name. All but gpus or cpus have
        defaults: an HGX H100 host, or cores.

        Raises:
          InvalidArgument: the message names the invalid item and the allowed values.
        """
        self._cluster = _core.Cluster.parse(line)

    @classmethod
    def _of(cls, cluster: _core.Cluster) -> Cluster:
        self = cls.__new__(cls)
        self._cluster = cluster
        return self

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        return cls._of(_core.Cluster.from_json(text))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Reads the JSON file that `save` and `//tools/mesh --save_cluster` write; the latter can discover its own machine."""
        return cls._of(_core.Cluster.load(os.fspath(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes or replaces the file atomically."""
        self._cluster.save(os.fspath(path))

    def to_json(self) -> str:
        return self._cluster.to_json()

    @property
    def hosts(self) -> int:
        return self._cluster.hosts

    @property
    def devices(self) -> int:
        return self._cluster.devices

    def device(self, number: int) -> Device:
        """A device by its index in the cluster, counted host by host."""
        fields = self._cluster.device(number)
        return Device(*fields[:-1], None if fields[-1] < 0 else fields[-1])

    def link(self, a: int, b: int) -> Link:
        """The link between two devices, which is symmetric."""
        return Link(*self._cluster.link(a, b))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self._cluster == other._cluster

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._cluster.describe()

    def __repr__(self) -> str:
        return f"<Cluster: {self}>"


class AxisCost(NamedTuple):
    """The cost of an axis in a placement."""

    stride: int  # Between neighbours of a group, in ranks.
    seconds_per_step: float
    worst_level: str  # The farthest link between neighbours.
    network_bytes: float  # Total bytes that leave hosts in a step.


class Placement:
    """An order of a mesh's axes on a cluster, and what each costs. Rank r runs on device r."""

    def __init__(self, placement: _core.Placement) -> None:
        self._placement = placement

    @property
    def mesh(self) -> Mesh:
        return Mesh(dict(self._placement.axes))

    @property
    def seconds_per_step(self) -> float:
        """The sum over axes."""
        return self._placement.seconds_per_step

    @property
    def axes(self) -> dict[str, AxisCost]:
        """By name, fastest first."""
        return {cost[0]: AxisCost(*cost[1:]) for cost in self._placement.costs}

    @property
    def warnings(self) -> list[str]:
        """Advice, one sentence each."""
        return self._placement.warnings

    def __str__(self) -> str:
        return self._placement.describe()

    def __repr__(self) -> str:
        return f"Placement({self.mesh.order!r}, seconds_per_step={self.seconds_per_step:.3g})"


# The messages of each axis in a step: kind ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"),
# bytes (of a rank's buffer, for an all-gather of the result) and number of times.
Traffic = Mapping[str, Sequence[tuple[str, float, float]]]


def _shape(values: Mapping[str, float]) -> _core.TransformerShape:
    shape = _core.TransformerShape()
    for name, value in values.items():
        if name.startswith("_") or not hasattr(shape, name):
            known = [other for other in dir(shape) if not other.startswith("_")]
            raise TypeError(f"no size {name!r} of a transformer; there are {', '.join(known)}")
        setattr(shape, name, value)
    return shape


def transformer_traffic(axes: str | Mapping[str, int], **shape: float) -> dict[str, list[tuple[str, float, float]]]:
    """Estimates the traffic along tp, cp, ep, pp and dp in a training step of a transformer.

    layers, hidden, kv_hidden (width of keys), sequence, micro_batch (1), micro_batches (1), dense_parameters,
    expert_parameters (0), experts_per_token (1), activation_bytes (2), weight_bytes (2), gradient_bytes (2), zero_stage (0).
    topology/placement/traffic.h has the formulas and their sources.
    """
    return {name: transfers for name, _, transfers in _core.transformer_traffic(_pairs(axes), _shape(shape))}


def place(
    axes: str | Mapping[str, int],
    cluster: str | Cluster,
    *,
    traffic: Traffic | None = None,
    keep_order: bool = False,
    **shape: float,
) -> Placement:
    """Finds the best of all orders of the axes, which keeps the costliest traffic on the fastest links.

    Args:
      axes: "dp2,tp4", or sizes by name.
      cluster: a Cluster, or its description.
      traffic: the traffic of each axis, as `transformer_traffic` returns it; an omitted axis sends nothing.
      keep_order: price the order of `axes`, fastest first, instead of searching.
      shape: instead of `traffic`, the sizes that `transformer_traffic` takes.

    Raises:
      InvalidArgument: there are more ranks than devices, or a value is invalid.
    """
    pairs = _pairs(axes)
    if (traffic is None) == (not shape):
        raise InvalidArgument("give either traffic=..., or the sizes of a transformer, such as layers=32, hidden=4096")
    known = traffic if traffic is not None else transformer_traffic(dict(pairs), **shape)
    for name in known:
        if name not in dict(pairs):
            raise InvalidArgument(f"traffic of an axis {name!r}; the axes are {', '.join(dict(pairs))}")
    if isinstance(cluster, str):
        cluster = Cluster(cluster)
    listed = [(name, size, [(kind, bytes_, times) for kind, bytes_, times in known.get(name, ())]) for name, size in pairs]
    return Placement(_core.place(cluster._cluster, listed, keep_order))


def parallel_config(*, ranks: int | None = None, **fields: int | str) -> dict[str, int | str]:
    """Checks the parallel configuration of a job and returns all of its fields.

    Args:
      ranks: the number of ranks of the job, which the mesh must have.
      fields: mesh, order, layers, layers_per_stage, schedule, chunks, micro_batch, memory_strategy, strategy, dtype,
        memory_limit, device_budget, timeout_seconds, as the flags of //tools/train; layers are those of the model.

    Raises:
      InvalidArgument: lists all problems, with the allowed values.
    """
    return json.loads(_core.parallel_config(json.dumps(fields), ranks))


def layers_per_stage(costs: Sequence[float] = (), **fields: int | str) -> list[int]:
    """Returns the layers of each pipeline stage of a configuration with layers_per_stage "even", "cost" or "3,5".

    Args:
      costs: for "cost", the cost of each layer, in any unit.
      fields: as for `parallel_config`.
    """
    return _core.layers_per_stage(json.dumps(fields), list(costs))

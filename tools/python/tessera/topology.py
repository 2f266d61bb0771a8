"""Ranks on a mesh of named axes, and the groups that communicate.

    >>> from tessera.topology import Mesh
    >>> mesh = Mesh("dp2,pp2,tp2", order="tp-cp-ep-dp-pp")
    >>> mesh.coordinates(5)
    {'tp': 1, 'dp': 0, 'pp': 1}
    >>> mesh.groups("tp,dp")
    [[0, 1, 2, 3], [4, 5, 6, 7]]
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera import _core

__all__ = ["Mesh"]


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
        """The size of an axis, also of one that `redivide` has added."""
        return self._mesh.size_of(axis)

    def coordinates(self, rank: int) -> dict[str, int]:
        return dict(zip(self.axes, self._mesh.coordinates(rank)))

    def coordinate(self, rank: int, axis: str) -> int:
        return self._mesh.coordinate(rank, axis)

    def rank_at(self, **coordinates: int) -> int:
        """The rank at the given coordinates; axes that are not named have 0."""
        axes = self.axes
        for name in coordinates:
            self.size_of(name)
            if name not in axes:
                raise ValueError(f"{name} is an axis of another division; use {', '.join(axes)}")
        return self._mesh.rank_at([coordinates.get(name, 0) for name in axes])

    def groups(self, axes: str | list[str] | tuple[str, ...]) -> list[list[int]]:
        """All groups along a set of axes, "tp" or "dp,cp": ranks that differ in these coordinates only."""
        return self._mesh.groups(_names(axes))

    def group_of(self, rank: int, axes: str | list[str] | tuple[str, ...]) -> list[int]:
        """The group of one rank, ascending."""
        return self._mesh.group_of(rank, _names(axes))

    def group_name(self, rank: int, axes: str | list[str] | tuple[str, ...]) -> str:
        """A name that is the same on all members and unique in the mesh: "tp_group_dp1_pp0"."""
        return self._mesh.group_name(rank, _names(axes))

    def redivide(self, axes: str, parts: str | Mapping[str, int]) -> Mesh:
        """A mesh in which `axes` can also be used as other axes, fastest first: hybrid sharding is
        `redivide("dp", {"dp_shard": 4, "dp_replicate": 2})`."""
        return Mesh._of(self._mesh.redivide(axes, _pairs(parts)))

    def with_expert_axes(self, ep: int, etp: int = 1) -> Mesh:
        """A mesh with axes etp, ep and edp for experts beside dp, cp and tp (arXiv 2504.14960)."""
        return Mesh._of(self._mesh.with_expert_axes(ep, etp))

    def __repr__(self) -> str:
        return "Mesh(%r)" % ",".join(f"{name}{size}" for name, size in self.axes.items())

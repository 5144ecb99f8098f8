"""Communication groups of a job as groups of hosts.

Only what crosses the network counts, so a group of ranks is the set of its hosts, and groups with the same hosts are
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.kinds import GroupKind

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostGroups:
    """The groups of one kind.

    Attributes:
        names: of the groups; where several have the same hosts, the first one's.
        group: index of a group, ascending; with ``host`` one pair for each host of each group.
        host: index of a host of that group.
    """

    names: tuple[str, ...]
    group: IntArray
    host: IntArray

    @property
    def sizes(self) -> IntArray:
        """Number of hosts of each group, shape (groups,)."""
        return np.bincount(self.group, minlength=len(self.names)).astype(np.int64)

    def hosts_of(self, index: int) -> IntArray:
        """Return the hosts of a group, ascending."""
        first, last = np.searchsorted(self.group, (index, index + 1))
        return self.host[first:last]

    def matrix(self) -> IntArray | None:
        """Return the groups as rows, shape (groups, hosts of one); None unless they are disjoint and of one size."""
        sizes = self.sizes
        if not sizes.size or (sizes != sizes[0]).any() or np.unique(self.host).size != self.host.size:
            return None
        return self.host.reshape(sizes.size, int(sizes[0]))


def host_groups(named: Iterable[tuple[str, Iterable[int]]]) -> HostGroups:
    """Return groups of one kind from their names and hosts' indices; groups with the same hosts are merged."""
    different: dict[tuple[int, ...], str] = {}
    for name, hosts in named:
        different.setdefault(tuple(sorted(set(hosts))), name)
    sizes = [len(hosts) for hosts in different]
    flat = [host for hosts in different for host in hosts]
    return HostGroups(
        tuple(different.values()), np.repeat(np.arange(len(sizes)), sizes).astype(np.int64), np.array(flat, np.int64)
    )


@dataclass(frozen=True, slots=True)
class RankCoordinates:
    """Places of all ranks, arrays of shape (ranks,).

    Attributes:
        host: index of the rank's host.
        dp: data-parallel coordinate.
        pp: pipeline stage.
        tp: tensor-parallel coordinate.
    """

    host: IntArray
    dp: IntArray
    pp: IntArray
    tp: IntArray


def groups_of_coordinates(ranks: RankCoordinates) -> dict[GroupKind, HostGroups]:
    """Return the data-parallel, pipeline-parallel and tensor-parallel groups that the coordinates mean."""
    axes = {GroupKind.DP: ranks.dp, GroupKind.PP: ranks.pp, GroupKind.TP: ranks.tp}
    return {kind: _along(kind, axes, ranks.host) for kind in axes}


def _along(kind: GroupKind, axes: Mapping[GroupKind, IntArray], host: IntArray) -> HostGroups:
    """Return the groups of ranks that differ in one coordinate only."""
    (first_name, first), (second_name, second) = ((name, axis) for name, axis in axes.items() if name is not kind)
    keys = (first - first.min()) * (int(second.max() - second.min()) + 1) + (second - second.min())
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return host_groups(
        (f"{kind} of {first_name} {first[ranks[0]]}, {second_name} {second[ranks[0]]}", host[ranks].tolist())
        for ranks in np.split(order, cuts)
    )


def block_coordinates(host_count: int, gpus_per_host: int, tp: int, pp: int) -> RankCoordinates:
    """Return the places of ranks that fill hosts in order, tensor-parallel innermost and stages outermost.

    This is the order of Megatron-LM: ``rank = tp + TP * (dp + DP * pp)``.

    Args:
        host_count: number of hosts.
        gpus_per_host: ranks of each host.
        tp: tensor-parallel size.
        pp: number of stages; ``tp * pp`` must divide the number of ranks.
    """
    rank = np.arange(host_count * gpus_per_host, dtype=np.int64)
    dp = rank.size // (tp * pp)
    return RankCoordinates(rank // gpus_per_host, rank // tp % dp, rank // (tp * dp), rank % tp)


def indexed(names: Sequence[str]) -> tuple[tuple[str, ...], IntArray]:
    """Return the different names in their order, and the index of each name; "" has none, -1."""
    index = {name: at for at, name in enumerate(dict.fromkeys(name for name in names if name))}
    return tuple(index), np.array([index.get(name, -1) for name in names], np.int64)

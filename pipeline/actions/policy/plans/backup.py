"""Where each rank's checkpoint has its second copy: with a peer that shares no parallel group (ByteRobust).

So an over-eviction of any one group never takes both copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tocsin.pipeline.actions.policy.plans.layout import Layout
from tocsin.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """The peer of each rank.

    Attributes:
        peers: rank -> the rank that keeps its copy.
        shares_no_group: whether no eviction of one group takes a rank and its peer; False: the job has only one
            parallel dimension beyond a machine, and the copy lies on the neighbouring machine.
    """

    peers: tuple[int, ...]
    shares_no_group: bool


def plan_backup(layout: Layout) -> BackupPlan:
    """Return the peers: the same rank of another pipeline stage and another replica, half of each dimension away.

    Where that puts a copy on the same machine, or into a group that lies on the same machines, other distances are
    tried.

    Raises:
        ConfigError: the job has one machine.
    """
    if layout.machine_count == 1:
        raise ConfigError("layout", dict(layout.sizes), "more than one machine: a copy on the same one is none")
    groups = [group for name in layout.sizes if layout.sizes[name] > 1 for group in layout.machine_groups(name)]
    of_machine: dict[int, list[frozenset[int]]] = {}
    for group in groups:
        for machine in group:
            of_machine.setdefault(machine, []).append(group)
    for stages, replicas in _distances(layout):
        peers = tuple(_peer(layout, rank, stages, replicas) for rank in range(layout.rank_count))
        if all(_is_apart(layout, of_machine, rank, peer) for rank, peer in enumerate(peers)):
            return BackupPlan(peers, shares_no_group=True)
    step = layout.gpus_per_machine_count
    return BackupPlan(tuple((rank + step) % layout.rank_count for rank in range(layout.rank_count)), False)


def _distances(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the distances in stages and replicas to try, halves first; none where a dimension is missing."""
    stages, replicas = layout.sizes.get("pp", 1), layout.sizes.get("dp", 1)
    tried = [(a, b) for a in range(1, stages) for b in range(1, replicas)]
    yield from sorted(tried, key=lambda one: (abs(one[0] - stages // 2) + abs(one[1] - replicas // 2), one))


def _peer(layout: Layout, rank: int, stages: int, replicas: int) -> int:
    """Return the rank at a distance from another in stages and replicas."""
    at = layout.coordinates(rank)
    at["pp"] = (at["pp"] + stages) % layout.sizes["pp"]
    at["dp"] = (at["dp"] + replicas) % layout.sizes["dp"]
    return layout.rank_at(at)


def _is_apart(layout: Layout, of_machine: dict[int, list[frozenset[int]]], rank: int, peer: int) -> bool:
    """Return whether two ranks lie on different machines, and no group's machines hold both."""
    here, there = layout.machine_of(rank), layout.machine_of(peer)
    return here != there and not any(there in group for group in of_machine.get(here, ()))

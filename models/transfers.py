"""Find a slow link from the transfer times of collectives.

The time of a collective on one rank is waiting plus moving data. The time after the last member
has entered it is the *transfer* (What-if, OSDI'25, section 3: own end minus the largest start of all peers).
A rank whose traffic is slow lengthens the transfers of **all** groups that it belongs to, and of no other.

A group that crosses more minipods is slower with no broken part (Arnold, section 3), so groups are compared only with
equals: of the same kind, and within one minipod, or across the same ones. The way between two other minipods tells
nothing of the way between these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSpeed:
    """Transfer times of one communicator, recent and earlier.

    Attributes:
        ranks: its members.
        kind: kind of group, e.g. data or tensor parallel.
        now_seconds: median of recent transfers.
        before_seconds: median of the group's earlier transfers.
        pods: minipods that its ranks are known to lie in.
    """

    ranks: tuple[int, ...]
    kind: str
    now_seconds: float
    before_seconds: float
    pods: frozenset[str] = frozenset()

    @property
    def pod_count(self) -> int:
        """Number of minipods that its ranks are known to lie in, 0 = of none is it known."""
        return len(self.pods)


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The rank that all slow groups have in common.

    Attributes:
        rank: global rank.
        ratio: smallest slowdown over its groups, recent over earlier transfer time.
        now_seconds: smallest median of recent transfers over its groups.
        peer_seconds: median recent transfer of the groups that they were compared with.
    """

    rank: int
    ratio: float
    now_seconds: float
    peer_seconds: float


@dataclass(frozen=True, slots=True)
class SlowerGroups:
    """Groups whose transfers have all become slower, while no other's have.

    Attributes:
        count: number of these groups.
        other_count: number of the groups whose transfers are as before.
        ratio: their smallest growth, recent over earlier transfer time.
        other_ratio: largest growth of the others, 0 without others.
    """

    count: int
    other_count: int
    ratio: float
    other_ratio: float


def find_slower_groups(
    groups: Sequence[GroupSpeed], is_meant: Callable[[GroupSpeed], bool], min_ratio: float, min_excess_seconds: float
) -> SlowerGroups | None:
    """Return how much slower some groups have become; None unless all of them have, and no other.

    Args:
        groups: communicators.
        is_meant: which of them are to be slower.
        min_ratio: a group is slower from this ratio to its own past on.
        min_excess_seconds: and from this many seconds above it.
    """
    meant = [group for group in groups if is_meant(group)]
    others = [group for group in groups if not is_meant(group)]
    if not meant or not all(_has_grown(group, min_ratio, min_excess_seconds) for group in meant):
        return None
    if any(_has_grown(group, min_ratio, min_excess_seconds) for group in others):
        return None
    ratio = min(_growth_ratio(group) for group in meant)
    return SlowerGroups(len(meant), len(others), ratio, max(map(_growth_ratio, others), default=0.0))


def _growth_ratio(group: GroupSpeed) -> float:
    """Return how many times as long as its earlier transfers a group's are."""
    return group.now_seconds / max(group.before_seconds, 1e-6)


def _has_grown(group: GroupSpeed, min_ratio: float, min_excess_seconds: float) -> bool:
    """Return whether a group's transfers take longer than its earlier ones."""
    return _growth_ratio(group) >= min_ratio and group.now_seconds - group.before_seconds >= min_excess_seconds


def find_slow_link(groups: Sequence[GroupSpeed], min_ratio: float, min_excess_seconds: float) -> SlowLink | None:
    """Return the one rank whose groups are all slow while no other group is; None if there is no such single rank.

    Args:
        groups: communicators of kinds with more than one group (a world group distinguishes no rank).
        min_ratio: a group is slow from this ratio to its own past and to its peers' median.
        min_excess_seconds: and from this many seconds above both.
    """
    by_rank: dict[int, list[GroupSpeed]] = {}
    slow: list[GroupSpeed] = []
    for group in groups:
        for rank in group.ranks:
            by_rank.setdefault(rank, []).append(group)
        if _is_slow(group, groups, min_ratio, min_excess_seconds):
            slow.append(group)
    if not slow:
        return None
    candidates = [rank for rank, own in by_rank.items() if len(own) > 1 and all(group in slow for group in own)]
    if len(candidates) != 1 or any(candidates[0] not in group.ranks for group in slow):
        return None
    return _link(candidates[0], by_rank, groups)


def _peers(group: GroupSpeed, groups: Sequence[GroupSpeed]) -> list[GroupSpeed]:
    """Return the groups that a group is compared with: of its kind, and within one minipod, or across the same ones.

    Where there is none, they are those of its kind in more minipods, its own among them: being slower than these is not
    for its placement.
    """
    others = _same_kind(group, groups)
    if group.pod_count > 1:
        return [other for other in others if other.pods == group.pods] or [
            other for other in others if other.pods > group.pods
        ]
    equals = [other for other in others if other.pod_count == group.pod_count]
    return equals or [other for other in others if other.pod_count > group.pod_count]


def _same_kind(group: GroupSpeed, groups: Sequence[GroupSpeed]) -> list[GroupSpeed]:
    """Return the other groups of the same kind."""
    return [other for other in groups if other.kind == group.kind and other is not group]


def _is_slow(group: GroupSpeed, groups: Sequence[GroupSpeed], min_ratio: float, min_excess_seconds: float) -> bool:
    """Return whether a group's transfers are slow against its own past and its peers; False if alone of its kind.

    A group that is spread more than all others of its kind has no peers. How it has grown is compared with how these
    have: then it became slower for its placement, or for one of its members.
    """
    others = _same_kind(group, groups)
    if not others:
        return False
    present = [peer.now_seconds for peer in _peers(group, groups)]
    present = present or [group.before_seconds * _growth_ratio(other) for other in others]
    reference = max(group.before_seconds, sorted(present)[len(present) // 2])
    return group.now_seconds >= min_ratio * reference and group.now_seconds - reference >= min_excess_seconds


def _link(rank: int, by_rank: Mapping[int, Sequence[GroupSpeed]], groups: Sequence[GroupSpeed]) -> SlowLink | None:
    """Build the slow link of a rank from the transfer times of its groups; None where none of them has peers."""
    own = by_rank[rank]
    compared = {id(peer): peer for group in own for peer in _peers(group, groups)}
    if not compared:
        return None
    others = sorted(peer.now_seconds for peer in compared.values() if rank not in peer.ranks)
    return SlowLink(
        rank,
        min(group.now_seconds / max(group.before_seconds, 1e-6) for group in own),
        min(group.now_seconds for group in own),
        others[len(others) // 2] if others else 0.0,
    )

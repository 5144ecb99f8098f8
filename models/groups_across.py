"""Compare the transfers of groups that cross minipods with those of groups within one, at the same time.

A placement that was bad from the job's begin on has no better past. But where the job has groups of the same kind and
size that lie within one minipod, these show how long the same operation takes there (Arnold, section 3: groups that
cross minipods are slower with no broken part). Only operations of equal name and bytes are compared: small ones take
longer a byte wherever they run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperationSpeed:
    """Recent transfers of one operation of one communicator.

    Attributes:
        name: name of the collective.
        size_bytes: bytes that it moves.
        transfer_seconds: median time of a transfer.
        per_second_count: transfers in a second.
    """

    name: str
    size_bytes: int
    transfer_seconds: float
    per_second_count: float


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A communicator over several machines, and its recent transfers.

    Attributes:
        kind: kind of group, e.g. data parallel.
        rank_count: number of its members.
        is_across: whether its members lie in several minipods; False: all in one.
        operations: its operations.
        since_ns: end of the oldest transfer that is counted, in nanoseconds.
        last_ns: end of the newest one.
    """

    kind: str
    rank_count: int
    is_across: bool
    operations: tuple[OperationSpeed, ...]
    since_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class GroupsAcross:
    """What groups take longer because they cross minipods.

    Attributes:
        count: number of groups that cross minipods.
        other_count: number of the groups within one that they are compared with.
        ratio: least share, over the crossing groups, of their transfer time to the longest of the others'.
        excess_ratio: share of the time that the dearest crossing group transfers longer than the others usually do.
        since_ns: end of the oldest transfer of the crossing groups that is counted, in nanoseconds.
        last_ns: end of their newest one.
    """

    count: int
    other_count: int
    ratio: float
    excess_ratio: float
    since_ns: int
    last_ns: int


def find_groups_across(
    groups: Sequence[PlacedGroup], min_ratio: float, min_excess_seconds: float
) -> GroupsAcross | None:
    """Return what crossing minipods costs the kind of group that it costs most.

    Of a kind and size, every crossing group must be slower than every group within a minipod. Groups whose operations
    no group of the other side has are not compared.

    Args:
        groups: communicators whose members' minipods are all known.
        min_ratio: least ratio of their transfer times.
        min_excess_seconds: least difference of the longest of their operations.
    """
    found = []
    for alike in sorted({(group.kind, group.rank_count) for group in groups}):
        equals = [group for group in groups if (group.kind, group.rank_count) == alike]
        across = _compared(equals, min_ratio, min_excess_seconds)
        if across is not None:
            found.append(across)
    return max(found, key=lambda one: one.excess_ratio, default=None)


def _compared(groups: Sequence[PlacedGroup], min_ratio: float, min_excess_seconds: float) -> GroupsAcross | None:
    """Return what crossing minipods costs groups of one kind and size; None where one of them is not slower."""
    peers: dict[tuple[str, int], list[float]] = {}
    for group in groups:
        for one in () if group.is_across else group.operations:
            peers.setdefault(_key(one), []).append(one.transfer_seconds)
    crossing = [group for group in groups if group.is_across and _shared(group, peers)]
    if not crossing:
        return None
    told = {_key(one) for group in crossing for one in _shared(group, peers)}
    ratios, costs = [], []
    for group in crossing:
        pairs = [(one, peers[_key(one)]) for one in _shared(group, peers)]
        busy_ratio = sum(one.per_second_count * one.transfer_seconds for one, _ in pairs)
        most_ratio = sum(one.per_second_count * max(times) for one, times in pairs)
        if max(one.transfer_seconds - max(times) for one, times in pairs) < min_excess_seconds:
            return None
        ratios.append(busy_ratio / max(most_ratio, 1e-9))
        costs.append(
            sum(one.per_second_count * (one.transfer_seconds - statistics.median(times)) for one, times in pairs)
        )
    if min(ratios) < min_ratio:
        return None
    return GroupsAcross(
        len(crossing),
        sum(not group.is_across and any(_key(one) in told for one in group.operations) for group in groups),
        min(ratios),
        max(costs),
        min(group.since_ns for group in crossing),
        max(group.last_ns for group in crossing),
    )


def _shared(group: PlacedGroup, peers: dict[tuple[str, int], list[float]]) -> list[OperationSpeed]:
    """Return the operations of a group that groups within one minipod have, too."""
    return [one for one in group.operations if _key(one) in peers]


def _key(operation: OperationSpeed) -> tuple[str, int]:
    """Return what an operation is compared by."""
    return operation.name, operation.size_bytes

"""Waits of the ranks of a fake job when one of them does not go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tocsin.schemas.records import CommGroup, GroupKind


def waiting_group(rank: int, groups: Iterable[CommGroup], held: Collection[int], skipped: Collection[int]) -> CommGroup:
    """Return the group in whose all-reduce a living rank waits, in the order ``tp``, ``dp``, world.

    Args:
        rank: the rank, not held itself.
        groups: all groups of the job.
        held: ranks that do nothing, as they are stopped or dead.
        skipped: ranks that left out their ``tp`` all-reduce and wait in ``dp``.
    """
    groups = tuple(groups)
    own = {group.kind: group for group in groups if rank in group.ranks}
    if rank in skipped:
        return own[GroupKind.DP]
    blocked = {*held, *skipped}
    if blocked & set(own[GroupKind.TP].ranks):
        return own[GroupKind.TP]
    pairs = {group.ranks for group in groups if group.kind is GroupKind.TP and blocked & set(group.ranks)}
    stuck = {member for members in pairs for member in members} - set(skipped)
    if (stuck | set(held)) & set(own[GroupKind.DP].ranks):
        return own[GroupKind.DP]
    return own[GroupKind.WORLD]

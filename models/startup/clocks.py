"""Nodes whose clock differs from their peers': all their stamps come later, or sooner, by about the same.

A stamp of such a node says nothing about lateness. A node that is late in one stage cannot be told by this from its
clock where all its stamps follow that stage: then nothing is said of lateness either. One stamp that comes when its
peers' come shows that the clock is right.

Stamps that are put back only take accusations away. A node that began before its peers may have done so on a right
clock, and then it kept nobody waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tocsin.models.startup.durations import NS, StageTable
from tocsin.models.startup.stragglers import DEFAULT, Straggler, StragglerConfig, sigma_seconds, stragglers
from tocsin.schemas.startup import Edge, StageMark

NodeStamp = tuple[tuple[str, ...], str, int]
"""(what the stamp is of, node, Unix nanoseconds)."""


@dataclass(frozen=True, slots=True)
class ClockShift:
    """A node all of whose stamps are shifted against its peers'.

    Attributes:
        node: its name.
        seconds: how much later its stamps come than its peers', negative if sooner.
        stamp_count: stamps that were compared.
    """

    node: str
    seconds: float
    stamp_count: int

    @property
    def shift_ns(self) -> int:
        """The shift in nanoseconds."""
        return round(self.seconds * NS)


def clock_shifts(stamps: Iterable[NodeStamp], config: StragglerConfig = DEFAULT) -> list[ClockShift]:
    """Return the nodes whose clock differs, in the order of their names; none of them has fewer than two stamps.

    A stamp stands out where its distance from the peers' median is above the floor of a straggler, and above six
    standard deviations of the peers. The smallest distance of those that stand out is the shift. Each other stamp must
    then be as far out, within the floor or what the peers differ by, or further: one that lies nearer, or nearer to the
    peers than to the shift, shows that the clock is right. One that is further out is of a stage in which the node is
    slow, too, and has no part in the shift.

    Args:
        stamps: the first of a kind counts for a node; those without a node are left out.
        config: the floor, the deviations, and how many peers a stamp needs.
    """
    by_kind: dict[tuple[str, ...], dict[str, int]] = {}
    for kind, node, ts_ns in stamps:
        if node:
            by_kind.setdefault(kind, {}).setdefault(node, ts_ns)
    distances: dict[str, list[tuple[float, float]]] = {}
    for times in by_kind.values():
        if len(times) > config.least_peer_count:
            middle = median(times.values())
            seconds = {node: (ts_ns - middle) / NS for node, ts_ns in times.items()}
            spread = config.spread_factor * sigma_seconds(list(seconds.values()))
            for node, distance in seconds.items():
                distances.setdefault(node, []).append((distance, spread))
    found = ((node, _shift_of(own, config.floor_seconds), len(own)) for node, own in sorted(distances.items()))
    return [ClockShift(node, shift, count) for node, shift, count in found if shift is not None]


def _shift_of(distances: Sequence[tuple[float, float]], floor_seconds: float) -> float | None:
    """Return the shift that explains (distance from peers, spread of peers) of all stamps; None if none does."""
    out = [one for one in distances if abs(one[0]) > max(floor_seconds, one[1])]
    if len(distances) < 2 or not out:
        return None
    least, spread_of_least = min(out, key=lambda one: abs(one[0]))
    side, near = (1.0 if least > 0 else -1.0), min(floor_seconds, abs(least) / 2)
    if any(side * (least - distance) > max(near, spread) for distance, spread in distances):
        return None
    alike = [one for one in out if abs(one[0] - least) <= max(near, one[1], spread_of_least)]
    return min(alike, key=lambda one: one[1])[0]  # where peers differ least it is known best


def stamps_of_tables(tables: Iterable[StageTable]) -> Iterable[NodeStamp]:
    """Yield the begin and the end of each node in each stage."""
    for table in tables:
        for span in table.spans:
            for edge, ts_ns in ((Edge.BEGIN, span.begin_ns), (Edge.END, span.end_ns)):
                if ts_ns is not None:
                    yield (table.stage, table.start_kind, edge), span.node, ts_ns


def late_by_both(
    tables: Iterable[StageTable],
    now_ns: int,
    told: Iterable[StageTable],
    told_now_ns: int,
    config: StragglerConfig = DEFAULT,
) -> list[Straggler]:
    """Return the stragglers of stages put back that are late by the clocks of their stamps, too.

    Args:
        tables: stages on the peers' clock.
        now_ns: until when they are known.
        told: the same stages as their stamps tell them.
        told_now_ns: until when those are known.
        config: limits of a straggler.
    """
    late = {
        (table.attempt, table.start_kind, table.stage, one.node)
        for table in told
        for one in stragglers(table, told_now_ns, config)
    }
    return [
        one
        for table in tables
        for one in stragglers(table, now_ns, config)
        if (table.attempt, table.start_kind, table.stage, one.node) in late
    ]


def put_back(marks: Iterable[StageMark], shifts: Iterable[ClockShift]) -> list[StageMark]:
    """Return marks with those of shifted nodes on their peers' clock."""
    shift_ns: Mapping[str, int] = {one.node: one.shift_ns for one in shifts}
    return [replace(mark, ts_ns=mark.ts_ns - shift_ns[mark.node]) if mark.node in shift_ns else mark for mark in marks]

"""Initialisation of NCCL's communicators: who came late to one, and which ranks have not finished.

All ranks of a communicator leave the call together, because its last part is a meeting. So a rank that came later than
the first one by x seconds has a total that is shorter by x. What delays the others is that, and the rank's own work in
the call (kernels, memory, topology); bootstrap, all-gathers and connections are mostly waiting for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tocsin.models.startup.durations import NS, NodeSpan, StageTable
from tocsin.models.startup.stragglers import Straggler, stragglers
from tocsin.schemas.formats.nccl_init import InitEdge, InitLine

STAGE: Final = "nccl_init"
SHARED_PARTS: Final = frozenset({"bootstrap", "allgathers", "connections"})
"""Parts in which a rank waits for others."""


@dataclass(slots=True)
class RankInit:
    """One rank in one communicator.

    Attributes:
        host: its host.
        is_complete: whether it has finished.
        total_seconds: duration of its call, None if not told.
        part_seconds: name of a part -> its duration.
    """

    host: str
    is_complete: bool = False
    total_seconds: float | None = None
    part_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def own_seconds(self) -> float:
        """Time in which it did not wait for others."""
        return sum(seconds for name, seconds in self.part_seconds.items() if name not in SHARED_PARTS)


@dataclass(slots=True)
class CommunicatorInit:
    """One communicator.

    Attributes:
        name: NCCL's name for it, else a made-up one.
        rank_count: number of its ranks.
        ranks: rank -> what is known of it.
    """

    name: str
    rank_count: int
    ranks: dict[int, RankInit] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float | None:
        """The longest call of a rank, which is the time from the first rank's coming to the end; None if not told."""
        return max((one.total_seconds for one in self.ranks.values() if one.total_seconds is not None), default=None)

    @property
    def open_ranks(self) -> list[int]:
        """Ranks that have begun and not finished, while another rank has finished or begun."""
        return sorted(rank for rank, one in self.ranks.items() if not one.is_complete)

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that have not begun, where more than half have: a log of one host shows few of many."""
        if 2 * len(self.ranks) <= self.rank_count:
            return []
        return [rank for rank in range(self.rank_count) if rank not in self.ranks]

    def median_parts(self) -> dict[str, float]:
        """Return name of a part -> median duration of the ranks that tell it."""
        names = dict.fromkeys(name for one in self.ranks.values() for name in one.part_seconds)
        return {
            name: median(one.part_seconds[name] for one in self.ranks.values() if name in one.part_seconds)
            for name in names
        }

    def late(self) -> list[Straggler]:
        """Return the hosts that delayed the others, by the rule for stages of a start; none without timings."""
        total = self.total_seconds
        told = [one for one in self.ranks.values() if one.total_seconds is not None]
        if total is None or len(told) < len(self.ranks):
            return []
        delays: dict[str, float] = {}
        for one in told:
            delay = total - (one.total_seconds or 0.0) + one.own_seconds
            delays[one.host] = max(delays.get(one.host, 0.0), delay)
        spans = tuple(NodeSpan(host, 0, round(seconds * NS)) for host, seconds in delays.items())
        return stragglers(StageTable(0, "full", STAGE, spans), round(total * NS))


def communicators(lines: Iterable[InitLine]) -> list[CommunicatorInit]:
    """Return the communicators in the order of their first line.

    Where lines carry no name, the n-th initialisation of a rank with as many ranks belongs to the n-th communicator.
    """
    found: dict[str, CommunicatorInit] = {}
    counts: Counter[tuple[str, str, int, int, str]] = Counter()
    latest: dict[tuple[tuple[str, str, str], int, int], RankInit] = {}
    for line in lines:
        key = line.process, line.rank, line.rank_count
        if line.edge is InitEdge.TIMINGS:
            if key in latest:
                latest[key].total_seconds, latest[key].part_seconds = line.total_seconds, line.part_seconds
            continue
        name = line.comm
        if not name.startswith("0x"):
            turn = *line.process[:2], line.rank, line.rank_count, f"{line.edge}{name}"
            counts[turn] += 1
            name = f"{name or 'unnamed'} {line.rank_count} #{counts[turn]}"
        one = found.setdefault(name, CommunicatorInit(name, line.rank_count))
        rank = one.ranks.setdefault(line.rank, RankInit(line.host))
        rank.is_complete |= line.edge is InitEdge.COMPLETE
        latest[key] = rank
    return list(found.values())

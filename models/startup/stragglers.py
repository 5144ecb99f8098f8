"""Stragglers of a start-up stage, shared services that slow all nodes, and nodes that are slow again and again.

A straggler is found by peers of the same stage, as soon as half of them have ended. Nodes that still run are judged by
the time for which they have run, so a straggler is known before it ends.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from tocsin.models.startup.durations import NS, NodeSpan, StageTable

_SIGMAS_PER_MAD: Final = 1.4826


@dataclass(frozen=True, slots=True)
class StragglerConfig:
    """Limits of a stage.

    Attributes:
        factor: a straggler takes at least this many medians.
        spread_factor: and this many standard deviations (by the median absolute deviation) more than the median.
        floor_seconds: and this much more than the median, because short stages vary.
        least_peer_count: nodes that must have ended.
        ended_ratio: share of the nodes that must have ended.
        shared_factor: all nodes are slow if their median is this many times that of earlier starts.
        least_start_count: earlier starts that are needed to say so.
        repeated_count: a node that was a straggler of the same stage in so many of its last starts is a finding.
        repeated_of_count: number of those last starts.
    """

    factor: float = 1.5
    spread_factor: float = 6.0
    floor_seconds: float = 10.0
    least_peer_count: int = 4
    ended_ratio: float = 0.5
    shared_factor: float = 2.0
    least_start_count: int = 3
    repeated_count: int = 3
    repeated_of_count: int = 5


DEFAULT: Final = StragglerConfig()


@dataclass(frozen=True, slots=True)
class Straggler:
    """A node that takes much longer for a stage than its peers.

    Attributes:
        node: its name, "" where the marks do not say.
        stage: the stage.
        seconds: its duration so far.
        median_seconds: the peers' median duration.
        limit_seconds: the duration from which on a node is a straggler.
        is_open: it still runs.
        peer_count: peers that have ended.
    """

    node: str
    stage: str
    seconds: float
    median_seconds: float
    limit_seconds: float
    is_open: bool
    peer_count: int

    @property
    def late_seconds(self) -> float:
        """How much longer than the median."""
        return self.seconds - self.median_seconds


def limit_seconds(durations: Sequence[float], config: StragglerConfig = DEFAULT) -> float:
    """Return the duration from which on a node is a straggler: ``max(1.5 m, m + 6 * 1.4826 q, m + 10 s)``.

    Args:
        durations: those of the nodes that have ended, seconds; m is their median, q their median absolute deviation.
        config: the factors.
    """
    middle = median(durations)
    spread = config.spread_factor * sigma_seconds(durations)
    return max(config.factor * middle, middle + spread, middle + config.floor_seconds)


def sigma_seconds(durations: Sequence[float]) -> float:
    """Return the standard deviation of durations, by their median absolute deviation."""
    middle = median(durations)
    return _SIGMAS_PER_MAD * median(abs(one - middle) for one in durations)


def stragglers(table: StageTable, now_ns: int, config: StragglerConfig = DEFAULT) -> list[Straggler]:
    """Return the stragglers of a stage at a time, the slowest first; none before enough peers have ended.

    A node that began before its peers keeps nobody waiting until it is late by the median of the begins, too.
    """
    ended = table.node_seconds
    begins = [span.begin_ns for span in table.spans if span.begin_ns is not None]
    known = len(ended) + len(table.open_nodes)
    if len(ended) < max(config.least_peer_count, config.ended_ratio * known):
        return []
    limit, middle, begin_ns = limit_seconds(ended, config), median(ended), median(begins)
    found = [
        Straggler(span.node, table.stage, seconds, middle, limit, span.is_open, len(ended) - (not span.is_open))
        for span, seconds in _running(table, now_ns)
        if min(seconds, ((span.end_ns or now_ns) - begin_ns) / NS) > limit
        and len(ended) - (not span.is_open) >= config.least_peer_count
    ]
    return sorted(found, key=lambda one: (-one.seconds, one.node))


def _running(table: StageTable, now_ns: int) -> Iterator[tuple[NodeSpan, float]]:
    """Yield spans with their duration; for open ones, the time since their begin."""
    for span in table.spans:
        if (seconds := span.seconds) is not None:
            yield span, seconds
        elif span.is_open and span.begin_ns is not None:
            yield span, (now_ns - span.begin_ns) / NS


@dataclass(frozen=True, slots=True)
class SharedSlowness:
    """All nodes take long for a stage, so what they share is slow.

    Attributes:
        stage: the stage.
        median_seconds: median duration of the nodes.
        usual_seconds: the median of earlier starts' medians.
        start_count: number of those starts.
    """

    stage: str
    median_seconds: float
    usual_seconds: float
    start_count: int


@dataclass
class StartHistory:
    """Median durations of stages in earlier starts, and which nodes were stragglers in them.

    Full and hot starts have baselines of their own, and so have jobs of other sizes (powers of two).

    Attributes:
        config: the limits.
    """

    config: StragglerConfig = DEFAULT
    _medians: dict[tuple[str, str, int], deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=20))
    )
    _slow: dict[tuple[str, str], deque[bool]] = field(default_factory=dict)

    def shared_slowness(self, table: StageTable, now_ns: int) -> SharedSlowness | None:
        """Return that a whole stage is slow by its history, None if it is not or the history is too short.

        Nodes that still run count with the time for which they have run, so the answer comes before the stage ends.
        """
        past = self._medians.get(_kind_of(table), ())
        durations = [seconds for _, seconds in _running(table, now_ns)]
        if len(past) < self.config.least_start_count or not durations:
            return None
        now, usual = median(durations), median(past)
        if now < max(self.config.shared_factor * usual, usual + self.config.floor_seconds):
            return None
        return SharedSlowness(table.stage, now, usual, len(past))

    def add(self, tables: Iterable[StageTable], now_ns: int, late: Iterable[Straggler] | None = None) -> None:
        """Remember a start that is over; ``late``: who was late in it, None: who is by its tables."""
        named = None if late is None else {(one.node, one.stage) for one in late}
        for table in tables:
            if (middle := table.median_seconds) is not None:
                self._medians[_kind_of(table)].append(middle)
            found = {(one.node, one.stage) for one in stragglers(table, now_ns, self.config)}
            slow = found if named is None else found & named
            for span in table.spans:
                if span.node and span.seconds is not None:
                    last = self._slow.setdefault((span.node, table.stage), deque(maxlen=self.config.repeated_of_count))
                    last.append((span.node, table.stage) in slow)

    def repeated(self) -> list[tuple[str, str, int, int]]:
        """Return (node, stage, slow starts, starts looked at) of nodes that were slow again and again."""
        return sorted(
            (node, stage, sum(last), len(last))
            for (node, stage), last in self._slow.items()
            if sum(last) >= self.config.repeated_count
        )

    def repeated_now(self) -> list[tuple[str, str, int, int]]:
        """Return those of ``repeated`` that were slow in the start that was added last for them."""
        return [one for one in self.repeated() if self._slow[one[0], one[1]][-1]]

    def to_state(self) -> dict[str, list[list[Any]]]:
        """Return the history as JSON-serialisable rows."""
        return {
            "medians": [[*kind, list(values)] for kind, values in self._medians.items()],
            "slow": [[*where, list(last)] for where, last in self._slow.items()],
        }

    def load_state(self, state: Mapping[str, Iterable[Sequence[Any]]]) -> None:
        """Replace the history by rows that ``to_state`` returned."""
        self._medians.clear()
        for *kind, values in state["medians"]:
            self._medians[kind[0], kind[1], kind[2]].extend(values)
        most = self.config.repeated_of_count
        self._slow = {(node, stage): deque(last, maxlen=most) for node, stage, last in state["slow"]}


def _kind_of(table: StageTable) -> tuple[str, str, int]:
    """Return the key of a stage's baseline: stage, kind of start, size class of the job."""
    return table.stage, table.start_kind, len(table.spans).bit_length()

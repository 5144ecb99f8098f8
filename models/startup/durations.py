"""Durations of start-up stages, of each node and of the job, from marks of begin and end.

Marks may come in any order, twice, or not at all. A node whose end is missing is open, never done in 0 seconds. The
definitions follow Bootseer (ByteDance, 2025): a node's duration is its end minus its begin. The job's duration is the
last end minus the first begin of all nodes: stragglers show in it, not in the nodes' median.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from tocsin.schemas.startup import Edge, StageMark

NS: Final = 1_000_000_000
_ORDER_TOLERANCE_NS: Final = NS
"""Tolerance when two stages of a node are put in order: marks are often whole seconds."""


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """A stage of one node.

    Attributes:
        node: its name, "" where the marks do not say.
        begin_ns: when it began, None if the mark is missing.
        end_ns: when it ended, None if it is open or the mark is missing.
        is_past: the node has begun a stage that follows this one; if ``end_ns`` is None, the mark was lost.
    """

    node: str
    begin_ns: int | None
    end_ns: int | None
    is_past: bool = False

    @property
    def seconds(self) -> float | None:
        """Duration, None unless both ends are known."""
        if self.begin_ns is None or self.end_ns is None:
            return None
        return (self.end_ns - self.begin_ns) / NS

    @property
    def is_open(self) -> bool:
        """Whether it has begun and, as far as is known, still runs."""
        return self.begin_ns is not None and self.end_ns is None and not self.is_past


@dataclass(frozen=True, slots=True)
class StageTable:
    """One stage of one start, on all nodes.

    Attributes:
        attempt: restarts of the job before this start.
        start_kind: ``full`` or ``hot``.
        stage: name of the stage.
        spans: one for each node, ordered by begin.
    """

    attempt: int
    start_kind: str
    stage: str
    spans: tuple[NodeSpan, ...]

    @property
    def begin_ns(self) -> int | None:
        """First begin, None if no begin is known."""
        return min((span.begin_ns for span in self.spans if span.begin_ns is not None), default=None)

    @property
    def end_ns(self) -> int | None:
        """Last end, None if no end is known."""
        return max((span.end_ns for span in self.spans if span.end_ns is not None), default=None)

    @property
    def job_seconds(self) -> float | None:
        """Duration of the stage for the job: last end minus first begin; None if either is unknown."""
        begin, end = self.begin_ns, self.end_ns
        return None if begin is None or end is None else (end - begin) / NS

    @property
    def node_seconds(self) -> list[float]:
        """Durations of the nodes for which both ends are known."""
        return [seconds for span in self.spans if (seconds := span.seconds) is not None]

    @property
    def median_seconds(self) -> float | None:
        """Median duration of a node, None if none is known."""
        return median(self.node_seconds) if self.node_seconds else None

    @property
    def max_ratio(self) -> float | None:
        """Longest duration of a node over the median one; None if unknown or the median is 0."""
        middle = self.median_seconds
        return max(self.node_seconds) / middle if middle else None

    @property
    def open_nodes(self) -> list[str]:
        """Nodes that have begun and not ended."""
        return [span.node for span in self.spans if span.is_open]

    @property
    def lost_count(self) -> int:
        """Number of nodes of which a mark is missing though they are past the stage, or whose begin is missing."""
        return sum(span.seconds is None and not span.is_open for span in self.spans)


def without(tables: Iterable[StageTable], nodes: Container[str]) -> list[StageTable]:
    """Return stages without these nodes; one that no other node tells is left out."""
    kept = (replace(one, spans=tuple(span for span in one.spans if span.node not in nodes)) for one in tables)
    return [one for one in kept if one.spans]


def stage_tables(marks: Iterable[StageMark]) -> list[StageTable]:
    """Return the stages of all starts, ordered by attempt, then by first begin (or end, where no begin is known).

    Attempts never mix, nor do full and hot starts.
    """
    book = StageBook()
    for mark in marks:
        book.take(mark)
    return book.tables()


class StageBook:
    """First begin and last end of each process in each stage, from marks in any order."""

    def __init__(self) -> None:
        """Start without marks."""
        self._ends: dict[tuple[int, str, str], dict[str, dict[str, _Ends]]] = {}
        self._spans: dict[tuple[int, str, str], dict[str, NodeSpan]] = {}
        """Spans of nodes without a new mark since they were made."""
        self._tables: dict[tuple[int, str, str], StageTable] = {}
        """The same of whole stages."""

    def take(self, mark: StageMark) -> None:
        """Take a mark; the same one twice changes nothing."""
        key = mark.attempt, mark.start_kind, mark.stage
        self._ends.setdefault(key, {}).setdefault(mark.node, {}).setdefault(mark.member, _Ends()).take(mark)
        self._tables.pop(key, None)
        self._spans.setdefault(key, {}).pop(mark.node, None)

    def tables(self) -> list[StageTable]:
        """Return the stages, ordered by attempt, then by first begin (or end, where no begin is known)."""
        for key, nodes in self._ends.items():
            if key not in self._tables:
                spans = self._spans.setdefault(key, {})
                spans.update({node: _node_span(node, nodes[node]) for node in nodes.keys() - spans.keys()})
                self._tables[key] = StageTable(*key, tuple(sorted(spans.values(), key=_when)))
        tables = list(self._tables.values())
        tables.sort(key=lambda table: (table.attempt, table.begin_ns or table.end_ns or 0))
        return [_with_past(table, [one for one in tables if one.attempt == table.attempt]) for table in tables]

    def to_state(self) -> list[list[Any]]:
        """Return the marks as JSON-serialisable rows, in the order in which processes appeared."""
        return [
            [*key, node, member, ends.begin_ns, ends.end_ns]
            for key, nodes in self._ends.items()
            for node, members in nodes.items()
            for member, ends in members.items()
        ]

    def load_state(self, state: Iterable[Sequence[Any]]) -> None:
        """Replace the marks by those of rows that ``to_state`` returned."""
        self._ends, self._spans, self._tables = {}, {}, {}
        for attempt, start_kind, stage, node, member, begin_ns, end_ns in state:
            nodes = self._ends.setdefault((attempt, start_kind, stage), {})
            nodes.setdefault(node, {})[member] = _Ends(begin_ns, end_ns)


@dataclass
class _Ends:
    """First begin and last end of one process."""

    begin_ns: int | None = None
    end_ns: int | None = None

    def take(self, mark: StageMark) -> None:
        """Take a mark."""
        if mark.edge is Edge.BEGIN:
            self.begin_ns = mark.ts_ns if self.begin_ns is None else min(self.begin_ns, mark.ts_ns)
        else:
            self.end_ns = mark.ts_ns if self.end_ns is None else max(self.end_ns, mark.ts_ns)


def _node_span(node: str, members: Mapping[str, _Ends]) -> NodeSpan:
    """Return the span of a node: open as long as one of its processes is."""
    begins = [one.begin_ns for one in members.values() if one.begin_ns is not None]
    ends = [one.end_ns for one in members.values() if one.end_ns is not None]
    is_ended = len(ends) == len(members)
    return NodeSpan(node, min(begins, default=None), max(ends) if is_ended else None)


def _when(span: NodeSpan) -> tuple[int, str]:
    """Return the order of spans in a table."""
    return span.begin_ns or span.end_ns or 0, span.node


def _with_past(table: StageTable, others: Sequence[StageTable]) -> StageTable:
    """Return a table whose open nodes are marked as past where they have begun a stage that follows.

    A stage follows if every node with both marks began it after the end of this one. So a stage inside another one (a
    checkpoint that is read within the model's initialisation) does not end the outer one.
    """
    if not any(span.end_ns is None for span in table.spans):
        return table
    ends = {span.node: span.end_ns for span in table.spans if span.end_ns is not None}
    past: set[str] = set()
    for other in others:
        begins = {span.node: span.begin_ns for span in other.spans if span.begin_ns is not None}
        if other is not table and _follows(ends, begins):
            past.update(begins)
    spans = (replace(span, is_past=span.node in past) if span.end_ns is None else span for span in table.spans)
    return replace(table, spans=tuple(spans))


def _follows(ends: Mapping[str, int], begins: Mapping[str, int]) -> bool:
    """Return whether all nodes with an end and a begin have the begin after the end."""
    common = ends.keys() & begins.keys()
    return bool(common) and all(begins[node] >= ends[node] - _ORDER_TOLERANCE_NS for node in common)

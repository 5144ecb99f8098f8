"""Checks whether a job's progress contradicts a reported death or NaN.

No rank of a synchronous job makes a step without the others. If all others go on stepping, a reported death did not
stop the job, and a NaN that stays on one host has not spread. Such a report is used only where nothing else explains
the fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.core.state_maps import rows_from, rows_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND

_MARGIN_NS = 2 * NS_PER_SECOND
"""Tolerance in nanoseconds for clock differences and for the spread of one step's end over ranks."""
_STEP_COUNT = 3
"""Number of steps that others may still finish after a death: running, begun, or overlapping ones."""
_OFTEN = 2
"""Number of contradicted deaths from which on a rank's further death reports are not trusted."""
_RESTART_NS = 60 * NS_PER_SECOND
"""Longest time in nanoseconds after a death in which progress contradicts it; later progress is a restart."""

_ALONE_STEP_COUNT = 10
"""Number of steps after which a NaN that has not reached other hosts will not do so."""


def went_on(graph: JobGraph, hosts: Collection[str], since_ns: int, median_step_ns: int) -> bool:
    """Return whether most ranks of all other hosts finished several steps after ``since_ns``.

    Args:
        graph: the job's ranks and hosts.
        hosts: hosts to leave out.
        since_ns: time in nanoseconds, such as that of a death.
        median_step_ns: usual step time.
    """
    line_ns = since_ns + _MARGIN_NS + _STEP_COUNT * median_step_ns
    others = [facts for facts in graph.ranks.values() if facts.last_step_ns and facts.host not in hosts]
    later_count = sum(facts.last_step_ns >= line_ns for facts in others)
    return 0 < len(others) < 2 * later_count


@dataclass(slots=True)
class Belied:
    """Memory of deaths that the job's progress contradicted.

    Attributes:
        counts: rank -> [number of contradicted deaths, time of the newest].
    """

    counts: dict[int, list[int]] = field(default_factory=dict)

    def deaths(self, graph: JobGraph, median_step_ns: int) -> frozenset[int]:
        """Return the ranks whose reported death the job's progress contradicts, and update the counts.

        A rank whose earlier deaths were contradicted often is returned as well, as its death reports are not trusted.
        """
        found = set()
        for rank in graph.leaving:
            facts = graph.ranks[rank]
            exit_fact, earlier_count = facts.exit, facts.belied_count
            if exit_fact is None or (
                graph.progress_ns <= exit_fact.ts_ns and rank not in self.counts and not earlier_count
            ):
                continue  # nearly always so: nobody went on
            known = self.counts.get(rank, [0, 0])
            if went_on(graph, {facts.host}, exit_fact.ts_ns, median_step_ns):
                found.add(rank)
                if known[1] != exit_fact.ts_ns and graph.progress_ns - exit_fact.ts_ns < _RESTART_NS:
                    self.counts[rank] = [known[0] + 1, exit_fact.ts_ns]
            elif known[0] + _OFTEN * earlier_count >= _OFTEN:  # no process makes the next step after its own death
                found.add(rank)
        return frozenset(found)

    def to_state(self) -> list[list[Any]]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return rows_state(self.counts)

    def load_state(self, state: Sequence[Sequence[int]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.counts = rows_from(state)


def came_late(graph: JobGraph, died_ns: int, stood_since_ns: int, median_step_ns: int) -> bool:
    """Return whether a rank died after the steps had already stalled, so that its death does not explain the stall."""
    return graph.max_step >= 0 < stood_since_ns < died_ns - _MARGIN_NS - median_step_ns


def stays_alone(first: Mapping[int, Sequence[Any]], graph: JobGraph) -> bool:
    """Return whether a single host has lost its numbers and most others have finite ones of many later steps.

    Args:
        first: rank -> [step, ...] of its first non-finite number.
        graph: the job's ranks and hosts.
    """
    hosts = {graph.host_of(rank) for rank in first}
    if len(hosts) != 1:
        return False
    last_step = min(report[0] for report in first.values()) + _ALONE_STEP_COUNT
    others = [facts for facts in graph.ranks.values() if facts.host not in hosts and max(facts.number_steps) >= 0]
    later_count = sum(bool(max(facts.number_steps) >= last_step) for facts in others)
    return 0 < len(others) < 2 * later_count

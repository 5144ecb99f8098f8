"""Words that the job belies: of a death, or a lost number, after which all others went on as ever.

No rank of a synchronous job makes a step without the others. Who is said to have died, and the others make step after
step, did not stop the job; whose number was lost, and everybody else's stay numbers, spread it to nobody. Such a word
is still told where there is nothing else to tell, but it keeps nothing else from being told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.core.state_maps import rows_from, rows_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND

_MARGIN_NS = 2 * NS_PER_SECOND
"""Clocks, and the ends of one step on several ranks, differ by less."""
_STEP_COUNT = 3
"""So many steps may still end on the others after a rank died: of those that were begun, or that overlap."""
_OFTEN = 2
"""A rank whose deaths the job belied so often is believed where nothing else is told."""
_SOON_NS = 60 * NS_PER_SECOND
"""A job that goes on later was started again."""

_ALONE_STEP_COUNT = 10
"""A number that is lost reaches the others within the next step, or where they skip it never: after so many it will
not."""


def went_on(graph: JobGraph, hosts: Collection[str], since_ns: int, median_step_ns: int) -> bool:
    """Whether most ranks of other hosts than these made several steps after that."""
    line_ns = since_ns + _MARGIN_NS + _STEP_COUNT * median_step_ns
    others = [facts for facts in graph.ranks.values() if facts.last_step_ns and facts.host not in hosts]
    later_count = sum(facts.last_step_ns >= line_ns for facts in others)
    return 0 < len(others) < 2 * later_count


@dataclass(slots=True)
class Belied:
    """Whose deaths the job belied.

    Attributes:
        counts: rank -> [how often, the time of the newest such death].
    """

    counts: dict[int, list[int]] = field(default_factory=dict)

    def deaths(self, graph: JobGraph, median_step_ns: int) -> frozenset[int]:
        """Ranks that are said to have died, and the job goes on, or went on for long, without them."""
        found = set()
        for rank in graph.leaving:
            facts = graph.ranks[rank]
            left, often = facts.exit, facts.belied_count
            if left is None or (graph.progress_ns <= left.ts_ns and rank not in self.counts and not often):
                continue  # nearly always so: nobody went on
            known = self.counts.get(rank, [0, 0])
            if went_on(graph, {facts.host}, left.ts_ns, median_step_ns):
                found.add(rank)
                if known[1] != left.ts_ns and graph.progress_ns - left.ts_ns < _SOON_NS:
                    self.counts[rank] = [known[0] + 1, left.ts_ns]
            elif known[0] + _OFTEN * often >= _OFTEN:  # no process makes the next step after its own death
                found.add(rank)
        return frozenset(found)

    def to_state(self) -> list[list[Any]]:
        """JSON-able state."""
        return rows_state(self.counts)

    def load_state(self, state: Sequence[Sequence[int]]) -> None:
        """Take back what ``to_state`` gave."""
        self.counts = rows_from(state)


def came_late(graph: JobGraph, died_ns: int, stood_since_ns: int, median_step_ns: int) -> bool:
    """Whether somebody died when the job stood already, as its steps tell: that is not why it stands."""
    return graph.max_step >= 0 < stood_since_ns < died_ns - _MARGIN_NS - median_step_ns


def stays_alone(first: Mapping[int, Sequence[Any]], graph: JobGraph) -> bool:
    """Whether one host alone lost its numbers, and most others have those of many later steps.

    Args:
        first: rank -> [step, ...]: where it lost its number.
        graph: what is known of the job.
    """
    hosts = {graph.host_of(rank) for rank in first}
    if len(hosts) != 1:
        return False
    last_step = min(report[0] for report in first.values()) + _ALONE_STEP_COUNT
    others = [facts for facts in graph.ranks.values() if facts.host not in hosts and max(facts.number_steps) >= 0]
    later_count = sum(bool(max(facts.number_steps) >= last_step) for facts in others)
    return 0 < len(others) < 2 * later_count

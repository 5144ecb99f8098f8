"""The wall time of one attempt, cut into measured parts that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tocsin.pipeline.stores.attempt_times import TimePart
from tocsin.schemas.records import NS_PER_SECOND

Claim = tuple[TimePart, int, int]
"""A measured span: its part, begin and end (Unix ns)."""
_RANKS: Final = {part: place for place, part in enumerate(TimePart)}
_MERGED_GAP_NS: Final = NS_PER_SECOND
"""A shorter gap between two steps stays unattributed: events are judged in slices of one second."""
_KEPT_RUNS: Final = 32
_MOST_SPANS: Final = 128
"""Spans that are kept apart; with more of them, those before the last ``_KEPT_RUNS`` runs are summed up for good."""


class AttemptTimeline:
    """Measured spans of one attempt, of which the strongest part has each instant (the order of ``TimePart``).

    Consecutive steps are one run. A run knows how much of its length its steps cover; the rest is unattributed.
    ``bound`` sums up old spans, so that memory is bounded. What is claimed of that time later is dropped.

    Attributes:
        begin_ns: begin of the attempt.
        settled_ns: time before which the sums are final.
    """

    def __init__(self, begin_ns: int) -> None:
        """Start without spans.

        Args:
            begin_ns: begin of the attempt.
        """
        self.begin_ns = begin_ns
        self.settled_ns = begin_ns
        self._sums_ns: dict[TimePart, int] = {}
        self._runs: list[tuple[TimePart, int, int, int]] = []
        """Part, begin, end, and the covered nanoseconds of each run; ascending and disjoint."""
        self._claims: list[Claim] = []

    def add_step(self, part: TimePart, begin_ns: int, end_ns: int) -> None:
        """Add a step; time before the end of the step before it is not counted again.

        Args:
            part: ``productive`` or ``recomputed``.
            begin_ns: begin of the step.
            end_ns: end of the step.
        """
        last = self._runs[-1] if self._runs else None
        begin_ns = max(begin_ns, self.settled_ns if last is None else last[2])
        if end_ns <= begin_ns:
            return
        if last is not None and last[0] is part and self._is_small_gap(last[2], begin_ns):
            self._runs[-1] = (part, last[1], end_ns, last[3] + end_ns - begin_ns)
            return
        self._runs.append((part, begin_ns, end_ns, end_ns - begin_ns))

    def _is_small_gap(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether a gap between steps is so short that nothing else is told of it."""
        if end_ns - begin_ns >= _MERGED_GAP_NS:
            return False
        return not any(begin < end_ns and begin_ns < end for _, begin, end in self._claims)

    def claim(self, part: TimePart, begin_ns: int, end_ns: int) -> None:
        """Add a measured span; spans of the same part that overlap become one."""
        begin_ns = max(begin_ns, self.settled_ns)
        if end_ns <= begin_ns:
            return
        kept = []
        for one in self._claims:
            if one[0] is part and one[1] <= end_ns and begin_ns <= one[2]:
                begin_ns, end_ns = min(begin_ns, one[1]), max(end_ns, one[2])
            else:
                kept.append(one)
        self._claims = [*kept, (part, begin_ns, end_ns)]

    def bound(self, more: Sequence[Claim] = ()) -> None:
        """Sum up old spans where too many are kept; to be called now and then.

        Args:
            more: claims that are kept elsewhere, as for ``parts``.
        """
        if len(self._runs) + len(self._claims) <= _MOST_SPANS:
            return
        ends = sorted(end for *_, end in self._claims)
        by_claims = ends[-_KEPT_RUNS] if len(ends) > _KEPT_RUNS else self.settled_ns
        by_runs = self._runs[-_KEPT_RUNS][1] if len(self._runs) > _KEPT_RUNS else self.settled_ns
        self.settle(max(by_claims, by_runs), more)

    def settle(self, until_ns: int, more: Iterable[Claim] = ()) -> None:
        """Make the sums before a time final, and forget the spans before it.

        Args:
            until_ns: the time.
            more: claims that are kept elsewhere, as for ``parts``.
        """
        if until_ns <= self.settled_ns:
            return
        self._sums_ns = dict(self.parts(until_ns, more))
        self._claims = [(part, max(begin, until_ns), end) for part, begin, end in self._claims if end > until_ns]
        runs = []
        for part, begin, end, covered in self._runs:
            if end > until_ns:
                gone = min(covered, max(0, until_ns - begin))
                runs.append((part, max(begin, until_ns), end, covered - gone))
        self._runs = runs
        self.settled_ns = until_ns

    def parts(self, until_ns: int, more: Iterable[Claim] = ()) -> Mapping[TimePart, int]:
        """Return part -> its nanoseconds from the begin to a time; parts without time are absent.

        Args:
            until_ns: the time, at least ``settled_ns`` (an earlier one counts as that).
            more: further claims that are kept elsewhere.
        """
        found = dict(self._sums_ns)
        spans: list[Claim] = [*((part, begin, end) for part, begin, end, _ in self._runs), *self._claims, *more]
        clipped = [(part, max(begin, self.settled_ns), min(end, until_ns)) for part, begin, end in spans]
        for part, length_ns in _shares([one for one in clipped if one[1] < one[2]]):
            found[part] = found.get(part, 0) + length_ns
        for part, begin, end, covered in self._runs:
            length_ns = max(0, min(end, until_ns) - begin)
            found[part] = found.get(part, 0) - length_ns + min(covered, length_ns)
        return {part: length_ns for part, length_ns in found.items() if length_ns > 0}

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [
            self.begin_ns,
            self.settled_ns,
            [[part.value, length_ns] for part, length_ns in self._sums_ns.items()],
            [[part.value, *numbers] for part, *numbers in self._runs],
            [[part.value, *numbers] for part, *numbers in self._claims],
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> AttemptTimeline:
        """Return the timeline that ``to_state`` described."""
        begin_ns, settled_ns, sums, runs, claims = state
        found = cls(begin_ns)
        found.settled_ns = settled_ns
        found._sums_ns = {TimePart(part): length_ns for part, length_ns in sums}
        found._runs = [(TimePart(part), begin, end, covered) for part, begin, end, covered in runs]
        found._claims = [(TimePart(part), begin, end) for part, begin, end in claims]
        return found


def _shares(spans: Sequence[Claim]) -> Iterable[tuple[TimePart, int]]:
    """Yield (part, nanoseconds) pairs: each instant goes to the strongest part that has it."""
    edges = sorted(edge for part, begin, end in spans for edge in ((begin, _RANKS[part], 1), (end, _RANKS[part], -1)))
    parts, open_counts, last_ns = tuple(TimePart), [0] * len(_RANKS), 0
    for ts_ns, rank, change in edges:
        strongest = next((place for place, count in enumerate(open_counts) if count), None)
        if strongest is not None and ts_ns > last_ns:
            yield parts[strongest], ts_ns - last_ns
        open_counts[rank] += change
        last_ns = ts_ns

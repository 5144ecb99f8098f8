"""Phases that ranks announce (checkpoint, evaluation, compilation), and which slow steps they excuse.

A phase excuses its own rank. It excuses all ranks if most of them announce it together, or if the others wait for it. A
rank for whose recent phases nobody waited excuses only itself. Every phase has a maximum length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from tocsin.schemas.records import NS_PER_SECOND, StepRecord

_KEPT_COUNT = 64
_KEPT_STEP_COUNT = 256
_END_OF = itemgetter(1)
_LONGEST_NS = 1800 * NS_PER_SECOND
"""Longest phase that is believed at once; checkpoints to slow storage take ten minutes."""
_LONGER_FACTOR = 2
"""A phase may also last this many times the longest phase that the job has had."""
_CHAIN_NS = 10 * NS_PER_SECOND
"""Phases of one rank that are closer together are treated as one, because step batches between them arrive late."""
_CLOCK_NS = 2 * NS_PER_SECOND
"""Upper bound on the difference of clocks, and of one step's ends on several ranks."""
_SHORTEST_NS = NS_PER_SECOND
"""Minimum length of a phase that other ranks can wait for."""
_IDLE_COUNT = 1
"""Number of consecutive phases that nobody waited for, after which a rank excuses only itself until others wait again.
"""
_STEP_NS = NS_PER_SECOND // 2
"""Minimum distance of the remembered step ends."""
_MOST_LEFT_OUT = 8.0
"""Maximum number of consecutive steps that phases of few ranks may excuse."""
_EARNED_RATIO = 1 / 3
"""Fraction of an excused step that each other step restores to the allowance."""
_WHOLE_JOB = -1
"""Rank number of a phase that applies to all ranks."""


@dataclass(slots=True)
class _SinglePhase:
    """Newest phase of a rank that few others share.

    Attributes:
        begin_ns: when it began.
        end_ns: when it ended, 0 = it has not.
        idle_count: number of consecutive phases of the rank before it that nobody waited for.
    """

    begin_ns: int
    end_ns: int = 0
    idle_count: int = 0


@dataclass(slots=True)
class Announced:
    """The announced phases of one job.

    Attributes:
        open: rank -> its open phases as [name, begin_ns].
        shared: ranks with open phases that most ranks were in at the same time.
        spans: ended phases that most ranks were in, as disjoint, ascending [begin_ns, end_ns].
        lone: rank -> its newest phase that only few ranks share, as far as is known yet.
        step_ends_ns: recent ends of steps of ranks that were in no phase.
        longest_ns: length of the longest phase that most ranks were in.
    """

    open: dict[int, list[list[Any]]] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)
    spans: list[list[int]] = field(default_factory=list)
    lone: dict[int, _SinglePhase] = field(default_factory=dict)
    step_ends_ns: list[int] = field(default_factory=list)
    longest_ns: int = 0
    _all: list[list[int]] | None = None
    """Cached spans for ``in_pause``; None: to be computed again."""
    _most: list[list[int]] | None = None
    """Cached spans for ``in_shared``; None: to be computed again."""

    @property
    def is_watching(self) -> bool:
        """Whether there are phases that the next steps may close or prove unwaited for."""
        return bool(self.open or self.lone)

    @property
    def any(self) -> bool:
        """Whether any known phase could excuse a step."""
        return bool(self.open or self.lone or self.spans)

    def take(self, rank: int, name: str, ts_ns: int, *, begins: bool, rank_count: int) -> None:
        """Record that a rank begins or ends a phase.

        Args:
            rank: the rank, -1 for the whole job.
            name: name of the phase.
            ts_ns: when the phase begins or ends.
            begins: True for a begin, False for an end.
            rank_count: number of ranks of the job.
        """
        if not begins:
            self.close(rank, ts_ns, name)
            return
        self._all = self._most = None
        was_most = 2 * len(self.open) > rank_count
        opened = self.open.setdefault(rank, [])
        if all(entry[0] != name for entry in opened):  # else its end was lost, or it says so again
            opened.append([name, ts_ns])
        if was_most or rank == _WHOLE_JOB:
            self.shared.add(rank)
        elif 2 * len(self.open) > rank_count:
            self.shared.update(self.open)
        known = self.lone.get(rank)
        if known is None:
            self.lone[rank] = _SinglePhase(ts_ns)
        elif known.end_ns and ts_ns - known.end_ns > _CHAIN_NS:
            self.lone[rank] = _SinglePhase(ts_ns, 0, self._idle_count(known))
        else:
            known.end_ns = 0

    def _idle_count(self, phase: _SinglePhase) -> int:
        """Return how many consecutive phases of a rank nobody waited for, including this ended one."""
        if self._goes_on(phase):
            return phase.idle_count + 1
        return 0 if phase.end_ns - phase.begin_ns > 2 * _CLOCK_NS else phase.idle_count

    def _goes_on(self, phase: _SinglePhase) -> bool:
        """Return whether other ranks made steps in the middle of a phase, so that they do not wait for it."""
        index = bisect_left(self.step_ends_ns, phase.begin_ns + _CLOCK_NS)
        if index == len(self.step_ends_ns):
            return False
        return not phase.end_ns or self.step_ends_ns[index] < phase.end_ns - _CLOCK_NS

    def close(self, rank: int, end_ns: int, name: str = "") -> None:
        """End a rank's open phases that began before ``end_ns``: those of this name, or all if the name is ""."""
        opened = self.open.pop(rank, [])
        if left := [entry for entry in opened if entry[1] > end_ns or name not in ("", entry[0])]:
            self.open[rank] = left
        if len(left) == len(opened):
            return
        self._all = self._most = None
        begin_ns = min(entry[1] for entry in opened if entry not in left)
        lone = self.lone.get(rank)
        if lone is not None and not left:
            lone.end_ns = max(end_ns, lone.begin_ns)
        if rank not in self.shared:
            return
        if not left:
            self.shared.discard(rank)
            if lone is not None and not lone.idle_count:
                del self.lone[rank]  # it is kept with those of all
        self.longest_ns = max(self.longest_ns, min(end_ns - begin_ns, self.limit_ns))
        if self.spans and self.spans[-1][0] <= begin_ns <= self.spans[-1][1]:
            self.spans[-1][1] = max(self.spans[-1][1], end_ns)
        else:
            self.spans = _merged([*self.spans, [begin_ns, end_ns]])[-_KEPT_COUNT:]

    def close_by_step(self, rank: int, begin_ns: int) -> None:
        """End the open phases of a rank that made a whole step from ``begin_ns`` on: their end event was lost."""
        if rank in self.open:
            self.close(rank, begin_ns)
        if _WHOLE_JOB in self.open:
            self.close(_WHOLE_JOB, begin_ns)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Remember when ranks without an open phase ended steps."""
        ends_ns = [row.ts_ns for row in rows if row.rank not in self.open]
        newest_ns = max(ends_ns, default=0)
        if ends_ns and (not self.step_ends_ns or newest_ns >= self.step_ends_ns[-1] + _STEP_NS):
            self.step_ends_ns = [*self.step_ends_ns, newest_ns][-_KEPT_STEP_COUNT:]
            self._all = None

    @property
    def limit_ns(self) -> int:
        """Maximum length of a phase in ns; the time beyond it excuses nothing."""
        return max(_LONGEST_NS, _LONGER_FACTOR * self.longest_ns)

    def in_pause(self, from_ns: int, to_ns: int) -> bool:
        """Return whether the job paused in [from, to].

        Most ranks were in a phase, or the others waited for one rank's phase.
        """
        if self._all is None:
            few = (phase for rank, phase in self.lone.items() if rank not in self.shared)
            held = (phase for phase in few if phase.idle_count < _IDLE_COUNT)
            waited = (phase for phase in held if phase.end_ns == 0 or phase.end_ns - phase.begin_ns >= _SHORTEST_NS)
            lone = [self._span(phase.begin_ns, phase.end_ns) for phase in waited if not self._goes_on(phase)]
            self._all = _merged([*self._most_spans(), *lone])
        return _overlaps(self._all, from_ns, to_ns)

    def in_shared(self, from_ns: int, to_ns: int) -> bool:
        """Return whether most ranks were in a phase in [from, to]."""
        return _overlaps(self._most_spans(), from_ns, to_ns)

    def is_in_phase(self, rank: int, from_ns: int, to_ns: int) -> bool:
        """Return whether this rank's newest phase overlaps [from, to]."""
        phase = self.lone.get(rank)
        return phase is not None and _overlaps([self._span(phase.begin_ns, phase.end_ns)], from_ns, to_ns)

    def _span(self, begin_ns: int, end_ns: int) -> list[int]:
        """Return [begin, end] of a phase, cut to the maximum length; an end of 0 means it is still open."""
        last_ns = begin_ns + self.limit_ns
        return [begin_ns, min(end_ns, last_ns) if end_ns else last_ns]

    def _most_spans(self) -> list[list[int]]:
        """Return the spans in which most ranks were in a phase, from the cache if it is valid."""
        if self._most is None:
            begins = [entry[1] for rank in self.shared for entry in self.open.get(rank, ())]
            open_now = [self._span(begin_ns, 0) for begin_ns in (min(begins), max(begins))] if begins else []
            self._most = _merged([*self.spans, *open_now])
        return self._most

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values."""
        return {
            "open": [[name, rank, begin] for rank, opened in self.open.items() for name, begin in opened],
            "shared": sorted(self.shared),
            "spans": self.spans,
            "lone": [[rank, one.begin_ns, one.end_ns, one.idle_count] for rank, one in sorted(self.lone.items())],
            "step_ends_ns": self.step_ends_ns,
            "longest_ns": self.longest_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._all = self._most = None
        self.open = {rank: [] for _, rank, _ in state["open"]}
        for name, rank, begin_ns in state["open"]:
            self.open[rank].append([name, begin_ns])
        self.shared = set(state["shared"])
        self.spans = [list(span) for span in state["spans"]]
        self.lone = {rank: _SinglePhase(*numbers) for rank, *numbers in state["lone"]}
        self.step_ends_ns = list(state["step_ends_ns"])
        self.longest_ns = state["longest_ns"]


@dataclass(slots=True)
class StepExcuses:
    """Decides which steps to ignore when ranks' speeds are judged, because they lie in announced phases.

    Phases of few ranks may excuse at most a quarter of the job's steps. A pause in every fourth step is how the job
    normally runs.

    Attributes:
        announced: the job's announced phases.
        step: newest step number seen.
        is_left_out: whether a phase of few ranks excuses that step.
        spent: current use of the allowance, in steps.
    """

    announced: Announced
    step: int = -1
    is_left_out: bool = False
    spent: float = 0.0

    def take(self, rank: int, step: int, begin_ns: int, end_ns: int) -> bool:
        """Return whether to ignore a rank's step; steps must come roughly in order."""
        announced = self.announced
        if announced.in_shared(begin_ns, end_ns) or announced.is_in_phase(rank, begin_ns, end_ns):
            return True
        in_pause = announced.in_pause(begin_ns, end_ns)
        if step > self.step:
            self.step = step
            self.is_left_out = in_pause and self.spent < _MOST_LEFT_OUT
            self.spent = self.spent + 1.0 if self.is_left_out else max(0.0, self.spent - _EARNED_RATIO)
        return in_pause and self.is_left_out

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [self.step, self.is_left_out, self.spent]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self.step, self.is_left_out, self.spent = state


def _merged(spans: Iterable[list[int]]) -> list[list[int]]:
    """Return the spans in ascending order, with overlapping ones merged."""
    found: list[list[int]] = []
    for begin_ns, end_ns in sorted(spans):
        if found and begin_ns <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end_ns)
        else:
            found.append([begin_ns, end_ns])
    return found


def _overlaps(spans: list[list[int]], from_ns: int, to_ns: int) -> bool:
    """Return whether one of the ascending, disjoint spans overlaps [from, to]."""
    place = bisect_left(spans, from_ns, key=_END_OF)
    return place < len(spans) and spans[place][0] <= to_ns

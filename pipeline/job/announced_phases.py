"""Phases that ranks announce (a checkpoint, an evaluation, a compilation), and what they excuse.

A phase excuses its rank. It excuses everybody where most ranks announce it together; one of few ranks does so as long
as the job waits for it, and no longer: where others make steps meanwhile nobody waits, and a rank of which that is so
again and again is believed no more. None lasts for ever.
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
"""The longest phase that is believed at once: checkpoints to slow storage take ten minutes."""
_LONGER_FACTOR = 2
"""... or so many times the longest one that this job went through."""
_CHAIN_NS = 10 * NS_PER_SECOND
"""Phases of one rank that lie closer together are one: what was said of them is not known before (batches of steps)."""
_CLOCK_NS = 2 * NS_PER_SECOND
"""Clocks, and the ends of one step on several ranks, differ by less."""
_SHORTEST_NS = NS_PER_SECOND
"""For a shorter phase nobody waits."""
_IDLE_COUNT = 1
"""A rank for whose last so many phases nobody waited excuses only itself, until others wait for one again."""
_STEP_NS = NS_PER_SECOND // 2
_MOST_LEFT_OUT = 8.0
"""So many steps in a row may be left out for the phases of few ..."""
_EARNED_RATIO = 1 / 3
"""... and each that is not allows so much of another one."""
_WHOLE_JOB = -1
"""The rank of a phase that all ranks are in."""


@dataclass(slots=True)
class _Lone:
    """The newest phase of a rank that few share: begin, end (0: not yet), and how many before it held up nobody."""

    begin_ns: int
    end_ns: int = 0
    idle_count: int = 0


@dataclass(slots=True)
class Announced:
    """The announced phases of one job.

    Attributes:
        open: rank -> its phases that are open: [phase, begin_ns] (thousands open and close theirs at once).
        shared: ranks whose open phases most ranks were in at once.
        spans: phases that are over and that most were in: [begin_ns, end_ns], disjoint, ascending.
        lone: rank -> its newest phase that it shares with few, as far as is known yet.
        step_ends_ns: when others made steps lately, while there were phases of few.
        longest_ns: the longest phase that most were in.
    """

    open: dict[int, list[list[Any]]] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)
    spans: list[list[int]] = field(default_factory=list)
    lone: dict[int, _Lone] = field(default_factory=dict)
    step_ends_ns: list[int] = field(default_factory=list)
    longest_ns: int = 0
    _all: list[list[int]] | None = None
    """What ``in_pause`` asks, None: to be made again."""
    _most: list[list[int]] | None = None

    @property
    def is_watching(self) -> bool:
        """Whether there are phases that the next steps say something of."""
        return bool(self.open or self.lone)

    @property
    def any(self) -> bool:
        """Whether any phase may excuse anything."""
        return bool(self.open or self.lone or self.spans)

    def take(self, rank: int, name: str, ts_ns: int, *, begins: bool, rank_count: int) -> None:
        """A rank begins a phase, or ends it.

        Args:
            rank: whose, -1: of the whole job.
            name: of the phase.
            ts_ns: when.
            begins: whether it begins.
            rank_count: how many ranks the job has.
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
            self.lone[rank] = _Lone(ts_ns)
        elif known.end_ns and ts_ns - known.end_ns > _CHAIN_NS:
            self.lone[rank] = _Lone(ts_ns, 0, self._idle_count(known))
        else:
            known.end_ns = 0

    def _idle_count(self, phase: _Lone) -> int:
        """How many of a rank's phases in a row nobody waited for, with this one, which is over."""
        if self._goes_on(phase):
            return phase.idle_count + 1
        return 0 if phase.end_ns - phase.begin_ns > 2 * _CLOCK_NS else phase.idle_count

    def _goes_on(self, phase: _Lone) -> bool:
        """Whether others made steps in the midst of a phase: they do not wait for it."""
        index = bisect_left(self.step_ends_ns, phase.begin_ns + _CLOCK_NS)
        if index == len(self.step_ends_ns):
            return False
        return not phase.end_ns or self.step_ends_ns[index] < phase.end_ns - _CLOCK_NS

    def close(self, rank: int, end_ns: int, name: str = "") -> None:
        """A rank's open phases (of this name, "" = all) that began before ``end_ns`` are over."""
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
        """A whole step after the begin of a phase: its end was lost on the way."""
        if rank in self.open:
            self.close(rank, begin_ns)
        if _WHOLE_JOB in self.open:
            self.close(_WHOLE_JOB, begin_ns)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Others than who is in a phase make steps."""
        ends_ns = [row.ts_ns for row in rows if row.rank not in self.open]
        newest_ns = max(ends_ns, default=0)
        if ends_ns and (not self.step_ends_ns or newest_ns >= self.step_ends_ns[-1] + _STEP_NS):
            self.step_ends_ns = [*self.step_ends_ns, newest_ns][-_KEPT_STEP_COUNT:]
            self._all = None

    @property
    def limit_ns(self) -> int:
        """A phase that takes longer excuses nothing any more."""
        return max(_LONGEST_NS, _LONGER_FACTOR * self.longest_ns)

    def in_pause(self, from_ns: int, to_ns: int) -> bool:
        """Whether the job was in a phase in [from, to]: most ranks, or one for which the others wait."""
        if self._all is None:
            few = (phase for rank, phase in self.lone.items() if rank not in self.shared)
            held = (phase for phase in few if phase.idle_count < _IDLE_COUNT)
            waited = (phase for phase in held if phase.end_ns == 0 or phase.end_ns - phase.begin_ns >= _SHORTEST_NS)
            lone = [self._span(phase.begin_ns, phase.end_ns) for phase in waited if not self._goes_on(phase)]
            self._all = _merged([*self._most_spans(), *lone])
        return _overlaps(self._all, from_ns, to_ns)

    def in_shared(self, from_ns: int, to_ns: int) -> bool:
        """Whether most ranks were in a phase in [from, to]."""
        return _overlaps(self._most_spans(), from_ns, to_ns)

    def is_in_phase(self, rank: int, from_ns: int, to_ns: int) -> bool:
        """Whether this rank said so of itself in [from, to]."""
        phase = self.lone.get(rank)
        return phase is not None and _overlaps([self._span(phase.begin_ns, phase.end_ns)], from_ns, to_ns)

    def _span(self, begin_ns: int, end_ns: int) -> list[int]:
        last_ns = begin_ns + self.limit_ns
        return [begin_ns, min(end_ns, last_ns) if end_ns else last_ns]

    def _most_spans(self) -> list[list[int]]:
        if self._most is None:
            begins = [entry[1] for rank in self.shared for entry in self.open.get(rank, ())]
            open_now = [self._span(begin_ns, 0) for begin_ns in (min(begins), max(begins))] if begins else []
            self._most = _merged([*self.spans, *open_now])
        return self._most

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "open": [[name, rank, begin] for rank, opened in self.open.items() for name, begin in opened],
            "shared": sorted(self.shared),
            "spans": self.spans,
            "lone": [[rank, one.begin_ns, one.end_ns, one.idle_count] for rank, one in sorted(self.lone.items())],
            "step_ends_ns": self.step_ends_ns,
            "longest_ns": self.longest_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._all = self._most = None
        self.open = {rank: [] for _, rank, _ in state["open"]}
        for name, rank, begin_ns in state["open"]:
            self.open[rank].append([name, begin_ns])
        self.shared = set(state["shared"])
        self.spans = [list(span) for span in state["spans"]]
        self.lone = {rank: _Lone(*numbers) for rank, *numbers in state["lone"]}
        self.step_ends_ns = list(state["step_ends_ns"])
        self.longest_ns = state["longest_ns"]


@dataclass(slots=True)
class StepExcuses:
    """Which steps tell nothing of how fast ranks are, as they lie in announced phases.

    Of the steps that others make meanwhile a quarter may be left out for the phases of few: a pause that is in every
    fourth step is how the job runs.

    Attributes:
        announced: the job's phases.
        step: the newest step that was asked for.
        is_left_out: whether it is one that a phase of few excuses.
        spent: how much was left out lately, in steps.
    """

    announced: Announced
    step: int = -1
    is_left_out: bool = False
    spent: float = 0.0

    def take(self, rank: int, step: int, begin_ns: int, end_ns: int) -> bool:
        """Whether a rank's step tells nothing; steps come about in order."""
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
        """JSON-able state."""
        return [self.step, self.is_left_out, self.spent]

    def load_state(self, state: Sequence[Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.step, self.is_left_out, self.spent = state


def _merged(spans: Iterable[list[int]]) -> list[list[int]]:
    """Spans that overlap as one, ascending."""
    found: list[list[int]] = []
    for begin_ns, end_ns in sorted(spans):
        if found and begin_ns <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end_ns)
        else:
            found.append([begin_ns, end_ns])
    return found


def _overlaps(spans: list[list[int]], from_ns: int, to_ns: int) -> bool:
    place = bisect_left(spans, from_ns, key=_END_OF)
    return place < len(spans) and spans[place][0] <= to_ns

"""The agent's state of one rank.

The hook's stamps are converted to monotonic time on arrival, so that a jump of the wall clock makes no step
overdue.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from tocsin.collectors.agent.messages import (
    Beat,
    Completion,
    Datagram,
    Hello,
    InFlight,
    LastDone,
    ModelWork,
    PhaseEdge,
    StepDone,
)
from tocsin.collectors.clock import Now
from tocsin.collectors.owners import Holder, Life
from tocsin.schemas.events import ANNOUNCED_PHASES, STEP_PHASES
from tocsin.schemas.records import NS_PER_SECOND, CommGroup

MEDIAN_STEPS: Final = 31
MIN_STEPS: Final = 5
"""Least number of steps before one can be unusually slow; the first steps are always slow."""
ODD_RATIO: Final = 1.3
ODD_SECONDS: Final = 0.020
UNSEEN_NS: Final = 60 * NS_PER_SECOND
"""Time for which an invisible process counts as running after its hook's last datagram."""

MODEL_AGAIN_NS: Final = 300 * NS_PER_SECOND
"""Time after which the engine is told of a rank's model again; it may have begun without state."""


class RecentSteps:
    """The durations of the last steps and their phases, and the test for one far above its own median."""

    def __init__(self) -> None:
        """Start without any step."""
        self._recent: deque[tuple[float | None, ...]] = deque(maxlen=MEDIAN_STEPS)
        self._least: list[float] = []

    def median_seconds(self, place: int) -> float:
        """Return the median of one duration (the upper one of two), 0 without values.

        Args:
            place: index of the duration; 0 is the whole step.
        """
        known = self._sorted(place)
        return known[len(known) // 2] if known else 0.0

    def add(self, times: tuple[float | None, ...]) -> bool:
        """Add the durations of a step (None = not measured); return whether one of them is unusually long."""
        odd = False
        least = self._least or [inf] * len(times)
        for place, value in enumerate(times):
            if value is None:
                continue
            if value < least[place]:
                least[place] = value
            elif value > ODD_RATIO * least[place] + ODD_SECONDS:  # seldom: only now it may be above the median's limit
                known = self._sorted(place)
                least[place] = known[0] if known else value
                odd |= len(known) >= MIN_STEPS and value > ODD_RATIO * known[len(known) // 2] + ODD_SECONDS
        self._least = least
        self._recent.append(times)
        return odd

    def _sorted(self, place: int) -> list[float]:
        """Return the known values of one duration in ascending order."""
        return sorted([value for times in self._recent if (value := times[place]) is not None])


class RankState:
    """State of one rank of one attempt of a job; ``*_mono_ns`` are monotonic times, 0 = never."""

    def __init__(self, rank: int) -> None:
        """Start with the rank's number only."""
        self.rank = rank
        self.hello: Hello | None = None
        self.holder: Holder | None = None
        self.pid = 0
        self.groups: dict[str, CommGroup] = {}
        self.ended = ""
        self.ended_mono_ns = 0
        self.spoke_mono_ns = 0
        self.beat_mono_ns = 0
        self.dropped_count = 0
        self.open_phases: dict[str, int] = {}
        self.step_count = 0
        self.step = -1
        self.in_step = True
        self.phase = ""
        self.since_mono_ns = 0
        self.inflight: tuple[InFlight, ...] = ()
        self.inflight_seen_ns = 0
        self.last: dict[str, LastDone] = {}
        self._recent = RecentSteps()
        self._finished_step = -1
        self._model: ModelWork | None = None
        self._model_mono_ns = 0

    def spoke(self, now: Now) -> None:
        """Note a datagram's time; the first one starts the time limit for the first step."""
        self.spoke_mono_ns = now.mono_ns
        self.since_mono_ns = self.since_mono_ns or now.mono_ns

    def is_model_due(self, model: ModelWork, now: Now) -> bool:
        """Return whether the engine is to be told of the rank's model: after a change, and now and then."""
        is_due = model != self._model or now.mono_ns - self._model_mono_ns >= MODEL_AGAIN_NS
        if is_due:
            self._model, self._model_mono_ns = model, now.mono_ns
        return is_due

    def end(self, how: str, now: Now) -> None:
        """Note that the rank ended, by ``bye``, ``exit`` or ``gone``."""
        self.ended = how
        self.ended_mono_ns = now.mono_ns

    def lives(self, now: Now) -> bool:
        """Return whether the rank's process runs, as far as can be known."""
        if self.ended or self.holder is None or self.holder.sight.life is Life.GONE:
            return False
        return self.holder.sight.life is Life.RUNS or now.mono_ns - self.spoke_mono_ns < UNSEEN_NS

    def median_step_seconds(self) -> float:
        """Return the median duration of the last steps, 0 before the first."""
        return self._recent.median_seconds(0)

    def on_step(self, datagram: Datagram, done: StepDone, now: Now) -> bool:
        """Process a finished step; return whether it was unusually slow.

        That is, the step or one of its phases took over 1.3 times its own running median plus 20 ms.
        """
        record = done.record
        self.step_count += 1
        self.dropped_count = done.dropped_count
        self._finished_step = record.step
        self.step = record.step + 1
        self.in_step, self.phase = True, ""
        self.since_mono_ns = _mono(datagram.ts_ns, datagram, now)
        latest: dict[str, Completion] = {}
        for item in done.completions:  # hundreds a second: no more than this for each
            comm_id = item[0]
            if comm_id not in latest or item[5] >= latest[comm_id][5]:
                latest[comm_id] = item
        for comm_id, op_name, op_seq, _, _, end_ns in latest.values():
            known = self.last.get(comm_id)
            if known is None or end_ns >= known.end_ns:
                self.last[comm_id] = LastDone(comm_id, op_name, op_seq, end_ns)
        if self.inflight:
            self.inflight = tuple(item for item in self.inflight if not self._finished(item))
        return self._recent.add(
            (
                record.duration_seconds,
                record.data_seconds,
                record.forward_seconds,
                record.backward_seconds,
                record.optimizer_seconds,
                record.communication_seconds,
            )
        )

    def on_beat(self, datagram: Datagram, beat: Beat, now: Now) -> None:
        """Process a beat: current step, phase and unfinished collectives.

        A beat older than the last step changes none of these.
        """
        self.beat_mono_ns = now.mono_ns
        for item in beat.last:
            known = self.last.get(item.comm_id)
            if known is None or item.end_ns > known.end_ns:
                self.last[item.comm_id] = item
        self.inflight = tuple(item for item in beat.inflight if not self._finished(item))
        self.inflight_seen_ns = datagram.ts_ns
        if beat.phase in STEP_PHASES:
            # The hook times no step phase inside an announced one: an end must have been lost.
            # (Not a begin of the last second: beat and begin come from two threads.)
            limit_ns = now.mono_ns - NS_PER_SECOND
            self.open_phases = {name: at for name, at in self.open_phases.items() if at > limit_ns}
        if beat.step_ns == 0:
            self.in_step, self.phase = False, beat.phase
        elif beat.step > self._finished_step or not self.step_count:
            self.in_step, self.step, self.phase = True, beat.step, beat.phase
            self.since_mono_ns = _mono(beat.step_ns, datagram, now)

    def on_phase(self, edge: PhaseEdge, now: Now) -> None:
        """Process the begin or end of an announced phase; the time limit for the step starts again at its end."""
        if edge.edge == "begin":
            self.open_phases[edge.phase] = now.mono_ns
        else:
            self.open_phases.pop(edge.phase, None)
            self.since_mono_ns = now.mono_ns

    def is_announced(self) -> bool:
        """Return whether a checkpoint, an evaluation or a compilation is in progress, also if its begin was lost."""
        return bool(self.open_phases) or self.phase in ANNOUNCED_PHASES

    def oldest_inflight(self) -> dict[str, InFlight]:
        """Return, for each communicator, the unfinished operation that was entered first."""
        oldest: dict[str, InFlight] = {}
        for item in self.inflight:
            known = oldest.get(item.comm_id)
            if known is None or (item.op_seq, item.start_ns) < (known.op_seq, known.start_ns):
                oldest[item.comm_id] = item
        return oldest

    def _finished(self, item: InFlight) -> bool:
        """Return whether a known completion shows that this operation is finished."""
        last = self.last.get(item.comm_id)
        if last is None:
            return False
        if item.op_seq >= 0 and last.op_seq >= 0:
            return item.op_seq <= last.op_seq
        return item.start_ns < last.end_ns and item.op_name == last.op_name


def _mono(then_ns: int, datagram: Datagram, now: Now) -> int:
    """Return the monotonic time of a hook's stamp, from its distance to the datagram's own stamp."""
    return now.mono_ns - max(0, datagram.ts_ns - then_ns)

"""The account of one attempt: turns its events, steps and verdicts into spans of wall time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any, Final

from tocsin.models.startup.marks import marks_of
from tocsin.pipeline.incidents.ettr.made_steps import MAX_FOLLOWED_RANKS, MadeStep, MadeSteps
from tocsin.pipeline.incidents.ettr.starts import StartAccount
from tocsin.pipeline.incidents.ettr.timeline import AttemptTimeline, Claim
from tocsin.pipeline.job.facts import ended_before_ns
from tocsin.pipeline.stores.attempt_times import TimePart
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey, StepBatch, StepRecord, Topology
from tocsin.schemas.startup import Edge
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState
from tocsin.schemas.wire.event_payloads import number

_STANDSTILLS: Final = frozenset({FaultKind.FAIL_STOP, FaultKind.HANG})
"""Faults that keep a job from making steps. The others cost time inside of steps."""
_MOST_FAULTS: Final = 64
_MOST_OPEN_PHASES: Final = 4 * MAX_FOLLOWED_RANKS
_ENDS: Final = frozenset({events.EXIT, events.BYE, events.PROCESS_GONE})
_SIGNS_OF_START: Final = frozenset({events.HELLO, events.STAGE})


@dataclass(slots=True)
class _Fault:
    """Times of one verdict about a standstill, as it was told, 0 = not yet."""

    onset_ns: int
    opened_ns: int
    confirmed_ns: int = 0
    is_cancelled: bool = False


@dataclass(slots=True)
class _Process:
    """What is known of one rank's process: its end (0 = it runs), whether in order, since when it is stopped, id."""

    ended_ns: int = 0
    is_in_order: bool = False
    stopped_ns: int = 0
    pid: int = 0


class AttemptAccount:
    """Measures one attempt; it is fed with the attempt's slices and verdicts.

    Attributes:
        timeline: the measured spans.
        starts: the stages of its starts, and their GPU time.
        last_sign_ns: when anything of it was heard last.
        steps_count: steps that were made for the first time.
        recomputed_steps_count: steps that were made again.
        last_step: number of the newest step, -1 = none.
    """

    def __init__(self, begin_ns: int) -> None:
        """Start an account.

        Args:
            begin_ns: the attempt's first sign.
        """
        self.timeline = AttemptTimeline(begin_ns)
        self.starts = StartAccount()
        self.last_sign_ns = begin_ns
        self.steps_count = 0
        self.recomputed_steps_count = 0
        self.last_step = -1
        self._steps = MadeSteps()
        self._processes: dict[int, _Process] = {}
        self._phases: dict[tuple[int, str], int] = {}
        self._faults: dict[str, _Fault] = {}
        self._stalls: dict[int, tuple[int, int]] = {}
        """Rank -> number and begin of a step that was overdue and not made so far."""
        self._starting_ns = 0
        """First hello or stage since the newest step, 0 = none."""
        self._stopped_ns = 0
        """Since when most processes are stopped, 0 = they are not."""
        self._decided_ns = 0
        """When the first action since the newest step was decided, 0 = none."""
        self._decided_name = ""

    @property
    def begin_ns(self) -> int:
        """The attempt's first sign."""
        return self.timeline.begin_ns

    def take_event(self, event: Event) -> None:
        """Learn from an event of the attempt."""
        if event.name in _SIGNS_OF_START:
            begins_ns = [mark.ts_ns for mark in marks_of(event) if mark.edge is Edge.BEGIN]
            if begins_ns or (event.name == events.HELLO and not self._is_greeting_again(event)):
                self._take_start(event, min(begins_ns, default=event.ts_ns))
            self.starts.take_event(event)
        elif event.name == events.PHASE:
            self._take_phase(event)
        elif event.rank >= 0 and event.name in _ENDS:
            self._take_end(event)
        elif event.rank >= 0 and event.name == events.STOPPED:
            self._take_stop(event)
        elif event.rank >= 0 and event.name == events.STALL:
            self._take_stall(event)

    def take_places(self, topology: Topology) -> None:
        """Learn which ranks there are."""
        self.starts.take_places(topology)
        for place in topology.places:
            self._process(place.rank)

    def take_steps(self, batches: Sequence[StepBatch], made_before: int) -> int:
        """Take the steps of all hosts in one slice; return the newest step number that the job ever made.

        Args:
            batches: the steps.
            made_before: newest step number that the job made so far, -1 = none.
        """
        rows: list[StepRecord] = [row for batch in batches for row in batch.rows]
        for row in rows:
            process = self._processes.get(row.rank) or self._process(row.rank)
            if process is not None and process.ended_ns and row.ts_ns > process.ended_ns:
                process.ended_ns = 0  # it makes steps again
        ended_ns = self._steps.newest_end_ns
        for made in self._steps.take(rows):
            self._take_made(batches[0].job, made, ended_ns, is_new=made.step > made_before)
            ended_ns = made.end_ns
            made_before = max(made_before, made.step)
        return made_before

    def _take_made(self, job: JobKey, made: MadeStep, ended_ns: int, *, is_new: bool) -> None:
        """Count one step of the job, and end the start-up before it; ``ended_ns``: end of the step before."""
        self._end_stalls(made)
        if self._starting_ns and self._starting_ns < made.end_ns:
            began_ns = max(self._starting_ns, self.timeline.settled_ns, ended_ns)
            self.timeline.claim(TimePart.START_UP, began_ns, made.begin_ns)
            self.starts.train(job, began_ns, made.begin_ns)
            self._starting_ns = 0
        part = TimePart.PRODUCTIVE if is_new else TimePart.RECOMPUTED
        self.timeline.add_step(part, max(made.begin_ns, ended_ns), made.end_ns)
        self.steps_count += is_new
        self.recomputed_steps_count += not is_new
        self.last_step = made.step
        if self._decided_ns and self._decided_ns < made.begin_ns:
            self._decided_ns = 0

    def _take_start(self, event: Event, ts_ns: int) -> None:
        """Note that a process of the attempt starts at a time; it ends the time without processes before it."""
        is_late = event.name == events.STAGE and ts_ns <= self._steps.newest_end_ns
        if not is_late:  # else it is the first step of a process that is slower than most
            self._starting_ns = min(self._starting_ns or ts_ns, ts_ns)
            self.starts.begin(max(self._starting_ns, self.timeline.settled_ns, self._steps.newest_end_ns), event.job)
        self.end_waiting(ts_ns)
        process = self._process(event.rank) if event.rank >= 0 else None
        if process is not None and process.ended_ns <= event.ts_ns:
            process.ended_ns = process.stopped_ns = 0

    def _is_greeting_again(self, event: Event) -> bool:
        """Return whether a hello is of a process that runs already: its agent began anew, and it starts nothing."""
        process, pid = self._process(event.rank) if event.rank >= 0 else None, int(number(event.payload, "pid", 0))
        if process is None or pid <= 0:
            return False
        is_known, process.pid = process.pid == pid and not process.ended_ns, pid
        return is_known

    def end_start(self, until_ns: int, *, is_over: bool, tells_steps: bool) -> None:
        """Note whether a start that has not trained is over: its processes ended, or the attempt did.

        Args:
            until_ns: end of the attempt, or the present.
            is_over: whether the attempt is over.
            tells_steps: whether any attempt of the job told a step.
        """
        if not self._starting_ns:
            return
        if is_over or self.left_ns:
            failed_ns = 0 if self.is_ended_in_order else self.left_ns or self.last_sign_ns
            self.starts.end(until_ns, failed_ns, tells_steps=tells_steps)
        else:
            self.starts.end(0, 0, tells_steps=tells_steps)

    def end_waiting(self, ts_ns: int) -> None:
        """Note that a process starts: the time without processes before it was spent on scheduling."""
        begins_ns = [one for one in (self._decided_ns, self.left_ns) if one]
        if begins_ns:
            self.timeline.claim(TimePart.SCHEDULING, min(begins_ns), ts_ns)
            self._decided_ns = 0

    def take_decided(self, name: str, ts_ns: int) -> None:
        """Note that an action was decided that starts the job again.

        Args:
            name: tells the action from others.
            ts_ns: when it was approved, or its executor began.
        """
        if not self._decided_ns:
            self._decided_name, self._decided_ns = name, ts_ns

    def take_given_up(self, name: str) -> None:
        """Note that a decided action will not be carried out."""
        if name == self._decided_name:
            self._decided_ns = 0

    def _take_phase(self, event: Event) -> None:
        """Learn the begin or end of an announced phase; a step that goes on during it keeps its time."""
        key = (event.rank, str(event.payload.get("phase") or ""))
        if event.payload.get("edge") == "begin":
            if len(self._phases) < _MOST_OPEN_PHASES:
                self._phases.setdefault(key, event.ts_ns)
        elif (begin_ns := self._phases.pop(key, 0)) > 0:
            self.timeline.claim(TimePart.IDLE, begin_ns, event.ts_ns)

    def _take_end(self, event: Event) -> None:
        """Learn the end of a rank's process."""
        process = self._process(event.rank)
        if process is None:
            return
        ts_ns = ended_before_ns(event) or event.ts_ns
        is_known = process.ended_ns > 0
        process.ended_ns = min(process.ended_ns, ts_ns) if is_known else ts_ns
        if event.name == events.EXIT:
            process.is_in_order = not number(event.payload, "code", 0) and not number(event.payload, "signal", 0)
        else:
            process.is_in_order = event.name == events.BYE or (is_known and process.is_in_order)
        self._see_stops(event.ts_ns)
        if self.is_ended_in_order:
            first_ns = min(one.ended_ns for one in self._processes.values())
            self.timeline.claim(TimePart.IDLE, first_ns, self.left_ns)

    def _take_stop(self, event: Event) -> None:
        """Learn that a rank's process was stopped (state T) or goes on."""
        process = self._process(event.rank)
        if process is not None:
            process.stopped_ns = event.ts_ns if event.payload.get("edge") == "begin" else 0
            self._see_stops(event.ts_ns)

    def _take_stall(self, event: Event) -> None:
        """Learn when a rank began a step that is overdue."""
        step = int(number(event.payload, "step", -1))
        if step > self.last_step and self._process(event.rank) is not None:
            elapsed_ns = int(number(event.payload, "elapsed_seconds", 0) * NS_PER_SECOND)
            self._stalls.setdefault(event.rank, (step, event.ts_ns - elapsed_ns))

    def _end_stalls(self, made: MadeStep) -> None:
        """Forget the overdue steps up to one that was made; what a broken off one had cost stays."""
        for part, begin_ns, end_ns in self._broken_off():
            if end_ns <= made.begin_ns:
                self.timeline.claim(part, begin_ns, end_ns)
        self._stalls = {rank: one for rank, one in self._stalls.items() if one[0] > made.step}

    def _broken_off(self) -> list[Claim]:
        """Return the work of a step that a fault broke off: from its begin, as half of the ranks tell, to the onset."""
        if not self._stalls or 2 * len(self._stalls) < len(self._processes):
            return []
        begin_ns = median_low(begin_ns for _, begin_ns in self._stalls.values())
        onsets = [one.onset_ns for one in self._faults.values() if not one.is_cancelled and one.onset_ns > begin_ns]
        return [(TimePart.RECOMPUTED, begin_ns, min(onsets))] if onsets else []

    def _see_stops(self, now_ns: int) -> None:
        """Begin or end the time in which most living processes are stopped."""
        living = [one for one in self._processes.values() if not one.ended_ns]
        are_stopped = 2 * sum(one.stopped_ns > 0 for one in living) > len(living)
        if are_stopped and not self._stopped_ns:
            self._stopped_ns = now_ns
        elif not are_stopped and self._stopped_ns:
            self.timeline.claim(TimePart.IDLE, self._stopped_ns, now_ns)
            self._stopped_ns = 0

    def _process(self, rank: int) -> _Process | None:
        """Return what is known of a rank's process; None: more ranks are followed already than are kept."""
        if rank not in self._processes and len(self._processes) >= MAX_FOLLOWED_RANKS:
            return None
        return self._processes.setdefault(rank, _Process())

    @property
    def left_ns(self) -> int:
        """When the last process ended, 0 = some still run, or nothing is known of them."""
        ends = [one.ended_ns for one in self._processes.values()]
        return max(ends) if ends and all(ends) else 0

    @property
    def is_ended_in_order(self) -> bool:
        """Whether all processes ended in order."""
        return self.left_ns > 0 and all(one.is_in_order for one in self._processes.values())

    def take_verdict(self, verdict: Verdict, told_ns: int) -> None:
        """Learn when a standstill began, was found, and was confirmed; a line that comes again changes nothing.

        Args:
            verdict: the line.
            told_ns: when the engine told it; its slice ended before, by the allowed lateness of records.
        """
        told_ns = max(told_ns, verdict.detected_ns)
        fault = self._faults.get(verdict.verdict_id)
        if fault is None:
            if verdict.fault not in _STANDSTILLS or verdict.update > 0:
                return  # when it opened is not known here
            if len(self._faults) >= _MOST_FAULTS:
                del self._faults[next(iter(self._faults))]
            fault = self._faults[verdict.verdict_id] = _Fault(verdict.onset_ns, told_ns)
        fault.onset_ns = verdict.onset_ns
        fault.opened_ns = min(fault.opened_ns, told_ns)
        if verdict.state is VerdictState.CONFIRMED:
            fault.confirmed_ns = min(fault.confirmed_ns or told_ns, told_ns)
        fault.is_cancelled = verdict.state is VerdictState.CANCELLED or verdict.fault not in _STANDSTILLS

    def _open_claims(self) -> list[Claim]:
        """Return what may still change: faults that were not taken back, broken off steps, a start that never trained.

        A verdict has a detection and a diagnosis. That the job stands is found once: what another verdict told since
        the onset, such as one that a person closed, ends the detection.
        """
        standing = [one for one in self._faults.values() if not one.is_cancelled]
        openings = sorted(one.opened_ns for one in standing)
        found = [
            (TimePart.DETECTION, one.onset_ns, openings[bisect_left(openings, min(one.onset_ns, one.opened_ns))])
            for one in standing
        ]
        found += [(TimePart.DIAGNOSIS, one.opened_ns, one.confirmed_ns) for one in standing if one.confirmed_ns]
        return found + self._broken_off() + self.starts.claims

    def bound(self) -> None:
        """Keep the memory bounded."""
        self.timeline.bound(self._open_claims())
        settled_ns = self.timeline.settled_ns
        self._faults = {
            name: one for name, one in self._faults.items() if not one.confirmed_ns or one.confirmed_ns > settled_ns
        }

    def parts(self, until_ns: int) -> Mapping[TimePart, int]:
        """Return part -> nanoseconds from the begin to a time; they sum to at most the wall time."""
        return self.timeline.parts(until_ns, self._open_claims())

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        processes = self._processes
        return {
            "timeline": self.timeline.to_state(),
            "starts": self.starts.to_state(),
            "numbers": [self.last_sign_ns, self.steps_count, self.recomputed_steps_count, self.last_step],
            "since": [self._starting_ns, self._stopped_ns, self._decided_ns],
            "decided": self._decided_name,
            "steps": self._steps.to_state(),
            "processes": [
                [rank, one.ended_ns, one.is_in_order, one.stopped_ns, one.pid] for rank, one in processes.items()
            ],
            "phases": [[rank, phase, begin_ns] for (rank, phase), begin_ns in self._phases.items()],
            "faults": {name: asdict(one) for name, one in self._faults.items()},
            "stalls": [[rank, *one] for rank, one in self._stalls.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AttemptAccount:
        """Return the account that ``to_state`` described."""
        found = cls(0)
        found.timeline = AttemptTimeline.from_state(state["timeline"])
        if "starts" in state:  # absent in states of older engines
            found.starts = StartAccount.from_state(state["starts"])
        found.last_sign_ns, found.steps_count, found.recomputed_steps_count, found.last_step = state["numbers"]
        found._starting_ns, found._stopped_ns, found._decided_ns = state["since"]
        found._decided_name = state.get("decided", "")  # absent in states of older engines
        found._steps = MadeSteps.from_state(state["steps"])
        found._processes = {rank: _Process(*values) for rank, *values in state["processes"]}
        found._phases = {(rank, phase): begin_ns for rank, phase, begin_ns in state["phases"]}
        found._faults = {name: _Fault(**fields) for name, fields in state["faults"].items()}
        found._stalls = {
            rank: (step, begin_ns) for rank, step, begin_ns in state.get("stalls", ())
        }  # absent in older states
        return found

"""Facts on one rank and on one host, from their events and records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.schemas import events
from tocsin.schemas.kinds import Severity
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND, Event, HostStatus
from tocsin.schemas.wire.event_payloads import ENDED_NS, STALL_KEYS, number

UNKNOWN_CLOCK_ERROR_NS = NS_PER_SECOND // 4
"""Bound of a host's clock error until it was measured."""
_LONGEST_AGAIN_NS = 7200 * NS_PER_SECOND
"""Most age of a repeated end; an older one counts as an end of now, since agents repeat for an hour only."""
_KEPT_STOP_EDGES = 32
_MOST_OFFSET_NS = 3600 * NS_PER_SECOND
"""Most offset of a host's clock that can have been measured: with a larger one no record would be in time."""
_FIRST_STEP_NS = 5 * NS_PER_SECOND
"""Least time from a process's end to the first step of its replacement."""


@dataclass(slots=True)
class ExitFact:
    """End of a rank's process."""

    ts_ns: int
    code: int
    signal: int
    stderr_tail: str
    reported: bool
    """Whether a supervisor reported the end; otherwise the process was only seen to be gone."""


@dataclass(slots=True)
class RankFacts:
    """State of one rank, as its records tell it."""

    host: str
    first_seen_ns: int
    last_step: int = -1
    last_step_ns: int = 0
    number_steps: list[int] = field(default_factory=lambda: [-1, -1])
    """Newest step with a finite loss, and newest step with a finite gradient norm; -1 = none."""
    bye_ns: int = 0
    exit: ExitFact | None = None
    stopped_since_ns: int = 0
    stopped_ratio: float = 0.0
    """Share of time that the process was stopped, 0 to 1, as its agent last said."""
    stop_edges_ns: list[int] = field(default_factory=list)
    stall: dict[str, Any] | None = None
    stall_ns: int = 0
    belied_count: int = 0
    """Number of times that the rank was said to have died although it began its next step at once."""

    def begin_anew(self, ts_ns: int) -> None:
        """Forget an earlier end, as a process of the rank ran at this time."""
        if self.exit is not None and self.exit.ts_ns <= ts_ns:
            self.exit = None
        if self.bye_ns <= ts_ns:
            self.bye_ns = 0

    def forget_standstill(self) -> None:
        """Forget that the rank's process was stopped or stalled."""
        self.stopped_since_ns, self.stopped_ratio, self.stall = 0, 0.0, None

    def see_step_begin(self, begin_ns: int) -> None:
        """Forget an earlier end, as a step began; count it where the end was refuted at once."""
        left = self.exit
        if left is not None and (left.code or left.signal) and 0 <= begin_ns - left.ts_ns < _FIRST_STEP_NS:
            self.belied_count += 1
        self.begin_anew(begin_ns)

    def take_event(self, event: Event) -> None:
        """Learn from an event of the rank: its end, its goodbye, a stopped process or a stall."""
        if event.name == events.EXIT:
            self.exit = _merged_exit(self.exit, exit_of(event))
            self.stopped_since_ns = 0
        elif event.name == events.PROCESS_GONE and self.exit is None and self.bye_ns == 0:
            self.exit = ExitFact(event.ts_ns, -1, 0, "", reported=False)
            self.stopped_since_ns = 0
        elif event.name == events.BYE:
            self.bye_ns = event.ts_ns
        elif event.name == events.STOPPED:
            self._take_stopped(event)
        elif event.name == events.STALL:
            reported = {key: event.payload[key] for key in STALL_KEYS if key in event.payload}
            self.stall = None if reported.get("edge") == "end" else reported
            self.stall_ns = event.ts_ns

    def _take_stopped(self, event: Event) -> None:
        """Learn that the rank's process was stopped or goes on."""
        self.stop_edges_ns.append(event.ts_ns)
        self.stopped_ratio = max(0.0, min(1.0, number(event.payload, "stopped_ratio", 0.0)))
        del self.stop_edges_ns[:-_KEPT_STOP_EDGES]
        if event.payload.get("edge") == "begin":
            self.stopped_since_ns = self.stopped_since_ns or event.ts_ns
        else:
            self.stopped_since_ns = 0


@dataclass(slots=True)
class HostFacts:
    """State of one host, as its records tell it."""

    first_seen_ns: int
    last_seen_ns: int
    clock_offset_ns: int = 0
    clock_error_ns: int = UNKNOWN_CLOCK_ERROR_NS
    hook_present: bool = False
    agent_stopped_ns: int = 0
    report_interval_ns: int = 0
    """Time between the host's regular reports; 0 = it has none, so that its silence proves nothing."""
    unheard_until_ns: int = 0
    """Time until which the engine was away and could not hear the host."""

    def take_status(self, status: HostStatus) -> None:
        """Learn from the host's status: its clock, its hook, and that it reports each metric slice."""
        self.report_interval_ns = self.report_interval_ns or METRIC_SLICE_NS
        is_likely = abs(status.clock_offset_ns) <= _MOST_OFFSET_NS
        self.clock_offset_ns = status.clock_offset_ns if is_likely else 0
        self.clock_error_ns = min(status.clock_error_ns, _MOST_OFFSET_NS)
        self.hook_present = status.hook_present

    def take_agent_event(self, event: Event) -> None:
        """Learn that the host's agent started or stopped."""
        edge = event.payload.get("edge")
        if edge in ("stop", "start"):
            self.agent_stopped_ns = event.ts_ns if edge == "stop" else 0


def _merged_exit(known: ExitFact | None, reported: ExitFact) -> ExitFact:
    """Return what is known of a process's end after an exit event; the same end told again keeps its first time."""
    if known is None or not known.reported or (known.code, known.signal) != (reported.code, reported.signal):
        return reported
    return replace(
        reported, ts_ns=min(reported.ts_ns, known.ts_ns), stderr_tail=known.stderr_tail or reported.stderr_tail
    )


def ended_before_ns(event: Event) -> int:
    """Return when a rank ended whose end an event repeats, 0 = the event is no repetition.

    Agents repeat ends for an engine that was restarted (``collectors.agent.endings``).
    """
    if event.name not in (events.EXIT, events.PROCESS_GONE, events.BYE):
        return 0
    ended_ns = int(number(event.payload, ENDED_NS, 0))
    return ended_ns if event.rank >= 0 and 0 < event.ts_ns - ended_ns < _LONGEST_AGAIN_NS else 0


def is_unknown_end(facts: RankFacts | None, event: Event) -> bool:
    """Return whether a rank's repeated end is not known yet.

    Args:
        facts: the rank's facts, None = there are none.
        event: the end, stamped with its own time.
    """
    if facts is None:
        return True
    is_known = facts.exit is not None and (facts.exit.reported or event.name != events.EXIT)
    is_known = is_known or (event.name == events.BYE and facts.bye_ns > 0)
    return not is_known and facts.last_step_ns <= event.ts_ns


def exit_of(event: Event) -> ExitFact:
    """Return the end that an exit event tells; without code and signal, its severity tells whether it failed."""
    signal = int(number(event.payload, "signal", 0))
    failed = event.severity in (Severity.ERROR, Severity.FATAL) and not signal
    code = int(number(event.payload, "code", -1 if failed else 0))
    return ExitFact(event.ts_ns, code, signal, str(event.payload.get("stderr_tail") or ""), reported=True)


def left_in_order(facts: RankFacts) -> bool:
    """Return whether a rank exited with code 0, or said goodbye where no exit is known."""
    if facts.exit is not None:
        return facts.exit.code == 0 and facts.exit.signal == 0
    return facts.bye_ns > 0

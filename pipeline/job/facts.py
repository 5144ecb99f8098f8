"""What is known of one rank and of one host, from their events and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tocsin.schemas import events
from tocsin.schemas.kinds import Severity
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.wire.event_payloads import ENDED_NS, number

UNKNOWN_CLOCK_ERROR_NS = NS_PER_SECOND // 4
"""Assumed clock error of a host that has not reported its own."""
_LONGEST_AGAIN_NS = 7200 * NS_PER_SECOND
"""Maximum age of a repeated end. Agents repeat an end for an hour.

An older one is treated as an end that happened now.
"""


@dataclass(slots=True)
class ExitFact:
    """How a rank's process ended."""

    ts_ns: int
    code: int
    signal: int
    stderr_tail: str
    reported: bool
    """Whether the exit was reported with a status; False: the process was only found missing."""


@dataclass(slots=True)
class RankFacts:
    """What is known of one rank."""

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
    """Fraction of time for which the process was stopped, as its agent last reported."""
    stop_edges_ns: list[int] = field(default_factory=list)
    stall: dict[str, Any] | None = None
    stall_ns: int = 0
    belied_count: int = 0
    """How often an end of the rank was reported although it then continued with its next step."""

    def begin_anew(self, ts_ns: int) -> None:
        """Forget an exit or good-bye at or before ``ts_ns``, because a process of the rank ran at that time."""
        if self.exit is not None and self.exit.ts_ns <= ts_ns:
            self.exit = None
        if self.bye_ns <= ts_ns:
            self.bye_ns = 0


@dataclass(slots=True)
class HostFacts:
    """What is known of one host."""

    first_seen_ns: int
    last_seen_ns: int
    clock_offset_ns: int = 0
    clock_error_ns: int = UNKNOWN_CLOCK_ERROR_NS
    hook_present: bool = False
    agent_stopped_ns: int = 0
    report_interval_ns: int = 0
    """Interval of the host's regular reports; 0: it only reports events, so its silence means nothing."""
    unheard_until_ns: int = 0
    """End of the time in which the engine did not listen to this host (the engine was down)."""


def ended_before_ns(event: Event) -> int:
    """Return when the rank ended, for an event that repeats an earlier end; 0: the event is not a repetition.

    Agents repeat ends for engines that were restarted (``collectors.endings``).
    """
    if event.name not in (events.EXIT, events.PROCESS_GONE, events.BYE):
        return 0
    ended_ns = int(number(event.payload, ENDED_NS, 0))
    return ended_ns if event.rank >= 0 and 0 < event.ts_ns - ended_ns < _LONGEST_AGAIN_NS else 0


def is_unknown_end(facts: RankFacts | None, event: Event) -> bool:
    """Return whether a repeated end of a rank is new information.

    Args:
        facts: what is known of the rank, None = nothing.
        event: the end, stamped with its original time.
    """
    if facts is None:
        return True
    is_known = facts.exit is not None and (facts.exit.reported or event.name != events.EXIT)
    is_known = is_known or (event.name == events.BYE and facts.bye_ns > 0)
    return not is_known and facts.last_step_ns <= event.ts_ns


def exit_of(event: Event) -> ExitFact:
    """Return how a rank ended according to an exit event.

    Without a code, the event's severity gives success or failure.
    """
    signal = int(number(event.payload, "signal", 0))
    failed = event.severity in (Severity.ERROR, Severity.FATAL) and not signal
    code = int(number(event.payload, "code", -1 if failed else 0))
    return ExitFact(event.ts_ns, code, signal, str(event.payload.get("stderr_tail") or ""), reported=True)


def left_in_order(facts: RankFacts) -> bool:
    """Return whether the rank ended well: exit code 0, or a good-bye without a known exit."""
    if facts.exit is not None:
        return facts.exit.code == 0 and facts.exit.signal == 0
    return facts.bye_ns > 0

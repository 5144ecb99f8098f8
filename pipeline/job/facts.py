"""Facts of one rank and of one host, as events and records state them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tocsin.schemas import events
from tocsin.schemas.kinds import Severity
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.wire.event_payloads import ENDED_NS, number

UNKNOWN_CLOCK_ERROR_NS = NS_PER_SECOND // 4
_LONGEST_AGAIN_NS = 7200 * NS_PER_SECOND
"""Agents repeat an end for an hour; one that claims to be much older counts as an end now."""


@dataclass(slots=True)
class ExitFact:
    """How a rank's process ended."""

    ts_ns: int
    code: int
    signal: int
    stderr_tail: str
    reported: bool
    """False: nobody waited for the process, it was only seen to be gone."""


@dataclass(slots=True)
class RankFacts:
    """What became of one rank."""

    host: str
    first_seen_ns: int
    last_step: int = -1
    last_step_ns: int = 0
    number_steps: list[int] = field(default_factory=lambda: [-1, -1])
    """Newest steps with a finite loss, and with a finite gradient norm."""
    bye_ns: int = 0
    exit: ExitFact | None = None
    stopped_since_ns: int = 0
    stopped_ratio: float = 0.0
    """Share of time that the process was stopped, as its agent last said."""
    stop_edges_ns: list[int] = field(default_factory=list)
    stall: dict[str, Any] | None = None
    stall_ns: int = 0
    belied_count: int = 0
    """How often it was said to have died, and made its next step as ever."""

    def begin_anew(self, ts_ns: int) -> None:
        """A process ran at this time: what an earlier one's end left behind is over."""
        if self.exit is not None and self.exit.ts_ns <= ts_ns:
            self.exit = None
        if self.bye_ns <= ts_ns:
            self.bye_ns = 0


@dataclass(slots=True)
class HostFacts:
    """What became of one host."""

    first_seen_ns: int
    last_seen_ns: int
    clock_offset_ns: int = 0
    clock_error_ns: int = UNKNOWN_CLOCK_ERROR_NS
    hook_present: bool = False
    agent_stopped_ns: int = 0
    report_interval_ns: int = 0
    """How often it reports by itself, 0: only when something happens (its silence means nothing)."""
    unheard_until_ns: int = 0
    """Until then nobody listened: the engine was away, and has not heard this host since."""


def ended_before_ns(event: Event) -> int:
    """When a rank ended of which an event says again that it did; 0: the event is no repetition.

    Agents repeat what ended for an engine that was restarted (``collectors.endings``).
    """
    if event.name not in (events.EXIT, events.PROCESS_GONE, events.BYE):
        return 0
    ended_ns = int(number(event.payload, ENDED_NS, 0))
    return ended_ns if event.rank >= 0 and 0 < event.ts_ns - ended_ns < _LONGEST_AGAIN_NS else 0


def is_unknown_end(facts: RankFacts | None, event: Event) -> bool:
    """Whether a rank's end that is said again, stamped with its own time, is news.

    Args:
        facts: what is known of the rank, None = nothing.
        event: the end.
    """
    if facts is None:
        return True
    is_known = facts.exit is not None and (facts.exit.reported or event.name != events.EXIT)
    is_known = is_known or (event.name == events.BYE and facts.bye_ns > 0)
    return not is_known and facts.last_step_ns <= event.ts_ns


def exit_of(event: Event) -> ExitFact:
    """What an exit event says; one that does not say how it ended tells it by its severity."""
    signal = int(number(event.payload, "signal", 0))
    failed = event.severity in (Severity.ERROR, Severity.FATAL) and not signal
    code = int(number(event.payload, "code", -1 if failed else 0))
    return ExitFact(event.ts_ns, code, signal, str(event.payload.get("stderr_tail") or ""), reported=True)


def left_in_order(facts: RankFacts) -> bool:
    """Whether it said good-bye, or ended well."""
    if facts.exit is not None:
        return facts.exit.code == 0 and facts.exit.signal == 0
    return facts.bye_ns > 0

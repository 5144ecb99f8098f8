"""Hardware fact: one hardware event that is relevant to a machine's health, and helpers to interpret it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.schemas.events import IB_PORT
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import Evidence
from tocsin.schemas.wire.event_payloads import number

WEAK_CAUSES = frozenset({"unknown", "process_exit", "process_frozen", "machine_unreachable", "cpu_contention"})
"""Causes that describe a symptom; a hardware event on the same machine may explain them."""


@dataclass(frozen=True, slots=True)
class HardwareFact:
    """Hardware event that is relevant to root-cause analysis.

    Attributes:
        ts_ns: time of the event.
        host: machine that reported it.
        name: event name.
        cause: cause that it suggests.
        fault: class of fault that it suggests.
        accuses: whether it accuses the machine by itself.
        text: sentence for the evidence.
        rank: rank that it is about; -1 if none.
        part: name of the affected part; "" if there is one only, or it is unknown.
        best_gbits_per_second: highest rate at which a port was seen; 0.0 if unknown.
        down_ns: for a port that is up again: when it went down; 0 if it was not down.
        flaps_since_ns: for such a port: when it first went down in this series; else 0.
        lost_ns: for such a port: total time down in this series; else 0.
    """

    ts_ns: int
    host: str
    name: str
    cause: str
    fault: str
    accuses: bool
    text: str
    rank: int = -1
    part: str = ""
    best_gbits_per_second: float = 0.0
    down_ns: int = 0
    flaps_since_ns: int = 0
    lost_ns: int = 0
    is_of_driver: bool = False
    """Whether the driver or the kernel reported it, rather than some program."""

    def evidence(self) -> Evidence:
        """Return the fact as evidence for a verdict; score 2.0 if it accuses, else 1.0."""
        score = 2.0 if self.accuses else 1.0
        return Evidence("hardware", self.name, score, self.ts_ns, self.ts_ns, f"{self.host}: {self.text}")


def is_usual(fact: HardwareFact, facts: Sequence[HardwareFact], before_ns: int) -> bool:
    """Return whether the machine reported the same before that time and the job went on.

    An old GPU, for example, corrects memory errors every few minutes.
    """
    return any(other.name == fact.name and other.cause == fact.cause and other.ts_ns < before_ns for other in facts)


def outage_of(event: Event, of_port: Sequence[HardwareFact], keep_ns: int) -> tuple[int, int, int]:
    """Return when a recovered port went down, when it first did so in this series, and its total time down.

    All three are in nanoseconds.

    Args:
        event: event of a port that is up.
        of_port: earlier facts about the same port.
        keep_ns: age from which on an earlier outage no longer belongs to the series.

    Returns:
        (0, 0, 0) if the port was not known to be down.
    """
    down_ns = min((fact.ts_ns for fact in of_port if fact.fault == "fail_stop"), default=0)
    if not down_ns:
        return 0, 0, 0
    before = [fact for fact in of_port if fact.lost_ns and fact.ts_ns >= event.ts_ns - keep_ns]
    last = max(before, key=lambda fact: fact.ts_ns, default=None)
    lost_ns = event.ts_ns - down_ns
    return (down_ns, down_ns, lost_ns) if last is None else (down_ns, last.flaps_since_ns, last.lost_ns + lost_ns)


def part_of(event: Event) -> str:
    """Return the port that an InfiniBand event is about; "" for other events or if it names none."""
    port = event.payload.get("port") if event.name == IB_PORT else None
    return port if isinstance(port, str) else ""


def rate_of(event: Event) -> float:
    """Return the rate in gigabits per second that a port event reports; 0.0 if none."""
    rate = number(event.payload, "rate_gbps", 0.0) if event.name == IB_PORT else 0.0
    return rate if math.isfinite(rate) else 0.0


def is_of(fact: HardwareFact, name: str, part: str) -> bool:
    """Return whether a fact has this event name and concerns this part; an unnamed part matches all."""
    return fact.name == name and (not part or fact.part in {"", part})


def slows(fact: HardwareFact) -> bool:
    """Return whether a machine reports that one of its own parts is slow."""
    return fact.accuses and fact.fault == "fail_slow" and fact.cause not in ("", *WEAK_CAUSES)

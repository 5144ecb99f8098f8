"""Facts on machines, each from one hardware event."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.schemas.events import IB_PORT
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, Suspect
from tocsin.schemas.wire.event_payloads import number

WEAK_CAUSES = frozenset({"unknown", "process_exit", "process_frozen", "machine_unreachable", "cpu_contention"})
"""Causes that name a symptom; an event of the same machine can explain them."""


@dataclass(frozen=True, slots=True)
class HardwareFact:
    """Statement of one hardware event on its machine.

    Attributes:
        ts_ns: time of the event.
        host: the machine.
        name: name of the event.
        cause: the cause that the event names; "": none.
        fault: the fault that it means by itself, a value of ``FaultKind``.
        accuses: whether it says by itself that a part is broken or slow.
        text: its meaning as a sentence.
        rank: the rank that it is about; -1: not known.
        part: the part that it is about, such as a port; "": the machine has one, or it is not known.
        best_gbits_per_second: highest rate that a port was seen to run at; 0: not known.
        down_ns: when a port that came back went down; 0: it was not down.
        flaps_since_ns: when a flapping port went down first; 0: it was not down.
        lost_ns: how long a flapping port was down since then.
        is_of_driver: whether a driver or the kernel reported it, and no program.
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

    def evidence(self) -> Evidence:
        """Return the fact as evidence of a verdict."""
        score = 2.0 if self.accuses else 1.0
        return Evidence("hardware", self.name, score, self.ts_ns, self.ts_ns, f"{self.host}: {self.text}")


def is_usual(fact: HardwareFact, facts: Sequence[HardwareFact], before_ns: int) -> bool:
    """Return whether a machine reported the same before a time, as an old GPU corrects errors every few minutes.

    Args:
        fact: the fact.
        facts: all facts of its machine.
        before_ns: the time.
    """
    return any(other.name == fact.name and other.cause == fact.cause and other.ts_ns < before_ns for other in facts)


def outage_of(event: Event, of_port: Sequence[HardwareFact], keep_ns: int) -> tuple[int, int, int]:
    """Return the outages of a port that is up again.

    Args:
        event: the event that says that the port is up.
        of_port: earlier facts of the port.
        keep_ns: outages that ended longer ago are left out.

    Returns:
        When the port went down, when it first went down, and how long it was down in all, ns; 0, 0, 0: it was not down.
    """
    down_ns = min((fact.ts_ns for fact in of_port if fact.fault == "fail_stop"), default=0)
    if not down_ns:
        return 0, 0, 0
    before = [fact for fact in of_port if fact.lost_ns and fact.ts_ns >= event.ts_ns - keep_ns]
    last = max(before, key=lambda fact: fact.ts_ns, default=None)
    lost_ns = event.ts_ns - down_ns
    return (down_ns, down_ns, lost_ns) if last is None else (down_ns, last.flaps_since_ns, last.lost_ns + lost_ns)


def part_of(event: Event) -> str:
    """Return the port that an event is about; "": none is named."""
    port = event.payload.get("port") if event.name == IB_PORT else None
    return port if isinstance(port, str) else ""


def rate_of(event: Event) -> float:
    """Return the rate that an event says its port runs at, gigabits per second; 0: it names none."""
    rate = number(event.payload, "rate_gbps", 0.0) if event.name == IB_PORT else 0.0
    return rate if math.isfinite(rate) else 0.0


def is_of(fact: HardwareFact, name: str, part: str) -> bool:
    """Return whether a fact is about an event's part; an event without a part is about all parts."""
    return fact.name == name and (not part or fact.part in {"", part})


def slows(fact: HardwareFact) -> bool:
    """Return whether a fact reports a slow part of its machine."""
    return fact.accuses and fact.fault == "fail_slow" and fact.cause not in ("", *WEAK_CAUSES)


def host_suspects(hosts: Iterable[str]) -> tuple[Suspect, ...]:
    """Return hosts as suspects, by name."""
    return tuple(Suspect(Component(ComponentKind.HOST, host)) for host in sorted(hosts))

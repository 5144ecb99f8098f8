"""One hardware event that says something of its machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.schemas.events import IB_PORT
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, Suspect
from tocsin.schemas.wire.event_payloads import number

WEAK_CAUSES = frozenset({"unknown", "process_exit", "process_frozen", "machine_unreachable", "cpu_contention"})
"""Causes that say what was seen, not why: an event on the same machine explains them."""


@dataclass(frozen=True, slots=True)
class HardwareFact:
    """One event that says something.

    ``part``: which of several on a machine, "" = it has one, or nobody says. ``best_gbits_per_second``: of a port, the
    most that it was seen to run at, 0 = nobody says. Of one that came back: ``down_ns`` when it had gone down,
    ``flaps_since_ns`` when it did so first, and ``lost_ns`` for how long it was down since then; 0: it had not.
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
    """Whether the driver or the kernel said so: no program's own word."""

    def evidence(self) -> Evidence:
        """For a verdict."""
        score = 2.0 if self.accuses else 1.0
        return Evidence("hardware", self.name, score, self.ts_ns, self.ts_ns, f"{self.host}: {self.text}")


def is_usual(fact: HardwareFact, facts: Sequence[HardwareFact], before_ns: int) -> bool:
    """Whether the machine said the same before, and the job went on: an old card corrects errors every few minutes."""
    return any(other.name == fact.name and other.cause == fact.cause and other.ts_ns < before_ns for other in facts)


def outage_of(event: Event, of_port: Sequence[HardwareFact], keep_ns: int) -> tuple[int, int, int]:
    """Of a port that is up: when it went down, when it did so first in a row of such times, and for how long in all."""
    down_ns = min((fact.ts_ns for fact in of_port if fact.fault == "fail_stop"), default=0)
    if not down_ns:
        return 0, 0, 0
    before = [fact for fact in of_port if fact.lost_ns and fact.ts_ns >= event.ts_ns - keep_ns]
    last = max(before, key=lambda fact: fact.ts_ns, default=None)
    lost_ns = event.ts_ns - down_ns
    return (down_ns, down_ns, lost_ns) if last is None else (down_ns, last.flaps_since_ns, last.lost_ns + lost_ns)


def part_of(event: Event) -> str:
    """Which of a machine's ports an event is about."""
    port = event.payload.get("port") if event.name == IB_PORT else None
    return port if isinstance(port, str) else ""


def rate_of(event: Event) -> float:
    """The rate that an event says its port runs at, gigabits per second; 0: it says none."""
    rate = number(event.payload, "rate_gbps", 0.0) if event.name == IB_PORT else 0.0
    return rate if math.isfinite(rate) else 0.0


def is_of(fact: HardwareFact, name: str, part: str) -> bool:
    """Whether a fact is about the same part; of one that nobody names, all are."""
    return fact.name == name and (not part or fact.part in {"", part})


def slows(fact: HardwareFact) -> bool:
    """Whether a machine says of itself that a part of it is slow."""
    return fact.accuses and fact.fault == "fail_slow" and fact.cause not in ("", *WEAK_CAUSES)


def host_suspects(hosts: Iterable[str]) -> tuple[Suspect, ...]:
    """Return hosts as suspects, by name."""
    return tuple(Suspect(Component(ComponentKind.HOST, host)) for host in sorted(hosts))

"""A flood of verdict updates with a few real incidents at random places, and how long their pages take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.notice import DeliveryResult, Notice, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.routes import Route, RouteConfig
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.pipeline.runtime.embedded.alert_follower import AlertFollower
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState, Witness, WitnessKind

UPDATES_COUNT = 5
REAL_COUNT = 5
_REAL_ID = 10_000_000
_METRICS = ("gpu_util_ratio", "power_watts", "step_seconds", "collective_seconds")


@dataclass(slots=True)
class FloodTimes:
    """What a flood did.

    Attributes:
        page_seconds: per real incident, from its confirming line until its receiver had the page, in stream time.
        pages_count: pages and summaries that the receiver got.
        longest_tick_seconds: longest work of one second, wall time.
        wall_seconds: work of all seconds.
        standing_count: told incidents that were followed at the end.
    """

    page_seconds: dict[str, float] = field(default_factory=dict)
    pages_count: int = 0
    longest_tick_seconds: float = 0.0
    wall_seconds: float = 0.0
    standing_count: int = 0


class BusyClock:
    """Stream time that goes on while one works."""

    def __init__(self) -> None:
        self._second = 0.0
        self._begin_seconds = time.perf_counter()

    def begin(self, second: float) -> None:
        """Begin the work of a second, as late as that of the one before ended."""
        self._second = max(self._second, second)
        self._begin_seconds = time.perf_counter()

    def end(self) -> float:
        """End it; return how long it took."""
        took_seconds = time.perf_counter() - self._begin_seconds
        self._second += took_seconds
        return took_seconds

    def now_ns(self) -> int:
        """The present time while one works."""
        return at(self._second + time.perf_counter() - self._begin_seconds)


class TimedAdapter(FakeAdapter):
    """Notes when each incident was told first; it takes one notice a call, as PagerDuty does."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        super().__init__(max_batch_count=1)
        self.clock_ns = clock_ns
        self.first_ns: dict[str, int] = {}

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        for one in notices:
            self.first_ns.setdefault(one.verdict.verdict_id, self.clock_ns())
        return super().send(notices, now_ns)


def flood(verdict_count: int, seconds: int, seed: int) -> tuple[list[list[Verdict]], dict[str, int]]:
    """Return the lines of each second, and real incident -> second of its confirming line.

    Each of the many is a slow machine that nobody else saw. Each real one is another fault, seen by two others.
    """
    draw = random.Random(seed)
    lines: list[list[Verdict]] = [[] for _ in range(seconds)]
    for number in range(verdict_count):
        moments = sorted(draw.randrange(seconds) for _ in range(UPDATES_COUNT))
        fields = {"fault": FaultKind.FAIL_SLOW, "cause": "unknown", "metric": draw.choice(_METRICS)}
        for update, second in enumerate(moments):
            state = VerdictState.CONFIRMED if update else VerdictState.OPEN
            one = verdict(number, second + update / 100, host=f"n{number}", state=state, update=update, **fields)
            lines[second].append(replace(one, confidence=draw.uniform(0.5, 1.0)))
    witnesses = (Witness("w1", WitnessKind.PEERS_WAIT), Witness("w2", WitnessKind.PEERS_WAIT))
    real: dict[str, int] = {}
    for number in range(_REAL_ID, _REAL_ID + REAL_COUNT):
        second = draw.randrange(seconds - 2)
        opened = verdict(
            number, second + draw.random() / 100, host=f"r{number}", state=VerdictState.OPEN, cause="gpu_card_drop"
        )
        lines[second].append(opened)
        confirmed = verdict(
            number,
            second + 2 + draw.random() / 100,
            host=f"r{number}",
            update=1,
            cause="gpu_card_drop",
            witnesses=witnesses,
        )
        lines[second + 2].append(confirmed)
        real[confirmed.verdict_id] = second + 2
    for one_second in lines:
        draw.shuffle(one_second)
        one_second.sort(key=lambda one: one.detected_ns)  # updates of one verdict stay in order
    return lines, real


def run_flood(folder: Path, verdict_count: int, seconds: int, seed: int = 1) -> FloodTimes:
    """Give a flood to router, queue and sender; stream time goes on while they work, as it does live."""
    lines, real = flood(verdict_count, seconds, seed)
    found, clock = FloodTimes(), BusyClock()
    adapter = TimedAdapter(clock.now_ns)
    routes = RouteConfig({}, (Route("all", "pager"),))
    queue = AlertQueue(folder / "alerts.db", at(0))
    alerts = AlertFollower(routes, {"pager": adapter}, queue, clock_ns=clock.now_ns, has_threads=False)
    for second, one_second in enumerate(lines):
        clock.begin(second)
        alerts.on_verdicts(one_second, at(second))
        alerts.sender.run_once(clock.now_ns())
        took_seconds = clock.end()
        found.wall_seconds += took_seconds
        found.longest_tick_seconds = max(found.longest_tick_seconds, took_seconds)
    found.page_seconds = {
        name: (adapter.first_ns[name] - at(second)) / NS_PER_SECOND
        for name, second in real.items()
        if name in adapter.first_ns
    }
    found.pages_count = sum(one.kind is NoticeKind.FIRING for one in adapter.sent)
    found.standing_count = int(str(alerts.status()["told_count"]))
    alerts.close()
    return found

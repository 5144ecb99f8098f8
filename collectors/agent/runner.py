"""Supervised execution of collectors, each in a thread of its own, so that a failing or hanging one affects no other.

This is the agent's supervising loop, the one place with a broad ``except``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.collectors.api import Collector, CollectorError, GpuPlace, HostEvent, NothingHere, Reading
from tocsin.schemas.errors import TocsinError
from tocsin.schemas.records import Event, JobKey
from tocsin.schemas.wire.codec import encode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CollectorReport:
    """The outcome of one collector's last call.

    Attributes:
        ok: whether it returned a reading, or reported that its source does not exist.
        seconds: duration of the call; for a hung one, its duration so far.
        reason: "" or a short name: ``nothing_here``, ``hung``, an error's reason or class.
    """

    ok: bool
    seconds: float
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object for ``HostStatus.collectors``."""
        return {"ok": self.ok, "seconds": round(self.seconds, 6), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Supervision:
    """Functions of the agent that the collectors' runners need.

    Attributes:
        stamp_ns: returns the agent's time, Unix nanoseconds.
        mono_ns: returns monotonic nanoseconds.
        deliver: receives (collector's name, tick in Unix nanoseconds, reading); called in the collector's thread, must
            not block.
        deadline_seconds: duration after which a call is reported as hung.
    """

    stamp_ns: Callable[[], int]
    mono_ns: Callable[[], int]
    deliver: Callable[[str, int, Reading], None]
    deadline_seconds: float = 2.0


class CollectorRunner:
    """Calls one collector periodically in a thread of its own.

    A call that does not return is not repeated. If it returns after all, its reading is delivered and calls continue.
    """

    def __init__(self, collector: Collector, supervision: Supervision, delay_ns: int = 0) -> None:
        """Prepare the thread; ``start`` starts it. Calls are made ``delay_ns`` after each tick."""
        self.name = collector.name
        self._delay_ns = delay_ns
        self._collector = collector
        self._supervision = supervision
        self._stopping = False
        self._report = CollectorReport(ok=True, seconds=0.0, reason="not_run_yet")
        self._busy_since_ns = 0
        self._last_logged_reason = ""
        # daemon: a hung collector must not keep the agent from its exit
        self._thread = threading.Thread(target=self._run, name=f"collect-{self.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Make no further call. Neither a running call nor the thread, which ends at its next tick, is waited for."""
        self._stopping = True

    def report(self) -> CollectorReport:
        """Return the outcome of the last call, or that the present one hangs."""
        busy_since_ns = self._busy_since_ns
        if busy_since_ns:
            seconds = (self._supervision.mono_ns() - busy_since_ns) / 1e9
            if seconds > self._supervision.deadline_seconds:
                self._say("hung", f"no answer for {seconds:.1f} s")
                return CollectorReport(ok=False, seconds=seconds, reason="hung")
        return self._report

    def skipped(self) -> dict[str, int]:
        """Return the collector's counts of skipped items since start, by reason."""
        found = getattr(self._collector, "skipped", None)
        return dict(found) if isinstance(found, Mapping) else {}

    def _run(self) -> None:
        """Call the collector at each tick until ``stop``."""
        period_ns = round(self._collector.period_seconds * 1e9)
        tick = 0
        while True:
            now_ns = self._supervision.stamp_ns()
            # The next tick that was not taken yet; a jump of the clock starts the count anew.
            ahead = now_ns // period_ns + 1
            tick = tick + 1 if ahead - 1 <= tick <= ahead else ahead
            # Not an Event with a timeout: waking up from that costs twice as much, ten times a second.
            time.sleep(max(0.0, (tick * period_ns + self._delay_ns - now_ns) / 1e9))
            if self._stopping:
                return
            self.call(tick * period_ns)

    def call(self, tick_ns: int) -> None:
        """Make one call, keep its outcome and deliver its reading."""
        started_ns = self._busy_since_ns = self._supervision.mono_ns()
        reason, ok, reading = "", True, None
        try:
            reading = checked(self._collector.collect(tick_ns))
        except NothingHere as error:
            reason = error.reason
            log.debug("nothing here", extra={"collector": self.name, "error": str(error)})
        except Exception as error:  # noqa: BLE001  # the supervising loop: no collector takes the agent down
            ok, reason = False, error.reason if isinstance(error, TocsinError) else type(error).__name__
            self._say(reason, f"{type(error).__name__}: {error}")
        seconds = (self._supervision.mono_ns() - started_ns) / 1e9
        self._report = CollectorReport(ok, seconds, reason)
        self._busy_since_ns = 0
        if ok:
            self._last_logged_reason = ""
        if reading:
            self._supervision.deliver(self.name, tick_ns, reading)

    def _say(self, reason: str, text: str) -> None:
        """Log a failure unless it has the same reason as the last one."""
        if reason != self._last_logged_reason:
            self._last_logged_reason = reason
            log.error("collector failed", extra={"collector": self.name, "reason": reason, "error": text})


def checked(reading: object) -> Reading:
    """Return a collector's reading with all values checked: plain floats, events that can be encoded.

    Raises:
        TocsinError: the reading is invalid; other exceptions mean the same.
    """
    if not isinstance(reading, Reading):
        raise CollectorError(f"collect() returned {str(reading)[:80]!r} ({type(reading).__name__}): must be a Reading")
    if not reading:
        return reading
    gpus = {_text(uuid): _floats(values) for uuid, values in reading.gpus.items()}
    places = {_text(uuid): _place(place) for uuid, place in reading.places.items()}
    return Reading(_floats(reading.host), gpus, tuple(_sendable(event) for event in reading.events), places)


def _place(place: object) -> GpuPlace:
    """Return the value if it is a ``GpuPlace``; raise ``CollectorError`` otherwise."""
    if not isinstance(place, GpuPlace):
        raise CollectorError(f"a place of type {type(place).__name__}: must be a GpuPlace")
    return place


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    """Return metric name -> float; raise ``CollectorError`` for a name or value of another type."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, str | bytes):
            raise CollectorError(f"{name} = {value[:80]!r}: must be a number")
        found[_text(name)] = float(value)
    return found


def _text(name: object) -> str:
    """Return the value if it is a text; raise ``CollectorError`` otherwise."""
    if not isinstance(name, str):
        raise CollectorError(f"{str(name)[:80]!r} is a name of type {type(name).__name__}: must be a text")
    return name


def _sendable(event: object) -> HostEvent:
    """Return an event after a trial encoding, so that an invalid one counts as its collector's failure."""
    if not isinstance(event, HostEvent):
        raise CollectorError(f"an event of type {type(event).__name__}: must be a HostEvent")
    job = JobKey("cluster", "job") if event.job is None else event.job
    encode(Event(job, "host", 0, event.rank, event.source, event.name, event.severity, event.payload))
    return event

"""One active process of several: it reads topics, writes lines and keeps its state, in one transaction each time.

A ``Seat`` says who is active and holds the state; an ``ActiveWork`` is what the active process does. The state, the
positions in the topics that were read, and the messages that are written become visible together or not at all. So a
process may be killed at any moment: the next one begins from the last transaction, and no message is lost or doubled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.stores.backoff import Backoff, BackoffConfig
from tocsin.schemas.errors import EngineError, SnapshotError, TakenOverError
from tocsin.schemas.formats.prometheus_text import Family, Sample

_LOG = logging.getLogger("tocsin.active")
_STANDS_STILL_SECONDS = 120.0


class Seat(Protocol):
    """The place of which one process at a time has the use; it belongs to one thread."""

    def wait(self, seconds: float) -> bool:
        """Wait at most this long and return whether this process has the seat.

        Raises:
            EngineError: the broker refuses.
        """
        ...

    def take_over(self) -> tuple[dict[str, bytes], dict[str, int]]:
        """Shut out the former holder and go to the places up to which it read.

        Returns:
            The state as named parts, and topic (without prefix) -> number of its partitions.

        Raises:
            EngineError: the broker cannot be reached or refuses, or the seat was lost meanwhile.
        """
        ...

    def poll(self, seconds: float) -> Sequence[Message]:
        """Wait for messages at most this long and return them, each partition's in order.

        Raises:
            TakenOverError: another process has the seat now.
            EngineError: the broker refuses.
        """
        ...

    def commit(self, outputs: Sequence[Output], changes: Mapping[str, bytes | None]) -> None:
        """Write messages, changed parts of the state and the places up to which was read, all or nothing.

        Args:
            outputs: messages.
            changes: name of a part -> its bytes, None = it is gone.

        Raises:
            TakenOverError: another process has the seat now; nothing was written.
            EngineError: it failed; only ``take_over`` can tell whether it was written.
        """
        ...

    def leave(self) -> None:
        """Stop reading and writing, but stay a candidate for the seat."""
        ...


class ActiveWork(Protocol):
    """What the active process does. All but ``status`` and ``families`` is called by one thread.

    Attributes:
        inputs: topic (without prefix) -> how many seconds back the very first start begins, None = at the beginning.
    """

    inputs: Mapping[str, float | None]

    def begin(self, state: Mapping[str, bytes], partition_counts: Mapping[str, int]) -> None:
        """Start from a state; an empty one is that of the very first start.

        Raises:
            SnapshotError: the state cannot be read.
        """
        ...

    def take(self, messages: Sequence[Message]) -> None:
        """Take what came on the topics; also called where nothing came."""
        ...

    def is_due(self) -> bool:
        """Return whether something must be committed now."""
        ...

    def changes(self) -> dict[str, bytes | None]:
        """Return the parts of the state that changed since the last call or since ``begin``."""
        ...

    def outputs(self) -> list[Output]:
        """Return the messages to write, each once; called after ``changes``."""
        ...

    def committed(self) -> None:
        """Note that what ``outputs`` and ``changes`` returned last is written."""
        ...

    def finish(self) -> None:
        """End in order what goes on beside the calling thread; a last commit follows."""
        ...

    def end(self) -> None:
        """Stop at once; what was not committed counts as not done."""
        ...

    def families(self) -> list[Family]:
        """Return the metrics."""
        ...


@dataclass(frozen=True, slots=True)
class ActiveConfig:
    """Settings.

    Attributes:
        poll_seconds: longest wait for messages.
        keep_seconds: longest time between two commits while messages come.
        stand_by_seconds: how often a process that is not active looks whether the seat is free.
        backoff: settings of the backoff after errors.
    """

    poll_seconds: float = 0.2
    keep_seconds: float = 30.0
    stand_by_seconds: float = 0.5
    backoff: BackoffConfig = field(default_factory=lambda: BackoffConfig(longest_seconds=5.0))


class ActiveProcess:
    """Waits for the seat, works while it has it, and begins again from the committed state after any failure.

    Attributes:
        is_active: whether this process has the seat and works.
        counters: number of ``takeovers``, ``commits``, ``outputs``, ``messages``, ``taken_over`` and ``failures``.
    """

    def __init__(
        self,
        name: str,
        seat: Seat,
        work: ActiveWork,
        config: ActiveConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect seat and work; ``run`` does the rest.

        Args:
            name: a word for the metrics, e.g. ``controller``.
            seat: who is active.
            work: what the active process does.
            config: settings; None: the defaults.
            clock: monotonic time in seconds.
        """
        self._name = name
        self._seat = seat
        self._work = work
        self._config = config or ActiveConfig()
        self._clock = clock
        self._backoff = Backoff(_LOG, self._config.backoff, clock)
        self._last_work = clock()
        self._said = ""
        self.is_active = False
        self.counters: Counter[str] = Counter()

    def run(self, stop: threading.Event) -> None:
        """Work until stopped; what was read by then is committed at the end."""
        while not stop.is_set():
            try:
                self._last_work = self._clock()
                if self._seat.wait(self._config.stand_by_seconds):
                    self._serve(stop)
            except TakenOverError as error:
                self.counters["taken_over"] += 1
                if str(error) != self._said:
                    self._said = str(error)
                    _LOG.warning("another process is active now", extra={"role": self._name, "error": self._said})
            except (EngineError, SnapshotError) as error:
                self.counters["failures"] += 1
                stop.wait(self._backoff.failed(error))

    def _serve(self, stop: threading.Event) -> None:
        """Work with the seat until stopped.

        Raises:
            EngineError: the seat is lost, or the broker failed.
            SnapshotError: the state cannot be read.
        """
        try:
            state, partition_counts = self._seat.take_over()
            self._work.begin(state, partition_counts)
            self.counters["takeovers"] += 1
            self.is_active, self._said = True, ""
            _LOG.info("active", extra={"role": self._name, "parts": len(state)})
            self._work_on(stop)
        finally:
            self.is_active = False
            self._work.end()
            self._seat.leave()

    def _work_on(self, stop: threading.Event) -> None:
        """Read, work and commit until stopped."""
        kept_seconds, uncommitted = self._clock(), 0
        while True:
            is_last = stop.is_set()
            if is_last:
                self._work.finish()
            messages = () if is_last else self._seat.poll(self._config.poll_seconds)
            self._last_work = self._clock()
            self._work.take(messages)
            self.counters["messages"] += len(messages)
            uncommitted += len(messages)
            is_old = is_last or self._clock() - kept_seconds >= self._config.keep_seconds
            if self._work.is_due() or (uncommitted and is_old):
                changes = self._work.changes()
                outputs = self._work.outputs()
                self._seat.commit(outputs, changes)
                self._work.committed()
                self.counters["commits"] += 1
                self.counters["outputs"] += len(outputs)
                self._backoff.succeeded()
                kept_seconds, uncommitted = self._clock(), 0
            if is_last:
                return

    def health(self) -> tuple[bool, str]:
        """Return whether the process works, with a text, for ``/healthz``; one that stands by is well."""
        idle_seconds = self._clock() - self._last_work
        if idle_seconds > _STANDS_STILL_SECONDS:
            return False, f"stands still for {idle_seconds:.0f} s"
        words = self._backoff.last_error
        return True, f"waits for Kafka: {words}" if words else "active" if self.is_active else "stands by"

    def families(self) -> list[Family]:
        """Return the metrics of this process and of its work."""
        role = {"role": self._name}
        events = tuple(Sample({**role, "event": name}, count) for name, count in sorted(dict(self.counters).items()))
        is_active = Sample(role, self.is_active)
        return [
            Family("tocsin_active", "gauge", "1: this process is the active one of its role.", (is_active,)),
            Family("tocsin_active_events_total", "counter", "What the process did, by event.", events),
            *self._work.families(),
        ]

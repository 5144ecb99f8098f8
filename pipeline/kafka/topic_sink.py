"""The common part of sinks: read batches of a topic, write them, commit the offsets afterwards.

Rows are written first, then dead letters, then offsets are committed, so the process may be killed at any moment.
Uncommitted messages come again and must give the same rows.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tocsin.pipeline.kafka.consumer_api import DeadLetterSink, Message, MessageSource, RefusedMessage
from tocsin.pipeline.stores.backoff import Backoff, BackoffConfig
from tocsin.pipeline.stores.base import Store
from tocsin.schemas.errors import DatabaseNewerError, EngineError, StoreAwayError, StoreError, StoreRefusedError
from tocsin.schemas.formats.prometheus_text import Family, Sample

_LOG = logging.getLogger("tocsin.sink")
REFUSED = (StoreRefusedError, DatabaseNewerError)
"""Errors that end the sink because a person has to act; nothing is lost, as nothing was committed."""
_STANDS_STILL_SECONDS = 300.0  # longer than the database may take for one answer


Check = Callable[[bytes, bytes | None, int], object]
"""Function (value, signature, verdict's time in ns) that raises ``IdentityError`` for a message without valid
signature.
"""


@dataclass(frozen=True, slots=True)
class TopicSinkConfig:
    """Settings of the sink.

    Attributes:
        linger_seconds: how long messages are collected for one insert.
        batch_count: maximum number of messages per insert.
        batch_bytes: size of a batch at which no more messages are added.
        backoff: settings of the backoff while the database is unreachable.
        check: checks a message's value and signature (None = none) at its verdict's time, and raises ``IdentityError``
            for messages of no known engine. None: every writer of the topic is trusted.
        action_check: likewise for messages of the controller of actions.
        ack_check: likewise for messages of executors.
    """

    linger_seconds: float = 0.25
    batch_count: int = 2_000
    batch_bytes: int = 8_000_000
    backoff: BackoffConfig = field(default_factory=BackoffConfig)
    check: Check | None = None
    action_check: Check | None = None
    ack_check: Check | None = None


class TopicSink(ABC):
    """Reads messages from a source and writes them to a store; the subclass says what becomes of a batch.

    Attributes:
        counters: numbers of messages by what became of them.
        dead_letters: numbers of dead letters by reason.
        store_errors: numbers of failed writes by reason.
    """

    metric_prefix = "tocsin_sink"
    """Beginning of the names of this sink's metrics."""

    def __init__(
        self,
        source: MessageSource,
        store: Store,
        dead_letter_sink: DeadLetterSink,
        config: TopicSinkConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect source, store and dead letters; ``run`` does the work."""
        self._source = source
        self._store = store
        self._dead_letter_sink = dead_letter_sink
        self._config = config or TopicSinkConfig()
        self._clock = clock
        self._is_checked = False
        self._backoff = Backoff(_LOG, self._config.backoff, clock)
        self._last_work = clock()
        self.counters: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.store_errors: Counter[str] = Counter()

    def run(self, stop: threading.Event) -> None:
        """Process batches until stopped; an unfinished batch is delivered again later.

        Raises:
            StoreRefusedError: the database refuses this program.
            DatabaseNewerError: a newer tocsin wrote the database.
            EngineError: the source has failed permanently.
        """
        self._persist(self._check, stop, only_away=True)
        while not stop.is_set():
            batch = self._gather(stop)
            self._last_work = self._clock()
            if batch and self._write(batch, stop):
                self._source.commit(batch)
                self.counters["committed"] += len(batch)

    def _check(self) -> None:
        """Migrate the database if that has not been done since the last failure."""
        if not self._is_checked:
            self._store.migrate()
            self._is_checked = True

    def _gather(self, stop: threading.Event) -> list[Message]:
        """Wait for messages, collect more for up to ``linger_seconds``, and return them."""
        batch = list(self._source.poll(0.5))
        until = self._clock() + self._config.linger_seconds
        size_bytes = sum(len(message.value or b"") for message in batch)
        while batch and len(batch) < self._config.batch_count and size_bytes < self._config.batch_bytes:
            left = until - self._clock()
            if left <= 0 or stop.is_set():
                break
            more = self._source.poll(left)
            if not more:
                break
            size_bytes += sum(len(message.value or b"") for message in more)
            batch += more
        return batch

    @abstractmethod
    def _write(self, batch: Sequence[Message], stop: threading.Event) -> bool:
        """Bring a batch into the database and the dead letters; False: told to stop before it was done."""

    def _count_dead_letters(self, refused: Sequence[RefusedMessage]) -> None:
        """Count each, log the first of each reason: a flood of them must not become one of log lines."""
        for reason, count in Counter(dead_letter.reason for dead_letter in refused).items():
            self.dead_letters[reason] += count
            first = next(dead_letter for dead_letter in refused if dead_letter.reason == reason)
            place = {
                "topic": first.message.topic,
                "partition": first.message.partition_index,
                "offset": first.message.offset_count,
            }
            _LOG.warning("dead letters", extra={"reason": reason, "count": count, "detail": first.detail, **place})

    def _persist(self, work: Callable[[], None], stop: threading.Event, *, only_away: bool = False) -> bool:
        """Repeat ``work`` while the database, or the broker for dead letters, is unreachable.

        Args:
            work: what to do; may be started again.
            stop: ends the waiting.
            only_away: raise all other errors, because at the start a person is watching.

        Returns:
            True when it is done, False if stopped before.
        """
        while True:
            try:
                work()
            except REFUSED:
                raise
            except (StoreError, EngineError) as error:
                if only_away and not isinstance(error, StoreAwayError):
                    raise
                self._is_checked = False  # it may come back as another one: empty, or newer
                self.store_errors[error.reason] += 1
                if not self._wait(self._backoff.failed(error), stop):
                    return False
            else:
                self._backoff.succeeded()
                return True

    def _wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait while staying a member of the group; return False if stopped."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0 and not stop.is_set():
            self._source.keep_alive(min(left, 0.5))
            self._last_work = self._clock()
        return not stop.is_set()

    def health(self) -> tuple[bool, str]:
        """Return whether the sink works, with a text, for ``/healthz``.

        An unreachable database does not count as unhealthy.
        """
        idle_seconds = self._clock() - self._last_work
        if idle_seconds > _STANDS_STILL_SECONDS:
            return False, f"stands still for {idle_seconds:.0f} s"
        words = self._backoff.last_error
        return True, f"waits for the database: {words}" if words else "ok"

    def families(self) -> list[Family]:
        """Return the sink's metrics for ``/metrics``."""
        return [
            _counter(
                f"{self.metric_prefix}_messages_total", "Messages by what became of them.", "outcome", self.counters
            ),
            _counter(
                f"{self.metric_prefix}_dead_letters_total", "Dead letters by reason.", "reason", self.dead_letters
            ),
            _counter(
                f"{self.metric_prefix}_failures_total",
                "Writes that failed and are repeated.",
                "reason",
                self.store_errors,
            ),
            Family(
                f"{self.metric_prefix}_waiting",
                "gauge",
                "1: waits for the database.",
                (Sample({}, self._backoff.failure_count > 0),),
            ),
        ]


def _counter(name: str, text: str, label: str, counts: Counter[str]) -> Family:
    """Return a counter metric with one sample per key."""
    return Family(
        name, "counter", text, tuple(Sample({label: key}, value) for key, value in sorted(dict(counts).items()))
    )

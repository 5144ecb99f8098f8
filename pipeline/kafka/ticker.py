"""Live ticks: one record a second in every partition of the input topics and of ``models``.

Ticks advance event time when nothing else does, so that the silence of a whole job is noticed. Two tickers at once are
harmless, because repeated ticks change nothing. Without any ticker, verdicts stop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from kafka.errors import AuthorizationError, KafkaError

from tocsin.pipeline.kafka.client import Writer, input_partitions, producer
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import CLOCK, topic_name
from tocsin.schemas.kafka.words import sentence
from tocsin.schemas.records import NS_PER_SECOND, Tick
from tocsin.schemas.wire.codec import encode

_LOG = logging.getLogger("tocsin.ticker")
BACKOFF_SECONDS: Final = (0.5, 5.0)
"""First and longest wait before a reconnection."""
CLOCK_SECONDS: Final = 30.0
"""Interval at which the broker's time is asked for."""
SETTLE_SECONDS: Final = 2.0
"""Longest wait for the broker's time at the start; after that, ticks follow the own clock."""
LOOK_SECONDS: Final = 10.0
"""Interval at which new partitions are looked for."""
TRUSTED_NS: Final = 250_000_000
"""Clock difference to the broker up to which the own clock is used unchanged."""
_NS_PER_MS: Final = 1_000_000
_NOT_STAMPED_MS: Final = 1
"""Timestamp sent to the clock topic; if it comes back, the broker does not stamp this topic."""


class BrokerClock:
    """The broker's time, from a topic that the broker stamps itself; the own clock until it answers."""

    def __init__(self, prefix: str, now_ns: Callable[[], int]) -> None:
        """Start with the own clock."""
        self._topic = topic_name(CLOCK, prefix)
        self._now_ns = now_ns
        self._asked_ns = 0
        self._is_off = False
        self._answered = threading.Event()
        self.offset_ns = 0
        """Own clock minus the broker's, 0 if they agree well enough."""

    def now_ns(self) -> int:
        """Return the current time by the broker's clock, as far as it is known."""
        return self._now_ns() - self.offset_ns

    def look(self, client: Any) -> None:
        """Ask for the broker's time if it is due; the answer arrives in the client's thread."""
        sent_ns = self._now_ns()
        if self._is_off or abs(sent_ns - self._asked_ns) < CLOCK_SECONDS * NS_PER_SECOND:
            return
        self._asked_ns = sent_ns
        try:
            future = client.send(self._topic, b"", timestamp_ms=_NOT_STAMPED_MS)
        except KafkaError as error:
            self._turn_off(error)  # the topic is missing: asking again would hold the ticks up
            return
        future.add_callback(self._on_answer, sent_ns)
        future.add_errback(self._on_error)

    def settle(self, client: Any) -> None:
        """Ask for the broker's time and wait for the first answer.

        Ticks ahead of the broker's time would make live records late.
        """
        self.look(client)
        if not self._is_off:
            self._answered.wait(SETTLE_SECONDS)

    def _on_error(self, error: Exception) -> None:
        """Stop asking if it is not allowed; called in the client's thread."""
        self._answered.set()
        if isinstance(error, AuthorizationError):
            self._turn_off(error)

    def _turn_off(self, error: Exception) -> None:
        """Stop asking for the broker's time, and log why."""
        self._is_off = True
        _LOG.warning("clock not compared with the broker's", extra={"topic": self._topic, "error": sentence(error)})

    def _on_answer(self, sent_ns: int, answer: Any) -> None:
        """Compute the offset to the broker's time; called in the client's thread."""
        error_ns = (self._now_ns() - sent_ns) // 2
        if answer.timestamp == _NOT_STAMPED_MS or error_ns < 0:
            self._answered.set()
            return  # the topic is not stamped by the broker, or our clock was set back meanwhile
        offset_ns = sent_ns + error_ns - answer.timestamp * _NS_PER_MS
        offset_ns = offset_ns if abs(offset_ns) > TRUSTED_NS + error_ns else 0
        if offset_ns and not self.offset_ns:
            _LOG.warning("ticks follow the broker's clock", extra={"offset_seconds": offset_ns / 1e9})
        self.offset_ns = offset_ns
        self._answered.set()


class Ticker:
    """Sends ticks until stopped, and reconnects when the broker goes away."""

    def __init__(self, settings: KafkaSettings, prefix: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        """Keep the settings; ``run`` connects and sends ticks."""
        self._settings = settings
        self._prefix = prefix
        self._clock = BrokerClock(prefix, now_ns)
        self._stop = threading.Event()
        self.tick_count = 0

    def stop(self) -> None:
        """Make ``run`` end soon; may be called from a signal handler or another thread."""
        self._stop.set()

    def run(self) -> None:
        """Send ticks until ``stop`` is called."""
        backoff, logged = BACKOFF_SECONDS[0], ""
        while not self._stop.is_set():
            before = self.tick_count
            try:
                self._connect_and_tick()
            except EngineError as error:
                if str(error) != logged:
                    logged = str(error)
                    _LOG.warning("no ticks", extra={"error": logged})
            if self.tick_count > before:
                backoff, logged = BACKOFF_SECONDS[0], ""
            self._stop.wait(backoff)
            backoff = min(BACKOFF_SECONDS[1], backoff * 2)

    def _connect_and_tick(self) -> None:
        # Short times: a tick that cannot be sent for ten seconds is of no use any more.
        """Connect and send ticks until stopped or the connection fails."""
        options = {"linger_ms": 0, "compression_type": None, "metadata_max_age_ms": round(LOOK_SECONDS * 1000)}
        timeouts = {"request_timeout_ms": 5_000, "delivery_timeout_ms": 10_000}
        with producer(self._settings, **options, **timeouts) as client:
            writer, known, last_ns = Writer(client), [("", 0)], 0
            input_partitions(client, self._prefix)  # a topic that is missing is told before all else
            self._clock.settle(client)
            while not self._stop.is_set():
                self._clock.look(client)
                now_ns = self._clock.now_ns()
                tick_ns = max(last_ns, now_ns // NS_PER_SECOND * NS_PER_SECOND) + NS_PER_SECOND
                if tick_ns - now_ns > 2 * NS_PER_SECOND:  # our clock was set back: begin anew
                    last_ns = 0
                    continue
                if self._stop.wait((tick_ns - now_ns) / NS_PER_SECOND):
                    return
                partitions = input_partitions(client, self._prefix)
                if partitions != known:
                    known = partitions
                    _LOG.info("ticking", extra={"prefix": self._prefix, "partitions": len(partitions)})
                self._tick(writer, partitions, tick_ns)
                last_ns = tick_ns

    def _tick(self, writer: Writer, partitions: list[tuple[str, int]], tick_ns: int) -> None:
        """Send one tick to every partition."""
        tick = Tick(tick_ns)
        data = encode(tick)
        for topic, number in partitions:
            writer.send(topic, tick, data, number)
        self.tick_count += 1

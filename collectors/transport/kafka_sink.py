"""The sink of a distributed engine: Kafka, in a thread of its own, and the spool while no broker accepts records."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Final

from tocsin.collectors.clock import SteadyClock
from tocsin.collectors.transport.kafka_client import Connector, KafkaSinkConfig
from tocsin.collectors.transport.kafka_session import KafkaSession, Memory
from tocsin.collectors.transport.outbox import Outbox
from tocsin.collectors.transport.sink import Probe, Refused, SinkStatus
from tocsin.collectors.transport.spool import Spool
from tocsin.schemas.errors import TransportError
from tocsin.schemas.metric_groups import split_frame
from tocsin.schemas.records import Frame, JobKey, Record, Topology

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (0.25, 5.0)
_END_SECONDS: Final = 4.0
"""Time for closing beyond the time for sending: ending the client, writing the spool."""
_KNOWN_JOBS: Final = 256


class KafkaSink:
    """Sink that sends records to Kafka, spools them while it cannot, and reconnects.

    See ``tocsin.collectors.transport.sink`` for the guarantees. Records of one topic and job are in their partition in
    the order of ``put``. After a broker fault some may be there twice (readers drop exact duplicates).
    """

    def __init__(self, config: KafkaSinkConfig, spool: Spool, clock: SteadyClock, wake: Callable[[], None]) -> None:
        """Prepare; ``start`` starts the thread. ``wake`` is called when ``poll`` has something.

        Raises:
            ConfigError: a setting or one of its files cannot be used.
        """
        config.check()
        self._config = config
        self._box = Outbox(spool, clock, wake)
        self._memory = Memory()
        self._sizes: dict[JobKey, int] = {}
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Accept a record without blocking; a very large job's frame is split by metric groups."""
        limit = self._config.split_above_size
        if limit and isinstance(record, Topology):
            size = max((place.world_size for place in record.places), default=0)
            self._sizes[record.job] = max(size, self._sizes.pop(record.job, 0))
            while len(self._sizes) > _KNOWN_JOBS:
                del self._sizes[next(iter(self._sizes))]
        if limit and isinstance(record, Frame) and self._sizes.get(record.job, 0) > limit:
            for part in split_frame(record):
                self._box.put(part)
        else:
            self._box.put(record)

    def poll(self) -> list[Refused | Probe]:
        """Return the refusals since the last call."""
        return self._box.poll()

    def status(self) -> SinkStatus:
        """Return the state of the connection to the broker."""
        return self._box.status

    def is_alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def clock_jumped(self) -> None:
        """Forget the clock offset; the next comparison gives a new one."""
        self._box.offsets.clear()

    def close(self, seconds: float) -> None:
        """Send waiting records for at most ``seconds``; the rest stays in the spool."""
        self._box.closing_mono = self._box.mono() + seconds
        self._box.nudge()
        self._thread.join(seconds + _END_SECONDS)

    def _run(self) -> None:
        """Connect again and again with backoff, until closed."""
        box, backoff, last_logged = self._box, BACKOFF_SECONDS[0], ""
        while True:
            acked_count = box.acked_count
            text = self._talk()
            if box.acked_count > acked_count:
                backoff, last_logged = BACKOFF_SECONDS[0], ""
            if text and text != last_logged:
                last_logged = text
                log.warning("broker away", extra={"kafka": ",".join(self._config.settings.servers), "error": text})
            box.publish(connected=False)
            if box.closing_mono is not None:
                break
            self._pause(backoff * random.uniform(0.8, 1.2))
            backoff = min(BACKOFF_SECONDS[1], backoff * 2)
        box.spool_all()
        box.publish(connected=False)
        box.spool.close()

    def _talk(self) -> str:
        """Run one connection; return why it ended, "" if the agent closes."""
        box = self._box
        connector = Connector(self._config, box.nudge)
        while not connector.is_done():
            if box.closing_mono is not None and box.mono() > box.closing_mono:
                connector.give_up()
                return ""
            box.wait(1.0)
            box.spool_all()
            box.publish(connected=False)
        if connector.producer is None:
            return connector.error
        box.connects += 1
        self._memory.set_clock_error(connector.clock_error)
        log.info("broker connected", extra={"spooled": len(box.spool)})
        session = KafkaSession(box, self._config, connector.producer, self._memory)
        try:
            session.run()
        except TransportError as error:
            return str(error)
        finally:
            session.put_back()
        return ""

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; records that arrive meanwhile go to the spool."""
        box = self._box
        until = box.mono() + seconds
        while box.closing_mono is None and box.mono() < until:
            box.spool_all()
            box.publish(connected=False)
            box.wait(until - box.mono())

"""The sink of a distributed engine: Kafka, in a thread of its own, and the spool while no broker accepts records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tocsin.collectors.clock import SteadyClock
from tocsin.collectors.transport.kafka_client import Connector, KafkaSinkConfig
from tocsin.collectors.transport.kafka_session import KafkaSession, Memory
from tocsin.collectors.transport.outbox import Outbox
from tocsin.collectors.transport.spool import Spool
from tocsin.collectors.transport.threaded_sink import ThreadedSink
from tocsin.schemas.errors import TransportError
from tocsin.schemas.metric_groups import split_frame
from tocsin.schemas.records import Frame, JobKey, Record, Topology

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (0.25, 5.0)
_END_SECONDS: Final = 4.0
"""Time for closing beyond the time for sending: ending the client, writing the spool."""
_KNOWN_JOBS: Final = 256


class KafkaSink(ThreadedSink):
    """Connects, sends, spools, connects again. See ``tocsin.collectors.transport.sink`` for the guarantees.

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
        self._memory = Memory()
        self._sizes: dict[JobKey, int] = {}
        away = ("broker away", "kafka", ",".join(config.settings.servers))
        box = Outbox(spool, clock, wake)
        super().__init__(box, log, backoff_seconds=BACKOFF_SECONDS, end_seconds=_END_SECONDS, away=away)

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
                super().put(part)
        else:
            super().put(record)

    def _talk(self) -> tuple[bool, str]:
        acked_count = self._box.acked_count
        text = self._connect_and_send()
        return self._box.acked_count > acked_count, text

    def _connect_and_send(self) -> str:
        """Hold one connection; return why it ended, "" = the agent closes."""
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

"""When the distributed engine has worked off all that it was given, and what it said."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from tocsin.pipeline.kafka.client import consumer
from tocsin.pipeline.runtime.flink.rest import FlinkRest
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import (
    INPUTS,
    REPORTS,
    VERDICTS,
    parse_key,
    topic_name,
)


@dataclass(frozen=True)
class Chain:
    """A job between its topics and its consumer.

    Attributes:
        settings: the brokers.
        prefix: of the topics.
        rest: Flink.
        job_name: of the Flink job.
        group: the Flink job's consumer group; its offsets are those of its newest checkpoint.
    """

    settings: KafkaSettings
    prefix: str
    rest: FlinkRest
    job_name: str
    group: str

    def wait_settled(self, seconds: float) -> bool:
        """Wait until all records are judged and all verdicts are in the table; False: it took longer."""
        until = time.monotonic() + seconds
        return (
            _holds(self._is_read, until)
            # what was read with one checkpoint has moved the watermark before the next begins
            and self._wait_checkpoints(2, until)
            and _holds(self._is_consumed, until)
        )

    def lines(self) -> list[tuple[str, bytes]]:
        """(job, line) of all verdicts on the topic, repeated ones too, as a consumer reads them."""
        topic = topic_name(VERDICTS, self.prefix)
        found: list[tuple[str, bytes]] = []
        with consumer(self.settings, isolation_level="read_committed") as client:
            places = _places(client, topic)
            client.assign(places)
            ends = client.end_offsets(places)
            while any(client.position(place) < ends[place] for place in places):
                for records in client.poll(timeout_ms=200).values():
                    found += [(_job_of(record.key), record.value) for record in records]
        return found

    def _is_read(self) -> bool:
        with consumer(self.settings, group_id=self.group) as client:
            places = [place for name in INPUTS for place in _places(client, topic_name(name, self.prefix))]
            ends = client.end_offsets(places)
            return all((client.committed(place) or 0) >= ends[place] for place in places)

    def _is_consumed(self) -> bool:
        """Whether the rows of all verdicts and reports are written."""
        group = f"{self.prefix}.sink-clickhouse"
        names = [(VERDICTS, group), *((name, f"{group}.reports") for name in REPORTS)]
        return all(self._is_topic_consumed(name, members) for name, members in names)

    def _is_topic_consumed(self, name: str, group: str) -> bool:
        """The last message may be a transaction's end, which nobody commits."""
        topic, last = topic_name(name, self.prefix), dict[Any, int]()
        with consumer(self.settings, isolation_level="read_committed") as client:
            places = _places(client, topic)
            client.assign(places)
            ends = client.end_offsets(places)
            while any(client.position(place) < ends[place] for place in places):
                for place, records in client.poll(timeout_ms=200).items():
                    last[place] = records[-1].offset
        with consumer(self.settings, group_id=group) as client:
            return all((client.committed(place) or 0) > offset for place, offset in last.items())

    def _wait_checkpoints(self, count: int, until: float) -> bool:
        begun: dict[str, int] = {}

        def is_done() -> bool:
            job_id = self.job_id()
            done = self.rest.checkpoints(job_id).done_count
            return done >= begun.setdefault(job_id, done) + count

        return _holds(is_done, until)

    def job_id(self) -> str:
        """Flink's number of the job now.

        Raises:
            EngineError: Flink is away, or has no such job.
        """
        for job in self.rest.jobs():
            if job.name == self.job_name and not job.is_over:
                return job.job_id
        raise EngineError(f"no job {self.job_name}")


def _holds(condition: Callable[[], bool], until: float) -> bool:
    while time.monotonic() < until:
        with contextlib.suppress(EngineError, KafkaError):  # a part is away: it comes back
            if condition():
                return True
        time.sleep(0.3)
    return False


def _places(client: Any, topic: str) -> list[Any]:
    return [TopicPartition(topic, number) for number in sorted(client.partitions_for_topic(topic) or ())]


def _job_of(key: bytes) -> str:
    return parse_key(key)[1]

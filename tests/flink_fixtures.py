"""A real Flink cluster for tests, the job on it, and a player that puts recordings on its topics."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.collectors.peer import wait_until
from tests.kafka_fixtures import need_java
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.flink import Flink
from tocsin.cli.cluster.flink_conf import FlinkConfig
from tocsin.cli.cluster.process import free_port
from tocsin.cli.main import main
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.kafka.topics import (
    MODELS,
    STEPS,
    TICKED,
    VERDICTS,
    headers_of,
    key_of,
    tick_key,
    timestamp_ms,
    topic_name,
    topic_of,
)
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, ModelAnnouncement, Tick
from tocsin.schemas.wire.codec import encode

PARTITIONS = 2
_NS_PER_MS = 1_000_000


@pytest.fixture(scope="session")
def flink_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """The session's Flink. Whoever stops a part of it must start it again."""
    need_java()
    pytest.importorskip("pyflink", reason="no pyflink: pip install '.[flink]'")
    # Flink serves metrics on all interfaces; there is no setting for it.
    first = free_port()
    ports = f"{first}-{min(first + 20, 65535)}"
    flink = Flink(FlinkConfig(tmp_path_factory.mktemp("flink"), slot_count=2, metrics_ports=ports))
    flink.start()
    yield flink
    flink.stop()


@dataclass
class Stream:
    """The topics of one prefix, what is played on them, and what the job says.

    Attributes:
        broker: where the topics are.
        flink: where the job runs.
        prefix: of the topics, and the job's name.
        recording: what is played; None: records are sent by hand.
        announcements: models that are announced meanwhile, each at its own time.
    """

    broker: Broker
    flink: Flink
    prefix: str
    recording: Recording | None
    announcements: Sequence[ModelAnnouncement] = ()
    _producer: Any = field(init=False)
    _tick_ns: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        options = {"acks": "all", "linger_ms": 20, "compression_type": "zstd", "max_request_size": 1 << 30}
        self._producer = KafkaProducer(bootstrap_servers=self.broker.address, **options)
        assert self.tocsin("topics", "apply", f"--partitions={PARTITIONS}", "--keep-hours=0", flink=False) == 0

    def tocsin(self, *arguments: str, flink: bool = True) -> int:
        """Run a command of ``tocsin flink`` with this cluster's flags, or any other one with Kafka's."""
        kafka = [f"--kafka={self.broker.address}", f"--topic-prefix={self.prefix}"]
        if not flink:
            return main([*arguments, *kafka])
        own = [f"--rest={self.flink.url}", f"--name={self.prefix}"]
        return main(["flink", *arguments, *own, *(kafka if arguments[0] in {"submit", "upgrade"} else [])])

    def submit(self, *arguments: str) -> None:
        """Submit the job; it reads the topics from their beginning."""
        flags = ("--start=earliest", "--checkpoint-seconds=1", "--snapshot-seconds=20")
        assert self.tocsin("submit", *flags, *arguments) == 0

    @property
    def job_id(self) -> str:
        """Flink's number of the job that runs now."""
        return next(job.job_id for job in self.flink.rest.jobs() if job.name == self.prefix and not job.is_over)

    @property
    def now_ns(self) -> int:
        """The second that goes on."""
        return self._tick_ns

    def play(self, first: float, last: float, *, shuffle_seed: int | None = None, repeat_count: int = 1) -> None:
        """Send a part of the recording and its ticks, as fast as it goes.

        Args:
            first: where it begins, 0 to 1.
            last: where it ends; the three ticks after the end come with 1.
            shuffle_seed: send each record up to half a second late, in an order drawn with this.
            repeat_count: how often each is sent.
        """
        assert self.recording is not None
        span = self.recording.manifest.end_ns - self.recording.manifest.start_ns
        begin_ns, end_ns = (self.recording.manifest.start_ns + round(span * part) for part in (first, last))
        for arrival_ns, record in self._arrivals(shuffle_seed, repeat_count):
            if begin_ns <= arrival_ns < end_ns or (last == 1 and arrival_ns >= end_ns):
                self._tick_until(arrival_ns)
                self._send(record)
        if last == 1:
            self.tick(3)
        self._producer.flush()

    def tick(self, count: int) -> None:
        """Let seconds pass."""
        self._tick_until(self._tick_ns + count * NS_PER_SECOND)
        self._producer.flush()

    def send_now(self, key: bytes | None, value: bytes, kind: bytes = b"") -> None:
        """Send something to the topic of steps, stamped with the second that goes on."""
        headers = [("kind", kind)] if kind else []
        ts_ms = self._tick_ns // _NS_PER_MS + 500
        self._producer.send(topic_name(STEPS, self.prefix), value, key=key, headers=headers, timestamp_ms=ts_ms)

    def send(self, records: Iterable[JobRecord]) -> None:
        """Send records, each in its own second."""
        for record in records:
            self._tick_until(record.ts_ns)
            self._send(record)

    def send_again(self) -> bytes:
        """Send the recording's first record once more; its bytes."""
        assert self.recording is not None
        first = next(iter(records_of(self.recording)))
        self._send(first)
        return encode(first)

    def _send(self, record: Any) -> None:
        self._producer.send(
            topic_of(record, self.prefix),
            encode(record),
            key=key_of(record),
            headers=headers_of(record),
            timestamp_ms=timestamp_ms(record),
        )

    def wait_verdicts(self, count: int, seconds: float = 90.0) -> list[bytes]:
        """Wait for so many lines; the first of each (id, update), in order."""
        found: dict[tuple[bytes, bytes], bytes] = {}
        for record in self.wait_messages(count, seconds):
            found.setdefault(_identity(record), record.value)
        return list(found.values())

    def wait_messages(self, count: int, seconds: float = 90.0) -> list[Any]:
        """Wait for messages with so many lines; all of them, repeated ones too."""
        return self.read(VERDICTS, lambda records: len({_identity(one) for one in records}) >= count, seconds)

    def read(self, name: str, enough: Any, seconds: float = 60.0, isolation_level: str = "read_committed") -> list[Any]:
        """Read an output topic from its beginning until there is enough."""
        topic = topic_name(name, self.prefix)
        options = {"auto_offset_reset": "earliest", "isolation_level": isolation_level}
        consumer = KafkaConsumer(bootstrap_servers=self.broker.address, **options)
        found: list[Any] = []

        def look() -> object:
            for records in consumer.poll(timeout_ms=100).values():
                found.extend(records)
            return enough(found)

        try:
            consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])
            wait_until(look, seconds)
        finally:
            consumer.close()
        return found

    def metrics(self) -> str:
        """The pages of the Prometheus reporters of the whole cluster."""
        first, _, last = self.flink.config.metrics_ports.partition("-")
        return "\n".join(_page_of(port) for port in range(int(first), int(last) + 1))

    def wait_checkpoints(self, count: int) -> None:
        """Wait for so many more checkpoints."""
        rest = self.flink.rest
        target = rest.checkpoints(self.job_id).done_count + count
        wait_until(lambda: rest.checkpoints(self.job_id).done_count >= target, 60)

    def close(self) -> None:
        """End the job, and free its slots."""
        self._producer.close()
        for job in self.flink.rest.jobs():
            if job.name == self.prefix and not job.is_over:
                self.flink.rest.cancel(job.job_id)

    def _arrivals(self, shuffle_seed: int | None, repeat_count: int) -> list[tuple[int, Any]]:
        order = random.Random(shuffle_seed)
        found: list[tuple[int, Any]] = []
        assert self.recording is not None
        for record in records_of(self.recording):
            for _ in range(repeat_count):
                delay_ns = order.randrange(NS_PER_SECOND // 2) if shuffle_seed is not None else 0
                found.append((record.ts_ns + delay_ns, record))
        found += [(announcement.ts_ns, announcement) for announcement in self.announcements]
        return sorted(found, key=lambda one: one[0])

    def _tick_until(self, now_ns: int) -> None:
        self._tick_ns = self._tick_ns or now_ns // NS_PER_SECOND * NS_PER_SECOND
        while self._tick_ns + NS_PER_SECOND <= now_ns:
            self._tick_ns += NS_PER_SECOND
            value = encode(Tick(self._tick_ns))
            for name in TICKED:
                for number in range(1 if name == MODELS else PARTITIONS):
                    self._producer.send(
                        topic_name(name, self.prefix),
                        value,
                        key=tick_key(topic_name(name, self.prefix)),
                        headers=[("kind", b"tick")],
                        timestamp_ms=self._tick_ns // _NS_PER_MS,
                        partition=number,
                    )


def _page_of(port: int, attempts: int = 5) -> str:
    """One reporter's page; empty where nobody listens, or one who is no reporter.

    JobManager and TaskManagers take some ports of the range, and others of the machine may have some of them.
    """
    for _ in range(attempts):
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                return str(page.read().decode())
        except URLError:
            return ""
        except (HTTPException, OSError):  # a busy reporter hangs up before its answer
            time.sleep(0.5)
    return ""


def _identity(record: Any) -> tuple[bytes, bytes]:
    headers = dict(record.headers)
    return headers["id"], headers["update"]


def case_of(seed: int, host_count: int = 4) -> Recording:
    """A simulated job with a fault."""
    return draw_case(seed, host_count).recording()


def wanted_lines(recording: Recording, *announcements: ModelAnnouncement) -> list[bytes]:
    """What the embedded engine says of it, with models announced meanwhile."""
    return [encode_verdict(verdict) for verdict in replay(recording, ReplayConfig(announcements=announcements))]


@pytest.fixture
def stream(flink_cluster: Flink, kafka_broker: Broker, topic_prefix: str) -> Iterator[Any]:
    """Make the stream of one recording."""
    made: list[Stream] = []
    if not flink_cluster.is_running():  # a test before this one broke it: one failure is enough
        flink_cluster.stop()
        flink_cluster.start()

    def make(recording: Recording | None, *announcements: ModelAnnouncement) -> Stream:
        made.append(Stream(kafka_broker, flink_cluster, topic_prefix, recording, announcements))
        return made[-1]

    yield make
    for one in made:
        one.close()

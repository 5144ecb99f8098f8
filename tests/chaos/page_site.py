"""Topics, a controller, a sender of alerts and a receiver of pages; either process can be killed."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.chaos.page_stories import Story, VerdictStory, seconds_of
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving
from tests.pipeline.kafka.fleet_kit import lines_of
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program
from tocsin.pipeline.alerts.notice import ENDING
from tocsin.pipeline.kafka.topics import WantedTopics, apply
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import EVENTS, VERDICTS, job_key, key_of, timestamp_ms, topic_name
from tocsin.schemas.records import Tick
from tocsin.schemas.wire.codec import encode

ROLES: Final = ("alerts", "controller")
ENDINGS: Final = frozenset(one.value for one in ENDING)
TOLD: Final = "told"
Page: TypeAlias = tuple[str, str]
"""Id of an incident, and ``told`` or how it ended."""
_KEY: Final = "TOCSIN_CHAOS_HOOK_KEY"
_ROUTES: Final = """version: 1
receivers:
  hook: {{kind: webhook, url: '{url}/', signing_key_env: {key}}}
routes:
  - {{name: all, receiver: hook}}
limits: {{signature_count: 1000, route_count: 1000}}
"""


def write_routes(path: Path, receiver: Receiver) -> Path:
    """A routes file that tells a receiver all; its secret is in this process's environment."""
    os.environ[_KEY] = "k" * 40
    path.write_text(_ROUTES.format(url=receiver.url, key=_KEY))
    return path


@dataclass
class Site:
    """One installation.

    Attributes:
        prefix: of its topics.
        receiver: what was told.
        children: role -> its process.
    """

    broker: Broker
    prefix: str
    folder: Path
    receiver: Receiver
    children: dict[str, Child] = field(default_factory=dict)

    def start(self) -> None:
        """Make the topics and start both processes."""
        arguments = ["--kafka", self.broker.address, "--topic-prefix", self.prefix]
        apply(kafka_settings(self.broker.address), WantedTopics(self.prefix, 2, keep_seconds=0))
        routes = write_routes(self.folder / f"{self.prefix}.yaml", self.receiver)
        verbs = {"alerts": ["alerts", "run", "--alerts", str(routes)], "controller": ["controller"]}
        for role in ROLES:
            command = [sys.executable, "-m", "tocsin", *verbs[role], *arguments]
            log = self.folder / f"{self.prefix}-{role}.log"
            self.children[role] = Child(Program(f"{self.prefix} {role}", command, log, folder=self.folder))
            self.children[role].start()
        self.producer = KafkaProducer(bootstrap_servers=self.broker.address, linger_ms=0)

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        if hasattr(self, "producer"):
            self.producer.close()

    def is_active(self, role: str) -> bool:
        """Whether the process has the seat."""
        return self.children[role].said("active role=")

    def begin(self, story: Story) -> None:
        """Let a story's incident begin: a verdict line, or records of hosts from which the controller makes one."""
        if isinstance(story, VerdictStory):
            self.say(story, 0)
            return
        for record in seconds_of(story):
            for partition in range(2) if isinstance(record, Tick) else (None,):
                topic = topic_name(EVENTS, self.prefix)
                self.producer.send(topic, encode(record), key_of(record), None, partition, timestamp_ms(record))
        self.producer.flush(60)

    def say(self, story: VerdictStory, update: int) -> None:
        """Write a line of a verdict."""
        one = story.line(update)
        self.producer.send(topic_name(VERDICTS, self.prefix), encode_verdict(one), job_key(one.job)).get(60)

    def lines(self) -> Counter[tuple[str, int, str]]:
        """Job, update and id of the committed lines on the topic of verdicts: how often."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.broker.address, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        places = [TopicPartition(topic_name(VERDICTS, self.prefix), index) for index in range(2)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        values: list[bytes | None] = []
        until = time.monotonic() + 60.0
        while any(consumer.position(one) < ends[one] for one in places) and time.monotonic() < until:
            for records in consumer.poll(timeout_ms=200).values():
                values += [record.value for record in records]
        consumer.close()
        return Counter(lines_of(values))


def messages_of(receiver: Receiver) -> list[dict[str, Any]]:
    """What a receiver was told, each message once, as every receiver of webhooks does it."""
    found: dict[str, dict[str, Any]] = {}
    for one in list(receiver.asked):
        found.setdefault(one.json["delivery"], one.json)
    return list(found.values())


def pages_of(receiver: Receiver) -> Counter[Page]:
    """What a receiver was told, and how often. A change is no page, unless nothing came before it."""
    found: Counter[Page] = Counter()
    for one in messages_of(receiver):
        name, kind = str(one["incident"]), str(one["kind"])
        if kind in ENDINGS:
            found[name, kind] += 1
        elif kind == "firing" or (name, TOLD) not in found:
            found[name, TOLD] += 1
    return found


def first_as_changed_count(receiver: Receiver) -> int:
    """How many incidents were first told as changed: the message before was written down, and never went out."""
    kinds: dict[str, str] = {}
    for one in messages_of(receiver):
        kinds.setdefault(str(one["incident"]), str(one["kind"]))
    return sum(kind == "changed" for kind in kinds.values())


def page_difference(wanted: Counter[Page], found: Counter[Page]) -> list[str]:
    """Each page that one of two runs lacks."""
    cases = (("was told in the undisturbed run only", wanted - found), ("was told besides", found - wanted))
    return [f"incident {name}, {kind}: {words}" for words, pages in cases for name, kind in sorted(pages)]


@contextmanager
def site_up(broker: Broker, prefix: str, folder: Path) -> Iterator[Site]:
    """An installation during the block."""
    with receiving(lambda _: Reply(204)) as receiver:
        site = Site(broker, prefix, folder, receiver)
        try:
            site.start()
            yield site
        finally:
            site.close()

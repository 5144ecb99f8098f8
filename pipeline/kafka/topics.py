"""Compare Kafka's topics with the wanted ones, create missing ones and change settings.

Partitions are never removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from tocsin.pipeline.kafka.client import admin
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topic import Topic
from tocsin.schemas.kafka.topics import (
    DEFAULT_PARTITIONS,
    INPUT_RETENTION_SECONDS,
    INPUTS,
    ONE_LOG,
    topic_name,
    topics,
)

BROKER_DEFAULT: Final = -1
"""Replication count that means the broker's default."""
_SETTLE_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.1
_RETENTION: Final = "retention.ms"


@dataclass(frozen=True, slots=True)
class WantedTopics:
    """The wanted state of the topics.

    Attributes:
        prefix: prefix of the topics' names.
        partition_count: partitions of the topics with jobs' records; None: keep existing ones, four for new topics.
        keep_seconds: retention of the input topics, 0 = forever; None: keep existing settings, twelve hours for new
            topics.
        replication_count: replicas of a new topic, -1 = the broker's default.
        is_for_replays: whether recordings of any time are played into them; the input topics then keep records forever.
    """

    prefix: str
    partition_count: int | None = None
    keep_seconds: float | None = None
    replication_count: int = BROKER_DEFAULT
    is_for_replays: bool = False

    def topics(self) -> tuple[Topic, ...]:
        """Return the complete definitions of the topics.

        Raises:
            ConfigError: Kafka does not accept the prefix or a number.
        """
        kept = INPUT_RETENTION_SECONDS if self.keep_seconds is None else (self.keep_seconds or None)
        count = self.partition_count or DEFAULT_PARTITIONS
        return topics(self.prefix, count, kept, is_for_replays=self.is_for_replays)

    def settings_of(self, topic: Topic) -> dict[str, str]:
        """Return the settings that an existing topic must have."""
        inputs = {topic_name(name, self.prefix) for name in INPUTS}
        wanted = topic.config()
        if self.keep_seconds is None and not self.is_for_replays and topic.name in inputs:
            del wanted[_RETENTION]  # how long is the operator's choice; all else is the program's
        return wanted


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between wanted and existing topics.

    Attributes:
        topic: name of the topic.
        what: ``missing``, ``partitions``, or the name of a setting.
        found: existing value.
        wanted: wanted value.
    """

    topic: str
    what: str
    found: str
    wanted: str

    @property
    def is_shrinking(self) -> bool:
        """Whether partitions would have to be removed, which Kafka cannot do."""
        return self.what == "partitions" and int(self.found) > int(self.wanted)

    def __str__(self) -> str:
        if self.what == "missing":
            return f"{self.topic}: is missing"
        return f"{self.topic}: {self.what} is {self.found}, should be {self.wanted}"


@dataclass(slots=True)
class _Found:
    """Partition counts and settings of the existing topics."""

    partition_counts: dict[str, int] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)


def check(settings: KafkaSettings, wish: WantedTopics) -> list[Difference]:
    """Return the differences between wanted and existing topics.

    Raises:
        EngineError: the broker cannot be asked.
    """
    with admin(settings) as client:
        return _compare(_look(client, wish.topics()), wish)


def apply(settings: KafkaSettings, wish: WantedTopics) -> list[Difference]:
    """Create and change topics as wanted, and return the differences there were; repeating it is harmless.

    Raises:
        EngineError: partitions would have to be removed (then nothing is changed), or the broker refuses.
    """
    with admin(settings) as client:
        wanted = {topic.name: topic for topic in wish.topics()}
        differences = _compare(_look(client, wanted.values()), wish)
        for difference in differences:
            if difference.is_shrinking:
                raise EngineError(
                    f"{difference.topic} has {difference.found} partitions, {difference.wanted} are wanted: Kafka"
                    " cannot take partitions away;"
                    f" say --partitions {difference.found}, or delete the topic with its records"
                )
        missing = {d.topic for d in differences if d.what == "missing"}
        if missing:
            _create(client, [wanted[name] for name in sorted(missing)], wish)
        grown = {d.topic: int(d.wanted) for d in differences if d.what == "partitions"}
        if grown:
            client.create_partitions(grown)
        changed: dict[str, dict[str, str]] = {}
        for difference in differences:
            if difference.what not in {"missing", "partitions"}:
                changed.setdefault(difference.topic, {})[difference.what] = difference.wanted
        if changed:
            client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, n, c) for n, c in changed.items()])
        if differences:
            _settle(client, wish)
        return differences


def _settle(client: Any, wish: WantedTopics) -> None:
    """Wait until the broker shows all changes, as it confirms them before they are visible."""
    until = time.monotonic() + _SETTLE_SECONDS
    while left := _compare(_look(client, wish.topics()), wish):
        if time.monotonic() > until:
            raise EngineError(f"the broker took the changes and does not show them: {'; '.join(map(str, left[:3]))}")
        time.sleep(_LOOK_SECONDS)


def _create(client: Any, missing: Sequence[Topic], wish: WantedTopics) -> None:
    """Create the missing topics; topics that somebody else creates meanwhile are accepted."""
    new = {
        topic.name: {
            "num_partitions": topic.partition_count,
            "replication_factor": wish.replication_count,
            "configs": topic.config(),
        }
        for topic in missing
    }
    try:
        client.create_topics(new)
    except TopicAlreadyExistsError:  # somebody else does the same: theirs are as good
        for name, options in new.items():
            answer = client.create_topics({name: options}, raise_errors=False)
            code = answer["topics"][0]["error_code"]
            if code and for_code(code) is not TopicAlreadyExistsError:
                raise for_code(code)(name) from None
    client.wait_for_topics(list(new))


def _look(client: Any, wanted: Any) -> _Found:
    """Return the wanted topics that exist."""
    names = [topic.name for topic in wanted]
    found = _Found()
    for described in client.describe_topics(names):
        error = for_code(described["error_code"])
        if error is UnknownTopicOrPartitionError:
            continue
        if described["error_code"]:
            raise error(described["name"])
        found.partition_counts[described["name"]] = len(described["partitions"])
    found.settings = settings_of_topics(client, found.partition_counts) if found.partition_counts else {}
    return found


def settings_of_topics(client: Any, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return topic -> its settings, including the broker's defaults.

    Raises:
        EngineError: a topic does not exist.
        KafkaError: the broker cannot be asked.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answer: Mapping[str, Mapping[str, Mapping[str, Any]]]
    answer = client.describe_configs(resources, config_filter="all").get("topic", {})
    for name, values in answer.items():
        if not values:
            raise EngineError(f"topic {name} is not found: run 'tocsin topics apply'")
    return {name: {key: str(value["value"]) for key, value in values.items()} for name, values in answer.items()}


def _compare(found: _Found, wish: WantedTopics) -> list[Difference]:
    """Return the differences between existing and wanted topics."""
    differences = []
    for topic in wish.topics():
        count = found.partition_counts.get(topic.name)
        if count is None:
            differences.append(Difference(topic.name, "missing", "", ""))
            continue
        is_chosen = wish.partition_count is not None and topic.partition_count == wish.partition_count
        is_one_log = topic.name.rpartition(".")[2] in ONE_LOG
        if (is_chosen or is_one_log) and count != topic.partition_count:
            differences.append(Difference(topic.name, "partitions", str(count), str(topic.partition_count)))
        settings = found.settings.get(topic.name, {})
        differences += [
            Difference(topic.name, name, settings.get(name, "unknown"), value)
            for name, value in wish.settings_of(topic).items()
            if settings.get(name) != value
        ]
    return differences

"""Play a recording into Kafka: its records as agents would send them, with ticks in recording time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from tocsin.pipeline.kafka.client import (
    Writer,
    admin,
    input_partitions,
    producer,
)
from tocsin.pipeline.kafka.topics import settings_of_topics
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_with_models
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import EngineError, SchemaError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import INPUTS, topic_name, topic_of
from tocsin.schemas.records import NS_PER_SECOND, Tick
from tocsin.schemas.signatures import Signer
from tocsin.schemas.wire.codec import encode

_LOG = logging.getLogger("tocsin.replay")
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PlayCounts:
    """Counts of what was sent.

    Attributes:
        record_count: records, including repeated ones.
        tick_count: seconds of the recording.
        left_out_count: records that cannot be sent.
    """

    record_count: int
    tick_count: int
    left_out_count: int


def play(
    recording: Recording,
    settings: KafkaSettings,
    prefix: str,
    config: ReplayConfig | None = None,
    on_second: Callable[[int], None] | None = None,
    signer: Credential | None = None,
) -> PlayCounts:
    """Send a recording and its ticks; returns when the broker has stored everything.

    In each partition the records of a second precede its tick. So a reader that follows the ticks judges exactly what a
    replay judges. A broker that is away is waited for, up to two minutes.

    Args:
        recording: the recording.
        settings: the Kafka cluster.
        prefix: prefix of the topics' names; no live agents and no ticker may write to them.
        config: order and repetition of the records.
        on_second: called with the recording time after each second (pace, progress).
        signer: credential that signs every record, None = unsigned, which jobs that require signatures refuse.

    Raises:
        EngineError: a topic is missing or unsuitable, or the broker refuses.
    """
    _check_topics(recording, settings, prefix)
    sign = _unsigned if signer is None else Signer(signer).sign
    left_out = Counter[str]()
    record_count = tick_count = 0
    with producer(settings, linger_ms=50) as client:
        partitions = input_partitions(client, prefix)
        writer = Writer(client)
        for tick_ns, records in seconds_with_models(recording, config or ReplayConfig()):
            for record in records:
                try:
                    data = sign(encode(record))
                except SchemaError as error:  # a value that the reader let pass: the rest goes on
                    left_out[str(error)] += 1
                    continue
                writer.send(topic_of(record, prefix), record, data)
                record_count += 1
            tick = Tick(tick_ns)
            data = encode(tick)
            for topic, number in partitions:
                writer.send(topic, tick, data, number)
            tick_count += 1
            writer.check()
            if on_second is not None:
                on_second(tick_ns)
        writer.finish()
    for text, count in left_out.most_common(10):
        _LOG.warning("records are left out", extra={"error": text, "count": count})
    return PlayCounts(record_count, tick_count, left_out.total())


def _unsigned(data: bytes) -> bytes:
    """Return the bytes unchanged, in place of signing them."""
    return data


def _check_topics(recording: Recording, settings: KafkaSettings, prefix: str) -> None:
    """Check that the topics would neither delete the recording while it is read nor make all of it late.

    Raises:
        EngineError: a topic is unsuitable; the message says why and what to do.
    """
    manifest = recording.manifest
    names = [topic_name(name, prefix) for name in INPUTS]
    with admin(settings) as client:
        found = settings_of_topics(client, names)
        newest_ms = _newest_ms(client, names)
    now_ms = time.time_ns() // _NS_PER_MS
    mend = f"run 'tocsin topics apply --retain-forever --topic-prefix {prefix}'"
    for name, values in found.items():
        keep_ms = int(values["retention.ms"])
        if 0 <= keep_ms < now_ms - manifest.start_ns // _NS_PER_MS:
            raise EngineError(
                f"{name} keeps records for {keep_ms / 3.6e6:g} hours by their own time, and the recording is older:"
                f" the broker would delete it while it is read; {mend}"
            )
        ahead_ms = int(values.get("message.timestamp.after.max.ms", 2**63 - 1))
        if manifest.end_ns // _NS_PER_MS > now_ms + ahead_ms:
            raise EngineError(f"the recording ends in the future, and {name} takes no such time; {mend}")
        if newest_ms[name] * _NS_PER_MS > manifest.start_ns + NS_PER_SECOND:
            raise EngineError(
                f"{name} holds records of a later time than the recording's start: all of it would be late;"
                " choose another --topic-prefix, or delete the topics"
            )


def _newest_ms(client: Any, names: list[str]) -> dict[str, int]:
    """Return topic -> its newest timestamp in ms, -1 = empty."""
    places = {
        TopicPartition(topic["name"], part["partition_index"]): OffsetSpec.MAX_TIMESTAMP
        for topic in client.describe_topics(names)
        for part in topic["partitions"]
    }
    newest = dict.fromkeys(names, -1)
    for place, found in client.list_partition_offsets(places).items():
        newest[place.topic] = max(newest[place.topic], found.timestamp)
    return newest

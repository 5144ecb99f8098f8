"""The Kafka topics: names, keys, headers, timestamps, and how each topic is configured.

Four **input** topics carry what agents send; ``models`` carries what is announced to all jobs. On these five
the sender stamps each record: the Kafka record's own timestamp is the event time. The broker refuses a stamp
more than two seconds ahead of its clock. Every partition of them gets a tick a second. The writers of all other
topics choose the stamps.

A key is ``cluster/job_id`` (frames: ``cluster/job_id/group``), with ``%`` and ``/`` inside names
percent-encoded. So all records of a job, of whatever attempt, lie in one partition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from tocsin.schemas.errors import ConfigError, FieldError
from tocsin.schemas.kafka.topic import Topic
from tocsin.schemas.metric_groups import group_of
from tocsin.schemas.records import (
    METRIC_SLICE_NS,
    CollectiveBatch,
    Frame,
    JobKey,
    ModelAnnouncement,
    Record,
    StepBatch,
    Tick,
    metric_slice_ns,
)

DEFAULT_PREFIX: Final = "tocsin"
DEFAULT_PARTITIONS: Final = 4

FRAMES: Final = "frames"
STEPS: Final = "steps"
COLLECTIVES: Final = "collectives"
EVENTS: Final = "events"
MODELS: Final = "models"
VERDICTS: Final = "verdicts"
ACTIONS: Final = "actions"
ACTION_ACKS: Final = "action-acks"
PROBES: Final = "probes"
DEAD_LETTER: Final = "dead-letter"
LATE: Final = "late"
CLOCK: Final = "clock"
EVIDENCE: Final = "evidence"
HOST_HEALTH: Final = "host-health"
JOB_STATUS: Final = "job-status"
ETTR: Final = "ettr"
CONTROLLER_STATE: Final = "controller-state"
ALERTS_STATE: Final = "alerts-state"
ALERTS_SENT: Final = "alerts-sent"
COVERED: Final = "covered"
OPERATOR_NOTES: Final = "operator-notes"
OPERATOR_ANSWERS: Final = "operator-answers"
NOTES_TAKEN: Final = "notes-taken"

REPORTS: Final = (EVIDENCE, HOST_HEALTH, JOB_STATUS, ETTR)
"""The topics with what the engine says beside its verdicts; their messages become rows, and repeat without harm."""

STATES: Final = (CONTROLLER_STATE, ALERTS_STATE)
"""Compacted topics of one partition: whose partition a process has is the active one, and its state lies there."""
NOTES: Final = (OPERATOR_NOTES, OPERATOR_ANSWERS, NOTES_TAKEN)
"""What people ask, what they are answered, and the notes that count from then on."""
ONE_LOG: Final = (MODELS, *STATES, *NOTES, ACTIONS, ACTION_ACKS)
"""Topics of exactly one partition, because what is newest must have one order for all."""

INPUTS: Final = (FRAMES, STEPS, COLLECTIVES, EVENTS)
"""The topics that agents write."""
TICKED: Final = (*INPUTS, MODELS)
"""The topics whose partitions get a tick a second; the oldest partition determines the watermark."""
TICK_KEY: Final = b"tick"
"""Key of a tick on ``models``, since a compacted topic takes no record without a key; no detector has this name."""

KIND_HEADER: Final = "kind"
KIND_FRAME: Final = b"frame"
KIND_STEPS: Final = b"steps"
KIND_COLLECTIVES: Final = b"collectives"
KIND_RECORD: Final = b"record"
KIND_TICK: Final = b"tick"
KIND_MODEL: Final = b"model"
SLICE_HEADER: Final = "slice_ms"
"""Header of frames whose metric slice is not 5000 ms long: its length in milliseconds, an ASCII integer."""

ORIGIN_HEADERS: Final = ("reason", "topic", "partition", "offset", "detail")
"""Headers of dead letters and late records: why they were refused, and their place in the input topic."""

TIMESTAMP_AHEAD_SECONDS: Final = 2.0
RECORD_BYTES: Final = 16 * 1024 * 1024
"""Size limit of an input record: the codec's ``MAX_RECORD_BYTES`` and what Kafka adds to it."""
REFUSED_BYTES: Final = RECORD_BYTES + 64 * 1024
"""Size limit of a refused record: any input record and the ``ORIGIN_HEADERS``."""

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
INPUT_RETENTION_SECONDS: Final = 12 * _HOUR

_STATE_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_NS_PER_MS = 1_000_000
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")
_KINDS: Mapping[str, bytes] = {
    FRAMES: KIND_FRAME,
    STEPS: KIND_STEPS,
    COLLECTIVES: KIND_COLLECTIVES,
    EVENTS: KIND_RECORD,
    MODELS: KIND_MODEL,
}


def topics(
    prefix: str = DEFAULT_PREFIX,
    partition_count: int = DEFAULT_PARTITIONS,
    input_retention_seconds: float | None = INPUT_RETENTION_SECONDS,
    *,
    is_for_replays: bool = False,
) -> tuple[Topic, ...]:
    """Return all topics of one installation.

    Args:
        prefix: first part of the topics' names.
        partition_count: partitions of each input topic, of the verdicts and of the late records.
        input_retention_seconds: how long the input topics keep what agents send, None = for good.
        is_for_replays: recordings are played into the input topics, whatever their time. Kafka measures
            retention by the records' own stamps, so inputs are kept for good and no stamp is too far ahead.

    Raises:
        ConfigError: a prefix that Kafka does not take, or no partition at all.
    """
    check_prefix(prefix)
    if partition_count < 1:
        raise ConfigError("partition_count", partition_count, "at least 1")
    kept_seconds = None if is_for_replays else input_retention_seconds
    ahead_seconds = math.inf if is_for_replays else TIMESTAMP_AHEAD_SECONDS
    return (
        *(_input_topic(name, prefix, partition_count, kept_seconds, ahead_seconds) for name in INPUTS),
        _models_topic(prefix, ahead_seconds),
        *_output_topics(prefix, partition_count),
        *_process_topics(prefix),
        *_note_topics(prefix),
        # Agents compare their clocks with the broker's by writing here: the answer holds the broker's time.
        Topic(topic_name(CLOCK, prefix), "host", 1, _HOUR, is_stamped_by_broker=True),
    )


def _input_topic(
    name: str, prefix: str, partition_count: int, retention_seconds: float | None, ahead_seconds: float
) -> Topic:
    """Return one of the topics that agents write."""
    return Topic(
        topic_name(name, prefix),
        "cluster/job_id/group" if name == FRAMES else "cluster/job_id",
        partition_count,
        retention_seconds,
        max_record_bytes=RECORD_BYTES,
        timestamp_ahead_seconds=ahead_seconds,
    )


def _models_topic(prefix: str, ahead_seconds: float) -> Topic:
    """Return the compacted topic on which models are announced to all jobs."""
    return Topic(
        topic_name(MODELS, prefix),
        "detector",
        1,
        None,
        is_compacted=True,
        timestamp_ahead_seconds=ahead_seconds,
        # Each job reads it from its beginning: ticks must not pile up.
        compact_after_seconds=_HOUR,
    )


def _output_topics(prefix: str, partition_count: int) -> tuple[Topic, ...]:
    """Return the topics that the engine and the consumers of its verdicts write."""
    return (
        Topic(topic_name(VERDICTS, prefix), "cluster/job_id", partition_count, 30 * _DAY),
        Topic(
            topic_name(ACTIONS, prefix),
            "cluster/action_id",
            1,
            30 * _DAY,
            is_compacted=True,
            compact_after_seconds=_DAY,
        ),
        # the broker's stamp says when it was said, whatever the clock of the speaker says
        Topic(topic_name(ACTION_ACKS, prefix), "cluster/action_id", 1, 30 * _DAY, is_stamped_by_broker=True),
        Topic(topic_name(PROBES, prefix), "cluster/job_id", 1, _DAY),
        Topic(topic_name(EVIDENCE, prefix), "cluster/job_id", partition_count, 7 * _DAY),
        Topic(topic_name(HOST_HEALTH, prefix), "cluster/job_id", partition_count, 7 * _DAY),
        Topic(
            topic_name(JOB_STATUS, prefix),
            "cluster/job_id/attempt",
            partition_count,
            7 * _DAY,
            is_compacted=True,
            compact_after_seconds=_HOUR,
        ),
        Topic(
            topic_name(ETTR, prefix),
            "cluster/job_id/attempt/began_ns",
            partition_count,
            7 * _DAY,
            is_compacted=True,
            compact_after_seconds=_HOUR,
        ),
        Topic(topic_name(DEAD_LETTER, prefix), "the record's own", 1, 7 * _DAY, max_record_bytes=REFUSED_BYTES),
        Topic(topic_name(LATE, prefix), "the record's own", partition_count, 7 * _DAY, max_record_bytes=REFUSED_BYTES),
    )


def _process_topics(prefix: str) -> tuple[Topic, ...]:
    """Return the topics of the processes of which one is active: their states, and what they say beside verdicts."""
    states = (
        Topic(
            topic_name(name, prefix),
            "part of the state",
            1,
            None,
            is_compacted=True,
            compact_after_seconds=_HOUR,
            segment_bytes=_STATE_SEGMENT_BYTES,
        )
        for name in STATES
    )
    covered = Topic(
        topic_name(COVERED, prefix),
        "cluster/verdict_id",
        1,
        30 * _DAY,
        is_compacted=True,
        compact_after_seconds=_HOUR,
    )
    return *states, covered, Topic(topic_name(ALERTS_SENT, prefix), "cluster/job_id", 1, 30 * _DAY)


def _note_topics(prefix: str) -> tuple[Topic, ...]:
    """Return the topics of people's notes: what they ask, the answers, and the notes that count."""
    return (
        # the broker's stamp says when it was asked, whatever the clock of the asker says
        Topic(topic_name(OPERATOR_NOTES, prefix), "the request's id", 1, 30 * _DAY, is_stamped_by_broker=True),
        Topic(topic_name(OPERATOR_ANSWERS, prefix), "the request's id", 1, _DAY),
        Topic(
            topic_name(NOTES_TAKEN, prefix),
            "cluster/kind/id",
            1,
            400 * _DAY,
            is_compacted=True,
            compact_after_seconds=_DAY,
        ),
    )


def check_prefix(prefix: str) -> str:
    """Return a topic prefix unchanged after checking it.

    Raises:
        ConfigError: Kafka takes no such name.
    """
    if not _PREFIX.fullmatch(prefix) or prefix in {".", ".."}:
        raise ConfigError("topic-prefix", prefix, "1 to 200 of the characters A-Z a-z 0-9 . _ -")
    return prefix


def topic_name(name: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Return a topic's full name: prefix, dot, name."""
    return f"{prefix}.{name}"


def input_of(record: Record) -> str:
    """Return which topic of ``TICKED`` a record goes to.

    Raises:
        FieldError: a tick, which goes to all of them.
    """
    if isinstance(record, Frame):
        return FRAMES
    if isinstance(record, StepBatch):
        return STEPS
    if isinstance(record, CollectiveBatch):
        return COLLECTIVES
    if isinstance(record, Tick):
        raise FieldError("record", record, "no tick: a tick goes to every partition of every input topic")
    if isinstance(record, ModelAnnouncement):
        return MODELS
    return EVENTS


def topic_of(record: Record, prefix: str = DEFAULT_PREFIX) -> str:
    """Return the full name of the topic that a record goes to.

    Raises:
        FieldError: a tick, which goes to all input topics.
    """
    return topic_name(input_of(record), prefix)


def job_key(job: JobKey, group: str | None = None) -> bytes:
    """Return the Kafka key of a job's records, or of its frames of one metric group."""
    return path_key(job.cluster, job.job_id) if group is None else path_key(job.cluster, job.job_id, group)


def path_key(*parts: str) -> bytes:
    """Return a Kafka key of names, with ``%`` and ``/`` inside them percent-encoded."""
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts).encode()


def parse_key(key: bytes) -> tuple[str, str, str | None]:
    """Return the cluster, job id and metric group that a Kafka key names; the group is None but for frames.

    Raises:
        FieldError: the key does not have the form of ``job_key``.
    """
    try:
        parts = [part.replace("%2F", "/").replace("%25", "%") for part in key.decode().split("/")]
    except UnicodeDecodeError as error:
        raise FieldError("key", key, "cluster/job_id or cluster/job_id/group in UTF-8") from error
    if len(parts) not in {2, 3} or not all(parts):
        raise FieldError("key", key, "cluster/job_id or cluster/job_id/group")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def key_of(record: Record) -> bytes | None:
    """Return a record's Kafka key, None for a tick.

    A frame's key names its metric group too; a model announcement's key is the detector's name.
    """
    if isinstance(record, Tick):
        return None
    if isinstance(record, ModelAnnouncement):
        return record.name.encode()
    return job_key(record.job, group_of(record) if isinstance(record, Frame) else None)


def tick_key(topic: str) -> bytes | None:
    """Return the Kafka key of a tick on a topic (full name), None unless the topic is compacted."""
    return TICK_KEY if topic.rpartition(".")[2] == MODELS else None


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    """Return a record's Kafka headers: its kind, and the slice length of frames with an unusual one."""
    if isinstance(record, Tick):
        return [(KIND_HEADER, KIND_TICK)]
    headers = [(KIND_HEADER, _KINDS[input_of(record)])]
    if isinstance(record, Frame) and (slice_ns := metric_slice_ns(record.tick_ns)) != METRIC_SLICE_NS:
        headers.append((SLICE_HEADER, b"%d" % (slice_ns // _NS_PER_MS)))
    return headers


def timestamp_ms(record: Record) -> int:
    """Return the Kafka timestamp of a record: its event time in milliseconds."""
    return record.ts_ns // _NS_PER_MS

"""The SQL of the job: which records are in time, and one row per job and second.

Event time is the Kafka record's own timestamp. The watermark is one lateness behind it in each
partition, and the smallest partition counts: ticks, which stand in every partition, move it. Rows are
told apart **before** the window, because the window drops late ones without a word.

One window of a second serves all kinds: agents stamp a frame with its slice's end minus a
millisecond, so all frames of a slice lie in that slice's last second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.topics import (
    DEAD_LETTER,
    DEFAULT_PREFIX,
    INPUTS,
    KIND_COLLECTIVES,
    KIND_FRAME,
    KIND_RECORD,
    KIND_STEPS,
    KIND_TICK,
    LATE,
    MODELS,
    RECORD_BYTES,
    REFUSED_BYTES,
    VERDICTS,
    check_prefix,
    topic_name,
)

STARTS = {"earliest": "earliest-offset", "latest": "latest-offset", "committed": "group-offsets"}
TRANSACTION_SECONDS = 60
_KINDS = ", ".join(f"'{kind.decode()}'" for kind in (KIND_FRAME, KIND_STEPS, KIND_COLLECTIVES, KIND_RECORD))


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Where the job reads and writes.

    Attributes:
        servers: brokers to begin with.
        prefix: first part of the topics' names.
        properties: Java properties of the clients (security).
        group: consumer group: where offsets are kept for a start without a savepoint.
        start: where to begin without a savepoint: ``earliest``, ``latest`` or ``committed`` (else latest).
        is_exactly_once: verdicts leave in transactions, a checkpoint later.
        lateness_seconds: how far the watermark stays behind.
    """

    servers: str
    prefix: str = DEFAULT_PREFIX
    properties: Mapping[str, str] = field(default_factory=dict)
    group: str = "tocsin-flink"
    start: str = "committed"
    is_exactly_once: bool = False
    lateness_seconds: int = 1

    def __post_init__(self) -> None:
        """Check what would else fail inside the cluster.

        Raises:
            ConfigError: a prefix that Kafka does not take, an unknown start.
        """
        check_prefix(self.prefix)
        if self.start not in STARTS:
            raise ConfigError("start", self.start, f"one of {', '.join(STARTS)}")


_RECORD = """  k BYTES,
  v BYTES,
  ats TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  h MAP<STRING, BYTES> METADATA FROM 'headers',
  topic STRING METADATA FROM 'topic' VIRTUAL,
  part INT METADATA FROM 'partition' VIRTUAL,
  off BIGINT METADATA FROM 'offset' VIRTUAL,"""
"""A record's columns, as Kafka's connector names them."""
_ORIGIN = "topic || ':' || CAST(part AS STRING) || ':' || CAST(off AS STRING)"


_JUDGED_BYTES = 4 * 1024 * 1024
"""A window holds all records of a job's second in memory, and one of 23 MB overflows Flink's buffer for windows. The
largest record that an agent sends every day has some kilobytes; dumps of ranks have one megabyte, seldom more."""
_KEPT_BYTES = 64 * 1024
"""Of what is larger than any record may be, so much goes to the dead letters: the whole stands where it came from."""
_KEY_BYTES = 32 * 1024
_DETAIL_CHARACTERS = 2000


def input_table(options: StreamOptions) -> str:
    """The input topics as one table."""
    names = ";".join(topic_name(name, options.prefix) for name in INPUTS)
    return f"""CREATE TABLE tocsin_input (
{_RECORD}
  kind AS DECODE(CAST(h['kind'] AS VARBINARY({_DETAIL_CHARACTERS})), 'UTF-8'),
  name AS DECODE(CAST(k AS VARBINARY({_KEY_BYTES + 1})), 'UTF-8'),
  WATERMARK FOR ats AS ats - INTERVAL '{options.lateness_seconds}' SECOND
) WITH (
{_with(options, names)},
  'properties.group.id' = {_quoted(options.group)},
  'properties.auto.offset.reset' = 'latest',
  'scan.startup.mode' = '{STARTS[options.start]}',
  'scan.topic-partition-discovery.interval' = '10 s'
)"""


def models_table(options: StreamOptions) -> str:
    """The topic of models, always from its beginning: it holds the newest announcement of each."""
    return f"""CREATE TABLE tocsin_models (
{_RECORD}
  WATERMARK FOR ats AS ats - INTERVAL '{options.lateness_seconds}' SECOND
) WITH (
{_with(options, topic_name(MODELS, options.prefix))},
  'properties.group.id' = {_quoted(options.group)},
  'scan.startup.mode' = 'earliest-offset',
  'scan.topic-partition-discovery.interval' = '10 s'
)"""


def _begin(column: str, size_bytes: int) -> str:
    """The first bytes: this cast copies no more than them, and nothing where there are fewer."""
    return f"CAST({column} AS VARBINARY({size_bytes}))"


def _kept(column: str, size_bytes: int) -> str:
    return f"CAST({_begin(column, size_bytes)} AS BYTES)"


def _size(column: str, most_bytes: int) -> str:
    """Bytes of a value, ``most_bytes`` + 1 where there are more: Kafka's limits count what was compressed.

    SQL has no length of BYTES; a text of all of 150 MB, and its bytes again, would be the end of the TaskManager.
    """
    return f"CHAR_LENGTH(DECODE({_begin(column, most_bytes + 1)}, 'ISO-8859-1'))"


def _is_beyond(column: str, most_bytes: int) -> str:
    return f"{_size(column, most_bytes)} > {most_bytes}"


def _said_size(column: str, most_bytes: int) -> str:
    size = f"COALESCE(CAST({_size(column, most_bytes)} AS STRING), 'no')"
    return f"(CASE WHEN {_is_beyond(column, most_bytes)} THEN 'more than {most_bytes}' ELSE {size} END)"


def _cut(column: str, most_bytes: int, kept_bytes: int) -> str:
    return f"CASE WHEN {_is_beyond(column, most_bytes)} THEN {_kept(column, kept_bytes)} ELSE {column} END"


MODEL_ROWS = f"""SELECT {_kept("h['kind']", _DETAIL_CHARACTERS)} AS kind,
  {_cut("k", _KEY_BYTES, _KEY_BYTES)} AS k,
  {_cut("v", _JUDGED_BYTES, _KEPT_BYTES)} AS v,
  UNIX_TIMESTAMP(DATE_FORMAT(ats, 'yyyy-MM-dd HH:mm:ss')) AS at_second,
  {_ORIGIN} AS origin
FROM tocsin_models"""
"""Ticks too: what stands behind the tick of its effective time came too late."""

CLASSIFIED = f"""CREATE VIEW tocsin_classified AS
SELECT *,
  SPLIT_INDEX(name, '/', 0) || '/' || SPLIT_INDEX(name, '/', 1) AS job,
  {_ORIGIN} AS origin,
  CASE
    WHEN {_is_beyond("v", _JUDGED_BYTES)} OR {_is_beyond("k", _KEY_BYTES)} THEN 'large'
    WHEN name IS NULL OR v IS NULL OR kind IS NULL OR kind NOT IN ({_KINDS})
      OR SPLIT_INDEX(name, '/', 0) IS NULL OR SPLIT_INDEX(name, '/', 1) IS NULL THEN 'dead'
    WHEN CURRENT_WATERMARK(ats) IS NOT NULL
      AND CURRENT_WATERMARK(ats) >= FLOOR(ats TO SECOND) + INTERVAL '0.999' SECOND THEN 'late'
    ELSE 'ok'
  END AS class
FROM tocsin_input
WHERE kind IS NULL OR kind <> '{KIND_TICK.decode()}'"""
"""Ticks have moved the watermark already: the source does that."""

_NAMES_ITS_JOB = "CASE WHEN class = 'ok' THEN {} ELSE CAST(NULL AS STRING) END"

ROWS = f"""SELECT ats,
  CASE WHEN class = 'large' THEN 'dead' ELSE class END AS class,
  {_NAMES_ITS_JOB.format("job")} AS job,
  CASE WHEN class = 'large' THEN {_cut("v", RECORD_BYTES, _KEPT_BYTES)} ELSE v END AS v,
  origin,
  COALESCE({_NAMES_ITS_JOB.format("SPLIT_INDEX(name, '/', 2)")}, '') AS metric_group,
  CASE class WHEN 'ok' THEN CAST(NULL AS BYTES) WHEN 'large' THEN {_kept("k", _KEY_BYTES)} ELSE k END AS k,
  CASE class WHEN 'ok' THEN CAST(NULL AS STRING) WHEN 'large' THEN 'too_large' WHEN 'dead' THEN 'bad_header'
    ELSE class END AS reason,
  CASE class WHEN 'ok' THEN CAST(NULL AS STRING)
    WHEN 'large' THEN 'value of ' || {_said_size("v", RECORD_BYTES)}
      || ' bytes, at most {_JUDGED_BYTES} are judged and {RECORD_BYTES} kept (else the first {_KEPT_BYTES}); key of '
      || {_said_size("k", RECORD_BYTES)} || ' bytes, at most {_KEY_BYTES}'
    ELSE COALESCE(SUBSTR('kind ' || kind || ', key ' || name, 1, {_DETAIL_CHARACTERS}), 'no kind or no key')
    END AS detail
FROM tocsin_classified"""
"""Read **once**, as a stream: the windows and the refused rows are planned apart, and each plan would
bring a Kafka source of its own. Twice the reading, and two opinions about what is late: a row that the
windows' source calls late and the other one does not would be in neither."""

TOLD_APART = "tocsin_rows"
"""View of that stream."""

WINDOWS = f"""CREATE VIEW tocsin_windows AS
SELECT job, metric_group, window_end, ARRAY_AGG(v) AS vs, ARRAY_AGG(origin) AS origins
FROM TABLE(TUMBLE(TABLE {TOLD_APART}, DESCRIPTOR(ats), INTERVAL '1' SECOND))
WHERE class = 'ok'
GROUP BY job, metric_group, window_start, window_end"""
"""Keyed by metric group too: frames are reduced in a slot of their own."""

_END_SECOND = "UNIX_TIMESTAMP(DATE_FORMAT(window_end, 'yyyy-MM-dd HH:mm:ss'))"

PACKED = f"""SELECT job,
  {_END_SECOND} * 1000 AS end_ms,
  pack_records(vs, origins, metric_group, job, {_END_SECOND}) AS records
FROM tocsin_windows"""


def output_table(options: StreamOptions, name: str, job_name: str) -> str:
    """One output topic as a table (k, v, h).

    The job's name stands in the transactions' ids: two jobs of one prefix would fence each other out.
    """
    exactly_once = f"""
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = {_quoted(f"{options.group}-{job_name}-{name}")},
  'properties.transaction.timeout.ms' = '{TRANSACTION_SECONDS * 1000}',"""
    at_least_once = "\n  'sink.delivery-guarantee' = 'at-least-once',"
    return f"""CREATE TABLE {table_of(name)} (
  k BYTES,
  v BYTES,
  h MAP<STRING, BYTES> METADATA FROM 'headers'
) WITH ({exactly_once if options.is_exactly_once else at_least_once}
  'properties.enable.idempotence' = 'true',
  'properties.max.request.size' = '{REFUSED_BYTES}',
{_with(options, topic_name(name, options.prefix))}
)"""


OUTPUTS = (VERDICTS, DEAD_LETTER, LATE)


def table_of(name: str) -> str:
    """The SQL name of an output topic."""
    return f"tocsin_{name.replace('-', '_')}"


def refused(name: str, kind: str) -> str:
    """Send one class of rows to an output topic, with why and where each stood."""
    return f"""INSERT INTO {table_of(name)}
SELECT k, v, MAP[
  'reason', ENCODE(reason, 'UTF-8'),
  'topic', ENCODE(SPLIT_INDEX(origin, ':', 0), 'UTF-8'),
  'partition', ENCODE(SPLIT_INDEX(origin, ':', 1), 'UTF-8'),
  'offset', ENCODE(SPLIT_INDEX(origin, ':', 2), 'UTF-8'),
  'detail', ENCODE(detail, 'UTF-8')]
FROM {TOLD_APART} WHERE class = '{kind}'"""


def said(name: str) -> str:
    """Send what the operators said to its topic."""
    return f"INSERT INTO {table_of(name)} SELECT k, v, h FROM tocsin_said WHERE topic = '{name}'"


def _with(options: StreamOptions, topics: str) -> str:
    settings = {
        "connector": "kafka",
        "topic": topics,
        "properties.bootstrap.servers": options.servers,
        **{f"properties.{name}": value for name, value in options.properties.items()},
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
    }
    return ",\n".join(f"  {_quoted(name)} = {_quoted(value)}" for name, value in settings.items())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""The SQL of the Flink job: it classifies records as in time, late or dead, and packs one row per job and second.

Event time is the Kafka record's timestamp. The watermark is one lateness behind it in each partition, and the smallest
partition counts. Ticks, which are in every partition, move it. Rows are classified **before** the window, because the
window drops late rows silently.

One window of a second serves all kinds of records: agents stamp a frame with its slice's end minus a millisecond, so
all frames of a slice lie in its last second.
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
    REPORTS,
    VERDICTS,
    check_prefix,
    topic_name,
)

STARTS = {"earliest": "earliest-offset", "latest": "latest-offset", "committed": "group-offsets"}
"""Option value -> start mode of Kafka's connector."""
TRANSACTION_SECONDS = 60
"""Time after which the broker aborts an open transaction."""
_KINDS = ", ".join(f"'{kind.decode()}'" for kind in (KIND_FRAME, KIND_STEPS, KIND_COLLECTIVES, KIND_RECORD))


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Topics and brokers that the job reads and writes.

    Attributes:
        servers: bootstrap brokers.
        prefix: prefix of the topics' names.
        properties: Java properties of the Kafka clients (security).
        group: consumer group that stores the offsets for a start without a savepoint.
        start: where to start without a savepoint: ``earliest``, ``latest`` or ``committed`` (else latest).
        is_exactly_once: write verdicts in transactions, which are visible one checkpoint later.
        lateness_seconds: how far the watermark stays behind the newest record.
    """

    servers: str
    prefix: str = DEFAULT_PREFIX
    properties: Mapping[str, str] = field(default_factory=dict)
    group: str = "tocsin-flink"
    start: str = "committed"
    is_exactly_once: bool = False
    lateness_seconds: int = 1

    def __post_init__(self) -> None:
        """Check options that would otherwise fail inside the cluster.

        Raises:
            ConfigError: Kafka does not accept the prefix, or the start is unknown.
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
"""Columns of a Kafka record, as Kafka's connector names them."""
_ORIGIN = "topic || ':' || CAST(part AS STRING) || ':' || CAST(off AS STRING)"
"""SQL expression for a record's position ``topic:partition:offset``."""


_JUDGED_BYTES = 4 * 1024 * 1024
"""Maximum size of a record that is processed; larger ones become dead letters.

A window holds all records of a job's second in memory, and one of 23 MB overflows Flink's window buffer. The largest
everyday record of an agent has some kilobytes; dumps of ranks have one megabyte, rarely more.
"""
_KEPT_BYTES = 64 * 1024
"""Bytes of an oversized record that its dead letter keeps; the full record stays in its topic."""
_KEY_BYTES = 32 * 1024
"""Maximum size of a record's key."""
_DETAIL_CHARACTERS = 2000
"""Maximum length of the detail in a dead letter."""


def input_table(options: StreamOptions) -> str:
    """Return the SQL that declares the input topics as one table."""
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
    """Return the SQL that declares the topic of models as a table, always read from its beginning."""
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
    """Return an SQL expression for the first bytes of a column; it copies no more than these."""
    return f"CAST({column} AS VARBINARY({size_bytes}))"


def _kept(column: str, size_bytes: int) -> str:
    """Return an SQL expression of type BYTES for the first bytes of a column."""
    return f"CAST({_begin(column, size_bytes)} AS BYTES)"


def _size(column: str, most_bytes: int) -> str:
    """Return an SQL expression for a column's size in bytes, counted up to ``most_bytes`` + 1.

    Kafka's limits count compressed bytes, so a value may be far larger. SQL has no length of BYTES, and converting 150
    MB to text would exhaust the TaskManager.
    """
    return f"CHAR_LENGTH(DECODE({_begin(column, most_bytes + 1)}, 'ISO-8859-1'))"


def _is_beyond(column: str, most_bytes: int) -> str:
    """Return an SQL condition: the column has more than ``most_bytes``."""
    return f"{_size(column, most_bytes)} > {most_bytes}"


def _size_text(column: str, most_bytes: int) -> str:
    """Return an SQL expression for a column's size as text."""
    size = f"COALESCE(CAST({_size(column, most_bytes)} AS STRING), 'no')"
    return f"(CASE WHEN {_is_beyond(column, most_bytes)} THEN 'more than {most_bytes}' ELSE {size} END)"


def _cut(column: str, most_bytes: int, kept_bytes: int) -> str:
    """Return an SQL expression for a column, cut to ``kept_bytes`` if it has more than ``most_bytes``."""
    return f"CASE WHEN {_is_beyond(column, most_bytes)} THEN {_kept(column, kept_bytes)} ELSE {column} END"


MODEL_ROWS = f"""SELECT {_kept("h['kind']", _DETAIL_CHARACTERS)} AS kind,
  {_cut("k", _KEY_BYTES, _KEY_BYTES)} AS k,
  {_cut("v", _JUDGED_BYTES, _KEPT_BYTES)} AS v,
  UNIX_TIMESTAMP(DATE_FORMAT(ats, 'yyyy-MM-dd HH:mm:ss')) AS at_second,
  {_ORIGIN} AS origin
FROM tocsin_models"""
"""Query of the records on the topic of models, ticks included.

An announcement after the tick of its time is too late.
"""

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
"""View that classifies input records as ok, late, dead or large.

Ticks are dropped, as they have moved the watermark.
"""

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
    WHEN 'large' THEN 'value of ' || {_size_text("v", RECORD_BYTES)}
      || ' bytes, at most {_JUDGED_BYTES} are judged and {RECORD_BYTES} kept (else the first {_KEPT_BYTES}); key of '
      || {_size_text("k", RECORD_BYTES)} || ' bytes, at most {_KEY_BYTES}'
    ELSE COALESCE(SUBSTR('kind ' || kind || ', key ' || name, 1, {_DETAIL_CHARACTERS}), 'no kind or no key')
    END AS detail
FROM tocsin_classified"""
"""Query of all classified records, read **once** as a stream.

Windows and refused rows are planned separately, and each plan would otherwise get its own Kafka source. That would read
twice, and the sources could disagree about which rows are late, so that some rows were in neither output.
"""

CLASSIFIED_ROWS = "tocsin_rows"
"""Name of the view on the stream of classified records."""

WINDOWS = f"""CREATE VIEW tocsin_windows AS
SELECT job, metric_group, window_end, ARRAY_AGG(v) AS vs, ARRAY_AGG(origin) AS origins
FROM TABLE(TUMBLE(TABLE {CLASSIFIED_ROWS}, DESCRIPTOR(ats), INTERVAL '1' SECOND))
WHERE class = 'ok'
GROUP BY job, metric_group, window_start, window_end"""
"""View of the windows of one second, by job and metric group, so that frame reduction is spread over slots."""

_END_SECOND = "UNIX_TIMESTAMP(DATE_FORMAT(window_end, 'yyyy-MM-dd HH:mm:ss'))"

PACKED = f"""SELECT job,
  {_END_SECOND} * 1000 AS end_ms,
  pack_records(vs, origins, metric_group, job, {_END_SECOND}) AS records
FROM tocsin_windows"""
"""Query that packs each window's records into one value."""


def output_table(options: StreamOptions, name: str, job_name: str) -> str:
    """Return the SQL that declares one output topic as a table (k, v, h).

    The job's name is part of the transaction ids, because two jobs with the same prefix would fence each other out.
    Reports need no transactions: the same message twice gives the same rows.
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
) WITH ({exactly_once if options.is_exactly_once and name not in REPORTS else at_least_once}
  'properties.enable.idempotence' = 'true',
  'properties.max.request.size' = '{REFUSED_BYTES}',
{_with(options, topic_name(name, options.prefix))}
)"""


OUTPUTS = (VERDICTS, DEAD_LETTER, LATE, *REPORTS)


def table_of(name: str) -> str:
    """Return the SQL name of an output topic's table."""
    return f"tocsin_{name.replace('-', '_')}"


def refused(name: str, kind: str) -> str:
    """Return the SQL that sends one class of refused rows to an output topic, with reason and origin."""
    return f"""INSERT INTO {table_of(name)}
SELECT k, v, MAP[
  'reason', ENCODE(reason, 'UTF-8'),
  'topic', ENCODE(SPLIT_INDEX(origin, ':', 0), 'UTF-8'),
  'partition', ENCODE(SPLIT_INDEX(origin, ':', 1), 'UTF-8'),
  'offset', ENCODE(SPLIT_INDEX(origin, ':', 2), 'UTF-8'),
  'detail', ENCODE(detail, 'UTF-8')]
FROM {CLASSIFIED_ROWS} WHERE class = '{kind}'"""


def insert_outputs(name: str) -> str:
    """Return the SQL that sends the operators' outputs for a topic to its table."""
    return f"INSERT INTO {table_of(name)} SELECT k, v, h FROM tocsin_said WHERE topic = '{name}'"


def _with(options: StreamOptions, topics: str) -> str:
    """Return the connector settings of a table as SQL."""
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
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"

"""Convert a recording to the records that agents would have sent, in order of event time.

This is the inverse of recording: rows become frames, batches, events and announcements again. They are cut by the times
in the tables, or by those that tocsin's own recorder noted, so that a replay sees what the live engine saw.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.dumps import dump_answers
from tocsin.pipeline.recording.frames import frames_of, metric_table_of
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.reader import json_payload
from tocsin.pipeline.recording.tables import NULL_MASKS, Columns, Recording, Text
from tocsin.schemas.errors import FieldError, RecordingError
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.metrics import BUILTIN_TABLE_ID
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    Event,
    HostStatus,
    JobRecord,
    ProbeAnswer,
    StepBatch,
    StepRecord,
    TableAnnouncement,
)
from tocsin.schemas.wire._bodies import read_status
from tocsin.schemas.wire._format import Header, Kind
from tocsin.schemas.wire.codec import encode
from tocsin.schemas.wire.validate import MAX_ATTEMPT, ObjectReader, check_int

_Word = TypeVar("_Word", EventSource, Severity)
_MS = NS_PER_SECOND // 1000
STEP_VALUES = (
    "duration_seconds",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "communication_seconds",
    "loss",
    "grad_norm",
)
"""Columns of ``steps`` that may be null."""
_COLLECTIVE_DEFAULTS: dict[str, Any] = {
    "channel": -1,
    "total_chunks": -1,
    "gpu_ready": -1,
    "rdma_transmitted": -1,
    "rdma_done": -1,
    "dtype": "",
    "peer": -1,
}
"""Values for optional columns of ``collectives`` that are missing."""


def records_of(recording: Recording, *, announce: bool = True, places: Places | None = None) -> Iterator[JobRecord]:
    """Yield all records of a recording in order of event time.

    Args:
        recording: the whole recording, or one span of a running simulation.
        announce: include topology, groups, metric tables and dumps (a later span of the same job need not).
        places: hosts of the ranks, for a later span without topology; None: read them from the recording.

    Raises:
        RecordingError: a value that no record may hold; names file, column and row.
    """
    places = places or Places(recording)
    parts: list[Iterable[JobRecord]] = []
    if announce:
        parts.append(_announcements(recording, places))
    tables = recording.tables
    if "host_metrics" in tables:
        parts.append(frames_of(recording, places))
    if "steps" in tables:
        parts.append(_steps(tables["steps"], places))
    if "collectives" in tables:
        parts.append(_collectives(tables["collectives"], places))
    if "events" in tables:
        parts.append(_events(tables["events"], places))
    if "probes" in tables:
        parts.append(_probes(tables["probes"], places))
    if "agent_status" in tables:
        parts.append(_statuses(tables["agent_status"], places))
    if announce and recording.dumps:
        parts.append(dump_answers(recording, places))
    return heapq.merge(*parts, key=lambda record: record.ts_ns)


def _announcements(recording: Recording, places: Places) -> list[JobRecord]:
    """Return the topology, group and metric table announcements, sorted by time."""
    found: list[JobRecord] = [*places.topologies(), *places.groups()]
    table = metric_table_of(recording)
    if table.table_id != BUILTIN_TABLE_ID:
        start_ns = recording.manifest.start_ns
        found.append(TableAnnouncement(places.job_at(start_ns), places.first_host(recording), start_ns, table))
    return sorted(found, key=lambda record: record.ts_ns)


def _batches(columns: Columns, places: Places) -> Iterator[tuple[int, str, NDArray[np.intp]]]:
    """Yield the rows that are sent in one batch: (event time of the batch, host, row numbers in order)."""
    ts_ns = _numbers(columns, "ts_ns")
    ranks = _numbers(columns, "rank")
    hosts, host_of_row = places.hosts_of(ranks, ts_ns)
    sent_ns = (ts_ns // NS_PER_SECOND + 1) * NS_PER_SECOND - _MS
    if "batch_ns" in columns:
        noted = _numbers(columns, "batch_ns")
        sent_ns = np.where(noted > 0, noted, sent_ns)
    attempts = _numbers(columns, "attempt") if "attempt" in columns else np.zeros(len(ts_ns), np.int32)
    order = np.lexsort((ranks, ts_ns, host_of_row, attempts, sent_ns))
    keys = np.stack([sent_ns[order], attempts[order], host_of_row[order]])
    cuts = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    for rows in np.split(order, cuts):
        if rows.size:
            yield int(sent_ns[rows[0]]), hosts[int(host_of_row[rows[0]])], rows


def _steps(columns: Columns, places: Places) -> Iterator[StepBatch]:
    """Yield the step batches; steps without a duration are left out."""
    known = np.isfinite(_numbers(columns, "duration_seconds"))  # a step without its duration says nothing
    columns = {name: _array(column)[known] for name, column in columns.items()}  # all of them are numbers
    numbers = [_numbers(columns, name).tolist() for name in ("ts_ns", "rank", "step")]
    values = [_optional_numbers(columns, name) for name in STEP_VALUES]
    records = list(map(StepRecord._make, zip(*numbers, *values, strict=True)))
    attempts = _numbers(columns, "attempt") if "attempt" in columns else None
    for sent_ns, host, rows in _batches(columns, places):
        batch = tuple(sorted(map(records.__getitem__, rows.tolist()), key=itemgetter(0, 1, 2)))
        attempt = None if attempts is None else int(attempts[rows[0]])
        yield StepBatch(places.job_at(sent_ns, attempt), host, sent_ns, batch)


def _optional_numbers(columns: Columns, name: str) -> list[float | None]:
    """Return a column as floats, None = not measured; NaN of loss and gradient norm is kept, because it is evidence."""
    if name not in columns:
        return [None] * len(_numbers(columns, "ts_ns"))
    numbers = _numbers(columns, name).astype(np.float64)
    if name not in NULL_MASKS:
        absent = np.isnan(numbers)
    elif NULL_MASKS[name] in columns:
        absent = _numbers(columns, NULL_MASKS[name])
    else:
        absent = np.zeros(len(numbers), bool)
    values: list[float | None] = numbers.tolist()
    for row in np.flatnonzero(absent).tolist():
        values[row] = None
    return values


def _collectives(columns: Columns, places: Places) -> Iterator[CollectiveBatch]:
    """Yield the collective batches."""
    _check_ends(columns)
    lists = {
        name: _plain_list(columns, name)
        for name in ("ts_ns", "record", "rank", "comm_id", "op_name", "op_seq", "msg_bytes", "start_ns", "end_ns")
    }
    count = len(lists["ts_ns"])
    for name, default in _COLLECTIVE_DEFAULTS.items():
        lists[name] = _plain_list(columns, name) if name in columns else [default] * count
    for sent_ns, host, rows in _batches(columns, places):
        batch = [CollectiveRecord(**{name: values[row] for name, values in lists.items()}) for row in rows.tolist()]
        batch.sort(key=lambda row: (row.ts_ns, row.rank, row.comm_id, row.op_seq))
        yield CollectiveBatch(places.job_at(sent_ns), host, sent_ns, tuple(batch))


def _events(columns: Columns, places: Places) -> Iterator[Event]:
    """Yield the events."""
    file = "events.parquet"
    payload = columns.get("payload")
    lists = [_plain_list(columns, name) for name in ("ts_ns", "host", "rank", "source", "name", "severity")]
    attempts = _numbers(columns, "attempt") if "attempt" in columns else None
    for row, (ts_ns, host, rank, source, name, severity) in enumerate(zip(*lists, strict=True)):
        body = json_payload(file, row, payload[row]) if isinstance(payload, Text) else {}
        event = Event(
            places.job_at(ts_ns, None if attempts is None else int(attempts[row])),
            host or places.host_of(rank, ts_ns),
            ts_ns,
            max(-1, rank),
            _word(file, row, "source", source, EventSource),
            name,
            _word(file, row, "severity", severity, Severity),
            body,
        )
        try:
            encode(event)
        except FieldError as error:
            column = error.field.split(".")[-1].partition("[")[0]
            named = column if column in columns else "payload"
            raise RecordingError(file, str(error), column=named, row=row) from error
        yield event


def _word(file: str, row: int, column: str, word: str, words: type[_Word]) -> _Word:
    """Return a word as a member of an enumeration; raise ``RecordingError`` if it is unknown."""
    try:
        return words(word)
    except ValueError as error:
        must = " ".join(words)
        raise RecordingError(file, f"{word!r}: must be one of {must}", column=column, row=row) from error


def _probes(columns: Columns, places: Places) -> Iterator[ProbeAnswer]:
    """Yield the probe answers."""
    lists = [_plain_list(columns, name) for name in ("ts_ns", "host", "rank", "request_id", "kind")]
    payloads = cast(list[bytes], columns["payload"])
    for row, (ts_ns, host, rank, request_id, kind) in enumerate(zip(*lists, strict=True)):
        yield ProbeAnswer(
            places.job_at(ts_ns),
            host or places.host_of(rank, ts_ns),
            ts_ns,
            max(-1, rank),
            request_id,
            kind,
            payloads[row],
        )


def _statuses(columns: Columns, places: Places) -> Iterator[HostStatus]:
    """Yield the agents' heartbeats."""
    file = "agent_status.parquet"
    lists = [_plain_list(columns, name) for name in ("ts_ns", "host", "status")]
    for row, (ts_ns, host, text) in enumerate(zip(*lists, strict=True)):
        body = json_payload(file, row, text, "status")
        attempt = body.pop("attempt", None)
        try:
            known = None if attempt is None else check_int(attempt, "status.attempt", -1, MAX_ATTEMPT)
            job = places.job_at(ts_ns, known)
            yield read_status(Header(Kind.HOST_STATUS, ts_ns, job, host), ObjectReader(body, "status"))
        except FieldError as error:
            raise RecordingError(file, str(error), column="status", row=row) from error


def _check_ends(columns: Columns) -> None:
    """Raise ``RecordingError`` if a collective ends before its start."""
    start_ns, end_ns = _numbers(columns, "start_ns"), _numbers(columns, "end_ns")
    bad = np.flatnonzero((end_ns > 0) & (end_ns < start_ns))
    if bad.size:
        row = int(bad[0])
        text = f"{end_ns[row]}: must be 0 (not finished) or not before start_ns ({start_ns[row]})"
        raise RecordingError("collectives.parquet", text, column="end_ns", row=row)


def _numbers(columns: Columns, name: str) -> NDArray[Any]:
    """Return a column of numbers."""
    return _array(columns[name])


def _array(column: object) -> NDArray[Any]:
    """Return a column that is known to be an array."""
    return cast(NDArray[Any], column)


def _plain_list(columns: Columns, name: str) -> list[Any]:
    """Return a column's values as a list."""
    column = columns[name]
    if isinstance(column, Text):
        return column.to_list()
    return cast(list[Any], _array(column).tolist())

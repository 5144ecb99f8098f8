"""Record a running job: write its slices, as the operators received them, to a recording's folder.

The recorder runs after slicing. Duplicates are dropped, the order is canonical, and records too late for their slice
are missing (the engine keeps them in ``late.jsonl``). So a replay gives the same verdicts as the live engine, if the
recording reaches back to the job's start.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.recording.manifest import manifest_object
from tocsin.pipeline.recording.tables import NULL_MASKS, STEP_VALUES, Columns, Manifest, Text
from tocsin.pipeline.recording.writer import arrow_table, claim_folder, write_dump, write_json
from tocsin.schemas.errors import RecordingError, TocsinError
from tocsin.schemas.metrics import BUILTIN_TABLE, BUILTIN_TABLE_ID, MetricTable
from tocsin.schemas.private_files import private_file
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    NS_PER_SECOND,
    CollectiveBatch,
    Event,
    Frame,
    Groups,
    HostStatus,
    JobKey,
    JobRecord,
    ProbeAnswer,
    StepBatch,
    TableAnnouncement,
    Topology,
)
from tocsin.schemas.wire._bodies import write_status

_LOG = logging.getLogger("tocsin.recorder")
_FLUSH_ROWS = 20_000
_STEP_COLUMNS = ("ts_ns", "rank", "step", *STEP_VALUES)


class _TableFile:
    """One Parquet file being written in portions; its rows are sorted at the end if necessary."""

    def __init__(self, folder: Path, name: str, time: str) -> None:
        self._path = folder / f"{name}.parquet"
        self._name, self._time = name, time
        self._rows: list[Mapping[str, Any]] = []
        self._file: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None
        self._newest_ns = 0
        self._sorted = True

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows (column name -> value; None = null)."""
        self._rows.extend(rows)
        if len(self._rows) >= _FLUSH_ROWS:
            self.flush()

    def add_table(self, table: pa.Table) -> None:
        """Write an Arrow table as the next portion."""
        times = table.column(self._time).to_numpy()
        self._sorted = self._sorted and times[0] >= self._newest_ns and bool((np.diff(times) >= 0).all())
        self._newest_ns = max(self._newest_ns, int(times.max()))
        if self._writer is None:
            self._file = private_file(self._path, "w")
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd")
        self._writer.write_table(table)

    def flush(self) -> None:
        """Write the rows that are in memory."""
        if self._rows:
            self.add_table(arrow_table(self._name, _columns_of(self._rows, self._time)))
            self._rows = []

    def close(self) -> None:
        """Write the remaining rows, and sort the file by time if necessary."""
        self.flush()
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        self._file.close()
        if not self._sorted:
            table = pq.read_table(self._path).sort_by(self._time)
            with private_file(self._path, "w") as file:
                pq.write_table(table, file, compression="zstd")


def _columns_of(rows: list[Mapping[str, Any]], time: str) -> Columns:
    """Convert rows to columns, sorted by time."""
    rows = sorted(rows, key=lambda row: int(row[time]))
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if any(isinstance(value, str) for value in values):
            columns[name] = Text.of([value or "" for value in values])
        elif any(isinstance(value, bytes) for value in values):
            columns[name] = values
        elif any(isinstance(value, float) for value in values) or all(value is None for value in values):
            columns[name] = np.array([math.nan if value is None else value for value in values], np.float64)
            if name in NULL_MASKS:
                columns[NULL_MASKS[name]] = np.array([value is None for value in values])
        else:
            columns[name] = np.array(values)
    return columns


class JobRecorder:
    """Writes the slice bundles of one job to a recording's folder."""

    def __init__(self, folder: Path, job_id: str, notes: object = None, ended: frozenset[JobKey] = frozenset()) -> None:
        """Create the folder.

        Args:
            folder: a new or empty folder.
            job_id: the job to record, "" = the first job with a slice bundle.
            notes: notes for the manifest.
            ended: ended jobs, which still have slice bundles; none of them counts as the first job.

        Raises:
            RecordingError: the folder is not empty.
        """
        claim_folder(folder)
        self.folder = folder
        self.job_id = job_id
        self.turn_count = 0
        self.error = ""
        """Error that ended the recording, "" = none."""
        self._notes = notes
        self._ended = ended
        self._files: dict[str, _TableFile] = {}
        self._job: JobKey | None = None
        self._span_ns = [0, 0]
        self._tick_ns = NS_PER_SECOND
        self._table = BUILTIN_TABLE
        self._gpu_index: dict[tuple[str, str], int] = {}

    def on_bundle(self, bundle: SliceBundle) -> None:
        """Record one slice bundle if it is of the recorded job; an error ends the recording but not the engine."""
        if not self.job_id and bundle.job not in self._ended and bundle.job.job_id != IDLE_JOB_ID:
            self.job_id = bundle.job.job_id
        if bundle.job.job_id != self.job_id or self.error:
            return
        try:
            self._take_bundle(bundle)
        except (OSError, TocsinError, pa.ArrowException) as error:
            self.error = str(error)
            _LOG.error("recording broke off", extra={"folder": str(self.folder), "error": self.error})

    def _take_bundle(self, bundle: SliceBundle) -> None:
        """Record the records and frames of one slice bundle."""
        if self._job is None:
            self._job = bundle.job
            self._span_ns[0] = bundle.fast.start_ns
        self._span_ns[0] = min(self._span_ns[0], bundle.fast.start_ns)
        self._span_ns[1] = max(self._span_ns[1], bundle.end_ns)
        self.turn_count += 1
        for record in bundle.fast.records:
            self._take(record)
        for metrics in bundle.metrics:
            for record in metrics.records:
                if isinstance(record, TableAnnouncement):
                    self._take(record)
            self._take_frames([record for record in metrics.records if isinstance(record, Frame)])

    def close(self) -> None:
        """Complete the files; the manifest is written last, so that a folder with a manifest is complete.

        Raises:
            RecordingError: the recording failed earlier, or cannot be completed; no manifest is written.
        """
        if self.error:
            raise RecordingError(str(self.folder), f"the recording broke off: {self.error}")
        try:
            self._finish()
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(str(self.folder), f"cannot be finished: {error}") from error

    def _finish(self) -> None:
        """Close all tables, and write the user-defined metrics and the manifest."""
        for file in self._files.values():
            file.close()
        own = _user_metrics(self._table)
        if own:
            write_json(self.folder / "metrics.json", own)
        job = self._job or JobKey("default", self.job_id or "none")
        manifest = Manifest(
            job.job_id,
            job.attempt,
            self._span_ns[0],
            self._span_ns[1],
            self._tick_ns / NS_PER_SECOND,
            self._notes,
            job.cluster,
        )
        write_json(self.folder / "manifest.json", manifest_object(manifest))
        _LOG.info("recorded", extra={"folder": str(self.folder), "job": job.job_id, "turns": self.turn_count})

    def _file(self, name: str, time: str = "ts_ns") -> _TableFile:
        """Return the file of a table, creating it if needed."""
        if name not in self._files:
            self._files[name] = _TableFile(self.folder, name, time)
        return self._files[name]

    def _take(self, record: JobRecord) -> None:
        """Add one record to its table."""
        if isinstance(record, StepBatch):
            self._file("steps").add(_step_rows(record))
        elif isinstance(record, CollectiveBatch):
            self._file("collectives").add({**row._asdict(), "batch_ns": record.ts_ns} for row in record.rows)
        elif isinstance(record, Event):
            self._file("events").add([_event_row(record)])
        elif isinstance(record, Topology):
            self._take_topology(record)
        elif isinstance(record, Groups):
            self._file("groups", "from_ns").add(_group_rows(record))
        elif isinstance(record, HostStatus):
            status = json.dumps({**write_status(record), "attempt": record.job.attempt})
            self._file("agent_status").add([{"ts_ns": record.ts_ns, "host": record.host, "status": status}])
        elif isinstance(record, ProbeAnswer):
            self._file("probes").add([_answer_row(record)])
            if record.probe == "flight_recorder" and record.rank >= 0 and record.payload:
                # Beside the answer, which knows the time: files that PyTorch's own tools read, too.
                write_dump(self.folder, record.rank, record.payload)
        elif isinstance(record, TableAnnouncement):
            self._table = record.table

    def _take_topology(self, topology: Topology) -> None:
        """Add the places of a topology record, and remember the GPUs' indexes."""
        for place in topology.places:
            if place.gpu_uuid and place.gpu >= 0:
                self._gpu_index[place.host, place.gpu_uuid] = place.gpu
        extra = {"from_ns": topology.ts_ns, "attempt": topology.job.attempt}
        self._file("topology", "from_ns").add({**asdict(place), **extra} for place in topology.places)

    def _take_frames(self, frames: list[Frame]) -> None:
        """Add the frames of one metric slice to ``host_metrics``."""
        tables = {BUILTIN_TABLE_ID: BUILTIN_TABLE, self._table.table_id: self._table}
        portions = [self._frame_columns(frame, tables[frame.table_id]) for frame in frames if frame.table_id in tables]
        if portions:
            self._tick_ns = frames[0].tick_ns
            self._file("host_metrics").add_table(_joined(portions, self._table))

    def _frame_columns(self, frame: Frame, table: MetricTable) -> dict[str, Any]:
        """Return the rows of one frame as columns: the host's ticks, then those of each GPU."""
        ticks = frame.first_tick_ns + frame.tick_ns * np.arange(frame.tick_count, dtype=np.int64)
        gpus = [self._index_of(frame.host, uuid) for uuid in frame.gpu_uuids]
        count = frame.tick_count
        rows = (1 + len(gpus)) * count
        columns: dict[str, Any] = {
            "ts_ns": np.tile(ticks, 1 + len(gpus)),
            "host": [frame.host] * rows,
            "gpu": np.repeat(np.array([-1, *gpus], np.int8), count),
        }
        host = np.frombuffer(frame.host_matrix, "<f4").reshape(len(table.host), count)
        gpu = np.frombuffer(frame.gpu_matrix, "<f4").reshape(len(gpus), len(table.gpu), count)
        for index, metric in enumerate(table.host):
            columns[metric.name] = np.concatenate([host[index], np.full(rows - count, np.nan, np.float32)])
        for index, metric in enumerate(table.gpu):
            columns[metric.name] = np.concatenate([np.full(count, np.nan, np.float32), gpu[:, index].ravel()])
        return columns

    def _index_of(self, host: str, uuid: str) -> int:
        """Return a GPU's index on its host: from the topology, or the next free one."""
        known = self._gpu_index.get((host, uuid))
        if known is None:
            taken = {index for (name, _), index in self._gpu_index.items() if name == host}
            known = self._gpu_index[host, uuid] = next(index for index in range(128) if index not in taken)
        return known


def _joined(portions: list[dict[str, Any]], table: MetricTable) -> pa.Table:
    """Join the columns of several frames into one Arrow table, sorted by time, host and GPU."""
    names = ["ts_ns", "host", "gpu", *(metric.name for metric in (*table.gpu, *table.host))]
    columns: dict[str, Any] = {}
    for name in names:
        parts = [portion.get(name) for portion in portions]
        if name == "host":
            columns[name] = Text.of([host for part in parts for host in part or ()])
            continue
        sized = [
            np.full(len(portion["ts_ns"]), np.nan, np.float32) if part is None else part
            for part, portion in zip(parts, portions, strict=True)
        ]
        columns[name] = np.concatenate(sized)
    order = np.lexsort((columns["gpu"], columns["host"].codes, columns["ts_ns"]))
    ordered = {name: value.take(order) if isinstance(value, Text) else value[order] for name, value in columns.items()}
    # Plain texts: portions of one file must not differ in their dictionaries.
    plain = arrow_table("host_metrics", ordered)
    return plain.set_column(1, "host", plain.column("host").cast(pa.string()))


def _step_rows(batch: StepBatch) -> Iterable[Mapping[str, Any]]:
    """Yield the rows of a step batch."""
    for row in batch.rows:
        values = {name: getattr(row, name) for name in _STEP_COLUMNS}
        yield {**values, "attempt": batch.job.attempt, "batch_ns": batch.ts_ns}


def _event_row(event: Event) -> Mapping[str, Any]:
    """Return the row of an event."""
    return {
        "ts_ns": event.ts_ns,
        "host": event.host,
        "rank": event.rank,
        "source": event.source.value,
        "name": event.name,
        "severity": event.severity.value,
        "payload": json.dumps(dict(event.payload)),
        "attempt": event.job.attempt,
    }


def _answer_row(answer: ProbeAnswer) -> Mapping[str, Any]:
    """Return the row of a probe answer."""
    return {
        "ts_ns": answer.ts_ns,
        "host": answer.host,
        "rank": answer.rank,
        "request_id": answer.request_id,
        "kind": answer.probe,
        "payload": answer.payload,
    }


def _group_rows(groups: Groups) -> Iterable[Mapping[str, Any]]:
    """Yield one row per group and member."""
    for group in groups.groups:
        for rank in group.ranks:
            yield {
                "comm_id": group.comm_id,
                "kind": group.kind.value,
                "rank": rank,
                "from_ns": groups.ts_ns,
                "attempt": groups.job.attempt,
                "host": groups.host,
            }


def _user_metrics(table: MetricTable) -> dict[str, Any]:
    """Return the content of ``metrics.json``: the table's metrics that are not built in."""
    known = {metric.name for metric in (*BUILTIN_TABLE.gpu, *BUILTIN_TABLE.host)}
    return {
        metric.name: {
            "unit": metric.name.rpartition("_")[2],
            "min": metric.low,
            "max": metric.high,
            "bad": metric.bad,
            "scope": metric.scope,
        }
        for metric in (*table.gpu, *table.host)
        if metric.name not in known
    }

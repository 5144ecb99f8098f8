"""The format of a recording's tables, and a recording in memory as columns by table.

Text columns are dictionary-encoded (``Text``), because the same few host names occur in millions of rows. The format is
a contract: ``docs/recording.md`` describes it, and the column lists below define it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS
from tocsin.schemas.wire.validate import MAX_RANKS, MAX_SECONDS, MAX_STEP

FORMAT_VERSION = 1
STEP_VALUES: Final = (
    "duration_seconds",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "communication_seconds",
    "loss",
    "grad_norm",
)
"""Values of a step record: the columns of ``steps`` behind its time, rank and number."""
ColumnKind = Literal["int8", "int16", "int32", "int64", "float32", "float64", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Text:
    """A dictionary-encoded text column: the text of a row is ``words[codes[row]]``.

    Attributes:
        codes: int32, shape (rows,); -1 = null, read as "".
        words: the distinct texts.
    """

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str]) -> Text:
        """Encode texts, with words in order of first appearance."""
        index: dict[str, int] = {}
        codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.int32, len(values))
        return cls(codes, tuple(index))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        code = int(self.codes[row])
        return self.words[code] if code >= 0 else ""

    def take(self, rows: NDArray[Any]) -> Text:
        """Return the column with these rows only (indexes or a mask)."""
        return Text(self.codes[rows], self.words)

    def to_list(self) -> list[str]:
        """Return all rows as texts."""
        return ["" if code < 0 else self.words[code] for code in self.codes.tolist()]


Column = NDArray[Any] | Text | list[bytes]
"""One column: numbers, text, or binary."""

Columns = Mapping[str, Column]
"""A table: column name -> column, all of equal length."""

NULL_MASKS: Mapping[str, str] = {"loss": "loss_is_null", "grad_norm": "grad_norm_is_null"}
"""Columns in which NaN is evidence and null means "not measured" -> name of the optional bool column that marks nulls.
"""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Specification of one column.

    Attributes:
        name: name in the file.
        kind: type in memory.
        required: whether a file without it is refused.
        nullable: whether it may hold null, read as NaN in float, -1 in int and "" in text columns.
        choices: allowed texts, () = any.
        low: smallest allowed number (infinite numbers are then refused too), None = no bound.
        high: largest allowed number, None = no bound but the type's.
        filled: whether a text must not be empty.
    """

    name: str
    kind: ColumnKind
    required: bool = True
    nullable: bool = False
    choices: tuple[str, ...] = ()
    low: int | None = None
    filled: bool = False
    high: float | None = None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Specification of one Parquet file.

    Attributes:
        name: file name without ``.parquet``.
        columns: the known columns; other columns are ignored.
        time: column that must not go backwards, "" = none.
    """

    name: str
    columns: tuple[ColumnSpec, ...]
    time: str = ""

    def column(self, name: str) -> ColumnSpec:
        """Return the specification of the column with this name."""
        return next(spec for spec in self.columns if spec.name == name)


def _c(
    name: str, kind: ColumnKind, low: int | None = None, *, filled: bool = False, high: float | None = None
) -> ColumnSpec:
    """Return the specification of a required column."""
    return ColumnSpec(name, kind, low=low, filled=filled, high=high)


def _rank(low: int | None = 0) -> ColumnSpec:
    """Return the specification of the column ``rank``."""
    return ColumnSpec("rank", "int32", low=low, high=MAX_RANKS - 1)


def _optional(name: str, kind: ColumnKind, high: float | None = None) -> ColumnSpec:
    """Return the specification of an optional, nullable column."""
    return ColumnSpec(name, kind, required=False, nullable=True, high=high)


def _null(name: str, kind: ColumnKind, low: int | None = None, high: float | None = None) -> ColumnSpec:
    """Return the specification of an optional, nullable column with bounds."""
    return ColumnSpec(name, kind, required=False, nullable=True, low=low, high=high)


METRIC_NAMES = tuple(metric.name for metric in (*GPU_METRICS, *HOST_METRICS))

TOPOLOGY = TableSpec(
    "topology",
    (
        _rank(),
        _c("host", "text", filled=True),
        _optional("gpu", "int8"),
        _optional("gpu_uuid", "text"),
        _optional("dp", "int16"),
        _optional("pp", "int16"),
        _optional("tp", "int16"),
        _optional("leaf", "text"),
        _optional("minipod", "text"),
        _optional("from_ns", "int64"),
        _optional("attempt", "int32"),
    ),
)
GROUPS = TableSpec(
    "groups",
    (
        _c("comm_id", "text", filled=True),
        _c("kind", "text"),
        _rank(),
        _optional("from_ns", "int64"),
        _optional("attempt", "int32"),
    ),
)
HOST_METRICS_TABLE = TableSpec(
    "host_metrics",
    (
        _c("ts_ns", "int64", 0),
        _c("host", "text", filled=True),
        _c("gpu", "int8"),
        *(_null(name, "float32") for name in METRIC_NAMES),
    ),
    time="ts_ns",
)
STEPS = TableSpec(
    "steps",
    (
        _c("ts_ns", "int64", 0),
        _rank(),
        _c("step", "int64", 0, high=MAX_STEP),
        ColumnSpec("duration_seconds", "float64", nullable=True, low=0, high=MAX_SECONDS),
        *(
            _null(f"{phase}_seconds", "float64", 0, MAX_SECONDS)
            for phase in ("data", "forward", "backward", "optimizer", "communication")
        ),
        _null("loss", "float64"),
        _null("grad_norm", "float64"),
        _optional("attempt", "int32"),
    ),
    time="ts_ns",
)
COLLECTIVES = TableSpec(
    "collectives",
    (
        _c("ts_ns", "int64", 0),
        ColumnSpec("record", "text", choices=("completion", "state")),
        _rank(),
        _c("comm_id", "text", filled=True),
        _c("op_name", "text"),
        _c("op_seq", "int64", -1),
        _c("msg_bytes", "int64", -1),
        _c("start_ns", "int64", 0),
        _c("end_ns", "int64", 0),
        _optional("channel", "int16"),
        _optional("total_chunks", "int32"),
        _optional("gpu_ready", "int32"),
        _optional("rdma_transmitted", "int32"),
        _optional("rdma_done", "int32"),
        _optional("dtype", "text"),
        _optional("peer", "int32", MAX_RANKS - 1),
    ),
    time="ts_ns",
)
EVENTS = TableSpec(
    "events",
    (
        _c("ts_ns", "int64", 0),
        _c("host", "text"),
        _rank(None),
        _c("source", "text"),
        _c("name", "text", filled=True),
        _c("severity", "text"),
        ColumnSpec("payload", "text", required=False, nullable=True),
    ),
    time="ts_ns",
)
PROBES = TableSpec(
    "probes",
    (
        _c("ts_ns", "int64", 0),
        _c("host", "text"),
        _rank(None),
        _c("request_id", "text", filled=True),
        ColumnSpec("kind", "text", choices=("stacks", "flight_recorder", "ring", "fast_metrics")),
        _c("payload", "binary"),
    ),
    time="ts_ns",
)
TABLES: dict[str, TableSpec] = {
    spec.name: spec for spec in (TOPOLOGY, GROUPS, HOST_METRICS_TABLE, STEPS, COLLECTIVES, EVENTS, PROBES)
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of ``manifest.json``.

    Attributes:
        job_id: name of the job.
        attempt: attempt of the job at the start of the recording.
        start_ns: first instant.
        end_ns: first instant after the recording.
        tick_seconds: sampling period of ``host_metrics``.
        notes: the author's notes, text or object.
        cluster: cluster of the job; written only by tocsin's own recorder (verdict ids depend on it).
    """

    job_id: str
    attempt: int
    start_ns: int
    end_ns: int
    tick_seconds: float = 1.0
    notes: Any = None
    cluster: str = "default"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory, or one span of a running simulation.

    Attributes:
        manifest: job and time span.
        tables: table name -> columns; missing tables are not keys.
        user_metrics: content of ``metrics.json``: metric name -> declaration.
        truth: content of ``truth.json``, None = unknown.
        dumps: rank -> bytes of its file in ``flight_recorder/``.
        notes: one sentence for each thing skipped while reading.
    """

    manifest: Manifest
    tables: Mapping[str, Columns]
    user_metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    truth: Mapping[str, Any] | None = None
    dumps: Mapping[int, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

"""What a recording holds in memory: columns by table, as the format names them.

A table is its columns; a text column is dictionary-encoded (``Text``), because the
same few host names stand in millions of rows. The format itself is a contract:
``docs/recording.md`` in short, and the column lists below to the letter.
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
"""What a step record tells of its step: the columns of ``steps`` behind its time, rank and number."""
ColumnKind = Literal["int8", "int16", "int32", "int64", "float32", "float64", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text column: ``words[codes[row]]``.

    Attributes:
        codes: int32, shape (rows,); -1: null, read as "".
        words: the different texts.
    """

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str]) -> Text:
        """Encode plain texts, words in order of first appearance."""
        index: dict[str, int] = {}
        codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.int32, len(values))
        return cls(codes, tuple(index))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        code = int(self.codes[row])
        return self.words[code] if code >= 0 else ""

    def take(self, rows: NDArray[Any]) -> Text:
        """These rows (indices or a mask)."""
        return Text(self.codes[rows], self.words)

    def to_list(self) -> list[str]:
        """All rows, decoded."""
        return ["" if code < 0 else self.words[code] for code in self.codes.tolist()]


Column = NDArray[Any] | Text | list[bytes]
"""One column: numbers, text, or binary."""

Columns = Mapping[str, Column]
"""A table: column name -> column, all equally long."""

NULL_MASKS: Mapping[str, str] = {"loss": "loss_is_null", "grad_norm": "grad_norm_is_null"}
"""Columns where NaN is evidence and null is "not measured": the mask (bool, optional) tells them apart."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column of the format.

    Attributes:
        name: as in the file.
        kind: its type in memory.
        required: a file without it is refused.
        nullable: may hold null: NaN in float columns, -1 in int columns, "" in text columns.
        choices: the only words a text may be, () = any.
        low: numbers must not be below it (and durations must be finite), None: any.
        high: numbers must not be above it, None: any that the type holds.
        filled: a text must not be empty.
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
    """One parquet file of the format.

    Attributes:
        name: file name without ``.parquet``.
        columns: the known columns; others are ignored (or, where ``time`` is set, kept by their readers).
        time: the column that must not go backwards, "" = none.
    """

    name: str
    columns: tuple[ColumnSpec, ...]
    time: str = ""

    def column(self, name: str) -> ColumnSpec:
        """The column of this name."""
        return next(spec for spec in self.columns if spec.name == name)


def _c(
    name: str, kind: ColumnKind, low: int | None = None, *, filled: bool = False, high: float | None = None
) -> ColumnSpec:
    return ColumnSpec(name, kind, low=low, filled=filled, high=high)


def _rank(low: int | None = 0) -> ColumnSpec:
    return ColumnSpec("rank", "int32", low=low, high=MAX_RANKS - 1)


def _optional(name: str, kind: ColumnKind, high: float | None = None) -> ColumnSpec:
    return ColumnSpec(name, kind, required=False, nullable=True, high=high)


def _null(name: str, kind: ColumnKind, low: int | None = None, high: float | None = None) -> ColumnSpec:
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
    """``manifest.json``.

    Attributes:
        job_id: the job's name.
        attempt: its attempt when the recording begins.
        start_ns: first instant.
        end_ns: first instant after the recording.
        tick_seconds: sampling period of ``host_metrics``.
        notes: free text or object of whoever recorded.
        cluster: whose job; only our own recorder writes it (a verdict's id depends on it).
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
    """A recording in memory (or one span of a running simulation).

    Attributes:
        manifest: whose, when.
        tables: table name -> its columns; a table that is absent is not a key.
        user_metrics: ``metrics.json``: metric name -> its declaration.
        truth: ``truth.json``, None where nobody knows.
        dumps: ``flight_recorder/``: rank -> the bytes of its file.
        notes: what was passed over when it was read, a sentence each.
    """

    manifest: Manifest
    tables: Mapping[str, Columns]
    user_metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    truth: Mapping[str, Any] | None = None
    dumps: Mapping[int, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

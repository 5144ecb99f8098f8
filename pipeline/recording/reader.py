"""Read a recording folder; say exactly what is wrong with one that cannot be read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tocsin.pipeline.recording.manifest import read_manifest, read_truth, read_user_metrics
from tocsin.pipeline.recording.tables import (
    NULL_MASKS,
    TABLES,
    Column,
    Columns,
    ColumnSpec,
    Recording,
    TableSpec,
    Text,
)
from tocsin.schemas.errors import RecordingError

EXTRA_COLUMNS: Mapping[str, tuple[ColumnSpec, ...]] = {
    "steps": (ColumnSpec("batch_ns", "int64", required=False, nullable=True),),
    "collectives": (ColumnSpec("batch_ns", "int64", required=False, nullable=True),),
    "events": (ColumnSpec("attempt", "int32", required=False, nullable=True),),
    "groups": (ColumnSpec("host", "text", required=False, nullable=True),),
    "topology": (
        ColumnSpec("world_size", "int32", required=False, nullable=True),
        ColumnSpec("pid", "int64", required=False, nullable=True),
    ),
}
"""Columns that only our own recorder writes, so that a replay cuts the slices that the live engine cut."""

_LIMITS = {kind: np.iinfo(kind) for kind in ("int8", "int16", "int32", "int64")}


def read_recording(folder: Path) -> Recording:
    """Read everything that a recording folder holds.

    Raises:
        RecordingError: no such folder, no readable manifest, a file that is no parquet, a missing
            column, a wrong type, a value that may not be, a time that goes backwards. Names file,
            column and row.
    """
    manifest = read_manifest(folder)
    user_metrics = read_user_metrics(folder)
    tables: dict[str, Columns] = {}
    for spec in (*TABLES.values(), AGENT_STATUS):
        path = folder / f"{spec.name}.parquet"
        if path.is_file():
            tables[spec.name] = read_table(path, _widened(spec, user_metrics))
    return Recording(manifest, tables, user_metrics, read_truth(folder))


AGENT_STATUS = TableSpec(
    "agent_status",
    (
        ColumnSpec("ts_ns", "int64"),
        ColumnSpec("host", "text"),
        ColumnSpec("status", "text"),
    ),
    time="ts_ns",
)
"""Heartbeats of the agents, JSON: only our own recorder writes it."""


def _widened(spec: TableSpec, user_metrics: Mapping[str, Any]) -> TableSpec:
    extra = list(EXTRA_COLUMNS.get(spec.name, ()))
    if spec.name == "host_metrics":
        extra = [ColumnSpec(name, "float32", required=False, nullable=True) for name in user_metrics]
    return TableSpec(spec.name, (*spec.columns, *extra), spec.time)


def read_table(path: Path, spec: TableSpec) -> Columns:
    """Read one parquet file and hold it to its specification.

    Raises:
        RecordingError: names file, column and row.
    """
    table = _read_parquet(path, spec)
    columns: dict[str, Column] = {}
    for column in spec.columns:
        if column.name in table.column_names:
            columns[column.name] = _decode(path.name, column, table.column(column.name))
            if column.name in NULL_MASKS:
                columns[NULL_MASKS[column.name]] = _nulls(table.column(column.name))
        elif column.required:
            raise RecordingError(path.name, "the required column is missing", column=column.name)
    if spec.time:
        _check_order(path.name, spec.time, columns[spec.time])
    return columns


def _read_parquet(path: Path, spec: TableSpec) -> pa.Table:
    texts = {column.name for column in spec.columns if column.kind == "text"}
    known = {column.name for column in spec.columns}
    try:
        schema = pq.read_schema(path)
        wanted = [name for name in schema.names if name in known]
        encoded = [name for name in wanted if name in texts and pa.types.is_string(schema.field(name).type)]
        return pq.ParquetFile(path, read_dictionary=encoded).read(columns=wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RecordingError(path.name, f"cannot be read as parquet: {first}") from error


def _decode(file: str, spec: ColumnSpec, data: pa.ChunkedArray) -> Column:
    array = data.combine_chunks() if data.num_chunks != 1 else data.chunk(0)
    if array.null_count and not spec.nullable:
        row = int(np.flatnonzero(_nulls(array))[0])
        raise RecordingError(file, "null where a value must be", column=spec.name, row=row)
    if spec.kind == "text":
        return _text(file, spec, array)
    if spec.kind == "binary":
        if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
            raise _wrong_type(file, spec, array.type)
        return [value.as_py() for value in array]
    if spec.kind.startswith("int"):
        return _integers(file, spec, array)
    return _floats(file, spec, array)


def _nulls(array: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(array).to_pylist() if not len(array) else np.asarray(pc.is_null(array)), dtype=bool)


def _wrong_type(file: str, spec: ColumnSpec, found: pa.DataType) -> RecordingError:
    return RecordingError(file, f"type {found}: must be {_told(spec)}", column=spec.name, row=0)


def _told(spec: ColumnSpec) -> str:
    return "string" if spec.kind == "text" else spec.kind


def _text(file: str, spec: ColumnSpec, array: pa.Array) -> Text:
    if pa.types.is_null(array.type):
        return Text(np.full(len(array), -1, np.int32), ())
    value_type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type)):
        raise _wrong_type(file, spec, array.type)
    encoded = array if pa.types.is_dictionary(array.type) else pc.dictionary_encode(array)
    codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int32)
    words = tuple("" if word is None else word for word in encoded.dictionary.to_pylist())
    if spec.choices:
        bad = [code for code, word in enumerate(words) if word not in spec.choices]
        rows = np.flatnonzero(np.isin(codes, bad))
        if rows.size:
            must = " or ".join(spec.choices)
            raise RecordingError(file, f"{words[codes[rows[0]]]!r}: must be {must}", column=spec.name, row=int(rows[0]))
    return Text(codes, words)


def _integers(file: str, spec: ColumnSpec, array: pa.Array) -> NDArray[Any]:
    if pa.types.is_null(array.type):
        return np.full(len(array), -1, np.dtype(spec.kind))
    if not pa.types.is_integer(array.type):
        raise _wrong_type(file, spec, array.type)
    values = np.asarray((array.fill_null(-1) if array.null_count else array).to_numpy(zero_copy_only=False))
    limits = _LIMITS[spec.kind]
    beyond = np.flatnonzero((values > limits.max) | (values < limits.min))
    if beyond.size:
        row = int(beyond[0])
        raise RecordingError(file, f"{values[row]}: does not fit {spec.kind}", column=spec.name, row=row)
    return values.astype(spec.kind, copy=False)


def _floats(file: str, spec: ColumnSpec, array: pa.Array) -> NDArray[Any]:
    if pa.types.is_null(array.type):
        return np.full(len(array), math.nan, np.dtype(spec.kind))
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        raise _wrong_type(file, spec, array.type)
    wide = array.cast(pa.float64()) if array.null_count or not pa.types.is_floating(array.type) else array
    values = np.asarray(wide.to_numpy(zero_copy_only=False))  # nulls become NaN
    if spec.name.endswith("_seconds"):
        negative = np.flatnonzero(values < 0)
        if negative.size:
            row = int(negative[0])
            raise RecordingError(file, f"{values[row]}: must not be negative", column=spec.name, row=row)
    return values.astype(spec.kind, copy=False)


def _check_order(file: str, name: str, column: Column) -> None:
    assert isinstance(column, np.ndarray)  # noqa: S101  # a time column is numbers by its specification
    back = np.flatnonzero(np.diff(column) < 0)
    if back.size:
        row = int(back[0]) + 1
        text = f"{column[row]} after {column[row - 1]}: times must not go backwards"
        raise RecordingError(file, text, column=name, row=row)


def json_payload(file: str, row: int, text: str) -> dict[str, Any]:
    """Read the JSON text of an event's payload ("" = none).

    Raises:
        RecordingError: no JSON, or no object.
    """
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RecordingError(file, f"{text[:80]!r} is no JSON: {error}", column="payload", row=row) from error
    if not isinstance(value, dict):
        raise RecordingError(file, f"{text[:80]!r}: must be a JSON object", column="payload", row=row)
    return value

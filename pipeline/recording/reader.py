"""Read a recording's folder; errors name the file, column and row that are wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tocsin.pipeline.recording.dumps import read_dumps
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_attempts, check_sizes, unreadable
from tocsin.pipeline.recording.manifest import is_there, read_manifest, read_truth, read_user_metrics
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
from tocsin.schemas.errors import RecordingError, SchemaError
from tocsin.schemas.wire.validate import MAX_NAME_BYTES, MAX_RANKS, load_json

EXTRA_COLUMNS: Mapping[str, tuple[ColumnSpec, ...]] = {
    "steps": (ColumnSpec("batch_ns", "int64", required=False, nullable=True),),
    "collectives": (ColumnSpec("batch_ns", "int64", required=False, nullable=True),),
    "events": (ColumnSpec("attempt", "int32", required=False, nullable=True),),
    "groups": (ColumnSpec("host", "text", required=False, nullable=True),),
    "topology": (
        ColumnSpec("world_size", "int32", required=False, nullable=True, high=MAX_RANKS),
        ColumnSpec("pid", "int64", required=False, nullable=True),
    ),
}
"""Columns that only tocsin's own recorder writes, so that a replay cuts the same slices as the live engine."""

_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_LONG_TEXTS = ("payload", "status")
MAX_PAYLOAD_BYTES = 1 << 30
"""Maximum total size of one payload column, each row counted, because every payload is parsed."""
_LIMITS = {kind: np.iinfo(kind) for kind in ("int8", "int16", "int32", "int64")}


def read_recording(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Recording:
    """Read all files of a recording's folder.

    Args:
        folder: the recording.
        limits: limits on its size, checked before anything is read.

    Raises:
        RecordingError: the folder or manifest is missing, a file is not valid Parquet, or a column, type, value or time
            order is wrong. Names file, column and row.
    """
    manifest = read_manifest(folder, limits)
    user_metrics = read_user_metrics(folder, limits)
    specs = [_widened(spec, user_metrics) for spec in (*TABLES.values(), AGENT_STATUS)]
    files = [(folder / f"{spec.name}.parquet", spec) for spec in specs]
    there = [(path, spec) for path, spec in files if is_there(path)]
    check_sizes(there, limits, len(user_metrics))
    tables: dict[str, Columns] = {spec.name: read_table(path, spec) for path, spec in there}
    check_attempts(tables, limits)
    dumps, notes = read_dumps(folder)
    notes = (*notes, *_undeclared(folder, user_metrics))
    return Recording(manifest, tables, user_metrics, read_truth(folder), dumps, notes)


def _undeclared(folder: Path, user_metrics: Mapping[str, Any]) -> Iterator[str]:
    """Warn of metrics that are declared but missing, or present but not declared, which may be misspelt."""
    path = folder / "host_metrics.parquet"
    if not is_there(path):
        if user_metrics:
            yield f"metrics.json, {_names(user_metrics)}: there is no host_metrics.parquet, nothing is judged by it"
        return
    there = pq.read_schema(path).names
    known = {column.name for column in _widened(TABLES["host_metrics"], user_metrics).columns}
    if absent := [name for name in user_metrics if name not in there]:
        yield f"metrics.json, {_names(absent)}: host_metrics.parquet has no such column, nothing is judged by it"
    if strange := [name for name in there if name not in known]:
        yield f"host_metrics.parquet, column {_names(strange)}: no built-in metric, nor in metrics.json: left out"


def _names(names: Iterable[str]) -> str:
    """Join names with commas, sorted."""
    return ", ".join(sorted(names))


AGENT_STATUS = TableSpec(
    "agent_status",
    (
        ColumnSpec("ts_ns", "int64"),
        ColumnSpec("host", "text"),
        ColumnSpec("status", "text"),
    ),
    time="ts_ns",
)
"""Specification of the agents' heartbeats as JSON, written only by tocsin's own recorder."""


def _widened(spec: TableSpec, user_metrics: Mapping[str, Any]) -> TableSpec:
    """Return a table's specification with the recorder's extra columns and the user-defined metrics."""
    extra = list(EXTRA_COLUMNS.get(spec.name, ()))
    if spec.name == "host_metrics":
        extra = [ColumnSpec(name, "float32", required=False, nullable=True) for name in user_metrics]
    return TableSpec(spec.name, (*spec.columns, *extra), spec.time)


def read_table(path: Path, spec: TableSpec) -> Columns:
    """Read one Parquet file and check it against its specification.

    Raises:
        RecordingError: the file does not match; names file, column and row.
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
    """Read the known columns of a Parquet file, with repeated texts stored once."""
    texts = {column.name for column in spec.columns if column.kind in ("text", "binary")}
    known = {column.name for column in spec.columns}
    try:
        schema = pq.read_schema(path)
        wanted = [name for name in schema.names if name in known]
        for name in wanted:
            if wanted.count(name) > 1:
                raise RecordingError(path.name, "the column stands there twice", column=name)
        # As dictionaries: a text that stands in a million rows takes its bytes once, as in the file.
        encoded = [name for name in wanted if name in texts and _is_bytes(schema.field(name).type)]
        return pq.ParquetFile(path, read_dictionary=encoded).read(columns=wanted)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise unreadable(path, error) from error


def _is_bytes(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is text or binary."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(kind) for is_kind in kinds)


def _decode(file: str, spec: ColumnSpec, data: pa.ChunkedArray) -> Column:
    """Convert an Arrow column to the form of its specification, and check it."""
    array = data.combine_chunks() if data.num_chunks != 1 else data.chunk(0)
    if array.null_count and not spec.nullable:
        row = int(np.flatnonzero(_nulls(array))[0])
        raise RecordingError(file, "null where a value must be", column=spec.name, row=row)
    if spec.kind == "text":
        return _text(file, spec, array)
    if spec.kind == "binary":
        return _binary(file, spec, array)
    if spec.kind.startswith("int"):
        return _integers(file, spec, array)
    return _floats(file, spec, array)


def _nulls(array: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a mask of the rows that are null."""
    return np.asarray(pc.is_null(array).to_pylist() if not len(array) else np.asarray(pc.is_null(array)), dtype=bool)


def _wrong_type(file: str, spec: ColumnSpec, found: pa.DataType) -> RecordingError:
    """Return the error for a column of the wrong type."""
    return RecordingError(file, f"type {found}: must be {_type_name(spec)}", column=spec.name, row=0)


def _type_name(spec: ColumnSpec) -> str:
    """Return the name of a column's expected type for an error."""
    return "string" if spec.kind == "text" else spec.kind


def _binary(file: str, spec: ColumnSpec, array: pa.Array) -> list[bytes]:
    """Convert a binary column to a list; equal rows share one object, so memory stays bounded by the file."""
    value_type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_binary(value_type) or pa.types.is_large_binary(value_type)):
        raise _wrong_type(file, spec, array.type)
    encoded = array if pa.types.is_dictionary(array.type) else pc.dictionary_encode(array)
    words = encoded.dictionary.to_pylist()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
    _check_worked_off(file, spec, codes, [len(word) for word in words])
    return [words[code] for code in codes.tolist()]


def _check_worked_off(file: str, spec: ColumnSpec, codes: NDArray[Any], sizes: Sequence[int]) -> None:
    """Refuse payloads that are small in the file but large to process, because many rows share a large one."""
    total_bytes = int(np.asarray(sizes, np.int64)[codes[codes >= 0]].sum()) if len(sizes) else 0
    if total_bytes > MAX_PAYLOAD_BYTES:
        text = f"{total_bytes} bytes in all rows together: at most {MAX_PAYLOAD_BYTES}"
        raise RecordingError(file, text, column=spec.name)


def _text(file: str, spec: ColumnSpec, array: pa.Array) -> Text:
    """Convert a text column, and check each distinct text."""
    if pa.types.is_null(array.type):
        return Text(np.full(len(array), -1, np.int32), ())
    value_type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not any(is_text(value_type) for is_text in _TEXT_TYPES):
        raise _wrong_type(file, spec, array.type)
    encoded = array if pa.types.is_dictionary(array.type) else pc.dictionary_encode(array)
    codes = np.asarray(encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int32)
    found = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    if spec.name in _LONG_TEXTS:
        _check_worked_off(file, spec, codes, [len(raw or b"") for raw in found])
    words: list[str] = []
    for code, raw in enumerate(found):
        word, must = _word(spec, raw or b"")
        words.append(word)
        rows = np.flatnonzero(codes == code) if must else np.empty(0)
        if rows.size:
            raise RecordingError(file, f"{word[:80]!r}: must be {must}", column=spec.name, row=int(rows[0]))
    if len(set(words)) == len(words):
        return Text(codes, tuple(words))
    once = Text.of(words)  # a dictionary may hold a word twice
    return Text(np.where(codes < 0, -1, once.codes[codes]).astype(np.int32), once.words)


def _word(spec: ColumnSpec, raw: bytes) -> tuple[str, str]:
    """Return a text and what it must be if it is invalid ("" = it is valid)."""
    try:
        word = raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), "text in UTF-8"
    if spec.choices and word not in spec.choices:
        return word, " or ".join(spec.choices)
    if spec.filled and not word:
        return word, "not empty"
    if spec.name not in _LONG_TEXTS and (len(raw) > MAX_NAME_BYTES or "\0" in word):
        return word, f"at most {MAX_NAME_BYTES} bytes without NUL"
    return word, ""


def _integers(file: str, spec: ColumnSpec, array: pa.Array) -> NDArray[Any]:
    """Convert an integer column (null becomes -1), and check its range."""
    if pa.types.is_null(array.type):
        return np.full(len(array), -1, np.dtype(spec.kind))
    if not pa.types.is_integer(array.type):
        raise _wrong_type(file, spec, array.type)
    nulls = _nulls(array) if array.null_count else None
    values = np.asarray((array if nulls is None else array.fill_null(0)).to_numpy(zero_copy_only=False))
    limits = _LIMITS[spec.kind]
    beyond = np.flatnonzero((values > limits.max) | (values < limits.min))
    if beyond.size:
        row = int(beyond[0])
        raise RecordingError(file, f"{values[row]}: does not fit {spec.kind}", column=spec.name, row=row)
    if spec.low is not None and values.size and values.min() < spec.low:
        row = int(np.flatnonzero(values < spec.low)[0])
        must = "must not be negative" if spec.low == 0 else f"must be at least {spec.low}"
        raise RecordingError(file, f"{values[row]}: {must}", column=spec.name, row=row)
    if spec.high is not None and values.size and values.max() > spec.high:
        row = int(np.flatnonzero(values > spec.high)[0])
        raise RecordingError(file, f"{values[row]}: must be at most {spec.high}", column=spec.name, row=row)
    values = values.astype(spec.kind, copy=False)
    return values if nulls is None else np.where(nulls, np.array(-1, spec.kind), values)


def _floats(file: str, spec: ColumnSpec, array: pa.Array) -> NDArray[Any]:
    """Convert a float column (null becomes NaN), and check its range."""
    if pa.types.is_null(array.type):
        return np.full(len(array), math.nan, np.dtype(spec.kind))
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        raise _wrong_type(file, spec, array.type)
    wide = array.cast(pa.float64(), safe=False) if array.null_count or not pa.types.is_floating(array.type) else array
    values = np.asarray(wide.to_numpy(zero_copy_only=False))  # nulls become NaN
    if spec.low is not None:
        bad = np.flatnonzero((values < spec.low) | np.isinf(values))
        if bad.size:
            row = int(bad[0])
            must = "must be finite" if values[row] > 0 else "must not be negative"
            raise RecordingError(file, f"{values[row]}: {must}", column=spec.name, row=row)
    if spec.high is not None and (above := np.flatnonzero(values > spec.high)).size:
        row = int(above[0])
        raise RecordingError(file, f"{values[row]}: must be at most {spec.high:g}", column=spec.name, row=row)
    with np.errstate(over="ignore"):  # beyond float32: infinite, which no sample is
        return values.astype(spec.kind, copy=False)


def _check_order(file: str, name: str, column: Column) -> None:
    """Raise ``RecordingError`` if a time column goes backwards."""
    assert isinstance(column, np.ndarray)  # noqa: S101  # a time column is numbers by its specification
    back = np.flatnonzero(np.diff(column) < 0)
    if back.size:
        row = int(back[0]) + 1
        text = f"{column[row]} after {column[row - 1]}: times must not go backwards"
        raise RecordingError(file, text, column=name, row=row)


def json_payload(file: str, row: int, text: str, column: str = "payload") -> dict[str, Any]:
    """Parse the JSON text of an event's payload; "" gives {}.

    Raises:
        RecordingError: it is not a JSON object, or an integer exceeds 64 bit.
    """
    if not text:
        return {}
    try:
        value = load_json(text.encode(), column)
    except SchemaError as error:
        raise RecordingError(file, f"{text[:80]!r}: {error}", column=column, row=row) from error
    if not isinstance(value, dict):
        raise RecordingError(file, f"{text[:80]!r}: must be a JSON object", column=column, row=row)
    return value

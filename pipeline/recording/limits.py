"""Limits on the size of recordings, because a folder from an untrusted source must not exhaust the machine.

Sizes are known before reading: Parquet footers state rows and bytes, JSON files have a file size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.pipeline.recording.tables import METRIC_NAMES, TableSpec
from tocsin.schemas.errors import ConfigError, RecordingError

_GIGABYTE = 1 << 30
_CODE_BYTES = 4
_WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "float64": 8, "binary": _CODE_BYTES}
MAX_JSON_BYTES = 16_000_000
"""Maximum size of one JSON file, equal to that of the largest record on the wire."""
MAX_COLUMNS = 4096
"""Maximum number of columns in a Parquet file, unknown ones included.

The format has at most thirty, metrics.json 1,000.
"""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits on one recording.

    Attributes:
        row_count: rows of all tables together; the default is 10,000 machines with 8 GPUs for nine minutes.
        memory_bytes: memory of all tables together, by their footers.
        days: length from ``start_ns`` to ``end_ns``; each second costs time, even without records.
        metric_count: user-defined metrics.
        attempt_count: attempts of the job; each has its own operators.
    """

    row_count: float = 50_000_000
    memory_bytes: float = 8 * _GIGABYTE
    days: float = 14
    metric_count: float = 1_000
    attempt_count: float = 1_000


DEFAULT_LIMITS = ReadLimits()
_NAMES = {
    "rows": ("row_count", 1),
    "gigabytes": ("memory_bytes", _GIGABYTE),
    "days": ("days", 1),
    "metrics": ("metric_count", 1),
    "attempts": ("attempt_count", 1),
}
"""Name in ``--max`` -> (field of ``ReadLimits``, factor to the field's unit)."""


def limits_of(settings: Iterable[str]) -> ReadLimits:
    """Parse ``NAME=NUMBER`` settings of ``--max``; limits that are not named keep their defaults.

    Raises:
        ConfigError: a name is unknown, or a number is not positive.
    """
    given: dict[str, float] = {}
    for text in settings:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if name not in _NAMES or not value > 0:
            raise ConfigError("--max", text[:80], f"NAME=NUMBER with a NAME of {', '.join(_NAMES)}")
        field, unit = _NAMES[name]
        given[field] = value * unit
    return replace(DEFAULT_LIMITS, **given)


def check_limit(limits: ReadLimits, name: str, value: float, where: tuple[str, str], what: str) -> None:
    """Raise an error if a value is above a limit.

    Args:
        limits: the limits.
        name: name of the limit in ``--max``.
        value: the value, in the unit of ``--max``.
        where: the file's name, and the field or column ("" = the whole file).
        what: the value with its unit, for the error.

    Raises:
        RecordingError: the value is above the limit; the message says how to raise it.
    """
    field, unit = _NAMES[name]
    most: float = getattr(limits, field) / unit
    if value > most:
        text = f"{what}: at most {most:g} are read (--max {name}={value:.6g} reads it)"
        raise RecordingError(where[0], text, column=where[1])


def check_sizes(tables: Iterable[tuple[Path, TableSpec]], limits: ReadLimits, metric_count: int) -> None:
    """Check the sizes in the footers of all tables before any table is read.

    Args:
        tables: existing files with their specifications.
        limits: the limits.
        metric_count: number of user-defined metrics; each takes a column of ``host_metrics`` in memory.

    Raises:
        RecordingError: a footer cannot be read, or rows or bytes exceed a limit.
    """
    rows, size_bytes = 0, 0
    for path, spec in tables:
        found = _stated(path, spec, metric_count)
        rows += found[0]
        size_bytes += found[1]
        check_limit(limits, "rows", rows, (path.name, ""), f"{rows} rows in the tables up to this one")
        what = f"{size_bytes / _GIGABYTE:.1f} gigabytes in the tables up to this one"
        check_limit(limits, "gigabytes", size_bytes / _GIGABYTE, (path.name, ""), what)


def _stated(path: Path, spec: TableSpec, metric_count: int) -> tuple[int, int]:
    """Return a table's number of rows and its size in memory in bytes, where each distinct text counts once."""
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise unreadable(path, error) from error
    if footer.num_columns > MAX_COLUMNS:
        raise RecordingError(path.name, f"{footer.num_columns} columns: at most {MAX_COLUMNS}")
    kinds = {column.name: column.kind for column in spec.columns}
    schema = footer.schema
    known = [index for index in range(footer.num_columns) if schema.column(index).path in kinds]
    width = sum(_WIDTHS.get(kinds[schema.column(index).path], _CODE_BYTES) for index in known)
    if spec.name == "host_metrics":
        width += (len(METRIC_NAMES) + metric_count) * _WIDTHS["float32"]
    texts = [index for index in known if kinds[schema.column(index).path] in ("text", "binary")]
    stored = sum(
        footer.row_group(group).column(index).total_uncompressed_size
        for group in range(footer.num_row_groups)
        for index in texts
    )
    return footer.num_rows, footer.num_rows * width + stored


def unreadable(path: Path, error: BaseException) -> RecordingError:
    """Return the error for a file that Arrow cannot read."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return RecordingError(path.name, f"cannot be read as parquet: {first}")


def check_json_size(path: Path) -> None:
    """Check the size of a JSON file.

    Raises:
        RecordingError: it exceeds ``MAX_JSON_BYTES``, or cannot be determined.
    """
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise RecordingError(path.name, f"cannot be read: {error}") from error
    if size_bytes > MAX_JSON_BYTES:
        raise RecordingError(path.name, f"{size_bytes} bytes: at most {MAX_JSON_BYTES}")


def check_attempts(tables: Mapping[str, Mapping[str, object]], limits: ReadLimits) -> None:
    """Check the number of attempts in each table.

    Raises:
        RecordingError: a table has more attempts than the limit.
    """
    for name, columns in tables.items():
        attempts = columns.get("attempt")
        if isinstance(attempts, np.ndarray) and attempts.size:
            count = int(np.unique(attempts).size)
            check_limit(limits, "attempts", count, (f"{name}.parquet", "attempt"), f"{count} attempts")

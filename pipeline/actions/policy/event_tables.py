"""Rows of events from a table of a recording: Parquet, or CSV with the same columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.schemas.errors import RecordingError

_WHOLE: Final = re.compile(r"-?\d{1,19}")
_NUMBERS: Final = ("ts_ns", "rank")
_COLUMNS: Final = ("cluster", "job_id", "ts_ns", "host", "rank", "source", "name", "severity", "payload")
SUFFIXES: Final = (".parquet", ".csv")
"""Ends of the names of files that are such tables."""


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a table with their numbers: of a CSV file the line, of Parquet the row from 1.

    An empty field of a CSV file is one that is not given. Unknown columns are left out.

    Raises:
        RecordingError: the file cannot be read, or is no such table.
    """
    try:
        yield from _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except (csv.Error, UnicodeDecodeError, pa.ArrowException) as error:
        must = f"a {path.suffix.lower().removeprefix('.')} table ({' '.join(str(error).split())[:200]})"
        raise RecordingError(str(path), must) from error
    except OSError as error:
        raise RecordingError(str(path), f"a file that can be read ({error.strerror or error})") from error


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a Parquet file, in pieces, so that a long one fits into memory."""
    number = 0
    with path.open("rb") as stream:
        file = pq.ParquetFile(stream)
        names = [name for name in _COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=names):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _csv(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a CSV file whose first line names the columns."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            found: dict[str, object] = {name: row[name] for name in _COLUMNS if row.get(name)}
            found.setdefault("host", "")
            for name in _NUMBERS:
                value = found.get(name)
                if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
                    found[name] = int(value)
            yield reader.line_num, found

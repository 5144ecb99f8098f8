"""Write a recording's folder in the recording format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.pipeline.recording.dumps import FOLDER as DUMP_FOLDER
from tocsin.pipeline.recording.manifest import manifest_object
from tocsin.pipeline.recording.ops import OPS
from tocsin.pipeline.recording.reader import AGENT_STATUS, EXTRA_COLUMNS
from tocsin.pipeline.recording.tables import NULL_MASKS, TABLES, Column, Columns, ColumnSpec, Recording, Text
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.private_files import make_private_folder, private_file, write_private

_ARROW = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "text": pa.string(),
    "binary": pa.binary(),
}


def write_recording(folder: Path, recording: Recording) -> None:
    """Write all files of a recording to a new or empty folder.

    Raises:
        RecordingError: the folder is not empty, or a table lacks a column.
    """
    claim_folder(folder)
    for name, columns in recording.tables.items():
        write_table(folder / f"{name}.parquet", name, columns)
    if recording.user_metrics:
        write_json(folder / "metrics.json", recording.user_metrics)
    if recording.truth is not None:
        write_json(folder / "truth.json", recording.truth)
    for rank, data in recording.dumps.items():
        write_dump(folder, rank, data)
    # Last: a folder with a manifest is complete.
    write_json(folder / "manifest.json", manifest_object(recording.manifest))


def claim_folder(folder: Path) -> None:
    """Create the folder, or use an empty one; never overwrite anything.

    Raises:
        RecordingError: the folder cannot be created, or is not empty.
    """
    try:
        make_private_folder(folder)
    except OSError as error:
        raise RecordingError(str(folder), f"cannot be made: {error}") from error
    if any(folder.iterdir()):
        raise RecordingError(str(folder), "holds something already: name a new or empty folder")


def write_dump(folder: Path, rank: int, data: bytes) -> None:
    """Write one rank's Flight Recorder dump, replacing an earlier one."""
    (folder / DUMP_FOLDER).mkdir(folder.stat().st_mode & 0o777, exist_ok=True)
    write_private(folder / DUMP_FOLDER / f"rank_{rank}", data)


def write_json(path: Path, value: object) -> None:
    """Write a value to a JSON file."""
    write_private(path, (json.dumps(value, indent=1) + "\n").encode())


def write_table(path: Path, name: str, columns: Columns) -> None:
    """Write one table.

    Raises:
        RecordingError: a required column is missing.
    """
    with private_file(path, "w") as file:
        pq.write_table(arrow_table(name, columns), file, compression="zstd")


def arrow_table(name: str, columns: Columns) -> pa.Table:
    """Return columns as an Arrow table with the types of the format; unknown columns keep their own types.

    Raises:
        RecordingError: a required column is missing.
    """
    spec = {**TABLES, OPS.name: OPS}.get(name, AGENT_STATUS)
    known: dict[str, ColumnSpec] = {c.name: c for c in (*spec.columns, *EXTRA_COLUMNS.get(name, ()))}
    for column in spec.columns:
        if column.required and column.name not in columns:
            raise RecordingError(f"{name}.parquet", "the required column is missing", column=column.name)
    masks = {name: columns.get(mask) for name, mask in NULL_MASKS.items()}
    arrays: dict[str, Any] = {
        key: _arrow_array(known.get(key), value, masks.get(key))
        for key, value in columns.items()
        if key not in NULL_MASKS.values()
    }
    return pa.table(arrays)


def _arrow_array(spec: ColumnSpec | None, column: Column, mask: Column | None = None) -> pa.Array:
    """Return one column as an Arrow array; ``mask`` marks the rows that are null."""
    if isinstance(column, Text):
        codes = pa.array(column.codes, mask=column.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(column.words), pa.string()))
    if isinstance(column, list):
        return pa.array(column, pa.binary())
    if spec is None:
        return pa.array(column)
    return pa.array(np.asarray(column).astype(spec.kind, copy=False), _ARROW[spec.kind], mask=mask)

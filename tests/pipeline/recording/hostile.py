"""Recordings from outsiders that state far more than they weigh; each a folder of some kilobytes to a megabyte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.recording.kit import START_NS, good_tables, manifest, seconds, write_folder

DAY_SECONDS = 86_400


def long_manifest(folder: Path) -> Path:
    """61 days without a record in them."""
    return write_folder(folder, good_tables(), reported=manifest(61 * DAY_SECONDS))


def many_metrics(folder: Path) -> Path:
    """100,000 metrics of the user's own."""
    return write_folder(folder, good_tables(), metrics={f"m{number}": {} for number in range(100_000)})


def large_json(folder: Path) -> Path:
    """Notes of 20 MB."""
    return write_folder(folder, good_tables(), reported=manifest(notes="x" * 20_000_000))


def many_digits(folder: Path) -> Path:
    """A time of 5,000 digits."""
    write_folder(folder, good_tables())
    text = json.dumps(manifest()).replace(str(START_NS), "9" * 5_000, 1)
    (folder / "manifest.json").write_text(text)
    return folder


def deep_json(folder: Path) -> Path:
    """A truth that is nested 100,000 deep."""
    write_folder(folder, good_tables())
    (folder / "truth.json").write_text('{"faults": ' + "[" * 100_000 + "]" * 100_000 + "}")
    return folder


def many_columns(folder: Path) -> Path:
    """A table of 5,000 columns."""
    rows = good_tables()["steps"]
    return write_folder(folder, {"steps": {**rows, **{f"c{number}": rows["rank"] for number in range(5_000)}}})


def many_attempts(folder: Path) -> Path:
    """Steps of 5,000 attempts: each would have operators of its own."""
    count = 5_000
    steps = {
        "ts_ns": seconds(*np.linspace(1, 50, count)),
        "rank": pa.array(np.zeros(count), pa.int32()),
        "step": pa.array(np.arange(count), pa.int64()),
        "duration_seconds": pa.array(np.full(count, 0.01)),
        "attempt": pa.array(np.arange(count), pa.int32()),
    }
    return write_folder(folder, {"steps": steps})


def shared_payload(folder: Path) -> Path:
    """10,000 events that share one payload of 200 kB: 2 GB to parse."""
    count = 10_000
    text = json.dumps({"stderr_tail": "x" * 200_000})
    payload = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count), pa.int32()), pa.array([text]))
    events = {
        "ts_ns": seconds(*np.linspace(1, 50, count)),
        "host": pa.array(["a"] * count),
        "rank": pa.array(np.zeros(count), pa.int32()),
        "source": pa.array(["process"] * count),
        "name": pa.array(["exit"] * count),
        "severity": pa.array(["error"] * count),
        "payload": payload,
    }
    return write_folder(folder, {"events": events})


def shared_dump(folder: Path) -> Path:
    """10,000 answers that share one dump of 200 kB."""
    count = 10_000
    payload = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count), pa.int32()), pa.array([b"x" * 200_000]))
    probes = {
        "ts_ns": seconds(*np.linspace(1, 50, count)),
        "host": pa.array(["a"] * count),
        "rank": pa.array(np.zeros(count), pa.int32()),
        "request_id": pa.array([str(number) for number in range(count)]),
        "kind": pa.array(["flight_recorder"] * count),
        "payload": payload.cast(pa.binary()) if count < 100 else payload,
    }
    return write_folder(folder, {"probes": probes})


def many_rows(folder: Path, group_count: int = 41, rows_in_group: int = 5_000_000) -> Path:
    """205 million rows of the same topology in some hundred kilobytes."""
    write_folder(folder, {})
    rank = pa.array(np.zeros(rows_in_group, np.int32))
    host = pa.DictionaryArray.from_arrays(rank, pa.array(["a"]))
    table = pa.table({"rank": rank, "host": host})
    with pq.ParquetWriter(folder / "topology.parquet", table.schema) as writer:
        for _ in range(group_count):
            writer.write_table(table)
    return folder


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "long-manifest": (long_manifest, "manifest.json"),
    "many-metrics": (many_metrics, "metrics.json"),
    "large-json": (large_json, "manifest.json"),
    "many-digits": (many_digits, "manifest.json"),
    "deep-json": (deep_json, "truth.json"),
    "many-columns": (many_columns, "steps.parquet"),
    "many-attempts": (many_attempts, "steps.parquet"),
    "shared-payload": (shared_payload, "events.parquet"),
    "shared-dump": (shared_dump, "probes.parquet"),
}
"""Name -> what writes the folder, and the file that the error must name."""

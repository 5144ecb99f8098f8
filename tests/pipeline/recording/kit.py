"""Small recordings, written with pyarrow as an outside program would, not with our own writer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.schemas.records import NS_PER_SECOND

START_NS = 1_700_000_000 * NS_PER_SECOND
Rows = dict[str, pa.Array]


def seconds(*times: float) -> pa.Array:
    """Times since the recording's start as int64."""
    return pa.array([START_NS + round(time * NS_PER_SECOND) for time in times], pa.int64())


def manifest(duration_seconds: float = 60, /, **changes: Any) -> dict[str, Any]:
    """The object of a good manifest; None leaves a field out."""
    end_ns = START_NS + round(duration_seconds * NS_PER_SECOND)
    good = {"format_version": 1, "job_id": "job", "attempt": 0, "start_ns": START_NS, "end_ns": end_ns, "notes": ""}
    return {key: value for key, value in {**good, **changes}.items() if value is not None}


def good_tables() -> dict[str, Rows]:
    """Three rows of each table, with the required columns and some of the others."""
    i32, f64 = pa.int32(), pa.float64()
    return {
        "topology": {"rank": pa.array([0, 1, 2], i32), "host": pa.array(["a", "b", "c"])},
        "groups": {
            "comm_id": pa.array(["w"] * 3),
            "kind": pa.array(["world"] * 3),
            "rank": pa.array([0, 1, 2], i32),
        },
        "host_metrics": {
            "ts_ns": seconds(1, 1, 2),
            "host": pa.array(["a", "b", "a"]),
            "gpu": pa.array([-1, -1, 0], pa.int8()),
            "cpu_util_ratio": pa.array([0.5, 0.5, None], pa.float32()),
            "gpu_util_ratio": pa.array([None, None, 0.9], pa.float32()),
        },
        "steps": {
            "ts_ns": seconds(1, 1, 2),
            "rank": pa.array([0, 1, 0], i32),
            "step": pa.array([1, 1, 2], pa.int64()),
            "duration_seconds": pa.array([0.5, 0.5, 0.5], f64),
            "loss": pa.array([2.0, None, float("nan")], f64),
        },
        "collectives": {
            "ts_ns": seconds(1, 2, 3),
            "record": pa.array(["completion", "completion", "state"]),
            "rank": pa.array([0, 1, 2], i32),
            "comm_id": pa.array(["w"] * 3),
            "op_name": pa.array(["all_reduce"] * 3),
            "op_seq": pa.array([1, 1, 2], pa.int64()),
            "msg_bytes": pa.array([8, 8, 8], pa.int64()),
            "start_ns": seconds(0, 1, 2),
            "end_ns": pa.array([START_NS + NS_PER_SECOND, START_NS + 2 * NS_PER_SECOND, 0], pa.int64()),
            "channel": pa.array([-1, None, 0], pa.int16()),
        },
        "events": {
            "ts_ns": seconds(1, 2, 3),
            "host": pa.array(["a", "b", "c"]),
            "rank": pa.array([0, -1, 2], i32),
            "source": pa.array(["process", "kernel", "job"]),
            "name": pa.array(["nan", "xid", "phase"]),
            "severity": pa.array(["error", "error", "info"]),
            "payload": pa.array(["", '{"code": 94}', '{"phase": "checkpoint", "edge": "begin"}']),
        },
        "probes": {
            "ts_ns": seconds(1, 2, 3),
            "host": pa.array(["a", "b", "c"]),
            "rank": pa.array([0, 1, 2], i32),
            "request_id": pa.array(["r1", "r2", "r3"]),
            "kind": pa.array(["stacks", "ring", "fast_metrics"]),
            "payload": pa.array([b"x", b"", b"{}"], pa.binary()),
        },
    }


def write_folder(
    folder: Path,
    tables: Mapping[str, Mapping[str, pa.Array]],
    *,
    reported: object = None,
    metrics: object = None,
    truth: object = None,
) -> Path:
    """Write a recording folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        pq.write_table(pa.table(dict(rows)), folder / f"{name}.parquet")
    for name, value in (
        ("manifest", manifest() if reported is None else reported),
        ("metrics", metrics),
        ("truth", truth),
    ):
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def metric_rows(
    hosts: Iterable[str], times_seconds: Iterable[float], columns: Mapping[str, np.ndarray[Any, Any]], gpu: int = -1
) -> Rows:
    """``host_metrics`` with one row per time and host; each column has the shape (times, hosts)."""
    names, times = list(hosts), list(times_seconds)
    return {
        "ts_ns": pa.array(np.repeat(np.asarray(seconds(*times)), len(names))),
        "host": pa.array(names * len(times)),
        "gpu": pa.array(np.full(len(names) * len(times), gpu, np.int8)),
        **{name: pa.array(values.astype(np.float32).ravel()) for name, values in columns.items()},
    }

"""Disturbances of recordings as on real sites: lost samples, wrong clocks, missing metrics, a machine of another model.

Functions of a recording and a seed: the same seed gives the same bytes. The truth stays unchanged, because none of
this is a fault. ``make bench ARGS=robustness`` shows their effect on a detector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.tables import TABLES, Column, Columns, Recording, Text
from tocsin.schemas.records import NS_PER_SECOND

PROFILING_METRICS: Final = (
    "gpu_sm_active_ratio",
    "gpu_tensor_active_ratio",
    "gpu_graphics_active_ratio",
    "gpu_fp_active_ratio",
    "gpu_dram_active_ratio",
    "pcie_usage_ratio",
    "nvlink_bytes_per_second",
    "pcie_bytes_per_second",
)
"""Metrics of DCGM's profiling module. A host has none of them if another profiler holds the counters or the driver
forbids it."""
OTHER_SKU_FACTORS: Final[Mapping[str, tuple[float, float]]] = {
    "gpu_sm_clock_hertz": (0.7, 0.9),
    "gpu_power_watts": (0.6, 0.85),
    "gpu_temperature_celsius": (0.75, 0.95),
    "gpu_memory_used_bytes": (0.97, 1.0),
    "gpu_sm_active_ratio": (1.02, 1.1),
    "gpu_tensor_active_ratio": (1.02, 1.15),
}
"""Metric -> range of its factor on another GPU model at the same step time: lower clock, power and heat, units busier
for the same work. Ranges from public data sheets (A100 beside H100, PCIe beside SXM), not from measurements."""
_CLOCK_COLUMNS: Final = ("start_ns", "end_ns", "batch_ns")
"""Further time columns that come from the same clock; 0 or below means no time."""


def lose_samples(recording: Recording, seed: int, ratio: float = 0.05) -> Recording:
    """Return a recording without this share of its samples, chosen at random.

    A sample is all rows of a host at one tick, as a lost datagram would lose them.
    """
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return recording
    ts_ns, codes = _numbers(columns, "ts_ns"), cast(Text, columns["host"]).codes
    keys = np.stack([ts_ns, codes.astype(np.int64)])
    _, sample = np.unique(keys, axis=1, return_inverse=True)
    sample = np.asarray(sample).reshape(-1)
    kept = _rng(seed, 1).random(int(sample.max(initial=-1)) + 1) >= ratio
    return _with(recording, {"host_metrics": _rows(columns, kept[sample])})


def shift_clocks(recording: Recording, seed: int, offset_seconds: float = 0.2) -> Recording:
    """Return a recording in which each host's clock is off by exactly this offset, ahead or behind.

    That is the worst case of a bound on clock errors. All times that a host stamps move with its clock; rows are sorted
    again.
    """
    rng, offset_ns = _rng(seed, 2), round(offset_seconds * NS_PER_SECOND)
    hosts = _hosts(recording)
    shift_ns = dict(zip(hosts, rng.choice([-offset_ns, offset_ns], len(hosts)).tolist(), strict=True))
    places = Places(recording)
    changed: dict[str, Columns] = {}
    for name, columns in recording.tables.items():
        if name not in TABLES or not TABLES[name].time:
            continue
        moved = _shift_of_rows(columns, places, shift_ns)
        times = {key: _numbers(columns, key) for key in (TABLES[name].time, *_CLOCK_COLUMNS) if key in columns}
        shifted = {key: np.where(values > 0, np.maximum(values + moved, 0), values) for key, values in times.items()}
        order = np.argsort(shifted[TABLES[name].time], kind="stable")
        changed[name] = _rows({**columns, **shifted}, order)
    return _with(recording, changed)


def hide_profiling(recording: Recording, seed: int, ratio: float = 0.2) -> Recording:
    """Return a recording without the GPU profiling metrics on this share of the hosts, at least one."""
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return recording
    text = cast(Text, columns["host"])
    codes = np.unique(text.codes)
    chosen = _rng(seed, 3).permutation(codes)[: max(1, round(ratio * len(codes)))]
    blind = np.isin(text.codes, chosen)
    hidden = {
        name: np.where(blind, np.float32(np.nan), _numbers(columns, name))
        for name in PROFILING_METRICS
        if name in columns
    }
    return _with(recording, {"host_metrics": {**columns, **hidden}})


def change_sku(recording: Recording, seed: int) -> Recording:
    """Return a recording in which one healthy host is another machine model, from the first sample to the last."""
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return recording
    rng, text = _rng(seed, 4), cast(Text, columns["host"])
    faults = (recording.truth or {"faults": []})["faults"]
    guilty = {str(suspect["name"]) for fault in faults for suspect in fault["suspects"]}
    innocent = [code for code in np.unique(text.codes).tolist() if text.words[code] not in guilty]
    if not innocent:
        return recording
    own = text.codes == innocent[int(rng.integers(len(innocent)))]
    changed = {}
    for name, (low, high) in OTHER_SKU_FACTORS.items():
        factor = np.float32(low + (high - low) * rng.random())  # drawn for absent columns too: the others stay the same
        if name in columns:
            values = _numbers(columns, name)
            scaled = np.where(own, values * factor, values)
            changed[name] = np.minimum(scaled, np.float32(1.0)) if name.endswith("_ratio") else scaled
    return _with(recording, {"host_metrics": {**columns, **changed}})


Disturbance = Callable[[Recording, int], Recording]
DISTURBANCES: Final[Mapping[str, Disturbance]] = {
    "lost_samples": lose_samples,
    "clock_offsets": shift_clocks,
    "no_profiling": hide_profiling,
    "other_sku": change_sku,
}
"""Name -> disturbance with its default strength (5 %, 200 ms, 20 %, one host)."""


def disturb_all(recording: Recording, seed: int) -> Recording:
    """Return a recording with all disturbances applied one after the other."""
    for change in DISTURBANCES.values():
        recording = change(recording, seed)
    return recording


def _rng(seed: int, number: int) -> np.random.Generator:
    """Return the random generator of one disturbance."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, 5, number])))


def _numbers(columns: Columns, name: str) -> NDArray[Any]:
    """Return a column of numbers."""
    return cast("NDArray[Any]", columns[name])


def _hosts(recording: Recording) -> list[str]:
    """Return all host names, sorted, so that the choice does not depend on the order of rows."""
    tables = (columns for columns in recording.tables.values() if isinstance(columns.get("host"), Text))
    return sorted({word for columns in tables for word in cast(Text, columns["host"]).words})


def _shift_of_rows(columns: Columns, places: Places, shift_ns: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the clock offset of each row's host, nanoseconds."""
    host = columns.get("host")
    if isinstance(host, Text):
        own = np.array([*(shift_ns.get(word, 0) for word in host.words), 0], np.int64)  # the last one: null
        return own[host.codes]
    names, row = places.hosts_of(_numbers(columns, "rank"), _numbers(columns, "ts_ns"))
    return np.array([shift_ns.get(name, 0) for name in names], np.int64)[row]


def _rows(columns: Columns, rows: NDArray[Any]) -> Columns:
    """Return these rows (a mask or indices) of all columns."""
    wanted = np.flatnonzero(rows) if rows.dtype == bool else rows
    return {name: _taken(column, wanted) for name, column in columns.items()}


def _taken(column: Column, rows: NDArray[np.intp]) -> Column:
    """Return these rows of one column."""
    if isinstance(column, Text):
        return column.take(rows)
    return [column[row] for row in rows.tolist()] if isinstance(column, list) else column[rows]


def _with(recording: Recording, tables: Mapping[str, Columns]) -> Recording:
    """Return a recording with some tables replaced."""
    return replace(recording, tables={**recording.tables, **tables})

"""Time series of a recording's metrics for plots: means per machine and time span."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.frames import metric_table_of
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.score import host_count_of
from tocsin.pipeline.recording.tables import Recording, Text
from tocsin.schemas.job_key import LONE_RANK_PREFIX
from tocsin.schemas.records import NS_PER_SECOND

Singles = NDArray[np.float32]

DRAWN_COUNT = 64
"""Most machines whose lines are drawn one by one; beyond, bands are drawn."""
_MOST_POINTS = 300
_LEAST_POINTS = 100
_POINTS_A_PLOT = 6400
"""Most points in one plot over all lines; a page of 20 metrics then stays below a megabyte."""
_LEAST_TICKS = 2
"""Least ticks in a point. Samples jitter in time, so points of one tick would hold none here and two there."""
STEPS_PREFIX = "steps."
_PHASES = ("data", "forward", "backward", "optimizer", "communication")
_STEP_COLUMNS = ("step", "duration_seconds", *(f"{phase}_seconds" for phase in _PHASES))
"""Columns of ``steps`` that are plotted. ``step`` shows each machine's progress: at a hang its line ends, and machines
behind lie lower."""


@dataclass(frozen=True, slots=True)
class Points:
    """The time axis shared by all plots of a recording.

    Attributes:
        start_ns: begin of the first point's span.
        span_ns: length of the span that one point averages.
        count: number of points.
    """

    start_ns: int
    span_ns: int
    count: int

    @classmethod
    def of(cls, recording: Recording) -> Points:
        """Return the time axis of a recording, with fewer points the more machines there are."""
        manifest = recording.manifest
        tick_ns = round(manifest.tick_seconds * NS_PER_SECOND)
        length_ns = max(manifest.end_ns - manifest.start_ns, tick_ns)
        most = min(_MOST_POINTS, max(_LEAST_POINTS, _POINTS_A_PLOT // host_count_of(recording)))
        ticks = max(_LEAST_TICKS, math.ceil(length_ns / tick_ns / most))
        span_ns = ticks * tick_ns
        return cls(manifest.start_ns, span_ns, math.ceil(length_ns / span_ns))


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """The time series of one metric for all machines.

    Attributes:
        metric: name of its column, prefixed with ``steps.`` for a column of steps.
        hosts: machines with a sample, ascending; a rank if its machine is unknown.
        values: shape (hosts, points), NaN = no sample in the span.
        spread: machine -> lowest and highest GPU, shape (2, points), for requested machines with several GPUs.
    """

    metric: str
    hosts: tuple[str, ...]
    values: Singles
    spread: Mapping[str, Singles] = field(default_factory=dict)


def curves_of(recording: Recording, points: Points, named: Collection[str] = ()) -> Iterator[Curves]:
    """Yield the time series of every metric that has a sample: of hosts, of GPUs, of steps.

    Args:
        recording: the recording.
        points: the time axis.
        named: machines for which the spread over GPUs is computed.
    """
    if "host_metrics" in recording.tables:
        yield from _of_metrics(recording, points, named)
    if "steps" in recording.tables:
        yield from _of_steps(recording, points)


def _of_metrics(recording: Recording, points: Points, named: Collection[str]) -> Iterator[Curves]:
    """Yield the time series of host and GPU metrics."""
    columns = recording.tables["host_metrics"]
    hosts, gpu = columns["host"], np.asarray(columns["gpu"])
    assert isinstance(hosts, Text)  # noqa: S101  # by its specification
    place, inside = _places(np.asarray(columns["ts_ns"]), points)
    inside &= hosts.codes >= 0
    table = metric_table_of(recording)
    for metrics, of_scope in ((table.host, inside & (gpu < 0)), (table.gpu, inside & (gpu >= 0))):
        for metric in metrics:
            if metric.name not in columns:
                continue
            values = np.asarray(columns[metric.name])
            rows = np.flatnonzero(of_scope & np.isfinite(values))
            if rows.size:
                means = _means(values[rows], hosts.codes[rows], place[rows], (len(hosts.words), points.count))
                spread = {}
                for code in (code for code, name in enumerate(hosts.words) if name in named):
                    own = rows[hosts.codes[rows] == code]
                    if np.unique(gpu[own]).size > 1:
                        spread[hosts.words[code]] = _extremes(values[own], gpu[own], place[own], points.count)
                yield _sorted(metric.name, hosts.words, means, spread)


def _of_steps(recording: Recording, points: Points) -> Iterator[Curves]:
    """Yield the time series of step columns."""
    columns = recording.tables["steps"]
    ts_ns = np.asarray(columns["ts_ns"])
    names, host = Places(recording).hosts_of(np.asarray(columns["rank"]), ts_ns)
    names = [name.removeprefix(LONE_RANK_PREFIX) for name in names]
    place, inside = _places(ts_ns, points)
    for name in _STEP_COLUMNS:
        if name in columns:
            values = np.asarray(columns[name])
            rows = np.flatnonzero(inside & np.isfinite(values))
            if rows.size:
                means = _means(values[rows], host[rows], place[rows], (len(names), points.count))
                yield _sorted(f"{STEPS_PREFIX}{name}", tuple(names), means, {})


def _places(ts_ns: NDArray[np.int64], points: Points) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the point index of each row, and whether it is on the axis."""
    place = (ts_ns - points.start_ns) // points.span_ns
    return place, (place >= 0) & (place < points.count)


def _means(values: Singles, who: NDArray[Any], place: NDArray[np.int64], shape: tuple[int, int]) -> Singles:
    """Return the mean of the values per row index and point, shape ``shape``; NaN without a value."""
    cell = who.astype(np.int64) * shape[1] + place
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    sums = np.bincount(cell, values.astype(np.float64), shape[0] * shape[1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32).reshape(shape)


def _extremes(values: Singles, gpu: NDArray[Any], place: NDArray[np.int64], count: int) -> Singles:
    """Return the lowest and the highest GPU's mean at each point, shape (2, count)."""
    known, row = np.unique(gpu, return_inverse=True)
    means = _means(values, row, place, (known.size, count))
    absent = np.isnan(means).all(axis=0)
    low = np.where(np.isnan(means), np.inf, means).min(axis=0)
    high = np.where(np.isnan(means), -np.inf, means).max(axis=0)
    return np.where(absent, np.nan, np.stack([low, high])).astype(np.float32)


def _sorted(metric: str, names: tuple[str, ...], means: Singles, spread: Mapping[str, Singles]) -> Curves:
    """Return time series without machines that have no sample, by name."""
    has = np.isfinite(means).any(axis=1)
    rows = sorted((name, row) for row, name in enumerate(names) if has[row])
    return Curves(metric, tuple(name for name, _ in rows), means[[row for _, row in rows]], spread)

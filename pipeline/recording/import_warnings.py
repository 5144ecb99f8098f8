"""Warnings about a recording for its author: what a replay leaves out or has to guess."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.frames import metric_table_of
from tocsin.pipeline.recording.judged_range import judged_span_ns
from tocsin.pipeline.recording.tables import TABLES, Recording, Text
from tocsin.schemas.metrics import possible_range
from tocsin.schemas.records import NS_PER_SECOND

_SHARED_TICKS_RATIO = 0.01
"""Fraction of rows that may share a tick with another row before it is reported."""
_LEAST_EMPTY_NS, _NEVER_NS = 60 * NS_PER_SECOND, -1


def notes_of(recording: Recording) -> tuple[str, ...]:
    """Return all warnings about a recording: skipped files, rows outside its time, misfit samples, unknown names."""
    checks = (_out_of_time, _off_tick, _out_of_scope, _impossible, _without_samples, _without_duration, _unplaced)
    return (*recording.notes, *(note for check in checks for note in check(recording)))


def _out_of_time(recording: Recording) -> Iterator[str]:
    """Warn of rows outside the judged time span."""
    first_ns, end_ns = judged_span_ns(recording.manifest)
    for name, columns in recording.tables.items():
        time = TABLES[name].time if name in TABLES else ""
        if not time:
            continue
        times = cast(NDArray[np.int64], columns[time])
        if "batch_ns" in columns:  # our own recorder noted with what each row travelled
            sent_ns = cast(NDArray[np.int64], columns["batch_ns"])
            times = np.where(sent_ns > 0, sent_ns, times)
        early = np.flatnonzero(times < first_ns)
        late = np.flatnonzero(times >= end_ns)
        for rows, where in ((early, "before start_ns"), (late, "after end_ns")):
            if rows.size:
                place = f"{name}.parquet, column {time}, row {rows[0]}: {times[rows[0]]}"
                yield f"{place} lies {where}; {rows.size} of {len(times)} rows do and are left out"


def _off_tick(recording: Recording) -> Iterator[str]:
    """Warn of samples that do not fit ``tick_seconds``."""
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return
    times, gpus = (cast(NDArray[Any], columns[name]) for name in ("ts_ns", "gpu"))
    codes = cast(Text, columns["host"]).codes
    order = np.lexsort((times, gpus, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(gpus[order]) == 0)
    gaps_ns = np.diff(times[order])[same]
    if not gaps_ns.size:
        return
    tick_ns = recording.manifest.tick_seconds * NS_PER_SECOND
    apart_ns = gaps_ns[gaps_ns > 0]
    middle_ns = float(np.median(apart_ns)) if apart_ns.size else tick_ns
    if not 0.5 * tick_ns < middle_ns < 2 * tick_ns:
        pattern = (
            f"come every {middle_ns / NS_PER_SECOND:g} s and tick_seconds says {recording.manifest.tick_seconds:g}"
        )
        so = "of several in a tick the last is taken" if middle_ns < tick_ns else "the ticks between count as missing"
        yield f"host_metrics.parquet: the samples of a host {pattern}: {so}"
        return
    shared = int((gaps_ns < tick_ns / 4).sum())
    if shared > _SHARED_TICKS_RATIO * len(times):
        yield f"host_metrics.parquet: {shared} of {len(times)} rows share a tick with another: the last is taken"


def _out_of_scope(recording: Recording) -> Iterator[str]:
    """Warn of GPU metrics in host rows, or host metrics in GPU rows, which are not read."""
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return
    of_host = cast(NDArray[Any], columns["gpu"]) < 0
    table = metric_table_of(recording)
    for metrics, wrong, must in ((table.gpu, of_host, "from 0 on"), (table.host, ~of_host, "-1")):
        for metric in metrics:
            if metric.name in columns:
                count = int(np.isfinite(cast(NDArray[Any], columns[metric.name])[wrong]).sum())
                if count:
                    place = f"host_metrics.parquet, column {metric.name}"
                    yield f"{place}: {count} values stand in rows whose gpu is not {must}, and are left out"


def _impossible(recording: Recording) -> Iterator[str]:
    """Warn of impossible values: driver error codes, wrapped counters, percents instead of ratios."""
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return
    table = metric_table_of(recording)
    for metric in (*table.gpu, *table.host):
        if metric.name not in columns:
            continue
        values, (low, high) = cast(NDArray[Any], columns[metric.name]), possible_range(metric)
        wrong = np.flatnonzero((values < low) | (values > high))
        if wrong.size:
            place = f"host_metrics.parquet, column {metric.name}, row {wrong[0]}: {values[wrong[0]]:g}"
            known = int((~np.isnan(values)).sum())
            yield f"{place} cannot be ({low:g} to {high:g}); {wrong.size} of {known} samples cannot and are left out"


def _without_samples(recording: Recording) -> Iterator[str]:
    """Warn of hosts whose rows have no value, or none any more, so that metrics cannot judge them."""
    columns = recording.tables.get("host_metrics")
    if columns is None:
        return
    table, hosts = metric_table_of(recording), cast(Text, columns["host"])
    known = np.zeros(len(hosts.codes), bool)
    for metric in (*table.gpu, *table.host):
        if metric.name in columns:
            known |= np.isfinite(cast(NDArray[Any], columns[metric.name]))
    times = cast(NDArray[np.int64], columns["ts_ns"])
    newest_ns, sampled_ns = np.full((2, len(hosts.words)), _NEVER_NS, np.int64)
    np.maximum.at(newest_ns, hosts.codes, times)
    np.maximum.at(sampled_ns, hosts.codes[known], times[known])
    empty = (newest_ns > _NEVER_NS) & ((sampled_ns == _NEVER_NS) | (newest_ns - sampled_ns >= _LEAST_EMPTY_NS))
    for code in np.flatnonzero(empty).tolist():
        since_seconds = (int(sampled_ns[code]) - recording.manifest.start_ns) / NS_PER_SECOND
        since = f" from {since_seconds:.0f} s on" if sampled_ns[code] > _NEVER_NS else ""
        yield f"host_metrics.parquet: {hosts.words[code]} has rows and not one sample{since} (monitoring_lost)"


def _without_duration(recording: Recording) -> Iterator[str]:
    """Warn of steps without a duration."""
    columns = recording.tables.get("steps")
    if columns is None:
        return
    absent = int((~np.isfinite(cast(NDArray[Any], columns["duration_seconds"]))).sum())
    if absent:
        yield f"steps.parquet, column duration_seconds: {absent} steps without a duration are left out"


def _unplaced(recording: Recording) -> Iterator[str]:
    """Warn of hosts and ranks that the topology does not contain, such as short host names or ranks that start at 1."""
    topology = recording.tables.get("topology")
    if topology is None:
        return
    placed = set(cast(Text, topology["host"]).to_list())
    if "host_metrics" in recording.tables:
        text = cast(Text, recording.tables["host_metrics"]["host"])
        names = sorted({text.words[code] for code in np.unique(text.codes).tolist()} - placed)
        if names:
            yield f"host_metrics.parquet, column host: {_some(names)} not in topology.parquet, as if no rank ran there"
    if "steps" in recording.tables:
        known = cast(NDArray[Any], topology["rank"])
        ranks = np.setdiff1d(cast(NDArray[Any], recording.tables["steps"]["rank"]), known).tolist()
        if ranks:
            yield f"steps.parquet, column rank: {_some(ranks)} not in topology.parquet: named as ranks"


def _some(names: list[Any]) -> str:
    """Return the first three names, the total count, and the fitting form of "to be"."""
    shown = ", ".join(map(str, names[:3]))
    return f"{shown} (of {len(names)}) are" if len(names) > 3 else f"{shown} {'is' if len(names) == 1 else 'are'}"

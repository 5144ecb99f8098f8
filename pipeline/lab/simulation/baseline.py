"""The plain baseline detector, shown beside ours in every table; if it scores well, the data is too easy.

Each host's metrics (mean over its GPUs) over 10 s are compared with the median of the hosts of the same pipeline
stage. The host's own usual deviation is subtracted, and the rest is divided by the peers' spread. A host that is the
furthest out in three consecutive windows, each time above the threshold, is accused.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.tables import METRIC_NAMES, Columns, Recording, Text
from tocsin.schemas.records import NS_PER_SECOND

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BaselineConfig:
    """Settings of the plain detector.

    Attributes:
        z_threshold: alarm line for the deviation in spreads.
        window_seconds: length of a window, over which samples are averaged.
        streak_count: consecutive windows above the line.
        bias_count: past windows from which a host's own deviation is taken.
        least_bias_count: least number of past windows before a host is judged.
        floor_ratio: least spread, relative to the metric's largest value.
    """

    z_threshold: float = 7.0
    window_seconds: float = 10.0
    streak_count: int = 3
    bias_count: int = 24
    least_bias_count: int = 9
    floor_ratio: float = 0.01


@dataclass(frozen=True, slots=True)
class Accusation:
    """A host that the plain detector accuses.

    Attributes:
        host: name of the host.
        detected_ns: end of the window that completed the streak.
    """

    host: str
    detected_ns: int


def accusations(recording: Recording, config: BaselineConfig = BaselineConfig()) -> list[Accusation]:  # frozen
    """Return the hosts that the plain detector accuses in a recording, each once, in order of time."""
    scores, hosts = streak_scores(recording, config)
    return first_above(scores, hosts, recording.manifest.start_ns, config)


def comparable_count(recording: Recording) -> int:
    """Return the number of machines with samples in the largest pipeline stage; fewer than three are not judged."""
    table = recording.tables.get("host_metrics")
    if table is None or not isinstance(host := table["host"], Text):
        return 0
    has_value = [np.isfinite(np.asarray(table[name], np.float64)) for name in METRIC_NAMES if name in table]
    if not has_value:
        return 0
    some = np.unique(host.codes[np.any(has_value, axis=0) & (host.codes >= 0)])
    stages = _stages(recording.tables.get("topology"), host.words)[some]
    return int(np.unique(stages, return_counts=True)[1].max(initial=0))


def first_above(scores: Floats, hosts: tuple[str, ...], start_ns: int, config: BaselineConfig) -> list[Accusation]:
    """Return each host's first streak above the threshold.

    Args:
        scores: result of ``streak_scores``.
        hosts: host of each column.
        start_ns: start of the recording.
        config: threshold and window length.
    """
    above = scores >= config.z_threshold
    window_ns = round(config.window_seconds * NS_PER_SECOND)
    firsts = {hosts[index]: int(above[:, index].argmax()) for index in np.flatnonzero(above.any(axis=0))}
    found = [Accusation(host, start_ns + (window + 1) * window_ns) for host, window in firsts.items()]
    return sorted(found, key=lambda one: (one.detected_ns, one.host))


def streak_scores(recording: Recording, config: BaselineConfig) -> tuple[Floats, tuple[str, ...]]:
    """Return the streak score of each host in each window, shape (windows, hosts), and the hosts.

    It is the lowest score of the last ``streak_count`` windows, for the metric where that is highest.
    """
    table = recording.tables["host_metrics"]
    host = table["host"]
    assert isinstance(host, Text)  # noqa: S101  # for the type checker: the format says so
    window_ns = round(config.window_seconds * NS_PER_SECOND)
    ts = np.asarray(table["ts_ns"]) - recording.manifest.start_ns
    window_count = int((recording.manifest.end_ns - recording.manifest.start_ns) // window_ns)
    inside = (ts >= 0) & (ts < window_count * window_ns) & (host.codes >= 0)
    cell = (ts[inside] // window_ns) * len(host.words) + host.codes[inside]
    shape = (window_count, len(host.words))
    stages = _stages(recording.tables.get("topology"), host.words)
    best = np.zeros(shape)
    if window_count < config.streak_count:
        return best, host.words
    for name in METRIC_NAMES:
        if name in table:
            means = _window_means(np.asarray(table[name])[inside], cell, shape)
            scores = _scores(means, stages, config)
            streak = np.lib.stride_tricks.sliding_window_view(scores, config.streak_count, axis=0).min(axis=-1)
            best[config.streak_count - 1 :] = np.maximum(best[config.streak_count - 1 :], streak)
    return best, host.words


def _window_means(values: NDArray[np.float32], cell: NDArray[np.int64], shape: tuple[int, int]) -> Floats:
    """Return means over windows, shape (windows, hosts); a window without samples repeats the one before."""
    there = np.isfinite(values)
    sums = np.bincount(cell[there], values[there].astype(np.float64), shape[0] * shape[1])
    counts = np.bincount(cell[there], minlength=shape[0] * shape[1])
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).reshape(shape)
    last = np.maximum.accumulate(np.where(np.isnan(means), 0, np.arange(shape[0])[:, None]), axis=0)
    return np.take_along_axis(means, last, axis=0)


def _stages(topology: Columns | None, hosts: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the pipeline stage of each host, 0 if unknown."""
    stages = np.zeros(len(hosts), np.int64)
    if topology is not None and "pp" in topology and isinstance(topology["host"], Text):
        place = {name: index for index, name in enumerate(hosts)}
        for name, stage in zip(topology["host"].to_list(), np.asarray(topology["pp"]).tolist(), strict=True):
            if name in place:
                stages[place[name]] = stage
    return stages


def _scores(means: Floats, stages: NDArray[np.int64], config: BaselineConfig) -> Floats:
    """Return the scores of one metric, shape (windows, hosts).

    In each window only the host furthest from its peers, beyond its usual distance, has a score; all others have 0.
    """
    scores = np.zeros(means.shape)
    lead = config.least_bias_count + config.streak_count
    if len(means) <= lead:
        return scores
    floor = config.floor_ratio * max(float(np.nanmax(np.abs(means), initial=0.0)), 1e-9)
    before = np.full((config.bias_count - config.least_bias_count, means.shape[1]), np.nan)
    for stage in np.unique(stages):
        own = stages == stage
        if int(own.sum()) < 3:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # windows without any sample are NaN and stay so
            deviation = means[:, own] - np.nanmedian(means[:, own], axis=1, keepdims=True)
            known = np.concatenate([before[:, own], deviation[: -config.streak_count - 1]])
            past = np.lib.stride_tricks.sliding_window_view(known, config.bias_count, axis=0)
            rest = np.abs(deviation[lead:] - np.nanmedian(past, axis=-1))
            scatter = 1.4826 * np.nanmedian(rest, axis=1, keepdims=True)
        scores[lead:, own] = np.nan_to_num(rest / np.fmax(scatter, floor))
    furthest = np.arange(means.shape[1])[None, :] == scores.argmax(axis=1)[:, None]
    return np.where(furthest, scores, 0.0)

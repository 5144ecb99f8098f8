"""Minder as published (NSDI'25), as a baseline, with the ablations of its evaluation.

Every number is the paper's (``seed-systems-a.md`` section 1) unless its line says otherwise. A call is made
every 8 minutes on the last 15 minutes of samples. Windows have 8 samples and start one sample apart. Each metric
has an LSTM-VAE. Machines are compared by the sum of pairwise distances, its z-score against a threshold, and the
same machine must be the candidate for more than 4 minutes. Metrics are tried in order of priority, and the first
one that convicts a machine ends the call.

``detect`` is one call, a pure function. ``MinderCalls`` keeps the last 15 minutes of samples and says when a call
is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tocsin.models.lstm_vae import WINDOW_TICKS, FloatArray, Limits, LstmVae
from tocsin.models.mahalanobis import moments, whitened
from tocsin.models.similarity import CandidateRun, Scan, ceiling, first_run
from tocsin.schemas.reasons import Reason

Variant = Literal["vae", "raw", "concatenated", "integrated", "mahalanobis"]
"""The procedure or one of its ablations.

``vae``: Minder. ``raw``: distance of the samples themselves. ``concatenated``: all metrics' embeddings joined into one
comparison. ``integrated``: one model of all metrics. ``mahalanobis``: the other baseline.
"""

PRIORITY = (
    "pfc_tx_packets_per_second",
    "cpu_util_ratio",
    "gpu_util_ratio",
    "gpu_power_watts",
    "gpu_graphics_active_ratio",
    "gpu_tensor_active_ratio",
    "nvlink_bytes_per_second",
)
"""The paper's seven metrics in the order that its tree learned (1.6, 1.7): PFC, CPU, GPU (duty, power, graphics,
tensor), NVLink."""

MIN_PEER_COUNT = 3
"""Least number of machines to compare. Not the paper's: of two machines it is undecidable which one moved."""
_BLOCK_COUNT = 64
"""Windows embedded at a time, so that memory does not grow with the length of a call."""


@dataclass(frozen=True, slots=True)
class MinderConfig:
    """Settings of the Minder procedure.

    Attributes:
        variant: Minder or one of its ablations.
        threshold_sigmas: the similarity threshold; None: the model's fitted one. The paper's value was not found.
        ceiling_ratio: NOT the paper's: caps the threshold at this share of the highest z-score that a lone outlier can
            reach among the machines. None: no cap, as published; with 4 machines no threshold above 1.73 ever fires,
            and the call's reason is ``threshold_unreachable``.
        continuity_seconds: a machine must be the candidate for longer than this; 0: the ablation "no continuity".
        call_seconds: time between calls.
        pull_seconds: length of the samples that a call looks at.
        window_ticks: samples in a window.
    """

    variant: Variant = "vae"
    threshold_sigmas: float | None = None
    ceiling_ratio: float | None = None
    continuity_seconds: float = 240.0
    call_seconds: float = 480.0
    pull_seconds: float = 900.0
    window_ticks: int = WINDOW_TICKS

    def threshold(self, model: MinderModel, machine_count: int) -> float:
        """Return the threshold on the z-score for this model, variant and number of machines."""
        own = model.variant_sigmas.get(self.variant, model.threshold_sigmas)
        plain = own if self.threshold_sigmas is None else self.threshold_sigmas
        return plain if self.ceiling_ratio is None else min(plain, self.ceiling_ratio * ceiling(machine_count))


@dataclass(frozen=True, slots=True, eq=False)
class MinderModel:
    """A trained Minder model.

    Attributes:
        limits: metric -> range of its normalisation.
        single: metric -> its LSTM-VAE.
        integrated: the LSTM-VAE of all metrics, for that ablation; None: not trained.
        priority: metrics in the order in which they are tried.
        threshold_sigmas: fitted threshold; 2.0 before fitting (not the paper's, which was not found).
        variant_sigmas: variant -> its own fitted threshold, where there is one. An ablation with another variant's
            threshold would be judged unfairly.
        version: human-readable version.
    """

    limits: Mapping[str, Limits]
    single: Mapping[str, LstmVae] = field(default_factory=dict)
    integrated: LstmVae | None = None
    priority: tuple[str, ...] = PRIORITY
    threshold_sigmas: float = 2.0
    version: str = ""
    variant_sigmas: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The metric samples that a call looks at.

    Attributes:
        metrics: names of the second axis of ``values``.
        values: in the metrics' units, shape (machines, metrics, ticks), NaN = no sample.
        tick_seconds: distance between samples.
    """

    metrics: tuple[str, ...]
    values: FloatArray
    tick_seconds: float


@dataclass(frozen=True, slots=True)
class Alert:
    """A machine that a call convicts.

    Attributes:
        row: row of the machine.
        metric: the metric that convicts it; the variant's name where all metrics are judged at once.
        onset_index: tick of the last sample of the run's first window.
        end_index: tick of the last sample of the run's last window.
        mean_sigmas: mean z-score over the run.
        threshold_sigmas: the threshold that it exceeded.
    """

    row: int
    metric: str
    onset_index: int
    end_index: int
    mean_sigmas: float
    threshold_sigmas: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call.

    Attributes:
        alert: the convicted machine, None without a fault.
        reasons: metric (or variant) -> why it convicted nobody.
    """

    alert: Alert | None
    reasons: Mapping[str, Reason]


def detect(samples: Samples, model: MinderModel, config: MinderConfig) -> Outcome:
    """Make one call: try metrics in order of priority until one convicts a machine."""
    reasons: dict[str, Reason] = {}
    for name, metrics in views(model, config):
        found = scan_view(samples, metrics, model, config)
        if isinstance(found, Reason):
            reasons[name] = found
            continue
        rows, scan = found
        threshold = config.threshold(model, scan.machine_count)
        run = first_run(scan.candidates(threshold), samples.tick_seconds, config.continuity_seconds)
        if run is not None:
            return Outcome(_alert(name, rows, scan, run, (threshold, config)), reasons)
        is_reachable = threshold < ceiling(scan.machine_count)
        reasons[name] = Reason.NOT_CONTINUOUS if is_reachable else Reason.THRESHOLD_UNREACHABLE
    return Outcome(None, reasons)


def _alert(name: str, rows: NDArray[np.intp], scan: Scan, run: CandidateRun, line: tuple[float, MinderConfig]) -> Alert:
    threshold, config = line
    width = config.window_ticks - 1
    return Alert(
        int(rows[run.row]),
        name,
        run.first_index + width,
        run.last_index + width,
        float(scan.sigmas[run.first_index : run.last_index + 1].mean()),
        threshold,
    )


def views(model: MinderModel, config: MinderConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (name, its metrics) for each comparison of a call, in order.

    ``vae`` and ``raw`` have one comparison per metric, the other variants a single one of all metrics.
    """
    if config.variant in ("vae", "raw"):
        yield from ((metric, (metric,)) for metric in model.priority)
    elif config.variant == "integrated" and model.integrated is not None:
        yield config.variant, model.integrated.metrics
    else:
        yield config.variant, model.priority


def scan_view(
    samples: Samples, metrics: Sequence[str], model: MinderModel, config: MinderConfig
) -> tuple[NDArray[np.intp], Scan] | Reason:
    """Compare, window by window, the machines that have samples of these metrics.

    Where several metrics are judged at once, one that fewer than three machines have is left out.

    Returns:
        (rows of the machines, their scan), or the reason why no comparison is possible: too few machines, no samples of
        the metrics, no model, or fewer samples than a window.
    """
    machines, _, ticks = samples.values.shape
    if machines < MIN_PEER_COUNT:
        return Reason.TOO_FEW_PEERS
    columns = [samples.metrics.index(metric) for metric in metrics if metric in samples.metrics]
    has = np.isfinite(samples.values[:, columns]).any(axis=2)
    kept = [index for index, column in enumerate(columns) if has[:, index].sum() >= MIN_PEER_COUNT]
    if not kept or (config.variant == "integrated" and len(kept) < len(metrics)):
        return Reason.METRIC_MISSING
    rows = np.flatnonzero(has[:, kept].all(axis=1))
    columns = [columns[index] for index in kept]
    names = tuple(samples.metrics[column] for column in columns)
    if rows.size < MIN_PEER_COUNT:
        return Reason.TOO_FEW_PEERS
    if not _has_models(names, model, config):
        return Reason.NO_MODEL
    if ticks < config.window_ticks:
        return Reason.SPAN_TOO_SHORT
    scaled = np.stack(
        [
            model.limits[name].normalise(fill_nearest(samples.values[rows, column]))
            for name, column in zip(names, columns, strict=True)
        ],
        axis=1,
    )
    return rows, _scan(scaled, names, model, config)


def _has_models(names: Sequence[str], model: MinderModel, config: MinderConfig) -> bool:
    """Return whether the model holds limits, and LSTM-VAEs where the variant needs them, for these metrics."""
    if config.variant == "integrated":
        return model.integrated is not None and all(name in model.limits for name in names)
    wanted = {"vae": (model.limits, model.single), "concatenated": (model.limits, model.single)}
    return all(name in known for name in names for known in wanted.get(config.variant, (model.limits,)))


def _scan(scaled: FloatArray, names: Sequence[str], model: MinderModel, config: MinderConfig) -> Scan:
    """Return the comparison of machines over all sliding windows of normalised samples."""
    windows = np.lib.stride_tricks.sliding_window_view(scaled, config.window_ticks, axis=2)
    if config.variant == "mahalanobis":  # its spreads are those of all windows of the call
        return Scan.of(whitened(moments(windows.transpose(2, 0, 1, 3))))
    parts = []
    for begin in range(0, windows.shape[2], _BLOCK_COUNT):
        block = windows[:, :, begin : begin + _BLOCK_COUNT].transpose(2, 0, 1, 3)
        parts.append(Scan.of(embed(block, names, model, config.variant)))
    return Scan(
        np.concatenate([part.machine for part in parts]),
        np.concatenate([part.sigmas for part in parts]),
        scaled.shape[0],
    )


def embed(windows: FloatArray, names: Sequence[str], model: MinderModel, variant: Variant) -> NDArray[np.floating]:  # type: ignore[type-arg]
    """Return the features by which machines are compared in each window.

    Args:
        windows: normalised, shape (windows, machines, metrics, ticks).
        names: names of the metrics on the third axis.
        model: holds the LSTM-VAEs of these metrics.
        variant: which embedding.

    Returns:
        Shape (windows, machines, features).
    """
    count, machines, width, ticks = windows.shape
    if variant == "raw":
        return windows.reshape(count, machines, width * ticks)
    if variant == "integrated" and model.integrated is not None:
        rows = np.ascontiguousarray(windows.transpose(0, 1, 3, 2)).reshape(-1, ticks, width)
        return model.integrated.reconstruct(rows).reshape(count, machines, ticks * width)
    denoised = [
        model.single[name].reconstruct(np.ascontiguousarray(windows[:, :, index]).reshape(-1, ticks, 1))
        for index, name in enumerate(names)
    ]
    return np.concatenate([rows.reshape(count, machines, ticks) for rows in denoised], axis=2)


def fill_nearest(values: FloatArray) -> FloatArray:
    """Fill missing samples from the nearest one in time, of two equally near the earlier one (1.4).

    The paper names no limit, so there is none: a machine that fell silent keeps its last value until it has left the 15
    minutes.

    Args:
        values: shape (rows, ticks), NaN or infinity = no sample; a row without any sample becomes NaN.
    """
    known = np.isfinite(values)
    if known.all():
        return values
    ticks = np.arange(values.shape[1])
    before = np.maximum.accumulate(np.where(known, ticks, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, ticks, values.shape[1])[:, ::-1], axis=1)[:, ::-1]
    to_before = np.where(before >= 0, ticks - before, values.shape[1])
    to_after = np.where(after < values.shape[1], after - ticks, values.shape[1])
    source = np.clip(np.where(to_before <= to_after, before, after), 0, max(0, values.shape[1] - 1))
    filled = np.take_along_axis(values, source, axis=1)
    return np.where(known.any(axis=1)[:, None], filled, np.nan).astype(np.float32)

"""Jobs of a few machines, as arrays: one machine leaves its peers for a while."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.models.lstm_vae import FloatArray, Limits
from tocsin.models.minder import PRIORITY, MinderModel, Samples
from tocsin.schemas.metrics import BUILTIN_TABLE

BUILTIN_METRICS = {metric.name: metric for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu)}
LIMITS = {
    "pfc_tx_packets_per_second": Limits(0.0, 10_000.0),
    "gpu_power_watts": Limits(0.0, 700.0),
    "nvlink_bytes_per_second": Limits(0.0, 9e11),
} | {name: Limits(0.0, 1.0) for name in PRIORITY if name.endswith("_ratio")}
MODEL = MinderModel(LIMITS)
"""Without LSTM-VAEs: for the variants that need none."""


@dataclass(frozen=True)
class Fault:
    """One machine's values of one metric are moved by so much of the metric's range, from tick to tick."""

    row: int
    metric: str
    first: int
    last: int
    move: float = -0.3


def values_of(
    machines: int, ticks: int, *faults: Fault, metrics: tuple[str, ...] = PRIORITY, noise: float = 0.01, seed: int = 0
) -> FloatArray:
    """Machines alike up to noise, at 0.6 of every metric's range; shape (machines, metrics, ticks)."""
    rng = np.random.default_rng(seed)
    shares = 0.6 + noise * rng.standard_normal((machines, len(metrics), ticks))
    for fault in faults:
        shares[fault.row, metrics.index(fault.metric), fault.first : fault.last] += fault.move
    high = np.array([LIMITS[metric].high for metric in metrics])
    found: FloatArray = (shares * high[:, None]).astype(np.float32)
    return found


def samples_of(
    machines: int, ticks: int, *faults: Fault, metrics: tuple[str, ...] = PRIORITY, noise: float = 0.01, seed: int = 0
) -> Samples:
    """The same as what a call looks at, at 1 Hz."""
    return Samples(metrics, values_of(machines, ticks, *faults, metrics=metrics, noise=noise, seed=seed), 1.0)

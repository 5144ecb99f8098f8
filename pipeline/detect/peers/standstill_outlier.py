"""Deviation of each host from all others in a stalled job, by any metric: the last resort if nothing else explains it.

Usual levels during a stall were never learned. They are estimated twice: the usual level times what the others have
left, and the usual level minus what the others lost. A host counts only if it deviates by both; otherwise it was
special before the stall.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peer_scales import transform
from tocsin.models.peers import PeerWindow
from tocsin.models.robust import median
from tocsin.pipeline.detect.peers.cusum import SumConfig
from tocsin.pipeline.detect.peers.rows import Block, largest_by_host
from tocsin.pipeline.detect.peers.standstill import Seen

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

STANDSTILL_OUTLIER_SUMS = SumConfig(drift_sigmas=4.0, crowd_count=1)
"""CUSUM settings: three windows far out alarm. Two hosts that deviate alike are already a crowd with other work."""
_EXCLUDED = frozenset({"gpu_temperature_celsius", "gpu_sm_clock_hertz"})
"""Metrics that are not compared: GPUs cool down and change clocks at their own pace when work ends."""
_ONLY_HIGH = frozenset({"pfc_tx_packets_per_second", "ecn_packets_per_second", "cnp_packets_per_second"})
"""Metrics that count only when they are high."""


def outlier_sigmas(
    seen: Seen, blocks: Mapping[str, Block], groups: IntArray, lone_gpu_ratio: float, host_count: int
) -> FloatArray:
    """Return how far each host deviates by each metric, shape (2: high, low; hosts, metrics + 1), NaN = no sample.

    Args:
        seen: window of a stalled job.
        blocks: learned levels by kind of row.
        groups: comparison group of each host, shape (hosts,).
        lone_gpu_ratio: weight of a single GPU's deviation.
        host_count: number of hosts.
    """
    sides = {
        name: _sides(_outlier_distances(seen.values[name], seen.windows[name], blocks[name], of), blocks[name])
        for name, of in (("host", groups), ("mean", groups), ("gpu", groups[seen.of_host]))
    }
    lone = largest_by_host(lone_gpu_ratio * sides["gpu"], seen.of_host, host_count)
    none = np.full((2, host_count, 1), np.nan, np.float32)
    found: FloatArray = np.concatenate([sides["host"], np.fmax(sides["mean"], lone), none], axis=2).astype(np.float32)
    return found


def _outlier_distances(values: FloatArray, window: PeerWindow, block: Block, groups: IntArray) -> FloatArray:
    """Return signed deviations by the milder of the two expectations, in standard deviations, shape (rows, metrics)."""
    now, level = transform(values, block.scales), block.state.level
    shift = np.full_like(now, np.nan)
    for group in np.unique(groups[groups >= 0]):
        rows = groups == group
        shift[rows] = median((now - level)[rows], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (now - level - shift) / (now - window.expected)
        milder = window.sigmas * np.clip(ratio, 0.0, 1.0)
    return np.where(window.sigmas == 0.0, np.float32(0.0), milder).astype(np.float32)


def _sides(distances: FloatArray, block: Block) -> FloatArray:
    """Return deviations split into (high, low), each >= 0, without the excluded metrics."""
    names = [metric.name for metric in block.metrics]
    high = np.array([name not in _EXCLUDED for name in names])
    low = high & np.array([name not in _ONLY_HIGH for name in names])
    found: FloatArray = np.stack(
        [np.where(high, np.maximum(distances, 0), 0), np.where(low, np.maximum(-distances, 0), 0)]
    )
    return found

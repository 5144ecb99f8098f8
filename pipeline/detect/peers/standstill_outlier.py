"""Who differs from all others while the job stands, in whatever way: the last resort, where nothing else tells.

A job that stands changes all levels: what is usual for a machine then was never learned. It is estimated twice, by
its usual level times what all others have left of theirs, and by its level plus what all others lost; whoever is odd
by only one of the two was a special machine before (it logs, it carries another stage), and is no odder now.
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

ODD_SUMS = SumConfig(drift_sigmas=4.0, crowd_count=1)
"""Three windows far out. Two that differ alike are two of several that do something else meanwhile."""
_NOT_ASKED = frozenset({"gpu_temperature_celsius", "gpu_sm_clock_hertz"})
"""Cards cool down, and clocks rise, at a pace of their own when work ends."""
_ONLY_HIGH = frozenset({"pfc_tx_packets_per_second", "ecn_packets_per_second", "cnp_packets_per_second"})


def outlier_sigmas(
    seen: Seen, blocks: Mapping[str, Block], groups: IntArray, lone_gpu_ratio: float, host_count: int
) -> FloatArray:
    """How odd each host is by each metric, shape (2: high, low; hosts, metrics + 1), NaN = no sample.

    Args:
        seen: one window of a job that stands.
        blocks: what was learned, by kind of rows.
        groups: who is compared with whom, shape (hosts,).
        lone_gpu_ratio: a single GPU counts so much.
        host_count: hosts.
    """
    odd = {
        name: _sides(_odd(seen.values[name], seen.windows[name], blocks[name], of), blocks[name])
        for name, of in (("host", groups), ("mean", groups), ("gpu", groups[seen.of_host]))
    }
    lone = largest_by_host(lone_gpu_ratio * odd["gpu"], seen.of_host, host_count)
    none = np.full((2, host_count, 1), np.nan, np.float32)
    found: FloatArray = np.concatenate([odd["host"], np.fmax(odd["mean"], lone), none], axis=2).astype(np.float32)
    return found


def _odd(values: FloatArray, window: PeerWindow, block: Block, groups: IntArray) -> FloatArray:
    """Signed distances by the milder of the two expectations, shape (rows, metrics)."""
    now, level = transform(values, block.scales), block.state.level
    shift = np.full_like(now, np.nan)
    for group in np.unique(groups[groups >= 0]):
        rows = groups == group
        shift[rows] = median((now - level)[rows], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (now - level - shift) / (now - window.expected)
        milder = window.sigmas * np.clip(ratio, 0.0, 1.0)
    return np.where(window.sigmas == 0.0, np.float32(0.0), milder).astype(np.float32)


def _sides(odd: FloatArray, block: Block) -> FloatArray:
    """Split into (high, low), of the metrics that are asked."""
    names = [metric.name for metric in block.metrics]
    high = np.array([name not in _NOT_ASKED for name in names])
    low = high & np.array([name not in _ONLY_HIGH for name in names])
    found: FloatArray = np.stack([np.where(high, np.maximum(odd, 0), 0), np.where(low, np.maximum(-odd, 0), 0)])
    return found

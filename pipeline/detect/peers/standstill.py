"""Which machine is not where the others are, while the job stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peer_scales import transform
from tocsin.models.peers import PeerWindow, below_all
from tocsin.models.robust import median
from tocsin.pipeline.detect.peers.cusum import HIGH, LOW
from tocsin.pipeline.detect.peers.rows import Block
from tocsin.schemas.metrics import Metric

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

LOST_SIGMAS = 9.0
"""What cannot be measured in spreads counts as so many."""
_LOUD_LOG = 0.7
"""Log of packets (see ``transform``): a hundred a second where there should be none."""
_STANDING_METRICS = frozenset(
    {
        "gpu_util_ratio",
        "gpu_sm_active_ratio",
        "gpu_graphics_active_ratio",
        "gpu_power_watts",
        "pfc_tx_packets_per_second",
        "cnp_packets_per_second",
    }
)
"""What tells a rank that stopped from ranks that wait in a spinning kernel; disk and PCIe are busy where a
checkpoint is written."""
_GONE_METRICS = frozenset({"cpu_util_ratio", "gpu_memory_used_bytes"})
"""Low where the process ended or sleeps: its memory is free, its proxy threads do not poll. High CPU tells nothing (a
checkpoint's writer)."""
_GONE_SHARE_RATIO = 0.5
_BUSY_METRICS = frozenset({"cpu_util_ratio", "memory_used_ratio"})
"""High where a process spins or swallows memory; a checkpoint's writer does so too, for a while."""
_IDLE_FAMILIES = {
    "cpu_util_ratio": 0,
    "tcp_bytes_per_second": 1,
    "rdma_bytes_per_second": 2,
    "nvlink_bytes_per_second": 3,
    "pcie_bytes_per_second": 4,
    "pcie_usage_ratio": 4,
    "gpu_power_watts": 5,
    "gpu_util_ratio": 6,
    "gpu_sm_active_ratio": 6,
    "gpu_graphics_active_ratio": 6,
    "gpu_dram_active_ratio": 6,
}
"""What waiting costs a little of, by independent source."""
_LOADED_METRICS = frozenset({"cpu_util_ratio", "tcp_bytes_per_second"})
_LOADED_SHARE = 1.5
"""Where the others do so much more of one of them than while they work, they do not wait: they load data, say. Whoever
does less of both may have been done first."""
_HELD_RATIO = 0.5
"""Processes that live hold at least so much of their GPU memory."""
_IDLE_FAMILY_COUNT = 3
"""Whoever does less of so many than all others is not waiting."""
_FIRST_SHARE = 0.3
"""Whoever fell first did so before the others by one and a half of a window's five samples: hosts sample at any moment
between two ticks, and clocks differ."""
_FAR_RATIO, _FAR_FAMILY_COUNT = 0.4, 2
"""And whoever does less than this share of what the others do of so many: its ports no longer greet anybody."""
_LONE_FAMILY_COUNT = 2
"""A single GPU of a machine whose other ones wait like everybody's: no clock that is ahead looks like that."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One window: distances and what they were made of."""

    sigmas: FloatArray
    values: Mapping[str, FloatArray]
    windows: Mapping[str, PeerWindow]
    sample_shares: FloatArray
    of_host: IntArray


@dataclass(frozen=True, slots=True)
class Known:
    """What the comparison needs beside the window.

    Attributes:
        blocks: what was learned, by kind of rows.
        metrics: all that are judged, in order.
        host_count: hosts.
        share_ratio: a host differs from this share of its usual level on.
        lone_share_ratio: and a single one of its GPUs from this share on.
    """

    blocks: Mapping[str, Block]
    metrics: Sequence[Metric]
    host_count: int
    share_ratio: float
    lone_share_ratio: float


def _among(block: Block, names: Collection[str]) -> NDArray[np.bool_]:
    """Which metrics of a block are among these."""
    return np.array([metric.name in names for metric in block.metrics], bool)


def stall_sigmas(seen: Seen, known: Known, groups: IntArray, *, began: bool = False) -> FloatArray:
    """Only what tells a rank that stopped from ranks that wait: a large part of the usual level.

    ``began``: the window in which the job came to stand. Later a single GPU may wait for data that others have.
    """
    far, gone, busy = [], [], []
    for name in ("host", "mean"):
        block, window = known.blocks[name], seen.windows[name]
        below = window.expected - transform(seen.values[name], block.scales)
        counted = np.array([scale.counted for scale in block.scales])
        level = np.abs(block.state.level)
        line = np.where(counted, _LOUD_LOG, known.share_ratio * level)
        far.append((np.abs(below) >= line) & _among(block, _STANDING_METRICS))
        is_gone = (below >= _GONE_SHARE_RATIO * level) & _among(block, _GONE_METRICS)
        is_gone &= ~_loaded_elsewhere(seen, known, name, groups)
        gone.append(np.where(is_gone, -np.nan_to_num(window.sigmas), 0.0))
        is_busy = (-below >= line) & _among(block, _BUSY_METRICS)
        busy.append(np.where(is_busy, np.nan_to_num(window.sigmas), 0.0))
    far[1] |= _far_gpus(seen, known)
    far.append((seen.sample_shares < 1)[:, None])
    found: FloatArray = np.where(np.concatenate(far, axis=1), seen.sigmas, 0.0).astype(np.float32)
    nothing = np.zeros((known.host_count, 1), np.float32)
    found[LOW] = np.fmax(found[LOW], np.concatenate([*gone, nothing], axis=1))
    found[LOW] = np.fmax(found[LOW], np.where(_idle_alone(seen, known, groups, began=began), LOST_SIGMAS, 0.0))
    found[HIGH] = np.fmax(found[HIGH], np.concatenate([*busy, nothing], axis=1))
    return found


def holds_memory(seen: Seen, known: Known) -> NDArray[np.bool_]:
    """Hosts whose GPU memory is in use as before: their processes live. False where nobody tells."""
    block = known.blocks["mean"]
    values, level = seen.values["mean"], block.state.level
    found: NDArray[np.bool_] = (values >= _HELD_RATIO * level) & _among(block, {"gpu_memory_used_bytes"})
    any_holds: NDArray[np.bool_] = found.any(axis=1)
    return any_holds


def _idle_alone(seen: Seen, known: Known, groups: IntArray, *, began: bool) -> NDArray[np.bool_]:
    """Hosts that do less than all others of many things at once (or one of their GPUs), shape (hosts, all metrics)."""
    nothing = np.zeros((known.host_count, 1), bool)
    every = [metric.name for metric in known.metrics]
    least_share = _FIRST_SHARE if began else 0.0
    parts, far = (
        [_below(seen, known, name, groups, most_ratio, least_share) for name in ("host", "mean")]
        for most_ratio in (1.0, _FAR_RATIO)
    )
    idle = _of_many_families(np.concatenate([*parts, nothing], axis=1), every)
    if not began:  # a clock that is ahead shows the others' fall before they do
        idle |= _of_many_families(np.concatenate([*far, nothing], axis=1), every, _FAR_FAMILY_COUNT)
    below = _below(seen, known, "gpu", groups[seen.of_host])
    names = [metric.name for metric in known.blocks["gpu"].metrics]
    count_of_host = np.bincount(seen.of_host, below.any(axis=1), known.host_count)
    is_lone = (count_of_host == 1) & (np.bincount(seen.of_host, minlength=known.host_count) > 1)
    lone = _of_many_families(below, names)
    if began:
        lone |= _of_many_families(below, names, _LONE_FAMILY_COUNT) & is_lone[seen.of_host][:, None]
    of_gpus = np.zeros((known.host_count, lone.shape[1]), bool)
    np.logical_or.at(of_gpus, seen.of_host, lone)
    found: NDArray[np.bool_] = idle | np.concatenate([np.zeros_like(parts[0]), of_gpus, nothing], axis=1)
    return found


def _below(
    seen: Seen, known: Known, name: str, groups: IntArray, most_ratio: float = 1.0, least_share: float = 0.0
) -> NDArray[np.bool_]:
    block = known.blocks[name]
    found = below_all(seen.values[name], block.state.level, groups, most_ratio, least_share)
    return found & _among(block, _IDLE_FAMILIES) & ~_loaded_elsewhere(seen, known, name, groups)


def _loaded_elsewhere(seen: Seen, known: Known, name: str, groups: IntArray) -> NDArray[np.bool_]:
    """What tells nothing, since a group's machines do more of it than while they work; shape of the block's values."""
    block, values = known.blocks[name], seen.values[name]
    found = np.zeros(values.shape, bool)
    loads = _among(block, _LOADED_METRICS)
    for group in np.unique(groups[groups >= 0]) if loads.any() else ():
        rows = groups == group
        more = median(values[rows] - _LOADED_SHARE * block.state.level[rows], 0) > 0
        found[rows] = loads & (more & loads).any()
    return found


def _of_many_families(
    idle: NDArray[np.bool_], names: Sequence[str], family_count: int = _IDLE_FAMILY_COUNT
) -> NDArray[np.bool_]:
    """What is left of rows x metrics where a row has enough families."""
    families = np.array([_IDLE_FAMILIES.get(name, -1) for name in names])
    counts = sum(idle[:, families == family].any(axis=1).astype(int) for family in set(_IDLE_FAMILIES.values()))
    enough: NDArray[np.bool_] = idle & (np.asarray(counts) >= family_count)[:, None]
    return enough


def _far_gpus(seen: Seen, known: Known) -> NDArray[np.bool_]:
    """Whether a single GPU of a host is far from where it should be, shape (hosts, GPU metrics)."""
    block = known.blocks["gpu"]
    distance = np.abs(seen.values["gpu"] - seen.windows["gpu"].expected)
    far = distance >= known.lone_share_ratio * np.abs(block.state.level)
    far &= _among(block, _STANDING_METRICS)
    found = np.zeros((known.host_count, far.shape[1]), bool)
    np.logical_or.at(found, seen.of_host, far)
    return found

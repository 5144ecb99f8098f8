"""Comparison of machines in a stalled job: finds the one that does not wait like the others."""

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
"""Deviation assigned to findings that cannot be measured in standard deviations."""
_LEAST_PACKETS_LOG = 0.7
"""Least deviation of transformed packet rates (see ``transform``): a hundred packets a second where none are
expected."""
_STALL_METRICS = frozenset(
    {
        "gpu_util_ratio",
        "gpu_sm_active_ratio",
        "gpu_graphics_active_ratio",
        "gpu_power_watts",
        "pfc_tx_packets_per_second",
        "cnp_packets_per_second",
    }
)
"""Metrics that tell a stopped rank from ranks waiting in a spinning kernel. Disk and PCIe are left out, as a checkpoint
uses them."""
_GONE_METRICS = frozenset({"cpu_util_ratio", "gpu_memory_used_bytes"})
"""Metrics that are low where a process has ended or sleeps: its memory is free and its proxy threads do not poll."""
_GONE_SHARE_RATIO = 0.5
"""Share of the usual level by which such a metric must be low."""
_BUSY_METRICS = frozenset({"cpu_util_ratio", "memory_used_ratio"})
"""Metrics that are high where a process spins or consumes memory; writing a checkpoint raises them as well, for a
while."""
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
"""Metric -> number of its family; waiting costs a little of each, and families are independent sources."""
_LOADED_METRICS = frozenset({"cpu_util_ratio", "tcp_bytes_per_second"})
"""Metrics that loading data raises."""
_LOADED_SHARE = 1.5
"""Ratio to the usual level of such a metric above which the other machines load data instead of waiting. A machine that
does less may just have finished first."""
_HELD_RATIO = 0.5
"""Least share of its usual GPU memory that a live process holds."""
_IDLE_FAMILY_COUNT = 3
"""Number of metric families in which a machine must do less than all others to count as not waiting."""
_FIRST_SHARE = 0.3
"""Least lead of the first machine to fall, as a share of its level: one and a half of a window's five samples. Sampling
times and clocks differ by less."""
_FAR_RATIO, _FAR_FAMILY_COUNT = 0.4, 2
"""Ratio to the others' activity, and number of families, that show a machine doing next to nothing."""
_LONE_FAMILY_COUNT = 2
"""Number of families for a single GPU of a machine whose other GPUs wait; no clock difference looks like that."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Comparison of one window, and its inputs.

    Attributes:
        sigmas: deviations, shape (2: high, low; hosts, metrics).
        values: window means by kind of row.
        windows: comparison results by kind of row.
        sample_shares: share of each host's GPUs that gave samples, shape (hosts,).
        of_host: row of the host of each GPU, shape (GPUs,).
    """

    sigmas: FloatArray
    values: Mapping[str, FloatArray]
    windows: Mapping[str, PeerWindow]
    sample_shares: FloatArray
    of_host: IntArray


@dataclass(frozen=True, slots=True)
class Known:
    """Learned levels and settings that the comparison needs.

    Attributes:
        blocks: learned levels by kind of row.
        metrics: all compared metrics, in order.
        host_count: number of hosts.
        share_ratio: least deviation of a host, as a share of its usual level.
        lone_share_ratio: the same for a single GPU.
    """

    blocks: Mapping[str, Block]
    metrics: Sequence[Metric]
    host_count: int
    share_ratio: float
    lone_share_ratio: float


def _columns_named(block: Block, names: Collection[str]) -> NDArray[np.bool_]:
    """Return which metrics of a block have one of these names, shape (metrics,)."""
    return np.array([metric.name in names for metric in block.metrics], bool)


def stall_sigmas(seen: Seen, known: Known, groups: IntArray, *, began: bool = False) -> FloatArray:
    """Return deviations that tell a stopped rank from waiting ones, shape (2: high, low; hosts, metrics); else 0.

    Args:
        seen: window of a stalled job.
        known: learned levels and settings.
        groups: comparison group of each host; -1: compared with none.
        began: whether the stall began in this window; later, a single GPU may wait for data that others have.
    """
    far, gone, busy = [], [], []
    for name in ("host", "mean"):
        block, window = known.blocks[name], seen.windows[name]
        below = window.expected - transform(seen.values[name], block.scales)
        counted = np.array([scale.counted for scale in block.scales])
        level = np.abs(block.state.level)
        line = np.where(counted, _LEAST_PACKETS_LOG, known.share_ratio * level)
        far.append((np.abs(below) >= line) & _columns_named(block, _STALL_METRICS))
        is_gone = (below >= _GONE_SHARE_RATIO * level) & _columns_named(block, _GONE_METRICS)
        is_gone &= ~_loaded_elsewhere(seen, known, name, groups)
        gone.append(np.where(is_gone, -np.nan_to_num(window.sigmas), 0.0))
        is_busy = (-below >= line) & _columns_named(block, _BUSY_METRICS)
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
    """Return which hosts still hold their GPU memory, shape (hosts,); False if unknown.

    The processes of such hosts live.
    """
    block = known.blocks["mean"]
    values, level = seen.values["mean"], block.state.level
    found: NDArray[np.bool_] = (values >= _HELD_RATIO * level) & _columns_named(block, {"gpu_memory_used_bytes"})
    any_holds: NDArray[np.bool_] = found.any(axis=1)
    return any_holds


def _idle_alone(seen: Seen, known: Known, groups: IntArray, *, began: bool) -> NDArray[np.bool_]:
    """Return where a host, or one of its GPUs, does less than all others in many families.

    The mask has the shape (hosts, all metrics).
    """
    nothing = np.zeros((known.host_count, 1), bool)
    every = [metric.name for metric in known.metrics]
    least_share = _FIRST_SHARE if began else 0.0
    parts, far = (
        [_idle_cells(seen, known, name, groups, most_ratio, least_share) for name in ("host", "mean")]
        for most_ratio in (1.0, _FAR_RATIO)
    )
    idle = _with_many_families(np.concatenate([*parts, nothing], axis=1), every)
    if not began:  # a clock that is ahead shows the others' fall before they do
        idle |= _with_many_families(np.concatenate([*far, nothing], axis=1), every, _FAR_FAMILY_COUNT)
    below = _idle_cells(seen, known, "gpu", groups[seen.of_host])
    names = [metric.name for metric in known.blocks["gpu"].metrics]
    count_of_host = np.bincount(seen.of_host, below.any(axis=1), known.host_count)
    is_lone = (count_of_host == 1) & (np.bincount(seen.of_host, minlength=known.host_count) > 1)
    lone = _with_many_families(below, names)
    if began:
        lone |= _with_many_families(below, names, _LONE_FAMILY_COUNT) & is_lone[seen.of_host][:, None]
    of_gpus = np.zeros((known.host_count, lone.shape[1]), bool)
    np.logical_or.at(of_gpus, seen.of_host, lone)
    found: NDArray[np.bool_] = idle | np.concatenate([np.zeros_like(parts[0]), of_gpus, nothing], axis=1)
    return found


def _idle_cells(
    seen: Seen, known: Known, name: str, groups: IntArray, most_ratio: float = 1.0, least_share: float = 0.0
) -> NDArray[np.bool_]:
    """Return where rows of one kind do much less than all others, shape (rows, metrics).

    Args:
        seen: window of a stalled job.
        known: learned levels and settings.
        name: kind of row.
        groups: comparison group of each row.
        most_ratio: greatest ratio to what the others do.
        least_share: least distance below the others, as a share of the row's level.
    """
    block = known.blocks[name]
    found = below_all(seen.values[name], block.state.level, groups, most_ratio, least_share)
    return found & _columns_named(block, _IDLE_FAMILIES) & ~_loaded_elsewhere(seen, known, name, groups)


def _loaded_elsewhere(seen: Seen, known: Known, name: str, groups: IntArray) -> NDArray[np.bool_]:
    """Return where values mean nothing since the group's machines load data, shape of the block's values."""
    block, values = known.blocks[name], seen.values[name]
    found = np.zeros(values.shape, bool)
    loads = _columns_named(block, _LOADED_METRICS)
    for group in np.unique(groups[groups >= 0]) if loads.any() else ():
        rows = groups == group
        more = median(values[rows] - _LOADED_SHARE * block.state.level[rows], 0) > 0
        found[rows] = loads & (more & loads).any()
    return found


def _with_many_families(
    idle: NDArray[np.bool_], names: Sequence[str], family_count: int = _IDLE_FAMILY_COUNT
) -> NDArray[np.bool_]:
    """Return the mask (rows, metrics) limited to rows that cover at least ``family_count`` families."""
    families = np.array([_IDLE_FAMILIES.get(name, -1) for name in names])
    counts = sum(idle[:, families == family].any(axis=1).astype(int) for family in set(_IDLE_FAMILIES.values()))
    enough: NDArray[np.bool_] = idle & (np.asarray(counts) >= family_count)[:, None]
    return enough


def _far_gpus(seen: Seen, known: Known) -> NDArray[np.bool_]:
    """Return where a single GPU of a host is far from its expectation, shape (hosts, GPU metrics)."""
    block = known.blocks["gpu"]
    distance = np.abs(seen.values["gpu"] - seen.windows["gpu"].expected)
    far = distance >= known.lone_share_ratio * np.abs(block.state.level)
    far &= _columns_named(block, _STALL_METRICS)
    found = np.zeros((known.host_count, far.shape[1]), bool)
    np.logical_or.at(found, seen.of_host, far)
    return found

"""Comparison of one window: how far each machine of a job is from its peers, metric by metric."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peers import PeerConfig
from tocsin.models.robust import median
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.peers.anomalies import AnomalyBuilder
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.cusum import Cusum
from tocsin.pipeline.detect.peers.gpu_inventory import GpuInventory
from tocsin.pipeline.detect.peers.rows import (
    GPU_SAMPLES,
    Block,
    SliceMeans,
    directed,
    largest_by_host,
    mean_by_host,
    sample_shares,
)
from tocsin.pipeline.detect.peers.standstill import LOST_SIGMAS, Known, Seen
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """One compared window and what is needed to judge it.

    Attributes:
        data: the metric slice.
        seen: distances of the machines from their peers.
        groups: group of each host, shape (hosts,), -1 = compared with nobody.
        known: what was learned before.
        builder: makes the anomaly of a host.
    """

    data: Slice
    seen: Seen
    groups: IntArray
    known: Known
    builder: AnomalyBuilder

    def anomaly(self, row: int, sums: Cusum) -> Anomaly:
        """Return the anomaly of a host (row) by the evidence that these sums hold."""
        return self.builder.anomaly(self.data, row, sums, self.seen)


class PeerComparison:
    """Compares the windows of one metric table's metrics and learns the usual levels of hosts and GPUs."""

    def __init__(self, table: MetricTable) -> None:
        """Start without levels.

        Args:
            table: the metrics that are compared.
        """
        self.table = table
        self.metrics = (*table.host, *table.gpu, GPU_SAMPLES)
        """Columns of the distances: the hosts' own metrics, the means of their GPUs, the share of samples."""
        self.blocks = {"host": Block(table.host), "mean": Block(table.gpu), "gpu": Block(table.gpu)}
        """Levels by kind of rows: hosts by their own metrics, hosts by their GPUs' mean, single GPUs."""

    def set_floors(self, floors: Mapping[str, float]) -> None:
        """Measure the metrics of these names with these floors instead of their units' own."""
        for block in self.blocks.values():
            block.set_floors(floors)

    def compare(
        self,
        slice_means: SliceMeans,
        groups: IntArray,
        config: PeerConfig,
        lone_gpu_ratio: float,
        doubted: NDArray[np.bool_],
        gpus: GpuInventory,
    ) -> Seen:
        """Compare one window with the peers' and learn from it.

        Args:
            slice_means: the window's means.
            groups: group of each host, shape (hosts,), -1 = compared with nobody.
            config: settings of the comparison.
            lone_gpu_ratio: weight of a single GPU's deviation.
            doubted: hosts with an alarm, from which hardly anything is learned, shape (hosts,).
            gpus: GPUs of each host.
        """
        hosts, of_host, gpu_means = slice_means.hosts, slice_means.of_host, slice_means.gpu_values
        values = {
            "host": slice_means.host_values,
            "mean": mean_by_host(gpu_means, of_host, len(hosts)),
            "gpu": gpu_means,
        }
        windows = {
            "host": self.blocks["host"].compare(hosts, values["host"], groups, config, doubted),
            "mean": self.blocks["mean"].compare(hosts, values["mean"], groups, config, doubted),
            "gpu": self.blocks["gpu"].compare(
                slice_means.gpus, values["gpu"], groups[of_host], config, doubted[of_host]
            ),
        }
        lone = lone_gpu_ratio * directed(windows["gpu"].sigmas, self.table.gpu)
        means = np.fmax(directed(windows["mean"].sigmas, self.table.gpu), largest_by_host(lone, of_host, len(hosts)))
        own = directed(windows["host"].sigmas, self.table.host)
        known = self._seen_counts("gpu").max(axis=1, initial=0) >= config.warmup_count
        known &= gpus.are_in_use(self.blocks["gpu"].names)
        shares = sample_shares(gpu_means, known, of_host, len(hosts))
        lost = np.stack([0 * shares, np.where(np.isnan(shares), np.nan, LOST_SIGMAS * (shares < 1))])[:, :, None]
        sigmas = np.concatenate([own, means, lost], axis=2).astype(np.float32)
        return Seen(sigmas, values, windows, shares, of_host)

    def _seen_counts(self, name: str) -> FloatArray:
        """Return in how many windows each row of a kind had a sample, shape (rows, metrics)."""
        return self.blocks[name].state.seen_count

    def common_factors(self, seen: Seen) -> dict[str, float]:
        """Return metric -> the job's common factor over the usual levels, for the metrics that have one."""
        middle = median(np.concatenate([seen.windows["host"].factor, seen.windows["mean"].factor], axis=1), 0)
        return {m.name: float(value) for m, value in zip(self.metrics, middle, strict=False) if np.isfinite(value)}

    def is_warm(self, warmup_count: int) -> bool:
        """Return whether any host has had a sample in at least so many windows."""
        return float(max(self._seen_counts(name).max(initial=0) for name in ("host", "mean"))) >= warmup_count

    def known(self, config: PeersConfig, host_count: int) -> Known:
        """Return the learned levels with the settings that a stalled job is judged by."""
        ratios = config.standing_share_ratio, config.lone_standing_share_ratio
        return Known(self.blocks, self.metrics, host_count, *ratios)

    def drop(self, hosts: Collection[str]) -> None:
        """Remove the rows of hosts that left the job."""
        for block in self.blocks.values():
            block.drop(hosts)

    def forget(self, hosts: Collection[str]) -> None:
        """Forget the levels of hosts that do other work from now on."""
        for block in self.blocks.values():
            block.forget(hosts)

    def forget_young(self, metrics: Collection[str], young_count: float) -> None:
        """Forget the levels of these metrics where they were seen in fewer windows than ``young_count``."""
        for block in self.blocks.values():
            block.forget_young(metrics, young_count)

    def snapshot(self) -> dict[str, bytes]:
        """Return the levels, one part per kind of rows."""
        return {f"peers_{name}": pack_state(block.to_state()) for name, block in self.blocks.items()}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the levels by those of a snapshot."""
        for name, block in self.blocks.items():
            block.load_state(unpack_state(parts, f"peers_{name}"))

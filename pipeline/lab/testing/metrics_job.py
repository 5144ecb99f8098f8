"""A fake job with machine metrics: levels, noise, and the effects of work, waiting and rest.

The numbers are those of a machine with a busy GPU, not of one model. Tests need machines that rise and fall together,
each around a level of its own, while one of them does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.lab.testing.scenario import Scenario
from tocsin.schemas import events
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    Frame,
    Groups,
    HostStatus,
    JobRecord,
    StepBatch,
    TableAnnouncement,
    metric_slice_ns,
)

LEVELS: Mapping[str, float] = {
    "gpu_util_ratio": 0.9,
    "gpu_sm_active_ratio": 0.7,
    "gpu_tensor_active_ratio": 0.5,
    "gpu_graphics_active_ratio": 0.85,
    "gpu_fp_active_ratio": 0.3,
    "gpu_dram_active_ratio": 0.5,
    "pcie_usage_ratio": 0.3,
    "gpu_power_watts": 450.0,
    "gpu_temperature_celsius": 60.0,
    "gpu_sm_clock_hertz": 1.7e9,
    "gpu_memory_used_bytes": 6e10,
    "nvlink_bytes_per_second": 1e11,
    "pcie_bytes_per_second": 5e9,
    "cpu_util_ratio": 0.3,
    "memory_used_ratio": 0.5,
    "disk_used_ratio": 0.4,
    "tcp_bytes_per_second": 2e6,
    "rdma_bytes_per_second": 2e10,
    "pfc_tx_packets_per_second": 0.0,
    "ecn_packets_per_second": 0.0,
    "cnp_packets_per_second": 0.0,
}
"""Metric -> level of a working machine. Other metrics have the level 1."""
_STEADY = frozenset(
    {"gpu_temperature_celsius", "gpu_sm_clock_hertz", "gpu_memory_used_bytes", "memory_used_ratio", "disk_used_ratio"}
)
"""Metrics that are the same at work and at rest (for minutes, at least)."""
_REST_SHARES: Mapping[str, float] = {"gpu_power_watts": 0.25, "cpu_util_ratio": 0.5, "tcp_bytes_per_second": 0.5}
_SPIN_SHARES: Mapping[str, float] = {
    "gpu_util_ratio": 1.0,
    "gpu_graphics_active_ratio": 1.0,
    "gpu_sm_active_ratio": 1.0,
    "gpu_power_watts": 0.6,
    "cpu_util_ratio": 1.0,
    "tcp_bytes_per_second": 0.5,
}
"""Metric -> share of its level in a kernel that waits for its peers; 0 for others. ``_REST_SHARES``: the same at rest.
"""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MachineShape:
    """The machines of a fake job.

    Attributes:
        gpu_count: GPUs per host.
        noise_ratio: relative standard deviation of samples around their level.
        own_ratio: relative standard deviation of the machines' own levels.
        tick_seconds: sampling period.
        has_hook: whether the ranks report steps and collectives.
        table: the metrics.
        seed: seed of levels and noise.
    """

    gpu_count: int = 2
    noise_ratio: float = 0.02
    own_ratio: float = 0.04
    tick_seconds: int = 1
    has_hook: bool = True
    table: MetricTable = BUILTIN_TABLE
    seed: int = 0


class MetricsJob(FakeJob):
    """A fake job whose agents send metric frames, too."""

    def __init__(self, shape: JobShape, machines: MachineShape | None = None) -> None:
        """Create a healthy job on healthy machines."""
        super().__init__(shape)
        self.machines = machines or MachineShape()
        table = self.machines.table
        self.metric_names = [metric.name for metric in (*table.host, *table.gpu)]
        self._draw = np.random.default_rng(self.machines.seed)
        size = (shape.rank_count, len(self.metric_names), self.machines.gpu_count)
        levels = np.array([LEVELS.get(name, 1.0) for name in self.metric_names])
        wide = np.array([0.0 if name in _STEADY else self.machines.own_ratio for name in self.metric_names])
        self._levels: FloatArray = levels[:, None] * (1 + wide[:, None] * self._draw.standard_normal(size))
        self._factors = np.ones(size)
        self._added = np.zeros(size)
        self._ticks: list[FloatArray] = []
        self._tick_ends_ns: list[int] = []
        self._lasted_seconds = self._usual_seconds = 0.0
        self._non_training_shares = np.zeros(0)
        """Share of each level during ``work_otherwise``; empty otherwise."""

    # -- faults --------------------------------------------------------------------

    def shift(self, rank: int, metric: str, factor: float, gpu: int | None = None) -> None:
        """A metric of a rank's host (of one GPU) is ``factor`` times what it was (1: well again)."""
        self._factors[rank, self.metric_names.index(metric), slice(None) if gpu is None else gpu] = factor

    def work_otherwise(self, seconds: float, shares: Mapping[str, float]) -> None:
        """Steps stop for so long, unannounced, and the machines do something else (metrics not named: as ever)."""
        self._non_training_shares = np.array([shares.get(name, 1.0) for name in self.metric_names])
        self.pause(seconds, "")

    def raise_by(self, rank: int, metric: str, amount: float, gpu: int | None = None) -> None:
        """Raise a metric of a rank's host, or of one GPU of it, by an amount (0: well again)."""
        self._added[rank, self.metric_names.index(metric), slice(None) if gpu is None else gpu] = amount

    def lose_gpu(self, rank: int, gpu: int = 0) -> None:
        """Make a GPU give no more samples."""
        first = len(self.machines.table.host)
        self._added[rank, first:, gpu] = np.nan

    def revive_agent(self, rank: int) -> None:
        """Restart the agent of a rank's host."""
        self.ranks[rank].agent_alive = True
        self.event(rank, events.AGENT, edge="start")

    # -- time ----------------------------------------------------------------------

    @property
    def slice_ns(self) -> int:
        """Length of a metric slice, nanoseconds."""
        return metric_slice_ns(self.machines.tick_seconds * NS_PER_SECOND)

    def second(self) -> Iterator[JobRecord]:
        """Simulate one second; yield the records that the agents send by its end."""
        paused = self._paused_until_ns > self.now_ns
        for record in super().second():
            if self.machines.has_hook or not isinstance(record, StepBatch | CollectiveBatch | Groups):
                yield self._without_hook(record)
        tick_ns = self.machines.tick_seconds * NS_PER_SECOND
        if self.now_ns % tick_ns == 0:
            self._ticks.append(self._sample(paused=paused))
            self._tick_ends_ns.append(self.now_ns)
        if self.now_ns % self.slice_ns == 0:
            yield from self._frames(tick_ns)

    def _without_hook(self, record: JobRecord) -> JobRecord:
        """Return a host status without hook data if the ranks have no hook; other records unchanged."""
        if self.machines.has_hook or not isinstance(record, HostStatus):
            return record
        return HostStatus(
            record.job, record.host, record.ts_ns, 0, record.clock_error_ns, (),
            hook_present=False, dropped_count=0, spooled_count=0,
        )  # fmt: skip

    def _one_step(self, begin_ns: int, limit_ns: int) -> int | None:
        """Run one step and note its duration."""
        done_ns = super()._one_step(begin_ns, limit_ns)
        if done_ns is not None:
            self._lasted_seconds = (done_ns - begin_ns) / NS_PER_SECOND
            self._usual_seconds = self._usual_seconds or self._lasted_seconds
        return done_ns

    def _shares(self, rank: int, *, paused: bool) -> FloatArray:
        """Return each metric's share of its level on one rank's machine now."""
        held = self.ranks[rank].frozen or self.ranks[rank].exited
        if paused and self._non_training_shares.size:
            return self._non_training_shares
        if paused or held:
            return np.array([1.0 if name in _STEADY else _REST_SHARES.get(name, 0.0) for name in self.metric_names])
        if self.stalled:
            return np.array([1.0 if name in _STEADY else _SPIN_SHARES.get(name, 0.0) for name in self.metric_names])
        # Longer steps: less work per second; the rest of the time kernels spin.
        work = min(1.0, self._usual_seconds / self._lasted_seconds) if self._lasted_seconds else 1.0
        spin = np.array([1.0 if name in _STEADY else _SPIN_SHARES.get(name, 0.0) for name in self.metric_names])
        found: FloatArray = spin + (1 - spin) * work
        return found

    def _sample(self, *, paused: bool) -> FloatArray:
        """Return the samples of one tick of all machines, shape (ranks, metrics, GPUs)."""
        shares = np.stack([self._shares(rank.rank, paused=paused) for rank in self.ranks])[:, :, None]
        noise = self.machines.noise_ratio * self._draw.standard_normal(self._levels.shape)
        values = self._levels * shares * self._factors * (1 + noise) + self._added
        ratio = np.array([name.endswith("_ratio") for name in self.metric_names])[:, None]
        found: FloatArray = np.where(ratio, np.minimum(values, 1.0), values)
        return found

    def _frames(self, tick_ns: int) -> Iterator[JobRecord]:
        """Yield the metric frames of the finished slice."""
        values, ends_ns = np.stack(self._ticks, axis=-1).astype("<f4"), self._tick_ends_ns
        self._ticks, self._tick_ends_ns = [], []
        table, host_count = self.machines.table, len(self.machines.table.host)
        stamp = self.now_ns - NS_PER_SECOND // 1000
        for rank in self.ranks:
            if not rank.agent_alive:
                continue
            own = values[rank.rank]
            if table is not BUILTIN_TABLE:
                yield TableAnnouncement(self.job, rank.host, stamp, table)
            yield Frame(
                self.job,
                rank.host,
                stamp,
                table.table_id,
                ends_ns[0] - tick_ns,
                tick_ns,
                len(ends_ns),
                tuple(f"GPU-{rank.rank}-{gpu}" for gpu in range(self.machines.gpu_count)),
                np.ascontiguousarray(own[host_count:].transpose(1, 0, 2)).tobytes(),
                np.ascontiguousarray(own[:host_count, 0]).tobytes(),
            )


@dataclass(slots=True)
class MetricsScenario(Scenario):
    """A scenario whose job has machine metrics.

    Attributes:
        machines: settings of the machines.
    """

    machines: MachineShape = field(default_factory=MachineShape)
    job: MetricsJob = field(init=False)

    def __post_init__(self) -> None:
        """Create the job and the engine."""
        Scenario.__post_init__(self)
        self.job = MetricsJob(self.shape, self.machines)

"""Simulated sampling: metric matrices, tick by tick, from the activity of the ranks.

Matrices have metrics first: (metrics, ticks, ranks or hosts), float32. A sample at a tick is the mean over the
sampling period before it, by the host's own clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.simulation.levels import (
    COMPUTE,
    GPU_INDEX,
    HOST_INDEX,
    HOST_METRICS,
    IDLE,
    PHASES,
    TRANSFER,
)
from tocsin.pipeline.lab.simulation.physics import Span
from tocsin.pipeline.lab.simulation.plan import (
    Dilution,
    Envelope,
    Gap,
    Plan,
    PlannedSlowdown,
    PlannedSlowLink,
    Shift,
)
from tocsin.pipeline.lab.simulation.shape import SimulatedShape
from tocsin.schemas.metrics import GPU_METRICS

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

TEMPERATURE = GPU_INDEX["gpu_temperature_celsius"]
POWER = GPU_INDEX["gpu_power_watts"]
PCIE, PCIE_USAGE = GPU_INDEX["pcie_bytes_per_second"], GPU_INDEX["pcie_usage_ratio"]
_TRAFFIC = ("nvlink_bytes_per_second", "pcie_bytes_per_second")

DILUTED: dict[Dilution, dict[str, float]] = {
    "clock": {"gpu_dram_active_ratio": 0.8, "nvlink_bytes_per_second": 1.0, "pcie_bytes_per_second": 1.0},
    "kernel": {
        "gpu_tensor_active_ratio": 1.0,
        "gpu_fp_active_ratio": 1.0,
        "gpu_dram_active_ratio": 0.7,
        "gpu_power_watts": 0.4,
        "nvlink_bytes_per_second": 1.0,
        "pcie_bytes_per_second": 1.0,
    },
    "starved": {
        "gpu_util_ratio": 0.8,
        "gpu_graphics_active_ratio": 0.9,
        "gpu_sm_active_ratio": 1.0,
        "gpu_tensor_active_ratio": 1.0,
        "gpu_fp_active_ratio": 1.0,
        "gpu_dram_active_ratio": 1.0,
        "gpu_power_watts": 0.8,
        "nvlink_bytes_per_second": 1.0,
        "pcie_bytes_per_second": 1.0,
    },
}
"""Kind of slowness -> metric -> how much of the missing speed the metric shows."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """The samples of some consecutive ticks.

    Attributes:
        first_tick_index: number of the first tick.
        gpu: shape (GPU metrics, ticks, hosts, GPUs).
        host: shape (host metrics, ticks, hosts).
        kept: rows that are recorded, shape (ticks, hosts, 1 + GPUs); the host's own row first.
    """

    first_tick_index: int
    gpu: Singles
    host: Singles
    kept: NDArray[np.bool_]


class Telemetry:
    """The samplers of all hosts.

    Args:
        shape: the job.
        plan: what happens.
        seed: of this part.

    Attributes:
        plan: faults and disturbances.
        seed: seed of this part of the simulation.
    """

    def __init__(self, shape: SimulatedShape, plan: Plan, seed: np.random.SeedSequence) -> None:
        self._shape = shape
        self._rng = np.random.Generator(np.random.SFC64(seed))
        self._shifts: list[Shift] = plan.of(Shift)
        self._slowdowns: list[PlannedSlowdown] = [part for part in plan.of(PlannedSlowdown) if "compute" in part.phases]
        self._links: list[PlannedSlowLink] = plan.of(PlannedSlowLink)
        self._gaps: list[Gap] = plan.of(Gap)
        ranks, hosts = shape.rank_count, shape.host_count
        self._gpu_noise = np.zeros((len(GPU_METRICS), ranks), np.float32)
        self._host_noise = np.zeros((len(GPU_METRICS) + len(HOST_METRICS), hosts), np.float32)
        self._common_noise = np.zeros((1,), np.float32)
        self._warm_ratio: Singles | None = None
        self._block_ticks = 0
        self._cooling_seconds = float(self._rng.uniform(8.0, 45.0))
        self._offset = shape.sample_phase_seconds - shape.clock_offset_seconds

    def sample(self, first_tick: int, tick_count: int, spans: Iterable[Span]) -> Matrices:
        """Return the samples of these ticks; must be called for consecutive ticks."""
        shape = self._shape
        self._block_ticks = tick_count
        ticks = (first_tick + np.arange(tick_count)) * shape.tick_seconds
        shares = self._shares(first_tick, tick_count, spans)
        gpu, host = self._levels(shares)
        self._slow(ticks, shares, gpu, host)
        self._scatter(gpu, host)
        at_seconds = ticks + float(self._offset.mean())
        gpu4 = gpu.reshape(len(GPU_METRICS), tick_count, shape.host_count, shape.gpus_per_host_count)
        self._shift(at_seconds, gpu4, host)
        self._finish(at_seconds, gpu4, host)
        return Matrices(first_tick, gpu4, host, self._kept(ticks))

    def _shares(self, first_tick: int, tick_count: int, spans: Iterable[Span]) -> Singles:
        """Return the share of each sampling period spent in each phase, shape (phases, ticks, ranks)."""
        shape = self._shape
        tick = shape.tick_seconds
        per_host = (first_tick - 1 + np.arange(tick_count + 1))[:, None] * tick + self._offset[None, :]
        edges = np.repeat(per_host, shape.gpus_per_host_count, axis=1)
        lowest, highest = float(self._offset.min()), float(self._offset.max())
        seconds = np.zeros((len(PHASES), tick_count, shape.rank_count), np.float32)
        for span in spans:
            begin, end = float(span.bounds[0].min()), float(span.bounds[-1].max())
            low = max(0, int(np.floor((begin - highest) / tick)) - first_tick)
            high = int(np.ceil((end - lowest) / tick)) + 2 - first_tick
            high = min(tick_count, high)
            if high <= low:
                continue
            part = edges[low : high + 1]
            for index, code in enumerate(span.codes):
                first, last = span.bounds[index], span.bounds[index + 1]
                spent = np.diff(np.clip(part, first, np.maximum(first, last)), axis=0)
                if code == COMPUTE:
                    busy = spent * span.busy_ratio
                    seconds[COMPUTE, low:high] += busy
                    seconds[PHASES.index("wait"), low:high] += spent - busy
                else:
                    seconds[code, low:high] += spent
        seconds /= np.float32(tick)
        return seconds

    def _levels(self, shares: Singles) -> tuple[Singles, Singles]:
        """Return the noiseless GPU and host metrics from the shares of phases."""
        shape = self._shape
        phases, ticks, ranks = shares.shape
        gpu = np.empty((len(GPU_METRICS), ticks, ranks), np.float32)
        host = np.empty((len(HOST_METRICS), ticks, shape.host_count), np.float32)
        by_host = shares.reshape(phases, ticks, shape.host_count, -1).mean(axis=3)
        stage_ranks, stage_hosts = ranks // shape.pp, shape.host_count // shape.pp
        for stage in range(shape.pp):
            own = slice(stage * stage_ranks, (stage + 1) * stage_ranks)
            machines = slice(stage * stage_hosts, (stage + 1) * stage_hosts)
            levels = shape.levels.gpu.T * shape.stage_gpu_factor[stage][:, None]
            gpu[:, :, own] = _weighed(levels, shares[:, :, own])
            levels = shape.levels.host.T * shape.stage_host_factor[stage][:, None]
            host[:, :, machines] = _weighed(levels, by_host[:, :, machines])
        return gpu, host

    # -- slowness ------------------------------------------------------------------------

    def _slow(self, ticks: Floats, shares: Singles, gpu: Singles, host: Singles) -> None:
        """Lower the activity of slow ranks and links, in place."""
        levels = self._shape.levels
        stage = self._shape.stage_of_rank
        for slow in self._slowdowns:
            lost = _lost_share(slow.envelope, slow.factor, ticks)
            if lost is None:
                continue
            ranks = np.array(slow.ranks)
            missing = lost[:, None] * shares[COMPUTE][:, ranks]
            for name, weight in DILUTED[slow.dilution].items():
                index = GPU_INDEX[name]
                height = (levels.gpu[COMPUTE, index] - levels.gpu[IDLE, index]) * weight
                gpu[index][:, ranks] -= missing * height * self._shape.stage_gpu_factor[stage[ranks], index]
        for link in self._links:
            lost = _lost_share(link.envelope, link.factor, ticks)
            if lost is None:
                continue
            for name in _TRAFFIC:
                index = GPU_INDEX[name]
                gpu[index] -= lost[:, None] * shares[TRANSFER] * levels.gpu[TRANSFER, index] * 0.9
            index = HOST_INDEX["rdma_bytes_per_second"]
            by_host = shares[TRANSFER].reshape(len(ticks), self._shape.host_count, -1).mean(axis=2)
            host[index] -= lost[:, None] * by_host * levels.host[TRANSFER, index] * 0.9

    # -- noise ---------------------------------------------------------------------------

    def _scatter(self, gpu: Singles, host: Singles) -> None:
        """Apply own levels and noise, in place; the noise of a host's GPUs is partly shared."""
        shape, noise = self._shape, self._shape.noise
        ticks = gpu.shape[1]
        shared = self._series(self._host_noise, ticks) * noise.host_sigma[:, None, None]
        common = self._series(self._common_noise[:, None], ticks)[0, :, 0] * noise.common_sigma_ratio
        own = self._series(self._gpu_noise, ticks)
        own *= noise.gpu_sigma[:, None, None]
        by_gpu = own.reshape(len(GPU_METRICS), ticks, shape.host_count, shape.gpus_per_host_count)
        by_gpu += shared[: len(GPU_METRICS), :, :, None]
        own += 1.0 + common[None, :, None].astype(np.float32)
        by_gpu *= shape.gpu_bias_factor[:, None]
        gpu *= own
        spread = shared[len(GPU_METRICS) :]
        host *= np.exp(spread - 0.5 * noise.host_sigma[len(GPU_METRICS) :, None, None] ** 2)
        host *= shape.host_bias_factor[:, None]

    def _series(self, state: Singles, ticks: int) -> Singles:
        """Return autocorrelated unit noise, shape (series, ticks, columns); ``state`` is advanced in place."""
        noise, rng = self._shape.noise, self._rng
        size = (state.shape[0], ticks, state.shape[1])
        if noise.family == "normal":
            fresh = rng.standard_normal(size, dtype=np.float32)
        elif noise.family == "uniform":
            fresh = (rng.random(size, dtype=np.float32) - np.float32(0.5)) * np.float32(12**0.5)
        else:
            fresh = rng.standard_exponential(size, dtype=np.float32)
            fresh *= np.where(rng.random(size, dtype=np.float32) < 0.5, np.float32(-(0.5**0.5)), np.float32(0.5**0.5))
        keep = np.float32(noise.keep_ratio)
        fresh *= np.sqrt(np.float32(1.0) - keep * keep)
        for tick in range(ticks):
            state *= keep
            state += fresh[:, tick]
            fresh[:, tick] = state
        count = int(rng.poisson(noise.tail_ratio * fresh.size))
        far = rng.integers(0, fresh.size, count)
        fresh.reshape(-1)[far] *= np.float32(noise.tail_factor)
        return np.asarray(fresh, dtype=np.float32)

    # -- shifts, limits, gaps -----------------------------------------------------------------

    def _shift(self, at_seconds: Floats, gpu: Singles, host: Singles, *, late: bool = False) -> None:
        """Apply the planned shifts in place; with ``late``, those of temperature, which is derived from power first."""
        for shift in self._shifts:
            if (shift.metric == "gpu_temperature_celsius") is not late:
                continue
            if not shift.envelope.touches(float(at_seconds[0]), float(at_seconds[-1]) + 1e-6):
                continue
            hosts = np.array(shift.hosts) if shift.hosts else np.arange(self._shape.host_count)
            strength = shift.envelope.at(at_seconds).astype(np.float32)[:, None] * self._rough(shift, len(hosts))
            if shift.metric in HOST_INDEX:
                matrix = host[HOST_INDEX[shift.metric]]
                matrix[:, hosts] = _shifted(matrix[:, hosts], shift, strength)
            else:
                cube = gpu[GPU_INDEX[shift.metric]]
                gpus = range(cube.shape[2]) if shift.gpu < 0 else (shift.gpu,)
                for index in gpus:
                    cube[:, hosts, index] = _shifted(cube[:, hosts, index], shift, strength)

    def _rough(self, shift: Shift, host_count: int) -> Singles:
        """Return a noise factor for an added value, so that it varies like the metric from tick to tick."""
        if shift.add_value == 0.0:
            return np.ones((1, 1), np.float32)
        noise = self._shape.noise.host_sigma
        index = HOST_INDEX.get(shift.metric)
        sigma = noise[GPU_INDEX[shift.metric]] if index is None else noise[len(GPU_METRICS) + index]
        ticks = self._rng.standard_normal((self._block_ticks, host_count), dtype=np.float32)
        return np.asarray(np.exp(sigma * ticks - 0.5 * sigma * sigma), dtype=np.float32)

    def _finish(self, at_seconds: Floats, gpu: Singles, host: Singles) -> None:
        """Derive dependent metrics, and apply limits and the counters' resolution, in place."""
        shape = self._shape
        gpu[PCIE_USAGE] = gpu[PCIE] / np.float32(shape.levels.pcie_limit_bytes_per_second)
        self._heat(gpu)
        self._shift(at_seconds, gpu, host, late=True)
        for index, metric in enumerate(GPU_METRICS):
            np.clip(gpu[index], 0.0, metric.high, out=gpu[index])
        for index, metric in enumerate(HOST_METRICS):
            np.clip(host[index], 0.0, metric.high, out=host[index])
        np.minimum(gpu[POWER], np.float32(1.03 * shape.levels.model.limit_watts), out=gpu[POWER])
        np.round(gpu[TEMPERATURE], out=gpu[TEMPERATURE])
        clock = GPU_INDEX["gpu_sm_clock_hertz"]
        gpu[clock] = np.minimum(np.round(gpu[clock] / 15e6) * 15e6, shape.levels.model.clock_hertz)
        util = GPU_INDEX["gpu_util_ratio"]
        gpu[util] = np.round(gpu[util] * 100.0) / 100.0

    def _heat(self, gpu: Singles) -> None:
        """Derive temperatures, which follow power slowly, in place."""
        shape = self._shape
        load = gpu[POWER] / np.float32(shape.levels.model.limit_watts)
        if self._warm_ratio is None:
            self._warm_ratio = load.mean(axis=0)
        share = np.float32(min(1.0, shape.tick_seconds / self._cooling_seconds))
        for tick in range(load.shape[0]):
            self._warm_ratio = self._warm_ratio + share * (load[tick] - self._warm_ratio)
            gpu[TEMPERATURE, tick] = shape.ambient_celsius + shape.rise_celsius * self._warm_ratio

    def _kept(self, ticks: Floats) -> NDArray[np.bool_]:
        """Return which rows are recorded, shape (ticks, hosts, 1 + GPUs)."""
        shape = self._shape
        kept = np.ones((len(ticks), shape.host_count, 1 + shape.gpus_per_host_count), np.bool_)
        if shape.lost_ratio > 0.0:
            lost = self._rng.random((len(ticks), shape.host_count), dtype=np.float32) < shape.lost_ratio
            what = self._rng.integers(3, size=lost.shape)  # all of the host, its own row, its GPUs
            kept[lost & (what != 2), 0] = False
            kept[lost & (what != 1), 1:] = False
        for gap in self._gaps:
            within = (ticks >= gap.begin_seconds) & (ticks < gap.end_seconds)
            if within.any():
                rows = slice(None) if gap.gpu < 0 else slice(gap.gpu + 1, gap.gpu + 2)
                kept[within, gap.host_index, rows] = False
        return kept


def _weighed(levels: Floats, shares: Singles) -> Singles:
    """Return the mean levels weighted with shares, shape (metrics, ticks, columns).

    ``tensordot`` is not used: the last digits from BLAS depend on the number of threads, and a seed must give the same
    recording on all machines. With so few phases it is also slower.

    Args:
        levels: shape (metrics, phases).
        shares: shape (phases, ticks, columns).
    """
    found: Singles = np.einsum("mp,ptc->mtc", levels, shares)
    return found


def _lost_share(envelope: Envelope, factor: float, ticks: Floats) -> Singles | None:
    """Return the share of the speed that is missing at each tick, None if none is."""
    if not envelope.touches(float(ticks[0]), float(ticks[-1]) + 1e-6):
        return None
    strength = envelope.at(ticks)
    return np.asarray(1.0 - 1.0 / (1.0 + (factor - 1.0) * strength), dtype=np.float32)


def _shifted(values: Singles, shift: Shift, strength: Singles) -> Singles:
    """Return values with a planned shift applied at this strength."""
    moved = values * (1.0 + np.float32(shift.scale_factor - 1.0) * strength) + np.float32(shift.add_value) * strength
    if shift.high is not None:
        moved = np.where(strength > 0.3, np.minimum(moved, np.float32(shift.high)), moved)
    return np.asarray(moved, dtype=np.float32)

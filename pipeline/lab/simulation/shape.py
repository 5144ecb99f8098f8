"""Random jobs: machines, parallel layout, step, base levels, biases, noise, and what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.simulation.columns import draw_columns
from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.levels import (
    COMPUTE,
    GPU_INDEX,
    HOST_INDEX,
    HOST_METRICS,
    USER_METRIC,
    Levels,
    draw_levels,
)
from tocsin.schemas.metrics import GPU_METRICS, Metric
from tocsin.schemas.records import NS_PER_SECOND

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
StepDetail = Literal["none", "duration", "waits", "full"]


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a healthy job's samples.

    Attributes:
        gpu_sigma: relative standard deviation by GPU metric.
        host_sigma: relative standard deviation of what a host's GPUs share, by GPU metric, then by host metric.
        keep_ratio: autocorrelation from tick to tick.
        tail_ratio: share of samples that are outliers.
        tail_factor: factor by which outliers are further out.
        family: distribution of the innovations.
        common_sigma_ratio: relative noise that all machines share.
    """

    gpu_sigma: Singles
    host_sigma: Singles
    keep_ratio: float
    tail_ratio: float
    tail_factor: float
    family: Literal["normal", "laplace", "uniform"]
    common_sigma_ratio: float


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The composition of a step in a healthy job.

    Attributes:
        step_seconds: duration of a step.
        data_ratio: share spent waiting for data, by every rank.
        compute_ratio: share of forward and backward.
        optimizer_ratio: share of the optimizer.
        transfer_ratio: share of collectives that are not hidden.
        forward_ratio: share of compute that is the forward pass.
        jitter_ratio: relative variation of a rank's self time from step to step.
        skew_ratio: relative variation of the ranks' work by the content of their batches.
        skew_family: distribution of that variation.
        interleave_ratio: share of the waiting that is spread over the computation (1: a collective in every layer).
        warmup_steps: number of slower steps at the beginning.
    """

    step_seconds: float
    data_ratio: float
    compute_ratio: float
    optimizer_ratio: float
    transfer_ratio: float
    forward_ratio: float
    jitter_ratio: float
    skew_ratio: float
    skew_family: Literal["lognormal", "pareto", "bimodal"]
    interleave_ratio: float
    warmup_steps: int


@dataclass(frozen=True, slots=True)
class SimulatedShape:
    """One simulated job.

    Attributes:
        job_id: name of the job.
        start_ns: first instant, on a slice boundary.
        host_names: name of each host.
        gpus_per_host_count: ranks on each host; rank = host index * this + GPU.
        dp: data-parallel size.
        pp: pipeline stages.
        tp: tensor-parallel size.
        leaf_of_host: index of each host's leaf switch.
        minipod_of_host: index of each host's minipod.
        pace: composition of a step.
        rank_load: computing time of each rank relative to the mean.
        stage_load: computing time of each stage relative to the slowest.
        levels: base levels of the metrics.
        stage_gpu_factor: relative level of each stage, shape (stages, GPU metrics).
        stage_host_factor: relative level of each stage, shape (stages, host metrics).
        gpu_bias_factor: own level of each GPU, shape (GPU metrics, hosts, GPUs).
        host_bias_factor: own level of each host, shape (host metrics, hosts).
        ambient_celsius: temperature without power, shape (hosts, GPUs).
        rise_celsius: temperature rise at the power limit, shape (hosts, GPUs).
        noise: noise of the samples.
        tick_seconds: sampling period.
        sample_phase_seconds: time within a tick at which each host samples, by its own clock, shape (hosts,).
        clock_offset_seconds: each host's clock minus true time, shape (hosts,).
        lost_ratio: share of samples that are lost.
        metrics: names of the recorded metrics.
        step_detail: which columns step records have.
        step_ranks_count: ranks per host that record steps (all or one).
        has_topology: whether ``topology`` and ``groups`` are recorded.
    """

    job_id: str
    start_ns: int
    host_names: tuple[str, ...]
    gpus_per_host_count: int
    dp: int
    pp: int
    tp: int
    leaf_of_host: NDArray[np.int64]
    minipod_of_host: NDArray[np.int64]
    pace: StepProfile
    rank_load: Floats
    stage_load: Floats
    levels: Levels
    stage_gpu_factor: Singles
    stage_host_factor: Singles
    gpu_bias_factor: Singles
    host_bias_factor: Singles
    ambient_celsius: Singles
    rise_celsius: Singles
    noise: Noise
    tick_seconds: float
    sample_phase_seconds: Floats
    clock_offset_seconds: Floats
    lost_ratio: float
    metrics: tuple[str, ...]
    step_detail: StepDetail
    step_ranks_count: int
    has_topology: bool

    @property
    def host_count(self) -> int:
        """Number of machines."""
        return len(self.host_names)

    @property
    def rank_count(self) -> int:
        """Number of ranks."""
        return self.host_count * self.gpus_per_host_count

    @property
    def stage_of_rank(self) -> NDArray[np.int64]:
        """Pipeline stage of each rank."""
        return np.arange(self.rank_count) // (self.tp * self.dp)

    @property
    def stage_of_host(self) -> NDArray[np.int64]:
        """Pipeline stage of each host's first rank."""
        return self.stage_of_rank[:: self.gpus_per_host_count]

    @property
    def slice_ns(self) -> int:
        """Length of a metric slice: 5 s or 5 ticks."""
        return round(max(5.0, 5.0 * self.tick_seconds) * NS_PER_SECOND)

    @property
    def slice_ticks(self) -> int:
        """Number of ticks in a slice."""
        return round(self.slice_ns / NS_PER_SECOND / self.tick_seconds)

    def ranks_of(self, host_index: int) -> tuple[int, ...]:
        """Return the ranks on a host."""
        first = host_index * self.gpus_per_host_count
        return tuple(range(first, first + self.gpus_per_host_count))


def draw_shape(draw: Draw, host_count: int, must: str | None = None) -> SimulatedShape:
    """Draw one job of this many hosts; ``must``: a fault kind or disturbance that it must be able to show."""
    gpus, tp, pp, has_topology = _layout(draw, host_count, must)
    dp = host_count * gpus // (tp * pp)
    leaf = np.arange(host_count) // draw.pick((2, 4, 4, 8, 16))
    tick = draw.weighted({1.0: 0.84, 2.0: 0.1, 5.0: 0.06})
    phase, offset = _clocks(draw, host_count, tick, wrong=must == "clock_offset")
    noise, gpu_bias, host_bias = _scatter(draw, host_count, gpus)
    slice_ns = round(max(5.0, 5.0 * tick) * NS_PER_SECOND)
    return SimulatedShape(
        job_id=f"sim-{draw.index(10**6):06d}",
        start_ns=(1_700_000_000 + draw.index(10**8)) * NS_PER_SECOND // slice_ns * slice_ns,
        host_names=_host_names(draw, host_count),
        gpus_per_host_count=gpus,
        dp=dp,
        pp=pp,
        tp=tp,
        leaf_of_host=leaf,
        minipod_of_host=leaf // draw.pick((2, 4, 8)),
        pace=_pace(draw, dp * tp * pp, skewed=draw.chance(0.35) or must == "data_skew"),
        rank_load=1.0 + draw.uniform(0.0, 0.015) * draw.rng.standard_normal(host_count * gpus),
        stage_load=_stage_load(draw, pp),
        levels=draw_levels(draw, tp, pp),
        stage_gpu_factor=_stage_factors(draw, pp, GPU_METRICS),
        stage_host_factor=_stage_factors(draw, pp, HOST_METRICS),
        gpu_bias_factor=gpu_bias,
        host_bias_factor=host_bias,
        ambient_celsius=_temperatures(draw, host_count, gpus, draw.uniform(26, 36)),
        rise_celsius=_temperatures(draw, host_count, gpus, draw.uniform(22, 42)),
        noise=noise,
        tick_seconds=tick,
        sample_phase_seconds=phase,
        clock_offset_seconds=offset,
        lost_ratio=draw.log_uniform(1e-4, 0.02) if draw.chance(0.5) or must == "lost_samples" else 0.0,
        metrics=draw_columns(draw, must),
        step_detail=_step_detail(draw, must) if has_topology else "none",
        step_ranks_count=gpus if draw.chance(0.8) or must == "nan_gradient" else 1,
        has_topology=has_topology,
    )


def _layout(draw: Draw, host_count: int, must: str | None) -> tuple[int, int, int, bool]:
    """Draw GPUs per host, tensor-parallel size, number of stages, and whether the topology is recorded."""
    gpus = draw.weighted({8: 0.8, 4: 0.12, 2: 0.05, 1: 0.03})
    has_topology = draw.chance(0.85) or must in {"nan_gradient", "data_skew", "stage_load"}
    tp = draw.pick([size for size in (1, 2, 4, 8) if gpus % size == 0])
    pp = _stage_count(draw, host_count, staged=must == "stage_load") if has_topology else 1
    return gpus, tp, pp, has_topology


def _step_detail(draw: Draw, must: str | None) -> StepDetail:
    """Draw which columns step records have."""
    detail: StepDetail = draw.weighted({"none": 0.25, "duration": 0.15, "waits": 0.2, "full": 0.4})
    return "full" if detail == "none" and must in {"nan_gradient", "data_skew"} else detail


def _stage_count(draw: Draw, host_count: int, *, staged: bool) -> int:
    """Draw the number of pipeline stages: whole hosts, at least three a stage (sometimes two)."""
    least = 2 if draw.chance(0.1) else 3
    fits = [size for size in (1, 2, 4, 8, 16) if host_count % size == 0 and host_count // size >= least]
    return draw.pick([size for size in fits if size > 1] or [1] if staged else [1, *fits])


def _stage_load(draw: Draw, pp: int) -> Floats:
    """Draw the computing time of each stage relative to the slowest."""
    load = draw.rng.uniform(1.0 - draw.uniform(0.0, 0.25), 1.0, pp)
    if pp > 1 and draw.chance(0.4):  # logits: the last stage is the longest
        load[-1] = load.max() * draw.uniform(1.0, 1.3)
    return np.asarray(load / load.max(), dtype=np.float64)


_SAME_IN_ALL_STAGES = {"gpu_temperature_celsius", "gpu_sm_clock_hertz", "disk_used_ratio"}
_SIMILAR_IN_ALL_STAGES = {"gpu_util_ratio", "gpu_graphics_active_ratio", "gpu_power_watts"}


def _stage_factors(draw: Draw, pp: int, metrics: Sequence[Metric]) -> Singles:
    """Draw the relative levels of stages, shape (stages, metrics).

    Most differ, because stages hold different layers.
    """
    spread = draw.uniform(0.02, 0.3) if pp > 1 else 0.0
    factors = draw.rng.uniform(1.0 - spread, 1.0 + spread / 3, (pp, len(metrics))).astype(np.float32)
    for index, metric in enumerate(metrics):
        if metric.name in _SAME_IN_ALL_STAGES:
            factors[:, index] = 1.0
        elif metric.name in _SIMILAR_IN_ALL_STAGES:
            factors[:, index] = 1.0 - 0.2 * (1.0 - factors[:, index])
    return factors


def _pace(draw: Draw, rank_count: int, *, skewed: bool) -> StepProfile:
    """Draw the composition of a step."""
    step = draw.log_uniform(0.5, 30.0)
    transfer = draw.uniform(0.02, 0.3)
    data = draw.log_uniform(0.002, 0.08)
    optimizer = draw.uniform(0.01, 0.06)
    # The step lasts as long as its slowest rank: many ranks with the same scatter make all of them wait.
    calm = min(1.0, 4.0 / np.log2(max(rank_count, 2)))
    return StepProfile(
        step_seconds=step,
        data_ratio=data,
        compute_ratio=1.0 - transfer - data - optimizer,
        optimizer_ratio=optimizer,
        transfer_ratio=transfer,
        forward_ratio=draw.uniform(0.28, 0.42),
        jitter_ratio=draw.log_uniform(0.002, 0.03) * calm,
        skew_ratio=draw.log_band(0.02, 0.25) * calm if skewed else 0.0,
        skew_family=draw.shape(("lognormal",), ("bimodal",), ("pareto",)),
        interleave_ratio=draw.pick((0.0, draw.uniform(0.2, 0.8), 1.0)),
        warmup_steps=draw.pick((0, 0, 2, 5)),
    )


def _clocks(draw: Draw, host_count: int, tick_seconds: float, *, wrong: bool) -> tuple[Floats, Floats]:
    """Draw sampling phases and clock offsets; a stamp stays within its tick."""
    far = draw.uniform(0.02, 0.2)
    worst = far if wrong else draw.pick((0.002, 0.02, far))
    offset = np.clip(draw.rng.normal(0.0, worst / 2, host_count), -worst, worst)
    offset[draw.index(host_count)] = worst
    if draw.chance(0.5):
        phase = draw.rng.uniform(0.0, 0.03, host_count)
    else:
        phase = draw.rng.uniform(0.0, 0.999 * tick_seconds, host_count)
    return np.asarray(phase), np.asarray(offset)


def _scatter(draw: Draw, host_count: int, gpus: int) -> tuple[Noise, Singles, Singles]:
    """Draw the noise, and the own level of each GPU and host."""
    gpu_count, host_metrics_count = len(GPU_METRICS), len(HOST_METRICS)
    base = draw.log_uniform(0.008, 0.06)
    gpu_sigma = base * draw.rng.lognormal(0.0, 0.5, gpu_count)
    shared = 0.5 * base * draw.rng.lognormal(0.0, 0.6, gpu_count)
    own = 1.5 * base * draw.rng.lognormal(0.0, 0.5, host_metrics_count)
    for name, low, high in _WILD:
        own[HOST_INDEX[name]] = draw.log_uniform(low, high)
    for name in ("gpu_memory_used_bytes", "gpu_sm_clock_hertz", "gpu_temperature_celsius"):
        gpu_sigma[GPU_INDEX[name]] *= 0.1
        shared[GPU_INDEX[name]] *= 0.1
    for name in ("memory_used_ratio", "disk_used_ratio"):
        own[HOST_INDEX[name]] *= 0.1
    noise = Noise(
        gpu_sigma=gpu_sigma.astype(np.float32),
        host_sigma=np.concatenate([shared, own]).astype(np.float32),
        keep_ratio=draw.uniform(0.0, 0.9),
        tail_ratio=draw.log_uniform(1e-5, 3e-3),
        tail_factor=draw.uniform(3.0, 10.0),
        family=draw.shape(("normal",), ("uniform",), ("laplace",)),
        common_sigma_ratio=draw.uniform(0.0, 0.03),
    )
    spread = draw.log_uniform(0.005, 0.06)
    gpu_bias = 1.0 + spread * draw.rng.standard_normal((gpu_count, host_count, gpus)) * 0.7
    gpu_bias += spread * draw.rng.standard_normal((gpu_count, host_count, 1))
    gpu_bias[GPU_INDEX["gpu_sm_clock_hertz"]] = 1.0
    host_bias = 1.0 + 1.5 * spread * draw.rng.standard_normal((host_metrics_count, host_count))
    return noise, np.abs(gpu_bias).astype(np.float32), np.abs(host_bias).astype(np.float32)


_WILD = (
    ("tcp_bytes_per_second", 0.1, 0.5),
    ("pfc_tx_packets_per_second", 0.15, 0.6),
    ("ecn_packets_per_second", 0.15, 0.6),
    ("cnp_packets_per_second", 0.15, 0.6),
    (USER_METRIC.name, 0.1, 0.5),
)
"""Metrics with naturally large noise, and the range of their relative standard deviation."""


def _temperatures(draw: Draw, host_count: int, gpus: int, mean: float) -> Singles:
    """Draw a temperature for each GPU around a mean, shape (hosts, GPUs)."""
    spread = draw.uniform(0.5, 3.0)
    each = mean + spread * draw.rng.standard_normal((host_count, 1))
    return np.asarray(each + spread * draw.rng.standard_normal((host_count, gpus)), dtype=np.float32)


def _host_names(draw: Draw, host_count: int) -> tuple[str, ...]:
    """Draw host names that say nothing about places."""
    prefix = draw.pick(("n", "gpu-", "node", "h100-", "worker-"))
    numbers = draw.rng.choice(max(1000, 4 * host_count), host_count, replace=False)
    return tuple(f"{prefix}{number:04d}" for number in numbers.tolist())


def compute_level(shape: SimulatedShape, metric: str) -> float:
    """Return the level of a metric while the job computes, averaged over the stages."""
    if metric in GPU_INDEX:
        index = GPU_INDEX[metric]
        return float(shape.levels.gpu[COMPUTE, index] * shape.stage_gpu_factor[:, index].mean())
    index = HOST_INDEX[metric]
    return float(shape.levels.host[COMPUTE, index] * shape.stage_host_factor[:, index].mean())

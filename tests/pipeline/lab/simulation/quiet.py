"""A job without noise, so that physics can be read off the numbers."""

from __future__ import annotations

import dataclasses

import numpy as np

from tocsin.pipeline.lab.simulation.case import Case
from tocsin.pipeline.lab.simulation.columns import METRIC_SETS
from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.levels import HOST_METRICS
from tocsin.pipeline.lab.simulation.plan import Part, Plan
from tocsin.pipeline.lab.simulation.shape import (
    Noise,
    SimulatedShape,
    StepProfile,
    draw_shape,
)
from tocsin.schemas.metrics import GPU_METRICS

PACE = StepProfile(
    step_seconds=2.0,
    data_ratio=0.05,
    compute_ratio=0.7,
    optimizer_ratio=0.05,
    transfer_ratio=0.2,
    forward_ratio=0.33,
    jitter_ratio=0.0,
    skew_ratio=0.0,
    skew_family="lognormal",
    interleave_ratio=0.0,
    warmup_steps=0,
)


def quiet_shape(hosts: int = 6, *, tick_seconds: float = 1.0) -> SimulatedShape:
    """No noise, no bias, one stage, everything recorded."""
    drawn = draw_shape(Draw(np.random.SeedSequence([7]), "fit"), hosts)
    gpus = 2
    ranks = hosts * gpus
    noise = Noise(
        gpu_sigma=np.zeros(len(GPU_METRICS), np.float32),
        host_sigma=np.zeros(len(GPU_METRICS) + len(HOST_METRICS), np.float32),
        keep_ratio=0.0,
        tail_ratio=0.0,
        tail_factor=1.0,
        family="normal",
        common_sigma_ratio=0.0,
    )
    return dataclasses.replace(
        drawn,
        gpus_per_host_count=gpus,
        dp=ranks,
        pp=1,
        tp=1,
        pace=PACE,
        rank_load=np.ones(ranks),
        stage_load=np.ones(1),
        stage_gpu_factor=np.ones((1, len(GPU_METRICS)), np.float32),
        stage_host_factor=np.ones((1, len(HOST_METRICS)), np.float32),
        gpu_bias_factor=np.ones((len(GPU_METRICS), hosts, gpus), np.float32),
        host_bias_factor=np.ones((len(HOST_METRICS), hosts), np.float32),
        ambient_celsius=np.full((hosts, gpus), 30.0, np.float32),
        rise_celsius=np.full((hosts, gpus), 30.0, np.float32),
        noise=noise,
        tick_seconds=tick_seconds,
        sample_phase_seconds=np.zeros(hosts),
        clock_offset_seconds=np.zeros(hosts),
        lost_ratio=0.0,
        metrics=METRIC_SETS["all"],
        step_detail="full",
        step_ranks_count=gpus,
        has_topology=True,
    )


def quiet_case(*parts: Part, hosts: int = 6, slices: int = 24) -> Case:
    """A case of these parts only."""
    return Case(1, "fit", "healthy", quiet_shape(hosts), Plan(parts), slices)

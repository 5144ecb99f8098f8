"""Traces of jobs that never ran, with a reason to be slow or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tests.models.whatif.plain import Job, Layout, Name, job_of, simulate_plainly, taken_from
from tocsin.models.whatif.trace import OpTrace

USUAL_SECONDS: Mapping[str, float] = {
    "forward-compute": 0.060,
    "backward-compute": 0.125,
    "params-all-gather": 0.020,
    "grads-reduce-scatter": 0.030,
    "separate-grads-all-reduce": 0.010,
    "layernorm-grads-all-reduce": 0.0001,
    "embedding-grads-all-reduce": 0.005,
    "optimizer-clip-main-grad": 0.003,
    "optimizer": 0.020,
    "gc": 0.0,
}
TRANSFER_SECONDS = 0.0004


@dataclass(frozen=True)
class Effects:
    """What makes a job slow.

    Attributes:
        stages: stage -> factor of its computations.
        workers: (data-parallel rank, stage) -> factor of its computations.
        slow_steps: number of first steps in which ``workers`` holds; None = all.
        long_ranks: data-parallel rank -> factor of every second of its microbatches.
        data_sigma: spread of the logarithm of a microbatch's cost, the same forward and backward and on all stages.
        pause_probability: of each forward computation.
        pause_seconds: that it then lasts longer.
        slow_transfers: type -> (probability, factor) of one step's communications of this type.
        noise_sigma: spread of the logarithm of each time.
        delay_seconds: mean delay of each launch.
    """

    stages: Mapping[int, float] = field(default_factory=dict)
    workers: Mapping[tuple[int, int], float] = field(default_factory=dict)
    slow_steps: int | None = None
    long_ranks: Mapping[int, float] = field(default_factory=dict)
    data_sigma: float = 0.0
    pause_probability: float = 0.0
    pause_seconds: float = 0.0
    slow_transfers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    noise_sigma: float = 0.02
    delay_seconds: float = 0.0


@dataclass(frozen=True)
class Made:
    """A trace and what made it.

    Attributes:
        job: the operations.
        trace: the trace.
        moving_seconds: what each operation took once it could move, by step.
    """

    job: Job
    trace: OpTrace
    moving_seconds: list[dict[tuple[Name, int], float]]


def make(layout: Layout, effects: Effects, seed: int, step_count: int = 8) -> Made:
    """A trace of some steps."""
    job, random = job_of(layout), np.random.default_rng(seed)
    rows: list[tuple[float, ...]] = []
    moving = []
    kinds = sorted({name[0] for name in job.labels})
    for at in range(step_count):
        is_slow = effects.slow_steps is None or at < effects.slow_steps
        taken = _seconds(job, effects if is_slow else replace(effects, workers={}), random)
        delays = {
            key: float(random.exponential(effects.delay_seconds)) if effects.delay_seconds else 0.0 for key in taken
        }
        found = simulate_plainly(job, taken_from(taken), taken_from(delays))
        moving.append(taken)
        for (name, rank), end in found.ends.items():
            start = found.starts[name, rank]
            chunk, model_chunk, microbatch = job.labels[name]
            kind, sequence, stage = name
            worker = rank + layout.dp * stage
            place = (rank, stage, worker, 100 + 7 * at, kinds.index(kind))
            rows.append((*place, start, end - start, sequence, chunk, microbatch, model_chunk))
    return Made(job, _trace_of([rows[row] for row in random.permutation(len(rows))], kinds), moving)


def _trace_of(rows: list[tuple[float, ...]], kinds: list[str]) -> OpTrace:
    """The rows as columns, with times as precise as those of public traces."""
    dp_rank, stage, rank, step, optype, _, _, seq_id, mc, mb_id, gmc = np.array(rows).T.astype(np.int64)
    start, duration = np.array([row[5:7] for row in rows], np.float32).T.astype(np.float64)
    return OpTrace(
        dp_rank, stage, rank, step, optype, tuple(kinds), start, duration, seq_id, mc=mc, mb_id=mb_id, gmc=gmc
    )


def _seconds(job: Job, effects: Effects, random: np.random.Generator) -> dict[tuple[Name, int], float]:
    """What each operation of one step takes once it can move."""
    layout = job.layout
    cost = np.exp(random.normal(0.0, effects.data_sigma, (layout.dp, layout.microbatches)))
    for rank, factor in effects.long_ranks.items():
        cost[rank, ::2] *= factor
    slow = {kind for kind, (chance, _) in effects.slow_transfers.items() if random.random() < chance}
    found = {}
    for name in job.labels:
        kind, _, stage = name
        usual = USUAL_SECONDS.get(kind, TRANSFER_SECONDS)
        for rank in range(layout.dp):
            seconds = usual * float(np.exp(random.normal(0.0, effects.noise_sigma)))
            if kind.endswith("-compute"):
                seconds *= effects.stages.get(stage, 1.0) * effects.workers.get((rank, stage), 1.0)
                seconds *= cost[rank, job.labels[name][2]] / layout.vpp
                if kind == "forward-compute" and random.random() < effects.pause_probability:
                    seconds += effects.pause_seconds
            if kind in slow:
                seconds *= effects.slow_transfers[kind][1]
            found[name, rank] = seconds
    return found

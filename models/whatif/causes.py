"""Why a job is slow: shares of its lost time by cause, and the cause that outweighs the others.

Each cause is a part of the real times: what a stage's computations take longer than the mean stage's, what long
sequences add forward and backward alike, what pauses add forward only, what slow workers add, and what transfers take
longer than usual. A cause's cost is the mean of two simulations: the ideal step with this part, and the real step
without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tocsin.models.whatif import optypes
from tocsin.models.whatif.compute import (
    LEAST_VARIATION_RATIO,
    Computation,
    Correlation,
    computations,
    correlation,
)
from tocsin.models.whatif.machines import SlowWorker, lower_median, slow_workers
from tocsin.models.whatif.scenarios import BoolArray, Slowdowns, WhatIfModel, run_seconds
from tocsin.models.whatif.trace import FloatArray

STRAGGLES_RATIO = 1.1
"""Least S of a job that counts as slow (``seed-systems-a.md`` 4.6)."""
LEAST_SHARE = 0.25
"""Least share of the lost time that a cause must explain to be named; otherwise it is ``unknown``."""
LEAST_MACHINE_COST_RATIO = 0.03
"""Least share of the job's time that slow workers must cost to be named; the study decomposes from S = 1.03."""


class SlowdownCause(StrEnum):
    """Why a job is slow."""

    STAGE = "stage_imbalance"
    DATA = "data_imbalance"
    JITTER = "software_jitter"
    COMMUNICATION = "communication"
    MACHINE = "machine"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a job is slow.

    Attributes:
        cause: the cause with the largest share; None where the job is not slow (S below 1.1).
        shares: cause -> share of the lost time (T - T_ideal), all of them; the sum is 1 unless nothing is lost.
        costs: cause -> share of the job's time (T).
        machines: workers that are slow on their own and cost the job something, the slowest first.
        long_stage: the stage that takes longest, and by how much it exceeds the mean stage (0.3 = 30 %).
        correlation: of forward and backward times within each worker.
    """

    cause: SlowdownCause | None
    shares: Mapping[SlowdownCause, float]
    costs: Mapping[SlowdownCause, float]
    machines: tuple[SlowWorker, ...]
    long_stage: tuple[int, float]
    correlation: Correlation


def reasons_of(model: WhatIfModel, found: Slowdowns) -> Reasons:
    """Return why a job is slow."""
    parts = computations(model)
    workers = slow_workers(parts)
    stage_seconds = _stage_seconds(parts)
    added = _added(model, parts, workers)
    real, ideal = float(found.real_seconds.mean()), float(found.ideal_seconds.mean())
    lost = max(real - ideal, 0.0)
    cost = {cause: _cost(model, part, (real, ideal)) if lost else 0.0 for cause, part in added.items()}
    scale = max(sum(cost.values()), lost) or 1.0
    shares = {cause: seconds / scale for cause, seconds in cost.items()}
    shares[SlowdownCause.UNKNOWN] = 1.0 - sum(shares.values()) if lost else 0.0
    costs = {cause: share * lost / real for cause, share in shares.items()}
    named = workers if costs[SlowdownCause.MACHINE] >= LEAST_MACHINE_COST_RATIO else ()
    longest = int(stage_seconds.argmax())
    long_stage = (longest, float(stage_seconds[longest] / stage_seconds.mean() - 1.0))
    cause = _cause(shares) if found.slowdown_ratio >= STRAGGLES_RATIO or named else None
    return Reasons(cause, shares, costs, named, long_stage, correlation(parts))


def _cause(shares: Mapping[SlowdownCause, float]) -> SlowdownCause:
    """Return the cause with the largest share, ``unknown`` where none has a fair share."""
    known = {cause: share for cause, share in shares.items() if cause is not SlowdownCause.UNKNOWN}
    largest = max(known, key=lambda cause: known[cause])
    return largest if known[largest] >= LEAST_SHARE else SlowdownCause.UNKNOWN


def _cost(model: WhatIfModel, added_seconds: FloatArray, bounds: tuple[float, float]) -> float:
    """Return the seconds that a part costs a step: the mean of adding it to the ideal and removing it from the real.

    Args:
        model: the trace.
        added_seconds: what the part adds to each operation, shape (ops, steps, dp).
        bounds: mean real and mean ideal step time.
    """
    if not np.any(added_seconds):
        return 0.0
    everything = np.ones((added_seconds.shape[0], added_seconds.shape[2]), bool)
    with_it = model.ideal_seconds[:, None, None] + added_seconds
    without = model.real_seconds - added_seconds
    added, removed = (
        float(run_seconds(model, everything, seconds).to_optimizer.mean()) for seconds in (with_it, without)
    )
    return max(0.0, (added - bounds[1] + bounds[0] - removed) / 2)


def _added(
    model: WhatIfModel, parts: list[Computation], workers: tuple[SlowWorker, ...]
) -> dict[SlowdownCause, FloatArray]:
    """Return what each cause adds to each operation, shape (ops, steps, dp)."""
    added: dict[SlowdownCause, FloatArray] = {}
    for cause in SlowdownCause:
        if cause is not SlowdownCause.UNKNOWN:
            added[cause] = np.zeros_like(model.real_seconds)
    kinds = [op.optype for op in model.arrays.ops]
    is_moved = np.array([kind in optypes.COMMUNICATION for kind in kinds])
    is_pause = np.array([kind == optypes.GC for kind in kinds])
    for cause, rows in ((SlowdownCause.COMMUNICATION, is_moved), (SlowdownCause.JITTER, is_pause)):
        added[cause][rows] = model.real_seconds[rows] - model.ideal_seconds[rows, None, None]
    slow = {(worker.stage, worker.dp) for worker in workers}
    data = _data_part(parts)
    for direction in optypes.DIRECTIONS:
        own = [part for part in parts if part.direction == direction]
        healthy = [_healthy(part, slow) for part in own]
        mean = float(np.mean([values.mean() for values in healthy]))
        for part, usual in zip(own, healthy, strict=True):
            is_slow = np.array([(part.stage, dp) in slow for dp in range(part.typical_seconds.shape[1])])
            for cause, seconds in _split(part, data[direction, part.stage], (usual, mean), is_slow).items():
                added[cause][part.rows] = seconds
    return added


def _split(
    part: Computation, data_ratio: FloatArray, usual_seconds: tuple[FloatArray, float], is_slow: BoolArray
) -> dict[SlowdownCause, FloatArray]:
    """Return what each cause adds to the computations of one stage, shapes that fit (n, steps, dp).

    Means over some microbatches differ by chance where the microbatches do: a worker or a stage that differs by no more
    than three standard errors is counted to the data, or to the pauses.

    Args:
        part: the computations.
        data_ratio: what the data add, over the worker's typical times.
        usual_seconds: the stage's usual times by row, and the mean stage's.
        is_slow: which data-parallel ranks are slow on their own.
    """
    usual, mean = usual_seconds
    typical = part.typical_seconds[:, None, :]
    long = data_ratio * typical
    rest = part.seconds - typical - long if part.direction == "forward" else np.zeros((1, 1, 1))
    excess, stage = part.typical_seconds - usual[:, None], usual - mean
    machine = np.where(is_slow, excess, 0.0)
    count = np.unique(part.microbatches).size * part.seconds.shape[1]
    by_data = ~is_slow & _is_chance(excess.mean(axis=0) / mean, long / mean, count)
    by_pause = ~is_slow & ~by_data & _is_chance(excess.mean(axis=0) / mean, rest / mean, count)
    long = long + np.where(by_data, excess, 0.0)[:, None, :]
    rest = rest + np.where(by_pause, excess, 0.0)[:, None, :]
    if _is_chance(np.array([stage.mean() / mean]), rest / mean, part.seconds.size)[0]:
        rest, stage = rest + stage[:, None, None], np.zeros_like(stage)
    return {
        SlowdownCause.STAGE: stage[:, None, None],
        SlowdownCause.MACHINE: machine[:, None, :],
        SlowdownCause.DATA: long,
        SlowdownCause.JITTER: rest,
    }


def _is_chance(ratios: FloatArray, parts: FloatArray, count: int) -> BoolArray:
    """Return which deviations are within three standard errors of the mean of varying parts.

    Args:
        ratios: relative deviations.
        parts: relative parts of single computations; they must vary by ``LEAST_VARIATION_RATIO``.
        count: independent computations behind each deviation.
    """
    variation = float(np.sqrt((parts**2).mean()))
    limit = 3.0 * variation / np.sqrt(count) if variation >= LEAST_VARIATION_RATIO else 0.0
    found: BoolArray = np.abs(ratios) <= limit
    return found


def _healthy(part: Computation, slow: set[tuple[int, int]]) -> FloatArray:
    """Return the usual times of a stage's computations without its slow workers, shape (n,)."""
    kept = [dp for dp in range(part.typical_seconds.shape[1]) if (part.stage, dp) not in slow]
    usual: FloatArray = part.typical_seconds[:, kept].mean(axis=1) if kept else lower_median(part.typical_seconds)
    return usual


def _stage_seconds(parts: list[Computation]) -> FloatArray:
    """Return the time that each stage computes in a step on its usual data-parallel rank, shape (stages,)."""
    found = np.zeros(max(part.stage for part in parts) + 1)
    for part in parts:
        found[part.stage] += float(lower_median(part.typical_seconds.sum(axis=0)))
    return found


def _data_part(parts: list[Computation]) -> dict[tuple[str, int], FloatArray]:
    """Return the relative excess of each computation that its data explain, shape (n, steps, dp).

    It is predicted from the other direction's computations of the same microbatch, on all stages of the same
    data-parallel rank, by least squares within each worker. Pauses, which lengthen one direction only, predict nothing.
    """
    count = max(int(part.microbatches.max()) for part in parts) + 1
    shape = (count, *parts[0].seconds.shape[1:])
    predictors = {}
    for direction in optypes.DIRECTIONS:
        total, seen = np.zeros(shape), np.zeros(count)
        for part in parts:
            if part.direction == direction:
                np.add.at(total, part.microbatches, part.relative)
                np.add.at(seen, part.microbatches, 1.0)
        predictors[direction] = total / np.maximum(seen, 1.0)[:, None, None]
    found = {}
    for part in parts:
        other = predictors["backward" if part.direction == "forward" else "forward"][part.microbatches]
        own = part.relative
        spread = (other**2).sum(axis=(0, 1))
        slope = np.maximum((own * other).sum(axis=(0, 1)), 0.0) / np.where(spread > 0, spread, 1.0)
        found[part.direction, part.stage] = slope * other
    return found

"""Workers that are slow on their own: always the same one, forward and backward, in every microbatch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.models.whatif.compute import Computation
from tocsin.models.whatif.multiplied import data_are_longer
from tocsin.models.whatif.trace import FloatArray

LEAST_EXCESS_RATIO = 0.1
"""Least excess of a slow worker's computation over its peers': a job straggles from 10 %."""
LEAST_STEPS_SHARE = 0.9
"""Least share of the steps in which a slow worker is slower than its peers."""
LEAST_PEERS = 2
"""Fewest peers on the same stage where no other stage can tell that the rank's data are not longer."""
LEAST_ERRORS = 5.0
"""Least excess in standard errors of a mean: random data make some rank longer by less (as in ``SlowConfig``)."""
LEAST_STEPS = 2
"""Fewest steps: one shows no continuity."""
_LOW_QUANTILE = 0.1
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """A worker that is slow on its own.

    Attributes:
        dp: index of its data-parallel rank.
        stage: its pipeline stage.
        excess_ratio: by how much its computations are longer than its peers' (0.4 = 40 %).
        slow_steps_ratio: share of the steps in which they are.
    """

    dp: int
    stage: int
    excess_ratio: float
    slow_steps_ratio: float


def slow_workers(parts: list[Computation]) -> tuple[SlowWorker, ...]:
    """Return the workers that are slow on their own, the slowest first.

    A worker is one if, compared with the same stage's other data-parallel ranks, its computation is longer by a tenth
    in nine of ten steps, two at least; forward and backward; by more than random data make one rank's mean longer; in
    its shortest microbatches as well, because long data lengthen only some; and if the other stages of its
    data-parallel rank are not as long, because they run the same data. Without other stages, it takes two peers. Where
    microbatches differ, its times must be its peers' times one factor.
    """
    stage_count = max(part.stage for part in parts) + 1
    step_count, dp_count = parts[0].seconds.shape[-2:]
    if step_count < LEAST_STEPS or dp_count == 1 or (stage_count == 1 and dp_count <= LEAST_PEERS):
        return ()
    by_step, lasting = _excess(parts, stage_count)  # (stages, steps, dp), (stages, dp)
    errors = _errors(parts, stage_count)
    found = []
    for stage in range(stage_count):
        others = np.delete(lasting, stage, axis=0)
        for dp in range(dp_count):
            excess = float(lasting[stage, dp])
            share = float((by_step[stage, :, dp] >= LEAST_EXCESS_RATIO * _HALF).mean())
            if excess < LEAST_EXCESS_RATIO or share < LEAST_STEPS_SHARE:
                continue
            if np.log1p(excess) < LEAST_ERRORS * errors[stage, dp]:
                continue
            if others.size and float(np.median(others[:, dp])) >= _HALF * excess:
                continue
            if data_are_longer([part for part in parts if part.stage == stage], dp):
                continue
            found.append(SlowWorker(dp, stage, excess, share))
    return tuple(sorted(found, key=lambda worker: -worker.excess_ratio))


def _excess(parts: list[Computation], stage_count: int) -> tuple[FloatArray, FloatArray]:
    """Return the excess of each worker over its peers by step, and the one that lasts.

    The lasting excess is the smallest of: the median over the steps, that of the forward and of the backward
    computations alone, and that of the shortest tenth of each.

    Returns:
        Shapes (stages, steps, dp) and (stages, dp).
    """
    by_step, lasting = [], []
    for stage in range(stage_count):
        own = [part for part in parts if part.stage == stage]
        total = np.add.reduce([part.seconds.sum(axis=0) for part in own])
        steps = over_peers(total)
        least = [np.median(steps, axis=0)]
        for part in own:
            flat = part.seconds.reshape(-1, part.seconds.shape[-1])
            least += [over_peers(flat.mean(axis=0)), over_peers(np.quantile(flat, _LOW_QUANTILE, axis=0))]
        by_step.append(steps)
        lasting.append(np.minimum.reduce(least))
    return np.stack(by_step), np.stack(lasting)


def _errors(parts: list[Computation], stage_count: int) -> FloatArray:
    """Return how far random data take a rank's computation from its peers', as a logarithm, shape (stages, dp).

    It is the standard error of a mean over all microbatches, by how far the other ranks' are from the median of all;
    the larger one of forward and backward. Lengths have a long tail, which their logarithms have not.
    """
    found = np.zeros((stage_count, parts[0].seconds.shape[-1]))
    for part in parts:
        logs = np.log(np.maximum(part.seconds, np.finfo(float).tiny))
        squares = np.square(logs - np.median(logs, axis=-1, keepdims=True)).mean(axis=(0, 1))  # (dp,)
        others = (squares.sum() - squares) / max(1, squares.size - 1)
        error = np.sqrt(others / (logs.shape[0] * logs.shape[1]))
        found[part.stage] = np.maximum(found[part.stage], error)
    return found


def over_peers(values: FloatArray) -> FloatArray:
    """Return each rank's excess over the lower median of the other ranks; shape as given, ranks last."""
    found = np.empty_like(values)
    for rank in range(values.shape[-1]):
        others = np.delete(values, rank, axis=-1)
        found[..., rank] = values[..., rank] / np.maximum(lower_median(others), np.finfo(float).tiny) - 1.0
    return found


def lower_median(values: FloatArray) -> FloatArray:
    """Return the lower median over the last axis: with two values the smaller one."""
    count = values.shape[-1]
    median: FloatArray = np.partition(values, (count - 1) // 2, axis=-1)[..., (count - 1) // 2]
    return median

"""How much longer a pipeline runs because its microbatches differ in length, from how much its ranks' steps differ.

A long microbatch holds up each stage that it comes to, so that a pipeline waits for it several times, while the sum of
a rank's step has it once. Step records hold sums. Microbatches that are drawn one by one vary by the root of their
number more than their sum does: of such microbatches a step is simulated, one forward, one backward (1F1B).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

PER_STAGE = 2
"""Microbatches for each pipeline stage. Records do not tell their number. With fewer than one for each stage some would
always idle, and with four the idle time is negligible (GPipe, NeurIPS'19, section 2.3): two lie in the middle. Stalls
change by about a quarter from one of these bounds to two, because more microbatches of equal sums vary more."""
_FORWARD_RATIO = 1 / 3
"""The forward pass's share of a microbatch: backward passes compute the gradients of inputs and of weights."""
_LEAST_DRAW_COUNT, _STEP_COUNT = 2048, 32
"""Simulated replicas at least, and steps at least of a job with many replicas."""
_RESOLUTION_RATIO = 0.01
"""Steps of the variation by which results are kept."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """What a pipeline with uneven microbatches waits, as shares of the time that a rank computes in a step.

    Attributes:
        mean_ratio: what the longest rank waits beyond what it would with equal microbatches, mean over steps.
        spread_ratio: standard deviation over steps of what the longest rank waits.
    """

    mean_ratio: float
    spread_ratio: float


def expected_stalls(stage_count: int, replica_count: int, variation_ratio: float) -> Stalls:
    """Return what uneven microbatches make a pipeline wait beyond the longest rank's own time.

    Args:
        stage_count: pipeline stages, at least 1.
        replica_count: data-parallel ranks, each with a pipeline of its own; the slowest one ends the step.
        variation_ratio: standard deviation of a rank's computation in a step over its mean, at least 0.
    """
    rounded = round(variation_ratio / _RESOLUTION_RATIO)
    if stage_count < 2 or rounded == 0:
        return Stalls(0.0, 0.0)
    return _simulated(stage_count, replica_count, rounded)


@lru_cache(maxsize=512)
def _simulated(stage_count: int, replica_count: int, rounded: int) -> Stalls:
    """Return what simulated steps wait; lengths are log-normal, as those of documents are."""
    count = PER_STAGE * stage_count
    step_count = max(_STEP_COUNT, _LEAST_DRAW_COUNT // replica_count)
    squared = count * (rounded * _RESOLUTION_RATIO) ** 2
    deviation = np.sqrt(np.log1p(squared))
    normal = np.random.default_rng(0).standard_normal((count, step_count * replica_count))
    lengths = np.exp(deviation * normal - deviation**2 / 2) / count
    whole = _pipeline_seconds(lengths, stage_count).reshape(step_count, replica_count).max(axis=1)
    waits = whole - lengths.sum(axis=0).reshape(step_count, replica_count).max(axis=1)
    even = (stage_count - 1) / count
    return Stalls(max(0.0, float(waits.mean()) - even), float(waits.std()))


def _pipeline_seconds(lengths: FloatArray, stage_count: int) -> FloatArray:
    """Return how long pipelines take, shape (pipelines,).

    Args:
        lengths: what a stage computes for each microbatch, shape (microbatches, pipelines).
        stage_count: stages, which all compute as long for a microbatch.
    """
    orders = [_order(stage, stage_count, lengths.shape[0]) for stage in range(stage_count)]
    seconds = {True: lengths * _FORWARD_RATIO, False: lengths * (1.0 - _FORWARD_RATIO)}
    free = [np.zeros(lengths.shape[1]) for _ in orders]
    ends: dict[tuple[bool, int, int], FloatArray] = {}
    position = [0] * stage_count
    while any(at < len(order) for at, order in zip(position, orders, strict=True)):
        for stage, order in enumerate(orders):
            for is_forward, index in order[position[stage] :]:
                source = stage - 1 if is_forward else stage + 1
                if 0 <= source < stage_count:
                    if (is_forward, index, source) not in ends:
                        break
                    free[stage] = np.maximum(free[stage], ends[is_forward, index, source])
                free[stage] = ends[is_forward, index, stage] = free[stage] + seconds[is_forward][index]
                position[stage] += 1
    longest: FloatArray = np.max(free, axis=0)
    return longest


def _order(stage: int, stage_count: int, count: int) -> list[tuple[bool, int]]:
    """Return what a stage computes, one after the other: whether it is a forward pass, and of which microbatch."""
    warm = min(stage_count - stage - 1, count)
    steady = [one for index in range(count - warm) for one in ((True, warm + index), (False, index))]
    return [(True, index) for index in range(warm)] + steady + [(False, index) for index in range(count - warm, count)]

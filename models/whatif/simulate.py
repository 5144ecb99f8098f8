"""Longest path through the dependency model, for many scenarios, steps and data-parallel ranks at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tocsin.models.whatif import optypes
from tocsin.models.whatif.dependencies import DependencyPlan
from tocsin.models.whatif.trace import FloatArray, TraceArrays

_CLOCKS_DISAGREE_SECONDS = -0.01


class StepSeconds(NamedTuple):
    """Simulated step times, each of shape (scenarios, steps).

    Attributes:
        to_last: until the last operation ended.
        to_optimizer: until the last optimizer ended.
    """

    to_last: FloatArray
    to_optimizer: FloatArray


def simulate(plan: DependencyPlan, times: FloatArray) -> StepSeconds:
    """Return how long each step takes.

    Linear in the number of operations, scenarios, steps and ranks.

    Args:
        plan: the dependency model.
        times: seconds that each operation takes from the moment at which it can move: computation its duration,
            communication its transfer; shape (ops, scenarios, steps, ranks). **Overwritten** with the ends.
    """
    start = np.empty(times.shape[1:])
    for node in plan.nodes:
        first, *more = node.waits_for or (-1,)
        if first < 0:
            continue  # the step's start is zero
        begin = times[first]
        for row in more:
            np.maximum(begin, times[row], out=start)
            begin = start
        if node.is_synchronised and begin.shape[-1] > 1:
            begin = begin.max(axis=-1, keepdims=True)
        for member in node.members:
            times[member] += begin
    return StepSeconds(_latest(times, plan.last), _latest(times, plan.optimizers))


def moving_seconds(plan: DependencyPlan, arrays: TraceArrays) -> FloatArray:
    """Return the time that each operation takes once it can move, shape (ops, steps, dp).

    That is the duration of a computation. Of a communication it is the time from the last member's start to its own
    end; times of at most -10 ms are zero, because there the clocks disagreed (``seed-systems-a.md`` 4.3, 4.5).
    """
    found, start = arrays.duration_seconds.copy(), arrays.start_seconds
    for node in plan.nodes:
        if arrays.ops[node.members[0]].optype not in optypes.COMMUNICATION:
            continue
        begin = start[node.members[0]]
        for member in node.members[1:]:
            begin = np.maximum(begin, start[member])
        if node.is_synchronised:
            begin = begin.max(axis=-1, keepdims=True)
        for member in node.members:
            moving = arrays.end_seconds[member] - begin
            found[member] = np.where(moving <= _CLOCKS_DISAGREE_SECONDS, 0.0, moving)
    return found


def _latest(times: FloatArray, rows: tuple[int, ...]) -> FloatArray:
    """Return the latest end among some operations and all ranks, shape (scenarios, steps)."""
    latest: FloatArray = times[rows[0]].max(axis=-1)
    for row in rows[1:]:
        np.maximum(latest, times[row].max(axis=-1), out=latest)
    return latest

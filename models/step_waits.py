"""What ranks of a synchronous job wait for in a step besides one another: their data, and transfers.

The rank that computes longest waits for no other, so what it spends in communication is the transfers themselves (and
in a pipeline the idle time of filling and emptying it, which goes with what the stages compute). Data that come in
time cost nothing. What the loading ranks wait alike is a service that they share, and what one waits beyond that is
its own loader. How long is usual tells the job's own past.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.known_steps import KnownSteps
from tocsin.models.loading.imbalance import loader_cost_seconds
from tocsin.models.pipeline_stalls import PER_STAGE
from tocsin.models.robust import median_of, quantile_of, without_gaps

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LONG_RATIO = 0.1
"""Least length of a wait beyond the usual one as a share of a usual step: a job straggles from a tenth on."""
_LONG_SPREADS = 5.0
"""The same in spreads, as in ``SlowConfig.spread_factor``."""
_QUARTILE_SPREADS = 0.6745
"""Distance of a quartile from the median, in standard deviations of normal noise."""


@dataclass(frozen=True, slots=True)
class UsualWaits:
    """What is usual in a job's steps.

    Attributes:
        compute_seconds: what a rank computes, mean over ranks.
        idle_seconds: communication of the rank that has least of it; None: too few steps in which all ranks tell it.
        spread_seconds: standard deviation of that over steps, by the shorter half of them; None alike.
        data_seconds: what the loading ranks wait alike for their data.
    """

    compute_seconds: float
    idle_seconds: float | None
    spread_seconds: float | None
    data_seconds: float


@dataclass(frozen=True, slots=True)
class StepWaits:
    """What waiting costs a step, means over the steps of a window.

    Attributes:
        transfer_seconds: transfers that are longer than usual; None where communication is not told.
        shared_seconds: data that all loading ranks wait for alike, beyond what is usual.
        base_seconds: data that they wait for alike as usual.
        loader_seconds: what single ranks wait for their data beyond what the others do.
        late_column: the rank with more than half of that, -1 = none.
        usual: what was usual in these steps.
    """

    transfer_seconds: float | None
    shared_seconds: float
    base_seconds: float
    loader_seconds: float
    late_column: int
    usual: UsualWaits


def find_waits(steps: KnownSteps, before: UsualWaits | None) -> StepWaits:
    """Return what waiting costs the steps of a window.

    Args:
        steps: the steps.
        before: what was usual earlier. None: transfers are compared with these steps' median, shared data not at all.
    """
    waits = steps.waits
    mine = (waits > 0.0).any(axis=0)
    common = _alike(waits[:, mine])
    late: FloatArray = np.where(mine, np.maximum(without_gaps(waits) - common[:, None], 0.0), 0.0)
    alike: FloatArray = np.where(mine, common[:, None], 0.0)
    compute_seconds = float(np.nanmean(steps.compute, axis=0).mean())
    idle_seconds, spread_seconds = _level_and_spread(steps.idle) if steps.idle.size else (None, None)
    usual = UsualWaits(compute_seconds, idle_seconds, spread_seconds, median_of(common))
    shared = float(common.mean())
    beyond = 0.0 if before is None else max(0.0, shared - before.data_seconds)
    transfers = _transfers(steps, usual, before)
    loader_seconds = _held_up(steps, alike + late) - _held_up(steps, alike)
    return StepWaits(transfers, beyond, shared - beyond, max(0.0, loader_seconds), _latest(late), usual)


def _level_and_spread(idle: FloatArray) -> tuple[float, float]:
    """Return the median of waits, and their spread below it: a transfer may take far longer, but not far shorter."""
    level = median_of(idle)
    return level, (level - quantile_of(idle, 0.25)) / _QUARTILE_SPREADS


def _alike(waits: FloatArray) -> FloatArray:
    """Return what loading ranks wait alike in each step, seconds.

    It is their lower median, so that one of two late ranks has nothing in common with the other. In a step of which no
    loading rank is known it is the median of the other steps.

    Args:
        waits: of the ranks that load, shape (steps, ranks).
    """
    counts = np.isfinite(waits).sum(axis=1)
    if not counts.any():
        return np.zeros(waits.shape[0])
    ordered = np.sort(waits, axis=1)  # NaN comes last
    common: FloatArray = np.take_along_axis(ordered, np.maximum(counts - 1, 0)[:, None] // 2, axis=1)[:, 0]
    return np.where(counts > 0, common, median_of(common[counts > 0]))


def _held_up(steps: KnownSteps, waits: FloatArray) -> float:
    """Return how much later a step ends because ranks wait for data, mean over steps, seconds.

    A later stage of a pipeline has time until the first microbatch has passed the stages before it.

    Args:
        steps: the steps; a rank whose numbers are missing is the last one in none.
        waits: what each rank waits for its data, shape (steps, ranks).
    """
    known, stage_count = np.isfinite(steps.compute), np.unique(steps.roles).size
    waits = np.where(known, waits, 0.0)
    if stage_count < 2:
        return loader_cost_seconds(without_gaps(steps.compute), waits)
    filling = np.maximum(steps.roles, 0) * float(np.nanmean(steps.forward)) / (PER_STAGE * stage_count)
    return float(np.maximum(waits - filling, 0.0).max(axis=1).mean())


def _latest(late: FloatArray) -> int:
    """Return the rank that has more than half of some waiting, of shape (steps, ranks), or -1."""
    totals = late.sum(axis=0)
    longest = int(totals.argmax())
    return longest if 2.0 * float(totals[longest]) > float(totals.sum()) else -1


def _transfers(steps: KnownSteps, usual: UsualWaits, before: UsualWaits | None) -> float | None:
    """Return what transfers that are longer than usual add to a step, mean over steps, seconds; None: it is not told.

    Args:
        steps: the steps.
        usual: of these steps.
        before: of the job's earlier steps. Where ranks compute longer now, a pipeline idles longer, too.
    """
    level, spread_seconds = usual.idle_seconds, usual.spread_seconds
    if level is None or spread_seconds is None:
        return None
    if before is not None and before.idle_seconds is not None and before.spread_seconds is not None:
        spread_seconds = min(spread_seconds, before.spread_seconds)
        grown_ratio = max(1.0, usual.compute_seconds / max(before.compute_seconds, 1e-6))
        level = min(level, before.idle_seconds * grown_ratio)
    beyond = steps.idle - level
    usual_step_seconds = steps.longest_seconds + float((steps.idle - np.maximum(beyond, 0.0)).mean())
    line = max(_LONG_SPREADS * spread_seconds, _LONG_RATIO * max(usual_step_seconds, 0.0))
    return float(np.where(beyond > line, beyond, 0.0).mean())

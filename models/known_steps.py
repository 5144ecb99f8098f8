"""What is known of some steps of a synchronous job whose ranks do not tell all numbers, or whose records are lost.

A median tells what is usual only where more than half of the values are known. So more than half is asked for: a
rank counts where its numbers are known in more than half of the steps, a step where more than half of these ranks are
known, and the job is judged by more than half of its ranks. A number that is missing stays NaN, is in no median, and
adds nothing to a cause. A rank that is left out is neither slow nor fast: nobody is compared with it, and what the
others wait for it is told of nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.robust import median
from tocsin.models.steps import PHASES, StepWindow

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

LEAST_STEP_COUNT = 12
"""Fewest steps of a window: a correlation over fewer ones is above its line by chance."""
LEAST_PEER_COUNT = 3
"""Fewest ranks that are compared: the median of two cannot say which one moved."""
_MOST_RATIO = 0.5
"""More than this share of ranks or steps are most of them."""


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """Times of those ranks and steps of a window of which enough is known, NaN = not measured.

    Attributes:
        columns: column of each rank in the window.
        roles: stage of each rank.
        left_out_roles: stage of each rank that is left out.
        compute: what each rank computes, shape (steps, ranks), seconds. Where ranks do not tell their communication it
            is their forward and backward passes.
        forward: their forward passes; NaN where not both passes are known.
        backward: their backward passes, alike.
        waits: what they wait for their data; 0 where they tell of none.
        idle: communication of the rank that has least of it, seconds, one for each step in which all ranks of the
            window tell theirs: one that does not may be the one for which the others wait. Empty with too few of them.
        duration_seconds: mean step time as the ranks tell it.
    """

    columns: IntArray
    roles: IntArray
    left_out_roles: IntArray
    compute: FloatArray
    forward: FloatArray
    backward: FloatArray
    waits: FloatArray
    idle: FloatArray
    duration_seconds: float

    @property
    def longest_seconds(self) -> float:
        """Mean over steps of what the longest known rank computes."""
        return longest_seconds(self.compute)

    def has_most_of(self, role: int) -> bool:
        """Return whether two ranks of a stage are known, and more of its ranks than are left out."""
        count = int((self.roles == role).sum())
        return count >= 2 and count > int((self.left_out_roles == role).sum())


def known_steps(window: StepWindow) -> KnownSteps | None:
    """Return the ranks and steps of a window of which enough is known.

    Returns:
        None with fewer than twelve such steps or three ranks, or where most ranks do not tell forward from backward.
    """
    forward, backward = (window.phase_seconds[PHASES.index(name)] for name in ("forward", "backward"))
    waits = np.nan_to_num(window.phase_seconds[PHASES.index("data")])
    own = window.own_seconds - waits
    compute = own if _are_most(_known_ranks(own)) else forward + backward
    is_known, tells_passes = _known_ranks(compute), _known_ranks(compute + forward + backward)
    if not (_are_most(is_known) and _are_most(tells_passes)):
        return None
    passes = np.where(tells_passes, compute + forward + backward, np.nan)[:, is_known]
    steps = _known_rows(compute[:, is_known]) & _known_rows(passes[:, tells_passes[is_known]])
    if int(steps.sum()) < LEAST_STEP_COUNT:
        return None
    is_measured = np.isfinite(passes[steps])
    compute, forward, backward, waits, duration = (
        table[steps][:, is_known] for table in (compute, forward, backward, waits, window.duration_seconds)
    )
    return KnownSteps(
        np.flatnonzero(is_known),
        window.roles[is_known],
        window.roles[~is_known],
        compute,
        np.where(is_measured, forward, np.nan),
        np.where(is_measured, backward, np.nan),
        np.where(np.isfinite(compute), waits, np.nan),
        _idle(window.communication_seconds[steps]),
        float(median(duration, 1).mean()),
    )


def longest_seconds(compute: FloatArray) -> float:
    """Return the mean over steps of the longest known rank's time.

    Args:
        compute: seconds, shape (steps, ranks), NaN = not measured; a rank is known in each step.
    """
    return float(np.nanmax(compute, axis=1).mean())


def _known_ranks(table: FloatArray) -> BoolArray:
    """Return the ranks that are known in more than half of the steps of which anything is known."""
    known = np.isfinite(table)
    found: BoolArray = known.sum(axis=0) > _MOST_RATIO * int(known.any(axis=1).sum())
    return found


def _are_most(ranks: BoolArray) -> bool:
    """Return whether so many ranks are known that they can be compared, and are more than half of all."""
    count = int(ranks.sum())
    return count >= LEAST_PEER_COUNT and count > _MOST_RATIO * ranks.size


def _known_rows(table: FloatArray) -> BoolArray:
    """Return the steps in which more than half of the ranks are known, and enough to compare them."""
    counts = np.isfinite(table).sum(axis=1)
    found: BoolArray = (counts >= LEAST_PEER_COUNT) & (counts > _MOST_RATIO * table.shape[1])
    return found


def _idle(communication: FloatArray) -> FloatArray:
    """Return the least communication of a rank in each step in which all tell theirs; empty with too few of them."""
    whole = np.isfinite(communication).all(axis=1)
    return communication[whole].min(axis=1) if int(whole.sum()) >= LEAST_STEP_COUNT else np.zeros(0)

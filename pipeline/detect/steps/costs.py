"""What slow ranks cost a synchronous job, by its step records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tocsin.models.robust import median
from tocsin.pipeline.detect.steps.rows import COLUMNS, StepRows, table_of

_DURATION, _COMMUNICATION = COLUMNS.index("duration"), COLUMNS.index("communication")


def costs_ratio(steps: Sequence[StepRows], stages: Sequence[int], suspects: Collection[int]) -> float | None:
    """Return the share of the job's step time that vanishes if some ranks compute as long as their peers.

    A synchronous step is as long as its slowest rank computes. So each step is taken twice: as it was, and with the
    median of the stage's other ranks in the place of the suspects. After S_w of the straggler study (What-if, OSDI'25).

    Args:
        steps: the newest steps, of one or more ranks.
        stages: pipeline stage of each of ``table_of(steps)``'s ranks, in their order.
        suspects: the ranks.

    Returns:
        0 to 1. None where the ranks' own time is not measured, or a suspect has no peers of its stage.
    """
    if not steps:
        return None
    ranks, table = table_of(steps)
    own, of_stage = table[_DURATION] - table[_COMMUNICATION], np.array(stages)
    mine = np.array([rank in suspects for rank in ranks])
    known = np.isfinite(own).all(axis=1)
    if not mine.any() or not known.any():
        return None
    own, duration = own[known], table[_DURATION][known]
    without = own.copy()
    for stage in np.unique(of_stage[mine]):
        peers = (of_stage == stage) & ~mine
        if not peers.any():
            return None
        columns = np.flatnonzero((of_stage == stage) & mine)
        without[:, columns] = np.minimum(own[:, columns], median(own[:, peers], 1)[:, None])
    lost_seconds = float((own.max(axis=1) - without.max(axis=1)).mean())
    return min(1.0, lost_seconds / max(float(median(duration, 1).mean()), 1e-6))

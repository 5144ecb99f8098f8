"""What slow ranks cost a synchronous job, by its step records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tocsin.models.robust import median
from tocsin.pipeline.detect.steps.rows import COLUMNS, StepRows, table_of

_DURATION, _COMMUNICATION = COLUMNS.index("duration"), COLUMNS.index("communication")

_MOST_RATIO = 0.5
"""More than this share of the ranks are most of them, as in ``known_steps``."""


def costs_ratio(steps: Sequence[StepRows], stages: Sequence[int], suspects: Collection[int]) -> float | None:
    """Return the share of the job's step time that vanishes if some ranks compute as long as their peers.

    A synchronous step is as long as its slowest rank computes. So each step is taken twice: as it was, and with the
    median of the stage's other ranks in the place of the suspects. After S_w of the straggler study (What-if, OSDI'25).
    Steps count in which all suspects, some of their peers and more than half of all ranks are measured.

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
    is_known = np.isfinite(own)
    known = is_known[:, mine].all(axis=1) & (is_known.mean(axis=1) > _MOST_RATIO)
    peers_of = {int(stage): (of_stage == stage) & ~mine for stage in np.unique(of_stage[mine])}
    for peers in peers_of.values():
        known &= is_known[:, peers].any(axis=1)
    if not mine.any() or not known.any():
        return None
    own, duration = own[known], table[_DURATION][known]
    without = own.copy()
    for stage, peers in peers_of.items():
        columns = np.flatnonzero((of_stage == stage) & mine)
        without[:, columns] = np.minimum(own[:, columns], median(own[:, peers], 1)[:, None])
    lost_seconds = float((np.nanmax(own, axis=1) - np.nanmax(without, axis=1)).mean())
    return min(1.0, lost_seconds / max(float(median(duration, 1).mean()), 1e-6))


def least_communication_ratio(steps: Sequence[StepRows]) -> float | None:
    """Return the share of its steps that the rank communicates which does so least: no transfer costs the job more.

    What it usually is on each rank; None where no rank measures it.

    Args:
        steps: the newest steps.
    """
    if not steps:
        return None
    _, table = table_of(steps)
    ratios = table[_COMMUNICATION] / np.maximum(table[_DURATION], 1e-6)
    whole = ratios[:, np.isfinite(ratios).all(axis=0)]
    return float(median(whole, 0).min()) if whole.size else None

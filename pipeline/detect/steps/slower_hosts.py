"""Hosts whose own step records show that the job is slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tocsin.models.pace import Slowdown
from tocsin.models.robust import nan_median
from tocsin.pipeline.detect.steps.rows import (
    COLUMNS,
    FloatArray,
    StepRows,
    table_of,
)
from tocsin.schemas.verdicts import WitnessKind

_NEWEST_COUNT = 5
"""Number of newest steps that are examined."""
_GROWTH_RATIO = 0.5
"""Least growth of a host's steps as a share of the job's growth; few steps of one host scatter more than the job's."""
_DURATION, _COMMUNICATION = COLUMNS.index("duration"), COLUMNS.index("communication")


def harmed_hosts(
    window: Sequence[StepRows], slowdown: Slowdown, waited_seconds: float, host_of: Callable[[int], str]
) -> dict[str, WitnessKind]:
    """Return host -> kind of testimony, for hosts with a rank whose steps are longer.

    ``PEERS_WAIT`` if a rank communicates longer, as it waits for others; ``STEPS`` if its steps are longer otherwise.

    Args:
        window: recent steps, newest last.
        slowdown: growth of the job's steps.
        waited_seconds: communication time of a step before the slowdown; NaN: unknown.
        host_of: rank -> host.
    """
    # Where some steps are long and most as ever only means tell, of more steps.
    steps = window if slowdown.is_of_bursts else window[-_NEWEST_COUNT:]
    ranks, table = table_of(steps)
    growth_seconds = _GROWTH_RATIO * (slowdown.step_seconds - slowdown.before_seconds)
    middle = _mean if slowdown.is_of_bursts else _median
    longer = middle(table[_DURATION]) >= slowdown.before_seconds + growth_seconds
    waits = middle(table[_COMMUNICATION]) >= waited_seconds + growth_seconds  # NaN: False
    found: dict[str, WitnessKind] = {}
    for rank, is_longer, is_waiting in zip(ranks, longer.tolist(), waits.tolist(), strict=True):
        if is_waiting:
            found[host_of(rank)] = WitnessKind.PEERS_WAIT
        elif is_longer:
            found.setdefault(host_of(rank), WitnessKind.STEPS)
    return found


def _median(table: FloatArray) -> FloatArray:
    """Return the median of each rank's known steps, shape (ranks,)."""
    return _reduce_known(table, nan_median)


def _mean(table: FloatArray) -> FloatArray:
    """Return the mean of each rank's known steps, shape (ranks,)."""
    return _reduce_known(table, np.nanmean)


def _reduce_known(table: FloatArray, middle: Callable[..., FloatArray]) -> FloatArray:
    """Return a statistic of each rank's known steps, shape (ranks,); NaN for ranks without any."""
    found = np.full(table.shape[1], np.nan)
    known = np.isfinite(table).any(axis=0)
    if known.any():
        found[known] = middle(table[:, known], axis=0)
    return found

"""Which hosts' own steps show that the job is slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.steps.rows import (
    COLUMNS,
    FloatArray,
    StepRows,
    table_of,
)
from tocsin.schemas.verdicts import WitnessKind

_NEWEST_COUNT = 5
_GROWTH_RATIO = 0.5
"""Of what the job's steps grew by: one host's few steps scatter more than all."""
_DURATION, _COMMUNICATION = COLUMNS.index("duration"), COLUMNS.index("communication")


def harmed_hosts(
    window: Sequence[StepRows], slowdown: Slowdown, waited_seconds: float, host_of: Callable[[int], str]
) -> dict[str, WitnessKind]:
    """Hosts any rank of which makes longer steps, and what shows it: that it communicates (waits) longer, or not.

    Args:
        window: the newest steps, newest last.
        slowdown: how the job's steps grew.
        waited_seconds: for how long ranks communicated in a step before, NaN: not known.
        host_of: host of a rank.
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
    return _of_known(table, np.nanmedian)


def _mean(table: FloatArray) -> FloatArray:
    return _of_known(table, np.nanmean)


def _of_known(table: FloatArray, middle: Callable[..., FloatArray]) -> FloatArray:
    """Of each rank over the steps of which it told, NaN: of none."""
    found = np.full(table.shape[1], np.nan)
    known = np.isfinite(table).any(axis=0)
    if known.any():
        found[known] = middle(table[:, known], axis=0)
    return found

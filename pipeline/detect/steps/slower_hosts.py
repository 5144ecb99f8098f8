"""Hosts whose own step records show that they, or the job, are slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tocsin.models.pace import Slowdown
from tocsin.models.robust import median, nan_median, spread
from tocsin.pipeline.detect.steps.rows import (
    COLUMNS,
    FloatArray,
    StepRows,
    table_of,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.kinds import GroupKind
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


def self_time_excess_seconds(steps: Sequence[StepRows], host: str, graph: JobGraph) -> float | None:
    """Return how much longer than its peers a host's slowest rank computes, beyond noise; None: not measured.

    Args:
        steps: recent steps.
        host: the host.
        graph: the job.
    """
    if not steps:
        return None
    ranks, table = table_of(steps)
    own = table[_DURATION] - table[_COMMUNICATION]
    roles = np.array([graph.placement.stage_of(rank) for rank in ranks])
    mine = np.array([graph.host_of(rank) == host for rank in ranks])
    found = []
    for role in np.unique(roles[mine]):
        peers = roles == role
        excesses = median(own[:, peers] - median(own[:, peers], 1)[:, None], 0)
        noise = 3 * float(spread(excesses[~mine[peers]][None, :], 1)[0]) if (~mine[peers]).any() else np.nan
        found.append(float(np.max(excesses[mine[peers]])) - noise)
    excess = max((value for value in found if np.isfinite(value)), default=None)
    if excess is None or (excess <= 0.0 and not set(graph.ranks_of_host(host)) <= set(ranks)):
        return None
    return max(0.0, excess)


def stages_unknown(graph: JobGraph, ranks: Iterable[int]) -> bool:
    """Return whether the job has pipeline stages and those of these ranks are unknown: a long stage looks slow."""
    staged = any(group.kind is GroupKind.PP for group in graph.groups.values())
    return staged and any(graph.placement.stage_of(rank) < 0 for rank in ranks)


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

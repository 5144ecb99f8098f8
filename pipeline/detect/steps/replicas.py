"""Slow ranks whose whole replica computes longer: the data of a replica, no machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.models.robust import median, median_of
from tocsin.models.steps import SlowRanks, StepWindow, median_excess
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import GroupKind


def is_whole_replica(slow: SlowRanks, window: StepWindow, ranks: Sequence[int], graph: JobGraph) -> bool:
    """Return whether the other stages of the slow ranks' replica compute longer by at least half as much, elsewhere.

    A machine that is slow lengthens its own stage alone. Where all stages of one replica compute longer, on several
    hosts, its data are longer, and none of them is at fault.

    Args:
        slow: slow ranks of one stage.
        window: the steps in which they are.
        ranks: rank of each column of the window.
        graph: the job.
    """
    suspects, stage = list(slow.columns), window.roles[slow.columns[0]]
    mates = np.isin(ranks, sorted(_replica_of([ranks[column] for column in suspects], ranks, graph)))
    excess, own = median_excess(window), median(window.own_seconds, 0)
    hosts = set[str]()
    for other in np.unique(window.roles[window.roles != stage]):
        measured = (window.roles == other) & np.isfinite(own)
        members = np.flatnonzero(measured & mates)
        if not members.size:
            return False
        least_seconds = slow.parts[0].excess_seconds / 2 * median_of(own[measured])
        if not float(excess[members].max()) * slow.peer_seconds >= least_seconds:  # shares of what is usual
            return False
        hosts.update(graph.host_of(ranks[column]) for column in members)
    return bool(hosts - {graph.host_of(ranks[column]) for column in suspects})


def _replica_of(suspects: Sequence[int], ranks: Sequence[int], graph: JobGraph) -> set[int]:
    """Return the ranks of the suspects' replica, by its coordinate or by their pipeline groups; empty: of several."""
    own = set(graph.placement.replicas_of(suspects))
    if own == {-1}:
        groups = [set(one.ranks) for one in graph.groups.values() if one.kind is GroupKind.PP]
        return set[int]().union(*(one for one in groups if one.intersection(suspects)))
    if len(own) > 1:
        return set()
    return {rank for rank, replica in zip(ranks, graph.placement.replicas_of(ranks), strict=True) if replica in own}

"""Slow hosts whose loaders tell longer sequences than their peers': their data are longer, and no machine is slow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tocsin.models.loading.told_lengths import WeighedLengths
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of
from tocsin.pipeline.rca.costs import longer_by_ratio
from tocsin.pipeline.rca.evidence.loading import DETECTOR, LoadingTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind


def split_long_data(
    graph: JobGraph, loading: LoadingTracker, steps: Sequence[Anomaly]
) -> tuple[list[Finding], list[Anomaly]]:
    """Return a finding about slow hosts whose batches explain their excess, and the other step anomalies.

    Args:
        graph: the job.
        loading: the loaders' reports.
        steps: anomalies of the job's steps.
    """
    slow = [one for one in steps if one.component.kind is ComponentKind.HOST and one.metric == "own_seconds"]
    accused = {one.component.name for one in slow}
    weighed = [(one, _weigh(graph, loading, one, accused)) for one in slow] if loading.rows else []
    explained = [(one, found) for one, found in weighed if found is not None]
    if not explained:
        return [], list(steps)
    freed = [one for one, _ in explained]
    return [_finding(graph, explained)], [one for one in steps if one not in freed]


def without_long_data(graph: JobGraph, loading: LoadingTracker, forward: Sequence[Anomaly]) -> list[Anomaly]:
    """Return the anomalies of hosts with long forward passes without those whose batches explain them.

    Args:
        graph: the job.
        loading: the loaders' reports.
        forward: anomalies of forward passes.
    """
    hosts = {one.component.name for one in forward}

    def is_explained(slow: Anomaly) -> bool:
        rank, excess_ratio = int(slow.detail["rank"]), float(slow.detail["excess_ratio"])
        found = loading.weigh(rank, _peers_of(graph, loading, rank, hosts), excess_ratio, slow.start_ns)
        return found is not None and found.is_explained

    return [one for one in forward if not is_explained(one)] if loading.rows else list(forward)


def _weigh(
    graph: JobGraph, loading: LoadingTracker, slow: Anomaly, accused: Collection[str]
) -> tuple[int, WeighedLengths] | None:
    """Return a rank of a slow host and what its lengths explain; None unless they explain what all its ranks tell.

    Args:
        graph: the job.
        loading: the loaders' reports.
        slow: the anomaly of the host.
        accused: slow hosts, which are no peers.
    """
    detail = slow.detail
    excess_ratio = float(detail["own_seconds"]) / max(float(detail["peer_seconds"]), 1e-6) - 1.0
    told = {
        rank: loading.weigh(rank, _peers_of(graph, loading, rank, accused), excess_ratio, slow.start_ns)
        for rank in detail["ranks"]
    }
    found = [(rank, weighed) for rank, weighed in told.items() if weighed is not None]
    if not all(weighed.is_explained for _, weighed in found):
        return None
    return max(found, key=lambda one: one[1].own_ratio, default=None)


def _peers_of(graph: JobGraph, loading: LoadingTracker, rank: int, accused: Collection[str]) -> Iterator[int]:
    """Yield the ranks of a rank's stage whose loaders report, without those of slow hosts."""
    stage = graph.placement.stage_of(rank)
    for one in loading.rows:
        if graph.placement.stage_of(one) == stage and graph.host_of(one) not in accused:
            yield one


def _finding(graph: JobGraph, explained: Sequence[tuple[Anomaly, tuple[int, WeighedLengths]]]) -> Finding:
    """Return the finding that clears hosts with longer data.

    Args:
        graph: the job.
        explained: anomalies of the hosts, each with a rank and what its lengths explain.
    """
    slow = [one for one, _ in explained]
    evidence = tuple(_evidence(graph, *one) for one in explained)
    return Finding(
        FaultKind.FAIL_SLOW,
        "data_imbalance",
        (),
        min(one.start_ns for one in slow),
        0.8,
        Reason.LONGER_DATA,
        evidence,
        clears=tuple(Component(ComponentKind.HOST, one.component.name) for one in slow),
        seen_ns=max(one.end_ns for one in slow),
        costs_ratio=max(longer_by_ratio(one) for one in slow),
    )


def _evidence(graph: JobGraph, slow: Anomaly, found: tuple[int, WeighedLengths]) -> Evidence:
    """Return the evidence that a rank's data are longer."""
    rank, weighed = found
    text = (
        f"{names_of(graph, [rank])} computes {weighed.own_ratio:.2f} times as long as its peers, and its loader tells "
        f"sequences that cost up to {weighed.lengths_ratio:.2f} times as much (sampled steps: {weighed.step_count})"
    )
    span = slow.start_ns, slow.end_ns
    values = weighed.lengths_ratio, 1.0
    return Evidence(
        DETECTOR, "sum_squared_lengths", slow.score, *span, text, suspect_value=values[0], peer_value=values[1]
    )

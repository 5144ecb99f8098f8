"""Names the source or the loader behind a slowness: by which ranks read which source, and by their batches' lengths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tocsin.models.loading.sources import LEAST_RATIO, SlowSource, find_slow_loaders, find_slow_sources
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.loading import DETECTOR, LoadingTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.slice_evidence import SliceEvidence
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind, Evidence, FaultKind

_UNEVEN_RATIO = 1.0 + LEAST_RATIO
"""Least I_dp of uneven lengths: a job straggles from a tenth on."""
_MOST_NAMED = 8


def explain_by_sources(
    graph: JobGraph, findings: Sequence[Finding], evidence: SliceEvidence, loading: LoadingTracker
) -> list[Finding]:
    """Return the findings with the source of data or the loader that is behind them.

    Hosts are not accused of waiting for data where their ranks are all readers of a source, and other ranks read
    others: then the source is slow. A host stays accused where its rank's loader is slow beside other readers of the
    same source, or computes longer as well. A slowdown that names nobody gets a slow source as its cause.

    Args:
        graph: the job.
        findings: what was found so far.
        evidence: the end of the slice.
        loading: the loaders' reports.
    """
    sources = loading.sources(evidence.now_ns)
    if not sources:
        return list(findings)
    waiting = {rank for one in findings if _is_of_own_loader(one) for rank in _ranks_of(graph, one)}
    return [
        _with_source(graph, one, sources, waiting, evidence, loading)
        if _is_of_own_loader(one)
        else _of_whole_job(one, sources, evidence, loading)
        for one in findings
    ]


def add_lengths(findings: Sequence[Finding], loading: LoadingTracker, now_ns: int) -> list[Finding]:
    """Return the findings; uneven data with what the loaders tell of sequence lengths and their source."""
    if not any(finding.cause == "data_imbalance" for finding in findings):
        return list(findings)
    lengths = loading.lengths(now_ns)
    if lengths is None:
        return list(findings)
    steps = f"sequence lengths of steps {lengths.first_step} to {lengths.last_step}"
    tokens, squares = lengths.tokens.max_to_mean_ratio, lengths.squares.max_to_mean_ratio
    text = (
        f"{steps}: the rank with most has {tokens:.2f} times the mean rank's tokens (I_dp), and {squares:.2f} times "
        "its sum of squared lengths"
    )
    if squares < _UNEVEN_RATIO:
        text = f"{steps} are even among the ranks (I_dp {tokens:.2f}): what differs is something else in the data"
    elif lengths.source:
        text += f"; the longest come from {lengths.source}"
    span = lengths.first_ns, lengths.last_ns
    told = Evidence(DETECTOR, "sum_squared_lengths", squares, *span, text, suspect_value=squares, peer_value=1.0)
    return [replace(one, evidence=(*one.evidence, told)) if one.cause == "data_imbalance" else one for one in findings]


def _is_of_own_loader(finding: Finding) -> bool:
    """Return whether a finding accuses hosts because their ranks wait for data."""
    return finding.reason is Reason.OWN_LOADER_SLOW and bool(finding.suspects)


def _ranks_of(graph: JobGraph, finding: Finding) -> set[int]:
    """Return the ranks that a finding is about; all ranks of a suspect without ranks."""
    return {
        rank for suspect in finding.suspects for rank in (suspect.ranks or graph.ranks_of_host(suspect.component.name))
    }


def _with_source(
    graph: JobGraph,
    finding: Finding,
    sources: Mapping[int, str],
    waiting: Collection[int],
    evidence: SliceEvidence,
    loading: LoadingTracker,
) -> Finding:
    """Return a finding about hosts that wait for data: with the source in their place, or with their loaders' times.

    Args:
        graph: the job.
        finding: the finding.
        sources: rank -> the only source that it reads.
        waiting: all ranks that are found to wait for data.
        evidence: the end of the slice.
        loading: the loaders' reports.
    """
    ranks = _ranks_of(graph, finding)
    names = {sources.get(rank, "") for rank in ranks}
    readers = [rank for rank, source in sources.items() if source in names]
    are_all = "" not in names and set(readers) <= set(waiting)
    if are_all and len(readers) < len(sources) and not _compute_longer(finding, evidence.steps):
        shown = ", ".join(sorted(names))
        text = (
            f"only readers of {shown} wait longer for data, and all of them ({_ranks_text(readers)}); "
            f"{len(sources) - len(readers)} ranks read other sources"
        )
        told = Evidence(DETECTOR, events.LOADER, 1.0, finding.onset_ns, evidence.now_ns, text)
        return replace(
            finding,
            cause="shared_service",
            reason=Reason.SOURCE_SLOW,
            suspects=(),
            common=None,
            evidence=(told, *finding.evidence),
            clears=(*finding.clears, *(suspect.component for suspect in finding.suspects)),
        )
    return _with_fetch_times(finding, ranks, evidence, loading)


def _with_fetch_times(
    finding: Finding, ranks: Collection[int], evidence: SliceEvidence, loading: LoadingTracker
) -> Finding:
    """Return a finding about hosts that wait for data with the fetch time of the slowest of their loaders.

    Args:
        finding: the finding.
        ranks: its ranks.
        evidence: the end of the slice.
        loading: the loaders' reports.
    """
    step_seconds = evidence.pace.median_step_ns / NS_PER_SECOND
    fetches = loading.fetches(finding.onset_ns, evidence.now_ns)
    slow = [one for one in find_slow_loaders(fetches, step_seconds) if one.rank in ranks and not one.by_past]
    if not slow:
        return finding
    first = slow[0]
    text = (
        f"the loader of rank {first.rank} takes {first.seconds:.3g} s a step for {first.source}, its other readers "
        f"{first.usual_seconds:.3g} s"
    )
    told = Evidence(
        DETECTOR,
        "fetch_seconds",
        1.0,
        finding.onset_ns,
        evidence.now_ns,
        text,
        suspect_value=first.seconds,
        peer_value=first.usual_seconds,
    )
    return replace(finding, evidence=(*finding.evidence, told))


def _compute_longer(finding: Finding, steps: Sequence[Anomaly]) -> bool:
    """Return whether a host that waits for data also computes longer than its peers, by a tenth of their time."""
    for anomaly in steps:
        is_host = anomaly.component.kind is ComponentKind.HOST and anomaly.metric == "own_seconds"
        if not is_host or anomaly.component.name not in finding.accused:
            continue
        detail = anomaly.detail
        waits_ratio = float(detail["phase_share_ratio"]) if detail["phase"] == "data" else 0.0
        above = float(detail["own_seconds"]) - float(detail["peer_seconds"])
        if above * (1.0 - waits_ratio) >= LEAST_RATIO * float(detail["peer_seconds"]):
            return True
    return False


def _of_whole_job(
    finding: Finding, sources: Mapping[int, str], evidence: SliceEvidence, loading: LoadingTracker
) -> Finding:
    """Return a slowdown that names nobody with the source that all or some ranks wait for; others as they are."""
    if finding.fault is not FaultKind.FAIL_SLOW or finding.suspects:
        return finding
    if finding.reason is Reason.ALL_LOADERS_SLOW:
        names = sorted(set(sources.values()))
        shown = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if len(names) > 8 else "")
        text = f"the ranks that wait for data read from {shown}"
        told = Evidence(DETECTOR, events.LOADER, 1.0, finding.onset_ns, evidence.now_ns, text)
        return replace(finding, evidence=(*finding.evidence, told))
    if finding.reason is not Reason.JOB_WIDE_SLOWDOWN or finding.cause != "unknown" or finding.ends is not None:
        return finding
    step_seconds = evidence.pace.median_step_ns / NS_PER_SECOND
    slow = find_slow_sources(loading.fetches(finding.onset_ns, evidence.now_ns), step_seconds)
    if not slow:
        return finding
    told = _source_evidence(slow[0], finding, evidence.now_ns)
    return replace(finding, cause="shared_service", reason=Reason.SOURCE_SLOW, evidence=(told, *finding.evidence))


def _source_evidence(slow: SlowSource, finding: Finding, now_ns: int) -> Evidence:
    """Return the evidence of a slow source."""
    text = (
        f"readers of {slow.source} ({_ranks_text(slow.ranks)}) wait {slow.seconds:.3g} s a step for it, readers of "
        f"other sources {slow.other_seconds:.3g} s"
    )
    return Evidence(
        DETECTOR,
        "fetch_seconds",
        1.0,
        finding.onset_ns,
        now_ns,
        text,
        suspect_value=slow.seconds,
        peer_value=slow.other_seconds,
    )


def _ranks_text(ranks: Collection[int]) -> str:
    """Return a few ranks as text, such as ``ranks 3, 7``."""
    shown = sorted(ranks)[:_MOST_NAMED]
    more = f" and {len(ranks) - len(shown)} more" if len(ranks) > len(shown) else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, shown))}{more}"

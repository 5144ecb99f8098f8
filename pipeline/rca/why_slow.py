"""Findings about why a job is slow that name no machine, and what they take back or explain of other findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.models.step_causes import COMMUNICATION, LOADER, MACHINE, SERVICE, STAGE
from tocsin.pipeline.detect.whatif.detector import DETECTOR
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Component, Evidence, FaultKind

_SAME_ONSET_NS = 30 * NS_PER_SECOND
"""Greatest distance between the onsets of a slowness and of a cause that explains it, beside the cause's window."""
_LEAST_COST_RATIO = 0.01
"""Share of a step below which a machine costs nothing; step times cannot resolve less."""
_WORDS = {
    "stage_imbalance": "one pipeline stage computes longer than the others on every replica",
    "data_imbalance": "forward and backward passes of changing ranks take longer together: their data differ",
    "software_jitter": "changing ranks pause in the forward pass",
    COMMUNICATION: "transfers take longer than usual once all members have come",
    SERVICE: "all ranks that load data wait for them longer than usual",
    LOADER: "single ranks wait for their data loader",
}
_REASONS = {
    STAGE: Reason.LONG_STAGE,
    COMMUNICATION: Reason.LONG_TRANSFERS,
    SERVICE: Reason.ALL_LOADERS_SLOW,
    LOADER: Reason.OWN_LOADER_SLOW,
}
_NO_REASONS = ("unknown", "workload_change")
"""Causes of a slowdown of the whole job that say nothing about its reason."""
_OF_MACHINES = frozenset({COMMUNICATION, SERVICE, LOADER})
"""Causes that a machine may make: they clear none, and a machine that began with them stands for them."""


def is_of_whatif(anomaly: Anomaly) -> bool:
    """Return whether an anomaly is a cause of slowness that names no machine."""
    return anomaly.detector == DETECTOR


def split_causes(anomalies: Sequence[Anomaly]) -> tuple[list[Anomaly], list[Anomaly]]:
    """Return the causes of slowness that name no machine, and all other anomalies."""
    causes = [anomaly for anomaly in anomalies if is_of_whatif(anomaly)]
    return causes, [anomaly for anomaly in anomalies if not is_of_whatif(anomaly)]


def add_causes(
    findings: Sequence[Finding], causes: Sequence[Anomaly], steps: Sequence[Anomaly], pace: JobProgress
) -> list[Finding]:
    """Return the findings with the causes of the job's slowness that name no machine.

    A machine that costs the job nothing is not accused of a slowness that such a cause explains. A slowdown of the
    whole job without a reason gets the cause that began with it. Where a finding has the cause already, or will have it
    once the slowdown has lasted, it stands for it.

    Args:
        findings: what was found so far.
        causes: anomalies of the detector of causes.
        steps: anomalies of the job's steps.
        pace: the job's progress.
    """
    causes = [cause for cause in causes if not _is_explained(cause, findings)]
    if not causes:
        return list(findings)
    left: list[Finding] = []
    freed: list[Component] = []
    for finding in findings:
        explaining = [cause for cause in causes if _explains(cause, finding)]
        if any(cause.metric not in _OF_MACHINES for cause in explaining) and _costs_nothing(finding, pace):
            freed.extend(suspect.component for suspect in finding.suspects)
        else:
            left.append(_with_cause(finding, explaining))
    named = {finding.cause for finding in left if not finding.suspects}
    job_wide = [anomaly.start_ns for anomaly in steps if anomaly.metric == "step_seconds"]
    new = [
        _finding(cause, freed)
        for cause in causes
        if cause.metric not in named and (freed or not any(_may_begin(cause, onset_ns) for onset_ns in job_wide))
    ]
    if freed and not new:
        left = [replace(one, clears=(*one.clears, *freed)) if not one.suspects else one for one in left]
    return [*left, *new]


def _is_explained(cause: Anomaly, findings: Sequence[Finding]) -> bool:
    """Return whether a finding explains a cause that a machine may make: long transfers, or waiting for data."""
    if cause.metric not in _OF_MACHINES:
        return False
    return any(
        one.cause == cause.metric or _began_with(cause, one.onset_ns)
        for one in findings
        if one.suspects or (one.fault is FaultKind.FAIL_SLOW and one.cause not in _NO_REASONS)
    )


def _with_cause(finding: Finding, explaining: Sequence[Anomaly]) -> Finding:
    """Return a finding that names nobody and has no reason with the dearest of the causes that began with it."""
    is_open = finding.fault is FaultKind.FAIL_SLOW and not finding.suspects and finding.ends is None
    if not explaining or not is_open or finding.cause not in _NO_REASONS:
        return finding
    main = max(explaining, key=lambda cause: float(cause.detail["costs_ratio"]))
    known_ratio = finding.costs_ratio
    return replace(
        finding,
        cause=main.metric,
        evidence=(_evidence(main), *finding.evidence),
        costs_ratio=float(main.detail["costs_ratio"]) if known_ratio is None else known_ratio,
    )


def _explains(cause: Anomaly, finding: Finding) -> bool:
    """Return whether a slowness began with a cause that costs more than all slow machines."""
    if finding.fault is not FaultKind.FAIL_SLOW or finding.only_holds:
        return False
    costs = cause.detail["costs"]
    return float(costs[cause.metric]) > float(costs[MACHINE]) and _began_with(cause, finding.onset_ns)


def _began_with(cause: Anomaly, onset_ns: int) -> bool:
    """Return whether a cause began about at an onset: what was there before explains nothing that came later."""
    window_ns = int(float(cause.detail["window_seconds"]) * NS_PER_SECOND)
    return abs(cause.start_ns - onset_ns) <= window_ns + _SAME_ONSET_NS


def _may_begin(cause: Anomaly, onset_ns: int) -> bool:
    """Return whether a slowdown of the whole job that began at an onset may turn out to be a cause's begin.

    A cause that a whole window before it showed was there already, so it is told by itself.
    """
    return _began_with(cause, onset_ns) and onset_ns <= int(cause.detail["first_end_ns"])


def _costs_nothing(finding: Finding, pace: JobProgress) -> bool:
    """Return whether a finding accuses machines whose ranks are measured to compute no longer than their peers.

    What a driver reports of its own machine stands.
    """
    is_reported = finding.certain or any(one.detector == "hardware" for one in finding.evidence)
    if not finding.suspects or is_reported or not pace.median_step_ns:
        return False
    line_seconds = _LEAST_COST_RATIO * pace.median_step_ns / NS_PER_SECOND
    excesses = [pace.self_time_excess_seconds(host) for host in finding.accused]
    return all(excess is not None and excess < line_seconds for excess in excesses)


def _finding(cause: Anomaly, freed: Sequence[Component]) -> Finding:
    """Return the finding of a cause, as information beside what else is wrong with the job.

    Args:
        cause: its anomaly.
        freed: machines that are not at fault, because this is.
    """
    reason = _REASONS.get(cause.metric, Reason.SLOWEST_RANK_CHANGES)
    costs_ratio = float(cause.detail["costs_ratio"])
    return Finding(
        FaultKind.DEGRADED,
        cause.metric,
        (),
        cause.start_ns,
        0.7,
        reason,
        (_evidence(cause),),
        clears=tuple(freed),
        seen_ns=cause.end_ns,
        costs_ratio=costs_ratio,
    )


def _evidence(cause: Anomaly) -> Evidence:
    """Return the evidence of a cause: what shows it, and what each cause costs."""
    detail = cause.detail
    costs = sorted(detail["costs"].items(), key=lambda item: (-item[1], item[0]))
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in costs if share >= _LEAST_COST_RATIO)
    what = _WORDS[cause.metric]
    if cause.metric == STAGE:
        what += f" (stage {detail['long_stage']}: {100 * detail['stage_ratio']:.0f} % longer than the mean stage)"
    if cause.metric == LOADER and detail.get("late_rank", -1) >= 0:
        what += f" (mostly rank {detail['late_rank']})"
    times = f"the job takes {detail['slowdown_ratio']:.2f} times as long as if nobody were slow"
    text = f"{what}; {times}, and of its time {shares}"
    span = cause.start_ns, cause.end_ns
    return Evidence(cause.detector, cause.metric, cause.score, *span, text, suspect_value=float(detail["costs_ratio"]))

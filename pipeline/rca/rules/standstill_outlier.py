"""The one machine that deviates from all others in a job that has stood for long without explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.stop import gave_up_waiting_ns
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import (
    SHOWN_METRICS,
    MachineRules,
    differs_now,
    evidence_of,
    family_of,
    reported_metrics,
)
from tocsin.pipeline.rca.rules.standstill import cause_of, still_progressing, still_stalled
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, FaultKind, Suspect

STANDSTILL_OUTLIER = "odd"
"""The key in an anomaly's detail that marks it for this rule alone."""


def find_standstill_outlier(
    graph: JobGraph,
    now_ns: int,
    outliers: Sequence[Anomaly],
    anomalies: Sequence[Anomaly],
    pace: JobProgress,
    rules: MachineRules,
) -> Finding | None:
    """Return a finding about the only machine that deviates in a job that has stood for longer than its pauses.

    Where ranks report a collective's timeout it is no pause, and the machine is named at once.

    Args:
        graph: the job.
        now_ns: the slice's end.
        outliers: anomalies of any kind since the job stands.
        anomalies: anomalies while the job worked.
        pace: the job's progress.
        rules: settings.

    Returns:
        The finding; None where no machine deviates, or several do.
    """
    since_ns = pace.stalled_since_ns
    longest_ns = max(pace.longest_stall_ns, pace.longest_pause_ns)
    stalled_ns = now_ns - since_ns
    patience_ns = max(rules.standstill_outlier_ns, int(2 * rules.learned_factor * longest_ns))
    gave_up_ns = gave_up_waiting_ns(graph)
    if gave_up_ns is None:
        return None
    hung = 0 < since_ns < gave_up_ns
    if not since_ns or (not hung and (stalled_ns < patience_ns or pace.ended_at_once)):
        return None
    if still_progressing(graph, pace) or graph.in_announced_phase(since_ns, now_ns):
        return None
    differing = _differing_since(outliers, anomalies, pace, rules)
    if hung:  # who does something else since the others ended is one of those that live
        differing = [anomaly for anomaly in differing if anomaly.start_ns < gave_up_ns]
    if len({anomaly.component for anomaly in differing}) != 1:
        return None
    chosen = differing[0]
    metrics = reported_metrics(chosen)
    # Rank 0 may export the model while all others wait; who does so is busy, and nothing else.
    if all(map(_is_busy, metrics)) and stalled_ns < rules.sure_stalled_ns:
        return None
    return Finding(
        FaultKind.HANG,
        cause_of(chosen),
        (Suspect(chosen.component),),
        since_ns,
        0.6,
        Reason.DIFFERS_WHILE_JOB_STALLED,
        (*(evidence_of(chosen, metric) for metric in metrics[:SHOWN_METRICS]), *still_stalled(pace, now_ns).evidence),
        tentative=True,  # as the job goes on it is taken back: it may have been a pause
    )


def _differing_since(
    outliers: Sequence[Anomaly], anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules
) -> list[Anomaly]:
    """Return the anomalies of machines that deviate now, and did as the job came to stand."""
    ill = [anomaly for anomaly in anomalies if _was_ill(anomaly, pace.stalled_since_ns, rules)]
    since_then = [anomaly for anomaly in outliers if anomaly.start_ns <= pace.stalled_known_ns + rules.stalled_ns]
    return [anomaly for anomaly in (*ill, *since_then) if differs_now(anomaly)]


def _is_busy(metric: Mapping[str, Any]) -> bool:
    """Return whether a metric shows more load than the waiting peers have, other than GPU work: a checkpoint."""
    return metric["direction"] == "high" and family_of(metric) not in ("activity", "power")


def _was_ill(anomaly: Anomaly, since_ns: int, rules: MachineRules) -> bool:
    """Return whether a machine deviated for minutes at most, until the job stopped."""
    began_ns = since_ns - anomaly.start_ns
    return 0 < began_ns <= rules.ill_ns and since_ns - anomaly.end_ns <= rules.stalled_ns

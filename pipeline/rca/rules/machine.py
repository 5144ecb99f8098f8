"""A machine whose metrics differ from its peers': is it at fault?

A counter that deviates is no fault by itself: the job must suffer. With step records that means
slower steps since the deviation began; without them the deviation must last. Many machines at once
are no machine's fault, unless they share one component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.anomalies import DETECTOR
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component
from tocsin.pipeline.rca.evidence.hardware_causes import VAGUE_CAUSES
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.pace_evidence import pace_evidence
from tocsin.pipeline.rca.patterns import cause_of_metrics
from tocsin.pipeline.rca.rules.concurrent_failures import find_twins
from tocsin.pipeline.rca.rules.deviations import (
    SHOWN_METRICS,
    SILENT_FAMILIES,
    MachineRules,
    alarming,
    begin_ns,
    differs_now,
    evidence_of,
    family_of,
    is_wider_than_switch,
    lost_gpu,
    may_be_switch,
    may_have_more_work,
    only_cpu,
    present_ratio,
    single_out,
)
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.impact import (
    has_impact,
    is_loud,
    is_overwhelming,
    is_steady,
    is_undecided,
    lasts,
    one_stall_ns,
    one_step_ns,
)
from tocsin.pipeline.rca.rules.more_work import shows_more_work
from tocsin.pipeline.rca.rules.self_time import own_evidence, silent_but_slow
from tocsin.pipeline.rca.rules.standstill import (
    find_stopped_alone,
    idle_beside_spinning,
    jammed,
    since_stalled,
    still_progressing,
)
from tocsin.pipeline.rca.rules.timing import TELLING_WINDOWS, why_not, window_ns
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, FaultKind, Suspect

_CONFIDENCE = {Reason.METRICS_DIFFER: 0.7, Reason.METRICS_DIFFER_STEPS_SLOWER: 0.85}
_STALE_WINDOWS = 1.5
"""What was last seen longer ago opens nothing: it may be over, and whoever differed with it is so already."""
_FADED_SCORE = 0.5
"""Of the alarm line: two windows without a sign of it."""


def find_machine(  # what is known, and what is remembered
    graph: JobGraph,
    now_ns: int,
    anomalies: Sequence[Anomaly],
    pace: JobProgress,
    rules: MachineRules,
    cleared: HarmlessDeviations,
) -> tuple[list[Finding], list[Reason]]:
    """Explain the peer anomalies that hold now; reasons where one is not worth a verdict."""
    if pace.stalled_since_ns:
        slow = still_progressing(graph, pace) and (jammed(anomalies) or idle_beside_spinning(anomalies, rules))
        if not slow:
            before_end = _filter_ended(anomalies, pace, rules)
            if anomalies and not before_end:
                return [], [Reason.ENDED_WITH_OTHERS]
            return find_stopped_alone(graph, now_ns, since_stalled(before_end, pace, rules), pace, rules)
        anomalies = slow
    return _find_working(graph, now_ns, anomalies, pace, rules, cleared)


def _filter_ended(anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules) -> list[Anomaly]:
    """What tells of machines that stand.

    Where all processes ended as they came to, nobody waited: who fell first was ended first, and who differed since did
    so for other reasons. What was odd before counts, a GPU that is gone, one that worked on after the others, and who
    does or holds more than they to this moment: its processes may live.
    """
    ended_ns = min(pace.ended_at_once.values(), default=0)
    if not ended_ns or ended_ns - pace.stalled_since_ns >= rules.ended_ns:
        return list(anomalies)
    return [anomaly for anomaly in anomalies if not _fell_with_others(anomaly)]


def _fell_with_others(anomaly: Anomaly) -> bool:
    all_low = all(metric["direction"] == "low" for metric in anomaly.detail["metrics"])
    if lost_gpu(anomaly) or (differs_now(anomaly) and not all_low):
        return False
    return bool(anomaly.detail.get("standing") or (anomaly.detail.get("leaning") and all_low))


def _find_working(  # as above
    graph: JobGraph,
    now_ns: int,
    anomalies: Sequence[Anomaly],
    pace: JobProgress,
    rules: MachineRules,
    cleared: HarmlessDeviations,
) -> tuple[list[Finding], list[Reason]]:
    """Who differs in a job that works."""
    loud = alarming(anomalies, rules)
    telling = loud or silent_but_slow(anomalies, now_ns, pace, rules)
    if not telling:
        fading = [_still_differs(anomaly) for anomaly in anomalies if _fades(anomaly)]
        return fading, [Reason.NO_IMPACT] if anomalies else []
    open_ones = cleared.judge(telling, now_ns, pace, rules)
    candidates = open_ones or telling
    chosen = find_twins(graph, now_ns, candidates, anomalies, pace, rules) or single_out(graph, candidates, rules)
    if not chosen or is_wider_than_switch(graph, chosen, anomalies):
        # Who was named alone and differs as ever has not recovered because others differ for a moment, too.
        lasting = [a for a in open_ones if differs_now(a) and a.end_ns - begin_ns(a) >= rules.sure_ns]
        return [_still_differs(anomaly) for anomaly in lasting], [Reason.AMBIGUOUS]
    onset_ns = min(begin_ns(anomaly) for anomaly in chosen)
    # By the evidence, not by the clock: what one window of 25 s showed has not lasted because the next one is not over.
    lasted_ns = max(anomaly.end_ns for anomaly in chosen) - onset_ns
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    unrelated = why_not(graph, chosen, onset_ns, slowdown, pace)
    reason = unrelated or _more_work(graph, chosen, pace)
    cleared.learn(graph, open_ones, chosen, reason, now_ns, pace)
    if reason is Reason.NON_TRAINING_PHASE:
        return [], [reason]
    if now_ns - max(anomaly.end_ns for anomaly in chosen) > max(
        rules.fresh_ns, round(_STALE_WINDOWS * window_ns(graph, chosen))
    ):
        return [_still_differs(anomaly) for anomaly in open_ones], [Reason.NOT_CONTINUOUS]
    paused_ns, patience_ns = _pause_ns(graph, slowdown, now_ns, pace, rules)
    if paused_ns < patience_ns:
        return [_still_differs(anomaly) for anomaly in open_ones], [Reason.WITHIN_PATIENCE]
    # Steps that are too few yet to tell before from after will tell.
    lasting_ns = (
        (rules.undecided_ns if is_overwhelming(chosen) else rules.few_steps_ns)
        if pace.median_step_ns
        else (rules.lasting_ns if is_overwhelming(chosen) else rules.undecided_ns)
    )
    if slowdown is None and (lasted_ns < lasting_ns or present_ratio(chosen[0]) < rules.steady_ratio):
        return [], [Reason.NOT_CONTINUOUS]
    if is_undecided(slowdown, pace) and lasted_ns >= rules.undecided_ns and is_steady(chosen, rules):
        slowdown = None
    hurts = (
        bool(open_ones)
        and reason is None
        and lasted_ns > max(one_stall_ns(graph, chosen, pace), one_step_ns(graph, chosen, slowdown))
        and has_impact(graph, chosen, slowdown, pace, lasted_ns, rules)
    )
    if not hurts and not is_loud(chosen):
        return [], [Reason.NO_IMPACT]
    if hurts and only_cpu(chosen) and not lasts(chosen, lasted_ns, graph, pace, rules):
        return [], [Reason.NOT_CONTINUOUS]
    is_harmless = not hurts and cleared.hear_steps(chosen, slowdown, pace)
    holding = [_still_differs(anomaly) for anomaly in open_ones if anomaly not in chosen]
    reason = _reason_of(slowdown, reason, hurts=hurts)
    finding = _finding(graph, chosen, onset_ns, slowdown, reason, hurts=hurts)
    is_pause = paused_ns < max(rules.sure_standing_ns, 2 * patience_ns) if patience_ns else False
    # What is over as the job is as slow as ever was not why: it is confirmed when windows show it.
    is_old = now_ns - finding.seen_ns > round(_STALE_WINDOWS * window_ns(graph, chosen))
    finding = replace(
        finding,
        tentative=is_pause or is_old or lasted_ns < rules.sure_ns,
        is_brief=not (is_pause or is_old) and lasted_ns < rules.sure_ns,
        hard_ns=TELLING_WINDOWS * window_ns(graph, chosen),
        is_harmless=finding.is_harmless or is_harmless,
        is_soft=not loud or _may_be_healthy(graph, chosen, pace),
        evidence=finding.evidence if loud else (*own_evidence(chosen[0], pace), *finding.evidence),
    )
    return [finding, *holding], []


def _may_be_healthy(graph: JobGraph, chosen: Sequence[Anomaly], pace: JobProgress) -> bool:
    """Whether what these show may be something beside them: their switch's, or a log agent's that takes a CPU.

    Of a CPU alone, where nobody knows whether their own steps are longer.
    """
    measured = any(pace.own_excess_seconds(anomaly.component.name) is not None for anomaly in chosen)
    return may_be_switch(graph, chosen) or (only_cpu(chosen) and not measured)


def _more_work(graph: JobGraph, chosen: Sequence[Anomaly], pace: JobProgress) -> Reason | None:
    """Why what these show is that they have more to do, and no fault; None: it may be one."""
    if may_have_more_work(graph, chosen):
        return Reason.TOO_FEW_PEERS
    return Reason.HIGHER_WORKLOAD if all(shows_more_work(graph, anomaly, pace) for anomaly in chosen) else None


def _pause_ns(
    graph: JobGraph, slowdown: Slowdown | None, now_ns: int, pace: JobProgress, rules: MachineRules
) -> tuple[int, int]:
    """For how long no step has ended, and how long one may take who writes a checkpoint and did not say so; 0: none."""
    if slowdown is None or slowdown.ratio != float("inf"):
        return 0, 0
    patience_ns = max(rules.standing_ns, int(rules.learned_factor * pace.longest_pause_ns))
    return now_ns - graph.progress_ns, min(patience_ns, rules.max_pause_ns)


def _fades(anomaly: Anomaly) -> bool:
    """Whether what it showed is not over: of a step longer than a window some windows show nothing of it."""
    return not anomaly.detail.get("leaning") and any(
        metric["score"] >= _FADED_SCORE and family_of(metric) not in SILENT_FAMILIES
        for metric in anomaly.detail["metrics"]
    )


def _still_differs(anomaly: Anomaly) -> Finding:
    """What was said of this machine is not over: another one stands out more now, or it is not seen now."""
    metrics = anomaly.detail["metrics"]
    return Finding(
        FaultKind.DEGRADED,
        "unknown",
        (Suspect(anomaly.component),),
        anomaly.start_ns,
        0.5,
        Reason.METRICS_DIFFER,
        (evidence_of(anomaly, metrics[0]),),
        seen_ns=anomaly.end_ns,
        only_holds=True,
    )


def explain_by_metrics(findings: Sequence[Finding], anomalies: Sequence[Anomaly]) -> list[Finding]:
    """A process that ended on a machine whose GPU gives no samples any more: the card dropped."""
    lost = {anomaly.component.name for anomaly in anomalies if anomaly.detector == DETECTOR and lost_gpu(anomaly)}
    seen = ("process_exit", *VAGUE_CAUSES)
    return [
        replace(finding, cause="gpu_card_drop", is_by_words=False)
        if finding.cause in seen and lost & {suspect.component.name for suspect in finding.suspects}
        else finding
        for finding in findings
    ]


def _reason_of(slowdown: Slowdown | None, unrelated: Reason | None, *, hurts: bool) -> Reason:
    if unrelated is not None:
        return unrelated
    if slowdown is None:
        return Reason.METRICS_DIFFER
    return Reason.METRICS_DIFFER_STEPS_SLOWER if hurts else Reason.NO_IMPACT


def _finding(  # what is known of it
    graph: JobGraph,
    chosen: Sequence[Anomaly],
    onset_ns: int,
    slowdown: Slowdown | None,
    reason: Reason,
    *,
    hurts: bool,
) -> Finding:
    metrics = [metric for anomaly in chosen for metric in anomaly.detail["metrics"]]
    suspects = [Suspect(anomaly.component) for anomaly in chosen]
    evidence = [evidence_of(anomaly, metric) for anomaly in chosen for metric in anomaly.detail["metrics"]]
    if slowdown is not None:
        evidence.append(pace_evidence(slowdown, onset_ns, chosen[0].end_ns))
    return Finding(
        FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED,
        cause_of_metrics(metrics),
        tuple(suspects),
        onset_ns,
        _CONFIDENCE.get(reason, 0.6),
        reason,
        tuple(evidence[:SHOWN_METRICS] + evidence[-1:] if len(evidence) > SHOWN_METRICS else evidence),
        common=common_component(graph, {anomaly.component.name for anomaly in chosen}),
        seen_ns=max(anomaly.end_ns for anomaly in chosen),
        exonerates=tuple(anomaly.component for anomaly in chosen) if reason is Reason.HIGHER_WORKLOAD else (),
        is_harmless=slowdown is not None and slowdown.is_gone,
    )

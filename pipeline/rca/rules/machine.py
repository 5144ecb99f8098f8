"""Machines whose metrics deviate from their peers', and whether they are at fault.

A deviation is no fault by itself: the job must suffer. With step records the steps must be slower since the deviation
began. Without them the deviation must last. Many machines that deviate together are not at fault, unless they share
one component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.anomalies import DETECTOR
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component
from tocsin.pipeline.rca.evidence.hardware_causes import VAGUE_CAUSES
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.pace_evidence import pace_evidence
from tocsin.pipeline.rca.patterns import cause_of_metrics
from tocsin.pipeline.rca.rules.concurrent_failures import find_concurrent_failures
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
    congested,
    find_stopped_alone,
    idle_among_spinning,
    since_stalled,
    still_progressing,
)
from tocsin.pipeline.rca.rules.timing import TELLING_WINDOWS, why_not, window_ns
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, FaultKind, Suspect

_CONFIDENCE = {Reason.METRICS_DIFFER: 0.7, Reason.METRICS_DIFFER_STEPS_SLOWER: 0.85}
_STALE_WINDOWS = 1.5
"""Windows after which a deviation that is not seen again opens no verdict: it may be over."""
_FADED_SCORE = 0.5
"""Share of the alarm's score below which a deviation is over: two windows without a sign of it."""


def find_machine(  # what is known, and what is remembered
    graph: JobGraph,
    now_ns: int,
    anomalies: Sequence[Anomaly],
    pace: JobProgress,
    rules: MachineRules,
    cleared: HarmlessDeviations,
) -> tuple[list[Finding], list[Reason]]:
    """Return findings that explain the machines' anomalies of one slice, and reasons where one is no finding.

    Args:
        graph: the job.
        now_ns: the slice's end.
        anomalies: anomalies of the machines' metrics.
        pace: the job's progress.
        rules: settings.
        cleared: what is remembered of deviations without impact.
    """
    if pace.stalled_since_ns:
        slow = still_progressing(graph, pace) and (congested(anomalies) or idle_among_spinning(anomalies, rules))
        if not slow:
            before_end = _filter_ended(anomalies, pace, rules)
            if anomalies and not before_end:
                return [], [Reason.ENDED_WITH_OTHERS]
            return find_stopped_alone(graph, now_ns, since_stalled(before_end, pace, rules), pace, rules)
        anomalies = slow
    return _find_working(graph, now_ns, anomalies, pace, rules, cleared)


def _filter_ended(anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules) -> list[Anomaly]:
    """Return the anomalies that can explain why the machines stand.

    Where all processes ended as the machines came to stand, nobody waited. The machine that fell first was ended first,
    and those that deviate since then do so for other reasons. Earlier deviations count, and so does a lost GPU. So do
    machines that do or hold more than the others until now: their processes may live.
    """
    ended_ns = min(pace.ended_at_once.values(), default=0)
    if not ended_ns or ended_ns - pace.stalled_since_ns >= rules.ended_ns:
        return list(anomalies)
    return [anomaly for anomaly in anomalies if not _fell_with_others(anomaly)]


def _fell_with_others(anomaly: Anomaly) -> bool:
    """Return whether an anomaly only shows that a machine's processes ended with all others'."""
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
    """Return findings about machines that deviate in a job that works, and reasons where one is no finding."""
    loud = alarming(anomalies, rules)
    accusing = loud or silent_but_slow(anomalies, now_ns, pace, rules)
    if not accusing:
        fading = [_still_differs(anomaly) for anomaly in anomalies if _fades(anomaly)]
        return fading, [Reason.NO_IMPACT] if anomalies else []
    open_ones = cleared.judge(accusing, now_ns, pace, rules)
    candidates = open_ones or accusing
    chosen = find_concurrent_failures(graph, now_ns, candidates, anomalies, pace, rules) or single_out(
        graph, candidates, rules
    )
    if not chosen or is_wider_than_switch(graph, chosen, anomalies):
        # A machine that was named alone and deviates as before has not recovered because others deviate for a moment.
        lasting = [a for a in open_ones if differs_now(a) and a.end_ns - begin_ns(a) >= rules.sure_ns]
        return [_still_differs(anomaly) for anomaly in lasting], [Reason.AMBIGUOUS]
    machines = _deviating(graph, now_ns, chosen, pace, rules)
    return _judge(machines, open_ones, cleared, is_silent=not loud)


@dataclass(frozen=True, slots=True)
class _DeviatingMachines:
    """Machines that deviate together in a job that works, and the job's steps since then.

    Attributes:
        graph: the job.
        now_ns: the slice's end.
        pace: the job's progress.
        rules: settings.
        chosen: the machines' anomalies.
        onset_ns: when the first of them began.
        lasted_ns: time from then to the newest evidence. What one window of 25 s showed has not lasted because the next
            window is not over.
        slowdown: how much slower steps are since the onset; None: too few steps tell.
    """

    graph: JobGraph
    now_ns: int
    pace: JobProgress
    rules: MachineRules
    chosen: Sequence[Anomaly]
    onset_ns: int
    lasted_ns: int
    slowdown: Slowdown | None

    @property
    def is_stale(self) -> bool:
        """Whether the newest evidence is too old to open a verdict."""
        window = round(_STALE_WINDOWS * window_ns(self.graph, self.chosen))
        return self.now_ns - max(anomaly.end_ns for anomaly in self.chosen) > max(self.rules.fresh_ns, window)

    @property
    def is_too_short(self) -> bool:
        """Whether the deviation has not lasted, or not been steady, where steps do not tell before from after."""
        if self.slowdown is not None:
            return False
        rules = self.rules
        # Steps that are too few yet to tell before from after will tell.
        lasting_ns = (
            (rules.undecided_ns if is_overwhelming(self.chosen) else rules.few_steps_ns)
            if self.pace.median_step_ns
            else (rules.lasting_ns if is_overwhelming(self.chosen) else rules.undecided_ns)
        )
        return self.lasted_ns < lasting_ns or present_ratio(self.chosen[0]) < rules.steady_ratio

    def without_undecided_steps(self) -> _DeviatingMachines:
        """Return the same without the steps' slowdown, where it stays undecided while the deviation is steady."""
        is_lasting = self.lasted_ns >= self.rules.undecided_ns and is_steady(self.chosen, self.rules)
        return replace(self, slowdown=None) if is_undecided(self.slowdown, self.pace) and is_lasting else self

    @property
    def has_impact(self) -> bool:
        """Whether the job suffers from the deviation, for longer than one stall or one step."""
        graph, chosen, slowdown = self.graph, self.chosen, self.slowdown
        return self.lasted_ns > max(
            one_stall_ns(graph, chosen, self.pace), one_step_ns(graph, chosen, slowdown)
        ) and has_impact(graph, chosen, slowdown, self.pace, self.lasted_ns, self.rules)

    def pause_ns(self) -> tuple[int, int]:
        """Return for how long no step has ended, and how long an unannounced checkpoint may take, ns.

        Both are 0 where steps end.
        """
        if self.slowdown is None or self.slowdown.ratio != float("inf"):
            return 0, 0
        patience_ns = max(self.rules.stalled_ns, int(self.rules.learned_factor * self.pace.longest_pause_ns))
        return self.now_ns - self.graph.progress_ns, min(patience_ns, self.rules.max_pause_ns)


def _deviating(
    graph: JobGraph, now_ns: int, chosen: Sequence[Anomaly], pace: JobProgress, rules: MachineRules
) -> _DeviatingMachines:
    """Return the machines of these anomalies with their onset and the job's steps since then."""
    onset_ns = min(begin_ns(anomaly) for anomaly in chosen)
    lasted_ns = max(anomaly.end_ns for anomaly in chosen) - onset_ns
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    return _DeviatingMachines(graph, now_ns, pace, rules, chosen, onset_ns, lasted_ns, slowdown)


def _judge(
    machines: _DeviatingMachines, open_ones: Sequence[Anomaly], cleared: HarmlessDeviations, *, is_silent: bool
) -> tuple[list[Finding], list[Reason]]:
    """Return a finding about machines that deviate together, and one for each other open deviation.

    Args:
        machines: the machines.
        open_ones: anomalies that are not known to be without impact.
        cleared: what is remembered of deviations without impact.
        is_silent: whether only the machines' own step times stand out, and no metric.
    """
    graph, pace, chosen = machines.graph, machines.pace, machines.chosen
    unrelated = why_not(graph, chosen, machines.onset_ns, machines.slowdown, pace)
    unrelated = unrelated or _more_work(graph, chosen, pace)
    cleared.learn(graph, open_ones, chosen, unrelated, machines.now_ns, pace)
    if unrelated is Reason.NON_TRAINING_PHASE:
        return [], [unrelated]
    paused_ns, patience_ns = machines.pause_ns()
    if machines.is_stale or paused_ns < patience_ns:
        reason = Reason.NOT_CONTINUOUS if machines.is_stale else Reason.WITHIN_PATIENCE
        return [_still_differs(anomaly) for anomaly in open_ones], [reason]
    if machines.is_too_short:
        return [], [Reason.NOT_CONTINUOUS]
    machines = machines.without_undecided_steps()
    hurts = bool(open_ones) and unrelated is None and machines.has_impact
    if not hurts and not is_loud(chosen):
        return [], [Reason.NO_IMPACT]
    if hurts and only_cpu(chosen) and not lasts(chosen, machines.lasted_ns, graph, pace, machines.rules):
        return [], [Reason.NOT_CONTINUOUS]
    is_harmless = not hurts and cleared.hear_steps(chosen, machines.slowdown, pace)
    holding = [_still_differs(anomaly) for anomaly in open_ones if anomaly not in chosen]
    finding = _finding(machines, _reason_of(machines.slowdown, unrelated, hurts=hurts), hurts=hurts)
    is_pause = bool(patience_ns) and paused_ns < max(machines.rules.sure_stalled_ns, 2 * patience_ns)
    finding = _with_doubts(machines, finding, is_pause=is_pause, is_harmless=is_harmless, is_silent=is_silent)
    return [finding, *holding], []


def _with_doubts(
    machines: _DeviatingMachines, finding: Finding, *, is_pause: bool, is_harmless: bool, is_silent: bool
) -> Finding:
    """Return a finding about deviating machines that says what keeps it from being confirmed or acted upon.

    Args:
        machines: the machines.
        finding: the finding.
        is_pause: whether the job may only pause.
        is_harmless: whether steps showed that the deviation has no impact (any more).
        is_silent: whether only the machines' own step times stand out, and no metric.
    """
    graph, pace, chosen, rules = machines.graph, machines.pace, machines.chosen, machines.rules
    # What is over as the job is as slow as ever was not why: it is confirmed when windows show it.
    is_old = machines.now_ns - finding.seen_ns > round(_STALE_WINDOWS * window_ns(graph, chosen))
    return replace(
        finding,
        tentative=is_pause or is_old or machines.lasted_ns < rules.sure_ns,
        is_brief=not (is_pause or is_old) and machines.lasted_ns < rules.sure_ns,
        hard_ns=TELLING_WINDOWS * window_ns(graph, chosen),
        is_harmless=finding.is_harmless or is_harmless,
        is_soft=is_silent or _may_be_healthy(graph, chosen, pace),
        evidence=(*own_evidence(chosen[0], pace), *finding.evidence) if is_silent else finding.evidence,
    )


def _may_be_healthy(graph: JobGraph, chosen: Sequence[Anomaly], pace: JobProgress) -> bool:
    """Return whether the deviation may come from outside of the machines.

    It may be their switch's. A CPU that is taken by a log agent harms nobody, where the ranks' own step times are not
    known.
    """
    measured = any(pace.self_time_excess_seconds(anomaly.component.name) is not None for anomaly in chosen)
    return may_be_switch(graph, chosen) or (only_cpu(chosen) and not measured)


def _more_work(graph: JobGraph, chosen: Sequence[Anomaly], pace: JobProgress) -> Reason | None:
    """Return the reason where the machines only have more work to do; None: they may be at fault."""
    if may_have_more_work(graph, chosen):
        return Reason.TOO_FEW_PEERS
    return Reason.HIGHER_WORKLOAD if all(shows_more_work(graph, anomaly, pace) for anomaly in chosen) else None


def _fades(anomaly: Anomaly) -> bool:
    """Return whether a deviation that is below the alarm is not over yet.

    Where a step is longer than a window, some windows show nothing of it.
    """
    return not anomaly.detail.get("leaning") and any(
        metric["score"] >= _FADED_SCORE and family_of(metric) not in SILENT_FAMILIES
        for metric in anomaly.detail["metrics"]
    )


def _still_differs(anomaly: Anomaly) -> Finding:
    """Return a finding that keeps a machine's open verdict, though the machine does not stand out now."""
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
    """Return the findings; a process that ended on a machine with a lost GPU gets the cause ``gpu_card_drop``.

    Args:
        findings: findings.
        anomalies: anomalies of the machines' metrics; a lost GPU gives no samples any more.
    """
    lost = {anomaly.component.name for anomaly in anomalies if anomaly.detector == DETECTOR and lost_gpu(anomaly)}
    seen = ("process_exit", *VAGUE_CAUSES)
    return [
        replace(finding, cause="gpu_card_drop", is_by_words=False)
        if finding.cause in seen and lost & {suspect.component.name for suspect in finding.suspects}
        else finding
        for finding in findings
    ]


def _reason_of(slowdown: Slowdown | None, unrelated: Reason | None, *, hurts: bool) -> Reason:
    """Return a finding's reason by the steps' slowdown, or the one why it has no impact."""
    if unrelated is not None:
        return unrelated
    if slowdown is None:
        return Reason.METRICS_DIFFER
    return Reason.METRICS_DIFFER_STEPS_SLOWER if hurts else Reason.NO_IMPACT


def _finding(machines: _DeviatingMachines, reason: Reason, *, hurts: bool) -> Finding:
    """Return a finding about machines that deviate together.

    Args:
        machines: the machines.
        reason: the finding's reason.
        hurts: whether the job suffers.
    """
    chosen, slowdown, onset_ns = machines.chosen, machines.slowdown, machines.onset_ns
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
        common=common_component(machines.graph, {anomaly.component.name for anomaly in chosen}),
        seen_ns=max(anomaly.end_ns for anomaly in chosen),
        clears=tuple(anomaly.component for anomaly in chosen) if reason is Reason.HIGHER_WORKLOAD else (),
        is_harmless=slowdown is not None and slowdown.is_gone,
    )

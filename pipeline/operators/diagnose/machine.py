"""A machine whose metrics differ from its peers': is it at fault?

A counter that deviates is no fault by itself: the job must suffer. With step records that means
slower steps since the deviation began; without them the deviation must last. Many machines at once
are no machine's fault, unless they share one component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tocsin.models.pace import Slowdown, overdue_seconds
from tocsin.pipeline.operators.diagnose.common import common_component
from tocsin.pipeline.operators.diagnose.deviations import (
    SHOWN_METRICS,
    SILENT_FAMILIES,
    MachineRules,
    begin_ns,
    differs_now,
    evidence_of,
    families,
    family_of,
    lost_gpu,
    present_ratio,
    single_out,
    telling_of,
)
from tocsin.pipeline.operators.diagnose.hardware import VAGUE_CAUSES
from tocsin.pipeline.operators.diagnose.pace import Pace
from tocsin.pipeline.operators.diagnose.patterns import cause_of_metrics
from tocsin.pipeline.operators.diagnose.standing import find_stopped_alone, jammed, since_standing, steps_go_on
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.peer_words import DETECTOR
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind, Suspect

_STEADY_METRICS = frozenset(
    {
        "gpu_sm_clock_hertz",
        "pfc_tx_packets_per_second",
        "ecn_packets_per_second",
        "cnp_packets_per_second",
        "cpu_util_ratio",
        "rdma_bytes_per_second",
    }
)
_STEADY_SIGMAS = 4.0
_FAR_SIGMAS, _FAR_METRIC_COUNT = 8.0, 2
_SEEN_WITHIN_NS = 30 * NS_PER_SECOND
"""A deviation is known so long after it began."""
_FADED_SCORE = 0.5
"""Of the alarm line: two windows without a sign of it."""
_LATE_NS, _LATE_STEP_COUNT = 15 * NS_PER_SECOND, 2.5
"""Whatever makes a job slower shows on its machine by then; windows and sums take a while."""
_EARLY_SHARE_RATIO = 0.2
"""A job that was slower by no more than this share of how much it is now was not slower yet."""
_WEAK_RATIO = 0.1
"""By less than this a job does less work every day, and on one of many machines something else is at work: where a CPU
is all that differs, and no steps tell since when they take longer, the one does not explain the other."""
_OWN_SHARE_RATIO = 0.3
"""From this share of the steps' growth on, a machine's own time explains it."""


@dataclass(slots=True)
class Cleared:
    """Deviations that were seen not to hurt: they are not why the job is slower later.

    Attributes:
        since_ns: host -> begin of the deviation that was cleared; its negative where it was only forgiven.
    """

    since_ns: dict[str, int] = field(default_factory=dict)

    def judge(self, anomalies: Sequence[Anomaly], now_ns: int, pace: Pace, rules: MachineRules) -> list[Anomaly]:
        """The anomalies that may still be why; the others are remembered until they end."""
        begins = {anomaly.component.name: begin_ns(anomaly) for anomaly in anomalies}
        self.since_ns = {
            host: since_ns for host, since_ns in self.since_ns.items() if abs(since_ns) == begins.get(host, 0)
        }
        after_ns = max(rules.cleared_after_ns, rules.cleared_step_count * pace.median_step_ns)
        for anomaly in anomalies:
            since_ns, known_ns = begin_ns(anomaly), self.since_ns.get(anomaly.component.name)
            if now_ns - since_ns < after_ns or known_ns == since_ns:
                continue
            slowdown = pace.slowdown_since(since_ns - rules.before_onset_ns, now_ns)
            if slowdown is None:
                continue
            if known_ns is not None and _is_no_pause(slowdown) and differs_now(anomaly):
                del self.since_ns[anomaly.component.name]
            elif slowdown.is_gone and slowdown.is_known and not slowdown.is_likely:
                self.since_ns[anomaly.component.name] = since_ns
        return [anomaly for anomaly in anomalies if anomaly.component.name not in self.since_ns]

    def remember(self, anomalies: Sequence[Anomaly], reason: Reason, now_ns: int, pace: Pace) -> None:
        """Remember what ``_why_not`` said of these.

        What began as the job went over to other work is not why the steps stopped. Whoever still differs a minute later
        in a job that trains again, and slower than before, is forgiven no more.
        """
        if reason is not Reason.OTHER_WORK:
            self.since_ns.update({anomaly.component.name: begin_ns(anomaly) for anomaly in anomalies})
            return
        overdue_ns = round(overdue_seconds(pace.median_step_ns / NS_PER_SECOND) * NS_PER_SECOND)
        for anomaly in anomalies:
            if begin_ns(anomaly) >= now_ns - overdue_ns - _SEEN_WITHIN_NS:
                self.since_ns.setdefault(anomaly.component.name, -begin_ns(anomaly))


def _is_no_pause(slowdown: Slowdown) -> bool:
    return slowdown.is_certain and slowdown.ratio != float("inf")


def find_machine(  # what is known, and what is remembered
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: Pace, rules: MachineRules, cleared: Cleared
) -> tuple[list[Finding], list[Reason]]:
    """Explain the peer anomalies that hold now; reasons where one is not worth a verdict."""
    if pace.standing_since_ns and steps_go_on(graph, pace) and (ports := jammed(anomalies)):
        anomalies = ports
    elif pace.standing_since_ns:
        found, reasons = find_stopped_alone(graph, now_ns, since_standing(anomalies, pace, rules), pace, rules)
        return found, reasons
    telling = telling_of(anomalies, rules)
    if not telling:
        fading = [_still_differs(anomaly) for anomaly in anomalies if _fades(anomaly)]
        return fading, [Reason.NO_IMPACT] if anomalies else []
    open_ones = cleared.judge(telling, now_ns, pace, rules)
    chosen = single_out(graph, open_ones or telling, rules)
    if not chosen:
        return [], [Reason.AMBIGUOUS]
    onset_ns = min(begin_ns(anomaly) for anomaly in chosen)
    # By the evidence, not by the clock: what one window of 25 s showed has not lasted because the next one is not over.
    lasted_ns = max(anomaly.end_ns for anomaly in chosen) - onset_ns
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    if slowdown is not None and (reason := _why_not(graph, chosen, onset_ns, slowdown, pace)):
        cleared.remember(open_ones, reason, now_ns, pace)
        return [], [reason]
    # Steps that are too few yet to tell before from after will tell.
    few_steps_ns = rules.undecided_ns if _is_overwhelming(chosen) else rules.few_steps_ns
    lasting_ns = few_steps_ns if pace.median_step_ns else rules.lasting_ns
    if slowdown is None and (lasted_ns < lasting_ns or present_ratio(chosen[0]) < rules.steady_ratio):
        return [], [Reason.NOT_CONTINUOUS]
    if _is_undecided(slowdown, pace) and lasted_ns >= rules.undecided_ns and _is_steady(chosen, rules):
        slowdown = None
    hurts = (
        bool(open_ones)
        and lasted_ns > max(_one_stall_ns(graph, chosen, pace), _one_step_ns(slowdown))
        and _hurts(chosen, slowdown, pace, lasted_ns, rules)
    )
    if not hurts and not _is_loud(chosen):
        return [], [Reason.NO_IMPACT]
    if hurts and _is_weak(chosen) and not _lasts(chosen, lasted_ns, graph, pace, rules):
        return [], [Reason.NOT_CONTINUOUS]
    holding = [_still_differs(anomaly) for anomaly in open_ones if anomaly not in chosen]
    return [_finding(graph, chosen, onset_ns, slowdown, hurts=hurts, sure_ns=rules.sure_ns), *holding], []


def _hurts(
    chosen: Sequence[Anomaly], slowdown: Slowdown | None, pace: Pace, lasted_ns: int, rules: MachineRules
) -> bool:
    """Whether the job suffers from it: for sure, or likely where something tells of it all the time."""
    if slowdown is None:
        return _is_loud(chosen)
    if _is_weak(chosen) and not slowdown.step_count and slowdown.ratio < _WEAK_RATIO:
        return False
    steady = not _is_weak(chosen) and lasted_ns >= rules.undecided_ns and _is_steady(chosen, rules)
    return (slowdown.is_certain or (steady and slowdown.is_likely)) and _explains(chosen, slowdown, pace)


def _window_ns(graph: JobGraph, chosen: Sequence[Anomaly]) -> int:
    """The length of a metric window of theirs: one alone accuses nobody, however long it is.

    Of thousands of machines whose steps end at other places in a window of 25 s some lie far out in one of them.
    """
    return max((graph.hosts[a.component.name].beat_ns for a in chosen if a.component.name in graph.hosts), default=0)


def _one_stall_ns(graph: JobGraph, chosen: Sequence[Anomaly], pace: Pace) -> int:
    """How long one hiccup of theirs may show: in two windows, without step records to tell that it was one step."""
    return (1 if pace.median_step_ns else 2) * _window_ns(graph, chosen)


def _late_ns(graph: JobGraph, hosts: Sequence[str], pace: Pace) -> int:
    """How much later than what makes the job slower, or earlier than that, something is that has not to do with it."""
    windows = [graph.hosts[host].beat_ns for host in hosts if host in graph.hosts]
    return max(_LATE_NS, round(_LATE_STEP_COUNT * pace.median_step_ns), 2 * max(windows, default=0))


def _why_not(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown, pace: Pace
) -> Reason | None:
    """Why these cannot be the cause of that slowdown; None: they can."""
    if slowdown.ratio == float("inf") and pace.work_goes_on:
        return Reason.OTHER_WORK  # own levels were learned while it trained: they say nothing of this
    return Reason.NO_IMPACT if _came_later(graph, chosen, onset_ns, slowdown, pace) else None


def _came_later(graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown, pace: Pace) -> bool:
    """Whether the job was as fast as ever when these had differed for a while: they are not why it is slow now."""
    if not slowdown.is_certain or slowdown.ratio == float("inf"):
        return False
    late_ns = _late_ns(graph, [anomaly.component.name for anomaly in chosen], pace)
    if max(anomaly.end_ns for anomaly in chosen) - onset_ns < 3 * late_ns:
        return False
    early = pace.slowdown_since(onset_ns + late_ns // 2, onset_ns + 2 * late_ns)
    return early is not None and early.is_known and early.ratio < _EARLY_SHARE_RATIO * slowdown.ratio


def _one_step_ns(slowdown: Slowdown | None) -> int:
    """How long one late start may show where a single step tells that the job is slower: no longer than that step."""
    return round(slowdown.step_seconds * NS_PER_SECOND) if slowdown is not None and slowdown.step_count == 1 else 0


def _is_loud(chosen: Sequence[Anomaly]) -> bool:
    return any(families(anomaly) - SILENT_FAMILIES for anomaly in chosen)


def _is_weak(chosen: Sequence[Anomaly]) -> bool:
    """Whether a CPU alone speaks for it."""
    return all(families(anomaly) - SILENT_FAMILIES == {"cpu"} for anomaly in chosen)


def _lasts(chosen: Sequence[Anomaly], lasted_ns: int, graph: JobGraph, pace: Pace, rules: MachineRules) -> bool:
    """Whether it has gone on for longer than a daemon runs, which may lie on both sides of a window's end."""
    shown = pace.own_excess_seconds(chosen[0].component.name) is not None
    cpu_lasting_ns = rules.cpu_lasting_ns if shown else 2 * rules.cpu_lasting_ns
    return lasted_ns >= cpu_lasting_ns and lasted_ns > 2 * _window_ns(graph, chosen)


def _is_undecided(slowdown: Slowdown | None, pace: Pace) -> bool:
    """Whether nobody can say if the job is slower: no step records, and the work per second varies too much."""
    return slowdown is not None and not pace.median_step_ns and not slowdown.is_certain and not slowdown.is_gone


def _is_overwhelming(chosen: Sequence[Anomaly]) -> bool:
    """Whether several things differ by far, and all the time: a clock held at half, and the power with it."""
    return any(
        sum(
            family_of(metric) not in SILENT_FAMILIES
            and metric["score"] >= 1.0
            and metric.get("sigmas", 0.0) >= _FAR_SIGMAS
            for metric in anomaly.detail["metrics"]
        )
        >= _FAR_METRIC_COUNT
        for anomaly in chosen
    )


def _is_steady(chosen: Sequence[Anomaly], rules: MachineRules) -> bool:
    """Whether something differs most of the time that does not follow the phases of a step.

    Steps longer than a window show in most metrics as ups and downs, at other times on other machines; a burst of
    packets or of a daemon's CPU in the midst of them is nothing steady.
    """
    return any(
        metric["metric"] in _STEADY_METRICS
        and metric["present_ratio"] >= rules.steady_ratio
        and metric.get("sigmas", 0.0) >= _STEADY_SIGMAS
        and anomaly.end_ns - metric["since_ns"] >= rules.lasting_ns
        for anomaly in chosen
        for metric in anomaly.detail["metrics"]
    )


def _explains(chosen: Sequence[Anomaly], slowdown: Slowdown, pace: Pace) -> bool:
    """Whether what these hosts show can be why the steps are slower: their own time, or a link of theirs."""
    if slowdown.ratio == float("inf") or any({"link", "congestion"} & families(anomaly) for anomaly in chosen):
        return True
    excesses = [pace.own_excess_seconds(anomaly.component.name) for anomaly in chosen]
    known = [excess for excess in excesses if excess is not None]
    growth = slowdown.step_seconds - slowdown.before_seconds
    return not known or max(known) >= _OWN_SHARE_RATIO * growth


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
        replace(finding, cause="gpu_card_drop")
        if finding.cause in seen and lost & {suspect.component.name for suspect in finding.suspects}
        else finding
        for finding in findings
    ]


def _finding(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown | None, *, hurts: bool, sure_ns: int
) -> Finding:
    metrics = [metric for anomaly in chosen for metric in anomaly.detail["metrics"]]
    suspects = [Suspect(anomaly.component) for anomaly in chosen]
    evidence = [evidence_of(anomaly, metric) for anomaly in chosen for metric in anomaly.detail["metrics"]]
    if slowdown is not None:
        evidence.append(_pace_evidence(slowdown, onset_ns, chosen[0].end_ns))
    if slowdown is None:
        reason, confidence = Reason.METRICS_DIFFER, 0.7
    elif hurts:
        reason, confidence = Reason.METRICS_DIFFER_STEPS_SLOWER, 0.85
    else:
        reason, confidence = Reason.NO_IMPACT, 0.6
    return Finding(
        FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED,
        cause_of_metrics(metrics),
        tuple(suspects),
        onset_ns,
        confidence,
        reason,
        tuple(evidence[:SHOWN_METRICS] + evidence[-1:] if len(evidence) > SHOWN_METRICS else evidence),
        common=common_component(graph, {anomaly.component.name for anomaly in chosen}),
        seen_ns=max(anomaly.end_ns for anomaly in chosen),
        tentative=max(anomaly.end_ns for anomaly in chosen) - onset_ns < sure_ns,
        is_harmless=slowdown is not None and slowdown.is_gone,
    )


def _pace_evidence(slowdown: Slowdown, onset_ns: int, end_ns: int) -> Evidence:
    if slowdown.ratio == float("inf"):
        text = f"no step has ended in time since (usually {slowdown.before_seconds:.3g} s each)"
        return Evidence("steps", "step_seconds", 2.0, onset_ns, end_ns, text, peer_value=slowdown.before_seconds)
    text = f"the job's steps take {slowdown.step_seconds:.3g} s since then, before {slowdown.before_seconds:.3g} s"
    score = 1.0 + max(0.0, slowdown.ratio) if slowdown.is_certain else max(0.0, min(0.99, slowdown.ratio))
    return Evidence(
        "steps",
        "step_seconds",
        score,
        onset_ns,
        end_ns,
        text,
        suspect_value=slowdown.step_seconds,
        peer_value=slowdown.before_seconds,
    )


def began_later(graph: JobGraph, slow: Sequence[Finding], machine: Sequence[Finding], pace: Pace) -> list[Finding]:
    """What the metrics name, less whoever began to differ when the job had been slower for a while: that is not why.

    Of a hundred machines one or the other always differs for half a minute in a job with long steps.
    """
    if not slow or any(finding.suspects for finding in slow):
        return list(machine)
    slower_ns = min(finding.onset_ns for finding in slow)
    found = []
    for finding in machine:
        late_ns = _late_ns(graph, [suspect.component.name for suspect in finding.suspects], pace)
        is_late = finding.onset_ns > slower_ns + late_ns
        if not is_late or finding.reason is not Reason.METRICS_DIFFER_STEPS_SLOWER:
            found.append(finding)
    return found


def join(slow: Sequence[Finding], machine: Sequence[Finding]) -> list[Finding]:
    """Steps say whom the others wait for: where they name a host, the metrics only add why.

    What the steps lay to the data, the loaders or the workload is no machine's fault, whatever
    its metrics show; where they only see that the job is slower, the metrics may name who. How slow
    it was does not matter where it stands.
    """
    if not slow:
        return list(machine)
    if all(finding.only_holds for finding in machine):
        return [*slow, *machine]
    if any(finding.fault is FaultKind.HANG for finding in machine):
        return [*machine, *slow]
    named = [finding for finding in slow if finding.suspects]
    if not named:
        explained = [finding for finding in slow if finding.cause != "unknown"]
        return explained or list(machine)
    joined = []
    for finding in named:
        same = [m for m in machine if m.suspects and m.suspects[0].component == finding.suspects[0].component]
        if same and finding.fault is FaultKind.FAIL_SLOW:
            # A loader that is slow because the host's storage is: the metric says more than the phase.
            said = same[0].cause == "hdfs_error" or finding.cause == "unknown"
            cause = same[0].cause if said else finding.cause
            confidence = min(0.98, finding.confidence + 0.1)
            evidence = (*finding.evidence, *same[0].evidence)[: SHOWN_METRICS + 2]
            joined.append(replace(finding, cause=cause, confidence=confidence, evidence=evidence))
        else:
            joined.append(finding)
    return joined

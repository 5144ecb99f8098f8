"""The machine that is not where the others wait, in a job whose machines stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.patterns import cause_of_metrics
from tocsin.pipeline.rca.rules.deviations import (
    FAMILIES,
    SHOWN_METRICS,
    SILENT_FAMILIES,
    MachineRules,
    differs_now,
    evidence_of,
    families,
    lost_gpu,
    present_ratio,
    reported_metrics,
    single_out,
)
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind, Suspect

_GPU_IDLE = frozenset({"gpu_util_ratio", "gpu_sm_active_ratio", "gpu_graphics_active_ratio"})
_NOTHING_RATIO = 0.02
"""Share of the waiting peers' mean below which none of a machine's GPUs does anything."""
_CUT_OFF_RATIO = 0.02
"""Share of the waiting peers' TCP traffic below which a machine is cut off from the network."""
_ILL_FAMILY_COUNT = 2
"""Metric families in which a failing machine deviates.

A machine that deviates in one harmless way goes on doing so when another one breaks.
"""
_STEPS_AFTER_COUNT = 2
"""Steps after the begin of a standstill that were under way then; windows and clocks are not exact."""
_LATE_HOST_COUNT = 2
"""Machines that deviate late in the same way; one may be chance."""
_UTIL, _FAR_SIGMAS, _FAR_BELOW_RATIO, _SPINNING_RATIO = "gpu_util_ratio", 8.0, 0.7, 0.7
"""An idle machine beside spinning ones: metric, deviation in sigmas, share of the expected value, expected value.

Kernels that wait in a collective keep a GPU busy (0.9 and more). Where all machines wait for data, all are idle.
"""
_IDLE_SIGMAS, _ONE_IDLE_RATIO = 20.0, 0.9
"""One idle GPU of eight beside spinning ones: deviation in sigmas and share of the expected value.

Such a machine lacks an eighth of its expected value, which was 53 sigmas.
"""
_PFC = "pfc_tx_packets_per_second"
_BUSY_FAMILIES = frozenset({"cpu", "memory", "congestion", "link"})


def still_stalled(pace: JobProgress, now_ns: int) -> Finding:
    """Return a finding that the machines stand, which opens no verdict and keeps open ones."""
    since_ns = pace.stalled_since_ns
    text = f"the machines do no work for {(now_ns - since_ns) / 1e9:.0f} s"
    evidence = Evidence("peers", "work", 1.0, since_ns, now_ns, text)
    reason = Reason.JOB_STALLED_UNEXPLAINED
    return Finding(FaultKind.HANG, "unknown", (), since_ns, 0.5, reason, (evidence,), only_holds=True)


def reported_as_unexplained(graph: JobGraph, now_ns: int, pace: JobProgress, rules: MachineRules) -> bool:
    """Return whether an unexplained standstill is a finding: longer than pauses are, and its processes live.

    Processes live and wait where GPUs hold memory and draw little power. Without such metrics the result is False.
    """
    since_ns, waits_ns = pace.stalled_since_ns, pace.processes_wait_since_ns
    longest_ns = max(pace.longest_stall_ns, pace.longest_pause_ns)
    return (
        bool(waits_ns)
        and now_ns - max(since_ns, waits_ns) >= max(rules.unexplained_ns, int(2 * rules.learned_factor * longest_ns))
        and not still_progressing(graph, pace)
        and not graph.in_announced_phase(since_ns, now_ns)
    )


def elsewhere(anomalies: Sequence[Anomaly]) -> set[str]:
    """Return the one host whose GPUs idle far below the others' in a standstill; empty where there are several."""
    far = {
        anomaly.component.name
        for anomaly in anomalies
        if (anomaly.detail.get("standing") or anomaly.detail.get("leaning"))
        and any(
            metric["metric"] in _GPU_IDLE and metric.get("sigmas", 0.0) >= _IDLE_SIGMAS
            for metric in anomaly.detail["metrics"]
        )
    }
    return far if len(far) == 1 else set()


def since_stalled(anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules) -> list[Anomaly]:
    """Return one anomaly per host of the machines that deviate since the standstill began.

    A later deviation does not explain the standstill.

    Args:
        anomalies: anomalies of the machines' metrics.
        pace: the job's progress.
        rules: settings.
    """
    since_ns = pace.stalled_since_ns
    stalled: list[Anomaly] = []
    late: list[Anomaly] = []
    working, early_dips, before = [], [], []
    for anomaly in anomalies:
        near = abs(anomaly.start_ns - since_ns) <= rules.stalled_ns
        if anomaly.detail.get("standing"):
            known = anomaly.start_ns <= pace.stalled_known_ns + rules.stalled_ns
            (stalled if known else late).append(anomaly)
        elif anomaly.detail.get("leaning"):
            if 0 <= since_ns - anomaly.start_ns <= rules.early_dip_ns:
                early_dips.append(anomaly)
        elif near and families(anomaly) - SILENT_FAMILIES and not _was_over(anomaly, since_ns):
            working.append(anomaly)
        elif _differed_until(anomaly, since_ns, rules):
            before.append(replace(anomaly, detail={**anomaly.detail, "leaning": True}))
    stalled = [anomaly for anomaly in stalled if not _differs_as_late_ones(anomaly, late, rules)]
    named = {anomaly.component.name: anomaly for anomaly in (*working, *stalled)}
    fell = {anomaly.component.name for anomaly in early_dips if not _only_busy(anomaly)} & named.keys()
    if len(fell) == 1 and len(named) > 1:
        return [named[fell.pop()]]  # of those that differ since this one fell first, too
    if before:  # who was ill until the job stopped tells more than who fell first
        return [*named.values(), *before]
    return [*named.values(), *(anomaly for anomaly in early_dips if anomaly.component.name not in named)]


def _was_over(anomaly: Anomaly, since_ns: int) -> bool:
    """Return whether a machine deviated in one way, and no more when the job came to stand."""
    return anomaly.end_ns <= since_ns and not differs_now(anomaly) and not _is_ill(anomaly)


def _differs_as_late_ones(anomaly: Anomaly, late: Sequence[Anomaly], rules: MachineRules) -> bool:
    """Return whether a short deviation recurs as several machines begin to deviate alike: their data come in turn."""
    ways = _ways_of(anomaly)
    alike = [other for other in late if ways & _ways_of(other)]
    return len(alike) >= _LATE_HOST_COUNT and present_ratio(anomaly) < rules.steady_ratio


def _ways_of(anomaly: Anomaly) -> set[tuple[str, str]]:
    """Return the metrics that deviate, each with its direction."""
    return {(metric["metric"], metric["direction"]) for metric in reported_metrics(anomaly)}


def _differed_until(anomaly: Anomaly, since_ns: int, rules: MachineRules) -> bool:
    """Return whether a machine deviated in several ways, for minutes at most, until the job stopped."""
    ended_ns = since_ns - anomaly.end_ns
    return (
        _is_ill(anomaly)
        and -rules.early_dip_ns <= ended_ns <= rules.stalled_ns
        and 0 < since_ns - anomaly.start_ns <= rules.ill_ns
    )


def _is_ill(anomaly: Anomaly) -> bool:
    """Return whether a machine deviates in several metric families."""
    return len(families(anomaly) - SILENT_FAMILIES) >= _ILL_FAMILY_COUNT


def _ailed(anomaly: Anomaly) -> bool:
    """Return whether a machine deviated in several metric families while the job still worked."""
    return not anomaly.detail.get("standing") and _is_ill(anomaly)


def _only_busy(anomaly: Anomaly) -> bool:
    """Return whether a machine is only busier than those that wait.

    It may write a checkpoint, or other traffic may congest its port.
    """
    return all(_is_busier(metric) for metric in anomaly.detail["metrics"])


def _was_busy(anomaly: Anomaly) -> bool:
    """Return whether a machine was busier than the others and is no more, such as after a checkpoint.

    Its GPUs may have rested meanwhile, while those of the others waited in a collective.
    """
    reported = reported_metrics(anomaly)
    return bool(reported) and all(_is_busier(metric) for metric in reported) and not differs_now(anomaly)


def _is_busier(metric: Mapping[str, Any]) -> bool:
    """Return whether a metric shows more load than the peers have."""
    return metric["direction"] == "high" and FAMILIES.get(metric["metric"]) in _BUSY_FAMILIES


def cause_of(anomaly: Anomaly) -> str:
    """Return the cause why a machine is not where the others wait, mostly ``unknown``."""
    if lost_gpu(anomaly):
        return "gpu_card_drop"
    metrics = anomaly.detail["metrics"]
    if cause_of_metrics(metrics) == "hdfs_error" or _stalled_in_io(anomaly):
        return "hdfs_error"
    return "machine_unreachable" if any(_is_cut_off(metric) for metric in metrics) else "unknown"


def _stalled_in_io(anomaly: Anomaly) -> bool:
    """Return whether all of a machine's processes live and do nothing: they wait in input and output together.

    A failed kernel stops one GPU only. A process that ended frees its memory. A machine that is gone sends no samples.
    """
    quiet = {
        str(metric["metric"])
        for metric in anomaly.detail["metrics"]
        if metric["direction"] == "low" and metric.get("value", 1.0) <= _NOTHING_RATIO * metric.get("expected", 0.0)
    }
    low = {str(metric["metric"]) for metric in anomaly.detail["metrics"] if metric["direction"] == "low"}
    return bool(anomaly.detail.get("holds_memory")) and bool(_GPU_IDLE & quiet) and "cpu_util_ratio" in low


def _is_cut_off(metric: Mapping[str, Any]) -> bool:
    """Return whether a machine has nearly no TCP traffic while its peers have some."""
    value, expected = metric.get("value"), metric.get("expected")
    known = metric["metric"] == "tcp_bytes_per_second" and value is not None and bool(expected)
    return known and float(value or 0.0) < _CUT_OFF_RATIO * float(expected or 0.0)


def still_progressing(graph: JobGraph, pace: JobProgress) -> bool:
    """Return whether the job still makes steps though its machines seem to stand.

    Steps of three times the usual length leave a third of the work per second.
    """
    since_ns = pace.stalled_since_ns
    return bool(pace.median_step_ns) and graph.progress_ns > since_ns + _STEPS_AFTER_COUNT * pace.median_step_ns


def congested(anomalies: Sequence[Anomaly]) -> list[Anomaly]:
    """Return the anomalies of machines whose own port is congested, reduced to that metric.

    They tell in a slow job, too. Other deviations among machines that wait most of the time may be how they wait.
    """
    return _only(anomalies, lambda _, metric: metric["metric"] == _PFC)


def idle_among_spinning(anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """Return the anomaly of the one machine whose GPUs idle all the time while those of all others spin.

    The others wait for it, in a job so slow that its machines seem to stand. The result is empty where several idle.
    """
    found = _only(
        anomalies,
        lambda anomaly, metric: (
            _is_far_below(metric, rules) and anomaly.end_ns - metric["since_ns"] >= rules.stalled_ns
        ),
    )
    return found if len(found) == 1 else []


def idle_since(hang: Finding, anomalies: Sequence[Anomaly], now_ns: int, rules: MachineRules) -> Finding | None:
    """Return a finding about the one machine with an idle GPU since a hang began; None: there is none, or several.

    The collectives show that all ranks wait, and not for which one: that rank entered no collective. A machine that is
    busier than the others meanwhile (it writes a checkpoint) is left out.

    Args:
        hang: the finding about the hang, without suspects.
        anomalies: anomalies of the machines' metrics.
        now_ns: the slice's end.
        rules: settings.
    """
    found = [
        anomaly
        for anomaly in anomalies
        if abs(anomaly.start_ns - hang.onset_ns) <= rules.fresh_ns
        and now_ns - anomaly.end_ns <= rules.fresh_ns
        and all(metric["direction"] == "low" for metric in reported_metrics(anomaly))
        and any(_idles_for_long(anomaly, metric, rules) for metric in reported_metrics(anomaly))
    ]
    if len(found) != 1 or now_ns - hang.onset_ns < rules.stalled_ns:
        return None
    evidence = tuple(evidence_of(found[0], metric) for metric in found[0].detail["metrics"][:SHOWN_METRICS])
    return replace(
        hang,
        suspects=(Suspect(found[0].component),),
        confidence=0.75,
        reason=Reason.DIFFERS_WHILE_JOB_STALLED,
        evidence=(*evidence, *hang.evidence),
        tentative=now_ns - hang.onset_ns < rules.sure_stalled_ns,
    )


def _idles_for_long(anomaly: Anomaly, metric: Mapping[str, Any], rules: MachineRules) -> bool:
    """Return whether a metric shows that at least one GPU of eight idled all the time."""
    return (
        _is_low(metric, rules, _IDLE_SIGMAS, _ONE_IDLE_RATIO)
        and anomaly.end_ns - metric["since_ns"] >= rules.stalled_ns
    )


def _only(anomalies: Sequence[Anomaly], tells: Callable[[Anomaly, Mapping[str, Any]], bool]) -> list[Anomaly]:
    """Return the anomalies of standing machines, reduced to the metrics for which ``tells`` holds."""
    found = []
    for anomaly in anomalies:
        reported = [metric for metric in reported_metrics(anomaly) if tells(anomaly, metric)]
        if reported and anomaly.detail.get("standing"):
            detail = {key: value for key, value in anomaly.detail.items() if key != "standing"}
            found.append(replace(anomaly, metric=reported[0]["metric"], detail={**detail, "metrics": reported}))
    return found


def _is_far_below(metric: Mapping[str, Any], rules: MachineRules) -> bool:
    """Return whether a metric shows a machine whose GPUs idle while those of its peers spin."""
    return _is_low(metric, rules, _FAR_SIGMAS, _FAR_BELOW_RATIO)


def _is_low(metric: Mapping[str, Any], rules: MachineRules, sigmas: float, ratio: float) -> bool:
    """Return whether GPU use is steadily below a share of what spinning peers have, by so many sigmas."""
    return bool(
        metric["metric"] == _UTIL
        and metric["direction"] == "low"
        and metric.get("sigmas", 0.0) >= sigmas
        and metric["present_ratio"] >= rules.steady_ratio
        and metric.get("expected", 0.0) >= _SPINNING_RATIO
        and metric.get("value", 1.0) <= ratio * metric.get("expected", 0.0)
    )


def _elsewhere_alone(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], rules: MachineRules, *, may_be_busy: bool
) -> list[Anomaly]:
    """Return the anomalies of the machines that are not where the others wait.

    Args:
        graph: the job.
        now_ns: the slice's end.
        anomalies: anomalies of the machines since the job stands.
        rules: settings.
        may_be_busy: whether a machine that is only busier may still write a checkpoint.
    """
    early_dips = [anomaly for anomaly in anomalies if anomaly.detail.get("leaning") and not _only_busy(anomaly)]
    anomalies = [anomaly for anomaly in anomalies if not anomaly.detail.get("leaning")]
    busy = [anomaly for anomaly in anomalies if _only_busy(anomaly) or _was_busy(anomaly)]
    if not may_be_busy:
        busy = [anomaly for anomaly in busy if not differs_now(anomaly)]
    anomalies = [anomaly for anomaly in anomalies if anomaly not in busy]
    if busy:
        # The busy machine may be the one. Beside it an early dip, or a short deviation in one way, says little.
        names = {anomaly.component.name for anomaly in busy}
        anomalies = [a for a in anomalies if differs_now(a) or _ailed(a) or now_ns - a.end_ns < rules.fresh_ns]
        early_dips = [anomaly for anomaly in early_dips if anomaly.component.name in names]
    return single_out(graph, anomalies or early_dips, rules) if anomalies or early_dips else []


def find_stopped_alone(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules
) -> tuple[list[Finding], list[Reason]]:
    """Return a finding about the one machine that is not where the others wait, or the reason why there is none.

    Args:
        graph: the job.
        now_ns: the slice's end.
        anomalies: anomalies of the machines since the standstill began.
        pace: the job's progress.
        rules: settings.
    """
    since_ns = pace.stalled_since_ns
    patience_ns = max(rules.stalled_ns, int(rules.learned_factor * pace.longest_stall_ns))
    patience_ns = min(patience_ns, rules.max_patience_ns)
    if not since_ns or now_ns - since_ns < patience_ns:
        return [], [Reason.WITHIN_PATIENCE]
    if still_progressing(graph, pace):
        return [], [Reason.STILL_PROGRESSING]
    stalled_ns = now_ns - since_ns
    may_be_busy = stalled_ns < max(rules.busy_ns, 2 * patience_ns)
    chosen = _elsewhere_alone(graph, now_ns, anomalies, rules, may_be_busy=may_be_busy)
    if len(chosen) != 1:
        return [], [Reason.AMBIGUOUS]
    metrics = chosen[0].detail["metrics"]
    still = still_stalled(pace, now_ns).evidence
    evidence = (*(evidence_of(chosen[0], metric) for metric in metrics[:SHOWN_METRICS]), *still)
    sure_ns = rules.sure_busy_ns if _only_busy(chosen[0]) else rules.sure_stalled_ns
    finding = Finding(
        FaultKind.HANG,
        cause_of(chosen[0]),
        (Suspect(chosen[0].component),),
        since_ns,
        0.75,
        Reason.DIFFERS_WHILE_JOB_STALLED,
        evidence,
        tentative=stalled_ns < max(sure_ns, 2 * patience_ns) or now_ns - chosen[0].end_ns > rules.fresh_ns,
        is_soft=stalled_ns < rules.restart_ns,
    )
    return [finding], []

"""Rules for a congested leaf switch or minipod that slows the job.

A leaf is named with its machines, and none of them is taken away. A minipod whose leaves are all alike is no part that
is broken: the job is placed so that its traffic meets there, and no machine is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.leaf_congestion import SWITCHES
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.pace_evidence import pace_evidence
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind, Suspect

_SHARED_CAUSES = ("unknown", "workload_change")
"""Causes that step times suggest where all ranks wait for one network: a slower job, or ranks that all compute
longer."""


@dataclass(frozen=True, slots=True)
class SwitchRules:
    """Thresholds of the rule.

    Attributes:
        lasting_ns: shortest congestion that is reported.
        sure_ns: shortest congestion that is confirmed.
        before_ns: how long before the detected congestion steps may have slowed: a metric slice.
        fresh_ns: age from which on the last observation of the congestion is too old.
        least_ratio: least growth of the step time.
    """

    lasting_ns: int = 20 * NS_PER_SECOND
    sure_ns: int = 40 * NS_PER_SECOND
    before_ns: int = 5 * NS_PER_SECOND
    fresh_ns: int = 20 * NS_PER_SECOND
    least_ratio: float = 0.05


def find_switch(now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: SwitchRules) -> Finding | None:
    """Return a finding about the one congested leaf switch in a job that has been slower since.

    None where no switch or several are congested, or the job is not certainly slower.
    """
    return _find_only(ComponentKind.LEAF, now_ns, anomalies, pace, rules)


def find_minipod(now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: SwitchRules) -> Finding | None:
    """Return a finding about the one congested minipod in a job that spans others and has been slower since.

    None where no minipod or several are congested, or the job is not certainly slower.
    """
    return _find_only(ComponentKind.MINIPOD, now_ns, anomalies, pace, rules)


def _find_only(
    kind: ComponentKind, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: SwitchRules
) -> Finding | None:
    """Return a finding about the only congested component of a kind, if the job has been slower since."""
    congested = [one for one in anomalies if one.detector == SWITCHES and one.component.kind is kind]
    if len(congested) != 1:
        return None
    anomaly = congested[0]
    if anomaly.end_ns - anomaly.start_ns < rules.lasting_ns or now_ns - anomaly.end_ns > rules.fresh_ns:
        return None
    slowdown = pace.slowdown_since(anomaly.start_ns - rules.before_ns, now_ns)
    if slowdown is None or not slowdown.is_certain or not rules.least_ratio <= slowdown.ratio < float("inf"):
        return None
    finding = _finding(anomaly, slowdown, rules)
    return finding if kind is ComponentKind.LEAF else _of_minipod(finding, anomaly)


def _of_minipod(finding: Finding, anomaly: Anomaly) -> Finding:
    """Return the finding about a minipod, which accuses no machine, from that of a switch with the same hosts."""
    hosts, value, usual = (anomaly.detail[name] for name in ("hosts", "value", "expected"))
    text = (
        f"all {len(hosts)} hosts of {anomaly.component.name}, behind each of its leaves, send pause frames: "
        f"{value:.4g} a second, those of the job's other minipods {usual:.4g}"
    )
    evidence = (replace(finding.evidence[0], text=text), *finding.evidence[1:])
    no_machine = replace(finding, suspects=(), common=None, is_soft=False)
    return replace(no_machine, cause="placement", reason=Reason.MINIPOD_CONGESTED, evidence=evidence)


def merge_leaf(found: Sequence[Finding], switch: Finding | None) -> list[Finding]:
    """Return the findings, with that of the switch in place of those that name neither a machine nor another cause.

    Unchanged where there is no switch finding, or where some finding has suspects or a cause of its own. Findings that
    only keep verdicts open, or report a degraded part, are kept.
    """
    faults = [finding for finding in found if not finding.only_holds and finding.fault is not FaultKind.DEGRADED]
    if switch is None or any(finding.suspects or finding.cause not in _SHARED_CAUSES for finding in faults):
        return list(found)
    return [switch, *(finding for finding in found if finding not in faults)]


def _finding(anomaly: Anomaly, slowdown: Slowdown, rules: SwitchRules) -> Finding:
    """Return the fail-slow finding for a congested switch; its hosts are suspects, and the action is soft."""
    hosts: Sequence[str] = anomaly.detail["hosts"]
    value, usual = anomaly.detail["value"], anomaly.detail["expected"]
    text = (
        f"all {len(hosts)} hosts behind {anomaly.component.name} send pause frames: {value:.4g} a second, "
        f"the others {usual:.4g}; none behind the other switches of its minipod does"
    )
    return Finding(
        FaultKind.FAIL_SLOW,
        "unknown",
        tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts),
        anomaly.start_ns,
        0.8,
        Reason.PFC_CONGESTED,
        (
            Evidence(
                anomaly.detector,
                anomaly.metric,
                anomaly.score,
                anomaly.start_ns,
                anomaly.end_ns,
                text,
                suspect_value=value,
                peer_value=usual,
            ),
            pace_evidence(slowdown, anomaly.start_ns, anomaly.end_ns),
        ),
        common=anomaly.component,
        is_soft=True,  # the machines are healthy: it is the switch that somebody must look at
        seen_ns=anomaly.end_ns,
        tentative=anomaly.end_ns - anomaly.start_ns < rules.sure_ns,
    )

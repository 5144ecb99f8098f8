"""A leaf switch that is jammed with all that hangs on it, in a job that is slower since: it, and no machine, is why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.leaf_congestion import SWITCHES
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.pace_evidence import pace_evidence
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind, Suspect

_SHARED_CAUSES = ("unknown", "workload_change")
"""What steps say of a job in which all ranks wait for one network: that it is slower, or that all compute longer."""


@dataclass(frozen=True, slots=True)
class SwitchRules:
    """Settings.

    Attributes:
        lasting_ns: a jam must last so long.
        sure_ns: and so long until it is confirmed.
        before_ns: steps may have become slower so long before it was seen (a metric slice).
        fresh_ns: a jam that was last seen longer ago tells nothing.
        least_ratio: by so much the steps are longer since.
    """

    lasting_ns: int = 20 * NS_PER_SECOND
    sure_ns: int = 40 * NS_PER_SECOND
    before_ns: int = 5 * NS_PER_SECOND
    fresh_ns: int = 20 * NS_PER_SECOND
    least_ratio: float = 0.05


def find_switch(now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: SwitchRules) -> Finding | None:
    """The one switch that is jammed in a job that is slower since then; None: there is none, or are several."""
    told = [anomaly for anomaly in anomalies if anomaly.detector == SWITCHES]
    if len(told) != 1:
        return None
    jam = told[0]
    if jam.end_ns - jam.start_ns < rules.lasting_ns or now_ns - jam.end_ns > rules.fresh_ns:
        return None
    slowdown = pace.slowdown_since(jam.start_ns - rules.before_ns, now_ns)
    if slowdown is None or not slowdown.is_certain or not rules.least_ratio <= slowdown.ratio < float("inf"):
        return None
    return _finding(jam, slowdown, rules)


def merge_leaf(found: Sequence[Finding], switch: Finding | None) -> list[Finding]:
    """What else was found, and the switch where nothing of it names anybody or another reason."""
    told = [finding for finding in found if not finding.only_holds and finding.fault is not FaultKind.DEGRADED]
    if switch is None or any(finding.suspects or finding.cause not in _SHARED_CAUSES for finding in told):
        return list(found)
    return [switch, *(finding for finding in found if finding not in told)]


def _finding(jam: Anomaly, slowdown: Slowdown, rules: SwitchRules) -> Finding:
    hosts: Sequence[str] = jam.detail["hosts"]
    value, usual = jam.detail["value"], jam.detail["expected"]
    text = (
        f"all {len(hosts)} hosts behind {jam.component.name} send pause frames: {value:.4g} a second, "
        f"the others {usual:.4g}; none behind the other switches of its minipod does"
    )
    return Finding(
        FaultKind.FAIL_SLOW,
        "unknown",
        tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts),
        jam.start_ns,
        0.8,
        Reason.PFC_CONGESTED,
        (
            Evidence(
                jam.detector,
                jam.metric,
                jam.score,
                jam.start_ns,
                jam.end_ns,
                text,
                suspect_value=value,
                peer_value=usual,
            ),
            pace_evidence(slowdown, jam.start_ns, jam.end_ns),
        ),
        common=jam.component,
        is_soft=True,  # the machines are healthy: it is the switch that somebody must look at
        seen_ns=jam.end_ns,
        tentative=jam.end_ns - jam.start_ns < rules.sure_ns,
    )

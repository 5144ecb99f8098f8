"""Explains a slowdown of the whole job by its groups' transfers: all have become slower, or those across minipods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.models.step_causes import COMMUNICATION
from tocsin.models.transfers import SlowerGroups
from tocsin.pipeline.rca.evidence.network import NetworkTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, Evidence

PLACEMENT = "placement"


def explain_by_groups(findings: Sequence[Finding], steps: Sequence[Anomaly], network: NetworkTracker) -> list[Finding]:
    """Return the findings; a slowdown that names nobody and has no reason with the one that its transfers show.

    Once all members have come, transfers depend on links only. Where those of all groups that cross minipods have
    become slower, and those within one have not, the job lies where the way between minipods is too narrow. Where all
    groups have become slower, the network is.

    Args:
        findings: what was found so far.
        steps: anomalies of the job's steps.
        network: the groups' transfer times.
    """
    if not any(is_unexplained(one) for one in findings):
        return list(findings)
    job = [one for one in steps if one.metric == "step_seconds" and network.slows(one)]
    if not job or any(one.metric == "own_seconds" for one in steps):
        return list(findings)
    across = network.slower(lambda group: group.pod_count > 1)
    if across is not None and across.other_count:
        text = (
            f"transfers of groups across minipods ({across.count}) take {across.ratio:.1f} times as long as before or "
            f"more, those of the others ({across.other_count}) {across.other_ratio:.1f} times at most"
        )
        return [_explained(one, PLACEMENT, Reason.GROUPS_ACROSS_SLOW, across, text) for one in findings]
    everywhere = network.slower(lambda _group: True)
    if everywhere is None:
        return list(findings)
    text = f"transfers of all groups ({everywhere.count}) take {everywhere.ratio:.1f} times as long as before or more"
    return [_explained(one, COMMUNICATION, Reason.LONG_TRANSFERS, everywhere, text) for one in findings]


def is_unexplained(finding: Finding) -> bool:
    """Return whether a finding is a slowdown of the whole job, still there, of which nobody knows why."""
    is_open = finding.reason is Reason.JOB_WIDE_SLOWDOWN and finding.ends is None
    return is_open and finding.cause == "unknown" and not finding.suspects


def _explained(finding: Finding, cause: str, reason: Reason, slower: SlowerGroups, text: str) -> Finding:
    """Return a finding with its cause, if it has none."""
    if not is_unexplained(finding):
        return finding
    first = finding.evidence[0]
    told = Evidence("transfers", "communication_seconds", slower.ratio, first.start_ns, first.end_ns, text)
    return replace(finding, cause=cause, reason=reason, evidence=(told, *finding.evidence))

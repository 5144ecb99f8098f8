"""Findings of a slice as Decide takes them: their order, and whether the hosts that showed a fault still report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.incidents.incident import components, with_known_host
from tocsin.pipeline.incidents.proposed_action import STANDSTILL
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.silence import monitoring_ended
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect, Verdict


def heard(findings: Sequence[Finding], live: Sequence[Verdict]) -> list[Finding]:
    """Return the findings of a slice in the order in which they count.

    Lost numbers come first: processes that end without a word in the same slice belong to them. Two findings may tell
    the standstill of the same machines in two ways. Where one of them tells it as the live verdict does, the other
    only keeps the verdict alive; else the verdict would change twice in each slice.

    Args:
        findings: the explanations that hold at the end of the slice.
        live: open and confirmed verdicts.
    """
    known = [with_known_host(finding, live) for finding in findings]
    reported = [_story(verdict.fault, verdict.suspects) for verdict in live if verdict.fault in STANDSTILL]
    repeated = {
        story[1] for one in known if not one.only_holds and (story := _story(one.fault, one.suspects)) in reported
    }
    ordered = [replace(one, only_holds=True) if _is_second_word(one, repeated, reported) else one for one in known]
    return sorted(ordered, key=lambda one: one.fault is not FaultKind.SILENT_CORRUPTION)


def named_for_standstill(findings: Sequence[Finding]) -> set[Component]:
    """Return the components that findings name for a standstill."""
    return {
        suspect.component
        for finding in findings
        if finding.fault in STANDSTILL and not finding.only_holds
        for suspect in finding.suspects
    }


_Story = tuple[FaultKind, frozenset[Component]]


def _story(fault: FaultKind, suspects: Sequence[Suspect]) -> _Story:
    """Return the fault and the suspects' components."""
    return fault, frozenset(components(suspects))


def _is_second_word(finding: Finding, repeated: set[frozenset[Component]], reported: Sequence[_Story]) -> bool:
    """Return whether a finding tells otherwise what another one of the slice tells as the live verdict does.

    A certain finding (a process is dead) is no second word.

    Args:
        finding: the finding.
        repeated: suspects whose standstill is told as the verdict tells it.
        reported: fault and suspects of the live verdicts on standstills.
    """
    story = _story(finding.fault, finding.suspects)
    is_standstill = finding.fault in STANDSTILL and bool(finding.suspects)
    return is_standstill and not finding.certain and story not in reported and story[1] in repeated


def is_source_mute(graph: JobGraph, verdict: Verdict, since_ns: int) -> bool:
    """Return whether nobody could have shown since a time that a fault is gone, because its hosts fell silent.

    The hosts are the suspects' own; of a standstill, and of a fault without suspects, all hosts of the job. Hosts that
    do not report by themselves, announced their end or moved to a later attempt are no silent source.

    Args:
        graph: the job.
        verdict: the verdict on the fault.
        since_ns: when the fault was last seen.
    """
    named = {_host_of(graph, suspect.component) for suspect in verdict.suspects}
    hosts = named if named and verdict.fault not in STANDSTILL else set(graph.hosts)
    return bool(hosts) and all(_is_mute(graph, host, since_ns) for host in hosts)


def _host_of(graph: JobGraph, component: Component) -> str:
    """Return the host of a host or rank; the component's own name for anything else."""
    is_rank = component.kind is ComponentKind.RANK and component.name.isdecimal()
    return graph.host_of(int(component.name)) if is_rank else component.name


def _is_mute(graph: JobGraph, host: str, since_ns: int) -> bool:
    """Return whether a host that reports by itself has said nothing since a time, and did not say that it ends."""
    facts = graph.hosts.get(host)
    if facts is None or not facts.report_interval_ns or host in graph.moved_ns or monitoring_ended(graph, host):
        return False
    return facts.last_seen_ns <= since_ns

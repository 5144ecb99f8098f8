"""Rules that match a finding with an incident: a repetition, a better explanation, a weaker word, or none of it."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.pipeline.detect.steps.anomalies import DETECTOR as STEPS
from tocsin.pipeline.incidents.incident import Incident, components, is_by_silence, lacks_impact, same_suspects
from tocsin.pipeline.incidents.proposed_action import STANDSTILL, is_withheld
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import (
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

_SAME_MOMENT_NS = 2 * NS_PER_SECOND
_ONE_STORY_NS = 10 * NS_PER_SECOND
"""A fault with impact that begins this much later than a harmless deviation is another incident.

A GPU lowers its clocks within seconds of getting warm.
"""


def same_fault(incident: Incident, finding: Finding) -> bool:
    """Return whether a finding belongs to an incident."""
    verdict = incident.verdict
    if lacks_impact(verdict, finding) and finding.onset_ns > incident.opened_ns + _ONE_STORY_NS:
        return False  # what hurts began after that was said
    if _stopped_later(incident, finding):
        return False
    if _is_apart_from_numbers(incident, finding):
        return False
    if _share_a_suspect(verdict, finding):
        return True
    if verdict.fault in STANDSTILL and finding.fault in STANDSTILL:
        # A job stands still once: who stops or hangs after the first is its victim.
        return True
    if verdict.fault is FaultKind.SILENT_CORRUPTION and _ends_itself(finding) and not incident.is_lone:
        return True
    if verdict.fault is FaultKind.FAIL_SLOW and finding.fault is FaultKind.FAIL_SLOW:
        # "The job is slow" first names nobody and may narrow to one; the rest of it is the same slowness.
        return not verdict.suspects or not finding.suspects
    if verdict.fault is FaultKind.DEGRADED and finding.cause != verdict.cause:
        return False  # two signs of a whole job are two incidents
    return verdict.fault is finding.fault and not verdict.suspects and not finding.suspects


def _is_apart_from_numbers(incident: Incident, finding: Finding) -> bool:
    """Return whether one of both is about lost numbers, and the other about something that lost numbers never cause.

    Lost numbers slow no machine down, end no process by a signal, and give no process another reason to end.
    """
    reported = incident.verdict.fault
    if FaultKind.SILENT_CORRUPTION not in (finding.fault, reported) or finding.fault is reported:
        return False
    if finding.fault in STANDSTILL:
        return not _ends_itself(finding)
    return reported not in STANDSTILL or not incident.is_wordless


def _share_a_suspect(verdict: Verdict, finding: Finding) -> bool:
    """Return whether a verdict and a finding name the same machine.

    In a job of one machine they must also name one of its ranks together, or one of them the machine as a whole.
    """
    shared = components(verdict.suspects) & components(finding.suspects)
    if not shared or finding.machine_count > 1:
        return bool(shared)
    return _share_ranks(verdict.suspects, finding.suspects)


def _share_ranks(some: Sequence[Suspect], others: Sequence[Suspect]) -> bool:
    """Return whether two lists of suspects share a machine, and a rank of it where both name ranks."""
    for one in some:
        for other in others:
            if one.component == other.component and (
                not one.ranks or not other.ranks or set(one.ranks) & set(other.ranks)
            ):
                return True
    return False


def _stopped_later(incident: Incident, finding: Finding) -> bool:
    """Return whether a machine with a harmless metric deviation stopped well after that incident was opened."""
    verdict = incident.verdict
    return (
        verdict.fault is FaultKind.DEGRADED
        and verdict.reason != Reason.HARDWARE_EVENT.value
        and finding.fault in STANDSTILL
        and finding.onset_ns > incident.opened_ns + _SAME_MOMENT_NS
    )


def _ends_itself(finding: Finding) -> bool:
    """Return whether a finding may show a job that ended itself after a NaN: nobody is named, or gives a reason."""
    return finding.fault in STANDSTILL and (not finding.suspects or finding.is_wordless)


def is_taken_back(verdict: Verdict, finding: Finding) -> bool:
    """Return whether a finding takes back a verdict on a slow or silent machine.

    Where slowness passed on to another machine, step times take back what they alone have said. What a machine's
    metrics or its driver showed stands.
    """
    named, is_slow = components(verdict.suspects), verdict.fault is FaultKind.FAIL_SLOW
    if not named or not (is_slow or is_by_silence(verdict)):
        return False
    if named <= set(finding.clears):
        return True
    return is_slow and named <= set(finding.passed_on) and {one.detector for one in verdict.evidence} <= {STEPS}


def is_weaker_repeat(finding: Finding, verdict: Verdict) -> bool:
    """Return whether a finding only repeats a confirmed verdict that has, or lacks only witnesses for, a hard action.

    Such a finding is weaker and takes nothing back. A GPU that fell off the bus is gone, however its processes end.
    """
    return (
        verdict.state is VerdictState.CONFIRMED
        and (verdict.action in HARD_KINDS or is_withheld(verdict))
        and {verdict.fault, finding.fault} <= set(STANDSTILL)
        and finding.cause == verdict.cause
        and not finding.certain
    )


def explains_better(finding: Finding, incident: Incident) -> bool:
    """Return whether a finding may replace an incident's verdict: it is the same explanation, or a stronger one."""
    verdict = incident.verdict
    if finding.fault is not verdict.fault and FaultKind.SILENT_CORRUPTION in (finding.fault, verdict.fault):
        return finding.fault is FaultKind.SILENT_CORRUPTION  # lost numbers explain an end, no end explains them
    if _died_of_hang(finding, incident):
        return False
    if same_suspects(finding, verdict):
        weaker = incident.certain and not finding.certain
        return not weaker and not lacks_impact(finding, verdict)
    if not finding.suspects:
        # The first death was named, then everybody died of their own: somebody ended the whole job.
        return finding.reason is Reason.PROGRAM_ERROR_EVERYWHERE and verdict.fault is FaultKind.FAIL_STOP
    if not verdict.suspects:
        return True
    if verdict.fault is FaultKind.SILENT_CORRUPTION:
        return False
    if finding.certain != incident.certain:
        return finding.certain
    if components(finding.suspects) > components(verdict.suspects) and finding.cause == verdict.cause:
        return True  # the second of two machines behind one switch was heard of a little later
    return finding.onset_ns < verdict.onset_ns and finding.confidence >= incident.weighed_confidence


def _died_of_hang(finding: Finding, incident: Incident) -> bool:
    """Return whether a finding tells of deaths that a reported hang explains.

    They are deaths of other ranks than those that hang, after the report: a watchdog, a launcher or a person ended the
    job.
    """
    return (
        incident.verdict.fault is FaultKind.HANG
        and finding.fault is FaultKind.FAIL_STOP
        and bool(incident.verdict.suspects)
        and finding.onset_ns > incident.opened_ns
        and not _share_ranks(finding.suspects, incident.verdict.suspects)
    )

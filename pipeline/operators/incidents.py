"""One live verdict, and which findings speak of it: the same story, a better one, a weaker word, another incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.operators.findings import Finding
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, FaultKind, Suspect, Verdict, VerdictState

STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
_SLOWER = (FaultKind.FAIL_SLOW, FaultKind.DEGRADED)
_HARD = (ActionKind.DRAIN, ActionKind.EVICT)
_THROTTLING = ("thermal_throttle", "power_cap")
_RESTING, _RESTING_RATIO = ("gpu_util_ratio", "gpu_graphics_active_ratio", "gpu_sm_active_ratio"), 0.9
"""Time in which anything runs: a throttled GPU is as busy as its peers, who wait for it, or busier."""
_SAME_ONSET_NS = 30 * NS_PER_SECOND
_SAME_MOMENT_NS = 2 * NS_PER_SECOND
_ONE_STORY_NS = 10 * NS_PER_SECOND
"""A card gets warm, and seconds later it lowers its clocks. Where it does so a minute later, what hurts began then."""


@dataclass(slots=True)
class Incident:
    """One live verdict and what holds it."""

    verdict: Verdict
    opened_ns: int
    held_ns: int
    certain: bool
    seen_ns: int
    """Newest evidence."""
    was_confirmed: bool = False
    """It was confirmed before, with these suspects."""
    other_cause: str = ""
    other_since_ns: int = 0
    """Another cause than the one named, and since when nothing else is seen."""
    spell_ns: int = 0
    """When it came again, as it comes and goes; 0: it never went."""

    @property
    def spell_began_ns(self) -> int:
        """Since when it has been so without a break."""
        return max(self.opened_ns, self.spell_ns)

    def hold(self, now_ns: int, gone_ns: int) -> None:
        """It is so now; after a break of so long it is again."""
        if now_ns - self.held_ns > gone_ns:
            self.spell_ns = now_ns
        self.held_ns = now_ns

    def settled_cause(self, finding: Finding, now_ns: int, settle_ns: int) -> str:
        """The cause to name: what metrics tell from one window to the next may change to and fro."""
        named = self.verdict.cause
        told = bool(finding.evidence) and finding.evidence[0].detector == "hardware"
        if finding.cause in (named, "unknown") or named == "unknown" or told or finding.certain:
            self.other_cause = ""
            return named if finding.cause == "unknown" else finding.cause
        if finding.cause != self.other_cause:
            self.other_cause, self.other_since_ns = finding.cause, now_ns
        return finding.cause if now_ns - self.other_since_ns >= settle_ns else named


def same_fault(incident: Incident, finding: Finding) -> bool:
    """Whether a finding speaks of the incident that a verdict stands for."""
    verdict = incident.verdict
    if is_smaller(verdict, finding) and finding.onset_ns > incident.opened_ns + _ONE_STORY_NS:
        return False  # what hurts began after that was said
    if _stopped_later(incident, finding):
        return False
    if finding.fault is FaultKind.SILENT_CORRUPTION and verdict.fault in _SLOWER:
        return False  # numbers that break are no slowness, be it the same machine
    if {s.component for s in verdict.suspects} & {s.component for s in finding.suspects}:
        return True
    if verdict.fault in STANDSTILL and finding.fault in STANDSTILL:
        # A job stands still once: whoever stops or hangs after the first is its victim.
        return True
    if verdict.fault is FaultKind.SILENT_CORRUPTION and _ends_itself(finding):
        return True
    if verdict.fault is FaultKind.FAIL_SLOW and finding.fault is FaultKind.FAIL_SLOW:
        # "The job is slow" first names nobody and may narrow to one; the rest of it is the same slowness.
        return not verdict.suspects or not finding.suspects
    return verdict.fault is finding.fault and not verdict.suspects and not finding.suspects


def _stopped_later(incident: Incident, finding: Finding) -> bool:
    """Whether a machine that only differed in its metrics, and hurt nobody, stopped some time after that was said."""
    verdict = incident.verdict
    return (
        verdict.fault is FaultKind.DEGRADED
        and verdict.reason != Reason.HARDWARE_EVENT.value
        and finding.fault in STANDSTILL
        and finding.onset_ns > incident.opened_ns + _SAME_MOMENT_NS
    )


def is_slow_still(finding: Finding, incident: Incident) -> bool:
    """Whether the job is as slow as since the machine was named, and nobody else is to blame: it is not well again.

    What its metrics showed may have faded: levels are learned.
    """
    return (
        finding.fault is FaultKind.FAIL_SLOW
        and finding.cause == "unknown"
        and incident.verdict.state is VerdictState.CONFIRMED
        and incident.verdict.fault is FaultKind.FAIL_SLOW
        and abs(finding.onset_ns - incident.verdict.onset_ns) <= _SAME_ONSET_NS
    )


def _ends_itself(finding: Finding) -> bool:
    """Whether a job that saw a NaN may have ended itself: who of it dies first, and says nothing, is no culprit."""
    return finding.fault in STANDSTILL and (not finding.suspects or finding.cause == "process_exit")


def is_smaller(one: Finding | Verdict, other: Finding | Verdict) -> bool:
    """A fault that hurts does not become one that does not: either it stands, or it is over."""
    return one.fault is FaultKind.DEGRADED and other.fault is not FaultKind.DEGRADED


def same_suspects(finding: Finding, verdict: Verdict) -> bool:
    """Whether both name the same components (the ranks on them may differ)."""
    return components(finding.suspects) == components(verdict.suspects)


def tells_of_some(finding: Finding, verdict: Verdict) -> bool:
    """Whether a finding speaks of some of several machines that were confirmed together: that is not over."""
    confirmed = verdict.state is VerdictState.CONFIRMED and verdict.fault is finding.fault is FaultKind.FAIL_SLOW
    return confirmed and bool(finding.suspects) and components(finding.suspects) < components(verdict.suspects)


def retells(finding: Finding, verdict: Verdict) -> bool:
    """Whether what was confirmed, with a hard action, is only told again: first by an event, then by what stands.

    The weaker word takes nothing back: a card that fell off the bus is gone, however its processes end.
    """
    return (
        verdict.state is VerdictState.CONFIRMED
        and verdict.action in _HARD
        and {verdict.fault, finding.fault} <= set(STANDSTILL)
        and finding.cause == verdict.cause
        and not finding.certain
    )


def placed(finding: Finding, live: Sequence[Verdict]) -> Finding:
    """The same, of ranks whose machine nobody knows with the machine that a live verdict says they slow down."""
    ranks = {rank for suspect in finding.suspects for rank in suspect.ranks}
    if not ranks or any(suspect.component.kind is not ComponentKind.RANK for suspect in finding.suspects):
        return finding
    for verdict in live:
        hosts = [suspect for suspect in verdict.suspects if suspect.component.kind is ComponentKind.HOST]
        if len(hosts) == 1 and verdict.fault is finding.fault and ranks <= set(hosts[0].ranks):
            return replace(finding, suspects=(hosts[0],))
    return finding


def components(suspects: Sequence[Suspect]) -> set[Component]:
    """What they name."""
    return {suspect.component for suspect in suspects}


def explains_better(finding: Finding, incident: Incident) -> bool:
    """Whether the finding may speak for the incident: it is the same story, or a stronger one."""
    verdict = incident.verdict
    if same_suspects(finding, verdict):
        weaker = incident.certain and not finding.certain
        return not weaker and not is_smaller(finding, verdict)
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
    return finding.onset_ns < verdict.onset_ns and finding.confidence >= verdict.confidence


def is_hard(verdict: Verdict) -> bool:
    """Whether it proposes to take a machine away."""
    return verdict.action in _HARD


def is_spell(verdict: Verdict) -> bool:
    """Whether what a verdict told may come again: a part that throttled, uneven data, what was odd and hurt nobody."""
    if verdict.fault is FaultKind.FAIL_SLOW:
        moves = not verdict.suspects and verdict.cause == "data_imbalance"  # a hot expert, now here, now there
        return moves or (verdict.action in (ActionKind.PROBE, *_HARD) and throttles(verdict))
    return verdict.fault is FaultKind.DEGRADED and bool(verdict.suspects)


def throttles(told: Verdict | Finding) -> bool:
    """Whether what is told is a lower clock, or less power, of GPUs that do not rest.

    Whoever saves, logs, evaluates or waits for data alone is slow for seconds again and again, too, and healthy.
    """
    rests = any(
        evidence.metric in _RESTING
        and evidence.suspect_value is not None
        and evidence.suspect_value < _RESTING_RATIO * (evidence.peer_value or 0.0)
        for evidence in told.evidence
    )
    return told.cause in _THROTTLING and bool(told.suspects) and not rests


def action_of(finding: Finding, *, confirmed: bool, hard: bool) -> ActionKind:
    """The action to propose: the cause's own when confirmed, a mild one before, never hard for nobody."""
    if finding.fault is FaultKind.DEGRADED:
        return ActionKind.NONE
    if not finding.suspects:
        mild = CAUSES[finding.cause].blames == "nobody"
        return CAUSES[finding.cause].action if mild else ActionKind.NOTIFY
    action = CAUSES[finding.cause].action
    if finding.fault is FaultKind.HANG and action in _HARD and not finding.certain:
        # It lives and is elsewhere (an evaluation of its own, a full disk): no machine is shown to be bad.
        action = ActionKind.RESTART
    if finding.is_soft and action is ActionKind.RESTART:
        action = ActionKind.NOTIFY
    if not confirmed:
        return ActionKind.PROBE if action in _HARD else ActionKind.NOTIFY
    if action in _HARD and (finding.is_soft or not hard):
        return ActionKind.NOTIFY if finding.is_soft else ActionKind.PROBE
    return action

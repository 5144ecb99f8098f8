"""One live verdict, and the rules that match new findings to it.

A finding may continue the same incident, explain it better, be a weaker report of it, or belong to another incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.core.operator import shallow
from tocsin.pipeline.job.witnesses import (
    HARD,
    NEEDS_FOLLOWERS,
    merged_witnesses,
    other_harmed_hosts,
)
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

DECIDER = "decide"
"""Detector name in evidence that the incident rules themselves add."""
_NAMED_COUNT = 4
"""Maximum number of hosts named in one sentence of evidence."""
STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
"""Faults in which the job makes no progress."""
SLOWER = (FaultKind.FAIL_SLOW, FaultKind.DEGRADED)
"""Faults in which a machine is slower or differs in its metrics."""
_THROTTLING = ("thermal_throttle", "power_cap")
"""Causes that mean a GPU lowered its clocks."""
_RESTING, _RESTING_RATIO = ("gpu_util_ratio", "gpu_graphics_active_ratio", "gpu_sm_active_ratio"), 0.9
"""Metrics of GPU busy time, and the ratio to peers below which a GPU counts as idle.

A throttled GPU is at least as busy as its peers, which wait for it.
"""
_SAME_ONSET_NS = 30 * NS_PER_SECOND
"""Maximum distance of two onsets of one slowdown."""
_SAME_MOMENT_NS = 2 * NS_PER_SECOND
"""Delay after opening up to which a standstill of the suspect belongs to the same incident."""
_IMPACT_DELAY_NS = 10 * NS_PER_SECOND
"""Maximum delay between a harmless deviation and the impact it causes.

A GPU that heats up lowers its clocks within seconds. An impact that begins a minute later is another incident.
"""


@dataclass(slots=True)
class Incident:
    """One live verdict with the state that decides its updates."""

    verdict: Verdict
    opened_ns: int
    held_ns: int
    certain: bool
    seen_ns: int
    """Time of the newest evidence."""
    was_confirmed: bool = False
    """Whether the verdict was confirmed before, with the same suspects."""
    other_cause: str = ""
    other_since_ns: int = 0
    """Since when findings name only ``other_cause`` instead of the verdict's cause; valid if ``other_cause`` is set."""
    spell_ns: int = 0
    """When the fault last returned after a break; 0: there was no break."""
    is_lone: bool = False
    """Whether the other ranks were still making normal progress in the newest finding."""

    def to_state(self) -> dict[str, Any]:
        """Return this incident as JSON-able values for a snapshot."""
        state = shallow(self)
        return {**state, "verdict": encode_verdict(self.verdict).decode()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Incident:
        """Rebuild an incident from what ``to_state`` returned."""
        return cls(**{**state, "verdict": decode_verdict(state["verdict"].encode())})

    @property
    def spell_began_ns(self) -> int:
        """Start of the current spell: when the fault opened, or when it last returned after a break."""
        return max(self.opened_ns, self.spell_ns)

    def hold(self, now_ns: int, gone_ns: int) -> None:
        """Record that the fault is present at ``now_ns``.

        After an absence longer than ``gone_ns`` a new spell begins.
        """
        if now_ns - self.held_ns > gone_ns:
            self.spell_ns = now_ns
        self.held_ns = now_ns

    def merge_witnesses(self, finding: Finding) -> Finding:
        """Merge the finding's witnesses into the verdict, and return the finding with all witnesses so far.

        A finding with other suspects is returned unchanged.
        """
        if not same_suspects(finding, self.verdict):
            return finding
        witnesses = merged_witnesses(self.verdict.witnesses, finding.witnesses, finding.accused)
        if witnesses != self.verdict.witnesses:
            self.verdict = replace(self.verdict, witnesses=witnesses)
        return replace(finding, witnesses=witnesses) if witnesses != finding.witnesses else finding

    def settled_cause(self, finding: Finding, now_ns: int, settle_ns: int) -> str:
        """Return the cause to name in the verdict.

        A cause that rests on metrics may alternate between windows. It replaces the named one only after it was the
        only one seen for ``settle_ns``; a hardware event or a certain finding replaces it at once.
        """
        named = self.verdict.cause
        is_event = bool(finding.evidence) and finding.evidence[0].detector == "hardware"
        if finding.cause in (named, "unknown") or named == "unknown" or is_event or finding.certain:
            self.other_cause = ""
            return named if finding.cause == "unknown" else finding.cause
        if finding.cause != self.other_cause:
            self.other_cause, self.other_since_ns = finding.cause, now_ns
        return finding.cause if now_ns - self.other_since_ns >= settle_ns else named


def same_fault(incident: Incident, finding: Finding) -> bool:
    """Return whether a finding belongs to the incident rather than to a new one."""
    verdict = incident.verdict
    if lacks_impact(verdict, finding) and finding.onset_ns > incident.opened_ns + _IMPACT_DELAY_NS:
        return False  # what hurts began after that was said
    if _stopped_later(incident, finding):
        return False
    if FaultKind.SILENT_CORRUPTION in (finding.fault, verdict.fault) and {finding.fault, verdict.fault} & set(SLOWER):
        return False  # numbers that break are no slowness, be it the same machine
    if verdict.fault is FaultKind.SILENT_CORRUPTION and finding.fault in STANDSTILL and not _ends_itself(finding):
        return False  # nor do they kill a process by a signal, or with another reason
    if _share_a_suspect(verdict, finding):
        return True
    if verdict.fault in STANDSTILL and finding.fault in STANDSTILL:
        # A job stands still once: whoever stops or hangs after the first is its victim.
        return True
    if verdict.fault is FaultKind.SILENT_CORRUPTION and _ends_itself(finding) and not incident.is_lone:
        return True
    if verdict.fault is FaultKind.FAIL_SLOW and finding.fault is FaultKind.FAIL_SLOW:
        # "The job is slow" first names nobody and may narrow to one; the rest of it is the same slowness.
        return not verdict.suspects or not finding.suspects
    return verdict.fault is finding.fault and not verdict.suspects and not finding.suspects


def _share_a_suspect(verdict: Verdict, finding: Finding) -> bool:
    """Return whether verdict and finding share a suspect.

    In a job of one machine they must share a rank, if ranks are named.
    """
    shared = components(verdict.suspects) & components(finding.suspects)
    if not shared or finding.machine_count > 1:
        return bool(shared)
    known, new = ({rank for one in named.suspects for rank in one.ranks} for named in (verdict, finding))
    return not known or not new or bool(known & new)


def _stopped_later(incident: Incident, finding: Finding) -> bool:
    """Return whether a machine that only deviated in its metrics stopped more than a moment later.

    That is a new incident.
    """
    verdict = incident.verdict
    return (
        verdict.fault is FaultKind.DEGRADED
        and verdict.reason != Reason.HARDWARE_EVENT.value
        and finding.fault in STANDSTILL
        and finding.onset_ns > incident.opened_ns + _SAME_MOMENT_NS
    )


def is_slow_still(finding: Finding, incident: Incident) -> bool:
    """Return whether the job is still as slow as when the machine was named, and no other cause is known.

    Then the incident is not over, even if its metrics look normal again: baselines adapt.
    """
    return (
        finding.fault is FaultKind.FAIL_SLOW
        and finding.cause == "unknown"
        and incident.verdict.state is VerdictState.CONFIRMED
        and incident.verdict.fault is FaultKind.FAIL_SLOW
        and abs(finding.onset_ns - incident.verdict.onset_ns) <= _SAME_ONSET_NS
    )


def _ends_itself(finding: Finding) -> bool:
    """Return whether a job that saw a NaN may have ended itself.

    The first rank to exit silently is then not the culprit.
    """
    return finding.fault in STANDSTILL and (not finding.suspects or finding.is_wordless)


def lacks_impact(one: Finding | Verdict, other: Finding | Verdict) -> bool:
    """Return whether ``one`` is a degradation without impact while ``other`` is a fault with impact.

    A fault with impact never turns into a degradation: it persists, or it is over.
    """
    return one.fault is FaultKind.DEGRADED and other.fault is not FaultKind.DEGRADED


def same_suspects(finding: Finding, verdict: Verdict) -> bool:
    """Return whether finding and verdict name the same components; the ranks on them may differ."""
    return components(finding.suspects) == components(verdict.suspects)


def names_fewer_machines(finding: Finding, verdict: Verdict) -> bool:
    """Return whether a finding names only some of the machines of a confirmed slowdown, which is then not over."""
    confirmed = verdict.state is VerdictState.CONFIRMED and verdict.fault is finding.fault is FaultKind.FAIL_SLOW
    return confirmed and bool(finding.suspects) and components(finding.suspects) < components(verdict.suspects)


def is_weaker_repeat(finding: Finding, verdict: Verdict) -> bool:
    """Return whether a finding only repeats, with less certainty, a confirmed standstill that called for a hard action.

    The verdict is not weakened by it: a GPU that fell off the bus stays gone, however its processes end.
    """
    return (
        verdict.state is VerdictState.CONFIRMED
        and (verdict.action in HARD or is_withheld(verdict))
        and {verdict.fault, finding.fault} <= set(STANDSTILL)
        and finding.cause == verdict.cause
        and not finding.certain
    )


def with_known_host(finding: Finding, live: Sequence[Verdict]) -> Finding:
    """Return the finding with its rank suspects replaced by the host that a live verdict already names for these ranks.

    Other findings are returned unchanged.
    """
    ranks = {rank for suspect in finding.suspects for rank in suspect.ranks}
    if not ranks or any(suspect.component.kind is not ComponentKind.RANK for suspect in finding.suspects):
        return finding
    for verdict in live:
        hosts = [suspect for suspect in verdict.suspects if suspect.component.kind is ComponentKind.HOST]
        if len(hosts) == 1 and verdict.fault is finding.fault and ranks <= set(hosts[0].ranks):
            return replace(finding, suspects=(hosts[0],))
    return finding


def components(suspects: Sequence[Suspect]) -> set[Component]:
    """Return the set of components that the suspects name."""
    return {suspect.component for suspect in suspects}


def explains_better(finding: Finding, incident: Incident) -> bool:
    """Return whether the finding may replace the incident's explanation.

    Same suspects at least as sure, or a better story.
    """
    verdict = incident.verdict
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
    return finding.onset_ns < verdict.onset_ns and finding.confidence >= verdict.confidence


def is_hard(verdict: Verdict) -> bool:
    """Return whether a verdict proposes an action that takes a machine away."""
    return verdict.action in HARD


def is_by_silence(verdict: Verdict) -> bool:
    """Return whether a verdict calls a machine dead because nothing was received from it."""
    reasons = {Reason.SILENT_AND_PEERS_STALLED.value, Reason.STILL_TRUE.value}
    return (
        verdict.fault in STANDSTILL
        and verdict.reason in reasons
        and any(evidence.detector == "silence" for evidence in verdict.evidence)
    )


def is_spell(verdict: Verdict) -> bool:
    """Return whether a verdict's fault is of a kind that can come and go.

    Such faults are throttling, uneven data, and a metric deviation without impact.
    """
    if verdict.fault is FaultKind.FAIL_SLOW:
        moves = not verdict.suspects and verdict.cause == "data_imbalance"  # a hot expert, now here, now there
        return moves or (verdict.action in (ActionKind.PROBE, *HARD) and throttles(verdict))
    return verdict.fault is FaultKind.DEGRADED and bool(verdict.suspects)


def throttles(report: Verdict | Finding) -> bool:
    """Return whether verdict or finding reports lower clocks or power of GPUs that are as busy as their peers.

    A less busy GPU is excluded: a host that saves, logs, evaluates or waits for data is repeatedly slow and healthy.
    """
    rests = any(
        evidence.metric in _RESTING
        and evidence.suspect_value is not None
        and evidence.suspect_value < _RESTING_RATIO * (evidence.peer_value or 0.0)
        for evidence in report.evidence
    )
    return report.cause in _THROTTLING and bool(report.suspects) and not rests


def action_of(finding: Finding, *, confirmed: bool, hard: bool) -> tuple[ActionKind, tuple[Evidence, ...]]:
    """Return the action to propose, and the finding's evidence.

    A confirmed verdict gets its cause's action, an unconfirmed one a milder one. A hard action needs suspects and
    enough witnesses. An action that stops the whole job is not proposed while the other ranks make progress.

    Args:
        finding: the finding.
        confirmed: whether the verdict is confirmed.
        hard: whether hard actions are allowed.

    Returns:
        The action, and the evidence, extended by an explanation where witnesses were too few for a hard action.
    """
    action, evidence = _full_action(finding, confirmed=confirmed, hard=hard), finding.evidence
    if action in HARD and not finding.has_witnesses:
        evidence = (*evidence, _too_few(finding, action))
        action = _milder_action(finding)
    is_alone = action in NEEDS_FOLLOWERS and finding.is_lone
    return (ActionKind.NOTIFY if is_alone else action), evidence


def repeated_action(finding: Finding, verdict: Verdict) -> tuple[ActionKind, tuple[Evidence, ...]]:
    """Return action and evidence for a repeated finding: the verdict's action, or the hard one once witnesses suffice.

    Args:
        finding: the repeated finding.
        verdict: the verdict; it proposed a hard action, or withheld one for want of witnesses.
    """
    if is_hard(verdict) or not finding.has_witnesses:
        return verdict.action, finding.evidence
    evidence = tuple(one for one in finding.evidence if one.metric != Reason.ONE_WITNESS.value)
    return CAUSES[verdict.cause].action, evidence


def _too_few(finding: Finding, wanted: ActionKind) -> Evidence:
    """Return evidence that explains why witnesses are too few to take a machine away."""
    accused = finding.accused
    others = sorted(other_harmed_hosts(finding.witnesses, accused))
    who = f"of all others only {', '.join(others)}" if others else f"nobody but {', '.join(accused[:_NAMED_COUNT])}"
    text = f"{who} saw it: not enough to {wanted.value} a machine"
    if len(others) > 1 and finding.fault is FaultKind.FAIL_SLOW:
        text = f"it is slower than {', '.join(others)}, and no event tells more: not enough to {wanted.value} a machine"
    elif len(others) > 1:
        text = f"only the program's own words tell it: not enough to {wanted.value} a machine"
    return Evidence(DECIDER, Reason.ONE_WITNESS.value, 0.0, finding.onset_ns, finding.onset_ns, text)


def _full_action(finding: Finding, *, confirmed: bool, hard: bool) -> ActionKind:
    """Return the action of ``action_of`` without regard to witnesses."""
    if finding.fault is FaultKind.DEGRADED:
        return ActionKind.NONE
    if not finding.suspects:
        mild = CAUSES[finding.cause].blames == "nobody"
        return CAUSES[finding.cause].action if mild else ActionKind.NOTIFY
    action = CAUSES[finding.cause].action
    if finding.fault is FaultKind.HANG and action in HARD and not finding.certain:
        # It lives and is elsewhere (an evaluation of its own, a full disk): no machine is shown to be bad.
        action = ActionKind.RESTART
    if finding.is_soft and action is ActionKind.RESTART:
        action = ActionKind.NOTIFY
    if not confirmed:
        return ActionKind.PROBE if action in HARD else ActionKind.NOTIFY
    if action in HARD and (finding.is_soft or not hard):
        return ActionKind.NOTIFY if finding.is_soft else ActionKind.PROBE
    return action


def _milder_action(finding: Finding) -> ActionKind:
    """Return the action in place of a withheld hard one: restart a job that stopped, otherwise probe the suspect."""
    stopped = finding.certain or finding.reason is Reason.SILENT_AND_PEERS_STALLED
    followed = stopped or bool(other_harmed_hosts(finding.witnesses, finding.accused))
    if finding.fault in STANDSTILL and followed and not finding.is_lone:
        return ActionKind.RESTART
    return ActionKind.PROBE


def is_withheld(verdict: Verdict) -> bool:
    """Return whether a verdict withholds a hard action only because witnesses were too few."""
    return any(evidence.metric == Reason.ONE_WITNESS.value for evidence in verdict.evidence)

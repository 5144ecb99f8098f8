"""One live verdict, and which findings speak of it: the same story, a better one, a weaker word, another incident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.core.operator import shallow
from tocsin.pipeline.job.witnesses import (
    HARD,
    NEEDS_FOLLOWERS,
    joined,
    others_of,
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
_NAMED_COUNT = 4
STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
SLOWER = (FaultKind.FAIL_SLOW, FaultKind.DEGRADED)
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
    is_lone: bool = False
    """The others went on as if nothing had happened, as was last seen."""
    is_wordless: bool = False
    """Processes ended by themselves and gave no reason, as was last seen: lost numbers may explain that."""

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        state = shallow(self)
        return {**state, "verdict": encode_verdict(self.verdict).decode()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Incident:
        """Take back what ``to_state`` gave."""
        return cls(**{**state, "verdict": decode_verdict(state["verdict"].encode())})

    @property
    def spell_began_ns(self) -> int:
        """Since when it has been so without a break."""
        return max(self.opened_ns, self.spell_ns)

    def hold(self, now_ns: int, gone_ns: int) -> None:
        """It is so now; after a break of so long it is again."""
        if now_ns - self.held_ns > gone_ns:
            self.spell_ns = now_ns
        self.held_ns = now_ns

    def hear(self, finding: Finding) -> Finding:
        """Remember who saw it, and return the finding with all who ever did: of the same suspects."""
        if not same_suspects(finding, self.verdict):
            return finding
        witnesses = joined(self.verdict.witnesses, finding.witnesses, finding.accused)
        if witnesses != self.verdict.witnesses:
            self.verdict = replace(self.verdict, witnesses=witnesses)
        return replace(finding, witnesses=witnesses) if witnesses != finding.witnesses else finding

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
    if _is_apart_from_numbers(incident, finding):
        return False
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


def _is_apart_from_numbers(incident: Incident, finding: Finding) -> bool:
    """Whether one of both is about lost numbers, and the other about something that those never cause.

    They slow no machine down, end no process by a signal, and give no process another reason to end.
    """
    told = incident.verdict.fault
    if FaultKind.SILENT_CORRUPTION not in (finding.fault, told) or finding.fault is told:
        return False
    if finding.fault in STANDSTILL:
        return not _ends_itself(finding)
    return told not in STANDSTILL or not incident.is_wordless


def _share_a_suspect(verdict: Verdict, finding: Finding) -> bool:
    """Whether both name one machine; where the job has no other, one of its ranks, or the machine as such."""
    shared = components(verdict.suspects) & components(finding.suspects)
    if not shared or finding.machine_count > 1:
        return bool(shared)
    return _share_ranks(verdict.suspects, finding.suspects)


def _share_ranks(some: Sequence[Suspect], others: Sequence[Suspect]) -> bool:
    """Whether suspects of two sides have a machine in common, and ranks of it where both sides name ranks."""
    for one in some:
        for other in others:
            if one.component == other.component and (
                not one.ranks or not other.ranks or set(one.ranks) & set(other.ranks)
            ):
                return True
    return False


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
    return finding.fault in STANDSTILL and (not finding.suspects or finding.is_wordless)


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
        and (verdict.action in HARD or is_withheld(verdict))
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
    if finding.fault is not verdict.fault and FaultKind.SILENT_CORRUPTION in (finding.fault, verdict.fault):
        return finding.fault is FaultKind.SILENT_CORRUPTION  # lost numbers explain an end, no end explains them
    if _died_of_hang(finding, incident):
        return False
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


def _died_of_hang(finding: Finding, incident: Incident) -> bool:
    """Whether other processes than those of a reported hang ended after it was reported: they were waiting for it.

    A watchdog, a launcher or a person ends a job that hangs.
    """
    return (
        incident.verdict.fault is FaultKind.HANG
        and finding.fault is FaultKind.FAIL_STOP
        and bool(incident.verdict.suspects)
        and finding.onset_ns > incident.opened_ns
        and not _share_ranks(finding.suspects, incident.verdict.suspects)
    )


def is_hard(verdict: Verdict) -> bool:
    """Whether it proposes to take a machine away."""
    return verdict.action in HARD


def is_by_silence(verdict: Verdict) -> bool:
    """Whether a machine is said to be dead because nothing was heard of it."""
    told = {Reason.SILENT_AND_PEERS_STALLED.value, Reason.STILL_TRUE.value}
    return (
        verdict.fault in STANDSTILL
        and verdict.reason in told
        and any(evidence.detector == "silence" for evidence in verdict.evidence)
    )


def is_spell(verdict: Verdict) -> bool:
    """Whether what a verdict told may come again: a part that throttled, uneven data, what was odd and hurt nobody."""
    if verdict.fault is FaultKind.FAIL_SLOW:
        moves = not verdict.suspects and verdict.cause == "data_imbalance"  # a hot expert, now here, now there
        return moves or (verdict.action in (ActionKind.PROBE, *HARD) and throttles(verdict))
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


def action_of(finding: Finding, *, confirmed: bool, hard: bool) -> tuple[ActionKind, tuple[Evidence, ...]]:
    """The action to propose: the cause's own when confirmed, a mild one before, never hard for nobody.

    Nor is it hard where too few saw it, nor does it stop all others where they go on.

    Returns:
        The action, and the finding's evidence: with why none is hard, where that is for want of witnesses.
    """
    action, evidence = _wished_action(finding, confirmed=confirmed, hard=hard), finding.evidence
    if action in HARD and not finding.has_witnesses:
        evidence = (*evidence, _too_few(finding, action))
        action = _milder(finding)
    is_alone = action in NEEDS_FOLLOWERS and finding.is_lone
    return (ActionKind.NOTIFY if is_alone else action), evidence


def retold_action(finding: Finding, verdict: Verdict) -> tuple[ActionKind, tuple[Evidence, ...]]:
    """The action of what is told again: as before, or hard now that enough saw it; and the evidence, as ``action_of``.

    Args:
        finding: what is told again.
        verdict: what was told; it proposed a hard action, or did not for want of witnesses.
    """
    if is_hard(verdict) or not finding.has_witnesses:
        return verdict.action, finding.evidence
    evidence = tuple(one for one in finding.evidence if one.metric != Reason.ONE_WITNESS.value)
    return CAUSES[verdict.cause].action, evidence


def _too_few(finding: Finding, wished: ActionKind) -> Evidence:
    """Why no machine is taken away."""
    accused = finding.accused
    others = sorted(others_of(finding.witnesses, accused))
    who = f"of all others only {', '.join(others)}" if others else f"nobody but {', '.join(accused[:_NAMED_COUNT])}"
    text = f"{who} saw it: not enough to {wished.value} a machine"
    if len(others) > 1 and finding.fault is FaultKind.FAIL_SLOW:
        text = f"it is slower than {', '.join(others)}, and no event tells more: not enough to {wished.value} a machine"
    elif len(others) > 1:
        text = f"only the program's own words tell it: not enough to {wished.value} a machine"
    return Evidence(DECIDER, Reason.ONE_WITNESS.value, 0.0, finding.onset_ns, finding.onset_ns, text)


def _wished_action(finding: Finding, *, confirmed: bool, hard: bool) -> ActionKind:
    """As ``action_of``, if only all had seen it."""
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


def _milder(finding: Finding) -> ActionKind:
    """What to do where a machine may not be taken away: a job that stopped is restarted, else somebody looks at it."""
    stopped = finding.certain or finding.reason is Reason.SILENT_AND_PEERS_STALLED
    followed = stopped or bool(others_of(finding.witnesses, finding.accused))
    if finding.fault in STANDSTILL and followed and not finding.is_lone:
        return ActionKind.RESTART
    return ActionKind.PROBE


def is_withheld(verdict: Verdict) -> bool:
    """Whether it proposes no hard action for nothing else than that too few saw it."""
    return any(evidence.metric == Reason.ONE_WITNESS.value for evidence in verdict.evidence)

"""One live verdict and its evidence over time, and which findings belong to the same incident.

A finding can repeat an incident, explain it better, be weaker than what is known, or belong to another incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.core.operator import shallow
from tocsin.pipeline.incidents.proposed_action import STANDSTILL
from tocsin.pipeline.job.witnesses import merged_witnesses
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

SLOWER = (FaultKind.FAIL_SLOW, FaultKind.DEGRADED)
"""Faults with which the job goes on."""
_SHOWN_EVIDENCE_COUNT = 7
_THROTTLING = ("thermal_throttle", "power_cap")
"""Causes that mean a GPU lowered its clocks."""
_RESTING, _RESTING_RATIO = ("gpu_util_ratio", "gpu_graphics_active_ratio", "gpu_sm_active_ratio"), 0.9
"""Busy-time metrics, and the share of the peers' busy time below which a GPU rests.

A throttled GPU is at least as busy as its peers, which wait for it.
"""


_SAME_ONSET_NS = 30 * NS_PER_SECOND


@dataclass(slots=True)
class Incident:
    """One live verdict, and when its evidence was seen.

    Attributes:
        verdict: the newest line of the verdict.
        opened_ns: when the incident began to name these suspects for this fault.
        held_ns: the last slice end at which the fault held.
        certain: whether the last finding was certain.
        seen_ns: time of the newest evidence.
        was_confirmed: whether the verdict was confirmed earlier with these suspects.
        other_cause: a cause that findings name instead of the verdict's; "": none.
        other_since_ns: since when findings name ``other_cause`` and no other.
        spell_ns: when the fault last came back after a break; 0: it never went away.
        is_lone: whether the other hosts went on as if nothing had happened, by the last finding.
        is_wordless: whether processes ended by themselves without a reason, by the last finding: lost numbers may
            explain that.
        own_confidence: the verdict's confidence without what learned detectors add; 0: it is the same.
    """

    verdict: Verdict
    opened_ns: int
    held_ns: int
    certain: bool
    seen_ns: int
    was_confirmed: bool = False
    other_cause: str = ""
    other_since_ns: int = 0
    spell_ns: int = 0
    is_lone: bool = False
    is_wordless: bool = False
    own_confidence: float = 0.0

    def to_state(self) -> dict[str, Any]:
        """Return the state as a JSON-able object."""
        state = shallow(self)
        return {**state, "verdict": encode_verdict(self.verdict).decode()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Incident:
        """Return the incident that ``to_state`` described."""
        return cls(**{**state, "verdict": decode_verdict(state["verdict"].encode())})

    @property
    def is_sure(self) -> bool:
        """Whether the verdict is confirmed, or was with these suspects."""
        return self.was_confirmed or self.verdict.state is VerdictState.CONFIRMED

    @property
    def weighed_confidence(self) -> float:
        """The confidence that is compared with those of other explanations: without what learned detectors add."""
        return self.own_confidence or self.verdict.confidence

    @property
    def spell_began_ns(self) -> int:
        """Time since when the fault has held without a break."""
        return max(self.opened_ns, self.spell_ns)

    def hold(self, now_ns: int, gone_ns: int) -> None:
        """Note that the fault holds now.

        Args:
            now_ns: the slice's end.
            gone_ns: a longer break than this begins a new spell.
        """
        if now_ns - self.held_ns > gone_ns:
            self.spell_ns = now_ns
        self.held_ns = now_ns

    def hold_if_same(self, finding: Finding, now_ns: int, gone_ns: int) -> None:
        """Keep the incident alive by a finding that is too weak to change its verdict.

        Such a finding names the same suspects, or shows that the job still stands or is still slow.

        Args:
            finding: the weaker finding.
            now_ns: the slice's end.
            gone_ns: as in ``hold``.
        """
        verdict = self.verdict
        speaks = verdict.state is VerdictState.OPEN and verdict.reason == Reason.SILENT_AND_PEERS_STALLED.value
        same_standstill = finding.fault in STANDSTILL and not speaks  # it was silent for seconds
        holds = not finding.suspects and (same_standstill or is_slow_still(finding, verdict))
        over = lacks_impact(finding, verdict) and finding.is_harmless
        same = (same_suspects(finding, verdict) and not over) or names_fewer_machines(finding, verdict)
        if not (same or holds):
            return
        self.hold(now_ns, gone_ns)
        if finding.suspects or finding.fault in STANDSTILL:  # a job that is slow as a whole shows nothing of a machine
            self.seen_ns = max(self.seen_ns, finding.seen_ns)

    def follow(self, finding: Finding, now_ns: int, gone_ns: int, *, moved: bool) -> None:
        """Take the times and the certainty of a finding that speaks for the incident.

        Call it before the verdict is replaced: other suspects, or an impact where there was none, begin a new period.

        Args:
            finding: the finding.
            now_ns: the slice's end.
            gone_ns: as in ``hold``.
            moved: whether the finding names other suspects than the verdict.
        """
        if moved or lacks_impact(self.verdict, finding):  # that it hurts is another thing than that it differs
            self.opened_ns = now_ns
            self.was_confirmed = False
        elif self.verdict.state is VerdictState.CONFIRMED:
            self.was_confirmed = True
        self.hold(now_ns, gone_ns)
        self.certain, self.is_lone, self.is_wordless = finding.certain, finding.is_lone, finding.is_wordless
        # Evidence that does not go on (a job that makes no steps now) confirms nothing.
        self.seen_ns = finding.seen_ns or now_ns

    def soften(self, now_ns: int) -> Verdict:
        """Replace a hard action by a probe, because a machine with a recurring fault is well at present.

        The verdict's expiry time stays.

        Args:
            now_ns: the slice's end.

        Returns:
            The verdict's new line.
        """
        self.verdict = replace(
            self.verdict,
            action=ActionKind.PROBE,
            detected_ns=now_ns,
            update=self.verdict.update + 1,
            reason=Reason.FLAPPING.value,
        )
        return self.verdict

    def renew(self, now_ns: int, action_ttl_ns: int) -> Verdict:
        """Prolong the proposed action of a verdict that still holds, and return the verdict's new line.

        Args:
            now_ns: the slice's end.
            action_ttl_ns: time from now until the action expires.
        """
        self.verdict = replace(
            self.verdict,
            detected_ns=now_ns,
            update=self.verdict.update + 1,
            expires_ns=now_ns + action_ttl_ns,
            reason=Reason.STILL_TRUE.value,
        )
        return self.verdict

    def with_witnesses(self, finding: Finding) -> Finding:
        """Add a finding's witnesses to the verdict's, and return the finding with the witnesses of both.

        A finding of other suspects is returned as it is.
        """
        if not same_suspects(finding, self.verdict):
            return finding
        witnesses = merged_witnesses(self.verdict.witnesses, finding.witnesses, finding.accused)
        if witnesses != self.verdict.witnesses:
            self.verdict = replace(self.verdict, witnesses=witnesses)
        return replace(finding, witnesses=witnesses) if witnesses != finding.witnesses else finding

    def with_costs(self, finding: Finding) -> Finding:
        """Take what a finding of the same suspects costs the job now, and return the finding with the known cost.

        The verdict's next line tells it; no line is written for it alone.
        """
        if not same_suspects(finding, self.verdict) or finding.fault is not self.verdict.fault:
            return finding
        if finding.costs_ratio is None:
            return replace(finding, costs_ratio=self.verdict.costs_ratio)
        self.verdict = replace(self.verdict, costs_ratio=finding.costs_ratio)
        return finding

    def settled_cause(self, finding: Finding, now_ns: int, settle_ns: int) -> str:
        """Return the cause to name for a finding of the incident's suspects.

        Causes that metrics suggest can alternate from window to window. So another cause must last before it replaces
        the verdict's; a hardware event or a certain finding replaces it at once.

        Args:
            finding: the finding.
            now_ns: the slice's end.
            settle_ns: how long another cause must be seen.
        """
        named = self.verdict.cause
        is_event = bool(finding.evidence) and finding.evidence[0].detector == "hardware"
        if finding.cause in (named, "unknown") or named == "unknown" or is_event or finding.certain:
            self.other_cause = ""
            return named if finding.cause == "unknown" else finding.cause
        if finding.cause != self.other_cause:
            self.other_cause, self.other_since_ns = finding.cause, now_ns
        return finding.cause if now_ns - self.other_since_ns >= settle_ns else named


def with_evidence_of(finding: Finding, verdict: Verdict) -> Finding:
    """Return a finding whose evidence is the verdict's, followed by what is new in the finding."""
    new = [evidence for evidence in finding.evidence if evidence not in verdict.evidence]
    return replace(finding, evidence=(*verdict.evidence, *new)[:_SHOWN_EVIDENCE_COUNT])


def lacks_impact(one: Finding | Verdict, other: Finding | Verdict) -> bool:
    """Return whether ``one`` is a deviation without impact and ``other`` a fault with impact."""
    return one.fault is FaultKind.DEGRADED and other.fault is not FaultKind.DEGRADED


def same_suspects(finding: Finding, verdict: Verdict) -> bool:
    """Return whether a finding and a verdict name the same components; the ranks on them may differ."""
    return components(finding.suspects) == components(verdict.suspects)


def with_known_host(finding: Finding, live: Sequence[Verdict]) -> Finding:
    """Return a finding about ranks of unknown machines with the machine that a live verdict names for these ranks.

    Args:
        finding: the finding; returned as it is where a suspect is no rank, or no verdict names one machine.
        live: open and confirmed verdicts.
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
    """Return the components that suspects name."""
    return {suspect.component for suspect in suspects}


def is_by_silence(verdict: Verdict) -> bool:
    """Return whether a verdict accuses a machine because its agent fell silent."""
    reasons = {Reason.SILENT_AND_PEERS_STALLED.value, Reason.STILL_TRUE.value}
    return (
        verdict.fault in STANDSTILL
        and verdict.reason in reasons
        and any(evidence.detector == "silence" for evidence in verdict.evidence)
    )


def is_spell(verdict: Verdict) -> bool:
    """Return whether a verdict's fault may come and go: throttling, uneven data, or a deviation without impact."""
    if verdict.fault is FaultKind.FAIL_SLOW:
        moves = not verdict.suspects and verdict.cause == "data_imbalance"  # a hot expert, now here, now there
        return moves or (verdict.action in (ActionKind.PROBE, *HARD_KINDS) and throttles(verdict))
    return verdict.fault is FaultKind.DEGRADED and bool(verdict.suspects)


def throttles(reported: Verdict | Finding) -> bool:
    """Return whether a verdict or finding names throttled GPUs that are as busy as their peers.

    A healthy machine that saves, logs, evaluates or waits for data is slow for seconds again and again, too. Its GPUs
    rest meanwhile.
    """
    rests = any(
        evidence.metric in _RESTING
        and evidence.suspect_value is not None
        and evidence.suspect_value < _RESTING_RATIO * (evidence.peer_value or 0.0)
        for evidence in reported.evidence
    )
    return reported.cause in _THROTTLING and bool(reported.suspects) and not rests


_LONGER_WAITS = frozenset({"communication", "placement", "shared_service", "loader_stall"})
"""Causes of a slowdown of the whole job that a machine may make, by its link or by its loader."""
_OF_WHOLE_JOB = frozenset({Reason.JOB_WIDE_SLOWDOWN, Reason.LONG_TRANSFERS, Reason.GROUPS_ACROSS_SLOW})
"""Reasons of a slowdown of the whole job in which no rank stands out."""


def is_slow_still(finding: Finding, verdict: Verdict) -> bool:
    """Return whether the job is still slow since a confirmed incident began, and nothing else explains it.

    The machine's own deviation may have faded meanwhile, because expected levels are learned.
    """
    return (
        finding.fault is FaultKind.FAIL_SLOW
        and (finding.cause == "unknown" or (finding.cause in _LONGER_WAITS and finding.reason in _OF_WHOLE_JOB))
        and verdict.state is VerdictState.CONFIRMED
        and verdict.fault is FaultKind.FAIL_SLOW
        and abs(finding.onset_ns - verdict.onset_ns) <= _SAME_ONSET_NS
    )


def names_fewer_machines(finding: Finding, verdict: Verdict) -> bool:
    """Return whether a fail-slow finding names only machines that a fail-slow verdict names, but not all of them.

    False if the verdict is not confirmed, or the finding names none.
    """
    confirmed = verdict.state is VerdictState.CONFIRMED and verdict.fault is finding.fault is FaultKind.FAIL_SLOW
    return confirmed and bool(finding.suspects) and components(finding.suspects) < components(verdict.suspects)

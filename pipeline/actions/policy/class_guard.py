"""A judge with the guards that a replay needs.

They ask for witnesses, deadlines and approvals, and count the machines that each class of evidence took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.policy.config import TAKING
from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.actions.policy.reasons import PolicyReason
from tocsin.pipeline.actions.policy.replay import Decision, DecisionOutcome
from tocsin.pipeline.job.witnesses import may_take_away
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.job_key import IDLE_JOB_ID
from tocsin.schemas.reasons import NamedReason, Reason
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict

UNPROVEN_COUNT: Final = 2
"""Machines that one class of evidence may take before a person must approve the next one."""
_MANY_MACHINES: Final = 8
"""Number of machines of a job whose size no line tells."""


class GuardReason(NamedReason):
    """Reason for which a guard of the replay does not let a proposal be done."""

    ONE_WITNESS = "one_witness", "Too few machines saw the fault for a machine to be taken."
    DEADLINE = "deadline", "The verdict's deadline is over."
    APPROVAL = "approval", "The rule asks for a person's approval."
    CLASS_UNPROVEN = "class_unproven", "This class of evidence took two machines, and nobody proved that it was right."


class ClassGuard:
    """Decides about the proposals of a ladder, and carries out at once what may be done."""

    def __init__(self, ladder: PolicyLadder) -> None:
        """Start without decisions."""
        self._ladder = ladder
        self._taken: dict[str, set[str]] = {}
        """Class of evidence -> machines taken for it."""
        self._decided: dict[tuple[str, str, str], tuple[DecisionOutcome, str]] = {}
        """Verdict, kind and target -> what was decided last."""

    def on_verdict(self, verdict: Verdict, now_ns: int) -> list[Decision]:
        """Return the new decisions after an update of a verdict."""
        if verdict.reason == Reason.CANARY.value:
            return []
        found = []
        for proposal in self._ladder.on_verdict(verdict, now_ns):
            outcome, by = self._judge(proposal, now_ns)
            name = "" if proposal.component is None else f"{proposal.component.kind.value} {proposal.component.name}"
            key = (verdict.verdict_id, proposal.kind.value, name)
            before = self._decided.get(key)
            if before is not None and (before[0] is DecisionOutcome.ACT or before == (outcome, by)):
                continue
            self._decided[key] = (outcome, by)
            if outcome is DecisionOutcome.ACT:
                self._carry_out(proposal, now_ns)
            job_id, target = verdict.job.job_id, proposal.component
            found.append(Decision(now_ns, verdict.verdict_id, job_id, target, proposal.kind, outcome, by))
        return found

    def on_event(self, event: Event, now_ns: int) -> list[Decision]:
        """Return what repeated codes of a host ask people for."""
        by = PolicyReason.CODE_REPEATED.value
        return [
            Decision(now_ns, "", one.job.job_id, one.target, one.kind, DecisionOutcome.NOTIFY, by)
            for one in self._ladder.on_event(event)
        ]

    def on_time(self, now_ns: int) -> Sequence[Decision]:
        """Let the ladder forget what is too old."""
        self._ladder.on_time(now_ns)
        return ()

    def _judge(self, proposal: Proposal, now_ns: int) -> tuple[DecisionOutcome, str]:
        """Return what becomes of a proposal, and the rule or guard that says so."""
        if proposal.kind is ActionKind.NOTIFY:
            return DecisionOutcome.NOTIFY, proposal.rule
        if now_ns > proposal.verdict.expires_ns:
            return DecisionOutcome.REFUSED, GuardReason.DEADLINE.value
        if proposal.kind in HARD_KINDS and proposal.hosts and not _is_witnessed(proposal):
            return DecisionOutcome.REFUSED, GuardReason.ONE_WITNESS.value
        if proposal.needs_approval:
            return DecisionOutcome.WAIT_APPROVAL, GuardReason.APPROVAL.value
        if proposal.kind in TAKING:
            taken = self._taken.get(_class_of(proposal), set())
            if len(taken | set(proposal.hosts)) > UNPROVEN_COUNT:
                return DecisionOutcome.WAIT_APPROVAL, GuardReason.CLASS_UNPROVEN.value
        return DecisionOutcome.ACT, proposal.rule

    def _carry_out(self, proposal: Proposal, now_ns: int) -> None:
        """Note that a proposal is done."""
        if proposal.kind in TAKING:
            self._taken.setdefault(_class_of(proposal), set()).update(proposal.hosts)
        if proposal.kind is ActionKind.EVICT:
            self._ladder.note_eviction(proposal.verdict.job, now_ns)


def _class_of(proposal: Proposal) -> str:
    """Return the class of evidence that a proposal is counted in."""
    return f"{proposal.verdict.job.cluster}/{proposal.signal}"


def _is_witnessed(proposal: Proposal) -> bool:
    """Return whether enough machines saw the fault for the proposal's machines to be taken."""
    verdict = proposal.verdict
    count = None if verdict.job.job_id == IDLE_JOB_ID else _MANY_MACHINES
    is_slowness = verdict.fault is FaultKind.FAIL_SLOW
    return may_take_away(proposal.hosts, verdict.witnesses, count, is_slowness=is_slowness)

"""From verdicts and proposals to actions: new ones, renewed ones, and those that their verdict no longer asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.desk import Desk
from tocsin.pipeline.actions.guards.guard import GuardOutcome
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.spare_advice import ranked_spares
from tocsin.pipeline.actions.tracked import TrackedAction, slim, tracked_from
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import MAX_MACHINES, REMOVING_KINDS, Action, ActionTarget, action_id_of
from tocsin.schemas.verdicts import ActionKind, ComponentKind, Verdict, VerdictState

_CLOSED: Final = frozenset({VerdictState.CANCELLED, VerdictState.EXPIRED, VerdictState.RESOLVED})
_MOST_VERDICTS: Final = 100_000


class ProposalIntake:
    """Makes actions of proposals; a repeated proposal means the same action."""

    def __init__(self, desk: Desk) -> None:
        """Put the actions on a desk."""
        self._desk = desk
        self._updates: dict[tuple[str, str], int] = {}
        """(cluster, verdict) -> its newest update; the least recently seen are forgotten first."""

    def is_news(self, verdict: Verdict) -> bool:
        """Note an update of a verdict and return whether it is newer than all before."""
        key = verdict.job.cluster, verdict.verdict_id
        known = self._updates.pop(key, -1)
        self._updates[key] = max(known, verdict.update)
        while len(self._updates) > _MOST_VERDICTS:
            del self._updates[next(iter(self._updates))]
        return verdict.update > known

    def take_verdict(self, verdict: Verdict, proposals: Sequence[Proposal], now_ns: int) -> None:
        """Apply an update of a verdict: what it proposes, and what it no longer asks for."""
        actions = self._desk.book.of_verdict(verdict.job.cluster, verdict.verdict_id)
        if verdict.state in _CLOSED:
            for tracked in actions:
                if tracked.is_unbegun:
                    self._desk.end(tracked, ActionState.CANCELLED, ActionReason.VERDICT_CLOSED, now_ns, verdict.reason)
            return
        known = (self._known(self._completed(one), actions) for one in proposals if actions)
        again = {id(one) for one in known if one is not None}
        for tracked in actions:
            if not tracked.is_unbegun or id(tracked) in again:
                continue
            if _asks_for_other(verdict, tracked) or _is_superseded(tracked, proposals):
                self._desk.end(tracked, ActionState.CANCELLED, ActionReason.VERDICT_CHANGED, now_ns, verdict.reason)
            else:
                self._renew(tracked, verdict, verdict.expires_ns, now_ns)
        self.take_proposals(proposals, now_ns)

    def take_proposals(self, proposals: Sequence[Proposal], now_ns: int) -> None:
        """Open an action for each proposal, or renew the one that means the same."""
        for proposal in map(self._completed, proposals):
            verdict = proposal.verdict
            if proposal.kind is ActionKind.NONE:
                continue
            if proposal.kind is ActionKind.NOTIFY:
                target = self._desk.facts.target(verdict.job, proposal.component, proposal.hosts, evidence_ns(verdict))
                self._desk.life.notify(verdict, target, ActionReason.ALLOWED, now_ns, proposal.note[:1000])
                continue
            known = self._known(proposal, self._desk.book.of_verdict(verdict.job.cluster, verdict.verdict_id))
            if known is None:
                self._open(proposal, now_ns)
            elif known.is_unbegun:
                self._renew(known, verdict, _deadline_ns(proposal), now_ns)
            elif known.has_lapsed and verdict.state not in _CLOSED:
                self._revive(known, verdict, _deadline_ns(proposal), now_ns)

    def _completed(self, proposal: Proposal) -> Proposal:
        """Return a proposal with the machines that it means: all of the leaf, or of the job that is to be checked."""
        proposal = _merged(proposal)
        if proposal.kind is not ActionKind.PROBE or proposal.hosts:
            return proposal
        job = proposal.verdict.job
        facts = self._desk.facts.job(job.cluster, job.job_id)
        is_known = facts is not None and facts.job.attempt == job.attempt and len(facts.hosts) <= MAX_MACHINES
        return replace(proposal, hosts=facts.hosts) if facts is not None and is_known else proposal

    def open_if_free(self, proposal: Proposal, now_ns: int) -> bool:
        """Open a new action if no guard but the dry run is against it; return whether it was opened."""
        tracked = self._made(proposal, now_ns)
        ruling = self._desk.chain.judge(self._desk.case(tracked, now_ns))
        if ruling is not None and ruling.outcome is not GuardOutcome.SHOW:
            return False
        self._put(tracked, now_ns)
        return True

    def _open(self, proposal: Proposal, now_ns: int) -> None:
        """Open a new action."""
        self._put(self._made(proposal, now_ns), now_ns)

    def _made(self, proposal: Proposal, now_ns: int) -> TrackedAction:
        """Return a new action for a proposal."""
        verdict, facts = proposal.verdict, self._desk.facts
        target = facts.target(verdict.job, proposal.component, proposal.hosts, evidence_ns(verdict))
        machines = [facts.machine(verdict.job.cluster, host) for host in target.hosts]
        versions = sorted({f"{one.driver}/{one.firmware}" for one in machines if one is not None} - {"/"})
        name = "leaf" if target.is_leaf() else proposal.signal
        action = Action(
            action_id=action_id_of(verdict.verdict_id, proposal.kind, target),
            verdict_id=verdict.verdict_id,
            verdict_update=verdict.update,
            kind=proposal.kind,
            target=target,
            cause=verdict.cause,
            rule=proposal.rule,
            budget_class=" ".join((name, *versions[:1]))[:256],
            issued_ns=now_ns,
            deadline_ns=max(now_ns, _deadline_ns(proposal)),
            state=ActionState.PROPOSED,
            reason="",
            changed_ns=now_ns,
            parameters=proposal.parameters,
            spares=self._spares(proposal, target, now_ns),
        )
        return tracked_from(proposal, action)

    def _spares(self, proposal: Proposal, target: ActionTarget, now_ns: int) -> tuple[str, ...]:
        """Return the spares for an eviction, the best first; none for other kinds."""
        if proposal.kind is not ActionKind.EVICT:
            return ()
        return ranked_spares(self._desk.facts, target, now_ns - ns(self._desk.config.job_silence_seconds))

    def _put(self, tracked: TrackedAction, now_ns: int) -> None:
        """Open an action, unless it is known or is forgotten after an executor had it."""
        name = tracked.action.action_id
        if self._desk.book.was_held(name) or self._desk.book.get(name) is not None:
            return
        if not self._desk.book.has_room(self._desk.config.open_count):
            self._desk.life.begin(tracked, ActionState.REFUSED, ActionReason.TOO_MANY, "", now_ns)
            return
        self._desk.open(tracked, now_ns)

    def _renew(self, tracked: TrackedAction, verdict: Verdict, deadline_ns: int, now_ns: int) -> None:
        """Prolong an action by a later update of its verdict; it keeps its id and its approval."""
        tracked.verdict = slim(verdict)
        later_ns = max(tracked.action.deadline_ns, deadline_ns)
        is_later = later_ns > tracked.action.deadline_ns
        tracked.action = replace(tracked.action, verdict_update=verdict.update, deadline_ns=later_ns)
        revision = tracked.action.revision
        if tracked.is_open:
            self._desk.chain.breaker.seen(self._desk.case(tracked, now_ns))
            self._desk.judge(tracked, now_ns)
        if is_later and tracked.action.revision == revision:
            self._desk.life.publish(tracked, now_ns)

    def _revive(self, tracked: TrackedAction, verdict: Verdict, deadline_ns: int, now_ns: int) -> None:
        """Open an action again whose verdict had lapsed and holds again; an earlier approval does not count."""
        tracked.verdict = slim(verdict)
        tracked.approved_ns = tracked.asked_ns = tracked.held_ns = 0
        tracked.opened_ns = now_ns
        deadline_ns = max(deadline_ns, tracked.action.issued_ns)
        tracked.action = replace(
            tracked.action, verdict_update=verdict.update, deadline_ns=deadline_ns, approval_deadline_ns=0, actor=""
        )
        self._desk.chain.breaker.seen(self._desk.case(tracked, now_ns))
        ruling = self._desk.chain.judge(self._desk.case(tracked, now_ns))
        if ruling is None or ruling.outcome.state not in {ActionState.EXPIRED, ActionState.REFUSED}:
            self._desk.judge(tracked, now_ns)

    def _known(self, proposal: Proposal, actions: Sequence[TrackedAction]) -> TrackedAction | None:
        """Return the action that a proposal means again, None for a new one.

        What was carried out once, or is, is never opened again, whatever became of its target since.
        """
        hosts = tuple(sorted(set(proposal.hosts)))
        same = [
            one
            for one in actions
            if one.kind is proposal.kind and one.hosts == hosts and one.action.target.component == proposal.component
        ]
        if not same:
            return None
        begun = [one for one in same if not one.is_unbegun and (one.begun_ns or one.holders)]
        alive = [one for one in same if one.is_unbegun]
        if begun or alive:
            return (begun or alive)[0]
        target = self._desk.facts.target(
            proposal.verdict.job, proposal.component, proposal.hosts, evidence_ns(proposal.verdict)
        )
        wanted = action_id_of(proposal.verdict.verdict_id, proposal.kind, target)
        return next((one for one in same if one.action.action_id == wanted), None)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [[*key, update] for key, update in self._updates.items()]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._updates = {(cluster, verdict_id): update for cluster, verdict_id, update in state}


def evidence_ns(verdict: Verdict) -> int:
    """Return the time of a verdict's newest evidence: the machines are those that ran then."""
    return max((one.end_ns for one in verdict.evidence), default=verdict.onset_ns)


def _deadline_ns(proposal: Proposal) -> int:
    """Return until when a proposal may be begun."""
    verdict = proposal.verdict
    if proposal.deadline_seconds is None:
        return verdict.expires_ns
    return min(verdict.expires_ns, verdict.detected_ns + ns(proposal.deadline_seconds))


def _merged(proposal: Proposal) -> Proposal:
    """Return a proposal on several machines behind one leaf as one on the leaf, others unchanged."""
    common = proposal.verdict.common
    is_leaf = common is not None and common.kind in {ComponentKind.LEAF, ComponentKind.MINIPOD}
    if is_leaf and proposal.kind in REMOVING_KINDS and len(set(proposal.hosts)) > 1:
        return replace(proposal, component=common)
    return proposal


def _is_superseded(tracked: TrackedAction, proposals: Sequence[Proposal]) -> bool:
    """Return whether the policy asks to take a machine of an action that takes none, and for this action no more."""
    return tracked.kind not in REMOVING_KINDS and any(
        one.kind in REMOVING_KINDS and set(one.hosts) & set(tracked.hosts) for one in proposals
    )


def _asks_for_other(verdict: Verdict, tracked: TrackedAction) -> bool:
    """Return whether an update of a verdict is about something else than an action that was proposed for it."""
    before = tracked.verdict
    names = {suspect.component.name for suspect in verdict.suspects}
    was = {suspect.component.name for suspect in before.suspects}
    return verdict.action is not before.action or verdict.fault is not before.fault or names != was

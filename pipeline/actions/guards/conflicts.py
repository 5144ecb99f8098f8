"""Two actions do not meet on one machine or one job, and what is out already is not taken out again."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.action_events import CordonOwner
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.verdicts import ActionKind


class ConflictGuard:
    """Holds an action whose machine or job is in the hands of another one, or taken away already."""

    name = "conflicts"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        kind = case.action.kind
        if kind is ActionKind.NOTIFY:
            return None
        if kind is ActionKind.DRAIN and any(
            case.facts.cordon_owner(case.cluster, host) is CordonOwner.OTHER for host in case.tracked.hosts
        ):
            return Ruling(GuardOutcome.HOLD, ActionReason.CORDONED_BY_OTHER)
        if kind in HARD_KINDS:
            for host in case.tracked.hosts:
                for other in case.others_on(host):
                    reason = self._on_machine(case, other)
                    if reason is not None:
                        return Ruling(GuardOutcome.HOLD, reason, f"{host}: {other.action.action_id}")
        if case.tracked.stops_job:
            return self._on_job(case)
        return None

    def _on_machine(self, case: ActionCase, other: TrackedAction) -> ActionReason | None:
        """Return why another action on one of the machines is in the way, None: it is not."""
        if other.kind not in HARD_KINDS:
            return None
        is_leaf = other.is_leaf
        if is_leaf and not case.tracked.is_leaf and (other.is_unbegun or other.is_running):
            return ActionReason.COVERED_BY_LEAF
        if other.is_running or other.state is ActionState.UNDOING:
            return ActionReason.HOST_BUSY
        is_stronger = case.action.kind is not ActionKind.DRAIN and other.kind is ActionKind.DRAIN
        if other.is_standing and case.action.kind in _TAKING and not is_stronger:
            return ActionReason.ALREADY_OUT
        return None

    def _on_job(self, case: ActionCase) -> Ruling | None:
        """Return a hold if another action is about to end the job's attempt, or is ending it."""
        job, mine = case.action.target.job, case.action.action_id
        for other in case.book.stopping(job.cluster, job.job_id):
            if other.action.action_id != mine:
                return Ruling(GuardOutcome.HOLD, ActionReason.JOB_BUSY, other.action.action_id)
        return None


_TAKING = frozenset({ActionKind.DRAIN, ActionKind.EVICT})

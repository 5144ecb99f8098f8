"""What the parts of the controller share: actions, facts, guards and settings; and how an action is judged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from tocsin.pipeline.actions.book import ActionBook
from tocsin.pipeline.actions.chain import GuardChain
from tocsin.pipeline.actions.config import ControllerConfig, ns
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.life import ActionLife
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.schemas.action_states import ActionState

_PAGED_AT_ONCE: Final = frozenset(
    {
        ActionReason.NO_EXECUTOR,
        ActionReason.NO_SPARE,
        ActionReason.DETECTOR_WRONG,
        ActionReason.POLICY_ASKS,
        ActionReason.KIND_ASKS,
        ActionReason.JOB_RUNS,
        ActionReason.CLASS_UNPROVEN,
        ActionReason.LEAF_ASKS,
    }
)
"""Reasons that people have to hear of at once; others only when they last."""


@dataclass(slots=True)
class Desk:
    """The state of a controller and the way in which actions are judged.

    Attributes:
        config: settings.
        book: all actions.
        facts: machines, jobs, executors, engines.
        maintenance: planned work.
        chain: the guards.
        life: changes of actions.
        ended: actions that ended since the policy was last told.
    """

    config: ControllerConfig
    book: ActionBook
    facts: FactBook
    maintenance: MaintenanceBook
    chain: GuardChain
    life: ActionLife
    ended: list[TrackedAction] = field(default_factory=list)

    def case(self, tracked: TrackedAction, now_ns: int) -> ActionCase:
        """Return an action with all that guards look at."""
        return ActionCase(tracked, now_ns, self.book, self.facts, self.config)

    def open(self, tracked: TrackedAction, now_ns: int) -> None:
        """Judge a new action for the first time."""
        case = self.case(tracked, now_ns)
        self.chain.breaker.seen(case)
        ruling = self.chain.judge(case)
        if ruling is None:
            self.chain.allowed(case)
            self.life.begin(tracked, ActionState.APPROVED, ActionReason.ALLOWED, "", now_ns)
            return
        self._note(tracked, ruling, now_ns)
        self.life.begin(tracked, ruling.outcome.state, ruling.reason, ruling.detail, now_ns)
        self._after(tracked, ruling, now_ns)

    def judge(self, tracked: TrackedAction, now_ns: int) -> Ruling | None:
        """Judge an action anew and bring it into the state that follows; return what is against it."""
        case = self.case(tracked, now_ns)
        ruling = self.chain.judge(case)
        if ruling is None:
            self._allow(tracked, case)
            return None
        if self._is_as_before(tracked, ruling):
            return ruling
        if tracked.state is ActionState.APPROVED:
            self.chain.classes.forgotten(tracked.action.budget_class, tracked.action.action_id)
        self._note(tracked, ruling, now_ns)
        self.life.move(tracked, ruling.outcome.state, ruling.reason, now_ns, ruling.detail)
        self._after(tracked, ruling, now_ns)
        return ruling

    def end(
        self, tracked: TrackedAction, state: ActionState, reason: ActionReason, now_ns: int, detail: str = ""
    ) -> None:
        """End an action of which nothing was begun."""
        action = tracked.action
        if not tracked.holders:
            self.chain.classes.forgotten(action.budget_class, action.action_id)
        self.life.move(tracked, state, reason, now_ns, detail)
        self.ended.append(tracked)

    def _allow(self, tracked: TrackedAction, case: ActionCase) -> None:
        """Let an action be begun, if it is not that already."""
        tracked.held_ns = 0
        if tracked.state in {ActionState.APPROVED, ActionState.CLAIMED}:
            return
        self.chain.allowed(case)
        is_by_person = tracked.approved_ns and tracked.asked_ns
        reason = ActionReason.APPROVED_BY_PERSON if is_by_person else ActionReason.ALLOWED
        self.life.move(tracked, ActionState.APPROVED, reason, case.now_ns)

    def _is_as_before(self, tracked: TrackedAction, ruling: Ruling) -> bool:
        """Return whether a ruling changes nothing about an action."""
        if tracked.state is ActionState.BLOCKED and ruling.outcome is GuardOutcome.HOLD:
            return True
        if tracked.state is ActionState.BLOCKED and ruling.outcome is GuardOutcome.ASK:
            return tracked.action.reason == ActionReason.NO_APPROVER
        return (tracked.state, tracked.action.reason) == (ruling.outcome.state, ruling.reason.value)

    def _note(self, tracked: TrackedAction, ruling: Ruling, now_ns: int) -> None:
        """Note since when an action is held, and until when it may be approved."""
        if ruling.outcome is GuardOutcome.HOLD:
            tracked.held_ns = tracked.held_ns or now_ns
        else:
            tracked.held_ns = 0
        if ruling.outcome is GuardOutcome.ASK and not tracked.asked_ns:
            tracked.asked_ns = now_ns
            until_ns = now_ns + ns(self.config.approval_seconds)
            tracked.action = replace(tracked.action, approval_deadline_ns=until_ns)

    def _after(self, tracked: TrackedAction, ruling: Ruling, now_ns: int) -> None:
        """Page where people have to hear of a ruling at once, and note the end of an action."""
        if ruling.reason in _PAGED_AT_ONCE:
            self.life.page(tracked, ruling.reason, now_ns, ruling.detail)
        if ruling.outcome in {GuardOutcome.EXPIRE, GuardOutcome.REFUSE}:
            self.ended.append(tracked)

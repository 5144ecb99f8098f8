"""What executors say of actions: claims, begin, end, and what holds them up."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.desk import Desk
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import MAX_HOLDERS, TrackedAction
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.action_states import FINAL_STATES, ActionState
from tocsin.schemas.actions import REMOVING_KINDS

_ENDS_UNDONE = frozenset({AckKind.FAILED, AckKind.REFUSED, AckKind.EXPIRED})
"""Messages that end an action without its effect: only who holds it can say so."""
_HELD = (ActionState.CLAIMED, ActionState.STARTED, ActionState.BLOCKED)


class AckHandler:
    """Applies the messages of executors; what does not fit has no effect and is counted."""

    def __init__(self, desk: Desk) -> None:
        """Apply acks to the actions of a desk."""
        self._desk = desk
        self._life = desk.life
        self._by_kind: dict[AckKind, Callable[[TrackedAction, Ack, int], None]] = {
            AckKind.CLAIMED: self._claimed,
            AckKind.STARTED: self._started,
            AckKind.DONE: self._done,
            AckKind.FAILED: self._failed,
            AckKind.REFUSED: self._refused,
            AckKind.EXPIRED: self._expired,
            AckKind.BLOCKED: self._blocked,
            AckKind.UNDONE: self._undone,
            AckKind.UNDO_FAILED: self._undo_failed,
        }

    def take(self, ack: Ack, now_ns: int) -> None:
        """Apply one message of an executor."""
        tracked = self._desk.book.get(ack.action_id)
        reason = self._refusal(tracked, ack)
        if tracked is None or reason is not None:
            self._leave_out(reason or ActionReason.ACTION_UNKNOWN, ack)
            return
        tracked.seqs[ack.executor] = ack.seq
        while len(tracked.seqs) > 2 * MAX_HOLDERS:
            del tracked.seqs[next(name for name in tracked.seqs if name not in tracked.holders)]
        self._by_kind[ack.kind](tracked, ack, now_ns)
        self._desk.book.file(tracked)

    def _refusal(self, tracked: TrackedAction | None, ack: Ack) -> ActionReason | None:
        """Return why a message is left out, whatever it says; None: it is not."""
        if tracked is None or ack.job != tracked.action.target.job:
            return ActionReason.ACTION_UNKNOWN
        if ack.epoch > self._life.epoch:
            return ActionReason.EPOCH_AHEAD
        if ack.seq <= tracked.seqs.get(ack.executor, 0):
            return ActionReason.ACK_REPEATED
        if ack.kind is AckKind.CLAIMED:
            if not self._desk.facts.has_announced(ack.executor, tracked.action):
                return ActionReason.KIND_NOT_ANNOUNCED
            is_full = len(tracked.holders) >= MAX_HOLDERS and ack.executor not in tracked.holders
            return ActionReason.CLAIM_LOST if is_full else None
        is_its_own = ack.executor == tracked.action.holder or ack.kind not in _ENDS_UNDONE
        return None if ack.executor in tracked.holders and is_its_own else ActionReason.ACK_OF_OTHER

    def _claimed(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        action = tracked.action
        lease_ns = min(ack.lease_ns, now_ns + ns(self._desk.config.lease_seconds))
        if lease_ns <= now_ns:
            self._leave_out(ActionReason.CLAIM_OVER, ack)
            return
        is_free = action.holder in {"", ack.executor} or now_ns >= action.lease_ns
        if tracked.state is not ActionState.APPROVED and not is_free:
            self._leave_out(ActionReason.CLAIM_LOST, ack)
            return
        if tracked.state in {ActionState.APPROVED, ActionState.CLAIMED}:
            if not self._is_still_allowed(tracked, now_ns):
                self._leave_out(ActionReason.CLAIM_HELD, ack)
                return
        elif tracked.state not in {ActionState.STARTED, ActionState.UNDOING} and not self._is_blocked(tracked):
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        is_first = not action.holder or action.holder == ack.executor
        self._life.hand_over(tracked, ack.executor, lease_ns)
        if tracked.state is ActionState.APPROVED:
            self._life.move(tracked, ActionState.CLAIMED, ActionReason.CLAIMED, now_ns)
        elif is_first or self._is_blocked(tracked):
            self._life.publish(tracked, now_ns)
        else:
            self._life.move(tracked, tracked.state, ActionReason.TAKEN_OVER, now_ns)

    def _is_still_allowed(self, tracked: TrackedAction, now_ns: int) -> bool:
        """Judge an action at the moment in which an executor is given it, or is about to make its first change."""
        if tracked.state is ActionState.APPROVED:
            return self._desk.judge(tracked, now_ns) is None
        return self._desk.chain.judge(self._desk.case(tracked, now_ns)) is None

    def _started(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        is_held_up = self._is_blocked(tracked)
        if ack.executor != tracked.action.holder or not (tracked.state is ActionState.CLAIMED or is_held_up):
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        if not is_held_up and not self._is_still_allowed(tracked, now_ns):
            self._leave_out(ActionReason.CLAIM_HELD, ack)
            return
        tracked.begun_ns = tracked.begun_ns or now_ns
        tracked.blocked_ns = 0
        self._life.move(tracked, ActionState.STARTED, ActionReason.STARTED, now_ns, ack.detail)

    def _done(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        tracked.has_effects = tracked.has_effects or bool(ack.effects)
        if tracked.state in FINAL_STATES and tracked.state is not ActionState.UNDONE:
            self._late_effect(tracked, ack, now_ns)
            return
        if tracked.state in {ActionState.DONE, ActionState.UNDOING, ActionState.UNDONE}:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        tracked.begun_ns, tracked.done_ns = tracked.begun_ns or now_ns, now_ns
        self._life.move(tracked, ActionState.DONE, ActionReason.DONE, now_ns, ack.detail)
        self._desk.ended.append(tracked)

    def _late_effect(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        """Take back what was carried out although the action had been taken back."""
        if tracked.kind not in REMOVING_KINDS or tracked.state is ActionState.FAILED:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        tracked.begun_ns, tracked.done_ns = tracked.begun_ns or now_ns, now_ns
        self._life.move(tracked, ActionState.UNDOING, ActionReason.EFFECT_AFTER_END, now_ns, ack.detail)
        self._life.page(tracked, ActionReason.EFFECT_AFTER_END, now_ns)

    def _failed(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        if tracked.state not in _HELD:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        tracked.has_effects = tracked.has_effects or bool(ack.effects)
        if tracked.has_effects:
            tracked.begun_ns, tracked.done_ns = tracked.begun_ns or now_ns, now_ns
        self._life.move(tracked, ActionState.FAILED, ActionReason.FAILED, now_ns, ack.detail or ack.reason)
        self._life.page(tracked, ActionReason.FAILED, now_ns, ack.detail or ack.reason)
        self._desk.ended.append(tracked)

    def _refused(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        self._end(tracked, ack, ActionState.REFUSED, ActionReason.REFUSED_BY_EXECUTOR, now_ns)

    def _expired(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        self._end(tracked, ack, ActionState.EXPIRED, ActionReason.TARGET_CHANGED, now_ns)

    def _end(self, tracked: TrackedAction, ack: Ack, state: ActionState, reason: ActionReason, now_ns: int) -> None:
        """End an action that its executor did not carry out; where it changed something, it failed."""
        if ack.effects or tracked.has_effects:
            self._failed(tracked, ack, now_ns)
            return
        if tracked.state not in _HELD:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        self._life.move(tracked, state, reason, now_ns, ack.detail or ack.reason)
        if state is ActionState.REFUSED:
            self._life.page(tracked, reason, now_ns, ack.detail or ack.reason)
        self._desk.ended.append(tracked)

    def _blocked(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        if ack.executor != tracked.action.holder or tracked.state not in _HELD:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        tracked.blocked_ns = tracked.blocked_ns or now_ns
        if tracked.state is ActionState.CLAIMED:
            tracked.begun_ns = tracked.begun_ns or now_ns
            self._life.move(tracked, ActionState.STARTED, ActionReason.STARTED, now_ns, ack.detail)

    def _undone(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        if tracked.state is not ActionState.UNDOING:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        self._life.move(tracked, ActionState.UNDONE, ActionReason.UNDONE, now_ns, ack.detail)

    def _undo_failed(self, tracked: TrackedAction, ack: Ack, now_ns: int) -> None:
        if tracked.state is not ActionState.UNDOING:
            self._leave_out(ActionReason.ACK_OUT_OF_PLACE, ack)
            return
        self._life.move(tracked, ActionState.UNDOING, ActionReason.UNDO_FAILED, now_ns, ack.detail)
        self._life.page(tracked, ActionReason.UNDO_FAILED, now_ns, ack.detail)

    def _is_blocked(self, tracked: TrackedAction) -> bool:
        """Return whether an executor has begun an action and is held up."""
        return tracked.state is ActionState.BLOCKED and bool(tracked.begun_ns)

    def _leave_out(self, reason: ActionReason, ack: Ack) -> None:
        self._life.leave_out(reason, f"{ack.kind.value} of {ack.executor} about {ack.action_id}")

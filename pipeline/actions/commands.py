"""What people say of actions: approve, deny, cancel."""

from __future__ import annotations

from dataclasses import replace

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.desk import Desk
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.releases import Releases
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.action_events import Approval, Cancel, Command, Denial
from tocsin.schemas.action_states import ActionState


class CommandHandler:
    """Applies people's commands; an old one, or one that does not fit, has no effect and is counted."""

    def __init__(self, desk: Desk, releases: Releases) -> None:
        """Apply commands to the actions of a desk."""
        self._desk = desk
        self._life = desk.life
        self._releases = releases

    def take(self, command: Command, now_ns: int) -> None:
        """Apply one command."""
        tracked = self._desk.book.get(command.action_id)
        if tracked is None or tracked.action.target.job.cluster != command.cluster:
            self._leave_out(ActionReason.ACTION_UNKNOWN, command)
            return
        is_old = abs(now_ns - command.ts_ns) > ns(self._desk.config.command_age_seconds)
        is_repeated = isinstance(command, Approval) and command.ts_ns <= tracked.command_ns
        if is_old or is_repeated:
            self._leave_out(ActionReason.COMMAND_OLD, command)
            return
        tracked.command_ns = max(tracked.command_ns, command.ts_ns)
        match command:
            case Approval():
                self._approve(tracked, command, now_ns)
            case Denial():
                self._deny(tracked, command, now_ns)
            case Cancel():
                self._cancel(tracked, command, now_ns)

    def _approve(self, tracked: TrackedAction, command: Approval, now_ns: int) -> None:
        until_ns = tracked.action.approval_deadline_ns
        if not tracked.is_open:
            self._leave_out(ActionReason.COMMAND_OUT_OF_PLACE, command)
            return
        if until_ns and now_ns >= until_ns:
            self._leave_out(ActionReason.APPROVAL_LATE, command)
            return
        tracked.approved_ns = now_ns
        tracked.action = replace(tracked.action, actor=command.actor)
        self._desk.judge(tracked, now_ns)

    def _deny(self, tracked: TrackedAction, command: Denial, now_ns: int) -> None:
        if not tracked.is_unbegun:
            self._leave_out(ActionReason.COMMAND_OUT_OF_PLACE, command)
            return
        tracked.action = replace(tracked.action, actor=command.actor)
        self._desk.chain.vetoes.veto(tracked, tracked.hosts, now_ns)
        self._desk.end(tracked, ActionState.REFUSED, ActionReason.DENIED, now_ns, command.note)

    def _cancel(self, tracked: TrackedAction, command: Cancel, now_ns: int) -> None:
        is_standing = tracked.is_standing and tracked.state is not ActionState.UNDOING
        if not tracked.is_unbegun and not is_standing:
            self._leave_out(ActionReason.COMMAND_OUT_OF_PLACE, command)
            return
        tracked.action = replace(tracked.action, actor=command.actor)
        self._desk.chain.vetoes.veto(tracked, tracked.hosts, now_ns)
        if tracked.is_unbegun:
            self._desk.end(tracked, ActionState.CANCELLED, ActionReason.CANCELLED_BY_PERSON, now_ns, command.note)
        else:
            self._releases.release([tracked], ActionReason.CANCELLED_BY_PERSON, now_ns)

    def _leave_out(self, reason: ActionReason, command: Command) -> None:
        what = f"{type(command).__name__.lower()} of {command.actor} about {command.action_id}"
        self._life.leave_out(reason, what)

"""Changes of actions: each obeys the table, gets the next revision, and is published."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from tocsin.pipeline.actions.book import ActionBook
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.pipeline.actions.transitions import check_transition
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, action_id_of
from tocsin.schemas.verdicts import ActionKind, Verdict

_LOG = logging.getLogger("tocsin.actions")
PAGING_RULE: Final = "controller"
"""Rule that pages of the controller itself name."""
_MOST_LETTERS: Final = 1000
"""Most messages without effect that are held for the dead letters."""


@dataclass(frozen=True, slots=True)
class LeftOutMessage:
    """A message that had no effect, for the dead letters.

    Attributes:
        reason: why.
        what: what it said, in a few words.
    """

    reason: ActionReason
    what: str


class ActionLife:
    """Moves actions from state to state and collects what is to be published.

    Attributes:
        epoch: epoch of the controller, which every published action carries.
        left_out: reason -> number of messages that had no effect.
        letters: the messages among them that came since they were last taken.
    """

    def __init__(self, book: ActionBook) -> None:
        """Publish changes of the actions of a book."""
        self._book = book
        self._changes: list[Action] = []
        self.epoch = 0
        self.left_out: Counter[str] = Counter()
        self.letters: list[LeftOutMessage] = []

    def collect(self) -> list[Action]:
        """Return the changes since the last call, in order."""
        found, self._changes = self._changes, []
        return found

    def begin(self, tracked: TrackedAction, state: ActionState, reason: ActionReason, detail: str, now_ns: int) -> None:
        """Remember a new action in its first state."""
        check_transition(None, state, reason)
        revision = self._book.next_revision(tracked.action.action_id)
        tracked.action = replace(
            tracked.action,
            state=state,
            reason=reason.value,
            detail=detail,
            changed_ns=now_ns,
            revision=revision,
            epoch=self.epoch,
        )
        self._book.add(tracked)
        self._publish(tracked.action)

    def move(
        self, tracked: TrackedAction, state: ActionState, reason: ActionReason, now_ns: int, detail: str = ""
    ) -> None:
        """Bring an action into another state.

        Raises:
            FieldError: the table of transitions does not have this change.
        """
        check_transition(tracked.state, state, reason)
        action = tracked.action
        tracked.action = replace(
            action,
            state=state,
            reason=reason.value,
            detail=detail,
            changed_ns=max(now_ns, action.changed_ns + 1),
            revision=action.revision + 1,
            epoch=self.epoch,
        )
        self._book.file(tracked)
        self._publish(tracked.action)

    def publish(self, tracked: TrackedAction, now_ns: int) -> None:
        """Publish an action whose fields changed, with the next revision and this controller's epoch."""
        action = tracked.action
        tracked.action = replace(
            action,
            changed_ns=max(now_ns, action.changed_ns + 1),
            revision=action.revision + 1,
            epoch=self.epoch,
        )
        self._book.file(tracked)
        self._publish(tracked.action)

    def hand_over(self, tracked: TrackedAction, holder: str, lease_ns: int) -> None:
        """Give an action to an executor until a time; the caller publishes it."""
        tracked.action = replace(tracked.action, holder=holder, lease_ns=lease_ns)
        if holder not in tracked.holders:
            tracked.holders.append(holder)

    def page(self, tracked: TrackedAction, reason: ActionReason, now_ns: int, detail: str = "") -> None:
        """Tell people of an action once for each reason in a row.

        A check before a return has no incident of its own: they are told of the actions that keep its machines out.
        """
        if tracked.action.rule == RETURN_RULE:
            self._page_unanswered(tracked, now_ns, detail or reason.meaning)
            return
        if tracked.paged == reason.value:
            return
        tracked.paged = reason.value
        action = tracked.action
        text = f"{action.kind.value} {' '.join(action.target.hosts)}: {detail or reason.meaning}"
        self.notify(tracked.verdict, action.target, reason, now_ns, text[:1000])

    def _page_unanswered(self, check: TrackedAction, now_ns: int, detail: str) -> None:
        """Tell people once of each action whose machines could not be checked: they stay out."""
        cluster = check.action.target.job.cluster
        for host in check.hosts:
            for tracked in self._book.standing(cluster, host):
                self.page(tracked, ActionReason.CHECK_UNANSWERED, now_ns, f"{host}: {detail}")

    def notify(
        self, verdict: Verdict, target: ActionTarget, reason: ActionReason, now_ns: int, detail: str = ""
    ) -> None:
        """Publish a page about a verdict: an action of kind ``notify``, which is done when it is written."""
        action_id = action_id_of(verdict.verdict_id, ActionKind.NOTIFY, target)
        known = self._book.get(action_id)
        if known is not None:
            if (known.action.reason, known.action.detail) != (reason.value, detail):
                self.move(known, ActionState.DONE, reason, now_ns, detail)
            return
        action = Action(
            action_id=action_id,
            verdict_id=verdict.verdict_id,
            verdict_update=verdict.update,
            kind=ActionKind.NOTIFY,
            target=target,
            cause=verdict.cause,
            rule=PAGING_RULE,
            budget_class=PAGING_RULE,
            issued_ns=now_ns,
            deadline_ns=max(now_ns, verdict.expires_ns),
            state=ActionState.DONE,
            reason=reason.value,
            changed_ns=now_ns,
        )
        tracked = TrackedAction(action, replace(verdict, evidence=()), PAGING_RULE, PAGING_RULE, needs_approval=False)
        self.begin(tracked, ActionState.DONE, reason, detail, now_ns)

    def leave_out(self, reason: ActionReason, what: str) -> None:
        """Count a message that has no effect, and say why."""
        self.left_out[reason.value] += 1
        self.letters = [*self.letters[-_MOST_LETTERS + 1 :], LeftOutMessage(reason, what)]
        _LOG.info("left out: %s", what, extra={"reason": reason.value})

    def _publish(self, action: Action) -> None:
        self._changes.append(action)
        _LOG.info(
            "action %s %s: %s (%s)",
            action.action_id,
            action.kind.value,
            action.state.value,
            action.reason,
            extra={"reason": action.reason},
        )

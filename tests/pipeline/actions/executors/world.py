"""A small controller and a target with steps, to try executors on: it keeps who did what, when, and by what right."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.pipeline.actions.executors.made import SECOND_NS
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAwayError
from tocsin.schemas.verdicts import ActionKind

STEPS = ("first", "second", "third")
UNBEGUN = (ActionState.APPROVED, ActionState.CLAIMED)


@dataclass
class StepTarget:
    """A target in which each step can be made once; ``places`` is what is there, by action."""

    clock: list[int]
    kinds: frozenset[ActionKind] = frozenset(ActionKind)
    places: dict[str, list[str]] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)
    is_changed: bool = False
    """Whether it is another incarnation than that of the evidence."""
    is_answer_lost: bool = False
    """The next effect is made, and its answer is lost."""

    def look(self, action: Action) -> Look:
        there = self.places.get(action.action_id, [])
        if not there and self.is_changed:
            return Look(Stage.EXPIRED, ExecutorReason.REBOOTED_SINCE)
        if len(there) == len(STEPS):
            return Look(Stage.DONE, ExecutorReason.DRAINED, effects=tuple(there))
        stage = Stage.BEGUN if there else Stage.UNTOUCHED
        return Look(stage, ExecutorReason.NEXT_EFFECT_DUE, STEPS[len(there)], effects=tuple(there))

    def look_back(self, action: Action) -> Look:
        there = self.places.get(action.action_id, [])
        if not there:
            return Look(Stage.DONE, ExecutorReason.GIVEN_BACK)
        return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, f"undo {there[-1]}")

    def make(self, action: Action, look: Look) -> None:
        there = self.places.setdefault(action.action_id, [])
        if look.step.startswith("undo"):
            there.remove(look.step.removeprefix("undo "))
        else:
            assert look.step not in there, "made twice"
            there.append(look.step)
        self.effects.append(look.step)
        if self.is_answer_lost:
            self.is_answer_lost = False
            raise TargetAwayError("no answer")


@dataclass
class SmallController:
    """The rules of the real one that executors rely on: the first claim wins, leases, begin, end, cancel, epochs."""

    action: Action
    log: list[Action] = field(default_factory=list)
    """All that was published, in order."""
    acks: list[Ack] = field(default_factory=list)

    def publish(self, now_ns: int, **changes: object) -> None:
        revision = self.action.revision + 1
        self.action = replace(self.action, revision=revision, changed_ns=now_ns, **changes)  # type: ignore[arg-type]
        self.log.append(self.action)

    def on_ack(self, ack: Ack, now_ns: int) -> None:
        self.acks.append(ack)
        action = self.action
        is_holder = ack.executor == action.holder
        if ack.kind is AckKind.CLAIMED:
            is_free = action.holder in ("", ack.executor) or now_ns >= action.lease_ns
            open_states = (*UNBEGUN, ActionState.STARTED, ActionState.UNDOING)
            if is_free and action.state in open_states and now_ns < ack.lease_ns:
                state = ActionState.CLAIMED if action.state in UNBEGUN else action.state
                lease_ns = min(ack.lease_ns, now_ns + 60 * SECOND_NS)
                self.publish(now_ns, state=state, holder=ack.executor, lease_ns=lease_ns)
        elif ack.kind is AckKind.STARTED and is_holder and action.state is ActionState.CLAIMED:
            self.publish(now_ns, state=ActionState.STARTED)
        elif ack.kind is AckKind.UNDONE and action.state is ActionState.UNDOING:
            self.publish(now_ns, state=ActionState.UNDONE)
        elif ack.kind is AckKind.DONE and action.state in (ActionState.CLAIMED, ActionState.STARTED):
            self.publish(now_ns, state=ActionState.DONE)
        elif ack.kind in (AckKind.FAILED, AckKind.REFUSED, AckKind.EXPIRED) and action.state in (
            ActionState.CLAIMED,
            ActionState.STARTED,
        ):
            self.publish(now_ns, state=ActionState(ack.kind.value))

    def on_time(self, now_ns: int) -> None:
        action = self.action
        if action.state in UNBEGUN and now_ns >= action.deadline_ns:
            self.publish(now_ns, state=ActionState.EXPIRED)
        elif action.state is ActionState.CLAIMED and now_ns >= action.lease_ns:
            self.publish(now_ns, state=ActionState.APPROVED, holder="", lease_ns=0)

    def cancel(self, now_ns: int) -> None:
        """What was not begun is cancelled; what was begun is undone."""
        if self.action.state in UNBEGUN:
            self.publish(now_ns, state=ActionState.CANCELLED)
        elif self.action.state in (ActionState.STARTED, ActionState.DONE):
            self.publish(now_ns, state=ActionState.UNDOING)

    def begin_epoch(self, now_ns: int) -> None:
        self.action = replace(self.action, epoch=self.action.epoch + 1)
        self.publish(now_ns)

"""The part that all executors share: which action is whose, for how long, and what is said about it.

Actions and time come in, messages (acks) and tasks come out. A task is one look at the target or one effect; whoever
runs the core makes it and reports back. The rules:

- Nothing is done about an action that the controller did not give to this executor, in the controller's newest epoch.
  A claim only asks. The first claim in the order of the acks wins, because the controller reads them in that order.
- No effect before the controller says that the action has begun: so a cancel that comes first wins.
- No effect without a look at the target just before. An executor that takes over finds what its predecessor did.
- No effect that could end after the lease. An executor that was paused finds its lease over, and does nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import SnapshotError, TargetAwayError, TargetError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

_WANTED: Final = frozenset(
    {ActionState.APPROVED, ActionState.CLAIMED, ActionState.STARTED, ActionState.BLOCKED, ActionState.UNDOING}
)
"""States in which an executor has to do with an action."""
_UNBEGUN: Final = frozenset({ActionState.APPROVED, ActionState.CLAIMED})
_MAY_CHANGE: Final = frozenset({ActionState.STARTED, ActionState.UNDOING})
_PAGED_TIMES: Final = 60
"""How much rarer a message is repeated that pages each time."""
_NS_PER_MILLISECOND: Final = 1_000_000


class LeftOut(StrEnum):
    """Why a message of the controller is left out; label of a metric."""

    LOWER_EPOCH = "lower_epoch"
    """It is of a controller that is not the active one any more."""
    OLD_REVISION = "old_revision"
    """A later change of this action was read."""
    OTHER_CLUSTER = "other_cluster"
    OTHER_KIND = "other_kind"
    """This executor does not do this kind."""
    OTHER_HOST = "other_host"
    """This executor acts on other machines only."""


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Settings of an executor.

    Attributes:
        cluster: cluster whose actions it does.
        name: its own name, unique among the executors of the cluster.
        kinds: kinds of actions that it does.
        hosts: the only machines on which it acts, none = on all of the cluster.
        lease_seconds: how long a lease it asks for.
        renew_seconds: it asks again when the lease lasts no longer than this.
        effect_seconds: longest time that one effect takes; with less left of the lease none is begun.
        fresh_seconds: how old a look may be when its effect is begun.
        ask_seconds: it repeats a message that the controller has not answered after this time.
        wait_seconds: how long until it looks again at a target that has to go on by itself.
        repeat_seconds: how long until it looks again at what is done, failed or blocked, and says so once more.
    """

    cluster: str
    name: str
    kinds: frozenset[ActionKind]
    hosts: frozenset[str] = frozenset()
    lease_seconds: float = 60.0
    renew_seconds: float = 30.0
    effect_seconds: float = 20.0
    fresh_seconds: float = 5.0
    ask_seconds: float = 5.0
    wait_seconds: float = 5.0
    repeat_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """One look at a target, or one effect.

    Attributes:
        action: the action, as the controller published it last.
        look: the look whose effect is due; None: a look is due.
        until_ns: an effect must not be begun at or after this time.
    """

    action: Action
    look: Look | None
    until_ns: int

    @property
    def is_back(self) -> bool:
        """Whether the action is to be undone."""
        return self.action.state is ActionState.UNDOING


@dataclass(slots=True)
class _HeldAction:
    """What the core remembers of one action.

    Attributes:
        action: the action, as published last.
        due_ns: when the next task or claim is due.
        look: look whose effect is due, None for none.
        look_ns: when it was made.
        said: last message but claims, as (kind, reason, state then).
        said_ns: when it was said.
        asked_ns: when it was claimed last.
        is_changed: whether this process made an effect of it.
    """

    action: Action
    due_ns: int
    look: Look | None = None
    look_ns: int = 0
    said: tuple[AckKind, str, ActionState] | None = None
    said_ns: int = 0
    asked_ns: int = 0
    is_changed: bool = False


class ExecutorCore:
    """Claims, leases, looks and effects of one executor. Reads no clock, and does no effect itself.

    Attributes:
        left_out: reason -> number of messages that were left out.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        """Start without actions.

        Args:
            config: settings.
        """
        self._config = config
        self._held: dict[str, _HeldAction] = {}
        self._busy: set[str] = set()
        """Actions of which a task runs."""
        self._epoch = 0
        self._now_ns = 0
        self._seq = 0
        self.left_out: Counter[LeftOut] = Counter()

    @property
    def is_idle(self) -> bool:
        """Whether no action is known that this executor may have to do with."""
        return not self._held

    def on_action(self, action: Action, now_ns: int) -> list[Ack]:
        """Take one change of an action; returns what to say."""
        now_ns = self._advance(now_ns)
        reason = self._refusal(action)
        if reason is not None:
            self.left_out[reason] += 1
            return []
        self._epoch = max(self._epoch, action.epoch)
        held = self._held.get(action.action_id)
        if action.state not in _WANTED:
            self._held.pop(action.action_id, None)
            return []
        if held is None:
            held = self._held[action.action_id] = _HeldAction(action, now_ns)
        elif held.action.state is not action.state or held.action.holder != action.holder:
            held.due_ns, held.asked_ns, held.look = now_ns, 0, None
        held.action = action
        return self._ask(held, now_ns)

    def on_time(self, now_ns: int) -> list[Ack]:
        """Ask for what is free, and for more time; called about once a second."""
        now_ns = self._advance(now_ns)
        return [ack for held in self._held.values() for ack in self._ask(held, now_ns)]

    def next_task(self, now_ns: int) -> Task | None:
        """Return the task that is due, an effect before any look; it is to be made and reported. None: nothing is due.

        At most one task of an action is out at a time.
        """
        now_ns = self._advance(now_ns)
        due = [
            held
            for name, held in self._held.items()
            if held.due_ns <= now_ns and name not in self._busy and self._is_mine(held.action, now_ns)
        ]
        if not due:
            return None
        held = min(due, key=lambda one: (one.look is None, one.due_ns, one.action.action_id))
        if held.look is not None and now_ns - held.look_ns > _ns(self._config.fresh_seconds):
            held.look = None
        self._busy.add(held.action.action_id)
        return Task(held.action, held.look, self._until_ns(held.action))

    def may_make(self, task: Task, now_ns: int) -> bool:
        """Return whether an effect may be begun; to be asked right before it.

        Not after the lease, not after a pause since the look, not if the controller said something else meanwhile, and
        no first effect after the deadline.
        """
        now_ns = self._advance(now_ns)
        held = self._held.get(task.action.action_id)
        return (
            held is not None
            and held.look is not None
            and held.look is task.look
            and held.action == task.action
            and held.action.state in _MAY_CHANGE
            and self._is_mine(held.action, now_ns)
            and now_ns < task.until_ns
            and (held.look.stage is not Stage.UNTOUCHED or now_ns < held.action.deadline_ns)
            and now_ns - held.look_ns <= _ns(self._config.fresh_seconds)
        )

    def on_look(self, task: Task, look: Look, now_ns: int) -> list[Ack]:
        """Take what a look at the target found; returns what to say."""
        now_ns = self._advance(now_ns)
        held = self._ended(task)
        if held is None or not self._is_mine(held.action, now_ns):
            return []
        if held.action.state is not task.action.state:
            return []  # the look was for another purpose; the next one is due at once
        return self._taken(held, look, now_ns)

    def on_made(self, task: Task, now_ns: int) -> None:
        """Take that an effect was made. The next look is due at once: an effect counts when it is read back."""
        held = self._ended(task)
        if held is not None and task.look is not None:
            held.is_changed = True
            held.due_ns = self._advance(now_ns)

    def on_dropped(self, task: Task, now_ns: int) -> None:
        """Take that an effect was not begun, because ``may_make`` said no: look again, with a longer lease perhaps."""
        held = self._ended(task)
        if held is not None:
            held.due_ns = self._advance(now_ns) + NS_PER_SECOND

    def on_trouble(self, task: Task, error: TargetError, now_ns: int) -> list[Ack]:
        """Take that a look or an effect failed; returns what to say."""
        now_ns = self._advance(now_ns)
        held = self._ended(task)
        if held is None or not self._is_mine(held.action, now_ns):
            return []
        reason = _reason_of(error)
        if isinstance(error, TargetAwayError):
            look = Look(Stage.BLOCKED, reason, detail=str(error))
            return self._taken(held, look, now_ns, again_seconds=self._config.wait_seconds)
        effects = task.look.effects if task.look is not None else ()
        stage = Stage.FAILED if effects or task.is_back else Stage.REFUSED
        return self._taken(held, Look(stage, reason, detail=str(error), effects=effects), now_ns)

    def snapshot(self) -> dict[str, int]:
        """Return what must outlive this process: the newest epoch, and the number of the last message.

        Actions are not kept: the controller's topic has them, and the target knows how far each is.
        """
        return {"epoch": self._epoch, "seq": self._seq}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on from what ``snapshot`` returned.

        Raises:
            SnapshotError: a value is missing or no number.
        """
        try:
            self._epoch, self._seq = (int(state[name]) for name in ("epoch", "seq"))
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"executor {self._config.name}: {type(error).__name__}: {error}") from error

    def _refusal(self, action: Action) -> LeftOut | None:
        if action.target.job.cluster != self._config.cluster:
            return LeftOut.OTHER_CLUSTER
        if action.kind not in self._config.kinds:
            return LeftOut.OTHER_KIND
        hosts = self._config.hosts
        if hosts and not (action.target.hosts and hosts.issuperset(action.target.hosts)):
            return LeftOut.OTHER_HOST
        if action.epoch < self._epoch:
            return LeftOut.LOWER_EPOCH
        held = self._held.get(action.action_id)
        if held is not None and (action.epoch, action.revision) < (held.action.epoch, held.action.revision):
            return LeftOut.OLD_REVISION
        return None

    def _is_mine(self, action: Action, now_ns: int) -> bool:
        """Whether this executor holds an action now, by the word of the active controller."""
        is_held = action.holder == self._config.name and now_ns < action.lease_ns
        return is_held and action.epoch == self._epoch and action.state is not ActionState.APPROVED

    def _until_ns(self, action: Action) -> int:
        return action.lease_ns - _ns(self._config.effect_seconds)

    def _ask(self, held: _HeldAction, now_ns: int) -> list[Ack]:
        """Claim a free action, or ask for a longer lease."""
        action = held.action
        if action.epoch != self._epoch or (action.state in _UNBEGUN and now_ns >= action.deadline_ns):
            return []
        is_ours = action.holder == self._config.name
        is_free = action.state is ActionState.APPROVED or not action.holder or now_ns >= action.lease_ns
        if action.state is ActionState.BLOCKED and not action.holder:
            return []  # the controller blocked it before it began
        left_ns = action.lease_ns - now_ns
        if not is_free and not (is_ours and left_ns <= _ns(self._config.renew_seconds)):
            return []
        if held.asked_ns and now_ns - held.asked_ns < _ns(self._config.ask_seconds):
            return []
        held.asked_ns = now_ns
        lease_ns = now_ns + _ns(self._config.lease_seconds)
        return [self._ack(action, AckKind.CLAIMED, now_ns, lease_ns=lease_ns)]

    def _taken(self, held: _HeldAction, look: Look, now_ns: int, again_seconds: float = 0.0) -> list[Ack]:
        """Decide what follows from a look."""
        config, action = self._config, held.action
        if look.stage is Stage.UNTOUCHED and held.is_changed:
            look = Look(Stage.FAILED, ExecutorReason.GIVEN_BACK_BY_SOMEBODY, detail="what was changed is gone again")
        if look.stage is Stage.UNTOUCHED and now_ns >= action.deadline_ns:
            look = Look(Stage.EXPIRED, ExecutorReason.DEADLINE_PASSED, detail="its deadline passed before it began")
        if look.stage in (Stage.UNTOUCHED, Stage.BEGUN):
            if action.state in _MAY_CHANGE:
                held.look, held.look_ns, held.due_ns = look, now_ns, now_ns
                return []
            held.due_ns = now_ns + _ns(config.ask_seconds)
            return self._say(held, AckKind.STARTED, look, now_ns, config.ask_seconds)
        if look.stage is Stage.WAITING:
            held.due_ns = now_ns + _ns(config.wait_seconds)
            return []
        held.due_ns = now_ns + _ns(again_seconds or config.repeat_seconds)
        return self._say(held, _kind_of(look.stage, is_back=action.state is ActionState.UNDOING), look, now_ns)

    def _say(
        self, held: _HeldAction, kind: AckKind, look: Look, now_ns: int, again_seconds: float | None = None
    ) -> list[Ack]:
        """Return a message, unless the same one was said a short while ago."""
        repeat_seconds = self._config.repeat_seconds * (_PAGED_TIMES if kind is AckKind.UNDO_FAILED else 1)
        again_ns = _ns(repeat_seconds if again_seconds is None else again_seconds)
        said = (kind, look.reason.value, held.action.state)
        if said == held.said and now_ns - held.said_ns < again_ns:
            return []
        held.said, held.said_ns = said, now_ns
        return [self._ack(held.action, kind, now_ns, look=look)]

    def _ack(self, action: Action, kind: AckKind, now_ns: int, *, lease_ns: int = 0, look: Look | None = None) -> Ack:
        """Return a message; its number ascends over restarts even where the snapshot is lost."""
        self._seq = max(self._seq + 1, now_ns // _NS_PER_MILLISECOND)
        reason, detail, effects = ("", "", ()) if look is None else (look.reason.value, look.detail, look.effects)
        job, name = action.target.job, self._config.name
        return Ack(
            action.action_id, job, kind, name, action.epoch, self._seq, now_ns, lease_ns, reason, detail, effects
        )

    def _ended(self, task: Task) -> _HeldAction | None:
        """Return what is known of a task's action, which is not busy any more; None: it was let go."""
        self._busy.discard(task.action.action_id)
        held = self._held.get(task.action.action_id)
        if held is not None:
            held.look = None
        return held

    def _advance(self, now_ns: int) -> int:
        """Return the time, which never goes back in one process: an old lease does not become valid again."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns


def _kind_of(stage: Stage, *, is_back: bool) -> AckKind:
    """Return the message for a stage at which nothing is to be done now."""
    if is_back:
        return AckKind.UNDONE if stage is Stage.DONE else AckKind.UNDO_FAILED
    return {
        Stage.DONE: AckKind.DONE,
        Stage.REFUSED: AckKind.REFUSED,
        Stage.EXPIRED: AckKind.EXPIRED,
        Stage.FAILED: AckKind.FAILED,
        Stage.BLOCKED: AckKind.BLOCKED,
    }[stage]


def _reason_of(error: TargetError) -> ExecutorReason:
    """Return the named reason of an error; the target's answer cannot be read where it has none."""
    try:
        return ExecutorReason(error.reason)
    except ValueError:
        return ExecutorReason.TARGET_ANSWER


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_SECOND)

"""Claims, leases, looks and effects of an executor: by example, and by a property over deaths, pauses and cancels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.actions.executors.made import SECOND_NS, made_action
from tests.pipeline.actions.executors.world import STEPS, UNBEGUN, SmallController, StepTarget
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore, LeftOut, Task
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import SnapshotError, TargetAwayError, TargetRefusedError
from tocsin.schemas.verdicts import ActionKind

START_NS = 1_000 * SECOND_NS
DRAIN = made_action(ActionKind.DRAIN, "a", now_ns=START_NS)
UNTOUCHED = Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, "first")


def core_of(name: str = "e1", **changes: Any) -> ExecutorCore:
    return ExecutorCore(ExecutorConfig("ci", name, frozenset({ActionKind.DRAIN}), **changes))


def held_by(name: str, state: ActionState, at: int = 0, lease_seconds: int = 60, **changes: Any) -> Action:
    """The action as a controller publishes it that gave it to an executor."""
    now_ns = START_NS + at * SECOND_NS
    values: dict[str, Any] = {"state": state, "holder": name, "lease_ns": now_ns + lease_seconds * SECOND_NS}
    return replace(DRAIN, **{"revision": 5, **values, **changes})


def at(seconds: float) -> int:
    return START_NS + int(seconds * SECOND_NS)


def kinds(acks: list[Ack]) -> list[AckKind]:
    return [ack.kind for ack in acks]


def task_of(core: ExecutorCore, seconds: float) -> Task:
    task = core.next_task(at(seconds))
    assert task is not None
    return task


def test_a_free_action_is_claimed_and_nothing_is_done_before_it_is_given() -> None:
    core = core_of()
    (claim,) = core.on_action(DRAIN, at(0))
    assert (claim.kind, claim.lease_ns, claim.executor) == (AckKind.CLAIMED, at(60), "e1")
    assert core.next_task(at(0)) is None
    assert core.on_time(at(1)) == []
    assert kinds(core.on_time(at(6))) == [AckKind.CLAIMED]
    core.on_action(held_by("e2", ActionState.CLAIMED), at(7))
    assert core.next_task(at(7)) is None


def test_the_begin_is_said_after_a_look_and_the_effect_waits_for_the_controller() -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.CLAIMED), at(0))
    look = task_of(core, 0)
    assert look.look is None
    assert kinds(core.on_look(look, UNTOUCHED, at(0))) == [AckKind.STARTED]
    assert core.next_task(at(1)) is None
    core.on_action(held_by("e1", ActionState.STARTED, revision=6), at(1))
    assert core.on_look(task_of(core, 1), UNTOUCHED, at(1)) == []
    effect = task_of(core, 1)
    assert effect.look == UNTOUCHED
    assert core.may_make(effect, at(1))
    core.on_made(effect, at(2))
    done = Look(Stage.DONE, ExecutorReason.DRAINED, effects=("first",))
    (ack,) = core.on_look(task_of(core, 2), done, at(2))
    assert (ack.kind, ack.reason, ack.effects) == (AckKind.DONE, "drained", ("first",))
    core.on_action(held_by("e1", ActionState.DONE, revision=7), at(3))
    assert core.is_idle


@pytest.mark.parametrize(
    ("seconds", "may"),
    [(0, True), (4.9, True), (5.1, False), (39.9, False), (41, False), (61, False)],
)
def test_an_effect_is_begun_right_after_its_look_or_not_at_all(seconds: float, may: bool) -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.STARTED), at(0))
    core.on_look(task_of(core, 0), UNTOUCHED, at(0))
    assert core.may_make(task_of(core, 0), at(seconds)) is may


def test_no_first_effect_is_made_after_the_deadline_that_passed_since_the_look() -> None:
    core, begun = core_of(), Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "second", effects=("first",))
    core.on_action(held_by("e1", ActionState.STARTED, deadline_ns=at(2)), at(0))
    core.on_look(task_of(core, 1), UNTOUCHED, at(1))
    effect = task_of(core, 1)
    assert [core.may_make(effect, at(seconds)) for seconds in (1.9, 2)] == [True, False]
    core.on_dropped(effect, at(2))
    core.on_look(task_of(core, 3), begun, at(3))
    assert core.may_make(task_of(core, 3), at(3)), "what is begun goes on"


def test_an_effect_that_could_end_after_the_lease_is_not_begun() -> None:
    core = core_of(fresh_seconds=1000.0)
    core.on_action(held_by("e1", ActionState.STARTED), at(0))
    core.on_look(task_of(core, 0), UNTOUCHED, at(0))
    effect = task_of(core, 0)
    assert [core.may_make(effect, at(seconds)) for seconds in (39.9, 40, 61)] == [True, False, False]
    core.on_dropped(effect, at(61))
    assert core.next_task(at(70)) is None


@pytest.mark.parametrize(
    "news",
    [
        held_by("e1", ActionState.CANCELLED, revision=6),
        held_by("e1", ActionState.UNDOING, revision=6),
        held_by("e2", ActionState.STARTED, revision=6),
        held_by("e1", ActionState.STARTED, revision=6, epoch=1),
    ],
)
def test_what_the_controller_says_meanwhile_stops_an_effect(news: Action) -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.STARTED), at(0))
    core.on_look(task_of(core, 0), UNTOUCHED, at(0))
    effect = task_of(core, 0)
    core.on_action(news, at(0))
    assert not core.may_make(effect, at(0))


def test_a_lower_epoch_an_old_revision_and_what_is_not_ours_are_left_out() -> None:
    core = core_of()
    core.on_action(replace(DRAIN, epoch=3, revision=9), at(0))
    core.on_action(held_by("e1", ActionState.STARTED, epoch=2, revision=10), at(0))
    core.on_action(held_by("e1", ActionState.STARTED, epoch=3, revision=8), at(0))
    core.on_action(made_action(ActionKind.REBOOT, "a"), at(0))
    core.on_action(replace(DRAIN, target=replace(DRAIN.target, job=replace(DRAIN.target.job, cluster="x"))), at(0))
    assert core.left_out == {
        LeftOut.LOWER_EPOCH: 1,
        LeftOut.OLD_REVISION: 1,
        LeftOut.OTHER_KIND: 1,
        LeftOut.OTHER_CLUSTER: 1,
    }
    assert core.next_task(at(0)) is None


def test_what_was_given_in_a_former_epoch_waits_until_the_new_controller_gives_it() -> None:
    core = core_of()
    other = made_action(ActionKind.DRAIN, "b", verdict="v2", now_ns=START_NS, epoch=2)
    core.on_action(held_by("e1", ActionState.STARTED, epoch=1), at(0))
    core.on_action(other, at(1))
    assert core.next_task(at(1)) is None
    assert core.on_time(at(40)) != []
    core.on_action(held_by("e1", ActionState.STARTED, epoch=2, revision=6), at(41))
    assert core.next_task(at(41)) is not None


def test_a_lease_is_prolonged_in_time_and_a_dead_holder_is_followed_after_it() -> None:
    ours, theirs = core_of("e1"), core_of("e2")
    action = held_by("e1", ActionState.STARTED)
    assert ours.on_action(action, at(0)) == theirs.on_action(action, at(0)) == []
    assert kinds(ours.on_time(at(29))) == []
    assert kinds(ours.on_time(at(30))) == [AckKind.CLAIMED]
    assert kinds(theirs.on_time(at(59))) == []
    assert kinds(theirs.on_time(at(60))) == [AckKind.CLAIMED]
    theirs.on_action(held_by("e2", ActionState.STARTED, at=60, revision=6), at(61))
    assert task_of(theirs, 61).look is None  # it looks before anything else


def test_what_passed_its_deadline_untouched_is_let_go_by_name() -> None:
    core = core_of()
    assert core.on_action(DRAIN, DRAIN.deadline_ns) == []
    action = held_by("e1", ActionState.STARTED, at=590)
    core.on_action(action, at(599))
    (ack,) = core.on_look(task_of(core, 599), UNTOUCHED, at(600))
    assert (ack.kind, ack.reason) == (AckKind.EXPIRED, "deadline_passed")


def test_what_is_begun_goes_on_after_its_deadline() -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.STARTED, at=590), at(599))
    assert core.on_look(task_of(core, 599), replace(UNTOUCHED, stage=Stage.BEGUN), at(601)) == []
    assert core.may_make(task_of(core, 601), at(601))


def test_what_somebody_took_back_meanwhile_is_not_done_again() -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.STARTED), at(0))
    core.on_look(task_of(core, 0), UNTOUCHED, at(0))
    core.on_made(task_of(core, 0), at(1))
    (ack,) = core.on_look(task_of(core, 1), UNTOUCHED, at(1))
    assert (ack.kind, ack.reason) == (AckKind.FAILED, "given_back_by_somebody")


def test_a_target_that_is_away_blocks_and_is_looked_at_again() -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.STARTED), at(0))
    (ack,) = core.on_trouble(task_of(core, 0), TargetAwayError("gone"), at(0))
    assert (ack.kind, ack.reason, ack.detail) == (AckKind.BLOCKED, "target_away", "gone")
    assert core.next_task(at(4)) is None
    assert core.on_trouble(task_of(core, 5), TargetAwayError("gone"), at(5)) == []  # said a short while ago
    core.on_look(task_of(core, 10), UNTOUCHED, at(10))
    assert core.may_make(task_of(core, 10), at(10))


def test_a_refusal_of_the_target_ends_the_action_and_names_what_is_there() -> None:
    for effects, kind in (((), AckKind.REFUSED), (("first",), AckKind.FAILED)):
        core = core_of()
        core.on_action(held_by("e1", ActionState.STARTED), at(0))
        core.on_look(task_of(core, 0), replace(UNTOUCHED, effects=effects), at(0))
        (ack,) = core.on_trouble(task_of(core, 0), TargetRefusedError("no right"), at(0))
        assert (ack.kind, ack.reason, ack.detail, ack.effects) == (kind, "target_refused", "no right", effects)


def test_an_undo_that_failed_is_looked_at_again_and_said_rarely() -> None:
    core = core_of()
    core.on_action(held_by("e1", ActionState.UNDOING, lease_seconds=10_000), at(0))
    failed = Look(Stage.FAILED, ExecutorReason.CHANGED_BY_SOMEBODY)
    assert kinds(core.on_look(task_of(core, 0), failed, at(0))) == [AckKind.UNDO_FAILED]
    assert core.on_look(task_of(core, 60), failed, at(60)) == []
    done = Look(Stage.DONE, ExecutorReason.GIVEN_BACK)
    assert kinds(core.on_look(task_of(core, 120), done, at(120))) == [AckKind.UNDONE]


def test_numbers_of_messages_ascend_over_restarts_with_and_without_the_snapshot() -> None:
    core = core_of()
    first = [ack.seq for seconds in (0, 6, 12) for ack in core.on_action(DRAIN, at(seconds))]
    again, lost = core_of(), core_of()
    again.restore(core.snapshot())
    later = [one.on_action(DRAIN, at(12.001))[0].seq for one in (again, lost)]
    assert sorted(set(first)) == first
    assert min(later) > first[-1]
    with pytest.raises(SnapshotError, match="epoch"):
        again.restore({"seq": 1})


def test_a_clock_that_goes_back_makes_no_old_lease_valid() -> None:
    core = core_of()
    core.on_time(at(100))
    core.on_action(held_by("e1", ActionState.STARTED), at(10))
    assert core.next_task(at(10)) is None


class World:
    """Two executors, a controller, a target; every effect is checked as it is made."""

    def __init__(self) -> None:
        self.clock = [START_NS]
        self.controller = SmallController(DRAIN)
        self.target = StepTarget(self.clock)
        self.names = ("e1", "e2")
        self.read = dict.fromkeys(self.names, 0)
        self.cores = {name: core_of(name) for name in self.names}
        self.paused: dict[str, Task | None] = dict.fromkeys(self.names)
        self.was_begun = False
        self.controller.publish(START_NS)

    def say(self, acks: list[Ack]) -> None:
        for ack in acks:
            self.controller.on_ack(ack, self.clock[0])
        self.was_begun = self.was_begun or self.controller.action.state is ActionState.STARTED

    def deliver(self, name: str, count: int = 1) -> None:
        for action in self.controller.log[self.read[name] :][:count]:
            self.read[name] += 1
            self.say(self.cores[name].on_action(action, self.clock[0]))

    def make(self, name: str) -> None:
        """Make one task; its effect, if it has one, is checked."""
        worker = ExecutorWorker(self.cores[name], self.target, lambda: self.clock[0], self.say)
        task = self.paused[name] or self.cores[name].next_task(self.clock[0])
        self.paused[name] = None
        if task is None:
            return
        before, truth, now_ns = len(self.target.effects), self.controller.action, self.clock[0]
        self.say(worker.make(task))
        for _ in self.target.effects[before:]:
            assert (truth.holder, now_ns < truth.lease_ns) == (name, True), "made after its lease"
            assert truth.state not in (*UNBEGUN, ActionState.CANCELLED), "made before it was begun"
            assert truth.epoch == task.action.epoch or self.read[name] < len(self.controller.log)

    def happen(self, event: str, name: str) -> None:
        """One event of ``EVENTS`` to one executor."""
        if event.isdigit():
            self.pass_time(name, int(event))
        else:
            getattr(self, event)(name)

    def pass_time(self, name: str, seconds: int) -> None:
        self.clock[0] += seconds * SECOND_NS
        self.controller.on_time(self.clock[0])
        self.say(self.cores[name].on_time(self.clock[0]))

    def go(self, name: str) -> None:
        """Read all that the controller published, and make one task."""
        self.deliver(name, 1000)
        self.make(name)

    def pause(self, name: str) -> None:
        """Take a task and stop before it is made."""
        self.paused[name] = self.paused[name] or self.cores[name].next_task(self.clock[0])

    def pause_for_long(self, name: str) -> None:
        """Stop right before a task, come back after the lease; somebody else goes on meanwhile."""
        self.pause(name)
        for _ in range(3):
            self.pass_time("e2", 31)
            self.go("e2")

    def repeat(self, name: str) -> None:
        for action in self.controller.log[: self.read[name]]:
            self.say(self.cores[name].on_action(action, self.clock[0]))

    def die(self, name: str) -> None:
        state = self.cores[name].snapshot()
        self.die_and_forget(name)
        self.cores[name].restore(state)

    def die_and_forget(self, name: str) -> None:
        self.cores[name], self.paused[name], self.read[name] = core_of(name), None, 0

    def lose_answer(self, name: str) -> None:
        self.target.is_answer_lost = True

    def cancel(self, name: str) -> None:
        self.controller.cancel(self.clock[0])

    def begin_epoch(self, name: str) -> None:
        self.controller.begin_epoch(self.clock[0])

    def settle(self) -> None:
        """Let the first executor alone go on, without further mishaps."""
        self.target.is_answer_lost = False
        for _ in range(400):
            self.deliver("e1", 1000)
            self.make("e1")
            self.pass_time("e1", 1)
            self.deliver("e1", 1000)
            if self.controller.action.state not in (*UNBEGUN, ActionState.STARTED, ActionState.UNDOING):
                return
        raise AssertionError(f"no end: {self.controller.action}")


EVENTS = (
    *["go"] * 8,
    *["make", "deliver", "pause", "pause_for_long"] * 2,
    *["repeat", "die", "die_and_forget", "lose_answer", "cancel", "begin_epoch"],
    *["1", "7", "31", "70"],
)
HAPPEN = st.tuples(st.sampled_from(EVENTS), st.sampled_from(["e1", "e1", "e1", "e2"]))


@settings(max_examples=150)
@given(st.lists(HAPPEN, max_size=50))
def test_whatever_dies_or_pauses_each_effect_is_made_once_and_by_right(events: list[tuple[str, str]]) -> None:
    world = World()
    for event, name in events:
        world.happen(event, name)
    world.settle()
    there = world.target.places.get(DRAIN.action_id, [])
    state = world.controller.action.state
    assert (there == list(STEPS)) is (state is ActionState.DONE)
    if state is not ActionState.DONE:
        assert there == []
    if not world.was_begun:
        assert world.target.effects == []
    for step in STEPS:
        assert world.target.effects.count(step) <= 1

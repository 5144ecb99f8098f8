"""The controller of actions over topics: one transaction each time, so that no death changes what is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, KINDS, T0, verdict_on
from tests.pipeline.kafka import action_kit
from tests.pipeline.kafka.action_kit import ANN, CONTROLLER, KEYS, SPARED, ActionWorld, status_of
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.controller import PART
from tocsin.pipeline.identity.action_records import ActionRecordChecker
from tocsin.pipeline.kafka.action_facts import StatusFacts
from tocsin.pipeline.kafka.fleet_work import FleetWork
from tocsin.pipeline.kafka.joined_work import JoinedWork
from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.pipeline.stores.base import JobStatus
from tocsin.pipeline.stores.report_codec import decode_status, encode_status
from tocsin.schemas.action_events import (
    AckKind,
    Approval,
    AttemptChange,
    AttemptChangeKind,
    Cancel,
    EngineHeartbeat,
    ExecutorHeard,
    JobFacts,
    MachineFacts,
)
from tocsin.schemas.action_records import told_change
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.kafka.topics import ACTION_ACKS, ACTIONS, EVENTS, job_key
from tocsin.schemas.records import NS_PER_SECOND, Event, RankPlace, Tick, Topology
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.codec import decode, encode


def struck(world: ActionWorld, name: str = "v1") -> None:
    """A machine is named, and the controller has looked."""
    world.settle()
    world.judge(verdict_on("n1", name=name, at_seconds=(world.now_ns - T0) / NS_PER_SECOND))
    world.run()


def test_a_verdict_becomes_an_action_that_an_executor_carries_out() -> None:
    world = ActionWorld()
    struck(world)
    for kind in (AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE):
        world.ack(world.actions()[-1], kind)
        world.run()
    assert world.states() == ["approved", "claimed", "started", "done"]
    [key] = {one.key for one in world.seats.log[ACTIONS]}
    assert key == f"{CLUSTER}/{world.actions()[0].action_id}".encode()


def test_the_operators_of_the_job_are_told_of_an_action_that_starts_it_again_once_there_is_a_fresh_tick() -> None:
    world = ActionWorld()
    struck(world)
    assert world.told() == []
    tick = Tick(world.now_ns - 3 * NS_PER_SECOND)
    world.seats.write(EVENTS, encode(tick), timestamp_ns=tick.ts_ns)
    world.run()
    [message] = world.told()
    event = decode(message.value)
    assert isinstance(event, Event)
    ActionRecordChecker(KEYS).check_record(event)
    [action] = world.actions()
    change = told_change(event)
    assert change == (JOB, action.verdict_id, action.kind, action.state, action.changed_ns)
    assert message.timestamp_ms == event.ts_ns // 1_000_000 == (tick.ts_ns + 1_700_000_000) // 1_000_000
    assert message.key == job_key(JOB)


def test_of_a_dry_run_no_job_is_told() -> None:
    world = ActionWorld(replace(SPARED, is_dry_run=True))
    struck(world)
    world.seats.write(EVENTS, encode(Tick(world.now_ns)), timestamp_ns=world.now_ns)
    world.run(2)
    assert world.states()
    assert world.told() == []


@pytest.mark.parametrize("step", range(4))
def test_a_death_between_any_two_steps_changes_no_outcome(step: int) -> None:
    world = ActionWorld()
    world.settle()
    world.judge(verdict_on("n1", at_seconds=15))
    for index, kind in enumerate((None, AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE)):
        if kind is not None:
            world.ack(world.actions()[-1], kind)
        if index == step:
            world.run(is_killed=True)
            world.run(8)  # at first everything waits until what others said is read
        world.run()
    states = [one for one in world.states() if one != "waiting"]
    assert list(dict.fromkeys(states)) == ["approved", "claimed", "started", "done"]
    assert world.states().count("done") == 1
    epochs = [one.epoch for one in world.actions()]
    assert epochs == sorted(epochs), "executors would refuse what comes in a lower epoch"


def test_a_start_is_a_new_epoch_in_which_live_actions_are_published_again() -> None:
    world = ActionWorld()
    struck(world)
    world.begin()
    world.run()
    first, second = world.actions()
    assert (first.action_id, second.epoch) == (second.action_id, first.epoch + 1)


def test_after_a_long_absence_nothing_old_is_begun() -> None:
    world = ActionWorld()
    world.settle()
    world.is_judging = False
    world.judge(verdict_on("n1", at_seconds=15))
    world.now_ns += 3600 * NS_PER_SECOND
    world.begin()
    world.is_judging = True
    world.run(30)
    assert world.states() == []
    assert world.work.counters["verdict_stale"] == 1


def test_nothing_is_begun_before_what_others_said_meanwhile_is_read() -> None:
    world = ActionWorld()
    world.settle()
    world.begin()
    world.now_ns += 40 * NS_PER_SECOND  # the heartbeat of the state no longer counts
    world.seats.write("job-status", status_of(world.now_ns), timestamp_ns=world.now_ns)
    world.judge(verdict_on("n1", at_seconds=55))
    world.run(2)
    assert [(one.state.value, one.reason) for one in world.actions()] == [("waiting", "engine_silent")]


def test_a_job_that_is_not_judged_any_more_holds_everything() -> None:
    world = ActionWorld()
    world.settle()
    world.is_judging = False
    world.run(20)
    world.judge(verdict_on("n1", at_seconds=35))
    world.run()
    assert [(one.state.value, one.reason) for one in world.actions()] == [("waiting", "engine_silent")]


def test_what_nobody_signed_who_may_say_it_is_a_dead_letter_without_effect() -> None:
    world = ActionWorld()
    struck(world)
    [action] = world.actions()
    world.ack(action, AckKind.CLAIMED, signer=None)
    world.ack(action, AckKind.CLAIMED, signer=ANN)
    world.ack(action, AckKind.CLAIMED, signer=CONTROLLER)
    world.seats.write(ACTION_ACKS, b"{", timestamp_ns=world.now_ns)
    world.run()
    assert world.states() == ["approved"]
    assert world.dead() == ["unsigned", "role_not_allowed", "unknown_key", "unsigned"]


def test_a_claim_of_a_kind_that_was_not_announced_is_a_dead_letter_without_effect() -> None:
    world = ActionWorld()
    struck(world)
    [action] = world.actions()
    world.tell(ExecutorHeard(CLUSTER, "slurm", (ActionKind.DRAIN,), world.now_ns))
    world.ack(action, AckKind.CLAIMED)
    world.run()

    assert action.kind is ActionKind.EVICT
    assert world.dead() == ["kind_not_announced"]
    assert world.actions()[-1].holder == ""


def test_an_ack_of_an_unknown_action_and_an_executor_that_counts_no_more_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ActionWorld()
    struck(world)
    [action] = world.actions()
    world.ack(replace(action, action_id="f" * 32), AckKind.DONE)
    world.run()
    expired = tuple(replace(one, revoked_ns=1) if one.role is Role.EXECUTOR else one for one in KEYS)
    with monkeypatch.context() as patch:
        patch.setattr(action_kit, "KEYS", expired)
        world.run(70)
        world.ack(action, AckKind.CLAIMED)
        world.run()
    last = world.actions()[-1]
    assert (last.state.value, last.reason) == ("waiting", "no_executor"), "it was not heard for a minute"
    assert world.dead() == ["action_unknown", "key_revoked"]
    world.run(40)
    world.tell(ExecutorHeard(CLUSTER, "slurm", KINDS, world.now_ns))
    world.run()
    world.ack(action, AckKind.CLAIMED)
    world.run()
    assert world.states() == ["approved", "waiting", "approved", "claimed"], "with a new credential it goes on"


def test_an_old_signed_message_that_is_played_again_has_no_effect() -> None:
    world = ActionWorld()
    struck(world)
    claim = world.ack(world.actions()[-1], AckKind.CLAIMED)
    world.run()
    started = world.ack(world.actions()[-1], AckKind.STARTED)
    world.run()
    world.begin()
    world.run()
    before = len(world.actions())
    for value, header in (claim, started):
        world.seats.write(ACTION_ACKS, value, timestamp_ns=world.now_ns, signature=header)
    world.run()
    assert len(world.actions()) == before
    assert world.dead() == ["ack_repeated", "ack_repeated"]


def test_a_person_cancels_and_planned_work_holds() -> None:
    world = ActionWorld()
    struck(world)
    [action] = world.actions()
    world.tell(Cancel(CLUSTER, action.action_id, "operator:ann", world.now_ns), ANN)
    world.run()
    assert (world.actions()[-1].state.value, world.actions()[-1].actor) == ("cancelled", "operator:ann")


def test_a_dry_run_shows_and_begins_nothing() -> None:
    world = ActionWorld(ControllerConfig(spare_count=8))
    struck(world)
    [action] = world.actions()
    assert (action.state.value, action.reason) == ("proposed", "dry_run")
    world.tell(Approval(CLUSTER, action.action_id, "operator:ann", world.now_ns), ANN)
    world.run()
    world.ack(action, AckKind.CLAIMED)
    world.run()
    assert {one.state.value for one in world.actions()} == {"proposed"}


def test_a_damaged_state_is_not_begun_anew() -> None:
    world = ActionWorld()
    struck(world)
    world.seats.state[PART] = b"\x00"
    with pytest.raises(SnapshotError):
        world.begin()


def test_the_state_of_an_attempt_is_heartbeat_and_list_of_machines() -> None:
    facts, job = StatusFacts(), JobKey("c1", "j", 3)
    facts.take(decode_status(status_of(5 * NS_PER_SECOND, ("b", "a"), job)))
    facts.take(decode_status(status_of(7 * NS_PER_SECOND, ("z",), JobKey("c1", "j", 2))))
    told = list(facts.due((), 8 * NS_PER_SECOND, with_heartbeats=True))
    assert [one.hosts for one in told if isinstance(one, JobFacts)] == [("a", "b")], "the later attempt counts"
    assert [one.ts_ns for one in told if isinstance(one, EngineHeartbeat)] == [7 * NS_PER_SECOND]
    assert list(facts.due((), 9 * NS_PER_SECOND, with_heartbeats=False)) == []


def test_the_state_of_an_attempt_tells_what_was_changed_about_it() -> None:
    scenario = Scenario(JobShape())
    scenario.run(12)
    engine, job = scenario.engine, scenario.job.job
    facts, now_ns = StatusFacts(), scenario.job.now_ns

    def told() -> list[tuple[AttemptChange, ...]]:
        state = next(iter(engine.status()["jobs"]))
        facts.take(decode_status(encode_status(JobStatus(job, now_ns, True, state))))
        found = facts.due((), now_ns, with_heartbeats=False)
        return [one.changes for one in found if isinstance(one, JobFacts) and one.changes]

    assert told() == []
    pipeline = engine.pipeline(job)
    assert pipeline is not None
    pipeline.graph.take([Topology(job, "m00", now_ns, (RankPlace(3, "m00", world_size=8),))])
    assert told() == [tuple(AttemptChange(AttemptChangeKind.PLACES, now_ns, host) for host in ("m00", "n03"))]
    assert told() == [], "the same is told once"


def test_the_end_of_an_attempt_is_told_once() -> None:
    facts, job = StatusFacts(), JobKey("c1", "j", 3)
    facts.take(decode_status(status_of(5 * NS_PER_SECOND, ("a",), job)))
    list(facts.due((), 6 * NS_PER_SECOND, with_heartbeats=False))
    ended = decode_status(status_of(7 * NS_PER_SECOND, ("a",), job))
    facts.take(replace(ended, state={**ended.state, "ended": True}))
    told = list(facts.due((), 8 * NS_PER_SECOND, with_heartbeats=False))
    assert [(one.hosts, one.is_over) for one in told if isinstance(one, JobFacts)] == [(("a",), True)]
    assert list(facts.due((), 9 * NS_PER_SECOND, with_heartbeats=False)) == []


def test_what_agents_and_ranks_told_is_passed_on_once_and_at_a_change() -> None:
    facts, second = StatusFacts(), NS_PER_SECOND
    machine = MachineFacts("c1", "n1", 0, boot_id="first", driver="570")
    job = JobFacts(JobKey("c1", "j", 1), 0, slurm_job_id="77")
    told = [list(facts.due((machine, job), at * second, with_heartbeats=False)) for at in (10, 20)]
    assert told == [[replace(machine, ts_ns=10 * second), replace(job, ts_ns=10 * second)], []]
    booted = replace(machine, boot_id="second", booted_ns=25 * second)
    assert list(facts.due((booted, job), 30 * second, with_heartbeats=False)) == [replace(booted, ts_ns=30 * second)]


def test_joined_works_keep_their_states_apart() -> None:
    world = ActionWorld()
    struck(world)
    joined = JoinedWork(FleetWork(), world.work, "actions/")
    counts = dict.fromkeys(joined.inputs, 1)
    state = {f"actions/{name}": data for name, data in world.seats.state.items()}
    joined.begin(state, counts)
    changed, outputs = joined.changes(), joined.outputs()
    assert [one.topic for one in outputs] == [ACTIONS], "the live action in the new epoch"
    assert f"actions/{PART}" in changed
    again = JoinedWork(FleetWork(), world.work, "actions/")
    again.begin({**state, **{name: data for name, data in changed.items() if data is not None}}, counts)
    assert world.work.controller.epoch == 3

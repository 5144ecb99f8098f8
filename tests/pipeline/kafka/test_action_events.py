"""What agents report of hardware reaches the controller over topics."""

from __future__ import annotations

from dataclasses import replace

from tests.pipeline.actions.kit import CLUSTER, JOB, T0, verdict_on
from tests.pipeline.actions.policy.samples import event, ladder, verdict
from tests.pipeline.kafka.action_kit import ANN, ActionWorld
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.schemas.action_events import AckKind, Approval
from tocsin.schemas.kafka.topics import EVENTS
from tocsin.schemas.records import NS_PER_SECOND, Tick
from tocsin.schemas.verdicts import ActionKind, VerdictState
from tocsin.schemas.wire.codec import encode

LIVE = ControllerConfig(is_dry_run=False, may_shrink=True)


def report(world: ActionWorld, name: str, payload: dict[str, object]) -> None:
    """An agent reports an event of now, and the controller looks."""
    told = replace(event(name, payload), job=JOB, ts_ns=world.now_ns)
    world.seats.write(EVENTS, encode(told), timestamp_ns=world.now_ns)
    world.seats.write(EVENTS, encode(Tick(world.now_ns)), timestamp_ns=world.now_ns)
    world.run()


def test_a_repeated_code_of_user_programs_leads_to_a_probe_also_after_another_process_took_over() -> None:
    world = ActionWorld(LIVE, ladder)
    world.settle()
    report(world, "xid", {"code": 31})
    world.run(30)
    assert world.actions() == []
    world.run(70)
    report(world, "xid", {"code": 31})
    world.run(20)
    world.begin()
    world.run(100)
    world.alive()
    world.run(10)
    [probe] = {one.action_id: one for one in world.actions()}.values()
    assert (probe.kind.value, probe.state.value, probe.rule) == ("probe", "waiting_approval", "user_code")
    assert (probe.reason, probe.detail) == ("job_runs", f"n1: job {JOB.job_id} works on it")
    world.tell(Approval(CLUSTER, probe.action_id, "operator:ann", world.now_ns), ANN)
    world.run(2)
    probe = world.actions()[-1]
    assert (probe.kind.value, probe.state.value, probe.rule) == ("probe", "approved", "user_code")
    assert probe.target.hosts == ("n1",)


def test_two_network_alerts_in_five_minutes_evict() -> None:
    world = ActionWorld(LIVE, ladder)
    world.settle()
    report(world, "ib_port", {"port": "mlx5_0/1", "state": "down"})
    world.run(30)
    now_ns = world.now_ns
    expires_ns = now_ns + 600 * NS_PER_SECOND
    told = replace(verdict("nic_dropout"), job=JOB, onset_ns=now_ns, detected_ns=now_ns, expires_ns=expires_ns)
    world.judge(told)
    world.run()
    assert [(one.kind.value, one.state.value) for one in world.actions()] == [("evict", "approved")]


def test_a_damaged_record_is_left_out() -> None:
    world = ActionWorld(LIVE, ladder)
    world.settle()
    world.seats.write(EVENTS, b"\x00nothing", timestamp_ns=world.now_ns)
    report(world, "xid", {"code": 31})
    assert sum(world.work.counters.values()) == 1
    assert world.dead() == [], "records have dead letters of their own, which the engine writes"


def test_a_machine_comes_back_after_quiet_steps_in_the_states_of_the_attempt() -> None:
    world = ActionWorld(replace(LIVE, quiet_step_count=100))
    world.settle()
    at_seconds = (world.now_ns - T0) / NS_PER_SECOND
    drained = replace(verdict_on("n1", action=ActionKind.DRAIN, at_seconds=at_seconds), job=JOB)
    world.judge(drained)
    world.run()
    for kind in (AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE):
        world.ack(world.actions()[-1], kind)
        world.run()
    world.step += 150
    world.run(20)
    assert world.states()[-1] == "done", "the verdict stands"
    world.judge(replace(drained, update=1, state=VerdictState.RESOLVED))
    world.run(12)
    for _ in range(3):
        world.step += 60
        world.run(12)
    assert [(one.state.value, one.reason) for one in world.actions()][-1] == ("undoing", "quiet_steps")

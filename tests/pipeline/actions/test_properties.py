"""Whatever happens in whatever order: budgets hold, nothing acts late or twice, and machines come back as told."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.pipeline.actions.action_world import World
from tests.pipeline.actions.kit import CLUSTER, ScriptedLadder, verdict_on
from tests.pipeline.actions.world_books import CONFIG, HOSTS, JOB_NAMES
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.schemas.action_events import (
    AckKind,
    Approval,
    Cancel,
    CheckResult,
    Denial,
    HumanChange,
    HumanChangeKind,
    QuietSteps,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, FaultKind, VerdictState

S = ActionState
hosts = st.sampled_from(HOSTS)
picks = st.integers(0, 63)
executors = st.sampled_from(("ex0", "ex1"))
kinds = st.sampled_from(
    (ActionKind.EVICT, ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESTART, ActionKind.REBOOT, ActionKind.PROBE)
)
causes = st.sampled_from(("gpu_ecc", "nic_down", "frozen", "disk"))
UNBEGUN = (S.PROPOSED, S.WAITING, S.WAITING_APPROVAL, S.APPROVED, S.CLAIMED)
EXAMPLES = int(os.environ.get("TOCSIN_PROPERTY_RUNS", "25"))
PHASES = tuple(Phase) if "TOCSIN_PROPERTY_SHRINK" in os.environ else (Phase.explicit, Phase.reuse, Phase.generate)
"""Shrinking takes minutes; TOCSIN_PROPERTY_SHRINK=1 asks for it."""
STEPS = 50


class ActionMachine(RuleBasedStateMachine):
    """Draws what happens to a controller and its world, one thing a step."""

    @initialize(is_dry_run=st.sampled_from((False,) * 7 + (True,)))
    def begin(self, is_dry_run: bool) -> None:
        self.world = World(replace(CONFIG, is_dry_run=is_dry_run))
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.config.is_dry_run:
            assert self.world.effects == []

    # verdicts

    @rule(
        host=hosts,
        kind=kinds,
        cause=causes,
        has_witnesses=st.sampled_from((True, True, True, False)),
        state=st.sampled_from((VerdictState.CONFIRMED, VerdictState.CONFIRMED, VerdictState.OPEN)),
    )
    def strike(self, host: str, kind: ActionKind, cause: str, has_witnesses: bool, state: VerdictState) -> None:
        self._strike((host,), kind, cause, has_witnesses=has_witnesses, state=state)

    @rule(host=hosts, cause=causes)
    def suspect_of_slowness(self, host: str, cause: str) -> None:
        """A machine is to be checked, and its job may go on."""
        self.recover()
        self._strike((host,), ActionKind.PROBE, cause, fault=FaultKind.FAIL_SLOW)
        self._carry_out_newest()

    @rule()
    def recover(self) -> None:
        """Engine and executors live, what executors said arrives, and each job can go on with fewer machines."""
        world = self.world
        self._deliver_all()
        world.is_alive = world.is_executor_alive = True
        world.tick()
        for job in JOB_NAMES:
            world.books.means[job] = (0, True)
            world.tell_job(job)

    @rule(
        host=st.sampled_from(("n0", "n1", "n4")),
        kind=kinds,
        cause=causes,
        is_well=st.booleans(),
        has_witnesses=st.sampled_from((True, True, False)),
    )
    def strike_and_carry_out(
        self, host: str, kind: ActionKind, cause: str, is_well: bool, has_witnesses: bool = True
    ) -> None:
        if is_well:
            self.recover()
        self._strike((host,), kind, cause, has_witnesses=has_witnesses)
        self._carry_out_newest()

    @rule(host=hosts, cause=causes)
    def deny_and_strike_again(self, host: str, cause: str) -> None:
        """A person denies an eviction, and the same machine shows the same again."""
        self.recover()
        self._strike((host,), ActionKind.EVICT, cause, has_witnesses=False)
        for action in self._newest():
            self.world.command(Denial(CLUSTER, action.action_id, "operator:eve", self.world.now_ns))
        self.strike_and_carry_out(host, ActionKind.EVICT, cause, is_well=True)

    @rule(host=hosts, kind=kinds, cause=causes)
    def executors_die(self, host: str, kind: ActionKind, cause: str) -> None:
        self.recover()
        self.world.is_executor_alive = False
        self.wait(100)
        self.strike_and_carry_out(host, kind, cause, is_well=False)

    @rule(cause=causes)
    def trickle(self, cause: str) -> None:
        """One machine after the other shows a class, is evicted, passes a check and comes back."""
        for host in HOSTS[:3]:
            self.strike_and_carry_out(host, ActionKind.EVICT, cause, is_well=True)
            self.check_passes(host)
            self._carry_out_newest()
            self.wait(4000)

    @rule(host=hosts, cause=causes, is_given_back=st.sampled_from((True, True, False)))
    def check_before_return(self, host: str, cause: str, is_given_back: bool) -> None:
        """A machine is to be checked before it returns; a person may give it back before the check begins."""
        self.recover()
        self._strike((host,), ActionKind.EVICT, cause)
        self._carry_out_newest()
        self.wait(700)
        known = list(self.world.latest.values())
        checks = [one for one in known if one.rule == RETURN_RULE and one.target.hosts == (host,)]
        if is_given_back:
            self.world.uncordon(host)
        for check in checks:
            if check.state is S.APPROVED:
                self._carry_out(check)

    @rule(names=st.sampled_from((HOSTS[:2], HOSTS[4:6])), cause=causes)
    def disbelieve(self, names: tuple[str, ...], cause: str) -> None:
        """A person calls two verdicts about machines of one job wrong."""
        for host in names:
            self._strike((host,), ActionKind.DRAIN, cause)
            self._say_feedback(f"v{self.count}", is_true=False)

    @rule(cause=causes)
    def strike_leaf(self, cause: str) -> None:
        leaf = Component(ComponentKind.LEAF, "leaf0")
        self._strike(("n0", "n2"), ActionKind.EVICT, cause, common=leaf)

    @rule(cause=causes)
    def flood(self, cause: str) -> None:
        for host in HOSTS:
            self._strike((host,), ActionKind.EVICT, cause)

    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        self._update(pick, VerdictState.CONFIRMED, "still_true")

    @rule(
        pick=picks,
        how=st.sampled_from(
            (
                (VerdictState.RESOLVED, "recovered"),
                (VerdictState.RESOLVED, "job_ended"),
                (VerdictState.RESOLVED, "new_attempt"),
                (VerdictState.EXPIRED, "engine_restarted"),
                (VerdictState.CANCELLED, "monitoring_lost"),
            )
        ),
    )
    def close(self, pick: int, how: tuple[VerdictState, str]) -> None:
        self._update(pick, *how)

    @rule(pick=picks)
    def replay_verdict(self, pick: int) -> None:
        if self.world.history:
            before = dict(self.world.latest)
            self.world.judge(self.world.history[pick % len(self.world.history)])
            assert self.world.latest == before

    # executors

    @rule(pick=picks, executor=executors)
    def claim(self, pick: int, executor: str) -> None:
        action = self._pick(pick, S.APPROVED, S.CLAIMED, S.STARTED, S.UNDOING, S.WAITING)
        if action is not None:
            self.world.ack(action, AckKind.CLAIMED, executor)

    @rule(pick=picks, executor=executors)
    def act(self, pick: int, executor: str) -> None:
        action = self._pick(pick, S.CLAIMED, S.UNDOING)
        if action is not None:
            self.world.act(action, executor)

    @rule(pick=picks)
    def carry_out(self, pick: int) -> None:
        action = self._pick(pick, S.APPROVED, S.UNDOING)
        if action is not None:
            self._carry_out(action)

    def _newest(self) -> list[Action]:
        """Return the actions of the newest verdict, without pages."""
        found = [one for one in self.world.latest.values() if one.verdict_id == f"v{self.count}"]
        return [one for one in found if one.kind is not ActionKind.NOTIFY]

    def _carry_out_newest(self) -> None:
        for action in self._newest():
            if action.state in {S.APPROVED, S.UNDOING}:
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        self._deliver_all()
        self.world.ack(action, AckKind.CLAIMED, "ex0")
        self._deliver_all()
        self.world.act(action, "ex0")
        self._deliver_all()

    @rule(pick=picks, executor=executors, kind=st.sampled_from((AckKind.FAILED, AckKind.REFUSED, AckKind.BLOCKED)))
    def give_up(self, pick: int, executor: str, kind: AckKind) -> None:
        action = self._pick(pick, S.CLAIMED)
        if action is not None and action.may_begin(executor, self.world.now_ns):
            self.world.ack(action, kind, executor)
            self._deliver_all()

    @rule()
    def deliver(self) -> None:
        self.world.deliver()

    @rule(pick=picks)
    def deliver_again(self, pick: int) -> None:
        self.world.deliver(again=pick)

    # time and failures

    @rule(seconds=st.sampled_from((1, 1, 4, 20, 31, 100, 700, 4000, 90_000, 700_000)))
    def wait(self, seconds: int) -> None:
        self.world.now_ns += seconds * NS_PER_SECOND
        self.world.tick()

    @rule(seconds=st.sampled_from((1, 50, 5000)))
    def jump_back(self, seconds: int) -> None:
        self.world.now_ns -= seconds * NS_PER_SECOND
        self.world.tick()

    @rule(is_alive=st.booleans())
    def engine(self, is_alive: bool) -> None:
        self.world.is_alive = is_alive

    @rule(is_alive=st.booleans())
    def executor(self, is_alive: bool) -> None:
        self.world.is_executor_alive = is_alive

    @rule(job=st.sampled_from(JOB_NAMES), means=st.sampled_from(((0, False), (1, False), (2, False))), cause=causes)
    def job_tells(self, job: str, means: tuple[int, bool], cause: str) -> None:
        """How many machines can take the place of another; the job cannot go on without, and one is struck."""
        self.recover()
        self.world.books.means[job] = means
        self.world.tell_job(job)
        self.strike_and_carry_out("n1" if job == "a" else "n4", ActionKind.EVICT, cause, is_well=False)

    @rule()
    def crash(self) -> None:
        world = self.world
        parts = world.controller.snapshot()
        world.controller = ActionController(world.config, ScriptedLadder())
        world.controller.restore(parts)
        assert world.controller.snapshot() == parts

    @rule()
    def take_over(self) -> None:
        world = self.world
        world.publish(world.controller.begin_epoch(world.controller.epoch + 1, world.now_ns))

    @rule(host=hosts)
    def reboot(self, host: str) -> None:
        self.world.machines[host].boot += 1
        self.world.tell_machine(host)

    @rule(job=st.sampled_from(JOB_NAMES))
    def new_attempt(self, job: str) -> None:
        self.world.attempts[job] += 1
        self.world.tell_job(job)

    @rule(host=hosts, cause=causes)
    def move_ranks(self, host: str, cause: str) -> None:
        """Ranks are moved to a machine, and it shows something."""
        self.recover()
        self.world.tell_change(host)
        self.strike_and_carry_out(host, ActionKind.EVICT, cause, is_well=False)

    # people, checks, work

    @rule(pick=picks)
    def approve(self, pick: int) -> None:
        action = self._pick(pick, S.WAITING_APPROVAL, S.WAITING, S.PROPOSED, S.CANCELLED)
        if action is not None:
            self.world.command(Approval(CLUSTER, action.action_id, "operator:eve", self.world.now_ns))

    @rule(pick=picks)
    def deny(self, pick: int) -> None:
        action = self._pick(pick, *S)
        if action is not None:
            self.world.command(Denial(CLUSTER, action.action_id, "operator:eve", self.world.now_ns))

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        action = self._pick(pick, *S)
        if action is not None:
            self.world.command(Cancel(CLUSTER, action.action_id, "operator:eve", self.world.now_ns))

    @rule(host=hosts)
    def uncordon(self, host: str) -> None:
        self.world.uncordon(host)

    @rule(host=hosts)
    def cordon(self, host: str) -> None:
        self.world.machines[host].is_kept_by_person = True
        self.world.hear(HumanChange(CLUSTER, host, HumanChangeKind.CORDONED, "person", self.world.now_ns))

    @rule(host=hosts)
    def check_passes(self, host: str) -> None:
        world = self.world
        told = CheckResult(CLUSTER, host, world.boot_id(host), "burn", True, True, world.check_ns(host), gpu_count=8)
        world.release(told, (host,))

    @rule(host=hosts, is_passed=st.booleans())
    def check_proves_nothing(self, host: str, is_passed: bool) -> None:
        """At rest, or failed: nothing comes back."""
        world = self.world
        if not is_passed:
            world.books.on_proven(one for one in world.latest.values() if host in one.target.hosts)
        ts_ns = world.check_ns(host)
        world.hear(CheckResult(CLUSTER, host, world.boot_id(host), "burn", is_passed, not is_passed, ts_ns))

    @rule(host=hosts, step_count=st.sampled_from((9, 10)))
    def quiet(self, host: str, step_count: int) -> None:
        told = QuietSteps(JobKey(CLUSTER, "a"), host, step_count, self.world.now_ns)
        if step_count >= CONFIG.quiet_step_count:
            self.world.release(told, (host,))
        else:
            self.world.hear(told)

    @rule(pick=picks, is_true=st.booleans())
    def feedback(self, pick: int, is_true: bool) -> None:
        if self.world.verdicts:
            self._say_feedback(sorted(self.world.verdicts)[pick % len(self.world.verdicts)], is_true=is_true)

    def _say_feedback(self, name: str, *, is_true: bool) -> None:
        world = self.world
        told = Feedback(CLUSTER, name, is_true, "", "operator:eve", world.now_ns)
        mine = [one for one in world.latest.values() if one.verdict_id == name]
        if is_true:
            world.books.on_proven(mine)
            world.hear(told)
            return
        world.books.on_wrong(mine, world.now_ns)
        world.release(told, tuple({host for one in mine for host in one.target.hosts}))
        world.stopped |= {
            one.action_id
            for one in mine
            if one.state in {S.PROPOSED, S.WAITING, S.WAITING_APPROVAL, S.APPROVED, S.CLAIMED}
        }

    @precondition(lambda self: self.world.work is None)
    @rule(host=hosts)
    def maintain(self, host: str) -> None:
        world, target = self.world, Component(ComponentKind.HOST, host)
        end_ns = world.now_ns + 600 * NS_PER_SECOND
        world.work = Maintenance("0" * 16, CLUSTER, target, world.now_ns, end_ns, "fans", "operator:eve", world.now_ns)
        world.hear(world.work)
        self.strike_and_carry_out(host, ActionKind.EVICT, "disk", is_well=True)

    @invariant()
    def always(self) -> None:
        if hasattr(self, "world"):
            self.world.check_always()

    def _strike(self, names: tuple[str, ...], kind: ActionKind, cause: str, **fields: Any) -> None:
        world = self.world
        self.count += 1
        has_witnesses = fields.pop("has_witnesses", True)
        job_name = "a" if names[0] in HOSTS[: len(HOSTS) // 2] else "b"
        job = JobKey(CLUSTER, job_name, world.attempts[job_name])
        verdict = verdict_on(*names, name=f"v{self.count}", action=kind, cause=cause, job=job, **fields)
        verdict = replace(
            verdict,
            onset_ns=world.now_ns,
            detected_ns=world.now_ns,
            expires_ns=world.now_ns + 600 * NS_PER_SECOND,
            witnesses=verdict.witnesses if has_witnesses else (),
        )
        world.judge(verdict)

    def _update(self, pick: int, state: VerdictState, reason: str) -> None:
        world = self.world
        if not world.verdicts:
            return
        known = world.verdicts[sorted(world.verdicts)[pick % len(world.verdicts)]]
        now_ns = max(world.now_ns, known.detected_ns)
        expires_ns = world.now_ns + 600 * NS_PER_SECOND
        world.judge(
            replace(
                known, update=known.update + 1, state=state, reason=reason, detected_ns=now_ns, expires_ns=expires_ns
            )
        )

    def _deliver_all(self) -> None:
        while self.world.outbox:
            self.world.deliver()

    def _pick(self, pick: int, *states: ActionState) -> Action | None:
        found = [one for one in self.world.latest.values() if one.state in states and one.kind is not ActionKind.NOTIFY]
        return found[pick % len(found)] if found else None


def run(example_count: int) -> None:
    """Run the machine so many times."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        ActionMachine,
        settings=settings(
            max_examples=example_count,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=checks,
            phases=PHASES,
        ),
    )


@pytest.mark.timeout(7200)
def test_whatever_happens_budgets_hold_and_machines_come_back_only_as_told() -> None:
    run(EXAMPLES)

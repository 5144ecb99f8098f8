"""Timelines of what is done about verdicts, each named after what operators complain of (see docs/actions.md).

The policy is the shipped one, with dry-run off; a Slurm in memory keeps every effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.action_timelines import DAY, HOUR, KINDS, MINUTE, ActingFleet
from tests.pipeline.actions.policy.samples import JOB, A
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.actions.policy.policy_file import load_policy
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.schemas.action_events import Approval, Cancel, QuietSteps
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict, VerdictState

S = ActionState


def evicted(fleet: ActingFleet, host: str = "n003") -> Action:
    """Let a machine be evicted, and return the action that was done."""
    fleet.accuse("ecc_error", host, name=f"ecc-{host}")
    fleet.run(30)
    assert fleet.on(host).state is S.DONE
    assert fleet.out() == [host]
    return fleet.on(host)


class TestComplaint6StaleVerdictsAreExecuted:
    def test_a_breaker_that_closes_days_later_lets_nothing_old_through(self) -> None:
        fleet = ActingFleet(host_count=48)
        for host in fleet.hosts[:12]:
            fleet.accuse("nvlink_error", host)
            fleet.run(2)
        effects = list(fleet.slurm.effects)
        assert len(fleet.out()) <= 2
        fleet.run(3 * DAY, step=HOUR)

        assert fleet.slurm.effects == effects
        assert {one.state for one in fleet.of(A.EVICT)} <= {S.DONE, S.EXPIRED}
        fleet.restart_controller()
        for one in list(fleet.judged):
            fleet.judge(one)
        fleet.run(MINUTE)
        assert fleet.slurm.effects == effects

    @pytest.mark.parametrize("is_state_lost", [False, True])
    def test_a_controller_that_comes_back_days_later_does_nothing_old(self, is_state_lost: bool) -> None:
        fleet = ActingFleet()
        fleet.stop("e1")
        fleet.accuse("ecc_error", "n003")
        fleet.accuse("process_frozen", "n004", action=A.RESTART)
        fleet.seconds += 3 * DAY  # nobody runs meanwhile
        if is_state_lost:
            fleet.forget_everything()
        else:
            fleet.restart_controller()
        fleet.start("e1")
        fleet.run(20 * MINUTE, step=5)

        assert fleet.slurm.effects == []
        assert {one.state for one in fleet.of(A.EVICT, A.RESTART)} == {S.EXPIRED}

    @pytest.mark.parametrize("before", ["approved", "claimed"])
    def test_an_executor_that_comes_back_days_later_does_nothing_old(self, before: str) -> None:
        fleet = ActingFleet()
        if before == "approved":
            fleet.stop("e1")
        fleet.accuse("ecc_error", "n003")
        if before == "claimed":
            fleet.claim("e1")
            assert fleet.on("n003").state is S.CLAIMED
            fleet.stop("e1")
        fleet.run(3 * DAY, step=HOUR)
        fleet.start("e1")
        fleet.run(20 * MINUTE, step=5)

        assert fleet.slurm.effects == []
        assert [one.state for one in fleet.published if one.kind is A.EVICT][-1] is S.EXPIRED

    def test_an_approval_days_later_begins_nothing(self) -> None:
        fleet = ActingFleet(host_count=48)
        for host in ("n001", "n002", "n003"):
            fleet.accuse("ecc_error", host)
            fleet.run(90 * MINUTE, step=MINUTE)
            fleet.place(1, *(one for one in fleet.hosts[:24] if one not in fleet.out()))
        [asked] = [one for one in fleet.published if one.state is S.WAITING_APPROVAL]
        effects = list(fleet.slurm.effects)
        fleet.run(2 * DAY, step=HOUR)
        fleet.tell(Approval(JOB.cluster, asked.action_id, "uid:1", fleet.now_ns))
        fleet.run(MINUTE)

        assert (asked.target.hosts, asked.reason) == (("n003",), "class_unproven")
        assert [one.state for one in fleet.published if one.action_id == asked.action_id][-1] is S.EXPIRED
        assert fleet.slurm.effects == effects


class RebootingLadder(PolicyLadder):
    """The shipped policy, and a reboot after each drain that was done; ``drained`` is the verdict by host."""

    drained: dict[str, Verdict]

    def on_action(self, action: Action, now_ns: int) -> tuple[Proposal, ...]:
        found = super().on_action(action, now_ns)
        if action.kind is not A.DRAIN or action.state is not S.DONE:
            return found
        [host] = action.target.hosts
        named = Component(ComponentKind.HOST, host)
        return (*found, Proposal(self.drained[host], A.REBOOT, named, (host,), "reboot_drained", action.cause))


class TestComplaint7CancelAndRecoverRaces:
    @pytest.mark.parametrize("when", ["asked", "approved", "claimed"])
    def test_a_cancelled_drain_does_not_reboot(self, when: str) -> None:
        policy = RebootingLadder(load_policy())
        fleet = ActingFleet(policy=policy)
        slow = fleet.accuse("thermal_throttle", "n003", action=A.DRAIN)
        policy.drained = {"n003": slow}
        fleet.run(10)
        drain, reboot = fleet.on("n003", A.DRAIN), fleet.on("n003", A.REBOOT)
        assert (drain.state, reboot.state) == (S.DONE, S.WAITING_APPROVAL)
        if when != "asked":
            fleet.tell(Approval(JOB.cluster, reboot.action_id, "uid:1", fleet.now_ns))
        if when == "claimed":
            fleet.claim("e1")
            assert fleet.on("n003", A.REBOOT).state is S.CLAIMED
        fleet.tell(Cancel(JOB.cluster, drain.action_id, "uid:1", fleet.now_ns))
        if when == "asked":
            fleet.tell(Approval(JOB.cluster, reboot.action_id, "uid:2", fleet.now_ns))
        fleet.run(20 * MINUTE, step=5)

        assert fleet.on("n003", A.DRAIN).state is S.UNDONE
        assert not any("reboot" in one for one in fleet.slurm.effects)
        assert fleet.out() == []
        assert fleet.slurm.jobs[1].restarts == 0

    def test_a_fresh_quarantine_outlives_what_an_old_recovery_says(self) -> None:
        fleet = ActingFleet()
        old = fleet.accuse("thermal_throttle", "n003", action=A.DRAIN)
        fleet.run(10)
        fleet.check("n003", is_passed=True)
        fleet.run(10)
        assert fleet.out() == []
        checked_ns = fleet.now_ns
        fleet.run(HOUR, step=MINUTE)
        evicted(fleet)
        fleet.renew(old, state=VerdictState.RESOLVED, reason="recovered")
        fleet.renew(old, state=VerdictState.CANCELLED, reason="recovered")
        fleet.tell(QuietSteps(JOB, "n003", 900, checked_ns))
        fleet.tell(Feedback(JOB.cluster, old.verdict_id, False, "", "uid:1", fleet.now_ns))
        fleet.run(HOUR, step=MINUTE)

        assert fleet.out() == ["n003"]
        assert fleet.on("n003").state is S.DONE

    def test_a_person_who_gives_a_machine_back_is_obeyed(self) -> None:
        fleet = ActingFleet()
        evicted(fleet)
        fleet.run(MINUTE)
        fleet.give_back_by_hand("n003")
        fleet.place(1, *fleet.hosts)
        effects = list(fleet.slurm.effects)
        fleet.run(HOUR, step=MINUTE)
        again = fleet.accuse("ecc_error", "n003", name="again")
        for _ in range(20):
            fleet.run(MINUTE, step=20)
            again = fleet.renew(again)
        assert (fleet.out(), fleet.slurm.effects) == ([], effects)
        assert fleet.on("n003").state is S.BLOCKED
        assert "held_for_long" in fleet.pages()

        fleet.accuse("gpu_card_drop", "n003")  # evidence of another kind
        fleet.run(30)
        assert fleet.out() == ["n003"]

    def test_a_drain_ends_no_job(self) -> None:
        fleet = ActingFleet()
        fleet.accuse("thermal_throttle", "n003", action=A.DRAIN)
        fleet.run(HOUR, step=MINUTE)

        assert fleet.out() == ["n003"]
        assert (fleet.slurm.jobs[1].state, fleet.slurm.jobs[1].restarts) == ("RUNNING", 0)


def passed_check(fleet: ActingFleet) -> None:
    fleet.check("n003", is_passed=True, boot="boot2-n003")


def quiet_steps(fleet: ActingFleet) -> None:
    fleet.tell(QuietSteps(JOB, "n003", 500, fleet.now_ns))


def feedback_false(fleet: ActingFleet) -> None:
    fleet.tell(Feedback(JOB.cluster, "ecc-n003", False, "a bad cable", "uid:1", fleet.now_ns))


def cancelled(fleet: ActingFleet) -> None:
    fleet.tell(Cancel(JOB.cluster, fleet.on("n003").action_id, "uid:1", fleet.now_ns))


class TestComplaint11NodesReturnTooEarly:
    @pytest.mark.parametrize("way", [passed_check, quiet_steps, feedback_false, cancelled])
    def test_what_looks_healthy_after_a_reboot_does_not_return(self, way: Callable[[ActingFleet], None]) -> None:
        fleet = ActingFleet()
        evicted(fleet)
        fleet.renew(fleet.judged[0], state=VerdictState.RESOLVED, reason="new_attempt")
        fleet.run(MINUTE)
        fleet.reboot("n003")
        fleet.check("n003", is_passed=True, is_under_load=False, boot="boot2-n003")
        fleet.check("n003", is_passed=True, boot="boot-n003")  # of before the reboot
        fleet.check("n003", is_passed=False, boot="boot2-n003")
        fleet.tell(QuietSteps(JOB, "n003", 499, fleet.now_ns))
        fleet.restart_controller()
        fleet.run(3 * DAY, step=HOUR)
        assert fleet.out() == ["n003"]

        fleet.run(1)
        way(fleet)
        fleet.run(30)
        assert fleet.out() == []
        assert fleet.on("n003").state is S.UNDONE

    def test_a_machine_that_fails_again_goes_again(self) -> None:
        fleet = ActingFleet()
        evicted(fleet)
        fleet.run(MINUTE)
        fleet.check("n003", is_passed=True)
        fleet.run(MINUTE)
        assert fleet.out() == []
        fleet.place(1, *fleet.hosts)
        fleet.run(2 * HOUR, step=MINUTE)
        fleet.accuse("ecc_error", "n003", name="again")
        fleet.run(30)
        assert fleet.out() == ["n003"]

    def test_a_machine_that_was_given_back_unvalidated_is_taken_for_its_next_fault(self) -> None:
        fleet = ActingFleet()
        evicted(fleet)
        fleet.run(MINUTE)
        fleet.give_back_by_hand("n003")
        fleet.run(MINUTE)
        assert fleet.on("n003").state is S.UNDONE
        fleet.place(1, *fleet.hosts)
        fleet.run(13 * HOUR, step=HOUR)  # the person's word holds for twelve hours
        fleet.accuse("ecc_error", "n003", name="again")
        fleet.run(30)
        assert fleet.out() == ["n003"]


class TestFlaps:
    def test_one_flap_keeps_no_machine_drained(self) -> None:
        fleet = ActingFleet()
        flap = fleet.accuse("nic_dropout", "n003")
        fleet.run(MINUTE)
        fleet.renew(flap, state=VerdictState.RESOLVED, reason="recovered")
        fleet.run(DAY, step=HOUR)
        fleet.accuse("nic_dropout", "n003", name="tomorrow")
        fleet.run(HOUR, step=MINUTE)

        assert fleet.slurm.effects == []
        assert fleet.of(A.EVICT, A.DRAIN, A.RESTART) == []

    def test_a_port_that_flapped_twice_returns_after_a_check_and_one_more_flap_does_not_keep_it(self) -> None:
        fleet = ActingFleet()
        first = fleet.accuse("nic_dropout", "n003", name="first")
        fleet.run(MINUTE)
        fleet.renew(first, state=VerdictState.RESOLVED, reason="recovered")
        second = fleet.accuse("nic_dropout", "n003", name="second")
        fleet.run(MINUTE)
        assert fleet.out() == ["n003"]
        fleet.renew(second)
        fleet.check("n003", is_passed=True)
        fleet.run(MINUTE)
        fleet.renew(replace(second, update=9))
        fleet.run(DAY, step=HOUR)
        assert fleet.out() == []


class TestJobThatIsKilledAgainAndAgain:
    def test_a_dangling_phase_spends_the_restart_budget_and_pages(self) -> None:
        fleet = ActingFleet()
        for number in range(48):  # a day: every half an hour the job is taken for frozen in its phase
            job = fleet.place(1, *fleet.hosts, attempt=number)
            frozen = fleet.accuse("process_frozen", "n003", name=f"f{number}", job=job, action=A.RESTART)
            for _ in range(6):
                fleet.run(10)
                fleet.run(5 * MINUTE - 10, step=145)
                frozen = fleet.renew(frozen)
            fleet.renew(frozen, state=VerdictState.RESOLVED, reason="new_attempt")
        restarts = [one for one in fleet.of(A.RESTART) if one.state is S.DONE]

        assert len(restarts) == 9  # ten a day, the last of them for other evidence
        assert fleet.pages().count("held_for_long") == 48 - 9
        assert fleet.out() == []


class TestOneSwitchThatReallyDied:
    def test_its_machines_are_one_action_for_a_person(self) -> None:
        fleet = ActingFleet(host_count=64, job_hosts_count=64)
        dead = tuple(fleet.hosts[:32])
        leaf = Component(ComponentKind.LEAF, "leaf0")
        one = fleet.accuse("machine_unreachable", *dead, common=leaf)
        fleet.run(MINUTE, step=5)
        [action] = fleet.of(A.EVICT)
        assert (action.state, action.target.hosts) == (S.WAITING_APPROVAL, dead)
        assert fleet.slurm.effects == []
        assert len(fleet.pages()) == 1

        fleet.renew(one)
        fleet.tell(Approval(JOB.cluster, action.action_id, "uid:1", fleet.now_ns))
        fleet.run(2 * MINUTE, step=5)
        assert fleet.of(A.EVICT)[0].state is S.DONE
        assert fleet.out() == list(dead)
        assert fleet.slurm.jobs[1].restarts == 1

    def test_it_is_one_action_also_where_two_of_them_are_out_already(self) -> None:
        fleet = ActingFleet(host_count=64, job_hosts_count=64)
        for host in fleet.hosts[:6]:
            fleet.accuse("machine_unreachable", host)
            fleet.run(2)
        [first] = fleet.out()
        left = tuple(one for one in fleet.hosts if one != first)
        job = fleet.place(1, *left, attempt=1)
        leaf = Component(ComponentKind.LEAF, "leaf0")
        fleet.accuse("machine_unreachable", *(one for one in left if one < "n032"), common=leaf, job=job)
        fleet.run(MINUTE, step=5)
        asked = [one for one in fleet.of(A.EVICT) if one.state is S.WAITING_APPROVAL]
        assert [len(one.target.hosts) for one in asked] == [31]


REAL = {
    "gpu_card_drop": ("n250", A.EVICT),
    "ecc_error": ("n256", A.EVICT),
    "machine_unreachable": ("n264", A.EVICT),
    "thermal_throttle": ("n272", A.DRAIN),
    "process_frozen": ("n280", A.RESTART),
}


class FleetBeside:
    """The view of the fleet, which hears the same verdicts.

    Attributes:
        lines: its own lines.
    """

    def __init__(self, fleet: ActingFleet) -> None:
        """All machines stand behind leaves of sixteen."""
        self._fleet, self._view = fleet, FleetView(FleetConfig(), JOB.cluster)
        self.lines: list[Verdict] = []
        for row, host in enumerate(fleet.hosts):
            self._view.hosts.place(host, f"leaf{row // 16}")

    def hear(self, one: Verdict) -> None:
        """Hear all machines and a job's verdict."""
        now_ns = self._fleet.now_ns
        for host in self._fleet.hosts:
            self._view.hosts.heard(host, one.job.job_id, now_ns)
        self._view.on_verdicts([one], now_ns)
        self.lines += self._view.on_time(now_ns)


class TestFloodOfOneClass:
    @pytest.mark.parametrize("days", [0.0, 24.5])
    def test_a_fleet_of_288_loses_two_machines_and_real_faults_act_meanwhile(self, days: float) -> None:
        fleet = ActingFleet(host_count=288, job_hosts_count=8)
        pause = days * DAY / 214
        real, beside = list(REAL.items()), FleetBeside(fleet)
        for row in range(214):
            job = replace(JOB, job_id=f"j{row // 8 + 1}")
            beside.hear(fleet.accuse("nvlink_error", f"n{row:03d}", job=job))
            if row % 40 == 20 and real:
                cause, (host, asked) = real.pop()
                own = replace(JOB, job_id=f"j{int(host[1:]) // 8 + 1}")
                beside.hear(fleet.accuse(cause, host, job=own, action=asked))
            fleet.run(3, step=3)
            fleet.run(pause, step=HOUR)
        acted = {(one.cause, one.target.hosts) for one in fleet.published if one.state is S.DONE and one.kind in KINDS}

        assert {(cause, (host,)) for cause, (host, _) in REAL.items()} <= acted
        assert len([host for host in fleet.out() if host < "n214"]) <= 2
        assert len(acted) - len(REAL) <= 2
        [incident] = [one for one in beside.lines if one.update == 0]
        assert (incident.job.job_id, incident.suspects, incident.action) == (FLEET_JOB_ID, (), A.NOTIFY)

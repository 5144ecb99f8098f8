"""Whole walks from what hosts say to what is carried out: a restart does not come before the eviction of its fault.

The policy is the shipped one with dry-run off, and an executor does at once what it may.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.timelines import build_scenario
from tocsin.pipeline.actions.config import ControllerConfig, ns
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.actions.policy.policy_file import load_policy
from tocsin.pipeline.lab.testing import FakeJob, Scenario
from tocsin.schemas import events
from tocsin.schemas.action_events import (
    Ack,
    AckKind,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    JobFacts,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND, Event, JobRecord, Severity
from tocsin.schemas.verdicts import ActionKind, Verdict

_KINDS = tuple(one for one in ActionKind if one not in {ActionKind.NONE, ActionKind.NOTIFY, ActionKind.PROBE})
Done = tuple[int, str, tuple[str, ...]]


class ActingScenario:
    """Follows a scenario: its verdicts go to a controller, and what that allows is carried out in the same second.

    Attributes:
        done: (second, kind, machines) of what was carried out.
        changes: all changes of actions, without pages.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Follow a scenario whose job may go on with fewer machines."""
        self.done: list[Done] = []
        self.changes: list[Action] = []
        self._job = scenario.job.job
        self._start_ns = scenario.shape.start_ns
        self._controller = ActionController(
            ControllerConfig(is_dry_run=False, may_shrink=True), PolicyLadder(load_policy())
        )
        hosts = tuple(rank.host for rank in scenario.job.ranks)
        self._controller.on_event(JobFacts(self._job, self._start_ns, hosts), self._start_ns)
        scenario.followers.append(self._second)

    def _second(self, records: Sequence[JobRecord], verdicts: Sequence[Verdict], now_ns: int) -> None:
        acting, cluster = self._controller, self._job.cluster
        acting.on_event(EngineHeartbeat(cluster, EngineWay.EMBEDDED, now_ns), now_ns)
        acting.on_event(ExecutorHeard(cluster, "e1", _KINDS, now_ns), now_ns)
        found = [action for one in records if isinstance(one, Event) for action in acting.on_hardware(one, now_ns)]
        for one in verdicts:
            found += acting.on_verdict(one, now_ns)
        found += acting.on_time(now_ns)
        while found:
            self._carry_out(found.pop(0), found, now_ns)

    def _carry_out(self, action: Action, found: list[Action], now_ns: int) -> None:
        if action.kind is ActionKind.NOTIFY:
            return
        self.changes.append(action)
        if action.state is not ActionState.APPROVED or action.kind not in _KINDS:
            return
        self.done.append(((now_ns - self._start_ns) // NS_PER_SECOND, action.kind.value, action.target.hosts))
        for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), 1):
            lease_ns = now_ns + ns(30) if kind is AckKind.CLAIMED else 0
            ack = Ack(action.action_id, self._job, kind, "e1", action.epoch, seq, now_ns, lease_ns, effects=("x",))
            found += self._controller.on_ack(ack, now_ns)

    def held_by(self, kind: ActionKind) -> list[str]:
        """Return the reasons for which actions of a kind waited, in order."""
        return [one.reason for one in self.changes if one.kind is kind and one.state is ActionState.WAITING]


def told(job: FakeJob, rank: int, xid: int) -> None:
    """Let a rank's host report an XID of the kernel's."""
    job.event(rank, events.XID, Severity.FATAL, code=xid, pci="0000:c1:00.0")


def acted() -> tuple[Scenario, FakeJob, ActingScenario]:
    """Return a scenario of eight hosts, its job, and what is done about it."""
    scenario, job = build_scenario()
    return scenario, job, ActingScenario(scenario)


class TestRestartWaitsForItsVerdict:
    def test_a_card_that_the_kernel_tells_of_a_second_after_the_process_died(self) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(job.kill, 3)
        scenario.at(21).inject(told, job, 3, 79)
        scenario.run(60)

        assert acting.done == [(23, "evict", ("n03",))]
        assert acting.held_by(ActionKind.RESTART) == ["verdict_open"]

    def test_a_killed_process_is_restarted_as_soon_as_its_verdict_is_confirmed(self) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(job.kill, 3)
        scenario.run(60)

        assert acting.done == [(24, "restart", ("n03",))]

    def test_a_frozen_process_waits_no_longer_than_before(self) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(job.freeze, 3)
        scenario.run(60)

        assert acting.done == [(30, "restart", ("n03",))]
        assert acting.held_by(ActionKind.RESTART) == []

    @pytest.mark.parametrize("xid", [13, 31])
    def test_a_code_of_the_program_a_second_later_takes_no_machine(self, xid: int) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(job.kill, 3, signal=0, code=1)
        scenario.at(21).inject(told, job, 3, xid)
        scenario.run(60)

        assert [(kind, hosts) for _, kind, hosts in acting.done] == [("restart", ("n03",))]


class TestABrokenPartBesideAFrozenProcess:
    @pytest.mark.parametrize("gap_seconds", [0, 5])
    def test_its_machine_is_evicted(self, gap_seconds: int) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(told, job, 3, 79)
        scenario.at(20 + gap_seconds).inject(job.freeze, 3)
        scenario.run(60)

        assert [(kind, hosts) for _, kind, hosts in acting.done] == [("evict", ("n03",))]

    @pytest.mark.parametrize("xid", [13, 31, 43, 45, 999])
    def test_a_code_that_is_no_broken_part_takes_no_machine(self, xid: int) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(told, job, 3, xid)
        scenario.at(20).inject(job.freeze, 3)
        scenario.run(60)

        assert {kind for _, kind, _ in acting.done} <= {"restart"}

    def test_what_another_machine_told_takes_neither(self) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(told, job, 5, 79)
        scenario.at(20).inject(job.freeze, 3)
        scenario.run(90)

        assert "evict" not in [kind for _, kind, _ in acting.done]

    @pytest.mark.parametrize("gap_seconds", [30, 120])
    def test_what_was_told_long_before_the_job_stood_takes_no_machine(self, gap_seconds: int) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(told, job, 3, 79)
        scenario.at(20 + gap_seconds).inject(job.freeze, 3)
        scenario.run(gap_seconds + 60)

        assert [(kind, hosts) for _, kind, hosts in acting.done] == [("restart", ("n03",))]

    def test_a_port_that_may_come_back_takes_no_machine_at_once(self) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(job.event, 3, events.IB_PORT, Severity.ERROR, port="mlx5_0/1", state="down")
        scenario.at(20).inject(job.freeze, 3)
        scenario.run(60)

        assert "evict" not in [kind for _, kind, _ in acting.done]

    def test_a_rank_that_entered_another_collective_keeps_its_machine(self) -> None:
        scenario, job, acting = acted()
        scenario.at(20).inject(told, job, 3, 79)
        scenario.at(20).inject(job.skip_collective, 3)
        scenario.run(60)

        assert "evict" not in [kind for _, kind, _ in acting.done]

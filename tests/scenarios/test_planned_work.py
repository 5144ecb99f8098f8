"""Timelines of planned work: seen and stored meanwhile, told and acted on only where the fault outlasts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fleet_timelines import HOUR, Fleet, named
from tests.pipeline.runtime.embedded.noted_life import NotedLife
from tests.pipeline.waiting import until
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.lab.testing import JobShape
from tocsin.pipeline.runtime.embedded.fleet_follower import attach_fleet
from tocsin.pipeline.runtime.embedded.note_follower import attach_notes
from tocsin.schemas import events
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import NS_PER_SECOND, Severity
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Suspect, Verdict, VerdictState


def plan(fleet: Fleet, kind: ComponentKind, name: str, hours: float = 2.0) -> Maintenance:
    """Plan work from now on, and return it."""
    end_ns = fleet.now_ns + int(hours * HOUR * NS_PER_SECOND)
    word = Maintenance(
        f"{kind.value}-{name}", "c", Component(kind, name), fleet.now_ns, end_ns, "new card", "uid:1", fleet.now_ns
    )
    fleet.view.on_maintenance(word)
    return word


def renamed(verdict: Verdict, now_ns: int, host: str) -> Verdict:
    """Return a verdict's next line, which names another host."""
    return replace(
        verdict, update=verdict.update + 1, suspects=(Suspect(Component(ComponentKind.HOST, host)),), detected_ns=now_ns
    )


class TestIdleHost:
    def test_what_it_reports_is_seen_and_asks_for_nothing_until_the_work_ends(self) -> None:
        fleet = Fleet()
        plan(fleet, ComponentKind.HOST, "n005")
        fleet.event("n005", events.XID, code=79)
        fleet.run(1.9 * HOUR)
        assert {(tuple(named(one)), one.action) for one in fleet.lines} == {(("n005",), ActionKind.NONE)}
        fleet.restart()
        fleet.run(0.2 * HOUR)
        told = [one for one in fleet.lines if one.action is not ActionKind.NONE]
        assert [(one.reason, one.action) for one in told] == [("planned_work_ended", ActionKind.DRAIN)]
        assert told[0].verdict_id == fleet.lines[0].verdict_id

    def test_an_announced_boot_leaves_no_incident(self) -> None:
        fleet = Fleet()
        plan(fleet, ComponentKind.HOST, "n005")
        fleet.event("n005", events.XID, code=79)
        fleet.event("n005", events.IB_PORT, port="mlx5_0/1", state="down")
        fleet.run(60.0)
        fleet.mute.add("n005")
        fleet.run(HOUR)
        fleet.mute.clear()
        fleet.event("n005", events.AGENT, edge="start")
        fleet.run(3 * HOUR)
        assert [one.action for one in fleet.opened()] == [ActionKind.NONE]
        assert (fleet.lines[-1].state, fleet.lines[-1].reason) == (VerdictState.RESOLVED, "started_under_planned_work")
        assert fleet.view.live == ()

    def test_a_boot_that_nobody_announced_takes_nothing_back(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.run(60.0)
        fleet.event("n005", events.AGENT, edge="start")
        fleet.run(HOUR)
        assert [(named(one), one.action) for one in fleet.view.live] == [(["n005"], ActionKind.DRAIN)]

    def test_a_port_that_is_down_still_when_the_work_of_its_leaf_ends_is_told_then(self) -> None:
        fleet = Fleet()
        plan(fleet, ComponentKind.LEAF, "leaf0")
        fleet.event("n005", events.IB_PORT, port="mlx5_0/1", state="down")
        fleet.run(1.9 * HOUR)
        assert fleet.lines == []
        fleet.run(0.2 * HOUR)
        [found] = fleet.opened()
        assert (named(found), found.action) == (["n005"], ActionKind.DRAIN)


def fleet_causes(fleet: Fleet) -> list[str]:
    """Return the causes of the fleet's standing incidents."""
    return sorted(one.cause for one in fleet.view.live if one.job.job_id == FLEET_JOB_ID)


class TestManyHosts:
    def test_hosts_that_join_from_outside_the_work_are_an_incident_of_their_own_and_told(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:12]:
            plan(fleet, ComponentKind.HOST, host)
        inside = []
        for host in fleet.hosts[:4]:
            inside.append(fleet.verdict(host, 151))
            fleet.run(60.0)
        assert fleet_causes(fleet) == ["planned_work"]
        assert [fleet.view.covering(one.verdict_id) != "" for one in inside] == [True] * 4
        assert [one.verdict.cause for one in fleet.pager.pages if not named(one.verdict)] == []
        outside = []
        for row, host in enumerate(fleet.hosts[100:160]):
            outside.append(fleet.verdict(host, 151, f"j{row % 10}"))
            fleet.run(60.0)
            fleet.restart()
        assert "planned_work" in fleet_causes(fleet)
        [common] = [one for one in fleet.view.live if one.job.job_id == FLEET_JOB_ID and one.cause != "planned_work"]
        assert {fleet.view.covering(one.verdict_id) for one in outside} == {common.verdict_id}
        assert common.verdict_id not in {fleet.view.covering(one.verdict_id) for one in inside}
        assert common.verdict_id in {one.verdict.verdict_id for one in fleet.pager.pages}
        fleet.run(3 * HOUR)
        assert len(fleet_causes(fleet)) == 1, "the incident of the work ends with it"

    def test_one_host_outside_the_work_is_not_covered_by_its_incident(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:8]:
            plan(fleet, ComponentKind.HOST, host)
            fleet.event(host, events.XID, code=79)
        fleet.run(60.0)
        assert fleet_causes(fleet) == ["planned_work"]
        fleet.event("n200", events.XID, code=79)
        fleet.run(60.0)
        [alone] = [one for one in fleet.view.live if named(one) == ["n200"]]
        assert (alone.action, fleet.view.covering(alone.verdict_id)) == (ActionKind.DRAIN, "")

    def test_what_stands_when_the_work_ends_is_told_then_as_one(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:16]:
            plan(fleet, ComponentKind.HOST, host)
            fleet.event(host, events.XID, code=79)
        fleet.run(1.9 * HOUR)
        assert fleet.pager.pages == []
        fleet.run(0.2 * HOUR)
        [cause] = fleet_causes(fleet)
        assert cause != "planned_work"
        assert [one.verdict.cause for one in fleet.pager.pages] == [cause]
        fleet.run(48 * HOUR, step=600.0)
        assert len(fleet.pager.pages) == 1, "they stand, and nobody is told of each"

    def test_what_a_boot_under_the_work_took_back_counts_no_more(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:16]:
            plan(fleet, ComponentKind.HOST, host)
            fleet.event(host, events.XID, code=79)
        fleet.run(HOUR)
        for host in fleet.hosts[:16]:
            fleet.event(host, events.AGENT, edge="start")
        fleet.run(2 * HOUR)
        assert fleet.view.live == ()
        assert fleet.pager.pages == []

    def test_a_log_line_of_the_work_counts_no_more_when_it_has_ended(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:16]:
            plan(fleet, ComponentKind.HOST, host)
            fleet.event(host, events.XID, code=151)
        fleet.run(3 * HOUR)
        assert fleet.view.live == ()
        assert (fleet.lines[-1].state, fleet.lines[-1].reason) == (VerdictState.RESOLVED, "planned_work_ended")

    def test_what_was_given_before_the_work_stays_what_it_is(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:16]:
            fleet.event(host, events.XID, code=79)
        fleet.seconds += 1.0
        for host in fleet.hosts[:16]:
            plan(fleet, ComponentKind.HOST, host)
        fleet.run(60.0)
        [cause] = fleet_causes(fleet)
        assert cause != "planned_work"


class TestRepeatOffence:
    @pytest.mark.parametrize(
        ("kind", "name"), [(ComponentKind.HOST, "n005"), (ComponentKind.LEAF, "leaf0"), (ComponentKind.JOB, "j1")]
    )
    def test_what_began_under_planned_work_is_none(self, kind: ComponentKind, name: str) -> None:
        fleet = Fleet()
        plan(fleet, kind, name)
        fleet.verdict("n005", 79, "j1", check=True)
        fleet.run(60.0)
        held = fleet.verdict("n005", 48, "j1")
        fleet.feedback(held.verdict_id, is_true=True)
        fleet.run(60.0)
        assert fleet.view.status()["repeat_offenders"] == 0
        fleet.run(2 * HOUR)
        for job in ("j2", "j3"):
            fleet.verdict("n005", 79, job, check=True)
            fleet.run(60.0)
        [found] = fleet.opened()
        assert found.reason == "repeat_offender"
        assert "2 verdicts" in found.evidence[0].text

    def test_a_word_that_comes_before_its_verdict_counts(self) -> None:
        """After a restart people's words are known at once; a verdict may be known only by its next line."""
        fleet = Fleet()
        for job in ("j1", "j2"):
            fleet.feedback(f"{job}-n005-79-{int(fleet.seconds)}", is_true=True)
            fleet.restart()
            fleet.verdict("n005", 79, job)
        fleet.run(2.0)
        assert [one.reason for one in fleet.opened()] == ["repeat_offender"]

    def test_a_word_counts_for_the_hosts_that_the_verdict_named_then(self) -> None:
        fleet = Fleet()
        for job in ("j1", "j2"):
            made = fleet.verdict("n005", 79, job)
            fleet.run(5.0)
            fleet.feedback(made.verdict_id, is_true=True)
            fleet.run(0.5)
            fleet.line(renamed(made, fleet.now_ns, "n006"))
            fleet.restart()
            fleet.run(5.0)
        assert "n006" not in [host for one in fleet.opened() for host in named(one)]

    @pytest.mark.parametrize("is_late", [False, True])
    def test_a_word_that_arrives_after_the_next_line_counts_for_the_hosts_of_its_own_time(self, is_late: bool) -> None:
        fleet = Fleet()
        for job in ("j1", "j2"):
            made = fleet.verdict("n005", 79, job)
            fleet.run(5.0)
            word = Feedback("c", made.verdict_id, True, "looked at it", "uid:1", fleet.now_ns)
            fleet.run(5.0)
            if is_late:
                fleet.line(renamed(made, fleet.now_ns, "n006"))
            fleet.view.on_feedback(word, fleet.now_ns)
            fleet.run(5.0)
        assert [named(one) for one in fleet.opened()] == ([] if is_late else [["n005"]])

    @pytest.mark.parametrize("state", [VerdictState.CANCELLED, VerdictState.RESOLVED])
    @pytest.mark.parametrize("is_checked", [False, True])
    def test_what_evidence_takes_back_does_not_count(self, state: VerdictState, is_checked: bool) -> None:
        fleet = Fleet()
        made = [fleet.verdict("n005", 79, job, check=is_checked) for job in ("j1", "j2")]
        fleet.feedback(made[0].verdict_id, is_true=True)
        fleet.feedback(made[1].verdict_id, is_true=True)
        fleet.seconds += 5.0
        for one in made:
            fleet.line(replace(one, update=1, state=state, reason="gone", detected_ns=fleet.now_ns))
            fleet.line(one)  # the first line comes again
        fleet.run(5.0)
        counts = state is not VerdictState.CANCELLED
        assert fleet.view.status()["repeat_offenders"] == int(counts)
        for one in made:
            fleet.feedback(one.verdict_id, is_true=True)
        fleet.run(5.0)
        assert fleet.view.status()["repeat_offenders"] == 1, "a later word counts"

    def test_a_failed_check_counts_for_the_host_that_failed_it(self) -> None:
        fleet = Fleet()
        for job in ("j1", "j2"):
            one = fleet.make("n005", 79, job, check=True)
            suspects = (*one.suspects, Suspect(Component(ComponentKind.HOST, "n006")))
            fleet.line(replace(one, suspects=suspects))
        fleet.run(5.0)
        assert [named(one) for one in fleet.opened()] == [["n005"]]

    def test_upheld_incidents_of_an_idle_host_count(self) -> None:
        fleet = Fleet()
        for _ in range(2):
            fleet.event("n005", events.XID, code=79)
            fleet.run(60.0)
            [found] = [one for one in fleet.view.live if one.reason == "certain_signal_when_idle"]
            fleet.feedback(found.verdict_id, is_true=True)
            fleet.busy["n005"] = "j1"
            fleet.run(2 * HOUR, step=60.0)
            fleet.busy.clear()
            fleet.run(HOUR, step=60.0)
        assert [(one.reason, named(one)) for one in fleet.opened()][-1] == ("repeat_offender", ["n005"])

    def test_false_takes_the_count_back(self) -> None:
        fleet = Fleet()
        made = [fleet.verdict("n005", 79, job) for job in ("j1", "j2")]
        for one in made:
            fleet.feedback(one.verdict_id, is_true=True)
        fleet.run(2.0)
        assert fleet.view.status()["repeat_offenders"] == 1
        fleet.feedback(made[0].verdict_id, is_true=False)
        fleet.run(60.0)
        assert (fleet.lines[-1].state, fleet.lines[-1].reason) == (VerdictState.CANCELLED, "denied_by_human")
        assert fleet.view.live == ()


# --- in an engine -----------------------------------------------------------------------------------


class OnceUpheld(NotedLife):
    """A life in which one upheld verdict makes a repeat offender."""

    def attached(self) -> None:
        self.fleet = attach_fleet(self.service, self.folder, FleetConfig(repeat_count=1))
        self.notes = attach_notes(self.service, self.folder, self.fleet, lambda _sql, _fmt: b"")


@pytest.fixture
def life(tmp_path: Path) -> Iterator[OnceUpheld]:
    life = OnceUpheld(tmp_path, JobShape(leaf_hosts_count=4))
    life.run(25)
    yield life
    if life.is_up:
        life.end()


def untold(life: OnceUpheld, verdict: Verdict) -> str:
    """Ask as the alerts do, each second."""
    return life.notes.book.silence(verdict, life.job.now_ns)


def test_nobody_is_told_of_a_jobs_failure_under_its_planned_work_until_it_ends(life: OnceUpheld) -> None:
    [job] = life.service.engine.running_jobs()
    life.plan(target=job.job_id, for_seconds=20)
    reasons: list[str] = []
    life.job.kill(3)

    released: list[Verdict] = []

    def ask(_second: int) -> None:
        reasons.extend(untold(life, one) for one in life.service.engine.live_verdicts())
        released.extend(life.notes.released)

    life.run(15, ask)
    assert set(reasons) == {"under_maintenance"}
    assert released == []
    life.kill()
    life.start()  # the plan is known before the first verdict: the journal's seconds are judged again
    until(lambda: life.service.writer.waiting_count == 0)
    assert {one.state for one in life.newest_actions()} == {ActionState.WAITING}
    reasons.clear()
    life.run(15, ask)
    assert set(reasons) == {"under_maintenance", ""}
    assert reasons == sorted(reasons, reverse=True), "once it has ended, it has ended"
    until(lambda: ActionState.PROPOSED in {one.state for one in life.newest_actions()})
    [found] = life.incidents().values()
    assert found.state in (VerdictState.OPEN, VerdictState.CONFIRMED)
    assert [(one.verdict_id, one.update) for one in released] == [(found.verdict_id, found.update)], "told at once"


def test_a_persons_word_reaches_the_fleet_and_so_does_its_contrary(life: OnceUpheld) -> None:
    life.job.event(3, events.XID, Severity.FATAL, code=79)
    life.job.kill(3)
    life.run(10)
    [verdict] = life.service.engine.live_verdicts()
    assert "repeat_offender" not in {one.reason for one in life.incidents().values()}
    life.client.call("feedback", id=verdict.verdict_id, is_true=True, note="the card was dead")
    life.run(2)
    until(lambda: "repeat_offender" in {one.reason for one in life.incidents().values()})
    life.client.call("feedback", id=verdict.verdict_id, is_true=False, note="it was the cable")
    life.run(2)
    until(lambda: "denied_by_human" in {one.reason for one in life.incidents().values()})
    life.kill()
    life.start()
    life.run(2)
    assert life.fleet.live() == []

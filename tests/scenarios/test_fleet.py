"""Timelines of a whole fleet, each named after what operators complain of (see docs/fleet.md)."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.fleet_timelines import HOUR, Fleet, named
from tocsin.pipeline.incidents.fleet.config import DAY_NS
from tocsin.schemas import events
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, HostStatus, JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Suspect,
    Verdict,
    VerdictState,
)


class TestComplaint1SingleFatalSamples:
    def test_one_sample_of_what_may_pass_accuses_no_idle_host(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=151)
        fleet.run(HOUR)
        fleet.event("n005", events.XID, code=151)  # an hour later: not consecutive
        fleet.run(HOUR)
        assert fleet.lines == []

    def test_three_samples_that_last_are_an_incident(self) -> None:
        fleet = Fleet()
        for _ in range(3):
            fleet.event("n005", events.XID, code=151)
            fleet.run(60.0)
        [found] = fleet.opened()
        assert named(found) == ["n005"]
        assert (found.job.job_id, found.reason) == (IDLE_JOB_ID, "lasting_signal_when_idle")

    def test_a_gpu_that_fell_off_the_bus_is_certain_at_once(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79, pci="0000:c1:00.0")
        fleet.at(1.0)
        [found] = fleet.opened()
        assert (named(found), found.cause, found.action) == (["n005"], "gpu_card_drop", ActionKind.DRAIN)

    def test_codes_of_applications_and_unknown_codes_never_accuse(self) -> None:
        fleet = Fleet()
        for _ in range(20):
            for code in (13, 31, 43, 45, 94, 9999, 169):
                fleet.event("n005", events.XID, code=code)
            fleet.run(60.0)
        assert fleet.lines == []

    def test_214_of_288_hosts_in_weeks_and_63_on_one_day_are_one_incident(self) -> None:
        fleet, draw = Fleet(), random.Random(7)
        struck = draw.sample(fleet.hosts, 214)
        days = [10.0 + draw.random() for _ in range(63)] + [draw.uniform(0.0, 24.5) for _ in range(151)]
        members: list[Verdict] = []
        for day, host in sorted(zip(days, struck, strict=True)):
            while fleet.seconds + HOUR < day * 24 * HOUR:
                fleet.at(fleet.seconds + HOUR)
            fleet.at(max(fleet.seconds, day * 24 * HOUR))
            fleet.event(host, events.XID, job="j1", code=151)
            members.append(fleet.verdict(host, 151, f"j{len(members) % 30}"))
            fleet.at(fleet.seconds + 1.0)
        [found] = fleet.opened()
        assert (named(found), found.job.job_id, found.cause) == ([], FLEET_JOB_ID, "common_component")
        assert found.action is ActionKind.NOTIFY
        assert all(fleet.view.covering(one.verdict_id) == found.verdict_id for one in members)
        fleet.run(8 * 24 * HOUR, HOUR)
        assert fleet.lines[-1].state is VerdictState.RESOLVED
        assert fleet.lines[-1].reason == "signal_gone"

    def test_it_tells_how_many_hosts_it_is_about_whenever_they_have_doubled(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:100]:
            fleet.verdict(host, 151)
            fleet.at(fleet.seconds + 30.0)
        grown = [one for one in fleet.lines if one.reason == "more_hosts"]
        counts = [int(one.evidence[0].text.partition(" ")[0]) for one in (fleet.opened()[0], *grown)]
        assert len(counts) >= 3
        assert all(later == 2 * before for before, later in pairwise(counts))
        assert len([one for one in fleet.pager.pages if one.verdict.job.job_id == FLEET_JOB_ID]) == 1

    def test_a_real_fault_among_the_flood_stands_alone(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:40]:
            fleet.verdict(host, 151)
        real = fleet.verdict("n005", 151, "j2", "n100", "n101")
        other = fleet.verdict("n006", 79)
        fleet.at(1.0)
        assert len(fleet.opened()) == 1
        assert fleet.view.covering(real.verdict_id) == ""
        assert fleet.view.covering(other.verdict_id) == ""


def test_two_unrelated_hosts_on_one_day_stay_two_incidents() -> None:
    fleet = Fleet(300)
    fleet.event("n005", events.XID, code=79)
    fleet.run(HOUR)
    fleet.event("n200", events.XID, code=79)
    fleet.run(HOUR)
    assert [named(one) for one in fleet.opened()] == [["n005"], ["n200"]]
    assert {one.action for one in fleet.opened()} == {ActionKind.DRAIN}


@pytest.mark.parametrize(
    ("name", "payload", "is_common"),
    [(events.ECC, {"kind": "uncorrected", "count": 1}, False), (events.GPU_LOST, {}, True)],
)
def test_six_of_500_hosts_on_a_day_are_chance_for_a_frequent_fault_and_not_for_a_rare_one(
    name: str, payload: dict[str, Any], *, is_common: bool
) -> None:
    fleet = Fleet(500)
    for row in range(6):
        fleet.event(fleet.hosts[70 * row], name, **payload)
        fleet.run(3 * HOUR, HOUR)
    assert bool(fleet.opened(FLEET_JOB_ID)) is is_common


@pytest.mark.parametrize(
    ("code", "cause"),
    [(119, "common_driver"), (120, "common_driver"), (79, "common_component"), (48, "common_component")],
)
def test_the_driver_is_blamed_only_where_the_code_names_it(code: int, cause: str) -> None:
    fleet = Fleet()
    for host in fleet.hosts[:30]:
        fleet.event(host, events.XID, code=code)
    fleet.at(1.0)
    [found] = fleet.opened(FLEET_JOB_ID)
    assert found.cause == cause


def _with_drivers(fleet: Fleet, new: list[str], *, kind: str = "driver") -> None:
    """All hosts tell their versions; some have another one of a kind."""
    for host in fleet.hosts:
        told = {"driver": "570.86.15", "firmware": "vbios 96.00.74.00.01"}
        told |= {kind: "580.1"} if host in new else {}
        fleet.event(host, events.HOST_FACTS, driver=told["driver"], firmware=told["firmware"])
    fleet.run(1.0)


def _drop(fleet: Fleet, hosts: list[str]) -> None:
    """Let hosts lose a GPU, one every third day."""
    for host in hosts:
        fleet.event(host, events.GPU_LOST)
        fleet.run(72 * HOUR, 24 * HOUR)


@pytest.mark.parametrize("kind", ["driver", "firmware"])
def test_hosts_with_a_new_driver_that_drop_over_weeks_are_one_incident_about_it(kind: str) -> None:
    fleet = Fleet(600)
    new = fleet.hosts[3::50]
    _with_drivers(fleet, new, kind=kind)
    _drop(fleet, new[:6])
    [found] = fleet.opened(FLEET_JOB_ID)
    assert found.cause == "common_driver"
    assert f"all of them run {kind} 580.1, as 12 of 600 hosts do" in {one.text for one in found.evidence}


def test_as_many_hosts_with_mixed_drivers_are_chance() -> None:
    fleet = Fleet(600)
    _with_drivers(fleet, fleet.hosts[3::50])
    _drop(fleet, fleet.hosts[3:200:50] + fleet.hosts[5:100:50])
    assert fleet.opened(FLEET_JOB_ID) == []


def test_a_driver_that_the_whole_fleet_has_is_not_blamed() -> None:
    fleet = Fleet()
    _with_drivers(fleet, [])
    for host in fleet.hosts[:30]:
        fleet.event(host, events.XID, code=79)
    fleet.run(1.0)
    assert [one.cause for one in fleet.opened(FLEET_JOB_ID)] == ["common_component"]


def test_idle_hosts_that_drop_together_are_told_as_one_and_none_is_drained() -> None:
    fleet = Fleet()
    for host in fleet.hosts[:30]:
        fleet.event(host, events.XID, code=79)
    fleet.at(1.0)
    [found] = fleet.opened(FLEET_JOB_ID)
    assert found.cause == "common_component"
    assert {one.action for one in fleet.view.live} == {ActionKind.NOTIFY}
    fleet.event("n200", events.XID, code=79)  # a later one is covered, too
    fleet.at(2.0)
    late = next(one for one in fleet.view.live if named(one) == ["n200"])
    assert fleet.view.covering(late.verdict_id) == found.verdict_id


def test_a_leaf_whose_hosts_lose_their_links_is_one_incident_about_the_leaf() -> None:
    fleet = Fleet()
    fleet.busy = dict.fromkeys(fleet.hosts, "j1")
    for host in fleet.hosts[16:32]:
        fleet.event(host, events.IB_PORT, port="mlx5_0/1", state="down")
    fleet.at(1.0)
    [found] = fleet.opened()
    assert (found.cause, found.common) == ("common_component", Component(ComponentKind.LEAF, "leaf1"))
    assert named(found) == []


def test_planned_work_is_named_as_such() -> None:
    fleet = Fleet()
    leaf = Component(ComponentKind.LEAF, "leaf1")
    fleet.view.on_maintenance(
        Maintenance("0" * 16, "c", leaf, fleet.now_ns, fleet.now_ns + DAY_NS, "new switch", "uid:1", fleet.now_ns)
    )
    for host in fleet.hosts[16:32]:
        fleet.event(host, events.IB_PORT, port="mlx5_0/1", state="down")
    fleet.at(1.0)
    [found] = fleet.opened()
    assert found.cause == "planned_work"
    assert "new switch" in " ".join(one.text for one in found.evidence)


def test_a_cold_start_that_replays_old_events_opens_nothing() -> None:
    fleet = Fleet()
    for host in fleet.hosts:
        fleet.event(host, events.XID, age_seconds=2 * HOUR, code=79)
        fleet.event(host, events.GPU_LOST, at_start=True)
    fleet.run(HOUR)
    assert fleet.lines == []
    assert fleet.view.status()["events"]["too_old"] == 2 * 288


class TestCollectorsThatHang:
    def test_the_silence_of_many_hosts_is_monitoring_and_ends_with_it(self) -> None:
        fleet = Fleet()
        fleet.run(HOUR)
        fleet.mute = set(fleet.hosts[:60])
        fleet.run(300.0)
        [found] = fleet.opened()
        assert (named(found), found.cause) == ([], "monitoring_fault")
        fleet.mute.clear()
        fleet.run(60.0)
        assert fleet.lines[-1].state is VerdictState.RESOLVED

    def test_a_collector_that_begins_to_fail_everywhere_is_monitoring(self) -> None:
        fleet = Fleet()
        for works in (True, False, True):
            for row, host in enumerate(fleet.hosts[:60]):
                # one source never worked anywhere: a host without such hardware is no fault
                reported = {"nvml": {"ok": works or row >= 50}, "rdma": {"ok": False}}
                key = JobKey("c", IDLE_JOB_ID)
                fleet.view.on_status(HostStatus(key, host, fleet.now_ns, 0, 0, (), False, 0, 0, reported), fleet.now_ns)
            fleet.at(fleet.seconds + 5.0)
        [found] = fleet.opened()
        assert (named(found), found.cause) == ([], "monitoring_fault")
        assert "collector:nvml" in found.evidence[0].text
        assert fleet.lines[-1].state is VerdictState.RESOLVED

    def test_silence_while_the_engine_was_away_means_nothing(self) -> None:
        fleet = Fleet()
        fleet.run(HOUR)
        fleet.restart()
        fleet.mute = set(fleet.hosts)
        fleet.at(fleet.seconds + 600.0)
        fleet.mute.clear()
        fleet.run(300.0)
        assert fleet.lines == []


def test_complaint_5_a_gauge_that_never_clears_is_told_once() -> None:
    fleet = Fleet()
    for _ in range(200):
        fleet.event("n005", events.XID, code=79)
        fleet.run(60.0)
    assert len(fleet.opened()) == 1
    assert {one.reason for one in fleet.lines[1:]} == {Reason.STILL_TRUE.value}
    assert len(fleet.lines) < 10


class TestComplaint11ReturnsTooEarly:
    def test_an_idle_host_that_says_nothing_is_not_well_and_one_that_works_is(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.run(24 * HOUR, 60.0)
        assert len(fleet.view.live) == 1
        fleet.busy["n005"] = "j1"
        fleet.run(1500.0)
        assert len(fleet.view.live) == 1
        fleet.run(400.0)
        assert fleet.lines[-1].reason == "works_under_load"
        assert fleet.view.status()["host_incidents"] == 0

    def test_only_upheld_verdicts_make_a_repeat_offender(self) -> None:
        fleet = Fleet()
        made = [fleet.verdict("n005", 79, f"j{day}") for day in range(5)]
        fleet.at(1.0)
        assert fleet.lines == []
        fleet.feedback(made[0].verdict_id, is_true=True)
        fleet.feedback(made[1].verdict_id, is_true=True)
        fleet.feedback(made[1].verdict_id, is_true=False)
        fleet.at(2.0)
        assert fleet.lines == []
        fleet.feedback(made[2].verdict_id, is_true=True)
        fleet.at(3.0)
        [found] = fleet.opened()
        assert (named(found), found.reason, found.action) == (["n005"], "repeat_offender", ActionKind.DRAIN)

    def test_what_programs_and_data_did_never_makes_a_repeat_offender(self) -> None:
        fleet = Fleet()
        for row, cause in enumerate(
            ["process_exit", "nan_gradient", "loader_stall", "data_imbalance", "no_such_cause"]
        ):
            made = replace(fleet.verdict("n005", 79, f"j{row}", check=True), cause=cause)
            fleet.view.on_verdicts([made], fleet.now_ns)
            fleet.feedback(made.verdict_id, is_true=True)
        fleet.at(1.0)
        assert fleet.lines == []
        for row in (6, 7):
            fleet.verdict("n005", 79, f"j{row}", check=True)
        fleet.at(2.0)
        [found] = fleet.opened()
        assert "2 verdicts were upheld" in found.evidence[0].text

    def test_a_failed_check_upholds_and_what_is_long_past_does_not_count(self) -> None:
        fleet = Fleet()
        fleet.verdict("n005", 79, "j1", check=True)
        fleet.at(31 * 24 * HOUR)
        fleet.verdict("n005", 79, "j2", check=True)
        fleet.at(fleet.seconds + 1.0)
        assert fleet.lines == []
        fleet.verdict("n005", 79, "j3", check=True)
        fleet.at(fleet.seconds + 1.0)
        assert [one.reason for one in fleet.opened()] == ["repeat_offender"]


class TestStatesOfIdleHosts:
    def test_a_link_that_comes_back_is_no_incident(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.IB_PORT, port="mlx5_0/1", state="down")
        fleet.run(300.0)
        fleet.event("n005", events.IB_PORT, port="mlx5_0/1", state="active")
        fleet.run(HOUR)
        assert fleet.lines == []

    def test_a_link_that_stays_down_is_one_until_it_is_back(self) -> None:
        fleet = Fleet()
        for link in (3, 4):
            fleet.event("n005", events.NVLINK_ERROR, link=link, state="down")
        fleet.restart()
        fleet.run(HOUR / 2)
        [found] = fleet.opened()
        assert (named(found), found.cause, found.reason) == (["n005"], "nvlink_error", "lasting_signal_when_idle")
        fleet.event("n005", events.NVLINK_ERROR, link=3, state="up")
        fleet.run(60.0)
        assert len(fleet.view.live) == 1
        fleet.event("n005", events.NVLINK_ERROR, link=4, state="up")
        fleet.run(60.0)
        assert fleet.lines[-1].reason == "host_says_well"


def test_programs_that_fail_everywhere_are_no_incident_of_the_fleet() -> None:
    fleet, one = Fleet(), Fleet().verdict("n000", 13)
    for host in fleet.hosts[:60]:
        suspects = (Suspect(Component(ComponentKind.HOST, host)),)
        reported = replace(one, verdict_id=host, cause="process_exit", suspects=suspects, evidence=())
        fleet.view.on_verdicts([reported], fleet.now_ns)
    fleet.run(HOUR)
    assert fleet.lines == []


class TestComplaint12StickyState:
    def test_a_person_closes_it_and_only_a_new_report_opens_it(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.at(1.0)
        fleet.feedback(fleet.opened()[0].verdict_id, is_true=False)
        fleet.at(2.0)
        assert (fleet.lines[-1].state, fleet.lines[-1].reason) == (VerdictState.CANCELLED, "denied_by_human")
        fleet.event("n005", events.XID, age_seconds=2.0, code=79)  # the same report again
        fleet.run(60.0)
        assert fleet.view.status()["host_incidents"] == 0
        fleet.event("n005", events.XID, code=79)
        fleet.run(1.0)
        assert [named(one) for one in fleet.view.live] == [["n005"]]

    def test_the_control_socket_closes_it_and_a_host_does_not(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.at(1.0)
        [found] = fleet.view.live
        fleet.event("n005", events.INCIDENT_CLOSE, id=found.verdict_id, note="me", actor="n005")
        fleet.event(events.CONTROL_HOST, events.INCIDENT_CLOSE, id=found.verdict_id, note="x", actor="uid:1")
        fleet.at(2.0)
        assert fleet.lines[-1].reason == Reason.CLOSED_BY_HUMAN.value


def test_a_restart_in_between_changes_no_line() -> None:
    reported: list[list[Verdict]] = []
    for restarts in (False, True):
        fleet = Fleet()
        for host in fleet.hosts[:12]:
            fleet.event(host, events.XID, code=79)
            fleet.verdict(host, 79)
            fleet.run(60.0)
            if restarts:
                fleet.restart()
        reported.append(fleet.lines)
    assert reported[0] == reported[1] != []

"""Timelines of jobs, fleet and pager together, each named after what operators complain of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.fleet_timelines import HOUR, START_NS, Fleet, Pager, ToldJob, named
from tests.timelines import build_metrics_scenario
from tocsin.collectors.sources.prometheus import PrometheusCollector, PrometheusConfig
from tocsin.pipeline.alerts.notice import NoticeKind
from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.schemas import events
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.records import IDLE_JOB_ID, HostStatus, JobKey, JobRecord, Severity
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState

DAY = 24 * HOUR
FATAL = Severity.FATAL
FIRING, RESOLVED, TAKEN_BACK = NoticeKind.FIRING, NoticeKind.RESOLVED, NoticeKind.TAKEN_BACK


def told_job(ranks: int = 8) -> tuple[Scenario, ToldJob]:
    scenario = Scenario(JobShape(rank_count=ranks))
    return scenario, ToldJob(scenario)


def false_fatal(fleet: Fleet, host: str, job: str, xid: int = 151) -> list[Verdict]:
    """Let a host in a job report a fatal signal while its job goes on: what the engine makes of it, and when it ends.

    ``test_one_fatal_sample_of_a_machine_that_works_on_pages_nobody`` shows that these are the lines of a real engine.
    """
    fleet.event(host, events.XID, job=job, code=xid)
    made = fleet.make(host, xid, job)
    opened = replace(made, state=VerdictState.OPEN, action=ActionKind.PROBE)
    return [opened, replace(made, state=VerdictState.CANCELLED, reason="recovered", update=1)]


class TestComplaint1FalseFatalVerdictsFromASingleSample:
    @pytest.mark.parametrize("code", [151, 79])
    def test_one_fatal_sample_of_a_machine_that_works_on_pages_nobody(self, code: int) -> None:
        scenario, told = told_job(4)
        scenario.at(20).inject(scenario.job.event, 3, events.XID, FATAL, code=code)
        scenario.run(60)
        lines = [(one.state, one.fault) for one in scenario.verdicts]
        assert lines[:2] == [(state, FaultKind.FAIL_STOP) for state in (VerdictState.OPEN, VerdictState.CANCELLED)]
        assert VerdictState.CONFIRMED not in {state for state, _ in lines}
        assert told.pager.told == []

    def test_the_same_sample_of_a_machine_that_stops_is_one_page(self) -> None:
        scenario, told = told_job(4)
        scenario.at(20).inject(scenario.job.event, 3, events.XID, FATAL, code=79)
        scenario.at(20).inject(scenario.job.kill, 3)
        scenario.want(between(20, 30), suspects=["n03"], state="confirmed")
        scenario.run(60).check()
        [page] = told.pager.pages
        assert named(page.verdict) == ["n03"]

    @pytest.mark.parametrize(("seed", "xid", "most_single_count"), [(7, 151, 0), (8, 151, 0), (7, 79, 2)])
    def test_214_of_288_machines_in_weeks_and_63_on_one_day_are_one_incident_and_at_most_two_pages(
        self, seed: int, xid: int, most_single_count: int
    ) -> None:
        """XID 79 stays until a reboot: the first idle machines have it alone, and are told before there is a flood."""
        fleet, draw = Fleet(), random.Random(seed)
        struck = draw.sample(fleet.hosts, 214)
        days = [10.0 + draw.random() for _ in range(63)] + [draw.uniform(0.0, 24.5) for _ in range(151)]
        for row, (day, host) in enumerate(sorted(zip(days, struck, strict=True))):
            while fleet.seconds + 4 * HOUR < day * DAY:
                fleet.at(fleet.seconds + 4 * HOUR)
            fleet.at(max(fleet.seconds + 1.0, day * DAY))
            if row % 3:
                [opened, cancelled] = false_fatal(fleet, host, f"j{row % 30}", xid)
                fleet.line(opened)
                fleet.at(fleet.seconds + 11.0)
                fleet.line(replace(cancelled, detected_ns=fleet.now_ns))
            else:
                fleet.event(host, events.XID, code=xid)  # it runs no job
            fleet.at(fleet.seconds + 1.0)
        [incident] = [one for one in fleet.opened() if one.job.job_id == FLEET_JOB_ID]
        assert named(incident) == []
        *single, page = fleet.pager.pages
        assert page.verdict.verdict_id == incident.verdict_id
        assert {one.verdict.job.job_id for one in single} <= {IDLE_JOB_ID}
        assert len(single) <= most_single_count
        fleet.run(8 * DAY, 4 * HOUR)
        assert fleet.pager.kinds.count(FIRING) == len(single) + 1

    def test_a_machine_that_fails_on_the_day_of_the_flood_is_a_page_of_its_own(self) -> None:
        fleet = Fleet()
        for host in fleet.hosts[:63]:
            for line in false_fatal(fleet, host, "j1"):
                fleet.line(line)
            fleet.at(fleet.seconds + 600.0)
        real = fleet.verdict("n200", 79, "j2", "n201", "n202")
        fleet.at(fleet.seconds + 1.0)
        [flood, page] = fleet.pager.pages
        assert flood.verdict.job.job_id == FLEET_JOB_ID
        assert page.verdict.verdict_id == real.verdict_id


class TestComplaint3EventFloodsStarveTheActuator:
    def test_a_real_fault_among_hundreds_of_events_a_second_is_paged_within_ten_seconds(self) -> None:
        scenario, told = told_job()

        def flood() -> None:
            for row in range(20):  # a throttle that flaps ten times a second, and one error again and again
                reasons = ["sw_power_cap"] if row % 2 else []
                scenario.job.event(1, events.CLOCKS_EVENT, Severity.WARNING, reasons=reasons, uuid="GPU-1")
            for row in range(200):
                scenario.job.event(2, events.XID, FATAL, code=95, uuid=f"GPU-{row % 8}")

        for second in range(20, 40):
            scenario.at(second).inject(flood)
        scenario.at(40).inject(scenario.job.kill, 5)
        scenario.want(between(40, 50), suspects=["n05"], state="confirmed")
        scenario.run(60).check(taken_back=True)
        pages = [one for one in told.pager.pages if named(one.verdict) == ["n05"]]
        assert len(pages) == 1
        assert pages[0].made_ns - scenario.shape.start_ns <= 50e9
        assert len(scenario.verdicts) < 20, scenario.reported()
        assert len(told.pager.told) <= 3


class TestComplaint5XidAsAGauge:
    def test_a_gauge_that_never_clears_is_told_once_and_what_it_held_before_never(self) -> None:
        fleet, shown = Fleet(), {"n005": 79, "n006": 0}

        def page(url: str) -> bytes:
            code = shown[url.rpartition("/")[2]]
            return f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-0",pci_bus_id="0000:c1:00.0"}} {code}\n'.encode()

        sources = {host: PrometheusCollector(PrometheusConfig(f"http://exporter/{host}"), page) for host in shown}
        for turn in range(240):
            if turn == 20:
                shown["n006"] = 79
            for host, source in sources.items():
                for event in source.collect(fleet.now_ns).events:
                    fleet.event(host, event.name, **event.payload)
            fleet.run(30.0)
        [told] = fleet.pager.told
        assert named(told.verdict) == ["n006"]

    def test_a_report_that_comes_again_each_minute_is_one_page(self) -> None:
        fleet = Fleet()
        for _ in range(300):
            fleet.event("n005", events.XID, code=79)
            fleet.run(60.0, 60.0)
        assert fleet.pager.kinds == [FIRING]


class TestComplaint11NodesReturnTooEarly:
    def test_a_boot_without_load_resolves_nothing_and_half_an_hour_of_work_does(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.run(600.0)
        fleet.event("n005", events.AGENT, edge="start")
        fleet.event("n005", events.GPU_RECOVERY, action=0)
        fleet.run(6 * HOUR, 60.0)
        assert fleet.pager.kinds == [FIRING]
        fleet.busy["n005"] = "j1"
        fleet.run(1740.0)
        assert fleet.pager.kinds == [FIRING]
        fleet.run(300.0)
        assert fleet.pager.kinds == [FIRING, RESOLVED]

    def test_a_machine_that_fails_again_under_load_is_not_resolved(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.run(600.0)
        fleet.busy["n005"] = "j1"
        for _ in range(8):
            fleet.run(1500.0)
            fleet.event("n005", events.XID, code=79)
        assert fleet.pager.kinds == [FIRING]


class TestComplaint12StickyStates:
    def test_a_person_ends_it_and_the_old_report_does_not_come_back(self) -> None:
        fleet = Fleet()
        fleet.event("n005", events.XID, code=79)
        fleet.at(1.0)
        [page] = fleet.pager.pages
        fleet.feedback(page.verdict.verdict_id, is_true=False)
        fleet.at(2.0)
        fleet.event("n005", events.XID, age_seconds=2.0, code=79)
        fleet.run(DAY, 600.0)
        assert fleet.pager.kinds == [FIRING, TAKEN_BACK]
        fleet.event("n005", events.XID, code=79)
        fleet.run(60.0)
        assert fleet.pager.kinds == [FIRING, TAKEN_BACK, FIRING]

    def test_codes_of_applications_page_nobody_in_a_job_or_without_one(self) -> None:
        scenario, told = told_job(4)
        fleet = Fleet()
        for row, code in enumerate((13, 31, 43, 45, 94) * 4):
            scenario.at(10 + row).inject(scenario.job.event, 3, events.XID, FATAL, code=code)
            fleet.event("n005", events.XID, code=code)
            fleet.run(60.0)
        scenario.run(60)
        assert told.pager.told == []
        assert fleet.pager.told == []


class TestComplaint14AlertDuplicates:
    def test_lines_that_come_twice_and_a_pager_that_is_killed_each_second_tell_the_same(self) -> None:
        scenario, told = told_job(4)
        scenario.at(20).inject(scenario.job.slow, 3, "forward", 4.0)
        scenario.at(60).inject(scenario.job.slow, 3, "forward", 1.0)
        scenario.run(90)
        again, before = Pager(told.view.covering), list[Verdict]()
        for now_ns, lines in told.moments:
            again.take([*before, *lines, *lines], now_ns)
            again.restart()
            before = [*before, *lines][-50:]
        assert [self.said(one) for one in again.told] == [self.said(one) for one in told.pager.told]
        assert (told.pager.kinds[0], told.pager.kinds[-1]) == (FIRING, RESOLVED)
        assert told.pager.kinds.count(FIRING) == 1

    @staticmethod
    def said(notice: object) -> tuple[object, ...]:
        return tuple(getattr(notice, name) for name in ("kind", "severity", "told_ns", "made_ns", "verdict"))


class TestComplaint15TheMonitorsOwnCost:
    def test_exporters_that_are_killed_for_memory_are_one_page_about_monitoring(self) -> None:
        fleet, draw = Fleet(138), random.Random(15)
        killed = dict(
            zip(draw.sample(fleet.hosts, 49), sorted(draw.uniform(600.0, 3000.0) for _ in range(49)), strict=True)
        )
        while fleet.seconds < 2 * HOUR:
            for host in fleet.hosts:
                is_well = not killed.get(host, 1e9) <= fleet.seconds < HOUR
                self.report(fleet, host, is_well=is_well)
            fleet.run(60.0)
        [told, end] = fleet.pager.told
        assert (told.kind, told.verdict.cause, named(told.verdict)) == (FIRING, "monitoring_fault", [])
        assert end.kind is RESOLVED
        assert {named(one)[0] for one in fleet.lines if one.suspects} == set()

    @staticmethod
    def report(fleet: Fleet, host: str, *, is_well: bool) -> None:
        key = JobKey("c", IDLE_JOB_ID)
        states = {"prometheus": {"ok": is_well}, "host": {"ok": True}}
        fleet.view.on_status(HostStatus(key, host, fleet.now_ns, 0, 0, (), False, 0, 0, states), fleet.now_ns)

    def test_profiling_values_that_stick_at_zero_after_an_xid_accuse_nobody(self) -> None:
        scenario, job = build_metrics_scenario(ranks=4)
        told = ToldJob(scenario)
        scenario.at(60).inject(job.event, 3, events.XID, FATAL, code=31)
        for metric in ("gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_fp_active_ratio"):
            scenario.at(60).inject(job.shift, 3, metric, 0.0)
        scenario.run(180)
        assert scenario.accused_names() == []
        assert told.pager.told == []

    def test_a_port_check_that_flaps_pages_nobody(self) -> None:
        scenario, told = told_job(4)
        for second in range(20, 80, 5):
            scenario.at(second).inject(
                scenario.job.event, 3, events.IB_PORT, Severity.WARNING, port="mlx5_0/1", state="active", flaps=1
            )
        scenario.run(100)
        assert scenario.accused_names() == []
        assert told.pager.told == []


class TestAColdStart:
    def test_old_events_and_old_verdicts_page_nobody_and_a_new_one_does(self) -> None:
        fleet = Fleet()
        for row, host in enumerate(fleet.hosts):
            fleet.event(host, events.XID, age_seconds=2 * HOUR + row, code=79)
            fleet.event(host, events.GPU_LOST, at_start=True)
            old = fleet.make(host, 48, f"j{row % 30}", "n900", "n901")
            for update in (1, 2):
                age_ns = int((3 - update) * DAY * 1e9)
                fleet.line(replace(old, update=update, onset_ns=START_NS - age_ns, detected_ns=START_NS - age_ns))
        fleet.run(HOUR, 60.0)
        assert fleet.pager.told == []
        fleet.event("n005", events.XID, code=79)
        fleet.run(60.0)
        assert [named(one.verdict) for one in fleet.pager.pages] == [["n005"]]

    def test_what_a_job_s_machines_reported_before_the_agents_came_opens_nothing(self) -> None:
        scenario, told = told_job(4)
        for rank in range(4):
            scenario.at(2).inject(scenario.job.event, rank, events.XID, FATAL, code=79, at_start=True, age_seconds=7200)
        scenario.run(40)
        assert scenario.accused_names() == []
        assert told.pager.told == []


class TestACollectorThatHangs:
    def test_its_host_is_not_accused(self) -> None:
        scenario, job = build_metrics_scenario(ranks=4)
        told = ToldJob(scenario)
        for gpu in range(2):
            scenario.at(60).inject(job.lose_gpu, 3, gpu)
        scenario.run(150)
        assert scenario.accused_names() == []
        assert told.pager.told == []

    def test_on_many_hosts_the_silence_of_monitoring_is_one_page(self) -> None:
        scenario, told = told_job(8)

        def hangs(records: Sequence[JobRecord], _lines: Sequence[Verdict], now_ns: int) -> None:
            for one in records:
                if isinstance(one, HostStatus):
                    is_well = one.host < "n03" or now_ns < scenario.shape.start_ns + 30e9
                    states = {"nvml": {"ok": is_well, "reason": "" if is_well else "hangs"}}
                    told.view.on_status(replace(one, collectors=states), now_ns)

        scenario.followers.insert(0, hangs)
        scenario.run(60)
        assert scenario.accused_names() == []
        [page] = told.pager.pages
        assert (page.verdict.cause, named(page.verdict)) == ("monitoring_fault", [])
        assert "collector:nvml" in page.verdict.evidence[0].text

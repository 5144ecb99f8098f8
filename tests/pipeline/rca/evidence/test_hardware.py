"""What machines say of themselves: at once, never alone, and gone when they say that all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.timelines import build_scenario
from tocsin.models.pace import Slowdown
from tocsin.pipeline.lab.testing import FakeJob, between
from tocsin.pipeline.lab.testing.builders import JOB, START_NS, at_second, build_graph
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.evidence.hardware import BrokenHosts
from tocsin.pipeline.rca.evidence.hardware_causes import HardwareCauses
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog, HardwareRules
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Severity
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect

NARROW = {"gen": 3, "width": 16, "max_gen": 5, "max_width": 16}
WIDE = {**NARROW, "gen": 5}


def _stop(job: FakeJob) -> Callable[[], None]:
    """The job stands, nobody knows why."""

    def stops() -> None:
        job.stalled = True
        for rank in job.ranks:
            rank.frozen = True

    return stops


class TestFatal:
    @pytest.mark.parametrize(
        ("name", "payload", "cause"),
        [
            (events.XID, {"code": 79}, "gpu_card_drop"),
            (events.XID, {"code": 94}, "ecc_error"),
            (events.GPU_LOST, {"uuid": "GPU-1"}, "gpu_card_drop"),
            (events.IB_PORT, {"port": "mlx5_0/1", "state": "down"}, "nic_dropout"),
        ],
    )
    def test_it_opens_in_its_slice(self, name: str, payload: dict[str, object], cause: str) -> None:
        scenario, job = build_scenario()
        scenario.at(40).inject(job.event, 3, name, **payload)
        scenario.at(40).inject(_stop(job))
        scenario.want(between(40, 42), fault="fail_stop", cause=cause, suspects=["n03"], reason="hardware_event")
        scenario.want(between(42, 60), state="confirmed", cause=cause, suspects=["n03"])
        scenario.run(60).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    def test_steps_that_go_on_never_confirm_it_and_end_it(self) -> None:
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(40).inject(job.event, 3, events.XID, code=79)
        scenario.run(160)

        stops = [verdict for verdict in scenario.verdicts if verdict.fault.value == "fail_stop"]
        assert stops
        assert "confirmed" not in {verdict.state.value for verdict in stops}
        assert {verdict.action.value for verdict in scenario.verdicts} <= {"probe", "notify", "none"}
        assert scenario.engine.status()["jobs"][0]["verdicts"] == []

    @pytest.mark.parametrize("code", [13, 31, 43, 45, 999])
    def test_what_is_a_programs_fault_or_unknown_accuses_nobody(self, code: int) -> None:
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(40).inject(job.event, 3, events.XID, code=code)
        scenario.want_nothing(120)

    def test_corrected_errors_accuse_nobody(self) -> None:
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(40).inject(job.event, 3, events.ECC, kind="corrected", count=40)
        scenario.want_nothing(120)

    def test_many_hosts_at_once_share_a_cause_outside(self) -> None:
        scenario, job = build_scenario()
        for rank in range(4):
            scenario.at(40).inject(job.event, rank, events.IB_PORT, port="mlx5_0/1", state="down")
        scenario.run(60)
        assert not [verdict for verdict in scenario.final() if verdict.suspects]
        assert scenario.engine.status()["jobs"][0]["abstained"]["ambiguous"] > 0


class TestSlow:
    def test_a_narrow_link_and_slower_steps(self) -> None:
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(60).inject(job.event, 3, events.PCIE_LINK, **NARROW)
        scenario.at(60).inject(job.slow, 3, "forward", 1.6)
        scenario.want(between(60, 100), fault="fail_slow", cause="pcie_downgrade", suspects=["n03"])
        scenario.run(160).check()

    def test_a_narrow_link_without_slower_steps_hurts_nobody(self) -> None:
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(60).inject(job.event, 3, events.PCIE_LINK, **NARROW)
        scenario.run(160)
        assert {verdict.fault.value for verdict in scenario.verdicts} <= {"degraded"}
        assert {verdict.action.value for verdict in scenario.verdicts} <= {"none"}

    def test_a_link_that_is_well_again_explains_nothing_later(self) -> None:
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(60).inject(job.event, 3, events.PCIE_LINK, **NARROW)
        scenario.at(62).inject(job.event, 3, events.PCIE_LINK, **WIDE)
        scenario.at(100).inject(job.slow, 3, "forward", 1.6)
        scenario.want(between(100, 160), fault="fail_slow", cause="unknown", suspects=["n03"])
        scenario.run(180).check()
        assert not [v for v in scenario.verdicts if v.detected_ns > scenario.shape.start_ns + 100 * NS_PER_SECOND
                    and v.cause == "pcie_downgrade"]  # fmt: skip


class TestPatterns:
    def test_what_a_part_says_counts_more_than_a_pattern_of_metrics(self) -> None:
        machines = Machines()
        machines.say(100, "n3", "clocks_event", reasons=["hw_thermal"])
        guess = Finding(
            FaultKind.FAIL_SLOW,
            "power_cap",
            (Suspect(Component(ComponentKind.HOST, "n3")),),
            at_second(100),
            0.8,
            Reason.METRICS_DIFFER_STEPS_SLOWER,
            (),
        )
        shown = replace(guess, reason=Reason.GROUPS_OF_RANK_SLOW)

        assert [finding.cause for finding in machines.causes.explain([guess, shown])] == [
            "thermal_throttle",
            "power_cap",
        ]


class TestExits:
    def test_memory_errors_explain_an_exit(self) -> None:
        scenario, job = build_scenario()
        scenario.at(40).inject(job.event, 3, events.ECC, kind="uncorrected", count=2)
        scenario.at(40.5).inject(job.kill, 3)
        scenario.want(between(40, 46), fault="fail_stop", cause="ecc_error", suspects=["n03"])
        scenario.run(80).check()

    def test_even_corrected_ones(self) -> None:
        scenario, job = build_scenario()
        scenario.at(40).inject(job.event, 3, events.ECC, kind="corrected", count=500)
        scenario.at(42).inject(job.kill, 3)
        scenario.want(between(42, 48), fault="fail_stop", cause="ecc_error", suspects=["n03"])
        scenario.run(80).check()

    def test_an_event_of_another_machine_long_before_explains_nothing(self) -> None:
        scenario, job = build_scenario()
        scenario.at(40).inject(job.event, 5, events.ECC, kind="corrected", count=500)
        scenario.at(42).inject(job.kill, 3)
        scenario.want(between(42, 48), fault="fail_stop", cause="process_exit", suspects=["n03"])
        scenario.run(80).check()

    def test_victims_do_not_hide_the_machine_whose_card_dropped_first(self) -> None:
        """Rank 5's process is the first to end; the card of rank 3 was lost just before."""
        scenario, job = build_scenario()
        scenario.at(40).inject(job.event, 3, events.XID, code=79)
        scenario.at(41).inject(job.kill, 5, signal=6)
        scenario.want(between(40, 46), fault="fail_stop", cause="gpu_card_drop", suspects=["n03"])
        scenario.run(80).check()
        assert {s.component.name for verdict in scenario.final() for s in verdict.suspects} == {"n03"}

    def test_a_report_that_comes_after_the_death_of_another_is_no_reason_for_it(self) -> None:
        scenario, job = build_scenario()
        scenario.at(40).inject(job.kill, 5)
        scenario.at(60).inject(job.event, 3, events.XID, code=79)
        scenario.want(between(40, 46), fault="fail_stop", cause="process_exit", suspects=["n05"])
        scenario.run(58).check()


@dataclass
class AfterOutages(FakeProgress):
    """A pace that is as ever since a port is up, and as told before."""

    up_ns: int = 0

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        return AS_EVER if onset_ns >= self.up_ns else self.slowdown


STALLED = Slowdown(float("inf"), is_certain=True, is_gone=False, step_seconds=float("nan"), before_seconds=1.0)
SLOWER = Slowdown(0.4, is_certain=True, is_gone=False, step_seconds=1.4, before_seconds=1.0)
AS_EVER = Slowdown(0.0, is_certain=False, is_gone=True, step_seconds=1.0, before_seconds=1.0)


class Machines:
    """Eight hosts and what they report."""

    def __init__(self) -> None:
        self.graph = build_graph()
        self.log = HardwareLog(HardwareRules())
        self.broken = BrokenHosts(HardwareRules(), self.log)
        self.causes = HardwareCauses(HardwareRules(), self.log)

    def say(self, second: float, host: str, name: str, **payload: object) -> None:
        ts_ns = at_second(second)
        self.log.take(Event(JOB, host, ts_ns, -1, EventSource.KERNEL, name, Severity.ERROR, payload))

    def find(self, second: float, pace: FakeProgress) -> tuple[list[Finding], list[Reason]]:
        return self.broken.find(self.graph, at_second(second), pace)

    def reports(self, second: float) -> frozenset[str]:
        return self.log.hosts_with_reports(at_second(second))


class TestTracker:
    def test_a_job_that_suffers_confirms_and_one_that_does_not_only_notes(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.XID, code=79)

        [early], _ = machines.find(1.5, FakeProgress())
        [suffers], _ = machines.find(20, FakeProgress(STALLED))
        [works], reasons = machines.find(20, FakeProgress(AS_EVER))
        assert (early.fault.value, early.tentative) == ("fail_stop", True)
        assert (suffers.fault.value, suffers.tentative) == ("fail_stop", False)
        assert (works.fault.value, reasons) == ("degraded", [Reason.NO_IMPACT])
        assert machines.find(90, FakeProgress(AS_EVER)) == ([], [Reason.NO_IMPACT])

    def test_a_memory_that_ails_again_and_again_is_a_report_of_a_broken_part(self) -> None:
        machines = Machines()
        machines.say(0, "n3", events.ROW_REMAP, pending=True)
        for second in (0, 12, 24):
            assert machines.reports(25) == frozenset()
            machines.say(second, "n1", events.ECC, kind="corrected", count=500)
            machines.say(second, "n2", events.ECC, kind="corrected", count=1)  # as every day

        assert machines.reports(25) == {"n1"}
        assert machines.reports(625) == frozenset()
        assert machines.find(25, FakeProgress(AS_EVER)) == ([], [])

    def test_what_is_old_opens_nothing(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.XID, code=79)

        assert machines.find(1 + 3600, FakeProgress(STALLED)) == ([], [])

    def test_the_first_is_named(self) -> None:
        machines = Machines()
        machines.say(9, "n1", events.XID, code=79)
        machines.say(1, "n3", events.XID, code=94)

        [finding], _ = machines.find(10, FakeProgress(STALLED))
        assert [suspect.component.name for suspect in finding.suspects] == ["n3"]
        assert finding.onset_ns == START_NS + NS_PER_SECOND

    @pytest.mark.parametrize("hosts", [2, 8])
    def test_hosts_that_say_the_same_together_are_nobodys_fault(self, hosts: int) -> None:
        machines = Machines()
        for number in range(hosts):
            machines.say(1 + number / 10, f"n{number}", events.IB_PORT, port="mlx5_0/1", state="down")

        assert machines.find(3, FakeProgress(STALLED)) == ([], [Reason.AMBIGUOUS])

    def test_a_state_that_is_well_again_takes_back_only_its_own(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.PCIE_LINK, **NARROW)
        machines.say(2, "n3", events.XID, code=79)
        machines.say(3, "n3", events.PCIE_LINK, **WIDE)

        assert [fact.name for fact in machines.log.facts["n3"]] == [events.XID]
        machines.say(4, "n4", events.PCIE_LINK, **WIDE)
        assert not machines.log.facts.get("n4")

    @pytest.mark.parametrize("more", [{}, {"link_downed": 1}, {"flaps": 1}, {"rate_gbps": 400, "max_rate_gbps": 400}])
    def test_a_port_that_is_up_again_is_not_down(self, more: dict[str, object]) -> None:
        machines = Machines()
        machines.say(1.0, "n3", events.IB_PORT, port="mlx5_2/1", state="down", **more)
        assert machines.find(2, FakeProgress(median_step_ns=0))[0][0].tentative
        machines.say(2.4, "n3", events.IB_PORT, port="mlx5_2/1", state="active", **more)

        assert machines.find(3, FakeProgress(STALLED))[0] == []
        assert machines.find(3, FakeProgress(median_step_ns=0))[0] == []

    def test_a_port_that_is_up_again_says_nothing_of_another_one(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.IB_PORT, port="mlx5_0/1", state="down", link_downed=1)
        machines.say(1, "n3", events.IB_PORT, port="mlx5_1/1", state="down", link_downed=1)
        machines.say(2, "n3", events.IB_PORT, port="mlx5_1/1", state="active", link_downed=1)

        [finding], _ = machines.find(20, FakeProgress(STALLED))
        assert finding.evidence[0].text == "n3: mlx5_0/1 is down"
        machines.say(25, "n3", events.IB_PORT, port="mlx5_0/1", state="active")
        assert machines.find(26, FakeProgress(STALLED))[0] == []

    def test_a_port_that_comes_back_at_half_its_rate_has_a_bad_cable_until_it_is_as_before(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.IB_PORT, port="mlx5_0/1", state="down", rate_gbps=400, link_downed=1)
        machines.say(3, "n3", events.IB_PORT, port="mlx5_0/1", state="active", rate_gbps=200, link_downed=1)

        [finding], _ = machines.find(20, FakeProgress(STALLED))
        assert (finding.fault.value, finding.cause) == ("fail_slow", "aoc_error")
        assert finding.evidence[0].text == "n3: mlx5_0/1 runs at 200 Gb/s, it had 400"
        machines.say(60, "n3", events.IB_PORT, port="mlx5_0/1", state="down", rate_gbps=200, link_downed=2)
        machines.say(62, "n3", events.IB_PORT, port="mlx5_0/1", state="active", rate_gbps=400, link_downed=2)
        assert machines.find(63, FakeProgress(STALLED))[0] == []

    @pytest.mark.parametrize(
        ("down_seconds", "slowdown", "growth_seconds", "fault"),
        [
            (10, STALLED, 0.0, "fail_slow"),
            (10, AS_EVER, 0.0, "degraded"),
            (10, AS_EVER, 0.3, "fail_slow"),
            (10, AS_EVER, 0.05, "degraded"),
            (1, STALLED, 0.3, "degraded"),
        ],
        ids=["last-time-hurt", "never", "in-the-mean", "hardly-in-the-mean", "a-moment"],
    )
    def test_a_port_that_comes_and_goes_costs_the_job_the_steps_in_which_it_is_down(
        self, down_seconds: float, slowdown: Slowdown, growth_seconds: float, fault: str
    ) -> None:
        """Most of its steps are as ever, and so is their median; not those of the last time that the port was down."""
        machines = Machines()
        pace = AfterOutages(slowdown, growth_seconds=growth_seconds)
        for count in range(4):
            second = 40 * (count + 1)
            machines.say(second, "n3", events.IB_PORT, port="mlx5_0/1", state="down", link_downed=count + 1)
            pace.up_ns = START_NS + round((second + down_seconds) * NS_PER_SECOND)
            up = {"state": "active", "rate_gbps": 400}
            machines.say(second + down_seconds, "n3", events.IB_PORT, port="mlx5_0/1", **up, link_downed=count + 1)

        [finding], _ = machines.find(182, pace)
        assert (finding.fault.value, finding.cause) == (fault, "aoc_error")
        assert machines.find(330, pace)[0] == []

    def test_what_breaks_long_after_the_job_came_to_stand_is_not_why_it_stands(self) -> None:
        machines = Machines()
        machines.say(200, "n3", events.XID, code=79)
        stood = FakeProgress(STALLED, stalled_since_ns=at_second(100))
        just = FakeProgress(STALLED, stalled_since_ns=at_second(180))

        assert machines.find(205, stood) == ([], [Reason.NO_IMPACT])
        assert machines.find(205, just)[0][0].fault is FaultKind.FAIL_STOP

    @pytest.mark.parametrize(("pace", "fault"), [(STALLED, "fail_slow"), (AS_EVER, "degraded")])
    def test_a_port_that_comes_back_again_and_again_has_a_bad_cable(self, pace: Slowdown, fault: str) -> None:
        machines = Machines()
        for second in (0, 40, 80):
            assert machines.find(second, FakeProgress(pace)) == ([], [])
            machines.say(second + 1, "n3", events.IB_PORT, port="mlx5_0/1", state="down")
            machines.say(second + 2, "n3", events.IB_PORT, port="mlx5_0/1", state="active", link_downed=9)

        [finding], _ = machines.find(83, FakeProgress(pace))
        assert (finding.fault.value, finding.cause) == (fault, "aoc_error")

    def test_a_machine_that_never_stops_talking_is_kept_small(self) -> None:
        machines = Machines()
        for second in range(1000):
            machines.say(second / 10, "n3", events.ECC, kind="corrected", count=1)

        assert len(machines.log.facts["n3"]) < 100

    def test_state_there_and_back(self) -> None:
        machines, other = Machines(), Machines()
        machines.say(1, "n3", events.XID, code=79)
        machines.say(2, "n1", events.ECC, kind="corrected", count=1)
        other.log.load_state(machines.log.to_state())

        assert other.log.facts == machines.log.facts
        assert other.find(3, FakeProgress(STALLED)) == machines.find(3, FakeProgress(STALLED))


@pytest.mark.parametrize(("earlier", "suspects"), [((), ["n3"]), ((20, 140), [])])
def test_a_corrected_error_as_the_job_comes_to_stand_accuses_only_whom_it_is_new_to(
    earlier: tuple[int, ...], suspects: list[str]
) -> None:
    """An old card corrects some every few minutes: that one of them falls near a standstill tells nothing."""
    machines = Machines()
    for second in (*earlier, 260):
        machines.say(second, "n3", events.ECC, kind="corrected", count=30)
    onset_ns = at_second(262)
    stands = Finding(FaultKind.HANG, "unknown", (), onset_ns, 0.5, Reason.JOB_STALLED_UNEXPLAINED, ())

    [found] = machines.causes.accuse_reporting_hosts(machines.graph, [stands], onset_ns + 40 * NS_PER_SECOND)

    assert [suspect.component.name for suspect in found.suspects] == suspects


def _said(machines: Machines, *words: tuple[int, str]) -> None:
    for second, host in words:
        machines.say(second, host, events.NVLINK_ERROR, link=7, count=40)


class TestConcurrentFailures:
    """Two machines that report the same slow part, in turn."""

    @pytest.mark.parametrize("second", [4, 100])
    def test_both_are_meant(self, second: int) -> None:
        machines = Machines()
        _said(machines, (1, "n3"), (second, "n5"))

        [finding], _ = machines.find(second + 1, FakeProgress(SLOWER))

        assert [suspect.component.name for suspect in finding.suspects] == ["n3", "n5"]

    @pytest.mark.parametrize(
        "words",
        [((1, "n3"), (3, "n5"), (5, "n6")), ((1, "n3"), (301, "n5"), (301, "n3"))],
        ids=["three", "minutes-later"],
    )
    def test_others_are_no_pair(self, words: tuple[tuple[int, str], ...]) -> None:
        machines = Machines()
        _said(machines, *words)

        found, _ = machines.find(words[-1][0] + 1, FakeProgress(SLOWER))

        assert {len(finding.suspects) for finding in found} <= {1}

    @pytest.mark.parametrize(
        ("words", "suspects"),
        [
            (((70, "n3"),), ["n3"]),
            (((130, "n3"), (132, "n5")), ["n3", "n5"]),
            (((130, "n3"), (132, "n5"), (140, "n6")), []),
            (((30, "n3"),), []),
            (((170, "n3"),), []),
        ],
        ids=["before", "in-turn", "three", "long-before", "long-after"],
    )
    def test_a_job_that_is_slow_and_nobody_knows_why_since_a_part_was_reported(
        self, words: tuple[tuple[int, str], ...], suspects: list[str]
    ) -> None:
        machines = Machines()
        _said(machines, *words)
        slow = Finding(FaultKind.FAIL_SLOW, "unknown", (), at_second(100), 0.5, Reason.JOB_WIDE_SLOWDOWN, ())

        [found] = machines.causes.accuse_reporting_hosts(machines.graph, [slow], at_second(200))

        assert [suspect.component.name for suspect in found.suspects] == suspects
        assert found.cause == ("nvlink_error" if suspects else "unknown")

    def test_a_job_that_has_more_to_compute_is_nobodys_fault(self) -> None:
        machines = Machines()
        _said(machines, (130, "n3"))
        more = Finding(FaultKind.FAIL_SLOW, "workload_change", (), at_second(100), 0.5, Reason.JOB_WIDE_SLOWDOWN, ())

        assert machines.causes.accuse_reporting_hosts(machines.graph, [more], at_second(200)) == [more]


class TestReports:
    def test_a_broken_part_counts_for_ten_minutes_or_until_it_is_well_again(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.XID, code=74)
        machines.say(2, "n4", events.IB_PORT, port="mlx5_0/1", state="down")

        assert machines.reports(10) == {"n3", "n4"}
        machines.say(12, "n4", events.IB_PORT, port="mlx5_0/1", state="up")
        assert machines.reports(20) == machines.reports(601) == {"n3"}
        assert machines.reports(602) == set()

    def test_an_event_that_accuses_nobody_is_no_report(self) -> None:
        machines = Machines()
        machines.say(1, "n3", events.XID, code=31)  # a page fault: mostly the program's

        assert machines.log.facts["n3"]
        assert machines.reports(10) == set()

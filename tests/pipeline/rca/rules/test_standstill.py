"""Whom metrics name in a job that stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.rca.rules.kit import find_by_metrics, ill, unseen
from tocsin.pipeline.lab.testing.builders import START_NS, at_second, build_deviation, build_graph, build_steps
from tocsin.pipeline.lab.testing.progress import SLOWER, FakeProgress
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.join import join
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.standstill import idle_since, reported_as_unexplained
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, FaultKind

STALLED = FakeProgress(stalled_since_ns=at_second(0), stalled_known_ns=at_second(10))


def _named_while_stalled(now: float, *anomalies: Anomaly) -> list[str] | list[Reason]:
    found, reasons = find_by_metrics(now, STALLED, *anomalies)
    return [suspect.component.name for finding in found for suspect in finding.suspects] or reasons


class TestStalled:
    busy = build_deviation("n3", (0, 35), "cpu_util_ratio", "high", standing=True)
    fell_first = build_deviation("n5", (-5, 0), "gpu_util_ratio", "low", leaning=True)

    def test_who_fell_first_is_named_where_nobody_differs_since(self) -> None:
        assert _named_while_stalled(40, self.fell_first) == ["n5"]

    @pytest.mark.parametrize(
        ("anomaly", "second", "is_tentative"),
        [
            (build_deviation("n3", (0, 290), "cpu_util_ratio", "high", standing=True), 290, True),
            (build_deviation("n3", (0, 310), "cpu_util_ratio", "high", standing=True), 310, False),
            (build_deviation("n3", (0, 170), "gpu_util_ratio", "low", standing=True), 170, True),
            (build_deviation("n3", (0, 190), "gpu_util_ratio", "low", standing=True), 190, False),
        ],
    )
    def test_who_is_busy_may_write_a_checkpoint_for_minutes(
        self, anomaly: Anomaly, second: int, is_tentative: bool
    ) -> None:
        [found], _ = find_by_metrics(second, STALLED, anomaly)

        assert found.tentative is is_tentative

    def test_of_several_that_differed_as_the_job_stopped_the_one_that_fell_first_is_named(self) -> None:
        two = [build_deviation(host, (-10, 0), "gpu_power_watts", "low", 0.0) for host in ("n4", "n5")]

        assert _named_while_stalled(40, *two) == [Reason.AMBIGUOUS]
        assert _named_while_stalled(40, *two, self.fell_first) == ["n5"]

    def test_of_several_that_differ_since_too(self) -> None:
        idle = build_deviation("n5", (0, 35), "gpu_util_ratio", "low", standing=True)

        assert _named_while_stalled(40, idle, replace(idle, component=self.busy.component)) == [Reason.AMBIGUOUS]
        assert _named_while_stalled(40, idle, self.busy, self.fell_first) == ["n5"]

    def test_who_was_only_busier_as_the_job_fell_is_not(self) -> None:
        """Whoever stops does less than the others at first."""
        busier = build_deviation("n5", (-5, 0), "cpu_util_ratio", "high", leaning=True)
        assert _named_while_stalled(40, busier) == [Reason.AMBIGUOUS]

    def test_nobody_is_named_beside_one_that_is_busy_until_it_is_clear_that_it_stays_so(self) -> None:
        """It may write a checkpoint, or its core; who fell first, or differed for a moment, says little then."""
        moment = build_deviation("n5", (0, 10), "gpu_util_ratio", "low", sigmas=0.0, standing=True)
        for other in (self.fell_first, moment):
            assert _named_while_stalled(40, self.busy, other) == [Reason.AMBIGUOUS]
        assert _named_while_stalled(70, self.busy, self.fell_first) == ["n3"]

    def test_who_ailed_in_several_ways_before_is_named_beside_it(self) -> None:
        assert _named_while_stalled(40, self.busy, ill((-10, 5))) == ["n4"]
        assert _named_while_stalled(40, self.busy, build_deviation("n4", (-10, 5), "gpu_util_ratio", "low", 0.0)) == [
            Reason.AMBIGUOUS
        ]

    @pytest.mark.parametrize(("end", "now_sigmas", "named"), [(-1, 0.5, False), (-1, 9.0, True), (6, 0.5, True)])
    def test_a_hiccup_in_one_way_shortly_before_says_nothing(self, end: float, now_sigmas: float, named: bool) -> None:
        hiccup = build_deviation("n4", (-10, end), "gpu_util_ratio", "low", now_sigmas)

        assert _named_while_stalled(40, hiccup) == (["n4"] if named else [Reason.AMBIGUOUS])
        assert _named_while_stalled(40, ill((-10, end))) == ["n4"]

    def test_how_slow_the_job_was_before_does_not_matter(self) -> None:
        idle = build_deviation("n5", (0, 35), "gpu_util_ratio", "low", standing=True)
        named, _ = find_by_metrics(40, STALLED, idle)
        slower = Finding(FaultKind.FAIL_SLOW, "workload_change", (), at_second(-60), 0.6, Reason.JOB_WIDE_SLOWDOWN, ())

        assert join([slower], named) == [*named, slower]
        machine = [replace(named[0], fault=FaultKind.FAIL_SLOW)]
        assert join([slower], machine) == [slower]

    def test_whoever_differs_still_is_named_beside_it(self) -> None:
        idle = build_deviation("n5", (0, 35), "gpu_util_ratio", "low", standing=True)

        assert _named_while_stalled(40, self.busy, idle) == ["n5"]

    def test_who_was_ill_until_the_job_stopped_is_named_where_all_look_alike_since(self) -> None:
        """Its processes hang, those of the others are ended by a watchdog, seconds later."""
        sick = ill((-60, -5))
        assert _named_while_stalled(40, sick) == ["n4"]
        assert _named_while_stalled(40, sick, self.fell_first) == ["n4"]
        assert _named_while_stalled(
            40, sick, build_deviation("n4", (0, 35), "cpu_util_ratio", "high", standing=True)
        ) == ["n4"]
        assert _named_while_stalled(40, sick, self.busy) == [Reason.AMBIGUOUS]

    @pytest.mark.parametrize("span", [(-900, -5), (-200, -60)], ids=["for-long", "no-more"])
    def test_who_was_so_for_long_or_is_no_more_is_not(self, span: tuple[float, float]) -> None:
        assert _named_while_stalled(40, ill(span)) == [Reason.AMBIGUOUS]

    def test_one_odd_number_is_no_illness(self) -> None:
        assert _named_while_stalled(40, build_deviation("n4", (-60, -5), "cpu_util_ratio", "low")) == [Reason.AMBIGUOUS]

    @pytest.mark.parametrize(("second", "named"), [(1.9, ["n5"]), (30.0, [Reason.STILL_PROGRESSING])])
    def test_a_job_whose_steps_still_end_is_slow_and_does_not_stand(self, second: float, named: list[object]) -> None:
        graph = build_graph()
        graph.take([build_steps(second, "n1", 1, own_seconds=9.0)])

        found, reasons = find_by_metrics(40, STALLED, self.fell_first, graph=graph)

        assert ([suspect.component.name for finding in found for suspect in finding.suspects] or reasons) == named

    @pytest.mark.parametrize(("now_sigmas", "named"), [(0.5, [Reason.AMBIGUOUS]), (9.0, ["n3"])])
    def test_one_that_was_busy_and_let_its_gpus_rest_meanwhile_wrote_a_checkpoint(
        self, now_sigmas: float, named: list[object]
    ) -> None:
        """A last one, say: then all rest, and the job is over."""
        wrote = build_deviation("n3", (0, 10), "cpu_util_ratio", "high", now_sigmas)
        [rested] = build_deviation("n3", (0, 10), "gpu_util_ratio", "low", now_sigmas).detail["metrics"]
        metrics = [*wrote.detail["metrics"], {**rested, "score": 0.6}]

        assert _named_while_stalled(40, replace(wrote, detail={"metrics": metrics})) == named

    def test_one_whose_gpus_fell_far_is_named_though_it_was_busy_too(self) -> None:
        fell = ill((0, 10))
        metrics = [
            *build_deviation("n3", (0, 10), "cpu_util_ratio", "high", 0.5).detail["metrics"],
            *fell.detail["metrics"],
        ]

        assert _named_while_stalled(40, replace(fell, detail={"metrics": metrics})) == ["n4"]

    @pytest.mark.parametrize(
        ("ended_second", "named"), [(2.0, [Reason.ENDED_WITH_OTHERS]), (30.0, ["n5"])], ids=["at-once", "later"]
    )
    def test_where_all_processes_ended_as_the_job_came_to_stand_nobody_is_why(
        self, ended_second: float, named: list[object]
    ) -> None:
        """It is started again elsewhere; where they stood for a while, a watchdog ended them."""
        idle = build_deviation("n5", (5, 35), "gpu_util_ratio", "low", standing=True)
        for anomaly in (self.fell_first, idle):
            assert self._named_where_ended(ended_second, anomaly) == named

    def test_nor_does_that_excuse_who_was_ill_before_whose_gpu_is_gone_or_who_worked_on(self) -> None:
        gone = build_deviation("n5", (5, 35), "gpu_samples_ratio", "low", standing=True)
        worked_on = build_deviation("n5", (-5, 0), "gpu_util_ratio", "high", leaning=True)

        assert self._named_where_ended(2.0, ill((-60, -5))) == ["n4"]
        assert self._named_where_ended(2.0, gone) == ["n5"]
        assert self._named_where_ended(2.0, worked_on) == ["n5"]

    def _named_where_ended(self, second: float, anomaly: Anomaly) -> list[str] | list[Reason]:
        ended = {f"n{row}": at_second(second) for row in range(8)}
        found, reasons = find_by_metrics(40, replace(STALLED, ended_at_once=ended), anomaly)
        return [suspect.component.name for finding in found for suspect in finding.suspects] or reasons

    def test_one_that_was_busy_for_a_while_leaves_it_open_who_it_was(self) -> None:
        was_busy = build_deviation("n3", (0, 35), "cpu_util_ratio", "high", sigmas=0.0, standing=True)
        moment = build_deviation("n5", (0, 10), "gpu_util_ratio", "low", sigmas=0.0, standing=True)

        assert _named_while_stalled(100, was_busy, moment) == [Reason.AMBIGUOUS]


@pytest.mark.parametrize(
    ("metric", "last_step", "named"),
    [
        ("pfc_tx_packets_per_second", 80, ["n3"]),
        ("pfc_tx_packets_per_second", 1, []),
        ("gpu_sm_active_ratio", 80, []),
    ],
    ids=["its-port-is-congested", "no-step-ends", "another-way-to-wait"],
)
def test_a_congested_port_is_named_in_a_job_that_is_so_slow_that_it_seems_to_stand(
    metric: str, last_step: float, named: list[str]
) -> None:
    """Steps of three times the length leave less than 0.35 of the work per second: that looks like standing."""
    graph = build_graph()
    graph.take([build_steps(last_step, "n0", 0, own_seconds=3.0)])
    pace = replace(STALLED, slowdown=SLOWER)
    anomaly = build_deviation("n3", (0, 85), metric, "high", standing=True, holds_memory=True)

    found, _ = find_by_metrics(90, pace, anomaly, graph=graph)

    slow = [finding for finding in found if finding.fault is FaultKind.FAIL_SLOW]
    assert [suspect.component.name for finding in slow for suspect in finding.suspects] == named


def test_whoever_differs_again_as_several_begin_to_is_one_of_them() -> None:
    """A standstill ends: the data of some machines come before those of others."""
    metric = "gpu_graphics_active_ratio"
    jumpy = build_deviation("n3", (5, 65), metric, "low", standing=True)
    jumpy = replace(jumpy, detail={**jumpy.detail, "metrics": [{**jumpy.detail["metrics"][0], "present_ratio": 0.4}]})
    late = [build_deviation(host, (55, 65), metric, "low", standing=True) for host in ("n5", "n6")]
    others = [build_deviation(host, (55, 65), "gpu_power_watts", "low", standing=True) for host in ("n5", "n6")]
    steady = build_deviation("n3", (5, 65), metric, "low", standing=True)

    assert _named_while_stalled(66, jumpy, *late) == [Reason.AMBIGUOUS]
    assert _named_while_stalled(66, jumpy, *others) == ["n3"]
    assert _named_while_stalled(66, steady, *late) == ["n3"]


def _idle(host: str, value: float, present_ratio: float = 1.0, expected: float = 0.95) -> Anomaly:
    anomaly = build_deviation(host, (0, 85), "gpu_util_ratio", "low", standing=True, holds_memory=True)
    anomaly.detail["metrics"][0].update(value=value, expected=expected, present_ratio=present_ratio)
    return anomaly


@pytest.mark.parametrize(
    ("anomalies", "last_step", "named"),
    [
        ([_idle("n3", 0.2)], 80, ["n3"]),
        ([_idle("n3", 0.2)], 1, []),
        ([_idle("n3", 0.9)], 80, []),
        ([_idle("n3", 0.2, present_ratio=0.4)], 80, []),
        ([_idle("n3", 0.2), _idle("n5", 0.2)], 80, []),
        ([_idle("n3", 0.05, expected=0.3)], 80, []),
        ([unseen(_idle("n3", 0.2))], 80, []),
    ],
    ids=[
        "its-gpus-are-idle",
        "no-step-ends",
        "a-little-less",
        "now-and-then",
        "two",
        "all-wait-for-data",
        "no-sample-now",
    ],
)
def test_the_one_whose_gpus_are_idle_while_all_others_spin_is_named_in_a_job_that_seems_to_stand(
    anomalies: list[Anomaly], last_step: float, named: list[str]
) -> None:
    """Its loader takes three steps' time: the others wait for it in a collective, which keeps their GPUs busy."""
    graph = build_graph()
    graph.take([build_steps(last_step, "n0", 0, own_seconds=3.0)])
    pace = replace(STALLED, slowdown=SLOWER)
    found, _ = find_by_metrics(90, pace, *anomalies, graph=graph)

    slow = [finding for finding in found if finding.fault is FaultKind.FAIL_SLOW]
    assert [suspect.component.name for finding in slow for suspect in finding.suspects] == named


HANG = Finding(FaultKind.HANG, "unknown", (), at_second(0), 0.5, Reason.JOB_STALLED_UNEXPLAINED, ())


def _one_idle(host: str = "n3", begin: float = -5, value: float = 0.87, sigmas: float = 53.0) -> Anomaly:
    """One GPU of a machine's eight does nothing, those of all others spin."""
    idle = build_deviation(host, (begin, 60), "gpu_util_ratio", "low", sigmas)
    idle.detail["metrics"][0].update(value=value, expected=0.99)
    return idle


class TestIdleSince:
    """All wait in their collectives, which do not tell for whom."""

    @pytest.mark.parametrize(
        ("anomalies", "named"),
        [
            ([_one_idle()], ["n3"]),
            ([_one_idle("n3"), _one_idle("n5")], []),
            ([_one_idle(), build_deviation("n5", (-5, 60), "cpu_util_ratio", "high")], ["n3"]),
            ([_one_idle(begin=-60)], []),
            ([_one_idle(value=0.95)], []),
            ([_one_idle(sigmas=9.0)], []),
            ([], []),
        ],
        ids=["one", "two", "a daemon elsewhere", "long before", "hardly", "all vary as much", "nobody"],
    )
    def test_the_one_whose_gpu_idles_is_named(self, anomalies: list[Anomaly], named: list[str]) -> None:
        found = idle_since(HANG, anomalies, at_second(60), MachineRules())

        assert [suspect.component.name for suspect in (found.suspects if found else ())] == named

    def test_who_is_busy_meanwhile_may_write_a_checkpoint(self) -> None:
        writer = _one_idle()
        [cpu] = build_deviation("n3", (-5, 60), "cpu_util_ratio", "high").detail["metrics"]
        writer.detail["metrics"].append(cpu)

        assert idle_since(HANG, [writer], at_second(60), MachineRules()) is None

    @pytest.mark.parametrize(("second", "tentative"), [(24, None), (60, True), (181, False)])
    def test_it_is_tentative_at_first(self, second: int, tentative: bool | None) -> None:
        idle = replace(_one_idle(), end_ns=at_second(max(second, 60)))

        found = idle_since(HANG, [idle], at_second(second), MachineRules())

        assert (found.tentative if found else None) is tentative


@pytest.mark.parametrize(
    ("pace", "after_seconds"),
    [
        (FakeProgress(stalled_since_ns=START_NS, processes_wait_since_ns=START_NS), 300.0),
        (
            FakeProgress(
                stalled_since_ns=START_NS, processes_wait_since_ns=START_NS, longest_stall_ns=at_second(200) - START_NS
            ),
            600.0,
        ),
        (
            FakeProgress(
                stalled_since_ns=START_NS, processes_wait_since_ns=START_NS, longest_pause_ns=at_second(400) - START_NS
            ),
            1200.0,
        ),
        (
            FakeProgress(stalled_since_ns=START_NS, processes_wait_since_ns=at_second(100)),
            400.0,
        ),  # GPUs that worked until then
        (FakeProgress(stalled_since_ns=START_NS, processes_wait_since_ns=0), None),
    ],
)
def test_when_a_standstill_is_told_that_nothing_explains(pace: FakeProgress, after_seconds: float | None) -> None:
    """Three times the longest pause that ended, five minutes at least."""
    reported = [
        at for at in range(1, 2000) if reported_as_unexplained(build_graph(), at_second(at), pace, MachineRules())
    ]

    assert (reported[0] if reported else None) == after_seconds

"""Two machines that fail alike at the same time, in different places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.timelines import build_metrics_scenario
from tocsin.models.pace import Slowdown
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing import MachineShape, between
from tocsin.pipeline.lab.testing.builders import JOB, at_second, build_graph
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.rules.concurrent_failures import find_concurrent_failures
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.schemas.records import RankPlace
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

SLOW_STEPS = Slowdown(0.5, is_certain=True, is_gone=False, step_seconds=3.0, before_seconds=2.0)
CLOCK, JAM, BUS = "gpu_sm_clock_hertz", "pfc_tx_packets_per_second", "pcie_usage_ratio"
POWER, ACTIVE = "gpu_power_watts", "gpu_tensor_active_ratio"


def _graph(hosts: int = 8, *, minipods: int = 8) -> JobGraph:
    """One rank a host; so many minipods, a leaf switch each host."""
    return build_graph(
        RankPlace(rank, f"n{rank}", dp=rank, leaf=f"leaf{rank}", minipod=f"pod{rank % minipods}")
        for rank in range(hosts)
    )


def _shows(host: str, *metrics: tuple[str, str], second: int = 10, sigmas: float = 9.0) -> Anomaly:
    since_ns = at_second(second)
    shown = [
        {"metric": name, "direction": way, "score": 1.4, "since_ns": since_ns, "present_ratio": 1.0, "sigmas": sigmas}
        for name, way in metrics
    ]
    component, end_ns = Component(ComponentKind.HOST, host), at_second(60)
    return Anomaly(JOB, end_ns, component, metrics[0][0], since_ns, end_ns, 1.4, "peers", "", {"metrics": shown})


def _named(
    graph: JobGraph, *anomalies: Anomaly, pace: FakeProgress | None = None, seen: tuple[Anomaly, ...] = ()
) -> list[str]:
    found = find_concurrent_failures(
        graph, at_second(90), anomalies, [*anomalies, *seen], pace or FakeProgress(), MachineRules()
    )
    return [anomaly.component.name for anomaly in found]


SLOW, JAMMED, FULL = (CLOCK, "low"), (JAM, "high"), (BUS, "high")


@pytest.mark.parametrize("shown", [(SLOW,), (SLOW, (ACTIVE, "high"), (POWER, "low")), (JAMMED,), (JAMMED, FULL)])
def test_the_same_limit_since_the_same_moment_names_both(shown: tuple[tuple[str, str], ...]) -> None:
    other = _shows("n7", ("cpu_util_ratio", "high"))

    assert _named(_graph(), _shows("n4", *shown), other, _shows("n2", *shown, second=15)) == ["n2", "n4"]


def test_who_began_again_after_a_pause_is_known_by_what_did_not_pause() -> None:
    warm, again = _shows("n2", ("gpu_temperature_celsius", "high"), SLOW), _shows("n4", SLOW, second=200)
    again = replace(again, start_ns=warm.start_ns)

    assert _named(_graph(), warm, again) == ["n2", "n4"]


@pytest.mark.parametrize(
    "second",
    [
        _shows("n4", SLOW, second=25),
        _shows("n4", JAMMED),
        _shows("n4", (POWER, "low")),
        _shows("n4", SLOW, (ACTIVE, "low")),
        _shows("n4", SLOW, (POWER, "high")),
        _shows("n4", SLOW, sigmas=0.2),
    ],
    ids=["later", "another-limit", "no-limit", "idle", "more-to-do", "over"],
)
def test_two_that_have_too_little_in_common_are_no_concurrent_failures(second: Anomaly) -> None:
    assert _named(_graph(), _shows("n2", SLOW), second) == []


def test_three_are_more_than_chance_and_less_than_a_switch() -> None:
    assert _named(_graph(), *(_shows(f"n{rank}", SLOW) for rank in range(3))) == []


@pytest.mark.parametrize(
    ("shown", "third", "named"),
    [
        (JAMMED, ("ecn_packets_per_second", "high"), []),
        (SLOW, SLOW, []),
        (SLOW, ("ecn_packets_per_second", "high"), ["n2", "n4"]),
    ],
)
def test_a_third_one_that_shows_a_little_of_it_tells_of_something_outside(
    shown: tuple[str, str], third: tuple[str, str], named: list[str]
) -> None:
    weak = _shows("n7", third)
    weak.detail["metrics"][0]["score"] = 0.6

    assert _named(_graph(), _shows("n2", shown), _shows("n4", shown), seen=(weak,)) == named


def test_two_of_four_are_no_minority() -> None:
    assert _named(_graph(4), _shows("n1", SLOW), _shows("n2", SLOW)) == []


def test_the_network_that_two_share_may_be_why_they_are_congested_but_not_why_their_buses_are_full() -> None:
    together = _graph(minipods=2)

    assert _named(together, _shows("n1", JAMMED), _shows("n3", JAMMED)) == []
    assert _named(together, _shows("n1", JAMMED), _shows("n2", JAMMED)) == ["n1", "n2"]
    assert _named(together, _shows("n1", JAMMED, FULL), _shows("n3", JAMMED, FULL)) == ["n1", "n3"]
    assert _named(together, _shows("n1", SLOW), _shows("n3", SLOW)) == ["n1", "n3"]


def _measured(**self_time_excess: float) -> FakeProgress:
    """Steps take a second longer, and these hosts so much longer than their peers."""
    return FakeProgress(SLOW_STEPS, self_time_excess={f"n{row}": 0.0 for row in range(8)} | self_time_excess)


IDLE = (POWER, "low")


@pytest.mark.parametrize(
    ("own", "shown", "named"),
    [
        ((1.0, 0.7), IDLE, ["n2", "n4"]),
        ((1.0, 0.7), ("cpu_util_ratio", "high"), ["n2", "n4"]),
        ((1.0, 0.4), IDLE, []),
        ((1.0, 0.7), (ACTIVE, "high"), []),
    ],
    ids=["idle", "cpu", "one-hardly", "hot-experts"],
)
def test_two_whose_own_time_explains_what_the_job_lost(
    own: tuple[float, float], shown: tuple[str, str], named: list[str]
) -> None:
    pace = _measured(n2=own[0], n4=own[1])
    other = _shows("n7", shown)

    assert _named(_graph(), _shows("n2", shown), _shows("n4", shown), other, pace=pace) == named


def test_two_stages_of_one_replica_wait_for_each_other() -> None:
    graph = build_graph(RankPlace(rank, f"n{rank}", dp=rank // 2, pp=rank % 2) for rank in range(8))
    pace = _measured(n2=1.0, n3=0.9)

    assert _named(graph, _shows("n2", IDLE), _shows("n3", IDLE), pace=pace) == []


@pytest.mark.parametrize(("packets", "named"), [(1000.0, ["n2", "n4"]), (150.0, [])], ids=["as-congested", "victim"])
def test_who_is_congested_because_another_one_is_is_no_concurrent_failure(packets: float, named: list[str]) -> None:
    first, second = _shows("n2", JAMMED), _shows("n4", JAMMED)
    first.detail["metrics"][0]["value"], second.detail["metrics"][0]["value"] = 2500.0, packets

    assert _named(_graph(), first, second) == named


class TestVerdicts:
    @pytest.mark.parametrize("has_hook", [True, False], ids=["steps", "no_steps"])
    def test_a_power_feed_of_two_machines(self, has_hook: bool) -> None:
        scenario, job = build_metrics_scenario(MachineShape(has_hook=has_hook))
        for rank in (2, 5):
            scenario.at(150).inject(job.shift, rank, POWER, 0.7)
            scenario.at(150).inject(job.shift, rank, CLOCK, 0.7)
            scenario.at(150).inject(job.slow, rank, "forward", 1.5)
        scenario.want(between(150, 200), fault="fail_slow", cause="power_cap", suspects=["n02", "n05"])
        scenario.run(260).check()

        assert [[suspect.component.name for suspect in verdict.suspects] for verdict in scenario.final()] == [
            ["n02", "n05"]
        ]

    def test_who_of_two_is_well_again_first_takes_nothing_back(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape())
        for rank in (2, 5):
            scenario.at(150).inject(job.shift, rank, CLOCK, 0.6)
            scenario.at(150).inject(job.slow, rank, "forward", 1.6)
        scenario.at(240).inject(job.shift, 5, CLOCK, 1.0)
        scenario.at(240).inject(job.slow, 5, "forward", 1.0)
        scenario.want(between(150, 200), fault="fail_slow", suspects=["n02", "n05"])
        scenario.run(330).check()

        assert len({verdict.verdict_id for verdict in scenario.verdicts if verdict.fault.value == "fail_slow"}) == 1

    def test_two_that_run_slower_in_a_job_that_does_not_are_no_fault(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape())
        for rank in (2, 5):
            scenario.at(150).inject(job.shift, rank, CLOCK, 0.9)
        scenario.run(260)

        assert {verdict.fault.value for verdict in scenario.verdicts} <= {"degraded"}

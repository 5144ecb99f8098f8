"""Deviations that begin before, with or after the slowdown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.pipeline.rca.rules.kit import find_by_metrics, slower_since, told_of
from tocsin.models.pace import Slowdown, find_slowdown
from tocsin.pipeline.lab.testing.builders import at_second, build_deviation, build_graph
from tocsin.pipeline.lab.testing.progress import SLOWER, FakeProgress
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.machine import find_machine
from tocsin.pipeline.rca.rules.timing import began_later
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND


@pytest.mark.parametrize(("onset", "named"), [(-5, ["n3"]), (20, ["n3"]), (60, [])])
def test_who_began_to_differ_long_after_the_job_became_slower_is_not_why(onset: float, named: list[str]) -> None:
    """Of a hundred machines in a job of long steps one or the other differs for half a minute, come what may."""
    pace = FakeProgress(SLOWER, at_second(onset), median_step_ns=10 * NS_PER_SECOND)
    anomaly = build_deviation("n3", (onset, onset + 60), "gpu_sm_clock_hertz", "low")
    found, _ = find_by_metrics(onset + 60, pace, anomaly)
    assert [finding.reason for finding in found] == [Reason.METRICS_DIFFER_STEPS_SLOWER]

    left = began_later(build_graph(), [slower_since(0)], found, pace)

    assert [suspect.component.name for finding in left for suspect in finding.suspects] == named


@dataclass
class RealSteps(FakeProgress):
    """Steps of some seconds that take a third longer from some time on."""

    seconds: float = 1.0

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        lengths: list[float] = []
        ends: list[int] = []
        at_ns = at_second(-2000)
        while at_ns < now_ns:
            length = self.seconds * (1.3 if at_ns >= self.slower_since_ns else 1.0) * (1 + 0.001 * (len(ends) % 3))
            at_ns += int(length * NS_PER_SECOND)
            lengths.append(length)
            ends.append(at_ns)
        done = np.array(ends) <= now_ns
        return find_slowdown(np.array(lengths)[done], np.array(ends, np.int64)[done], onset_ns, now_ns)


@pytest.mark.parametrize("seconds", [0.5, 1.0, 3.0, 4.0, 10.0, 30.0])
@pytest.mark.parametrize("metric", ["cpu_util_ratio", "gpu_sm_clock_hertz"])
def test_however_long_steps_are_who_differs_in_a_slow_job_is_not_why(seconds: float, metric: str) -> None:
    began = 30 + 10 * seconds
    slow = RealSteps(slower_since_ns=at_second(0), median_step_ns=int(seconds * NS_PER_SECOND), seconds=seconds)
    anomaly = build_deviation("n3", (began, began + 60 + 6 * seconds), metric, "low" if "clock" in metric else "high")
    now_ns = anomaly.end_ns
    late, _ = find_machine(build_graph(), now_ns, [anomaly], slow, MachineRules(), HarmlessDeviations())
    at_once, _ = find_machine(
        build_graph(),
        now_ns,
        [anomaly],
        replace(slow, slower_since_ns=at_second(began)),
        MachineRules(),
        HarmlessDeviations(),
    )

    assert [finding.reason for finding in late] == [Reason.SLOWDOWN_PRECEDES_ANOMALY]
    assert [finding.reason for finding in at_once] == [Reason.METRICS_DIFFER_STEPS_SLOWER]


@pytest.mark.parametrize(("slower", "hurts"), [(-40, False), (-20, False), (-10, True), (0, True), (3, True)])
def test_whoever_began_to_differ_when_the_job_had_been_slower_for_a_while_is_not_why(
    slower: float, hurts: bool
) -> None:
    """The steps of all take longer (nobody says so any more, or not yet), and another program starts on one."""
    found = told_of(FakeProgress(SLOWER, slower_since_ns=at_second(slower)), 40, HarmlessDeviations())

    assert found == (
        [("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER)]
        if hurts
        else [("degraded", Reason.SLOWDOWN_PRECEDES_ANOMALY)]
    )

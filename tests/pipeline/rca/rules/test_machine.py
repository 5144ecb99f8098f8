"""When a machine that differs is named, and when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.rca.rules.kit import find_by_metrics
from tocsin.pipeline.lab.testing.builders import build_deviation, build_graph, build_steps
from tocsin.pipeline.lab.testing.progress import NO_STEP, SLOWER, FakeProgress
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, RankPlace
from tocsin.schemas.verdicts import FaultKind


@pytest.mark.parametrize(
    ("seconds", "metrics", "is_named"),
    [
        (80, ("gpu_power_watts", "gpu_sm_clock_hertz"), True),
        (60, ("gpu_power_watts", "gpu_sm_clock_hertz"), False),
        (80, ("gpu_sm_clock_hertz",), False),
        (80, ("gpu_sm_clock_hertz", "gpu_temperature_celsius"), False),
        (310, ("gpu_sm_clock_hertz",), True),
    ],
)
def test_with_too_few_steps_before_several_far_metrics_are_believed_sooner(
    seconds: int, metrics: tuple[str, ...], is_named: bool
) -> None:
    parts = [build_deviation("n3", (0, seconds), name, "low") for name in metrics]
    lasting = replace(parts[0], detail={"metrics": [metric for part in parts for metric in part.detail["metrics"]]})
    found, reasons = find_by_metrics(seconds + 2, FakeProgress(None), lasting)

    assert [finding.fault.value for finding in found] == (["fail_slow"] if is_named else [])
    assert reasons == ([] if is_named else [Reason.NOT_CONTINUOUS])


@pytest.mark.parametrize(
    ("metric", "neighbours_ratio", "named"),
    [
        ("pfc_tx_packets_per_second", 0.4, False),
        ("pfc_tx_packets_per_second", 0.05, True),
        ("pfc_tx_packets_per_second", None, True),
        ("ecn_packets_per_second", 0.4, False),
        ("ecn_packets_per_second", 0.05, True),
    ],
)
def test_the_most_congested_one_behind_a_congested_switch_is_not_why(
    metric: str, neighbours_ratio: float | None, named: bool
) -> None:
    anomaly = build_deviation("n3", (0, 60), metric, "high")
    reported = {"value": 4000.0, "expected": 100.0}
    anomaly.detail["metrics"][0].update(
        reported if neighbours_ratio is None else reported | {"neighbours_ratio": neighbours_ratio}
    )
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), anomaly)

    assert [finding.fault for finding in found if not finding.only_holds] == [FaultKind.FAIL_SLOW] * named


def test_what_else_speaks_against_the_most_congested_one_still_does() -> None:
    """Its clock is down, or it moves half of the bytes."""
    congestion = build_deviation("n3", (0, 60), "pfc_tx_packets_per_second", "high")
    congestion.detail["metrics"][0].update(value=4000.0, expected=100.0, neighbours_ratio=0.4)
    congestion.detail["metrics"].append(
        build_deviation("n3", (0, 60), "gpu_sm_clock_hertz", "low").detail["metrics"][0]
    )
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), congestion)

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW]


@pytest.mark.parametrize(
    ("second", "window_seconds", "names"), [(74, 5, ["n3"]), (80, 5, []), (95, 25, ["n3"]), (105, 25, [])]
)
def test_what_was_last_seen_long_ago_opens_nothing(second: float, window_seconds: int, names: list[str]) -> None:
    """Of several that differed alike the others were seen to be well again first."""
    graph = build_graph()
    graph.hosts["n3"].report_interval_ns = window_seconds * NS_PER_SECOND
    anomaly = build_deviation("n3", (0, 60), "gpu_util_ratio", "low")
    found, reasons = find_by_metrics(second, FakeProgress(SLOWER), anomaly, graph=graph)

    assert [f.suspects[0].component.name for f in found if not f.only_holds] == names
    assert (Reason.NOT_CONTINUOUS in reasons) is not bool(names)


@pytest.mark.parametrize(
    ("stopped", "longest_pause_seconds", "fault", "is_tentative"),
    [(15, 0, "degraded", False), (30, 0, "fail_slow", True), (30, 40, "degraded", False), (185, 0, "fail_slow", False)],
)
def test_whoever_differs_while_no_step_ends_may_write_a_checkpoint_that_nobody_announced(
    stopped: float, longest_pause_seconds: int, fault: str, is_tentative: bool
) -> None:
    """As long as one and a half of the longest that was seen; and is not drained before twice of that."""
    graph = build_graph()
    graph.take([build_steps(0, "n1", 1)])
    anomaly = build_deviation("n3", (0, stopped), "rdma_bytes_per_second", "low")
    pace = FakeProgress(NO_STEP, longest_pause_ns=longest_pause_seconds * NS_PER_SECOND)
    [found], _ = find_by_metrics(stopped, pace, anomaly, graph=graph)

    assert (found.fault.value, found.tentative) == (fault, is_tentative)


@pytest.mark.parametrize(
    ("hosts_a_stage", "metric", "direction", "fault"),
    [
        (1, "gpu_tensor_active_ratio", "high", FaultKind.DEGRADED),
        (1, "gpu_power_watts", "high", FaultKind.DEGRADED),
        (1, "gpu_power_watts", "low", FaultKind.FAIL_SLOW),
        (1, "gpu_sm_clock_hertz", "low", FaultKind.FAIL_SLOW),
        (2, "gpu_tensor_active_ratio", "high", FaultKind.FAIL_SLOW),
        (8, "gpu_tensor_active_ratio", "high", FaultKind.FAIL_SLOW),
    ],
)
def test_a_stage_of_one_host_may_have_more_work_since(
    hosts_a_stage: int, metric: str, direction: str, fault: FaultKind
) -> None:
    """An auxiliary loss in the last stage; nobody else has its role."""
    graph = build_graph(RankPlace(r, f"n{r}", pp=r // hosts_a_stage) for r in range(8))
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), build_deviation("n7", (0, 60), metric, direction), graph=graph)

    assert [finding.fault for finding in found] == [fault]


class TestOthersDiffer:
    """A machine was named, and for one window others differ as much."""

    others = tuple(build_deviation(host, (95, 100), "gpu_power_watts", "low") for host in ("n1", "n2"))

    @pytest.mark.parametrize(("begin", "sigmas", "holds"), [(40, 9.0, ["n4"]), (40, 0.0, []), (90, 9.0, [])])
    def test_what_was_said_of_it_is_held_while_it_differs_as_ever(
        self, begin: int, sigmas: float, holds: list[str]
    ) -> None:
        """Not where it is seen no more, nor where it differs for as short as they: that told nobody yet."""
        ill = build_deviation("n4", (begin, 100), "gpu_sm_clock_hertz", "low", sigmas)

        found, reasons = find_by_metrics(101, FakeProgress(), ill, *self.others)

        assert reasons == [Reason.AMBIGUOUS]
        assert [suspect.component.name for finding in found for suspect in finding.suspects] == holds
        assert all(finding.only_holds for finding in found)

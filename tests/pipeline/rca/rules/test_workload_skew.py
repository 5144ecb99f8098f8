"""Hosts that are slow because they have more to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.rules.deviations import annotate_reported
from tocsin.pipeline.rca.rules.more_work import shows_more_work
from tocsin.pipeline.rca.rules.workload_skew import WorkloadSkew
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

CLOCK = "gpu_sm_clock_hertz"


def _anomaly(host: str, metric: str, begin: int, detector: str, detail: dict[str, object]) -> Anomaly:
    begin_ns, end_ns = at_second(begin), at_second(100)
    component = Component(ComponentKind.HOST, host)
    return Anomaly(JOB, end_ns, component, metric, begin_ns, end_ns, 1.2, detector, "", detail)


def _slow(host: str, begin: int = 50, *, from_start: bool = False) -> Anomaly:
    times = {"own_seconds": 1.5, "peer_seconds": 1.0, "excess_seconds": 0.5, "strength_ratio": 0.5}
    detail: dict[str, object] = {"ranks": [3], **times, "from_start": from_start}
    return _anomaly(host, "own_seconds", begin, "steps", detail)


def _power(host: str, ratio: float) -> Anomaly:
    metric = {"metric": "gpu_power_watts", "direction": "high", "score": 1.4, "present_ratio": 1.0}
    metric["since_ns"] = at_second(50)
    return _anomaly(host, "gpu_power_watts", 50, "peers", {"metrics": [{**metric, "value": ratio, "expected": 1.0}]})


def _judge(
    known: WorkloadSkew, steps: list[Anomaly], peers: list[Anomaly], pace: FakeProgress
) -> list[tuple[str, str]]:
    """Reason and whom it takes back, of each finding; through a snapshot."""
    other = WorkloadSkew()
    other.load_state(through_bytes(known.to_state()))
    found, left = other.judge(JobGraph(), at_second(100), steps, peers, pace)
    known.load_state(other.to_state())
    assert len(left) == len(steps) - len(found)
    assert all(finding.cause == "data_imbalance" and not finding.suspects for finding in found)
    return [(finding.reason.value, finding.clears[0].name) for finding in found]


def test_who_ailed_while_it_was_slow_does_not_work_harder_as_that_ends() -> None:
    known, pace = WorkloadSkew(), FakeProgress(growth_seconds=0.5)
    cpu = {"metric": "cpu_util_ratio", "direction": "high", "score": 1.4, "present_ratio": 1.0}
    ill = _anomaly("n3", "cpu_util_ratio", 50, "peers", {"metrics": [{**cpu, "since_ns": at_second(50)}]})

    assert _judge(known, [_slow("n3")], [ill], pace) == []
    pace.loads["n3"] = Load(1.1, 1.0, at_second(60))
    assert _judge(known, [_slow("n3")], [], pace) == []
    assert _judge(known, [], [], pace) == []
    assert _judge(known, [_slow("n3", 90)], [], pace) == [("works_harder", "n3")]


def test_whoever_works_harder_meanwhile_stays_cleared_as_long_as_it_is_slow() -> None:
    known, pace = WorkloadSkew(), FakeProgress(growth_seconds=0.5)

    assert _judge(known, [_slow("n3")], [], pace) == []
    assert _judge(known, [_slow("n3"), _slow("n5")], [_power("n3", 1.1)], pace) == [("works_harder", "n3")]
    assert _judge(known, [_slow("n3")], [], pace) == [("works_harder", "n3")]
    assert _judge(known, [], [], pace) == []
    assert _judge(known, [_slow("n3")], [], pace) == []  # slow again: to be shown again


@pytest.mark.parametrize(
    ("growth_seconds", "freed"), [(None, False), (0.4, False), (0.13, False), (0.12, True), (-1.0, True)]
)
def test_whoever_became_the_slowest_and_made_nothing_slower_took_over_from_another(
    growth_seconds: float | None, freed: bool
) -> None:
    found = _judge(WorkloadSkew(), [_slow("n3")], [], FakeProgress(growth_seconds=growth_seconds))

    assert found == ([(Reason.SLOWEST_RANK_CHANGES.value, "n3")] if freed else [])


def test_it_is_asked_once_as_soon_as_steps_tell_as_another_one_may_recover_later() -> None:
    known = WorkloadSkew()

    assert _judge(known, [_slow("n3")], [], FakeProgress(growth_seconds=None)) == []
    assert _judge(known, [_slow("n3")], [], FakeProgress(growth_seconds=0.5)) == []
    assert _judge(known, [_slow("n3")], [], FakeProgress(growth_seconds=0.0)) == []


@pytest.mark.parametrize(("begin", "freed"), [(50, False), (40, False), (39, True)])
def test_what_the_first_steps_said_is_taken_back_within_a_minute(begin: int, freed: bool) -> None:
    known, slow = WorkloadSkew(), [_slow("n3", begin)]

    assert _judge(known, slow, [], FakeProgress(growth_seconds=0.0)) == [("slowest_rank_changes", "n3")]
    assert bool(_judge(known, slow, [], FakeProgress(growth_seconds=0.5))) is freed
    assert bool(_judge(known, slow, [], FakeProgress(growth_seconds=0.0))) is freed  # asked once


def test_who_spends_its_power_for_nothing_does_not_work_harder() -> None:
    pace = FakeProgress(growth_seconds=0.5, wasting=frozenset({"n3"}))

    assert _judge(WorkloadSkew(), [_slow("n3")], [_power("n3", 1.3)], pace) == []


@pytest.mark.parametrize(("share_ratio", "freed"), [(0.8, False), (0.3, True)])
def test_who_waits_for_its_data_has_no_more_to_do(share_ratio: float, freed: bool) -> None:
    slow = _slow("n3")
    slow = replace(slow, detail={**slow.detail, "phase": "data", "phase_share_ratio": share_ratio})

    assert bool(_judge(WorkloadSkew(), [slow], [_power("n3", 1.1)], FakeProgress(growth_seconds=0.5))) is freed


def test_windows_within_a_long_step_tell_nothing_of_work() -> None:
    pace = FakeProgress(growth_seconds=0.5, median_step_ns=26 * NS_PER_SECOND)

    assert _judge(WorkloadSkew(), [_slow("n3")], [_power("n3", 1.3)], pace) == []


def test_who_ails_in_another_way_made_its_steps_longer_whatever_they_were_before() -> None:
    pace, clock = FakeProgress(growth_seconds=0.0), _power("n3", 0.7)
    clock.detail["metrics"][0]["direction"] = "low"

    assert _judge(WorkloadSkew(), [_slow("n3")], [clock], pace) == []


def test_who_was_always_slow_and_who_is_slow_beside_an_earlier_one_are_not_asked() -> None:
    pace = FakeProgress(growth_seconds=0.0)

    assert _judge(WorkloadSkew(), [_slow("n3", from_start=True)], [], pace) == []
    assert _judge(WorkloadSkew(), [_slow("n3", 20, from_start=True), _slow("n5", 50)], [], pace) == []


def test_who_reports_a_broken_part_is_never_cleared_nor_stays_so() -> None:
    """A failing link keeps GPUs busy."""
    known, pace, now_ns = WorkloadSkew(), FakeProgress(growth_seconds=0.0), at_second(100)
    steps = [_slow("n3"), _slow("n5")]

    assert known.judge(JobGraph(), now_ns, steps, [_power("n3", 1.1)], pace)[1] == []
    assert known.judge(JobGraph(), now_ns, steps, [_power("n3", 1.1)], pace, {"n3"})[1] == [_slow("n3")]
    assert list(known.since_ns) == ["n5"]


@pytest.mark.parametrize(("begin", "freed"), [(50, True), (-80, True), (-81, False)])
def test_a_little_more_power_is_no_alarm_and_tells_why_a_host_became_slow(begin: int, freed: bool) -> None:
    pace = FakeProgress(growth_seconds=0.5, loads={"n3": Load(1.06, 1.15, 0)})

    assert _judge(WorkloadSkew(), [_slow("n3", begin)], [], pace) == ([("works_harder", "n3")] if freed else [])


@pytest.mark.parametrize(("metric", "direction", "freed"), [("gpu_power_watts", "high", True), (CLOCK, "low", False)])
def test_more_power_clears_nobody_of_whom_something_is_low(metric: str, direction: str, freed: bool) -> None:
    shown = _power("n3", 1.01)
    shown.detail["metrics"][0].update(metric=metric, direction=direction)
    pace = FakeProgress(growth_seconds=0.5, loads={"n3": Load(1.06, 1.15, 0)})

    assert _judge(WorkloadSkew(), [_slow("n3")], [shown], pace) == ([("works_harder", "n3")] if freed else [])


def _busier(ratio: float, end: int, **change: object) -> Anomaly:
    """Its tensor cores are busier than its peers', since second 50."""
    shown = _power("n3", ratio)
    shown.detail["metrics"][0].update(metric="gpu_tensor_active_ratio", **change)
    return replace(shown, end_ns=at_second(end))


@pytest.mark.parametrize(
    ("since", "shown", "harder"),
    [
        (60, _busier(1.05, 100), True),
        (60, _busier(1.05, 400), True),  # for long, and has shown it from the begin
        (140, _busier(1.05, 400), True),
        (141, _busier(1.05, 400), False),
        (None, _busier(1.05, 100), False),
        (60, _busier(0.9, 100, direction="low"), False),
        (60, annotate_reported([_busier(1.05, 100)], {"n3"})[0], False),
    ],
)
def test_a_little_more_of_all_work_since_the_begin_is_more_to_do(
    since: int | None, shown: Anomaly, harder: bool
) -> None:
    """A hot expert of a tenth more: too little in any one metric, the same in all of them."""
    load = {} if since is None else {"n3": Load(1.03, 1.08, at_second(since))}

    assert shows_more_work(JobGraph(), shown, FakeProgress(loads=load)) is harder
    assert not shows_more_work(JobGraph(), shown, FakeProgress(loads=load, wasting=frozenset({"n3"})))

"""What a job's placement costs it, told by groups across minipods beside groups within one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tocsin.pipeline.detect.whatif.config import CostLine
from tocsin.pipeline.lab.testing.builders import at_second, build_finding, build_graph
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.evidence.network import NetworkConfig, NetworkTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.groups_across import PlacementCost
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveRecord,
    CommGroup,
    GroupKind,
    Groups,
    JobKey,
    RankPlace,
)
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, FaultKind

JOB = JobKey("test", "job")
PODS = "aaaaaabb"
"""Minipods of the eight hosts; each pair of neighbours is a group, and ranks 5 and 6 are one, too."""
GROUPS = {"first": (0, 1), "second": (2, 3), "last": (6, 7), "across": (5, 6)}
SECONDS = {"first": 0.05, "second": 0.05, "last": 0.05, "across": 0.2}
"""How long a transfer takes."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One timeline.

    Attributes:
        seconds: group -> how long a transfer takes.
        pods: minipod of each rank, a blank where it is unknown.
        size_bytes: group -> its bytes.
        waited_ratio: share of its time that the rank waits which does so least.
        hosts: host of each rank.
        clock_seconds: by how much the clock of rank 6's host is ahead.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    pods: str = PODS
    size_bytes: Mapping[str, int] = field(default_factory=dict)
    waited_ratio: float | None = 0.3
    hosts: str = "01234567"
    clock_seconds: float = 0.0


def _told(
    case: _Case, until_second: int = 90, findings: Sequence[Finding] = (), steps: Sequence[Anomaly] = ()
) -> list[Finding]:
    """What is told after some seconds with one operation of each group a second."""
    places = [RankPlace(rank, f"n{case.hosts[rank]}", minipod=case.pods[rank].strip()) for rank in range(8)]
    graph = build_graph(places)
    graph.take([Groups(JOB, "n0", at_second(0), tuple(CommGroup(n, GroupKind.DP, r) for n, r in GROUPS.items()))])
    tracker, cost, told = NetworkTracker(NetworkConfig(), graph), PlacementCost(CostLine()), list[Finding]()
    pace = FakeProgress(least_communication_ratio=case.waited_ratio)
    for second in range(1, until_second + 1):
        for name, ranks in GROUPS.items():
            took_ns = int({**SECONDS, **case.seconds}[name] * NS_PER_SECOND)
            size_bytes = case.size_bytes.get(name, 1 << 28)
            for rank in ranks:
                begin_ns = at_second(second) + int((case.clock_seconds if rank == 6 else 0) * NS_PER_SECOND)
                times = begin_ns, begin_ns + took_ns
                tracker.take(
                    [CollectiveRecord(times[1], "completion", rank, name, "AllReduce", second, size_bytes, *times)]
                )
        if second == until_second // 2:
            state = json.loads(json.dumps([tracker.to_state(), cost.to_state()]))
            tracker, cost = NetworkTracker(NetworkConfig(), graph), PlacementCost(CostLine())
            tracker.load_state(state[0])
            cost.load_state(state[1])
        told = cost.add(findings, tracker, steps, pace, at_second(second))
    return told


def test_a_placement_that_is_bad_since_the_begin_is_told_with_its_cost() -> None:
    [found] = _told(_Case())
    assert (found.fault, found.cause, found.suspects) == (FaultKind.DEGRADED, "placement", ())
    assert found.reason is Reason.GROUPS_ACROSS_SLOW
    assert found.costs_ratio == pytest.approx(0.15, abs=0.01)
    assert "groups across minipods (1) take 4.0 times" in found.evidence[0].text
    assert "within one (3)" in found.evidence[0].text


def test_it_costs_no_more_than_ranks_wait() -> None:
    [found] = _told(_Case(waited_ratio=0.08))
    assert found.costs_ratio == pytest.approx(0.08)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_Case(seconds={"across": 0.09}), id="less than twice"),
        pytest.param(_Case(seconds={"across": 0.02, "first": 0.01, "second": 0.01, "last": 0.01}), id="costs little"),
        pytest.param(_Case(seconds={"second": 0.2}), id="one within is as slow"),
        pytest.param(_Case(pods="aaaaaaaa"), id="one minipod"),
        pytest.param(_Case(pods=" " * 8), id="minipods unknown"),
        pytest.param(_Case(pods="aaaaaa b"), id="minipod of a member unknown"),
        pytest.param(_Case(pods="abababab"), id="all cross"),
        pytest.param(_Case(size_bytes={"across": 1 << 30}), id="more bytes"),
        pytest.param(_Case(size_bytes={"across": -1}), id="bytes unknown"),
        pytest.param(_Case(waited_ratio=0.01), id="hidden behind computation"),
        pytest.param(_Case(waited_ratio=None), id="waits not measured"),
        pytest.param(_Case(hosts="00224566"), id="the others lie on one host"),
        pytest.param(_Case(seconds={"across": 0.05}, clock_seconds=0.5), id="a clock is ahead"),
    ],
)
def test_nothing_is_told(case: _Case) -> None:
    assert _told(case) == []


def test_nothing_is_told_before_it_has_lasted() -> None:
    assert _told(_Case(), 30) == []


@pytest.mark.parametrize("cause", ["placement", "network_slow"])
def test_beside_the_same_cause_or_an_accused_link_it_is_not_told(cause: str) -> None:
    other = replace(build_finding("n6"), cause=cause)
    assert _told(_Case(), findings=[other]) == [other]


def _slower(second: int) -> Finding:
    """A slowdown of the whole job without a reason."""
    return replace(
        build_finding(),
        fault=FaultKind.FAIL_SLOW,
        cause="unknown",
        suspects=(),
        onset_ns=at_second(second),
        reason=Reason.JOB_WIDE_SLOWDOWN,
    )


def test_a_slowdown_without_a_reason_that_began_with_it_gets_it_as_its_cause() -> None:
    [found] = _told(_Case(), findings=[_slower(3)])
    assert (found.fault, found.cause) == (FaultKind.FAIL_SLOW, "placement")
    later = _told(_Case(), findings=[_slower(80)])
    assert [one.cause for one in later] == ["unknown", "placement"]


def test_it_is_not_told_while_a_slowdown_that_began_with_it_may_be_found() -> None:
    span = at_second(3), at_second(90)
    job = Anomaly(JOB, span[1], Component(ComponentKind.JOB, "job"), "step_seconds", *span, 2.0, "steps")
    assert _told(_Case(), steps=[job]) == []

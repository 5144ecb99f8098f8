"""Facts of a job: how often its hosts speak, and which of them carry the same load."""

from __future__ import annotations

import json

import pytest

from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.records import (
    METRIC_SLICE_NS,
    NS_PER_SECOND,
    Event,
    EventSource,
    Frame,
    HostStatus,
    JobKey,
    RankPlace,
    Severity,
    Topology,
    metric_slice_ns,
)

JOB = JobKey("c", "j")
T0 = 1_800_000_000 * NS_PER_SECOND


def frame(host: str, tick_ns: int, ts_ns: int = T0) -> Frame:
    return Frame(JOB, host, ts_ns, 1, ts_ns, tick_ns, 0, (), b"", b"")


def status(host: str, ts_ns: int = T0) -> HostStatus:
    return HostStatus(JOB, host, ts_ns, 0, 0, (), hook_present=False, dropped_count=0, spooled_count=0)


class TestBeat:
    @pytest.mark.parametrize("tick_ns", [NS_PER_SECOND // 10, NS_PER_SECOND, 5 * NS_PER_SECOND, 60 * NS_PER_SECOND])
    def test_frames_tell_how_often_a_host_speaks(self, tick_ns: int) -> None:
        graph = JobGraph()
        graph.take([frame("a", tick_ns)])

        assert graph.hosts["a"].beat_ns == metric_slice_ns(tick_ns)

    def test_a_heartbeat_does_so_too_and_frames_know_better(self) -> None:
        graph = JobGraph()
        graph.take([status("a"), status("b"), frame("b", 5 * NS_PER_SECOND), status("b", T0 + 1)])

        assert graph.hosts["a"].beat_ns == METRIC_SLICE_NS
        assert graph.hosts["b"].beat_ns == 25 * NS_PER_SECOND

    def test_a_host_that_only_speaks_when_something_happens_has_none(self) -> None:
        graph = JobGraph()
        graph.take([Event(JOB, "a", T0, -1, EventSource.KERNEL, "xid", Severity.ERROR, {"code": 79})])

        assert graph.hosts["a"].beat_ns == 0


class TestRoles:
    def test_hosts_of_a_stage_are_of_one_role(self) -> None:
        graph = JobGraph()
        stages = {"a": (0, 0), "b": (0, 1), "c": (1, 0), "d": (1,)}
        rank = 0
        for host, own in stages.items():
            places = tuple(RankPlace(rank + index, host, pp=stage) for index, stage in enumerate(own))
            rank += len(own)
            graph.take([Topology(JOB, host, T0, places)])

        assert graph.roles_of_hosts() == {"a": (0,), "b": (0, 1), "c": (0, 1), "d": (1,)}

    def test_nobody_said_so(self) -> None:
        graph = JobGraph()
        graph.take([status("a")])

        assert graph.roles_of_hosts() == {}

    def test_a_rank_that_moves_takes_its_role_along(self) -> None:
        graph = JobGraph()
        graph.take([Topology(JOB, "a", T0, (RankPlace(0, "a", pp=1),))])
        graph.take([Topology(JOB, "b", T0 + 1, (RankPlace(0, "b", pp=1),))])

        assert graph.roles_of_hosts() == {"b": (1,)}


def test_state_there_and_back() -> None:
    graph, other = JobGraph(), JobGraph()
    graph.take([status("a"), frame("b", 5 * NS_PER_SECOND), Topology(JOB, "a", T0, (RankPlace(0, "a", pp=1),))])
    other.load_state(json.loads(json.dumps(graph.to_state())))

    assert other.to_state() == graph.to_state()
    assert other.hosts == graph.hosts
    assert other.roles_of_hosts() == graph.roles_of_hosts()

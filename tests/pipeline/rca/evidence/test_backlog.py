"""Chunks that pile up at one machine's senders in a job that became slower."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.pipeline.states import through_bytes
from tocsin.models.flows import find_backlogged
from tocsin.models.pace import Slowdown
from tocsin.pipeline.lab.testing.builders import START_NS, at_second, build_graph
from tocsin.pipeline.lab.testing.progress import AS_EVER, SLOWER, FakeProgress
from tocsin.pipeline.rca.evidence.backlog import BacklogRules, BacklogTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, RankPlace

HOSTS = 16


class Job:
    """Sixteen hosts, four behind each leaf switch; one state of each open flow every two seconds.

    Args:
        host_count: number of hosts.
        pod_hosts_count: hosts of a minipod, 0 = minipods are unknown.
    """

    def __init__(self, host_count: int = HOSTS, pod_hosts_count: int = 0) -> None:
        places = [
            RankPlace(
                r, f"n{r:02d}", leaf=f"leaf{r // 4}", minipod=f"pod{r // pod_hosts_count}" if pod_hosts_count else ""
            )
            for r in range(host_count)
        ]
        self.graph = build_graph(places)
        self.hosts = [place.host for place in places]
        self.tracker = BacklogTracker(BacklogRules(), self.graph)

    def run(self, begin: int, end: int, late: Collection[int] = (), seconds: float = 0.2) -> None:
        """Each operation takes so many seconds; of the late ranks seven chunks more lie posted."""
        for second in range(begin, end, 2):
            rows = []
            for rank in range(len(self.hosts)):
                done = 40 + (rank + second) % 9
                posted = done + (second // 2 + rank) % 2 + 7 * (rank in late)
                state = CollectiveRecord(
                    at_second(second + 0.1), "state", rank, "dp", "AllReduce", second, 1 << 20, at_second(second)
                )
                ended = state._replace(record="completion", end_ns=at_second(second + seconds))
                rows += [
                    state._replace(total_chunks=64, gpu_ready=posted + 1, rdma_transmitted=posted, rdma_done=done),
                    ended,
                ]
            self.tracker.take(rows)
            self.find(second + 2, AS_EVER)

    def find(self, second: float, slowdown: Slowdown | None = SLOWER) -> Finding | None:
        other = BacklogTracker(BacklogRules(), self.graph)
        other.load_state(through_bytes(self.tracker.to_state()))
        self.tracker = other
        return other.find(at_second(second), FakeProgress(slowdown, START_NS))

    def named(self, second: float, slowdown: Slowdown | None = SLOWER) -> list[str]:
        found = self.find(second, slowdown)
        return [] if found is None else [suspect.component.name for suspect in found.suspects]


def test_a_machine_at_whose_senders_the_chunks_lie_is_named_in_a_slower_job() -> None:
    job = Job()
    job.run(0, 100)
    assert job.find(100) is None
    job.run(100, 160, late={3})

    found = job.find(160)
    assert found is not None
    assert (found.fault.value, found.cause, found.reason.value) == ("fail_slow", "network_slow", "chunks_pile_up")
    assert [suspect.component.name for suspect in found.suspects] == ["n03"]
    assert abs(found.onset_ns - at_second(100)) <= 20 * NS_PER_SECOND
    assert "n03: 7.5 chunks" in found.evidence[0].text


@pytest.mark.parametrize(("lasting_seconds", "named"), [(10, []), (60, ["n03"])])
def test_a_burst_names_nobody(lasting_seconds: int, named: list[str]) -> None:
    job = Job()
    job.run(0, 100)
    job.run(100, 100 + lasting_seconds, late={3})

    assert job.named(100 + lasting_seconds) == named


@pytest.mark.parametrize("slowdown", [None, AS_EVER])
@pytest.mark.parametrize(("seconds", "named"), [(0.2, []), (0.22, []), (0.3, ["n03"])])
def test_where_the_pace_shows_nothing_the_operations_must_take_longer(
    slowdown: Slowdown | None, seconds: float, named: list[str]
) -> None:
    job = Job()
    job.run(0, 100)
    job.run(100, 160, late={3}, seconds=seconds)

    assert job.named(160, slowdown) == named


def test_it_is_told_until_the_chunks_flow_again() -> None:
    job = Job()
    job.run(0, 100)
    job.run(100, 150, late={3}, seconds=0.3)
    assert job.named(150) == ["n03"]
    job.run(150, 600, late={3}, seconds=0.3)  # longer than the past is kept

    assert job.named(600, AS_EVER) == ["n03"]
    job.run(600, 680)
    assert job.named(680) == []


@pytest.mark.parametrize(
    ("late", "named"), [({7, 15}, []), ({7}, ["n07"]), ({6, 7}, ["n06", "n07"]), ({4, 5, 6, 7, 15}, [])]
)
def test_senders_of_several_minipods_face_the_way_between_them_and_are_not_named(
    late: set[int], named: list[str]
) -> None:
    """In a ring of two minipods the last host of each sends to the other one."""
    job = Job(pod_hosts_count=8)
    job.run(0, 100)
    job.run(100, 160, late=late)

    assert job.named(160) == named


@pytest.mark.parametrize(
    ("late", "named"),
    [
        ({4, 5, 6, 7}, ["n04", "n05", "n06", "n07"]),  # a leaf switch
        ({1, 6}, ["n01", "n06"]),
        ({1, 6, 11}, []),  # what do they have in common?
        (set(range(8)), []),
        (set(range(HOSTS)), []),
    ],
)
def test_several_are_named_where_they_are_few_or_share_a_switch(late: set[int], named: list[str]) -> None:
    job = Job()
    job.run(0, 100)
    job.run(100, 160, late=late)

    assert job.named(160) == named


def test_of_two_machines_either_may_be_the_slow_one() -> None:
    job = Job(host_count=2)
    job.run(0, 100)
    job.run(100, 160, late={1})

    assert job.named(160) == []


def _cell_count(job: Job) -> int:
    state = job.tracker.to_state()
    return len(state["durations"]) + sum(len(bins) for _, bins in state["bins"])


def test_what_is_kept_does_not_grow_though_nobody_asks_or_counts_chunks() -> None:
    """A job that stands for days is not asked, and a job without chunk counters is never late."""
    job = Job(host_count=4)
    for second in range(0, 20_000, 10):
        state = CollectiveRecord(
            at_second(second), "state", 0, "dp", "AllReduce", second, 1 << 20, at_second(second - 1)
        )
        counted = state._replace(total_chunks=64, gpu_ready=9, rdma_transmitted=9, rdma_done=8)
        absurd_end = state._replace(record="completion", end_ns=at_second(second + 10**9))
        job.tracker.take([counted, absurd_end] if second < 10_000 else [absurd_end])
        assert _cell_count(job) <= 100

    assert job.tracker.to_state()["bins"] == []


def test_chunks_that_nobody_counts_tell_nothing() -> None:
    job = Job()
    row = CollectiveRecord(at_second(1), "state", 0, "dp", "AllReduce", 1, 1 << 20, at_second(0))
    job.tracker.take([row] * 50)

    assert job.find(5) is None


@pytest.mark.parametrize(
    ("means", "late"),
    [
        ({"a": 7.0, "b": 0.5, "c": 0.5}, ["a"]),
        ({"a": 7.0, "b": 6.0, "c": 7.0}, []),
        ({"a": 9.0, "b": 4.0, "c": 4.0}, []),  # a deep pipeline: all have chunks on their way
        ({"a": 2.4, "b": 0.5, "c": 0.5}, []),
        ({"a": 7.0, "b": 0.5}, []),
    ],
)
def test_backlogged(means: dict[str, float], late: list[str]) -> None:
    assert find_backlogged(means, 2.0, 3.0) == late

"""Which host a rank runs on, where no topology says it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.job.layout import block_layout
from tocsin.pipeline.lab.testing.builders import JOB, START_NS
from tocsin.pipeline.rca.common import suspects_of
from tocsin.schemas import events
from tocsin.schemas.job_key import lone_host
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Frame, Severity, StepBatch, StepRecord


@given(st.integers(2, 12), st.integers(2, 8), st.data())
def test_blocks_are_known_from_one_rank_each(hosts: int, size: int, data: st.DataObject) -> None:
    names = data.draw(st.permutations([f"n{number}" for number in range(hosts)]))
    reported = {block * size + data.draw(st.integers(0, size - 1)): names[block] for block in range(hosts)}

    assert block_layout(reported, hosts, hosts * size) == (size, dict(enumerate(names)))


def test_what_shows_no_blocks_is_no_layout() -> None:
    none: tuple[int, dict[int, str]] = (1, {})

    assert block_layout({0: "a", 1: "b", 2: "a", 3: "b"}, 2, 4) == none  # round robin
    assert block_layout({0: "a", 2: "a"}, 2, 4) == none
    assert block_layout({0: "a"}, 4, 16) == none  # too few to show it
    assert block_layout({0: "a", 8: "b"}, 2, 15) == none
    assert block_layout({0: "a", 1: "b"}, 2, 2) == none
    assert block_layout({}, 0, 0) == none


def _graph(reported: dict[int, str]) -> JobGraph:
    """Four hosts of four ranks, whose steps do not say where they run; events say it of some."""
    graph = JobGraph()
    for host in "abcd":
        graph.take([Frame(JOB, host, START_NS, 1, START_NS, NS_PER_SECOND, 0, (), b"", b"")])
    for rank in range(16):
        graph.take([StepBatch(JOB, lone_host(rank), START_NS, (StepRecord(START_NS, rank, 1, 1.0),))])
    for rank, host in reported.items():
        stage = Event(
            JOB, host, START_NS, rank, EventSource.STARTUP, events.STAGE, Severity.INFO, {"stage": "model_init"}
        )
        graph.take([stage])
    return graph


def _names(graph: JobGraph, *ranks: int) -> list[str]:
    return [suspect.component.name for suspect in suspects_of(graph, ranks)]


def test_an_event_tells_where_its_rank_runs_whatever_came_first() -> None:
    assert _names(_graph({5: "c"}), 5, 6) == ["c", "6"]


def test_the_other_ranks_of_its_host_are_known_where_most_hosts_show_blocks() -> None:
    graph = _graph({0: "d", 4: "c", 8: "a"})

    assert _names(graph, 4, 5, 6, 7) == ["c"]
    assert graph.ranks_of_host("c") == (4, 5, 6, 7)
    assert _names(graph, 12) == ["12"]

    other = JobGraph()
    other.restore(graph.snapshot())
    assert other.host_of(6) == "c"


def test_a_host_that_comes_later_changes_the_blocks() -> None:
    graph = _graph({0: "d", 4: "c", 8: "a"})
    assert graph.host_of(5) == "c"
    graph.take([Frame(JOB, "e", START_NS, 1, START_NS, NS_PER_SECOND, 0, (), b"", b"")])

    assert graph.host_of(5) == lone_host(5)

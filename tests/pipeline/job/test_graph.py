"""Facts of a job: how often its hosts speak, and which of them carry the same load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, START_NS, build_empty_frame
from tocsin.schemas.records import (
    METRIC_SLICE_NS,
    NS_PER_SECOND,
    Event,
    EventSource,
    HostStatus,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
    metric_slice_ns,
)

T0 = START_NS
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)
"""Begin and length, both in seconds."""


def status(host: str, ts_ns: int = T0) -> HostStatus:
    return HostStatus(JOB, host, ts_ns, 0, 0, (), hook_present=False, dropped_count=0, spooled_count=0)


def steps(rank: int, *rows: tuple[int, int]) -> StepBatch:
    """Steps of a rank: each its number, and the second in which it ended."""
    made = tuple(StepRecord(T0 + second * NS_PER_SECOND, rank, step, 0.5) for step, second in rows)
    return StepBatch(JOB, "a", made[-1].ts_ns, made)


class TestNewestStep:
    def test_it_is_the_greatest_of_a_run(self) -> None:
        graph = JobGraph()
        graph.take([steps(0, (40, 1), (41, 2)), steps(1, (40, 1), (41, 2), (42, 3))])

        assert graph.max_step == 42

    def test_a_run_that_begins_anew_has_its_own(self) -> None:
        graph = JobGraph()
        graph.take([steps(0, (5000, 1)), steps(1, (5000, 1))])
        graph.take([steps(0, (0, 30), (1, 31))])
        graph.take([steps(1, (5001, 29))])  # late, of the run before

        assert graph.max_step == 1

    def test_a_rank_that_is_one_step_behind_changes_nothing(self) -> None:
        graph = JobGraph()
        graph.take([steps(0, (5, 1), (6, 2), (7, 3)), steps(1, (5, 1), (6, 2))])

        assert graph.max_step == 7


class TestBeat:
    @pytest.mark.parametrize("tick_ns", [NS_PER_SECOND // 10, NS_PER_SECOND, 5 * NS_PER_SECOND, 60 * NS_PER_SECOND])
    def test_frames_tell_how_often_a_host_speaks(self, tick_ns: int) -> None:
        graph = JobGraph()
        graph.take([build_empty_frame("a", T0, tick_ns)])

        assert graph.hosts["a"].report_interval_ns == metric_slice_ns(tick_ns)

    def test_a_heartbeat_does_so_too_and_frames_know_better(self) -> None:
        graph = JobGraph()
        graph.take([status("a"), status("b"), build_empty_frame("b", T0, 5 * NS_PER_SECOND), status("b", T0 + 1)])

        assert graph.hosts["a"].report_interval_ns == METRIC_SLICE_NS
        assert graph.hosts["b"].report_interval_ns == 25 * NS_PER_SECOND

    def test_a_host_that_only_speaks_when_something_happens_has_none(self) -> None:
        graph = JobGraph()
        graph.take([Event(JOB, "a", T0, -1, EventSource.KERNEL, "xid", Severity.ERROR, {"code": 79})])

        assert graph.hosts["a"].report_interval_ns == 0


class TestRoles:
    def test_hosts_of_a_stage_are_of_one_role(self) -> None:
        graph = JobGraph()
        stages = {"a": (0, 0), "b": (0, 1), "c": (1, 0), "d": (1,)}
        rank = 0
        for host, own in stages.items():
            places = tuple(RankPlace(rank + index, host, pp=stage) for index, stage in enumerate(own))
            rank += len(own)
            graph.take([Topology(JOB, host, T0, places)])

        assert graph.placement.roles_of_hosts() == {"a": (0,), "b": (0, 1), "c": (0, 1), "d": (1,)}

    def test_nobody_said_so(self) -> None:
        graph = JobGraph()
        graph.take([status("a")])

        assert graph.placement.roles_of_hosts() == {}

    def test_a_rank_that_moves_takes_its_role_along(self) -> None:
        graph = JobGraph()
        graph.take([Topology(JOB, "a", T0, (RankPlace(0, "a", pp=1),))])
        graph.take([Topology(JOB, "b", T0 + 1, (RankPlace(0, "b", pp=1),))])

        assert graph.placement.roles_of_hosts() == {"b": (1,)}


def event(name: str, second: int, rank: int = 0, host: str = "a", **payload: object) -> Event:
    at_ns = T0 + second * NS_PER_SECOND
    return Event(JOB, host, at_ns, rank, EventSource.PROCESS, name, Severity.ERROR, payload)


def step(second: int, rank: int = 0, host: str = "a", seconds: float = 1.0) -> StepBatch:
    at_ns = T0 + second * NS_PER_SECOND
    return StepBatch(JOB, host, at_ns, (StepRecord(at_ns, rank, second, seconds),))


def topology(second: int, host: str, *ranks: int) -> Topology:
    return Topology(JOB, host, T0 + second * NS_PER_SECOND, tuple(RankPlace(rank, host) for rank in ranks))


class TestAnew:
    """A process that ended and was started again in the same attempt."""

    def test_a_whole_step_after_an_exit_is_a_new_process(self) -> None:
        graph = JobGraph()
        graph.take([event("exit", 10, code=1)])
        graph.take([step(10, seconds=5.0), step(12, seconds=5.0)])  # begun before the exit: told late
        assert graph.ranks[0].exit is not None

        graph.take([step(20, seconds=5.0)])
        assert graph.ranks[0].exit is None

    def test_a_good_bye_is_taken_back_likewise(self) -> None:
        graph = JobGraph()
        graph.take([event("bye", 10), step(20)])

        assert graph.ranks[0].bye_ns == 0

    def test_a_rank_that_moves_ends_what_was_said_of_all_processes(self) -> None:
        graph = JobGraph()
        graph.take([topology(0, "a", 0), topology(0, "b", 1)])
        graph.take([event("exit", 10, 0, "a", code=1), event("exit", 10, 1, "b", code=1)])
        graph.take([event("stopped", 10, 1, "b", edge="begin"), event("stall", 10, 1, "b", edge="begin")])
        graph.take([topology(20, "c", 0)])

        assert (graph.host_of(0), graph.ranks[0].host) == ("c", "c")
        assert [facts.exit for facts in graph.ranks.values()] == [None, None]
        assert (graph.ranks[1].stopped_since_ns, graph.ranks[1].stall) == (0, None)

    def test_a_topology_that_is_announced_again_changes_nothing(self) -> None:
        graph = JobGraph()
        graph.take([topology(0, "a", 0), event("exit", 10, code=1), topology(30, "a", 0)])

        assert graph.ranks[0].exit is not None


class TestSpare:
    def test_hosts_without_ranks_beside_those_that_have_some(self) -> None:
        graph = JobGraph()
        graph.take([status(host) for host in "abcde"])
        graph.take([topology(0, host, rank) for rank, host in enumerate("abc")])
        assert graph.spare_hosts() == {"d", "e"}

        graph.take([topology(9, "d", 0)])
        assert graph.spare_hosts() == {"a", "e"}

    def test_where_most_have_none_the_names_do_not_fit(self) -> None:
        graph = JobGraph()
        graph.take([status(f"{host}.full.name") for host in "abcd"])
        assert graph.spare_hosts() == set()

        graph.take([topology(0, host, rank) for rank, host in enumerate("abcd")])
        assert graph.spare_hosts() == set()


class TestWithoutRank:
    def test_an_exit_of_a_host_is_one_of_its_processes_each(self) -> None:
        graph = JobGraph()
        graph.take([topology(0, "a", 4, 5), event("exit", 1, -1), event("exit", 2, -1, code=0)])

        assert [(rank, facts.exit and facts.exit.code) for rank, facts in sorted(graph.ranks.items())] == [
            (4, -1),
            (5, 0),
        ]

    def test_an_exit_of_a_host_of_nobody_is_nobodys(self) -> None:
        graph = JobGraph()
        graph.take([event("exit", 1, -1, code=1)])

        assert graph.ranks == {}

    def test_a_phase_of_the_job_lasts_until_its_end_or_a_whole_step(self) -> None:
        for end in (event("phase", 30, -1, phase="checkpoint", edge="end"), step(30)):
            graph = JobGraph()
            graph.take([event("phase", 10, -1, "h0", phase="checkpoint", edge="begin")])
            assert graph.in_announced_phase(T0 + 15 * NS_PER_SECOND, T0 + 20 * NS_PER_SECOND)

            graph.take([end])
            assert not graph.in_announced_phase(T0 + 40 * NS_PER_SECOND, T0 + 50 * NS_PER_SECOND)
            assert graph.in_announced_phase(T0 + 15 * NS_PER_SECOND, T0 + 20 * NS_PER_SECOND)

    @given(SPANS, st.integers(0, 90), st.integers(0, 9))
    def test_whether_a_span_overlaps_is_the_same_as_asking_each(
        self, spans: list[tuple[int, int]], from_second: int, seconds: int
    ) -> None:
        graph = JobGraph()
        for begin, length in sorted(spans):
            for second, edge in ((begin, "begin"), (begin + length, "end")):
                graph.take([event("phase", second, -1, phase="checkpoint", edge=edge)])
        from_ns = T0 + from_second * NS_PER_SECOND
        to_ns = from_ns + seconds * NS_PER_SECOND

        assert graph.in_announced_phase(from_ns, to_ns) is any(
            begin <= to_ns and end >= from_ns for begin, end in graph.announced.spans
        )

    def test_each_rank_ends_its_own_phases_and_what_all_had_announced_is_one_span(self) -> None:
        graph = JobGraph()
        graph.take([event("phase", 10, rank, phase="checkpoint", edge="begin") for rank in range(3)])
        graph.take([event("phase", 12, 0, phase="evaluation", edge="begin")])

        graph.take([event("phase", 20, rank, phase="checkpoint", edge="end") for rank in (0, 1)])
        assert graph.announced.open == {
            2: [["checkpoint", T0 + 10 * NS_PER_SECOND]],
            0: [["evaluation", T0 + 12 * NS_PER_SECOND]],
        }
        restored = JobGraph()
        restored.restore(graph.snapshot())
        assert restored.announced.open == graph.announced.open

        graph.take([event("phase", 22, 2, phase="checkpoint", edge="end")])
        graph.take([event("phase", 25, 0, phase="evaluation", edge="end")])
        assert graph.announced.open == {}
        assert graph.announced.spans == [[T0 + 10 * NS_PER_SECOND, T0 + 25 * NS_PER_SECOND]]


@pytest.mark.parametrize(
    ("payload", "severity", "code", "number"),
    [
        ({"code": 3, "signal": 0}, Severity.ERROR, 3, 0),
        ({"code": None, "signal": None, "stderr_tail": None}, Severity.FATAL, -1, 0),
        ({}, Severity.INFO, 0, 0),
        ({"signal": 9}, Severity.FATAL, 0, 9),
    ],
)
def test_what_an_exit_does_not_say(payload: dict[str, object], severity: Severity, code: int, number: int) -> None:
    graph = JobGraph()
    graph.take([Event(JOB, "a", T0, 0, EventSource.PROCESS, "exit", severity, payload)])
    ending = graph.ranks[0].exit

    assert ending is not None
    assert (ending.code, ending.signal, ending.stderr_tail) == (code, number, "")


def test_state_there_and_back() -> None:
    graph, other = JobGraph(), JobGraph()
    graph.take(
        [status("a"), build_empty_frame("b", T0, 5 * NS_PER_SECOND), Topology(JOB, "a", T0, (RankPlace(0, "a", pp=1),))]
    )
    other.restore(graph.snapshot())

    assert other.snapshot() == graph.snapshot()
    assert other.hosts == graph.hosts
    assert other.placement.roles_of_hosts() == graph.placement.roles_of_hosts()


@pytest.mark.parametrize(
    ("offset_ns", "corrected_ns"),
    [(5 * NS_PER_SECOND, T0 - 5 * NS_PER_SECOND), (2**62, T0), (-(2**62), T0), (2 * 3600 * NS_PER_SECOND, T0)],
)
def test_an_offset_that_no_clock_has_corrects_nothing(offset_ns: int, corrected_ns: int) -> None:
    """Of a clock that is hours off no record is in time; a verdict's onset must not lie before 1970."""
    graph = JobGraph()
    graph.take([Topology(JOB, "a", T0, (RankPlace(0, "a"),)), replace(status("a"), clock_offset_ns=offset_ns)])

    assert graph.corrected_ns(0, T0) == corrected_ns


def test_neighbours_hang_on_the_same_leaf_else_on_the_same_minipod() -> None:
    graph = JobGraph()
    behind = {"a": ("l1", "p1"), "b": ("l1", "p1"), "c": ("l2", "p1"), "d": ("", "p1"), "e": ("", "p1"), "f": ("", "")}
    places = [RankPlace(r, name, leaf=leaf, minipod=pod) for r, (name, (leaf, pod)) in enumerate(behind.items())]
    graph.take([Topology(JOB, place.host, T0, (place,)) for place in places])

    assert {name: sorted(graph.placement.neighbours_of(name)) for name in "abcdefg"} == {
        "a": ["b"], "b": ["a"], "c": [], "d": ["e"], "e": ["d"], "f": [], "g": [],
    }  # fmt: skip

    graph.take([Topology(JOB, "c", T0, (replace(places[2], leaf="l1"),))])
    assert sorted(graph.placement.neighbours_of("a")) == ["b", "c"]


class TestEndsSaidAgain:
    """Agents repeat what ended (``ended_ns``), for an engine that was restarted."""

    @staticmethod
    def end(ts_ns: int, name: str = "exit", host: str = "a", rank: int = 3, **payload: object) -> Event:
        found = {"code": 1, "signal": 0, "stderr_tail": "boom", **payload}
        return Event(JOB, host, ts_ns, rank, EventSource.PROCESS, name, Severity.FATAL, found)

    @classmethod
    def again(cls, name: str = "exit", host: str = "a") -> Event:
        return cls.end(T0 + 60 * NS_PER_SECOND, name, host, ended_ns=T0)

    @pytest.mark.parametrize("name", ["exit", "process_gone", "bye"])
    def test_a_repetition_tells_a_new_engine_what_the_first_word_would_have(self, name: str) -> None:
        reported, late = JobGraph(), JobGraph()
        reported.take([self.end(T0, name)])
        late.take([self.again(name)])

        assert late.ranks == reported.ranks
        assert late.leaving == reported.leaving == {3}

    def test_it_may_be_all_that_an_engine_hears_of_a_job(self) -> None:
        graph = JobGraph()
        graph.take([self.again("bye")])

        assert graph.ended()

    @pytest.mark.parametrize("name", ["exit", "process_gone", "bye"])
    def test_a_repetition_of_what_is_known_changes_nothing(self, name: str) -> None:
        graph = JobGraph()
        graph.take([self.end(T0, name)])
        before = graph.snapshot()
        graph.take([self.again(name)])

        assert graph.snapshot() == before

    def test_an_exit_says_more_than_a_process_that_was_seen_to_be_gone(self) -> None:
        graph = JobGraph()
        graph.take([self.end(T0 + 1, "process_gone"), self.again()])

        left = graph.ranks[3].exit
        assert left is not None
        assert (left.reported, left.ts_ns, left.stderr_tail) == (True, T0, "boom")

    def test_a_rank_that_made_steps_since_has_not_ended(self) -> None:
        graph = JobGraph()
        row = StepRecord(T0 + 1, 3, 7, 0.5, None, None, None, None, None, None, None)
        graph.take([self.end(T0), StepBatch(JOB, "a", T0 + 1, (row,))])
        graph.ranks[3].exit = None
        graph.take([self.again()])

        assert graph.ranks[3].exit is None

    def test_a_rank_that_lives_elsewhere_now_has_not_ended(self) -> None:
        graph = JobGraph()
        graph.take([Topology(JOB, "b", T0, (RankPlace(3, "b"),)), self.again(host="a")])

        assert graph.ranks[3].exit is None

    def test_it_is_no_sign_of_life(self) -> None:
        graph = JobGraph()
        graph.take([status("a"), self.again()])

        assert graph.hosts["a"].last_seen_ns == T0

    @pytest.mark.parametrize("ended_ns", [0, -5, T0 + 61 * NS_PER_SECOND, 1, 1e300, None])
    def test_a_time_that_cannot_be_makes_it_an_end_now(self, ended_ns: float | None) -> None:
        graph = JobGraph()
        graph.take([self.again() if ended_ns is None else self.end(T0, ended_ns=ended_ns)])

        left = graph.ranks[3].exit
        assert left is not None
        assert left.ts_ns == T0

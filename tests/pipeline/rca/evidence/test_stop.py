"""Whose death was the first of its own accord, and whose only followed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second, build_graph
from tocsin.pipeline.rca.evidence.stop import StopConfig, find_gone_first, find_stop, stalled_before_deaths_ns
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, HostStatus, Severity
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600000 ms"
LOST = "NCCL communicator was aborted: connection reset by peer"


def _root(*deaths: tuple[float, int, int, str], now: float = 30.0) -> list[str] | Reason | None:
    """Who is named after deaths at (second, rank, signal, last words) of eight ranks on eight hosts."""
    finding, reason = find_stop(_after(deaths), at_second(now), StopConfig())
    return reason if finding is None else [suspect.component.name for suspect in finding.suspects]


def _after(deaths: Sequence[tuple[float, int, int, str]]) -> JobGraph:
    graph = build_graph()
    for second, rank, signal, words in deaths:
        payload = {"code": 0 if signal else 1, "signal": signal, "stderr_tail": words}
        ts_ns = at_second(second)
        graph.take([Event(JOB, f"n{rank}", ts_ns, rank, EventSource.PROCESS, events.EXIT, Severity.ERROR, payload)])
    return graph


@pytest.mark.parametrize("after_seconds", [-6.0, -0.2, 0.2, 1.5])
def test_who_aborts_without_a_word_as_others_tell_of_a_timeout_was_ended_as_they_were(after_seconds: float) -> None:
    """The collective had not ended for minutes: no death of this moment is why."""
    assert _root((10.0, 3, 6, ""), (10.0 + after_seconds, 5, 6, TIMEOUT)) is Reason.VICTIM


def test_who_aborts_first_is_the_root_where_the_others_lost_their_connection() -> None:
    assert _root((10.0, 3, 6, ""), (10.2, 5, 6, LOST), (10.9, 6, 6, LOST)) == ["n3"]


def test_who_aborts_long_before_the_others_give_up_is_the_root() -> None:
    assert _root((10.0, 3, 6, ""), (25.0, 5, 6, TIMEOUT), now=60.0) == ["n3"]


def test_who_says_why_is_the_root_whatever_the_others_tell() -> None:
    words = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert _root((10.0, 3, 0, words), (10.2, 5, 6, TIMEOUT)) == ["n3"]


@pytest.mark.parametrize("asked_second", [10.0, 10.3, 12.0])
def test_whom_a_launcher_ended_because_another_one_died_is_a_victim(asked_second: float) -> None:
    """torchrun sends SIGTERM to the other workers when one was killed."""
    deaths = [(10.0, 3, 9, ""), *((asked_second, rank, 15, "") for rank in (0, 1, 2, 4, 5, 6)), (10.1, 7, 0, LOST)]
    finding, _ = find_stop(_after(deaths), at_second(30), StopConfig())

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == ["n3"]
    assert "7 other ranks exited afterwards, asked to, or their last words name a lost peer" in finding.evidence[1].text


@pytest.mark.parametrize(("done_count", "expected"), [(0, ["n3"]), (1, ["n3"]), (4, Reason.ENDED_WITH_OTHERS)])
def test_who_stumbles_as_all_clean_up_stopped_nobody(done_count: int, expected: list[str] | Reason) -> None:
    graph = _after([(10.0, 3, 0, "BrokenPipe in an atexit handler")])
    for rank in range(4, 4 + done_count):
        payload = {"code": 0, "signal": 0, "stderr_tail": ""}
        ts_ns = at_second(10)
        graph.take([Event(JOB, f"n{rank}", ts_ns, rank, EventSource.PROCESS, events.EXIT, Severity.INFO, payload)])
    finding, reason = find_stop(graph, at_second(12), StopConfig())

    assert (reason if finding is None else [suspect.component.name for suspect in finding.suspects]) == expected


def _gone(second: float, *deaths: tuple[float, int, int, str], stood_since: float = 0.0) -> bool:
    """Whether n3, whose GPU memory was free at this second, is named for these deaths."""
    at_ns = at_second(second)
    host = Component(ComponentKind.HOST, "n3")
    anomaly = Anomaly(JOB, at_ns, host, "gpu_memory_used_bytes", at_ns, at_ns + NS_PER_SECOND, 1.0, "exits")
    stood_since_ns = at_second(stood_since) if stood_since else 0
    finding = find_gone_first(_after(deaths), anomaly, StopConfig(), stood_since_ns)
    return finding is not None and [suspect.component.name for suspect in finding.suspects] == ["n3"]


def test_whose_memory_was_free_before_all_others_lost_their_peer_is_the_root() -> None:
    """Its own agent reported nothing: killed with its launcher, or by somebody else's cgroup."""
    assert _gone(8.0, (10.0, 5, 0, LOST), (10.2, 6, 15, ""), stood_since=5.0)


def test_memory_that_was_free_first_names_nobody_where_more_is_known() -> None:
    lost = (10.0, 5, 0, LOST)
    assert not _gone(8.0)  # a job that ends, host by host
    assert not _gone(11.0, lost)  # another one died before
    assert not _gone(8.0, lost, (10.5, 3, 15, ""))  # it told how it ended
    assert not _gone(80.0, (90.0, 5, 0, LOST), stood_since=5.0)  # what hung was ended
    assert not _gone(8.0, (10.0, 5, 6, TIMEOUT))


class TestUntoldDeath:
    """All others tell of a lost connection; of one rank nobody tells what became of it."""

    def _found(self, *others: int, told_second: float = 0.0, silent: bool = False) -> list[str] | Reason | None:
        graph = _after([(10.0 + rank / 100, rank, 0, LOST) for rank in others])
        for rank in range(8):
            if not (silent and rank == 3):
                ts_ns = at_second(29)
                graph.take([HostStatus(JOB, f"n{rank}", ts_ns, 0, 0, (rank,), True, 0, 0)])
        finding, reason = find_stop(graph, at_second(30), StopConfig(), reported_ns=lambda _: at_second(told_second))
        return reason if finding is None else [suspect.component.name for suspect in finding.suspects]

    def test_it_is_named(self) -> None:
        assert self._found(0, 1, 2, 4, 5, 6, 7) == ["n3"]

    def test_nobody_is_where_it_lives(self) -> None:
        assert self._found(0, 1, 2, 4, 5, 6, 7, told_second=20.0) == []

    def test_nor_while_others_may_still_tell(self) -> None:
        assert self._found(0, 1, 2, 4, 5, 6) is Reason.VICTIM

    def test_a_machine_that_is_silent_is_another_matter(self) -> None:
        assert self._found(0, 1, 2, 4, 5, 6, 7, silent=True) is Reason.VICTIM


@pytest.mark.parametrize("place", [0, 150, 230, 700])
def test_what_says_why_is_shown_wherever_it_stands_in_a_long_line(place: int) -> None:
    words = f"RuntimeError: {'x' * place} distributed collective mismatch {'y' * (800 - place)}"
    finding, _ = find_stop(_after([(10.0, 3, 0, words)]), at_second(30), StopConfig())
    assert finding is not None
    text = finding.evidence[0].text
    assert "distributed collective mismatch" in text
    assert "RuntimeError: " in text
    assert len(text) < 300


def test_a_job_had_stood_before_its_first_death_or_it_had_not() -> None:
    graph, config = build_graph(), StopConfig()
    assert stalled_before_deaths_ns(graph, at_second(0), config) == 0
    payload = {"code": 0, "signal": 6, "stderr_tail": "Watchdog caught collective operation timeout"}
    exits = Event(JOB, "n2", at_second(30), 2, EventSource.PROCESS, events.EXIT, Severity.ERROR, payload)
    graph.take([exits])

    assert stalled_before_deaths_ns(graph, at_second(0), config) == at_second(30)
    assert stalled_before_deaths_ns(graph, at_second(25), config) == 0
    assert stalled_before_deaths_ns(graph, 0, config) == 0

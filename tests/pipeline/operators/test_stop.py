"""Whose death was the first of its own accord, and whose only followed."""

from __future__ import annotations

import pytest

from tocsin.pipeline.operators.diagnose.stop import StopConfig, find_stop
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, RankPlace, Severity, Topology

JOB = JobKey("c", "j")
T0 = 1_800_000_000 * NS_PER_SECOND
TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600000 ms"
LOST = "NCCL communicator was aborted: connection reset by peer"


def _root(*deaths: tuple[float, int, int, str], now: float = 30.0) -> list[str] | Reason | None:
    """Who is named after deaths at (second, rank, signal, last words) of eight ranks on eight hosts."""
    graph = JobGraph()
    graph.take([Topology(JOB, f"n{rank}", T0, (RankPlace(rank, f"n{rank}"),)) for rank in range(8)])
    for second, rank, signal, words in deaths:
        payload = {"code": 0 if signal else 1, "signal": signal, "stderr_tail": words}
        ts_ns = T0 + int(second * NS_PER_SECOND)
        graph.take([Event(JOB, f"n{rank}", ts_ns, rank, EventSource.PROCESS, events.EXIT, Severity.ERROR, payload)])
    finding, reason = find_stop(graph, T0 + int(now * NS_PER_SECOND), StopConfig())
    return reason if finding is None else [suspect.component.name for suspect in finding.suspects]


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

"""Whose checkpoint holds up all: one every hundred seconds, one rank a host, steps of two seconds between them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second, build_graph
from tocsin.pipeline.rca.evidence.phases import PhaseConfig, PhaseTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.records import Event, EventSource, RankPlace, Severity, StepRecord

USUAL_SECONDS = 8.0


def _graph(host_count: int) -> JobGraph:
    return build_graph(RankPlace(rank, f"n{rank:02d}") for rank in range(host_count))


def _edge(rank: int, second: float, edge: str, name: str = "checkpoint") -> Event:
    payload = {"phase": name, "edge": edge}
    return Event(
        JOB, f"n{rank:02d}", at_second(second), rank, EventSource.PROCESS, events.PHASE, Severity.INFO, payload
    )


def _reported(  # what to vary
    slow: Mapping[int, tuple[int, float]],
    *,
    host_count: int = 16,
    count: int = 8,
    names: tuple[str, ...] = ("checkpoint",),
    is_async: bool = False,
    has_steps: bool = True,
) -> list[tuple[int, Finding]]:
    """(second, finding) of each second in which something is found.

    Args:
        slow: number of the checkpoint -> rank that is slow in it, and for how many seconds.
        host_count: hosts.
        count: checkpoints.
        names: phases in turn.
        is_async: the others train on.
        has_steps: whether steps are recorded.
    """
    tracker, found, ends = PhaseTracker(PhaseConfig(), _graph(host_count)), [], []
    for number in range(count):
        begin, (who, seconds) = 100.0 * (number + 1), slow.get(number, (-1, 0.0))
        for rank in range(host_count):
            name = names[number % len(names)]
            lasts = seconds if rank == who else USUAL_SECONDS + 0.1 * (rank % 7)
            ends += [(begin + 0.01 * rank, _edge(rank, begin, "begin", name))]
            ends += [(begin + lasts, _edge(rank, begin + lasts, "end", name))]
    pauses = [(100.0 * (n + 1), max(slow.get(n, (0, 0.0))[1], 9.0)) for n in range(count)]
    for second in range(100 * (count + 1)):
        for at, event in sorted(ends, key=lambda reported: reported[0]):
            if second <= at < second + 1:
                tracker.take(event)
        rests = any(begin - 1 <= second < begin + lasts + 1 for begin, lasts in pauses)
        if has_steps and second % 2 == 0 and (is_async or not rests):
            tracker.take_steps([StepRecord(at_second(second), rank, second, 2.0) for rank in range(host_count)])
        finding = tracker.find(at_second(second + 1))
        if finding is not None:
            found.append((second, finding))
        other = PhaseTracker(PhaseConfig(), tracker.graph)
        other.load_state(through_bytes(tracker.to_state()))
        tracker = other
    return found


def _slow(first: int, count: int = 8, rank: int = 3, seconds: float = 45.0) -> dict[int, tuple[int, float]]:
    return dict.fromkeys(range(first, count), (rank, seconds))


@pytest.mark.parametrize(("host_count", "needed"), [(4, 5), (8, 4), (16, 3), (300, 2)])
def test_the_fewer_hosts_the_more_often_it_must_be_the_same(host_count: int, needed: int) -> None:
    [(second, finding), *_] = _reported(_slow(1), host_count=host_count)

    assert second == 100 * (1 + needed) + 45
    assert [suspect.component.name for suspect in finding.suspects] == ["n03"]
    assert finding.onset_ns == at_second(200)
    assert finding.is_soft
    assert "took 45 s, that of all other" in finding.evidence[0].text


@pytest.mark.parametrize(
    "slow",
    [
        _slow(0),
        {number: (number, 45.0) for number in range(1, 8)},
        {1: (3, 45.0), 2: (3, 45.0), 4: (3, 45.0), 5: (3, 45.0)},
        _slow(1, seconds=12.0),
    ],
    ids=["always-so", "another-each-time", "not-in-a-row", "hardly-longer"],
)
def test_who_may_have_more_to_save_is_not_named(slow: Mapping[int, tuple[int, float]]) -> None:
    assert _reported(slow) == []


def test_nobody_waits_where_the_others_train_on_or_nobody_knows() -> None:
    assert _reported(_slow(1), is_async=True) == []
    assert _reported(_slow(1), has_steps=False) == []


def test_three_hosts_are_too_few() -> None:
    assert _reported(_slow(1), host_count=3) == []


def test_it_ends_with_the_first_that_is_as_ever() -> None:
    reported = _reported({**_slow(1), 6: (-1, 0.0)})

    assert reported[-1][0] == 700 + 9  # when it is known that nobody else began later


def test_phases_of_each_name_are_compared_with_their_own() -> None:
    slow = dict.fromkeys(range(2, 10, 2), (3, 45.0))  # checkpoints and evaluations in turn
    [(second, finding), *_] = _reported(slow, count=10, names=("checkpoint", "evaluation"))

    assert second == 745
    assert finding.evidence[0].metric == "checkpoint"


def test_phases_that_never_end_are_not_kept_for_ever() -> None:
    tracker = PhaseTracker(PhaseConfig(), _graph(4))
    for number in range(100):
        tracker.take(_edge(0, 100.0 * number, "begin"))
        assert tracker.find(at_second(100.0 * number + 50)) is None

    assert len(tracker.open) == PhaseConfig().kept_count

"""Reports of loaders: which source a rank reads, how uneven lengths are, and what a new start is told with."""

from __future__ import annotations

import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.lab.testing.builders import JOB, at_second, build_graph
from tocsin.pipeline.rca.evidence.loading import LoadingConfig, LoadingTracker
from tocsin.schemas import events
from tocsin.schemas.records import Event, EventSource, RankPlace, Severity, StepRecord


def tracker_of(ranks: int = 4, tp: int = 1) -> LoadingTracker:
    """No reports yet; ``tp`` neighbouring ranks share their data."""
    places = (RankPlace(rank, f"n{rank}", dp=rank // tp, tp=rank % tp, pp=0) for rank in range(ranks))
    return LoadingTracker(LoadingConfig(), build_graph(places))


def says(tracker: LoadingTracker, second: float, rank: int, **facts: object) -> None:
    """One report; lengths of eight sequences of 100 tokens unless told otherwise."""
    payload = {"source": "web", "fetch_seconds": 0.1, "rows": 8, "tokens": 800, "sum_squared_lengths": 80_000, **facts}
    stamp = at_second(second)
    tracker.take(Event(JOB, f"n{rank}", stamp, rank, EventSource.LOADER, events.LOADER, Severity.INFO, payload))


def tell_steps(tracker: LoadingTracker, ranks: int, steps: int = 4) -> None:
    """Reports of the same steps by all ranks; the longest batch, three times the others', moves."""
    for step in range(steps):
        for rank in range(ranks):
            longer = 3 if step % ranks == rank else 1
            source = "books" if longer > 1 else "web"
            tokens, squares = 800 * longer, 80_000 * longer**2
            says(tracker, 5 * step, rank, step=step, source=source, tokens=tokens, sum_squared_lengths=squares)


def test_lengths_of_steps_that_all_data_parallel_ranks_tell_are_compared() -> None:
    tracker = tracker_of()
    tell_steps(tracker, 4)
    says(tracker, 21, 0, step=9, tokens=10_000)
    other = tracker_of()
    other.load_state(through_bytes(tracker.to_state()))
    found = other.lengths(at_second(30))

    assert found is not None
    assert (found.first_step, found.last_step, found.source) == (0, 3, "books")
    assert found.tokens.max_to_mean_ratio == pytest.approx(2.0)
    assert found.squares.max_to_mean_ratio == pytest.approx(3.0)
    assert found.squares.moves


def test_ranks_that_share_their_data_count_once_and_two_are_not_compared() -> None:
    for tracker, ranks in ((tracker_of(4, tp=2), 4), (tracker_of(2), 2)):
        tell_steps(tracker, ranks)
        assert tracker.lengths(at_second(30)) is None


@pytest.mark.parametrize("second", [300, 3000])
def test_old_reports_tell_nothing(second: float) -> None:
    tracker = tracker_of()
    tell_steps(tracker, 4)

    assert tracker.lengths(at_second(second)) is None
    assert tracker.sources(at_second(second)) == {}


def test_a_rank_that_reads_several_sources_reads_none_of_them_alone() -> None:
    tracker = tracker_of()
    for second, source in ((1, "web"), (6, "books")):
        says(tracker, second, 0, source=source)
        says(tracker, second, 1)
        says(tracker, second, 2, source="")
    says(tracker, 7, 3, rows=0, source="web")

    assert tracker.sources(at_second(10)) == {1: "web"}
    assert [(one.rank, one.seconds) for one in tracker.fetches(at_second(0), at_second(10))] == [(1, 0.1)]


def test_a_new_start_is_told_for_a_minute_with_what_was_used_twice() -> None:
    tracker = tracker_of()
    says(tracker, 1, 3, restarts=1, recovery_seconds=4.25, duplicate_rows=32, skipped_rows=0)
    says(tracker, 6, 3, restarts=1, recovery_seconds=4.25)
    [found] = tracker.find(at_second(10))

    assert (found.cause, found.suspects) == ("loader_stall", ())
    assert found.evidence[0].text == (
        "the loader of web of rank 3 on n3 failed and began anew (1 times so far), its next batch came after 4.25 s; "
        "32 samples were used twice and 0 left out"
    )
    assert tracker.find(at_second(62)) == []


def steps_of(tracker: LoadingTracker, step: int, seconds: dict[int, float]) -> None:
    """One finished step in which ranks compute so long, forward and backward."""
    tracker.take_steps(
        StepRecord(at_second(step), rank, step, 1.0, forward_seconds=own / 3, backward_seconds=own * 2 / 3)
        for rank, own in seconds.items()
    )


@pytest.mark.parametrize("is_late", [False, True])
def test_lengths_are_compared_with_the_times_of_the_same_steps(is_late: bool) -> None:
    """A report comes before or after its step's times; every fourth step is reported."""
    tracker = tracker_of()
    for step in range(24):
        if not is_late:
            steps_of(tracker, step, {0: 0.8, 1: 0.4, 2: 0.4, 3: 0.4})
        for rank in range(4) if step % 4 == 0 else ():
            longer = 2 if rank == 0 else 1
            says(tracker, step, rank, step=step, tokens=800 * longer, sum_squared_lengths=80_000 * longer)
        if is_late:
            steps_of(tracker, step, {0: 0.8, 1: 0.4, 2: 0.4, 3: 0.4})
    other = tracker_of()
    other.load_state(through_bytes(tracker.to_state()))
    assert other.to_state() == through_bytes(tracker.to_state())
    for known in (tracker, other):
        found = known.weigh(0, range(1, 4), 1.0, at_second(8))
        assert found is not None
        assert (found.own_ratio, found.lengths_ratio, found.left_ratio) == pytest.approx((2.0, 2.0, 1.0))
        assert found.step_count >= 2
        assert found.is_explained


def test_reports_without_times_or_without_peers_explain_nothing() -> None:
    tracker = tracker_of()
    tell_steps(tracker, 4)

    assert tracker.weigh(0, range(1, 4), 1.0, 0) is None
    assert tracker.weigh(9, range(4), 1.0, 0) is None
    steps_of(tracker, 3, dict.fromkeys(range(4), 0.5))
    assert tracker.weigh(0, (), 0.0, 0) is None


@pytest.mark.parametrize(
    ("told", "untold"), [("tokens", "sum_squared_lengths"), ("sum_squared_lengths", "tokens"), ("tokens", "step")]
)
def test_a_report_that_lacks_a_number_is_weighed_by_the_others(told: str, untold: str) -> None:
    tracker = tracker_of()
    for step in range(12):
        for rank in range(4):
            facts = {"step": step, "tokens": 800, "sum_squared_lengths": 80_000}
            facts[told] *= 2 if rank == 0 else 1
            says(tracker, step, rank, **{**facts, untold: None})
        steps_of(tracker, step, {0: 0.8, 1: 0.4, 2: 0.4, 3: 0.4})
    found = tracker.weigh(0, range(1, 4), 1.0, at_second(4))

    assert found is not None
    assert found.is_explained


def test_reports_that_come_before_their_steps_ended_are_matched_all_the_same() -> None:
    tracker = tracker_of()
    for step in range(16):
        for rank in range(4):
            longer = 2 if rank == 0 else 1
            says(tracker, step, rank, step=step, tokens=800 * longer, sum_squared_lengths=80_000 * longer)
        if step >= 3:
            steps_of(tracker, step - 3, {0: 0.8, 1: 0.4, 2: 0.4, 3: 0.4})
    found = tracker.weigh(0, range(1, 4), 1.0, at_second(4))

    assert found is not None
    assert found.is_explained

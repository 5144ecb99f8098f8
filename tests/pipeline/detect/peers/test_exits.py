"""Whose processes ended first: by the GPU memory that is free."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline.states import through_bytes
from tocsin.models.peers import PeerState
from tocsin.pipeline.detect.peers.exits import ExitsConfig, ExitTracker, memory_shares
from tocsin.schemas.records import NS_PER_SECOND, JobKey, Slice

T0 = 1_800_000_000 * NS_PER_SECOND
HOSTS = [f"n{row}" for row in range(8)]


def _reported(ends: dict[int, float], windows: int = 8, window_seconds: int = 5, unknown: int = 0) -> list[list[str]]:
    """Who is said to be first in each window, where hosts free their memory at these seconds; through snapshots."""
    return _run(ends, windows, window_seconds, unknown)[1]


def _after(ends: dict[int, float]) -> ExitTracker:
    return _run(ends)[0]


def _run(
    ends: dict[int, float], windows: int = 8, window_seconds: int = 5, unknown: int = 0
) -> tuple[ExitTracker, list[list[str]]]:
    tracker = ExitTracker(ExitsConfig())
    found = []
    for window in range(windows):
        start, end = window * window_seconds, (window + 1) * window_seconds
        shares = np.array(
            [np.clip((ends.get(row, 1e9) - start) / window_seconds, 0.01, 1.0) for row in range(len(HOSTS))], np.float32
        )
        shares[len(HOSTS) - unknown :] = np.nan
        data = Slice(JobKey("c", "j"), T0 + start * NS_PER_SECOND, T0 + end * NS_PER_SECOND, ())
        found.append([anomaly.component.name for anomaly in tracker.take(data, HOSTS, shares)])
        other = ExitTracker(ExitsConfig())
        other.load_state(through_bytes(tracker.to_state()))
        tracker = other
    return tracker, found


def test_one_that_is_alone_for_seconds_is_first_and_stays_so() -> None:
    reported = _reported({3: 11.0, **dict.fromkeys((0, 1, 2, 4, 5, 6, 7), 21.0)})

    assert reported[:3] == [[], [], []]  # in the window of the change a part of it is free
    assert all(names == ["n3"] for names in reported[3:])


@pytest.mark.parametrize(("lead_seconds", "window_seconds"), [(1.0, 5), (5.0, 25)])
def test_a_lead_that_samples_may_make_is_none(lead_seconds: float, window_seconds: int) -> None:
    reported = _reported({3: 41.0, 4: 41.0 + lead_seconds}, window_seconds=window_seconds)

    assert not any(reported)


def test_a_part_of_the_memory_that_is_free_is_no_end() -> None:
    tracker = ExitTracker(ExitsConfig())
    shares = np.array([1, 1, 1, 0.5, 1, 1, 1, 1], np.float32)
    slices = [
        Slice(JobKey("c", "j"), T0 + n * NS_PER_SECOND, T0 + (n + 5) * NS_PER_SECOND, ()) for n in range(0, 50, 5)
    ]

    assert not any(tracker.take(data, HOSTS, shares) for data in slices)


def test_nobody_is_first_where_the_memory_of_several_is_not_known() -> None:
    assert not any(_reported({3: 11.0}, unknown=2))


def test_processes_that_begin_again_hold_memory_again() -> None:
    tracker = ExitTracker(ExitsConfig())
    reported = []
    for window, share in enumerate([1.0, 0.0, 0.0, 1.0, 1.0]):
        data = Slice(JobKey("c", "j"), T0 + 5 * window * NS_PER_SECOND, T0 + 5 * (window + 1) * NS_PER_SECOND, ())
        shares = np.array([1, 1, 1, share, 1, 1, 1, 1], np.float32)
        reported.append(len(tracker.take(data, HOSTS, shares)))

    assert reported == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        (dict.fromkeys(range(8), 11.0), 8),
        ({row: 11.0 + row for row in range(8)}, 8),
        ({row: 11.0 + 2 * row for row in range(8)}, 0),
        (dict.fromkeys(range(7), 11.0), 0),
    ],
    ids=["at-once", "one-by-one", "for-longer", "one-holds-its-own"],
)
def test_all_end_at_once(ends: dict[int, float], count: int) -> None:
    tracker = _after(ends)

    assert len(tracker.ended_at_once(len(HOSTS))) == count


def test_who_is_gone_already_and_who_is_new_do_not_count() -> None:
    tracker = _after(dict.fromkeys(range(8), 11.0))
    data = Slice(JobKey("c", "j"), T0 + 40 * NS_PER_SECOND, T0 + 45 * NS_PER_SECOND, ())
    shares = np.array([np.nan, *[0.01] * 7, np.nan], np.float32)
    tracker.take(data, [*HOSTS, "n8"], shares)

    assert list(tracker.ended_at_once(8)) == HOSTS


def test_shares_are_of_the_usual_level_where_it_is_known() -> None:
    values = np.array([[1e9], [8e10], [0.0], [1e9]], np.float32)
    state = PeerState.empty(4, 1)
    state.level[:, 0], state.seen_count[:, 0] = [8e10, 8e10, np.nan, 8e10], [12, 12, 12, 3]

    shares = memory_shares(values, state, ["gpu_memory_used_bytes"], 12)

    assert shares[:2] == pytest.approx([0.0125, 1.0])
    assert np.isnan(shares[2:]).all()
    assert np.isnan(memory_shares(values, state, ["gpu_util_ratio"], 12)).all()

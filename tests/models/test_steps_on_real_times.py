"""What models/steps.py does with real step times (alibaba job_2): ten workers that differ, nobody to blame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.step_times import FloatArray, batch_seconds, whole_samples
from tocsin.models.steps import SlowConfig, StepWindow, find_slow, median_excess, volatility_ratio

CONFIG = SlowConfig()
SHORT, LONG = 5, 24
"""Windows of ``StepsConfig``."""


def synchronous(own: FloatArray) -> StepWindow:
    """All wait for the slowest."""
    duration = np.nanmax(own, axis=1, keepdims=True) + 0.02 + 0 * own
    return StepWindow(duration, duration - own, np.full((4, *own.shape), np.nan), np.zeros(own.shape[1], np.int64))


def as_told(own: FloatArray) -> StepWindow:
    """Each worker's own duration and nothing of its waiting, as the file has it."""
    nothing = np.full((5, *own.shape), np.nan)
    return StepWindow(own, nothing[0], nothing[1:], np.zeros(own.shape[1], np.int64))


def without_waits(own: FloatArray) -> StepWindow:
    """Workers that do not wait for each other."""
    return StepWindow(own, np.zeros_like(own), np.full((4, *own.shape), np.nan), np.zeros(own.shape[1], np.int64))


def named(window: StepWindow, count: int) -> list[tuple[int, ...]]:
    """Who is found in each rolling window of so many steps."""
    found = []
    for end in range(count, len(window.duration_seconds) + 1):
        part = StepWindow(
            window.duration_seconds[:end],
            window.communication_seconds[:end],
            window.phase_seconds[:, :end],
            window.roles,
        )
        slow = find_slow(part.last(count), CONFIG)
        if slow is not None:
            found.append(slow.columns)
    return found


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("reading", [synchronous, as_told, without_waits])
def test_in_a_real_job_without_a_straggler_no_window_names_anybody(
    shared_data: Path, reading: object, count: int
) -> None:
    assert callable(reading)
    assert not named(reading(whole_samples(batch_seconds(shared_data))), count)


def test_its_workers_differ_by_more_than_a_quiet_jobs(shared_data: Path) -> None:
    """Why it is a hard case: a worker takes 0.69 to 0.91 s, all the time; the line is at a tenth of the step."""
    window = synchronous(whole_samples(batch_seconds(shared_data)))

    assert np.nanmedian(window.own_seconds, axis=0).min() == pytest.approx(0.686, abs=0.001)
    assert np.nanmedian(window.own_seconds, axis=0).max() == pytest.approx(0.906, abs=0.001)
    assert float(median_excess(window).max()) == pytest.approx(0.074, abs=0.001)
    assert volatility_ratio(window) == pytest.approx(0.062, abs=0.001)


@pytest.mark.parametrize("worker", range(10))
def test_a_worker_that_takes_twice_its_time_is_named_alone(shared_data: Path, worker: int) -> None:
    seconds = whole_samples(batch_seconds(shared_data))
    seconds[100:140, worker] *= 2.0

    found = named(synchronous(seconds), LONG)

    assert set(found) == {(worker,)}
    assert len(found) >= 20  # of 40 struck steps a window of 24 must hold 20


@pytest.mark.xfail(reason="the fast worker moves the peers' median and spread; worker 5 was as slow all along")
def test_a_fast_worker_that_slows_down_brings_no_other_under_suspicion(shared_data: Path) -> None:
    seconds = whole_samples(batch_seconds(shared_data))
    seconds[100:140, 0] *= 1.2

    assert not [columns for columns in named(synchronous(seconds), SHORT) if 5 in columns]


@pytest.mark.xfail(reason="whoever has half of the largest excess is named with it, however long he had it")
def test_a_slow_worker_is_named_without_one_that_was_always_slow(shared_data: Path) -> None:
    seconds = whole_samples(batch_seconds(shared_data))
    seconds[100:140, 9] *= 1.2

    assert not [columns for columns in named(synchronous(seconds), LONG) if 5 in columns]

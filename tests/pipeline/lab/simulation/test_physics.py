import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.lab.simulation.quiet import PACE, quiet_shape
from tocsin.pipeline.lab.simulation.levels import COMPUTE, GONE, IDLE
from tocsin.pipeline.lab.simulation.physics import (
    FAR_SECONDS,
    SimulatedSteps,
    Timeline,
    stretch_of,
)
from tocsin.pipeline.lab.simulation.plan import (
    Break,
    Corruption,
    DataWait,
    Envelope,
    Part,
    Plan,
    PlannedSlowdown,
    PlannedSlowLink,
    Stall,
    Stop,
)

DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = range(5)
ALWAYS = Envelope(-100.0)


def timeline(*parts: Part, interleave: float = 0.0) -> Timeline:
    shape = quiet_shape()
    pace = dataclasses.replace(PACE, interleave_ratio=interleave)
    return Timeline(dataclasses.replace(shape, pace=pace), Plan(parts), np.random.SeedSequence([1]))


def steps(*parts: Part, seconds: float = 60.0) -> list[SimulatedSteps]:
    return timeline(*parts).advance(seconds)[1]


def mean_phase(rows: list[SimulatedSteps], phase: int, rank: int) -> float:
    return float(np.mean([row.phase_seconds[phase, rank] for row in rows]))


@given(st.floats(1.1, 3.0), st.integers(0, 11))
def test_a_slow_rank_makes_all_others_wait_in_communication_and_nothing_else(factor: float, slow: int) -> None:
    healthy, sick = steps(), steps(PlannedSlowdown((slow,), factor, ALWAYS))
    peer = (slow + 1) % 12
    longer = np.mean([row.duration_seconds for row in sick]) - np.mean([row.duration_seconds for row in healthy])

    assert longer == pytest.approx((factor - 1.0) * 0.7 * 2.0, rel=0.25, abs=0.12)
    for phase in (FORWARD, BACKWARD, OPTIMIZER):
        assert mean_phase(sick, phase, peer) == pytest.approx(mean_phase(healthy, phase, peer), rel=1e-9)
    assert mean_phase(sick, BACKWARD, slow) == pytest.approx(factor * mean_phase(healthy, BACKWARD, slow))
    assert mean_phase(sick, COMMUNICATION, peer) > mean_phase(healthy, COMMUNICATION, peer) + 0.8 * longer
    assert mean_phase(sick, COMMUNICATION, slow) < mean_phase(sick, COMMUNICATION, peer)


@given(st.floats(1.1, 3.0), st.floats(5.0, 55.0))
def test_a_step_that_ends_before_the_onset_is_as_it_would_have_been(factor: float, onset: float) -> None:
    healthy, sick = steps(), steps(PlannedSlowdown((3,), factor, Envelope(onset)))
    before = [row for row in sick if row.end_seconds <= onset]

    assert [row.duration_seconds for row in before] == [row.duration_seconds for row in healthy[: len(before)]]
    assert np.median([row.duration_seconds for row in sick[len(before) + 1 :]]) > healthy[0].duration_seconds


@given(st.floats(0.5, 3.0), st.floats(0.0, 20.0))
def test_only_what_is_left_of_a_step_at_the_onset_takes_longer(factor: float, onset: float) -> None:
    slow = PlannedSlowdown((0,), factor, Envelope(onset))

    found = stretch_of(slow, 0.0, 20.0)

    assert found == pytest.approx(1.0 + (factor - 1.0) * (1.0 - onset / 20.0), abs=0.06)


@given(st.lists(st.floats(1.0, 3.0), min_size=1, max_size=4))
def test_a_step_lasts_as_long_as_its_slowest_rank_and_its_phases_add_up(factors: list[float]) -> None:
    parts = [PlannedSlowdown((rank,), factor, ALWAYS) for rank, factor in enumerate(factors)]
    for row in steps(*parts, seconds=20.0):
        own = row.phase_seconds[:4].sum(axis=0)
        assert own.max() <= row.duration_seconds + 1e-9
        assert row.phase_seconds.sum(axis=0) == pytest.approx(row.duration_seconds)


def test_a_slow_link_hits_everybody_alike() -> None:
    healthy, sick = steps(), steps(PlannedSlowLink(3.0, ALWAYS))

    for rank in range(12):
        more = mean_phase(sick, COMMUNICATION, rank) - mean_phase(healthy, COMMUNICATION, rank)
        assert more == pytest.approx(2.0 * 0.2 * 2.0, rel=0.15)


def test_a_rank_that_waits_for_data_shows_it_in_its_data_time_only() -> None:
    sick = steps(DataWait((3,), 1.0, ALWAYS, spread_ratio=0.0))

    assert mean_phase(sick, DATA, 3) > 1.0
    assert mean_phase(sick, DATA, 4) < 0.2
    assert mean_phase(sick, COMMUNICATION, 4) > 1.0


def test_a_sudden_fault_within_a_step_counts_for_its_share() -> None:
    rows = steps(PlannedSlowdown((0,), 2.0, Envelope(30.0)))
    before = [row.duration_seconds for row in rows if row.end_seconds < 30.0]
    after = [row.duration_seconds for row in rows if row.end_seconds > 36.0]

    assert max(before) < 2.2
    assert min(after) > 3.1


def test_a_stall_costs_everybody_one_step() -> None:
    rows = steps(Stall((2,), 20.0, 4.0))

    assert max(row.duration_seconds for row in rows) > 5.5
    assert sorted(row.duration_seconds for row in rows)[-2] < 2.3


@pytest.mark.parametrize("manner", ["exit", "idle", "spin"])
def test_when_a_rank_stops_no_step_ends_anymore(manner: str) -> None:
    stop = Stop((5,), 30.0, manner, peers_lag_seconds=20.0)  # type: ignore[arg-type]  # a parameter is a str
    spans, rows = timeline(stop).advance(200.0)
    last = spans[-1]
    gone = last.bounds[last.codes.index(GONE)]

    assert all(row.end_seconds <= 30.0 for row in rows)
    assert last.bounds.max() == FAR_SECONDS
    assert gone[5] == pytest.approx(30.0) if manner == "exit" else 50.0 <= gone[5] <= 51.0
    assert all(50.0 <= gone[rank] <= 51.0 for rank in range(12) if rank != 5)
    idle = last.bounds[last.codes.index(IDLE, 1) + 1] - last.bounds[last.codes.index(IDLE, 1)]
    assert (idle[5] > 10.0) == (manner == "idle")
    assert not idle[0] > 0.0


def test_peers_come_to_a_stand_within_the_step() -> None:
    spans, _ = timeline(Stop((5,), 30.0, "spin")).advance(200.0)
    computes_until = spans[-1].bounds[spans[-1].codes.index(COMPUTE) + 1]

    assert (computes_until <= 32.5).all()


def test_a_checkpoint_is_between_two_steps_and_waits_for_its_writers() -> None:
    pause = Break(20.0, "checkpoint", 5.0, writers=(0, 1), writer_seconds=9.0)
    job = timeline(pause)
    spans, rows = job.advance(60.0)
    ends = [row.end_seconds for row in rows]

    assert max(np.diff(ends)) == pytest.approx(9.0 + 2.0, abs=0.3)
    assert max(row.duration_seconds for row in rows) < 2.3
    assert {event.payload["edge"] for event in job.happenings} == {"begin", "end"}
    assert len(job.happenings) == 2 * 12
    for before, after in itertools.pairwise(spans):
        assert after.bounds[0] == pytest.approx(before.bounds[-1])


def test_nan_begins_at_one_rank_and_is_everybodys_a_step_later() -> None:
    rows = steps(Corruption(4, 20.0, float("nan")))
    bad = [np.flatnonzero(np.isnan(row.loss)).tolist() for row in rows]
    first = next(index for index, ranks in enumerate(bad) if ranks)

    assert bad[first] == [4]
    assert all(ranks == list(range(12)) for ranks in bad[first + 1 :])


@given(st.floats(0.0, 1.0))
def test_bounds_never_go_backwards(interleave: float) -> None:
    parts = (PlannedSlowdown((0,), 2.0, Envelope(10.0)), Stall((3,), 12.0, 2.0), Stop((1,), 25.0, "exit", 2.0, 9.0))
    spans, _ = timeline(*parts, interleave=interleave).advance(80.0)

    for span in spans:
        assert (np.diff(span.bounds, axis=0) >= -1e-9).all()
        assert ((span.busy_ratio >= 0) & (span.busy_ratio <= 1 + 1e-9)).all()

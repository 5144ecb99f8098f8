"""The generator of slow jobs follows the physics of training, and its judge counts as its page says."""

import json

import numpy as np
import pytest

from tests.bench.bench_why import Judged, Said, from_trace, line_of, online, table
from tests.bench.why_cases import FIRST_SEED, LOWEST_SHARE, ORDERS, WhyCase, draw_case
from tests.bench.why_causes import DATA, JITTER, MACHINE, STAGE
from tests.bench.why_job import Layout, Work, one_forward_one_backward, play, seconds_of
from tests.bench.why_records import recording_of
from tocsin.pipeline.recording.tables import Text


def small_case(seed: int) -> WhyCase:
    """The case of a seed, of few hosts."""
    return draw_case(seed, (3, 4))


def even_work(layout: Layout, forward: float = 1.0, backward: float = 2.0) -> Work:
    """A job whose computes all take the same and whose transfers take nothing."""
    s, m, p, d, t = layout.steps, layout.microbatches, layout.pp, layout.dp, layout.tp
    compute, pairs, ranks = np.ones((s, m, p, d)), np.zeros((s, m, p - 1, d)), np.zeros((s, p, d, t))
    nothing = np.zeros((s, p))
    tail = np.zeros((s, p, d))
    ones = np.ones((s, m, d))
    return Work(
        compute * forward, compute * backward, pairs, pairs, nothing, nothing, tail, tail, ranks + 1, ranks, ranks, ones
    )


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (2, 4), (4, 4), (4, 9)])
def test_an_even_pipeline_takes_its_bubble_and_no_more(stages: int, microbatches: int) -> None:
    layout = Layout(2, stages, 1, 8, microbatches, 3)
    ideal = (microbatches + stages - 1) * 3.0

    took = play(even_work(layout)).step_seconds

    assert np.allclose(took, ideal, atol=0.01)


def test_each_stage_computes_every_microbatch_once_forward_before_backward() -> None:
    order = one_forward_one_backward(1, 4, 6)

    assert sorted(order) == sorted([(kind, index) for kind in "fb" for index in range(6)])
    assert all(order.index(("f", index)) < order.index(("b", index)) for index in range(6))


def test_a_slow_replica_holds_up_its_step_and_no_other() -> None:
    work = even_work(Layout(3, 1, 1, 8, 2, 4))
    work.forward[1, 0, 0, 2] += 5.0

    took = play(work).step_seconds

    assert np.allclose(np.diff(took), [5.0, -5.0, 0.0])


@pytest.mark.parametrize("index", range(len(ORDERS)))
def test_every_reason_is_drawn_with_its_true_share(index: int) -> None:
    case = small_case(FIRST_SEED + index)

    assert (case.way, case.reason) == ORDERS[index]
    assert all(LOWEST_SHARE <= share <= 0.65 for share in case.shares.values())
    assert bool(case.culprits) == (MACHINE in case.shares or "loader" in case.shares)
    assert 2 <= case.layout.hosts <= 64


def test_a_seed_gives_the_same_case() -> None:
    first, second = small_case(FIRST_SEED + 4), small_case(FIRST_SEED + 4)

    assert first.shares == second.shares
    assert np.array_equal(first.work.forward, second.work.forward)


def test_a_ranks_phases_fill_its_step() -> None:
    case = small_case(FIRST_SEED + 2)
    steps = recording_of(case).tables["steps"]
    phases = [np.asarray(steps[f"{name}_seconds"]) for name in ("data", "forward", "backward", "optimizer")]
    parts = sum(phases) + np.asarray(steps["communication_seconds"])
    durations = np.asarray(steps["duration_seconds"])

    assert np.all(parts <= durations + 1e-3)
    assert np.all(np.diff(np.asarray(steps["ts_ns"])) >= 0)
    assert durations[np.asarray(steps["rank"]) == 0].sum() == pytest.approx(seconds_of(case.work), abs=0.1)


def test_loaders_tell_lengths_that_go_with_the_cost() -> None:
    seed = next(seed for seed in range(FIRST_SEED + 1, FIRST_SEED + 340, len(ORDERS)) if small_case(seed).with_lengths)
    payloads = recording_of(small_case(seed)).tables["events"]["payload"]
    assert isinstance(payloads, Text)
    squares = [json.loads(one)["sum_squared_lengths"] for one in payloads.to_list()]

    assert max(squares) > 1.05 * min(squares)


def judged(reason: str, said: Said) -> Judged:
    """A case of 20 % of this reason with this answer."""
    shares = {} if reason == "none" else {reason: 0.2}
    culprits = frozenset({"n003"}) if reason == MACHINE else frozenset()
    return Judged(FIRST_SEED, "online", reason, shares, culprits, said, 8, 0.1)


@pytest.mark.parametrize(
    ("reason", "said", "right"),
    [
        (STAGE, Said({STAGE: 0.21}, frozenset()), True),
        (STAGE, Said({STAGE: 0.21, DATA: 0.3}, frozenset()), False),
        (STAGE, Said({}, frozenset()), False),
        (STAGE, Said({STAGE: 0.21}, frozenset({"n001"})), False),
        (MACHINE, Said({MACHINE: 0.2}, frozenset({"n003"})), True),
        (MACHINE, Said({MACHINE: 0.2}, frozenset({"n003", "n004"})), False),
        ("none", Said({}, frozenset()), True),
        ("none", Said({JITTER: 0.06}, frozenset()), False),
    ],
)
def test_what_counts_as_right(reason: str, said: Said, right: bool) -> None:
    assert judged(reason, said).right is right


def test_a_line_counts_false_accusations_and_errors_in_points() -> None:
    cases = [judged(STAGE, Said({STAGE: 0.24}, frozenset())), judged(STAGE, Said({}, frozenset({"n001"})))]

    line = line_of("online stage_imbalance", cases)

    assert line.split() == ["online", "stage_imbalance", "1/2", "0.50", "4.0", "1/1", "1"]
    assert any("mean of the reasons 0.50" in one for one in table(cases))


def test_a_small_trace_is_judged_by_the_command() -> None:
    case = small_case(FIRST_SEED + 16)

    assert case.reason == "none"
    assert from_trace(case) == Said({}, frozenset())


def test_a_recording_is_judged_by_the_engine() -> None:
    case = small_case(FIRST_SEED + 9)

    assert case.reason == "none"
    assert online(case) == Said({}, frozenset())

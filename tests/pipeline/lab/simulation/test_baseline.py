import math

import numpy as np
import pytest

from tests.pipeline.lab.simulation.quiet import quiet_case
from tocsin.pipeline.lab.simulation.baseline import BaselineConfig, accusations
from tocsin.pipeline.lab.simulation.difficulty import (
    DifficultyTally,
    Scored,
    best_threshold,
    table,
    tally,
)
from tocsin.pipeline.lab.simulation.plan import Envelope, Shift

ONSET_SECONDS = 300.0


def test_it_finds_a_flagrant_host_after_three_windows_and_nobody_else() -> None:
    case = quiet_case(Shift("cpu_util_ratio", (3,), Envelope(ONSET_SECONDS), add_value=0.4), slices=96)
    found = accusations(case.recording())

    assert [one.host for one in found] == [case.shape.host_names[3]]
    delay = (found[0].detected_ns - case.shape.start_ns) / 1e9 - ONSET_SECONDS
    assert 20.0 <= delay <= 41.0


def test_a_host_that_was_always_different_is_left_alone() -> None:
    always = Shift("cpu_util_ratio", (3,), Envelope(-1e9), add_value=0.4)

    assert accusations(quiet_case(always, slices=96).recording()) == []


def test_ten_seconds_are_not_three_windows() -> None:
    short = Shift("cpu_util_ratio", (3,), Envelope(ONSET_SECONDS, ONSET_SECONDS + 10.0), add_value=0.4)

    assert accusations(quiet_case(short, slices=96).recording()) == []


def test_a_recording_shorter_than_its_memory_accuses_nobody() -> None:
    assert accusations(quiet_case(slices=10).recording(), BaselineConfig()) == []


def scored(kind: str, suspect: str, scores: list[list[float]]) -> Scored:
    return Scored(kind, ("a", "b"), np.array(scores), 0, 1.0, suspect, 5 * 10**9, 30 * 10**9)


def test_hits_misses_and_false_accusations_are_counted_as_tocsin_score_does() -> None:
    hit = scored("ecc_error", "a", [[0, 0], [9, 0], [9, 0]])
    too_early = scored("ecc_error", "a", [[9, 0], [9, 0], [0, 0]])
    wrong = scored("ecc_error", "a", [[0, 0], [0, 9], [0, 0]])
    quiet = scored("healthy", "", [[0, 0], [0, 0], [0, 0]])
    result = tally([hit, wrong, quiet], 5.0)

    assert (result.hit_count, result.fault_count, result.false_count) == (1, 2, 1)
    assert result.delays_seconds == (15.0,)
    assert (result.precision, result.recall, result.f1) == (0.5, 0.5, 0.5)
    assert tally([too_early], 5.0).delays_seconds == (5.0,)
    assert best_threshold([hit, quiet]) <= 9.0
    assert "| healthy | 1 |" in table([hit, quiet], 5.0)


def test_a_tally_of_nothing_is_zero() -> None:
    empty = DifficultyTally(0, 0, 0, (), 0.0)

    assert (empty.precision, empty.recall, empty.f1) == (0.0, 0.0, 0.0)
    assert math.isnan(empty.median_seconds)


@pytest.mark.parametrize("threshold", [3.0, 100.0])
def test_a_higher_line_accuses_no_more_hosts(threshold: float) -> None:
    case = quiet_case(Shift("cpu_util_ratio", (3,), Envelope(ONSET_SECONDS), add_value=0.4), slices=96)
    low = accusations(case.recording(), BaselineConfig(z_threshold=threshold))
    high = accusations(case.recording(), BaselineConfig(z_threshold=2 * threshold))

    assert {one.host for one in high} <= {one.host for one in low}

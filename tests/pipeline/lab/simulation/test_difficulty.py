"""The simulator is neither too easy nor hopeless for a plain detector."""

import pytest

from tocsin.pipeline.lab.simulation.difficulty import best_threshold, sample, tally
from tocsin.pipeline.lab.simulation.draw import Half


@pytest.mark.slow
@pytest.mark.parametrize("half", ["fit", "held"])
def test_the_plain_detector_finds_most_and_not_all(half: Half) -> None:
    cases = sample(range(60), (4, 32), half)
    result = tally(cases, best_threshold(cases))

    assert 0.65 < result.f1 < 0.92
    assert 20.0 < result.median_seconds < 45.0

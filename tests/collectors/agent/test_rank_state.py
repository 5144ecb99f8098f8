"""When a step is odd."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tocsin.collectors.agent.rank_state import (
    MEDIAN_STEPS,
    MIN_STEPS,
    ODD_RATIO,
    ODD_SECONDS,
    RecentSteps,
)

seconds = st.one_of(st.none(), st.sampled_from([0.0, 0.01, 0.02, 0.021]), st.floats(0, 3))


@given(st.lists(st.tuples(seconds, seconds), max_size=3 * MEDIAN_STEPS))
def test_odd_is_a_time_above_its_own_running_median(steps: list[tuple[float | None, float | None]]) -> None:
    recent = RecentSteps()
    for number, step in enumerate(steps):
        window = steps[max(0, number - MEDIAN_STEPS) : number]
        odd = False
        for place, value in enumerate(step):
            known = sorted(times[place] for times in window if times[place] is not None)  # type: ignore[type-var]
            median = known[len(known) // 2] if known else math.nan
            assert recent.median_seconds(place) == (median if known else 0.0)
            if value is not None and median is not None and len(known) >= MIN_STEPS:
                odd |= value > ODD_RATIO * median + ODD_SECONDS
        assert recent.add(step) == odd

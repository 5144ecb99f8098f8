"""What the history of a job's steps remembers between two steps is what it would compute anew."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.models.pace import Slowdown, find_slowdown, grew_in_self_time, most_growth_seconds
from tocsin.pipeline.detect.steps.history import StepHistory
from tocsin.pipeline.detect.steps.rows import COLUMNS, StepRows
from tocsin.schemas.records import NS_PER_SECOND

_KEPT_COUNT = 24
"""Steps that are kept, fewer than are added, so that the oldest ones go."""

step_seconds = st.sampled_from([1.0, 1.0, 1.0, 1.1, 1.5, 4.0])
moments = st.integers(0, 90).map(lambda seconds: seconds * NS_PER_SECOND)


def rows_of(end_ns: int, seconds: float) -> StepRows:
    """Return a step of two ranks, of which one waits for the other."""
    values = np.full((2, len(COLUMNS)), np.nan)
    values[:, :3] = [[seconds, 0.1 * seconds, 0.0], [seconds, 0.4 * seconds, 0.1]]
    return StepRows(end_ns, (0, 1), values)


def from_scratch(history: StepHistory, onset_ns: int, now_ns: int) -> Slowdown | None:
    """Return the slowdown as it follows from the snapshot alone."""
    state = history.to_state()
    count = sum(end_ns <= now_ns for end_ns in state["history_ns"])
    table = np.array(state["history"][:count], float).reshape(count, 4)
    ends_ns = np.array(state["history_ns"][:count], np.int64)
    found = find_slowdown(table[:, 0], ends_ns, onset_ns, now_ns)
    return found and replace(found, is_of_own=grew_in_self_time(table, ends_ns, onset_ns))


@settings(max_examples=15)
@given(st.lists(st.tuples(step_seconds, st.lists(st.tuples(moments, moments), max_size=3)), min_size=8, max_size=30))
def test_a_slowdown_is_the_same_however_often_it_was_asked_for(
    steps: list[tuple[float, list[tuple[int, int]]]],
) -> None:
    history, end_ns = StepHistory(lambda _from, _to: False), 0
    for seconds, questions in steps:
        end_ns += int(seconds * NS_PER_SECOND)
        history.add(rows_of(end_ns, seconds), _KEPT_COUNT)
        kept = [row[0] for row in history.to_state()["history"]]
        assert history.median_step_ns == int(float(np.median(kept)) * NS_PER_SECOND)
        for onset_ns, now_ns in [*questions, *questions]:
            # The present passes while no step ends, so that the next one becomes overdue.
            for later_ns in (0, 5 * NS_PER_SECOND, 40 * NS_PER_SECOND):
                expected = from_scratch(history, onset_ns, now_ns + later_ns)
                found = history.slowdown_since(onset_ns, now_ns + later_ns)
                assert repr(found) == repr(expected)  # NaN, too


def test_a_restored_history_forgets_what_it_had_computed() -> None:
    slow, fast = StepHistory(lambda _from, _to: False), StepHistory(lambda _from, _to: False)
    for number in range(1, 25):
        slow.add(rows_of(number * NS_PER_SECOND, 1.0 if number < 12 else 2.0), _KEPT_COUNT)
        fast.add(rows_of(number * NS_PER_SECOND, 1.0), _KEPT_COUNT)
    onset_ns, now_ns = 12 * NS_PER_SECOND, 24 * NS_PER_SECOND
    before = slow.slowdown_since(onset_ns, now_ns)
    assert before is not None
    assert before.is_certain

    slow.load_state(fast.to_state())

    assert slow.slowdown_since(onset_ns, now_ns) == fast.slowdown_since(onset_ns, now_ns) != before
    assert slow.median_step_ns == NS_PER_SECOND


def test_growth_and_waiting_are_those_of_the_steps_that_had_ended() -> None:
    history = StepHistory(lambda _from, _to: False)
    for number in range(1, 25):
        history.add(rows_of(number * NS_PER_SECOND, 1.0 if number < 12 else 2.0), _KEPT_COUNT)
    onset_ns = 12 * NS_PER_SECOND
    ends_ns = np.arange(1, 25, dtype=np.int64) * NS_PER_SECOND
    seconds = np.array([1.0] * 11 + [2.0] * 13)

    for count in (14, 20, 24):
        found = history.most_growth_seconds(onset_ns, count * NS_PER_SECOND)
        assert found == most_growth_seconds(seconds[:count], ends_ns[:count], onset_ns)
    assert math.isclose(history.waited_seconds(11 * NS_PER_SECOND), 0.25)
    assert math.isnan(history.waited_seconds(0))

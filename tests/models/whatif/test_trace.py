"""Arrangement of a trace, and traces that are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tocsin.models.whatif.scenarios import model_of, slowdowns
from tocsin.models.whatif.trace import OpTrace, arrange
from tocsin.schemas.errors import FieldError

LAYOUT = Layout(2, 2)


@pytest.fixture(scope="module")
def trace() -> OpTrace:
    return make(LAYOUT, Effects(), 1, step_count=4).trace


Rows = npt.NDArray[np.bool_] | npt.NDArray[np.int64]


def rows(trace: OpTrace, chosen: Rows) -> OpTrace:
    """Some rows of a trace."""
    names = [name for name in trace.__slots__ if name != "words"]
    return replace(trace, **{name: getattr(trace, name)[chosen] for name in names})


def where(trace: OpTrace, kind: str, sequence: int, stage: int) -> npt.NDArray[np.bool_]:
    """The rows of one operation."""
    is_kind = trace.optype == trace.words.index(kind)
    found: npt.NDArray[np.bool_] = is_kind & (trace.seq_id == sequence) & (trace.stage == stage)
    return found


def test_rows_in_another_order_give_the_same_arrays(trace: OpTrace) -> None:
    order = np.random.default_rng(0).permutation(trace.step.size)
    found, expected = arrange(rows(trace, order)), arrange(trace)

    assert found.ops == expected.ops
    assert found.start_seconds.tolist() == expected.start_seconds.tolist()
    assert found.ranks.tolist() == expected.ranks.tolist() == [[0, 2], [1, 3]]


def test_a_step_that_lacks_an_operation_is_left_out(trace: OpTrace) -> None:
    lost = where(trace, "optimizer", 0, 1) & (trace.step == 107) & (trace.dp_rank == 1)
    model = model_of(rows(trace, ~lost))

    assert model.arrays.left_out_steps.tolist() == [107]
    assert model.arrays.steps.tolist() == [100, 114, 121]
    whole = slowdowns(model_of(rows(trace, trace.step != 107)))
    assert slowdowns(model).slowdown_ratio == whole.slowdown_ratio


def test_steps_of_which_the_first_is_cut_off_follow_the_others(trace: OpTrace) -> None:
    model = model_of(rows(trace, (trace.step != 100) | (trace.start_seconds < 0.2)))

    assert model.arrays.left_out_steps.tolist() == [100]


def test_the_clock_of_a_step_may_start_anywhere(trace: OpTrace) -> None:
    moved = replace(trace, start_seconds=trace.start_seconds + 8.0 * (trace.step - 100))

    assert slowdowns(model_of(moved)).slowdown_ratio == pytest.approx(
        slowdowns(model_of(trace)).slowdown_ratio, abs=1e-5
    )


def empty(trace: OpTrace) -> OpTrace:
    return rows(trace, np.zeros(trace.step.size, bool))


def unknown_type(trace: OpTrace) -> OpTrace:
    return replace(trace, words=tuple("tea" if word == "optimizer" else word for word in trace.words))


def twice(trace: OpTrace) -> OpTrace:
    return rows(trace, np.concatenate([np.arange(trace.step.size), [5]]))


def gap(trace: OpTrace) -> OpTrace:
    return replace(trace, stage=trace.stage * 2)


def torn(trace: OpTrace) -> OpTrace:
    kept = np.random.default_rng(1).random(trace.step.size) > 0.02
    return rows(trace, kept)


def endless(trace: OpTrace) -> OpTrace:
    return replace(trace, duration_seconds=np.where(np.arange(trace.step.size) == 3, np.inf, trace.duration_seconds))


def timeless(trace: OpTrace) -> OpTrace:
    return replace(trace, duration_seconds=np.zeros_like(trace.duration_seconds))


def without_a_send(trace: OpTrace) -> OpTrace:
    last = LAYOUT.microbatches - 1
    return rows(trace, ~(where(trace, "forward-send", last, 0) | where(trace, "forward-send", last - 1, 0)))


def without_a_receive(trace: OpTrace) -> OpTrace:
    return rows(trace, ~where(trace, "forward-recv", 0, 1))


def idle_stage(trace: OpTrace) -> OpTrace:
    computes = [trace.words.index(kind) for kind in ("forward-compute", "backward-compute")]
    return rows(trace, ~(np.isin(trace.optype, computes) & (trace.stage == 1)))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (empty, "rows = 0"),
        (unknown_type, "'tea'"),
        (twice, "the same operation twice"),
        (gap, r"stage = \[0, 2\]"),
        (torn, "steps with the same operations"),
        (endless, r"duration\[3\] = inf"),
        (timeless, "duration = 0.0: must be at least one operation that takes time"),
        (without_a_send, "forward-send of stage 0 = 2"),
        (without_a_receive, "forward-send of stage 0 = 4: must be as many as stage 1 receives"),
        (idle_stage, "stage 1 = 'no computation'"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(spoil: Callable[[OpTrace], OpTrace], said: str, trace: OpTrace) -> None:
    with pytest.raises(FieldError, match=said):
        model_of(spoil(trace))


@pytest.mark.parametrize("offset_seconds", [1e6, 1.7e9])
def test_starts_on_another_clock_than_the_step_s_own_change_nothing(offset_seconds: float, trace: OpTrace) -> None:
    """Ends are rounded to float32, in which Unix time has steps of minutes."""
    moved = replace(trace, start_seconds=trace.start_seconds + offset_seconds + 100.0 * trace.step)
    one, other = model_of(trace), model_of(moved)

    assert other.real_seconds == pytest.approx(one.real_seconds, abs=1e-4)

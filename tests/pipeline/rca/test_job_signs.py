"""Signs of a whole job over restarts of the engine, rollbacks, announced phases, and in a large job."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_signs import JobSigns, JobSignsConfig
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Slice, StepBatch, StepRecord


def new_signs() -> JobSigns:
    return JobSigns(JobSignsConfig(), JobGraph())


def second_of(
    second: float, step: int, loss: float | None, norm: float | None = 1.0, seconds: float = 1.0, ranks: int = 4
) -> Slice:
    rows = tuple(StepRecord(at_second(second), rank, step, seconds, loss=loss, grad_norm=norm) for rank in range(ranks))
    return Slice(JOB, at_second(second), at_second(second + 1), (StepBatch(JOB, "n0", at_second(second), rows),))


def run(signs: JobSigns, losses: Sequence[float | None], begin: int = 0) -> list[list[Finding]]:
    return [signs.on_slice(second_of(begin + row, begin + row, loss), ()) for row, loss in enumerate(losses)]


def test_a_restore_in_between_changes_nothing() -> None:
    losses = [2.0] * 150 + [11.0] * 60
    whole, part = new_signs(), new_signs()
    wanted = run(whole, losses)
    found = run(part, losses[:170])
    kept, part = part.snapshot(), new_signs()
    part.restore(kept)
    assert found + run(part, losses[170:], 170) == wanted
    assert part.snapshot() == whole.snapshot()
    assert [one.reason for one in wanted[-1]] == [Reason.NUMBERS_JUMPED]
    assert wanted[-1][0].onset_ns == at_second(150)


def test_a_level_that_lasts_half_an_hour_is_the_normal_one() -> None:
    found = run(new_signs(), [2.0] * 150 + [11.0] * 2200)
    ends = [one for told in found for one in told if one.ends is not None]
    assert [one.ends for one in ends] == [Reason.NEW_NORMAL]
    assert found[-1] == []


def test_a_rollback_goes_on_with_the_past_it_had() -> None:
    signs = new_signs()
    run(signs, [2.0] * 400)
    told = [signs.on_slice(second_of(400 + row, 190 + row, 11.0), ()) for row in range(30)]
    assert [one.cause for one in told[-1]] == ["divergence"]


def test_a_rollback_to_before_there_was_a_past_has_none() -> None:
    signs = new_signs()
    run(signs, [2.0] * 400)
    assert not any(signs.on_slice(second_of(400 + row, 100 + row, 11.0), ()) for row in range(120))


def test_a_restore_after_a_rollback_changes_nothing() -> None:
    whole, part = new_signs(), new_signs()
    for signs in (whole, part):
        run(signs, [3.0] * 150 + [2.0] * 250)
    kept, part = part.snapshot(), new_signs()
    part.restore(kept)
    wanted, found = (
        [one.on_slice(second_of(400 + row, 180 + row, 16.0), ()) for row in range(60)] for one in (whole, part)
    )
    assert found == wanted
    assert "lowest level that it held for 128 steps was 3" in wanted[-1][0].evidence[0].text


def test_one_rank_s_own_loss_is_not_the_job_s_and_lost_numbers_are_left_out() -> None:
    signs = new_signs()
    for second in range(400):
        data = second_of(second, second, 2.0)
        [batch] = data.records
        assert isinstance(batch, StepBatch)
        first = batch.rows[0]._replace(loss=100.0 if second > 200 else 2.0, grad_norm=math.nan)
        rows = (first, *batch.rows[1:])
        assert signs.on_slice(replace(data, records=(replace(batch, rows=rows),)), ()) == []


def test_a_job_that_tells_no_numbers_has_no_sign() -> None:
    signs = new_signs()
    assert not any(signs.on_slice(second_of(row, row, None, None), ()) for row in range(300))


def test_the_state_of_a_large_job_is_small() -> None:
    signs = new_signs()
    for second in range(8):
        signs.on_slice(second_of(second, second, 2.0, ranks=5000), ())
    assert sum(map(len, signs.snapshot().values())) < 30_000


def test_a_gradual_slowdown_that_goes_on_at_one_pace_is_the_normal_one_after_half_an_hour() -> None:
    signs, second, told = new_signs(), 0.0, []
    for step in range(4000):
        seconds = 1.0 + 0.4 * min(1.0, step / 1000)
        second += seconds
        told.append(signs.on_slice(second_of(second, step, 2.0, seconds=seconds), ()))
    first = next(step for step, found in enumerate(told) if found)
    assert 512 <= first <= 1100
    ends = [(step, one.ends) for step, found in enumerate(told) for one in found if one.ends is not None]
    assert [reason for _, reason in ends] == [Reason.NEW_NORMAL]
    assert told[-1] == []
    assert {one.cause for found in told for one in found} == {"gradual_slowdown"}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]))
def test_noise_without_a_trend_is_no_sign(seed: int, spread: float) -> None:
    signs, gauss = new_signs(), random.Random(seed).gauss
    for step in range(1100):
        data = second_of(
            step, step, 2.0 * math.exp(gauss(0, spread)), math.exp(gauss(0, spread)), max(0.1, gauss(1, spread)), 1
        )
        assert signs.on_slice(data, ()) == []


@pytest.mark.parametrize("growth", [0.1, 0.2])
def test_growth_below_a_quarter_is_no_sign(growth: float) -> None:
    signs = new_signs()
    for step in range(1500):
        data = second_of(2 * step, step, 2.0, seconds=1.0 + growth * min(1.0, step / 1000))
        assert signs.on_slice(data, ()) == []

"""A whole Minder model as a file."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.test_lstm_vae_file import drawn
from tocsin.models.lstm_vae import Limits
from tocsin.models.minder import MinderModel
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal

UNIT = Limits(0.0, 1.0)
MODEL = MinderModel({"metric_0": UNIT}, {"metric_0": drawn()}, drawn(2), ("metric_0",), 2.5, "v1")
WHOLE = encode_minder(MODEL)


def test_a_model_comes_back_whole_and_gives_the_same_bytes() -> None:
    again = decode_minder(WHOLE)

    assert (again.limits, again.priority, again.threshold_sigmas, again.version) == (
        MODEL.limits,
        ("metric_0",),
        2.5,
        "v1",
    )
    assert again.integrated is not None
    assert again.integrated.metrics == ("metric_0", "metric_1")
    assert encode_minder(again) == WHOLE


@settings(max_examples=50)
@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_short_anywhere_is_refused(length: int) -> None:
    with pytest.raises(ModelRefusedError, match="cut short"):
        decode_minder(WHOLE[:length])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"threshold_sigmas": 0.0}, ModelRefusal.OUT_OF_RANGE),
        ({"threshold_sigmas": math.nan}, ModelRefusal.OUT_OF_RANGE),
        ({"priority": ("metric_0", "metric_9")}, ModelRefusal.OUT_OF_RANGE),
        ({"limits": {"metric_0": Limits(1.0, 1.0)}}, ModelRefusal.OUT_OF_RANGE),
        ({"single": {"metric_5": drawn()}}, ModelRefusal.OTHER_METRIC),
    ],
)
def test_a_model_that_does_not_fit_together_is_refused(change: dict[str, object], reason: ModelRefusal) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        decode_minder(encode_minder(dataclasses.replace(MODEL, **change)))  # type: ignore[arg-type]
    assert caught.value.reason == reason

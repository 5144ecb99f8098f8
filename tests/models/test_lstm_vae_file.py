"""Model files: the same back, and a clear refusal of everything else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.models.lstm_vae import Limits, Lstm, LstmVae
from tocsin.models.lstm_vae_file import MAGIC, decode_vae, encode_vae
from tocsin.models.sealed import FIXED
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal


def drawn(width: int = 1, seed: int = 0, hidden: int = 4) -> LstmVae:
    """A model with weights that nobody trained."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
        return rng.standard_normal(shape).astype(np.float32)

    names = tuple(f"metric_{index}" for index in range(width))
    return LstmVae(
        names,
        (Limits(0.0, 700.0),) * width,
        8,
        Lstm(draw(4 * hidden, width), draw(4 * hidden, hidden), draw(4 * hidden)),
        draw(8, hidden),
        draw(8),
        Lstm(draw(4 * hidden, 8), draw(4 * hidden, hidden), draw(4 * hidden)),
        draw(width, hidden),
        draw(width),
    )


WHOLE = encode_vae(drawn())


@pytest.mark.parametrize("width", [1, 7])
def test_a_model_comes_back_bit_by_bit(width: int) -> None:
    model = drawn(width)
    again = decode_vae(encode_vae(model), model.metrics)
    windows = np.random.default_rng(3).random((10, 8, width), np.float32)

    assert (again.metrics, again.limits, again.window_ticks) == (model.metrics, model.limits, 8)
    assert (again.reconstruct(windows) == model.reconstruct(windows)).all()
    assert encode_vae(again) == encode_vae(model)


def test_a_model_of_one_metric_takes_less_than_three_kilobytes() -> None:
    assert len(WHOLE) < 3000


def test_a_file_of_another_metric_is_refused_and_both_are_named() -> None:
    with pytest.raises(ModelRefusedError, match=r"metric_0.*cpu_util_ratio") as caught:
        decode_vae(WHOLE, ("cpu_util_ratio",))
    assert caught.value.reason == ModelRefusal.OTHER_METRIC


@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_short_anywhere_is_refused(length: int) -> None:
    with pytest.raises(ModelRefusedError, match="cut short"):
        decode_vae(WHOLE[:length])


@example(place=5, bit=0)
@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_a_file_with_a_flipped_bit_anywhere_is_refused(place: int, bit: int) -> None:
    data = bytearray(WHOLE)
    data[place] ^= 1 << bit
    with pytest.raises(ModelRefusedError) as caught:
        decode_vae(bytes(data))
    assert caught.value.reason in set(ModelRefusal)


def test_a_pickle_is_refused_unread() -> None:
    with pytest.raises(ModelRefusedError, match="begins with"):
        decode_vae(pickle.dumps({"weights": [1.0] * 100}))


def changed(**fields: object) -> bytes:
    """A file that was written with another head."""
    magic, version, length, _ = FIXED.unpack_from(WHOLE)
    text = json.dumps(json.loads(WHOLE[FIXED.size : FIXED.size + length]) | fields).encode()
    rest = text + WHOLE[FIXED.size + length :]
    return FIXED.pack(magic, version, len(text), hashlib.sha256(rest).digest()) + rest


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"metrics": [["metric_0", 1.0, 1.0]]}, ModelRefusal.OUT_OF_RANGE),
        ({"metrics": [["metric_0", 0.0, float("inf")]]}, ModelRefusal.OUT_OF_RANGE),
        ({"metrics": []}, ModelRefusal.MODEL_UNDECODABLE),
        ({"metrics": [["metric_0", 0.0]]}, ModelRefusal.MODEL_UNDECODABLE),
        ({"metrics": None}, ModelRefusal.MODEL_UNDECODABLE),
        ({"window_ticks": 0}, ModelRefusal.OUT_OF_RANGE),
        ({"window_ticks": "many"}, ModelRefusal.MODEL_UNDECODABLE),
        ({"shapes": {}}, ModelRefusal.MODEL_UNDECODABLE),
    ],
)
def test_a_head_that_lies_is_refused_by_a_named_reason(fields: dict[str, object], reason: ModelRefusal) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        decode_vae(changed(**fields))
    assert caught.value.reason == reason


def test_a_newer_format_is_refused_as_such() -> None:
    data = WHOLE[: len(MAGIC)] + b"\x09" + WHOLE[len(MAGIC) + 1 :]
    with pytest.raises(ModelRefusedError) as caught:
        decode_vae(data)
    assert caught.value.reason == ModelRefusal.NEWER_FORMAT


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = dataclasses.replace(drawn(), output_bias=np.array([np.nan], np.float32))
    with pytest.raises(ModelRefusedError, match="output_bias") as caught:
        decode_vae(encode_vae(model))
    assert caught.value.reason == ModelRefusal.OUT_OF_RANGE


def test_a_window_with_a_missing_or_infinite_sample_has_no_answer_and_the_others_keep_theirs() -> None:
    windows = np.full((4, 8, 1), 0.5, np.float32)
    windows[1, 3], windows[2, 0] = np.nan, np.inf
    found = drawn().reconstruct(windows)

    assert np.isnan(found[[1, 2]]).all()
    assert (found[3] == found[0]).all()
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("value", [3e38, -3e38, 1e20])
def test_values_far_beyond_the_limits_give_numbers(value: float) -> None:
    scaled = Limits(0.0, 1.0).normalise(np.full((1, 8, 1), value, np.float32))

    assert np.isfinite(drawn().reconstruct(scaled)).all()


def test_windows_of_another_shape_are_an_error_that_says_which() -> None:
    with pytest.raises(ValueError, match=r"\(rows, 8, 1\) for metric_0"):
        drawn().reconstruct(np.zeros((3, 9, 1), np.float32))

"""A whole Minder model as a file."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.test_lstm_vae_file import drawn
from tocsin.models.lstm_vae import Limits, LstmVae
from tocsin.models.lstm_vae_file import encode_vae
from tocsin.models.minder import MinderConfig, MinderModel, Samples, Variant, detect
from tocsin.models.minder_file import FORMAT_VERSION, MAGIC, decode_live_minder, decode_minder, encode_minder
from tocsin.models.sealed import seal, unseal
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.metrics import BUILTIN_TABLE, Metric, possible_range
from tocsin.schemas.reasons import ModelRefusal, Reason

WATTS = Limits(0.0, 700.0)
"""Those of ``drawn``."""
LIMITS = {"metric_0": WATTS, "metric_1": WATTS}
MODEL = MinderModel(LIMITS, {"metric_0": drawn()}, drawn(2), ("metric_0",), 2.5, "v1")
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


def windows_of(vae: LstmVae, window_ticks: int) -> LstmVae:
    """The same weights for windows of another length."""
    return dataclasses.replace(vae, window_ticks=window_ticks)


def refusal_of(data: bytes) -> ModelRefusedError:
    with pytest.raises(ModelRefusedError) as caught:
        decode_minder(data)
    return caught.value


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"threshold_sigmas": 0.0}, "threshold_sigmas = 0: must be above 0"),
        ({"threshold_sigmas": math.nan}, "threshold_sigmas = nan: must be above 0 and finite"),
        ({"variant_sigmas": {"raw": math.inf}}, "variant_sigmas.raw = inf: must be above 0 and finite"),
        ({"variant_sigmas": {"row": 2.0}}, "variant_sigmas: no variant is called 'row'"),
        ({"priority": ()}, "priority = []: must name a metric"),
        ({"priority": ("metric_0", "metric_0")}, "priority names metric_0 2 times"),
        ({"priority": ("metric_0", "metric_1")}, "priority names metric_1: must be one that it has an LSTM-VAE of"),
        ({"single": {}}, "priority names metric_0: must be one that it has an LSTM-VAE of (it has none)"),
        ({"limits": {"metric_0": Limits(1.0, 1.0)}}, "limits of metric_0 = 1 to 1: must be finite and ascend"),
        ({"limits": {**LIMITS, "metric_7": Limits(2.0, 1.0)}}, "limits of metric_7 = 2 to 1: must be"),
        ({"limits": {"metric_0": Limits(0.0, math.inf)}}, "limits of metric_0 = 0 to inf: must be finite"),
        ({"limits": {"metric_0": Limits(-1e308, 1e308)}}, "limits of metric_0 = -1e+308 to 1e+308: must be finite"),
        ({"limits": {"metric_0": WATTS}}, "limits of metric_1 are missing"),
        ({"limits": {}}, "limits of metric_0 are missing"),
        ({"limits": {**LIMITS, "metric_0": Limits(0.0, 1.0)}}, "limits of metric_0 = 0 to 1: must be 0 to 700"),
        ({"single": {"metric_0": windows_of(drawn(), 16)}}, "LSTM-VAE of metric_0: window_ticks = 16: must be 8"),
        ({"integrated": windows_of(drawn(2), 4)}, "LSTM-VAE of metric_0, metric_1: window_ticks = 4: must be 8"),
    ],
)
def test_a_model_that_does_not_fit_together_is_refused_by_field_and_value(
    change: dict[str, Any], reported: str
) -> None:
    error = refusal_of(encode_minder(dataclasses.replace(MODEL, **change)))

    assert error.reason == ModelRefusal.OUT_OF_RANGE
    assert reported in str(error)


def with_limits(name: str, limits: Limits) -> MinderModel:
    """A model of one metric with these limits."""
    vae = dataclasses.replace(drawn(), metrics=(name,), limits=(limits,))
    return MinderModel({name: limits}, {name: vae}, None, (name,))


@pytest.mark.parametrize(
    ("name", "limits", "reported"),
    [
        ("gpu_power_watts", Limits(0.0, 5e-324), "= 0 to 4.94066e-324: must be 0.001 apart at least"),
        ("gpu_power_watts", Limits(1e9, 1e10), "= 1e+09 to 1e+10: must be within what it can be, 0 to 4000"),
        ("gpu_util_ratio", Limits(-5.0, -4.0), "= -5 to -4: must be within what it can be, 0 to 2"),
        ("gpu_util_ratio", Limits(0.5, 0.5 + 1e-9), "must be 0.001 apart at least"),
        ("own_metric", Limits(0.0, 1e-300), "= 0 to 1e-300: must be 1e-18 apart at least"),
        ("own_metric", Limits(-1e307, 1e307), "must be within what it can be, -1e+18 to 1e+18"),
    ],
)
def test_an_engine_takes_no_limits_between_which_the_metric_cannot_vary(
    name: str, limits: Limits, reported: str
) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        decode_live_minder(encode_minder(with_limits(name, limits)))

    assert caught.value.reason == ModelRefusal.OUT_OF_RANGE
    assert f"limits of {name} " in str(caught.value)
    assert reported in str(caught.value)


@pytest.mark.parametrize("metric", [*BUILTIN_TABLE.gpu, *BUILTIN_TABLE.host], ids=lambda metric: metric.name)
def test_an_engine_takes_the_limits_that_training_learns(metric: Metric) -> None:
    """Those of the table; where it has none, the largest sample, or one unit where nothing ever moved."""
    for most in (possible_range(metric)[1], 1.0):
        high = most if metric.high is None else metric.high
        decode_live_minder(encode_minder(with_limits(metric.name, Limits(metric.low or 0.0, high))))


def test_a_model_under_another_metrics_name_is_refused() -> None:
    single = {"metric_0": drawn(), "metric_5": drawn()}

    assert refusal_of(encode_minder(dataclasses.replace(MODEL, single=single))).reason == ModelRefusal.OTHER_METRIC


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"priority": "metric_0"}, "priority = 'metric_0': must be a list"),
        ({"priority": [7]}, "priority = '[7]': must be a list of metrics"),
        ({"threshold_sigmas": "2.5"}, "threshold_sigmas = '2.5': must be a number"),
        ({"threshold_sigmas": True}, "threshold_sigmas = 'True': must be a number"),
        ({"variant_sigmas": {"raw": None}}, "variant_sigmas.raw = 'None': must be a number"),
        ({"variant_sigmas": [2.0]}, "its head lacks or garbles"),
        ({"limits": {"metric_0": [0.0]}}, "limits of metric_0 = '[0.0]': must be two numbers"),
        ({"limits": {"metric_0": ["0", "700"]}}, "limits of metric_0 = '0': must be a number"),
        ({"limits": [["metric_0", 0.0, 700.0]]}, "its head lacks or garbles"),
    ],
)
def test_a_head_of_other_things_than_numbers_and_names_is_refused(change: dict[str, Any], reported: str) -> None:
    head, body = unseal(WHOLE, MAGIC, FORMAT_VERSION)
    error = refusal_of(seal(MAGIC, FORMAT_VERSION, {**head, **change}, body))

    assert error.reason == ModelRefusal.MODEL_UNDECODABLE
    assert reported in str(error)


def test_two_models_of_one_metric_are_refused() -> None:
    head, body = unseal(WHOLE, MAGIC, FORMAT_VERSION)
    first = encode_vae(drawn())
    parts = [["metric_0", len(first)], *head["parts"]]
    error = refusal_of(seal(MAGIC, FORMAT_VERSION, {**head, "parts": parts}, first + body))

    assert error.reason == ModelRefusal.MODEL_UNDECODABLE
    assert "parts name metric_0 2 times" in str(error)


@pytest.mark.parametrize("variant", ["vae", "concatenated", "integrated"])
def test_the_procedures_windows_go_through_what_was_read(variant: Variant) -> None:
    values = 300.0 + np.random.default_rng(0).standard_normal((4, 2, 60))
    samples = Samples(("metric_0", "metric_1"), values.astype(np.float32), 1.0)

    found = detect(samples, decode_minder(WHOLE), MinderConfig(variant)).reasons.values()

    assert set(found) <= {Reason.NOT_CONTINUOUS, Reason.THRESHOLD_UNREACHABLE}

"""A Bi-LSTM one-class file whose weights went to zero is refused by name; no data and no torch is needed for that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.models.bilstm_ocnn import ARRAYS, CollapseLines, OcnnModel, read_model
from tocsin.models.op_features import Vocabulary, feature_count
from tocsin.schemas.errors import ModelRefusedError

VOCABULARY = Vocabulary(("forward", "backward"))
FEATURES = feature_count(VOCABULARY.class_count)
STATES, OUTPUTS = 3, 4


def drawn() -> OcnnModel:
    """Weights that nobody trained."""
    rng = np.random.default_rng(0)
    lstm = {"input": (4 * STATES, FEATURES), "state": (4 * STATES, STATES), "bias": (4 * STATES,)}
    shapes = {f"{way}_{part}": shape for way in ("forward", "backward") for part, shape in lstm.items()}
    shapes |= {"V": (OUTPUTS, 2 * STATES), "w": (OUTPUTS,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"mean": np.zeros(FEATURES, np.float32), "deviation": np.ones(FEATURES, np.float32)}
    assert set(weights) == set(ARRAYS)
    return OcnnModel(VOCABULARY, 6, weights, 0.5, 1.0, 1.25, 0.01)


MODEL = drawn()


def times(*names: str, factor: float) -> OcnnModel:
    """The same with some weights that much larger."""
    changed = {name: MODEL.weights[name] * np.float32(factor) for name in names}
    return replace(MODEL, weights={**MODEL.weights, **changed})


def refusal_of(model: OcnnModel) -> tuple[str, str]:
    with pytest.raises(ModelRefusedError) as caught:
        read_model(model.to_bytes())
    return caught.value.reason, str(caught.value)


def test_weights_that_are_some_come_back() -> None:
    again = read_model(MODEL.to_bytes())

    assert all(np.array_equal(again.weights[name], MODEL.weights[name]) for name in ARRAYS)


@pytest.mark.parametrize("name", ["w", "V"])
@pytest.mark.parametrize("factor", [0.0, 1e-5, 1e-30])
def test_weights_that_went_to_zero_are_refused(name: str, factor: float) -> None:
    reason, text = refusal_of(times(name, factor=factor))

    assert reason == "collapsed_weights"
    assert text.startswith(f"|{name}| = ")
    assert text.endswith("below 0.001")


@pytest.mark.parametrize("name", ["w", "V"])
def test_the_line_is_the_documented_norm(name: str) -> None:
    norm = float(np.linalg.norm(MODEL.weights[name]))
    line = CollapseLines().min_weight_norm

    assert refusal_of(times(name, factor=0.99 * line / norm))[0] == "collapsed_weights"
    read_model(times(name, factor=1.01 * line / norm).to_bytes())


def test_without_an_input_no_state_knows_the_features() -> None:
    assert refusal_of(times("forward_input", "backward_input", factor=0.0))[0] == "collapsed_features"
    read_model(times("forward_input", factor=0.0).to_bytes())  # the other direction still reads them


def test_a_line_at_zero_and_weights_without_bound_are_refused() -> None:
    assert refusal_of(replace(MODEL, quantile_score=-1e-9)) == ("collapsed_weights", "|r| = 1e-09: below 0.001")
    for factor in (1e3, 1e37):
        assert refusal_of(times("w", factor=factor))[0] == "unbounded_weights"

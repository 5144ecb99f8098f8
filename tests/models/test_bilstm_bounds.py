"""Bounds of announced networks: each refusal by reason, field and value; what ships is within them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.models.plain_networks import plain_network
from tocsin.models.bilstm_bounds import MAX_SEQUENCE_COUNT, MAX_WORDS, MAX_WORK_COUNT, work_count
from tocsin.models.bilstm_file import decode_bilstm, decode_live_bilstm, encode_bilstm
from tocsin.models.bilstm_ocnn import OcnnModel, Singles
from tocsin.models.op_features import Vocabulary
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal

Change = Callable[[OcnnModel], OcnnModel]


def shipped() -> dict[str, OcnnModel]:
    payload = shipped_model("bilstm")
    assert payload is not None
    return decode_bilstm(payload)


def refusal_of(network: OcnnModel, family: str = "phases") -> tuple[str, str]:
    with pytest.raises(ModelRefusedError) as caught:
        decode_live_bilstm(encode_bilstm({family: network}))
    return caught.value.reason, str(caught.value)


def times(name: str, factor: float) -> Change:
    """The same with all weights of one array that much larger."""

    def change(network: OcnnModel) -> OcnnModel:
        scaled: Singles = network.weights[name] * np.float32(factor)
        return replace(network, weights={**network.weights, name: scaled})

    return change


def test_what_ships_is_within_and_costs_an_eighth_of_the_most() -> None:
    networks = shipped()

    assert set(decode_live_bilstm(encode_bilstm(networks))) == set(networks)
    assert 8 * work_count(networks["phases"]) <= MAX_WORK_COUNT


@pytest.mark.parametrize("family", ["phases", "collectives"])
@pytest.mark.parametrize("factor", [0.56, 0.75, 1.33, 1.78, 2.37])
def test_every_line_that_training_may_choose_is_within(family: str, factor: float) -> None:
    network = shipped()[family]

    decode_live_bilstm(encode_bilstm({family: replace(network, line_factor=factor * network.line_factor)}))


@pytest.mark.parametrize(
    ("change", "reason", "reported"),
    [
        ({"line_factor": 1e300}, ModelRefusal.OUT_OF_RANGE, "phases.line_factor = 1e+300: must be 0.5 to 64"),
        ({"line_factor": 1e-300}, ModelRefusal.OUT_OF_RANGE, "phases.line_factor = 1e-300: must be"),
        ({"line_factor": 5e-324}, ModelRefusal.OUT_OF_RANGE, "phases.line_factor = 4.94066e-324: must be"),
        ({"line_factor": 60.0}, ModelRefusal.BLIND_TO_SHUFFLED, "phases.line_factor = 60: must let 50% of nonsense"),
        ({"nu_ratio": 5.0}, ModelRefusal.OUT_OF_RANGE, "phases.nu_ratio = 5: must be above 0 and below 1"),
        ({"nu_ratio": 0.0}, ModelRefusal.OUT_OF_RANGE, "phases.nu_ratio = 0: must be"),
        ({"median_score": 1e30}, ModelRefusal.OUT_OF_RANGE, "phases.median_score = 1e+30: must be"),
        ({"quantile_score": -1e30}, ModelRefusal.OUT_OF_RANGE, "phases.quantile_score = -1e+30: must be"),
        ({"sequence_count": 13}, ModelRefusal.OUT_OF_RANGE, "phases.sequence_count = 13: must be 12 at most"),
    ],
)
def test_a_number_that_training_cannot_give_is_refused(
    change: dict[str, float], reason: ModelRefusal, reported: str
) -> None:
    found, text = refusal_of(replace(shipped()["phases"], **change))  # type: ignore[arg-type]

    assert found == reason
    assert reported in text


@pytest.mark.parametrize(
    ("change", "reason", "reported"),
    [
        (times("forward_input", 1e30), ModelRefusal.UNBOUNDED_WEIGHTS, "phases.forward_input = 1.2"),
        (times("backward_state", 1e4), ModelRefusal.UNBOUNDED_WEIGHTS, "phases.backward_state = "),
        (times("V", 1e5), ModelRefusal.UNBOUNDED_WEIGHTS, "phases.V = "),
        (times("deviation", 1e-38), ModelRefusal.OUT_OF_RANGE, "phases.deviation = "),
        (times("deviation", 1e30), ModelRefusal.OUT_OF_RANGE, "phases.deviation = "),
        (times("mean", 1e6), ModelRefusal.OUT_OF_RANGE, "phases.mean = "),
    ],
)
def test_weights_that_can_only_saturate_are_refused(change: Change, reason: ModelRefusal, reported: str) -> None:
    found, text = refusal_of(change(shipped()["phases"]))

    assert found == reason
    assert reported in text


def test_a_median_on_the_quantile_is_refused() -> None:
    network = shipped()["phases"]
    close = replace(network, median_score=network.quantile_score + 1e-9)

    assert refusal_of(close)[0] == ModelRefusal.COLLAPSED_SCORES


def test_a_network_that_sees_no_difference_is_refused() -> None:
    """Its line lies where its output cannot go, although each number for itself is one that training may give."""
    reason, text = refusal_of(replace(plain_network(Vocabulary(("a", "b"))), line_factor=2.5), "ops")

    assert reason == ModelRefusal.BLIND_TO_SHUFFLED
    assert "ops.line_factor = 2.5: must let 50% of nonsense stand out from a usual rank, 0% does" in text


@pytest.mark.parametrize(
    ("words", "size", "reported"),
    [
        (2, 65, "ops.hidden_size = 65: must be 64 at most"),
        (MAX_WORDS + 1, 1, "ops.words = 33: must be 32 at most"),
        (MAX_WORDS, 32, "ops.multiply-adds = "),
    ],
)
def test_a_network_that_costs_too_much_is_refused(words: int, size: int, reported: str) -> None:
    network = plain_network(Vocabulary(tuple(f"w{number}" for number in range(words))), size)
    network = replace(network, weights={**network.weights, "w": network.weights["w"] / np.float32(size)})
    reason, text = refusal_of(network, "ops")

    assert reason == ModelRefusal.OUT_OF_RANGE
    assert reported in text


def test_the_largest_that_training_makes_is_no_dearer_than_allowed() -> None:
    network = plain_network(Vocabulary(tuple(f"w{number}" for number in range(MAX_WORDS))), 16)

    assert work_count(network) <= MAX_WORK_COUNT
    assert network.sequence_count <= MAX_SEQUENCE_COUNT


@pytest.mark.parametrize("number", [10**30, 10**400])
def test_a_whole_number_beyond_all_floats_is_refused_and_no_crash(number: int) -> None:
    with pytest.raises(ModelRefusedError, match="line_factor = 1"):
        decode_live_bilstm(encode_bilstm({"phases": replace(shipped()["phases"], line_factor=number)}))

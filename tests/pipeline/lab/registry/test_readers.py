"""What a registry takes in or promotes, its detector can read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.test_bilstm_ocnn import times
from tests.pipeline.detect.learned.test_traces import network
from tests.pipeline.lab.registry.kit import (
    card,
    memory_store,
    minder_payload,
    payload_of,
)
from tocsin.models.bilstm_file import encode_bilstm
from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.lab.backtest.detector_sets import MODELS
from tocsin.pipeline.lab.registry import BUILTIN, Registry
from tocsin.pipeline.lab.registry.card import ModelCard, named, write_card
from tocsin.pipeline.lab.registry.readers import READERS
from tocsin.schemas.errors import ModelRefusedError

GOOD = {
    "peers": payload_of(),
    "steps": b'{"lines": {"max_lasting_seconds": 61.0}}',
    "minder": minder_payload(),
    "entropy": b'{"lines": {"max_sigmas": 5.0}}',
    "bilstm": encode_bilstm({"phases": network()}),
}
BAD = [
    *((detector, b"garbage", "model_undecodable") for detector in GOOD),
    ("minder", minder_payload(16), "out_of_range"),
    ("minder", minder_payload()[:-1], "hash_mismatch"),
    ("minder", minder_payload(hidden=17), "out_of_range"),
    ("minder", minder_payload(factor=1e5), "out_of_range"),
    ("entropy", b'{"lines": {"max_sigmas": 0.5}}', "out_of_range"),
    ("bilstm", encode_bilstm({"collectives": times("V", factor=0.0)}), "collapsed_weights"),
    ("bilstm", encode_bilstm({"phases": replace(network(), line_factor=900.0)}), "out_of_range"),
]


def card_of(detector: str) -> ModelCard:
    return card(detector, format=READERS[detector].format)


def test_each_detector_with_models_has_a_reader() -> None:
    assert set(READERS) == set(GOOD) == {*FORMATS, *MODELS}


@pytest.mark.parametrize("detector", GOOD)
def test_what_can_be_read_goes_in_and_is_promoted(detector: str) -> None:
    registry = Registry(memory_store())
    added = registry.add(card_of(detector), GOOD[detector])
    registry.promote(detector, added.version, {})

    assert registry.readable(detector, added.version) == GOOD[detector]
    assert registry.current(detector) == added


@pytest.mark.parametrize(("detector", "payload", "reason"), BAD)
def test_what_cannot_be_read_does_not_go_in(detector: str, payload: bytes, reason: str) -> None:
    registry = Registry(memory_store())
    with pytest.raises(ModelRefusedError) as caught:
        registry.add(card_of(detector), payload)

    assert caught.value.reason == reason
    assert [one for one in registry.cards(detector) if one.version != BUILTIN] == []


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize(("detector", "payload", "reason"), BAD)
def test_what_lies_there_and_cannot_be_read_is_not_promoted(
    detector: str, payload: bytes, reason: str, is_forced: bool, tmp_path: Path
) -> None:
    """As older programs put it in: hash, version and card agree."""
    whole = named(card_of(detector), payload)
    place = tmp_path / detector / whole.version
    place.mkdir(parents=True)
    (place / "model.bin").write_bytes(payload)
    (place / "card.json").write_bytes(write_card(whole))
    registry = Registry.open(str(tmp_path))
    with pytest.raises(ModelRefusedError, match=f"{detector} {whole.version}: ") as caught:
        registry.promote(detector, whole.version, {}, is_forced=is_forced)

    assert caught.value.reason == reason
    assert registry.promotion(detector) is None


@pytest.mark.parametrize(
    ("detector", "written", "reason"),
    [
        ("minder", "minder/2", "newer_format"),
        ("peers", "peers/2", "newer_format"),
        ("entropy", "minder/1", "unknown_format"),
        ("peers", "default/1", "unknown_format"),
    ],
)
def test_a_format_that_is_not_the_detectors_does_not_go_in(detector: str, written: str, reason: str) -> None:
    with pytest.raises(ModelRefusedError, match=written) as caught:
        Registry(memory_store()).add(card(detector, format=written), GOOD[detector])

    assert caught.value.reason == reason


def test_what_ships_is_read_too_before_it_is_promoted() -> None:
    registry = Registry(memory_store())
    for one in registry.cards():
        registry.promote(one.detector, BUILTIN, {})

    assert registry.readable("peers", BUILTIN) == b""
    assert registry.readable("minder", BUILTIN)

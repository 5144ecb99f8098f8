"""The entropy line as bytes: back as it was, and refused by name where it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.models.entropy import EntropyConfig
from tocsin.models.entropy_file import decode_entropy, encode_entropy
from tocsin.schemas.errors import ModelRefusedError


@pytest.mark.parametrize("line", [1.0, 5.3, 16.0])
def test_there_and_back(line: float) -> None:
    config = replace(EntropyConfig(), max_sigmas=line)

    assert decode_entropy(encode_entropy(config)) == config


def test_what_is_left_out_is_the_programs_own() -> None:
    assert decode_entropy(b"{}") == EntropyConfig()


@pytest.mark.parametrize(
    ("data", "reason", "reported"),
    [
        (encode_entropy(EntropyConfig())[:-3], "model_undecodable", "model"),
        (b"", "model_undecodable", "model"),
        (b'{"lines": {"max_sigma": 4}}', "model_undecodable", "lines.max_sigma"),
        (b'{"lines": {"max_sigmas": 0.5}}', "out_of_range", "lines.max_sigmas = 0.5: must be a number from 1 to 16"),
        (b'{"lines": {"max_sigmas": "4"}}', "model_undecodable", "lines.max_sigmas = '4'"),
        (b'{"working": {"alarm_sum": 4}}', "model_undecodable", "section = 'working'"),
    ],
)
def test_what_it_cannot_be(data: bytes, reason: str, reported: str) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        decode_entropy(data)

    assert caught.value.reason == reason
    assert reported in str(caught.value)

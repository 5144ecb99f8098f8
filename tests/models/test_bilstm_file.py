"""The file of the one-class networks: the same back, and a clear refusal of everything else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.plain_networks import plain_network
from tocsin.models.bilstm_file import FORMAT_VERSION, MAGIC, decode_bilstm, encode_bilstm
from tocsin.models.op_features import PHASES, Vocabulary
from tocsin.models.sealed import seal
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal

NETWORKS = {"ops": plain_network(Vocabulary(("a", "b"))), "phases": plain_network(Vocabulary(PHASES))}


def test_what_was_written_is_read_and_the_order_of_families_does_not_count() -> None:
    data = encode_bilstm(NETWORKS)
    again = decode_bilstm(data)
    sequences = np.random.default_rng(1).random((5, 6, 33), np.float32)

    assert encode_bilstm(dict(reversed(NETWORKS.items()))) == data == encode_bilstm(again)
    assert again["ops"].vocabulary.words == ("a", "b")
    assert again["ops"].scores(sequences).tolist() == NETWORKS["ops"].scores(sequences).tolist()


@pytest.mark.parametrize("length", [0, 10, 46, 200, -1])
def test_a_file_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ModelRefusedError, match="cut short"):
        decode_bilstm(encode_bilstm(NETWORKS)[:length])


@pytest.mark.parametrize(
    ("parts", "body", "reported"),
    [
        ([], b"", "each once"),
        ([["hosts", 3]], b"abc", "must be of phases, collectives, ops"),
        ([["ops", 1], ["ops", 2]], b"abc", "each once"),
        ([["ops", 4]], b"abc", "as many as its head says"),
        ([["ops", "many"]], b"abc", "lacks or garbles"),
        ("ops", b"abc", "lacks or garbles"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(parts: object, body: bytes, reported: str) -> None:
    with pytest.raises(ModelRefusedError, match=reported) as caught:
        decode_bilstm(seal(MAGIC, FORMAT_VERSION, {"parts": parts}, body))
    assert caught.value.reason == ModelRefusal.MODEL_UNDECODABLE


def test_a_network_of_phases_knows_the_phases() -> None:
    with pytest.raises(ModelRefusedError, match="vocabulary of phases"):
        decode_bilstm(encode_bilstm({"phases": NETWORKS["ops"]}))

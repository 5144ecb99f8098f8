"""The arithmetic of signing in: what the keys depend on, and what an opener lets through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.errors import IdentityError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.sign_in import TAG_BYTES, Opener, Sealer, Terms, session_keys

TERMS = Terms(b"e" * 32, b"a" * 32, "k-1", "agent", "node-1", "1.0")
SECRET = b"s" * 32


@pytest.mark.parametrize(
    "other",
    [
        replace(TERMS, engine_nonce=b"E" * 32),
        replace(TERMS, agent_nonce=b"A" * 32),
        replace(TERMS, key_id="k-2"),
        replace(TERMS, role="player"),
        replace(TERMS, host="node-2"),
        replace(TERMS, agent_version="1.1"),
        replace(TERMS, host="node-11.", agent_version="0"),
        replace(TERMS, key_id="k-1a", role="gent"),
    ],
)
def test_every_part_of_the_terms_changes_every_key(other: Terms) -> None:
    one, two = session_keys(SECRET, TERMS), session_keys(SECRET, other)
    keys = {one.proof, one.from_agent, one.from_engine, two.proof, two.from_agent, two.from_engine}
    assert len(keys) == 6


def test_another_secret_gives_other_keys() -> None:
    assert session_keys(SECRET, TERMS) != session_keys(b"t" * 32, TERMS)
    assert session_keys(SECRET, TERMS) == session_keys(SECRET, TERMS)


def test_no_repr_shows_a_key_of_the_sealer() -> None:
    assert "key" not in repr(Sealer(b"k" * 32))


def _sealed(count: int, key: bytes = b"k" * 32) -> list[bytes]:
    sealer = Sealer(key)
    return [data + sealer.tag(data) for data in (b"message %d" % number for number in range(count))]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_what_is_sealed_is_opened_in_its_order(messages: list[bytes]) -> None:
    sealer, opener = Sealer(b"k" * 32), Opener(b"k" * 32)
    assert [opener.open(data + sealer.tag(data)) for data in messages] == messages


def _refusal(opener: Opener, sealed: bytes) -> str:
    with pytest.raises(IdentityError) as raised:
        opener.open(sealed)
    return raised.value.reason


def test_each_misuse_has_its_name() -> None:
    opener, sealed = Opener(b"k" * 32), _sealed(5)
    opener.open(sealed[0])
    opener.open(sealed[1])
    assert _refusal(opener, sealed[0]) == IdentityRefusal.REPLAYED
    assert _refusal(opener, sealed[1]) == IdentityRefusal.REPLAYED
    assert _refusal(opener, sealed[3]) == IdentityRefusal.OUT_OF_ORDER
    assert _refusal(opener, sealed[2][:-TAG_BYTES]) == IdentityRefusal.MAC_MISSING
    assert _refusal(opener, b"") == IdentityRefusal.MAC_MISSING
    assert _refusal(opener, b"message 2 without any code") == IdentityRefusal.MAC_WRONG
    assert _refusal(opener, _sealed(5, b"o" * 32)[2]) == IdentityRefusal.MAC_WRONG
    assert opener.open(sealed[2]) == b"message 2"


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_is_let_through(at: int, flip: int) -> None:
    sealed = bytearray(_sealed(1)[0])
    sealed[at % len(sealed)] ^= flip
    assert _refusal(Opener(b"k" * 32), bytes(sealed)) == IdentityRefusal.MAC_WRONG

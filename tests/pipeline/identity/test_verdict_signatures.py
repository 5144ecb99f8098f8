"""A verdict is an engine's if its signature says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.kafka.kit import FaultyStore, topic
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.pipeline.identity.verdict_signatures import VerdictChecker, VerdictSigner, new_engine_key
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.kafka.verdict_sink import VerdictSink
from tocsin.pipeline.lab.testing.messages import MemoryBox, MemorySource
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import CredentialError, FieldError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal

NOW = 1_700_000_000 * 10**9
KEY, OTHER = new_engine_key("engine", NOW), new_engine_key("another", NOW)
CHECKER = VerdictChecker([public_half(KEY)])


def test_what_the_engine_signed_is_believed() -> None:
    assert CHECKER.check(b"verdict", VerdictSigner(KEY).header(b"verdict"), NOW) == KEY.key_id


@pytest.mark.parametrize(
    ("value", "header", "reason"),
    [
        (b"verdict", None, IdentityRefusal.UNSIGNED),
        (b"changed", VerdictSigner(KEY).header(b"verdict"), IdentityRefusal.BAD_SIGNATURE),
        (b"verdict", VerdictSigner(OTHER).header(b"verdict"), IdentityRefusal.UNKNOWN_KEY),
        (
            b"verdict",
            VerdictSigner(replace(OTHER, key_id=KEY.key_id)).header(b"verdict"),
            IdentityRefusal.BAD_SIGNATURE,
        ),
        (b"verdict", b"", IdentityRefusal.BAD_SIGNATURE),
        (b"verdict", b"\xff" * 200, IdentityRefusal.BAD_SIGNATURE),
        (b"verdict", f"{KEY.key_id} {'ab' * 63}".encode(), IdentityRefusal.BAD_SIGNATURE),
    ],
)
def test_what_it_did_not_sign_is_named(value: bytes, header: bytes | None, reason: IdentityRefusal) -> None:
    with pytest.raises(IdentityError) as caught:
        CHECKER.check(value, header, NOW)
    assert caught.value.reason == reason


def test_a_revoked_key_counts_for_what_it_said_before() -> None:
    checker = VerdictChecker([replace(public_half(KEY), revoked_ns=NOW)])
    header = VerdictSigner(KEY).header(b"v")
    assert checker.check(b"v", header, NOW - 1) == KEY.key_id
    with pytest.raises(IdentityError, match="revoked"):
        checker.check(b"v", header, NOW)


def test_the_public_half_signs_nothing() -> None:
    with pytest.raises(FieldError, match="private half"):
        VerdictSigner(public_half(KEY))


def test_the_newest_key_of_a_file_signs(tmp_path: Path) -> None:
    newer = new_engine_key("engine", NOW + 1)
    path = tmp_path / "keys" / "engine.json"
    write_credentials(path, (newer, KEY, new_credential(Role.AGENT, "n0", NOW + 2)))
    header = VerdictSigner.of_file(CredentialStore(path), NOW + 5).header(b"v")
    assert header.startswith(newer.key_id.encode())
    write_credentials(path, (new_credential(Role.AGENT, "n0", NOW),))
    with pytest.raises(CredentialError, match="private key of role engine"):
        VerdictSigner.of_file(CredentialStore(path), NOW)


def test_the_sink_writes_what_the_engine_signed_and_keeps_the_rest_as_dead_letters() -> None:
    import threading

    def signed(message: Message, key: object) -> Message:
        assert message.value is not None
        return replace(message, signature=VerdictSigner(key).header(message.value))  # type: ignore[arg-type]

    honest, forged, unsigned = topic(verdict("a"), verdict("b"), verdict("c"))
    stop, store, box = threading.Event(), FaultyStore(), MemoryBox()
    source = MemorySource([signed(honest, KEY), signed(forged, OTHER), unsigned], when_empty=stop.set)
    VerdictSink(source, store, box, TopicSinkConfig(check=CHECKER.check)).run(stop)
    assert [one.verdict_id for one in store.verdicts] == ["a"]
    assert [dead_letter.reason for dead_letter in box.dead_letters] == [
        IdentityRefusal.UNKNOWN_KEY,
        IdentityRefusal.UNSIGNED,
    ]

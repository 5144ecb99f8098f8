"""Who asks over Kafka: only an operator whose key counts, for the very words that were signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schemas.test_operator_requests import ASKED
from tocsin.pipeline.identity.operator_check import OperatorChecker, actor_of
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential
from tocsin.schemas.errors import IdentityError
from tocsin.schemas.operator_requests import encode_request, request_signature
from tocsin.schemas.reasons import IdentityRefusal as Why

ANN, AGENT = new_credential(Role.OPERATOR, "ann", 1), new_credential(Role.AGENT, "n0", 1)
GONE = Credential("k-gone", Role.OPERATOR, "bob", b"x" * 32, b"", 1, 50)
STRANGER = new_credential(Role.OPERATOR, "eve", 1)
VALUE = encode_request(ASKED)


@pytest.fixture
def checker(tmp_path: Path) -> OperatorChecker:
    write_credentials(tmp_path / "all.json", (ANN, AGENT, GONE))
    return OperatorChecker(CredentialStore(tmp_path / "all.json"))


def test_an_operator_is_believed_and_named(checker: OperatorChecker) -> None:
    found = checker.check(VALUE, request_signature(VALUE, ANN), 60)
    assert (found, actor_of(found)) == (ANN, "operator:ann")
    assert checker.check(VALUE, request_signature(VALUE, GONE), 49) == GONE


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, Why.UNSIGNED),
        (b"", Why.UNKNOWN_KEY),
        (request_signature(VALUE, STRANGER), Why.UNKNOWN_KEY),
        (request_signature(VALUE + b" ", ANN), Why.BAD_SIGNATURE),
        (ANN.key_id.encode() + b" zz", Why.BAD_SIGNATURE),
        (request_signature(VALUE, GONE), Why.KEY_REVOKED),
        (request_signature(VALUE, AGENT), Why.ROLE_REFUSED),
    ],
    ids=["unsigned", "empty", "stranger", "changed", "garbled", "revoked", "agent"],
)
def test_anybody_else_is_refused_by_name(checker: OperatorChecker, header: bytes | None, reason: Why) -> None:
    with pytest.raises(IdentityError) as refused:
        checker.check(VALUE, header, 60)
    assert refused.value.reason == reason


def test_a_key_that_is_revoked_meanwhile_counts_no_more(checker: OperatorChecker, tmp_path: Path) -> None:
    header = request_signature(VALUE, ANN)
    checker.check(VALUE, header, 60)
    write_credentials(tmp_path / "all.json", (Credential(ANN.key_id, ANN.role, "ann", ANN.secret, b"", 1, 55),))
    with pytest.raises(IdentityError) as refused:
        checker.check(VALUE, header, 60)
    assert refused.value.reason == Why.KEY_REVOKED

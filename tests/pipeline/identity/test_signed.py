"""Who may say what in a record that comes over Kafka."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.model_announcements import announced
from tocsin.pipeline.identity.action_records import ActionRecordSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.identity.signed import SignatureConfig, SignedRecords
from tocsin.schemas.action_records import action_event
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine
from tocsin.schemas.credential_store import CredentialStore, change, write_credentials
from tocsin.schemas.credentials import ANY_NAME, Credential, Role, new_credential
from tocsin.schemas.errors import CredentialError, IdentityError
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.records import Event, JobKey, Record, Tick
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.codec import encode

NOW = 1_700_000_000 * 10**9
N0, N1 = (new_credential(Role.AGENT, host, NOW) for host in ("n0", "n1"))
PLAYER, TRAINER = new_credential(Role.PLAYER, ANY_NAME, NOW), new_credential(Role.TRAINER, "ml", NOW)
SCHEDULER, EVERY = new_credential(Role.SCHEDULER, "slurm", NOW), new_credential(Role.AGENT, ANY_NAME, NOW)
STRANGER = new_credential(Role.AGENT, "n0", NOW)
OLD = replace(new_credential(Role.AGENT, "n0", NOW), revoked_ns=NOW - 1)
MODEL = announced(NOW, 60, 105, {})


def event(host: str = "n0", source: EventSource = EventSource.PROCESS) -> Event:
    return Event(JobKey("c", "j", 0), host, NOW, 0, source, "exit", Severity.ERROR, {"code": 1})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "credentials.json"
    write_credentials(path, (N0, N1, PLAYER, TRAINER, SCHEDULER, EVERY, OLD))
    return path


def reason_of(guard: SignedRecords, record: Record, data: bytes) -> str:
    with pytest.raises(IdentityError) as caught:
        guard.check(record, data)
    return caught.value.reason


@pytest.mark.parametrize(
    ("record", "signer"),
    [
        (event(), N0),
        (event("n1"), N1),
        (event("n1", EventSource.SCHEDULER), SCHEDULER),
        (MODEL, TRAINER),
    ],
    ids=["n0", "n1", "scheduler", "trainer"],
)
def test_who_speaks_of_what_is_theirs_is_heard(file: Path, record: Record, signer: Credential) -> None:
    SignedRecords(CredentialStore(file)).check(record, sign_record(encode(record), signer))


@pytest.mark.parametrize(
    ("record", "signer", "reason"),
    [
        (event("n1"), N0, IdentityRefusal.RECORD_HOST),
        (event(), STRANGER, IdentityRefusal.UNKNOWN_KEY),
        (event(), OLD, IdentityRefusal.KEY_REVOKED),
        (event(), PLAYER, IdentityRefusal.PLAYER_REFUSED),
        (event(), EVERY, IdentityRefusal.NOT_LOCAL),
        (event(), TRAINER, IdentityRefusal.ROLE_REFUSED),
        (event(), SCHEDULER, IdentityRefusal.ROLE_REFUSED),
        (event("n0", EventSource.SCHEDULER), N0, IdentityRefusal.ROLE_REFUSED),
        (MODEL, N0, IdentityRefusal.MODEL_REFUSED),
        (MODEL, replace(N0, secret=N1.secret), IdentityRefusal.BAD_SIGNATURE),
        (event(), replace(N0, secret=N1.secret), IdentityRefusal.BAD_SIGNATURE),
    ],
)
def test_who_speaks_of_something_else_is_named(
    file: Path, record: Record, signer: Credential, reason: IdentityRefusal
) -> None:
    guard = SignedRecords(CredentialStore(file))
    assert reason_of(guard, record, sign_record(encode(record), signer)) == reason


def test_without_a_signature_nobody_is_heard(file: Path) -> None:
    guard = SignedRecords(CredentialStore(file))
    assert reason_of(guard, event(), encode(event())) == IdentityRefusal.UNSIGNED
    assert reason_of(guard, MODEL, encode(MODEL)) == IdentityRefusal.UNSIGNED


def test_a_signature_is_of_its_record_only(file: Path) -> None:
    guard = SignedRecords(CredentialStore(file))
    forged, honest = encode(event()), encode(replace(event(), payload={"code": 0}))
    moved = sign_record(forged, N0)[: len(forged)] + sign_record(honest, N0)[len(honest) :]
    assert reason_of(guard, event(), moved) == IdentityRefusal.BAD_SIGNATURE


def test_a_player_is_heard_where_the_job_was_told_so(file: Path) -> None:
    guard = SignedRecords.of_config(SignatureConfig(str(file), allow_player=True))
    assert guard is not None
    guard.check(event("n7"), sign_record(encode(event("n7")), PLAYER))


def test_a_tick_needs_no_signature(file: Path) -> None:
    SignedRecords(CredentialStore(file)).check(Tick(NOW), encode(Tick(NOW)))


def test_a_revocation_counts_without_a_restart(file: Path) -> None:
    guard, data = SignedRecords(CredentialStore(file)), sign_record(encode(event()), N0)
    guard.check(event(), data)
    write_credentials(file, (replace(N0, revoked_ns=NOW), N1))
    guard.refresh()
    assert reason_of(guard, event(), data) == IdentityRefusal.KEY_REVOKED


def test_no_file_asked_for_checks_nothing() -> None:
    assert SignedRecords.of_config(SignatureConfig()) is None


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match=r"absent\.json"):
        SignedRecords.of_config(SignatureConfig(str(tmp_path / "absent.json")))


def test_a_trainer_s_key_counts_until_its_model_would_be_used(file: Path) -> None:
    """Whoever stole a revoked key writes any time into the announcement."""
    write_credentials(file, (replace(TRAINER, revoked_ns=MODEL.effective_ns - 1),))
    guard = SignedRecords(CredentialStore(file))
    assert MODEL.ts_ns < MODEL.effective_ns - 1
    assert reason_of(guard, MODEL, sign_record(encode(MODEL), TRAINER)) == IdentityRefusal.KEY_REVOKED


def told(signer: Credential | None) -> Event:
    """What a controller tells a job of an action, signed by some key."""
    target = ActionTarget(JobKey("c", "j", 0), None, (Machine("n0"),))
    words = ("hang", "named", "hang")
    approved = ActionState.APPROVED
    action = Action("a" * 32, "v", 0, ActionKind.RESTART, target, *words, NOW, NOW + 1, approved, "allowed", NOW)
    plain = action_event(action, NOW)
    return plain if signer is None else ActionRecordSigner(signer).signed(plain)


def test_only_a_controller_tells_a_job_of_actions_with_its_own_key(file: Path) -> None:
    own, other = (new_signing_key(Role.CONTROLLER, name, NOW - 1) for name in ("controller", "forger"))
    change(file, lambda before: (*before, public_half(own)))
    guard, signed = SignedRecords(CredentialStore(file)), told(own)

    guard.check(signed, encode(signed))
    forged = replace(signed, payload={**signed.payload, "state": "cancelled"})
    assert reason_of(guard, forged, encode(forged)) == IdentityRefusal.BAD_SIGNATURE
    assert reason_of(guard, told(other), encode(told(other))) == IdentityRefusal.UNKNOWN_KEY
    assert reason_of(guard, told(None), encode(told(None))) == IdentityRefusal.UNSIGNED
    assert reason_of(guard, signed, sign_record(encode(signed), N0)) == IdentityRefusal.ROLE_REFUSED

    change(file, lambda before: tuple(one for one in before if one.key_id != own.key_id))
    guard.refresh()
    assert reason_of(guard, signed, encode(signed)) == IdentityRefusal.UNKNOWN_KEY

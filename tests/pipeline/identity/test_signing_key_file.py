"""Who signs takes a new key from its file as it runs; a broken file leaves the key that it had, and says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.pipeline.identity.action_records import ActionRecordSigner
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionSigner
from tocsin.pipeline.identity.key_trouble import KeyFileTrouble, key_file_families
from tocsin.pipeline.identity.message_signatures import SigningKeyFile, new_signing_key, public_half
from tocsin.pipeline.identity.verdict_signatures import VerdictChecker, VerdictSigner
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import CredentialError

OLD, NEW = (new_signing_key(Role.EXECUTOR, "slurm", number) for number in (1, 2))


def _signs_with(signer: AckSigner) -> str:
    """Id of the key that signs now."""
    return signer.header(b"{}").decode().partition(" ")[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the old key."""
    found = tmp_path / "own.json"
    write_credentials(found, (OLD,))
    return found


@pytest.fixture
def signer(path: Path) -> AckSigner:
    """A signer that follows the file."""
    own = SigningKeyFile(path, Role.EXECUTOR)
    return AckSigner(own.now()).follow(own)


def test_a_new_key_signs_from_the_next_message_on(path: Path, signer: AckSigner) -> None:
    assert _signs_with(signer) == OLD.key_id
    write_credentials(path, (OLD, NEW))
    assert _signs_with(signer) == NEW.key_id
    write_credentials(path, (OLD, replace(NEW, revoked_ns=3)))
    assert _signs_with(signer) == OLD.key_id
    assert signer.credential.key_id == OLD.key_id


def test_a_signer_that_follows_no_file_keeps_its_key(path: Path) -> None:
    signer = AckSigner(OLD)
    write_credentials(path, (NEW,))

    assert _signs_with(signer) == OLD.key_id


@pytest.mark.parametrize("how", ["malformed", "missing", "open to others", "of another", "of another role", "public"])
def test_what_cannot_sign_leaves_the_key_and_says_so_once(
    path: Path, signer: AckSigner, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = {
        "of another": new_signing_key(Role.EXECUTOR, "kube", 3),
        "of another role": new_signing_key(Role.OPERATOR, "slurm", 3),
        "public": public_half(NEW),
    }
    if how in others:
        write_credentials(path, (others[how],))
    elif how == "missing":
        path.unlink()
    elif how == "malformed":
        path.write_text("[")
    else:
        path.chmod(0o644)
    with caplog.at_level(logging.ERROR, "tocsin.identity"):
        assert [_signs_with(signer) for _ in range(3)] == [OLD.key_id] * 3
    wanted = KeyFileTrouble.WITHOUT_KEYS if how in others else KeyFileTrouble.UNUSABLE
    assert [getattr(one, "reason", "") for one in caplog.records] == [wanted.value]
    assert signer.key_file is not None
    [family] = key_file_families([signer.key_file])
    assert [one.labels["reason"] for one in family.samples if one.value] == [wanted.value]


def test_a_file_that_is_right_again_counts_again(path: Path, signer: AckSigner) -> None:
    path.unlink()
    assert _signs_with(signer) == OLD.key_id
    write_credentials(path, (NEW,))

    assert _signs_with(signer) == NEW.key_id
    assert signer.key_file is not None
    assert signer.key_file.trouble is None


def test_a_file_without_a_key_of_the_role_is_refused_at_the_start(path: Path) -> None:
    with pytest.raises(CredentialError, match="role controller"):
        SigningKeyFile(path, Role.CONTROLLER)


def test_engines_and_controllers_follow_their_files_too(tmp_path: Path) -> None:
    engines = [new_signing_key(Role.ENGINE, "fleet", number) for number in (1, 2)]
    controllers = [new_signing_key(Role.CONTROLLER, "c1", number) for number in (1, 2)]
    path, other = tmp_path / "engine.json", tmp_path / "controller.json"
    write_credentials(path, (engines[0],))
    write_credentials(other, (controllers[0],))
    verdicts = VerdictSigner.of_file(CredentialStore(path), 5)
    own = SigningKeyFile(other, Role.CONTROLLER)
    actions = ActionSigner(own.now()).follow(own)
    records = ActionRecordSigner(actions.credential).follow(actions.key_file)
    write_credentials(path, tuple(engines))
    write_credentials(other, tuple(controllers))
    found = [one.header(b"{}").decode().partition(" ")[0] for one in (verdicts, actions, records)]

    assert found == [engines[1].key_id, controllers[1].key_id, controllers[1].key_id]
    assert VerdictChecker(engines).check(b"{}", verdicts.header(b"{}"), 5) == engines[1].key_id

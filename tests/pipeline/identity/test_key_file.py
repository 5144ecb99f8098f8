"""Key files are read again when they change; a broken one leaves the keys and says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.pipeline.identity.gate import Gate, GateConfig
from tocsin.pipeline.identity.key_file import ActionKeys, VerdictKeys
from tocsin.pipeline.identity.key_trouble import KeyFileTrouble, key_file_families
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.identity.signed import SignedRecords
from tocsin.pipeline.identity.verdict_signatures import VerdictSigner
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import IdentityError

OLD, NEW = (new_signing_key(Role.ENGINE, f"engine{number}", 1) for number in range(2))
VERDICT = b"{}"


def _may_sign(keys: VerdictKeys) -> list[bool]:
    """Whether the old key and the new one are believed."""
    found = []
    for key in (OLD, NEW):
        try:
            keys(VERDICT, VerdictSigner(key).header(VERDICT), 2)
        except IdentityError:
            found.append(False)
        else:
            found.append(True)
    return found


def _reported(keys: VerdictKeys) -> list[str]:
    """The reasons that the metric has."""
    [family] = key_file_families([keys])
    assert {one.labels["file"] for one in family.samples} == {keys.path}
    assert {one.labels["reason"] for one in family.samples} == {one.value for one in KeyFileTrouble}
    return [one.labels["reason"] for one in family.samples if one.value]


def test_a_key_that_comes_counts_and_one_that_is_revoked_or_gone_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_credentials(path, (public_half(OLD),))
    keys = VerdictKeys(path)
    assert _may_sign(keys) == [True, False]
    write_credentials(path, (public_half(OLD), public_half(NEW)))
    assert _may_sign(keys) == [True, True]
    write_credentials(path, (replace(public_half(OLD), revoked_ns=2), public_half(NEW)))
    assert _may_sign(keys) == [False, True]
    write_credentials(path, (public_half(OLD),))
    assert _may_sign(keys) == [True, False]
    assert _reported(keys) == []


@pytest.mark.parametrize("how", ["malformed", "missing", "open to others"])
def test_a_file_that_cannot_be_used_leaves_the_keys_and_says_so_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    write_credentials(path, (public_half(OLD),))
    keys = VerdictKeys(path)
    if how == "malformed":
        path.write_text("[")
    elif how == "missing":
        path.unlink()
    else:
        path.chmod(0o644)
    with caplog.at_level(logging.INFO, "tocsin.identity"):
        for _ in range(3):
            assert _may_sign(keys) == [True, False]
    [line] = caplog.records
    assert (line.levelname, getattr(line, "reason", "")) == ("ERROR", "key_file_unusable")
    assert "keys.json" in getattr(line, "error", "")
    assert _reported(keys) == ["key_file_unusable"]

    write_credentials(path, (public_half(NEW),))
    assert _may_sign(keys) == [False, True]
    assert (_reported(keys), keys.trouble) == ([], None)


def test_a_file_without_such_keys_believes_nobody_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_credentials(path, (public_half(OLD),))
    keys = VerdictKeys(path)
    write_credentials(path, (public_half(new_signing_key(Role.CONTROLLER, "c", 1)),))
    assert _may_sign(keys) == [False, False]
    assert _reported(keys) == ["key_file_without_keys"]


def test_actions_are_checked_with_the_present_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_credentials(path, (public_half(OLD),))
    keys = ActionKeys(path)
    assert keys.now().key_ids == ()
    controller = new_signing_key(Role.CONTROLLER, "c", 1)
    write_credentials(path, (public_half(controller),))
    assert keys.now().key_ids == (controller.key_id,)


@pytest.mark.parametrize("what", ["gate", "records"])
def test_the_gate_and_the_check_of_records_say_what_became_of_their_file(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tocsin.identity")
    path = tmp_path / "keys.json"
    write_credentials(path, (public_half(OLD),))
    store = CredentialStore(path)
    gate, records = Gate(GateConfig(store)), SignedRecords(store)
    refresh = gate.refresh if what == "gate" else records.refresh
    refresh()
    assert caplog.messages == []
    write_credentials(path, (public_half(OLD), public_half(NEW)))
    refresh()
    path.write_text("{")
    for _ in range(3):
        refresh()
    assert caplog.messages == ["keys read again", "a key file is wrong"]
    assert getattr(caplog.records[-1], "reason", "") == KeyFileTrouble.UNUSABLE.value
    assert gate.key_file is not None
    assert gate.key_file.trouble is (KeyFileTrouble.UNUSABLE if what == "gate" else None)
    write_credentials(path, (public_half(NEW),))
    refresh()
    assert caplog.messages[2:] == ["keys read again", "the key file can be used again"]


def test_a_gate_without_credentials_is_well_and_two_checkers_of_a_file_are_one_series(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_credentials(path, ())
    gate = Gate(GateConfig(CredentialStore(path)))
    gate.refresh()
    assert gate.key_file is not None
    assert gate.key_file.trouble is None
    [family] = key_file_families([gate.key_file, VerdictKeys(path)])
    assert {one.labels["reason"]: one.value for one in family.samples} == {
        KeyFileTrouble.UNUSABLE.value: 0,
        KeyFileTrouble.WITHOUT_KEYS.value: 1,
    }
    assert len(family.samples) == len(KeyFileTrouble)

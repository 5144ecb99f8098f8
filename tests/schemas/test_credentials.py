"""Credentials: the file's text, and who may read the file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.credential_store import CredentialStore, change, check_private, read_credentials, write_credentials
from tocsin.schemas.credentials import Credential, Role, format_credentials, new_credential, parse_credentials
from tocsin.schemas.errors import CredentialError

SECRET = bytes(range(32))
ONE = Credential("k-1", Role.AGENT, "node-1", SECRET, b"", 5)


def _names() -> st.SearchStrategy[str]:
    return st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable() and text == text.strip())


@st.composite
def _credentials(draw: st.DrawFn) -> Credential:
    secret = draw(st.binary(min_size=16, max_size=64))
    public_key = draw(st.sampled_from([b"", b"p" * 32]))
    times = st.integers(0, 2**63 - 1)
    key_id = draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
    return Credential(key_id, draw(st.sampled_from(Role)), draw(_names()), secret, public_key, draw(times), draw(times))


@given(st.lists(_credentials(), max_size=5, unique_by=lambda one: one.key_id))
def test_what_is_written_is_read(credentials: list[Credential]) -> None:
    assert parse_credentials(format_credentials(credentials), "f") == tuple(credentials)


def _changed(**values: object) -> str:
    entry = {"key_id": "k", "role": "agent", "name": "n", "secret": SECRET.hex(), "created_ns": 1, **values}
    entry = {name: value for name, value in entry.items() if value is not ...}
    good = {"key_id": "ok", "role": "agent", "name": "n", "secret": SECRET.hex(), "created_ns": 1}
    return json.dumps({"version": 1, "credentials": [good, entry]})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"key_id": "a b"}, "key_id"),
        ({"key_id": ""}, "key_id"),
        ({"key_id": ...}, "key_id"),
        ({"key_id": "ok"}, "key_id"),
        ({"role": "root"}, "role"),
        ({"role": ["agent"]}, "role"),
        ({"name": "a\nb"}, "name"),
        ({"name": " a"}, "name"),
        ({"name": "\u202eb"}, "name"),
        ({"name": 7}, "name"),
        ({"secret": "zz"}, "secret"),
        ({"secret": "00"}, "secret"),
        ({"secret": SECRET.hex() + "0"}, "secret"),
        ({"secret": 5}, "secret"),
        ({"secret": ...}, "secret"),
        ({"public_key": "00"}, "public_key"),
        ({"created_ns": "1"}, "created_ns"),
        ({"created_ns": -1}, "created_ns"),
        ({"revoked_ns": 10**30}, "revoked_ns"),
        ({"revoked": 1}, "revoked"),
    ],
)
def test_an_error_names_file_entry_and_field(values: dict[str, object], field: str) -> None:
    with pytest.raises(CredentialError) as raised:
        parse_credentials(_changed(**values), "creds.json")
    error = raised.value
    assert (error.file, error.entry, error.field) == ("creds.json", 1, field)
    assert str(error).startswith(f"creds.json, entry 1, field {field}: must be ")
    assert SECRET.hex() not in str(error)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "credentials": []}', '{"version": 1}', '{"version": true, "credentials": []}',
     '{"version": 1, "credentials": [1]}', "[" * 100_000, '{"version": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_what_is_no_file_of_credentials_is_refused(text: str) -> None:
    with pytest.raises(CredentialError, match="f"):
        parse_credentials(text, "f")


def test_no_repr_shows_a_secret() -> None:
    assert SECRET.hex() not in repr(ONE)
    assert "secret" not in repr(ONE)


def test_a_revoked_credential_counts_until_then() -> None:
    revoked = Credential("k", Role.AGENT, "n", SECRET, b"", 0, 100)
    assert revoked.is_valid(99)
    assert not revoked.is_valid(100)
    assert ONE.is_valid(2**62)


def test_a_new_credential_is_like_no_other() -> None:
    many = [new_credential(Role.AGENT, "n", 1) for _ in range(50)]
    assert len({one.secret for one in many}) == len({one.key_id for one in many}) == 50


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c.json"
    write_credentials(path, (ONE,))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_credentials(path) == (ONE,)
    assert [file.name for file in path.parent.iterdir()] == ["c.json"]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o660, 0o606, 0o644])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "c.json"
    write_credentials(path, (ONE,))
    path.chmod(mode)
    if os.geteuid() == 0 and mode == 0o640:
        pytest.skip("root's file may be read by a group: that is how Kubernetes mounts a Secret")
    with pytest.raises(CredentialError, match="closed to others"):
        read_credentials(path)


@pytest.mark.parametrize(
    ("uid", "mode", "is_good"),
    [(0, 0o440, True), (0, 0o640, True), (0, 0o460, False), (0, 0o444, False), (1234, 0o400, True),
     (1234, 0o440, False), (4321, 0o400, False)],
)  # fmt: skip
def test_whose_file_may_be_read(monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, *, is_good: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    found = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, uid, 0, 0, 0, 0, 0))
    if is_good:
        check_private(found, "f")
        return
    with pytest.raises(CredentialError):
        check_private(found, "f")


def test_a_pipe_or_folder_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(CredentialError):
            CredentialStore(path)


def test_a_change_is_seen_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_credentials(path, (ONE,))
    store = CredentialStore(path)
    assert not store.refresh()
    change(path, lambda all_: tuple(Credential(o.key_id, o.role, o.name, o.secret, b"", 5, 9) for o in all_))
    assert store.refresh()
    found = store.find("k-1")
    assert found is not None
    assert not found.is_valid(10)
    assert store.valid(10) == ()


def test_a_file_that_became_unusable_changes_nothing_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_credentials(path, (ONE,))
    store = CredentialStore(path)
    path.chmod(0o644)
    assert not store.refresh()
    assert "closed to others" in store.trouble
    assert store.find("k-1") == ONE
    path.chmod(0o600)
    store.refresh()
    assert store.trouble == ""
    path.unlink()
    store.refresh()
    assert store.trouble


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    write_credentials(path, (ONE,))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CredentialError, match="No space left"):
        write_credentials(path, ())
    assert read_credentials(path) == (ONE,)
    assert [file.name for file in tmp_path.iterdir()] == ["c.json"]


def test_a_file_may_come_later_and_may_not_go(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    store = CredentialStore(path, may_come_later=True)
    assert (store.refresh(), store.trouble, store.all()) == (False, "", ())
    write_credentials(path, (ONE,))
    assert store.refresh()
    assert store.find("k-1") == ONE
    path.unlink()
    assert not store.refresh()
    assert store.trouble
    assert store.find("k-1") == ONE

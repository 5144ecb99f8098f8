"""``tocsin token``: credentials are issued, listed, rotated and revoked; secrets are shown to nobody else."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.schemas.credential_store import read_credentials
from tocsin.schemas.credentials import Role, parse_credentials


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOCSIN_DATA", str(tmp_path))
    monkeypatch.delenv("TOCSIN_CREDENTIALS", raising=False)
    return tmp_path / "credentials.json"


def test_a_credential_is_issued_to_host_and_engine(data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "n0.json"
    assert main(["token", "issue", "n0", "--out", str(mine)]) == 0
    (one,) = read_credentials(mine)
    assert read_credentials(data) == (one,)
    assert (one.name, one.role, len(one.secret)) == ("n0", Role.AGENT, 32)
    assert stat.S_IMODE(mine.stat().st_mode) == stat.S_IMODE(data.stat().st_mode) == 0o600


def test_without_a_file_it_goes_to_standard_output(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "issue", "n0", "--role", "scheduler"]) == 0
    reported = capsys.readouterr()
    assert parse_credentials(reported.out, "-") == read_credentials(data)
    assert read_credentials(data)[0].secret.hex() not in reported.err


def test_a_host_has_one_until_it_is_rotated(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["token", "issue", "n0"])
    assert main(["token", "issue", "n0"]) == 2
    assert "tocsin token rotate" in capsys.readouterr().err
    assert main(["token", "rotate", "n0"]) == 0
    old, new = read_credentials(data)
    now_ns = time.time_ns()
    assert old.is_valid(now_ns)
    assert new.is_valid(now_ns)
    assert main(["token", "revoke", old.key_id]) == 0
    assert [one.is_valid(time.time_ns()) for one in read_credentials(data)] == [False, True]


def test_grace_ends_the_old_one_by_itself(data: Path) -> None:
    main(["token", "issue", "n0"])
    before_ns = time.time_ns()
    assert main(["token", "rotate", "n0", "--grace", "3600"]) == 0
    old, new = read_credentials(data)
    assert old.is_valid(before_ns + 3599 * 10**9)
    assert not old.is_valid(time.time_ns() + 3601 * 10**9)
    assert new.revoked_ns == 0


def test_the_list_shows_no_secret(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["token", "issue", "n0"])
    main(["token", "issue", "desk", "--role", "player"])
    main(["token", "revoke", read_credentials(data)[0].key_id])
    capsys.readouterr()
    assert main(["token", "list"]) == 0
    text = capsys.readouterr().out
    assert main(["token", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["role"], row["state"]) for row in rows] == [
        ("n0", "agent", "revoked"),
        ("desk", "player", "valid"),
    ]
    assert "revoked" in text
    for one in read_credentials(data):
        assert one.key_id in text
        assert one.secret.hex() not in text + str(rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["issue", ""], "HOST"),
        (["issue", "*"], "one host's name"),
        (["issue", "a\nb"], "HOST"),
        (["rotate", "n9"], "tocsin token issue"),
        (["revoke", "k-none"], "KEY_ID"),
    ],
)
def test_what_cannot_be_is_said(data: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["token", *words]) == 2
    assert said in capsys.readouterr().err
    assert not data.exists() or read_credentials(data) == ()


def test_a_file_that_cannot_be_used_is_left_as_it_is(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["token", "issue", "n0"])
    data.write_text("{")
    assert main(["token", "issue", "n1"]) == 2
    assert str(data) in capsys.readouterr().err
    assert data.read_text() == "{"

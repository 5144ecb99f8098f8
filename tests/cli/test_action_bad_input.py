"""Wrong files and flags of the commands that act: one line that names what is wrong, and status 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role

NOWHERE = ["--kafka", "127.0.0.1:1"]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that must end with status 2, and return the last line that it says."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    write_credentials(tmp_path / "token.json", (new_signing_key(Role.EXECUTOR, "slurm", 1),))
    write_credentials(tmp_path / "operator.json", (new_signing_key(Role.OPERATOR, "ann", 1),))
    write_credentials(tmp_path / "keys.json", (public_half(new_signing_key(Role.CONTROLLER, "controller", 1)),))

    def run(*words: str) -> str:
        assert main(list(words)) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err.splitlines()[-1]

    return run


@pytest.mark.parametrize("command", [["policy", "check"], ["controller", *NOWHERE, "--policy"]])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda text: text.replace("\nrules:", "\nruless:", 1), "ruless"),
        (lambda text: f"{text}\nnot: [closed\n", "must be YAML"),
    ],
)
def test_a_policy_with_a_typo_is_refused_with_its_line(
    refused: Callable[..., str], tmp_path: Path, command: list[str], wrong: Callable[[str], str], said: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(wrong(DEFAULT_POLICY.read_text("utf-8")))
    number = 1 + file.read_text("utf-8").split("\n").index("ruless:") if said == "ruless" else None
    line = refused(*command, str(file))
    assert said in line
    assert f"{file}:{number or ''}" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--token-file", "gone.json"], "gone.json: must be a file that can be read"),
        (["--token-file", "operator.json"], "must be a file with a credential of role executor"),
        (
            ["--token-file", "token.json", "--controller-keys", "gone.json"],
            "gone.json: must be a file that can be read",
        ),
        (["--token-file", "token.json", "--controller-keys", "token.json"], "a public key of role controller"),
        (["--token-file", "token.json", "--controller-keys", "keys.json", "--cluster", ""], "--cluster = ''"),
    ],
)
def test_an_executor_says_which_of_its_files_cannot_be_used(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("executor", "slurm", *NOWHERE, *flags)


def test_people_are_told_what_they_need_to_approve(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "tocsin token issue NAME --role operator" in refused("actions", "approve", "abc", *NOWHERE)
    assert "no engine listens on" in refused("actions", "list", "--data", str(tmp_path))

"""``tocsin agent --allow-checks``: off by default, for the host's own credential only, in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import pytest

from tests.pipeline.waiting import until
from tocsin.cli import agent, executor
from tocsin.cli.agent_checks import KeptProcess, checks_command, checks_of
from tocsin.cli.main import main
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError, CredentialError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    agent.add_arguments(parser)
    return parser.parse_args(["--host", "n1", *words])


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """The credential of ``n1``, and the controllers' public keys."""
    own, keys = tmp_path / "own.json", tmp_path / "keys.json"
    write_credentials(own, (new_signing_key(Role.CHECKER, "n1", 1),))
    write_credentials(keys, (public_half(new_signing_key(Role.CONTROLLER, "c", 1)),))
    return str(own), str(keys)


def test_nobody_can_ask_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOCSIN_ALLOW_CHECKS", raising=False)

    assert isinstance(checks_of(parsed()), contextlib.nullcontext)


@pytest.mark.parametrize("way", [("--engine", "e1:4440", "--tls-ca", "ca.pem"), ("--kafka", "k1:9092")])
def test_the_process_is_given_the_agents_own_way_to_the_engine(files: tuple[str, str], way: tuple[str, ...]) -> None:
    args = parsed("--allow-checks", files[0], "--controller-keys", files[1], "--cluster", "c7", *way)
    assert isinstance(checks_of(args), KeptProcess)
    command = checks_command(args)
    parser = argparse.ArgumentParser()
    executor.add_arguments(parser)
    taken = parser.parse_args(command[command.index("own-host") :])

    assert command[:4] == [sys.executable, "-m", "tocsin", "executor"]
    assert (taken.token_file, taken.controller_keys, taken.cluster) == (*files, ["c7"])
    assert {taken.engine, taken.kafka, taken.tls_ca} >= {word for word in way if not word.startswith("--")}
    assert taken.metrics_listen == "", "the agent has that address"
    client = executor.client_of(taken)
    fresh = new_signing_key(Role.CHECKER, "n1", 2)
    write_credentials(Path(files[0]), (fresh,))
    assert client.keys.signer.header(b"{}").startswith(fresh.key_id.encode()), "a new key needs no restart"
    assert client.name == "checker:n1"
    assert [one.hosts for one in client._configs] == [{"n1"}]  # noqa: SLF001


def test_what_cannot_be_used_is_named_at_the_start(files: tuple[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    write_credentials(other, (new_signing_key(Role.CHECKER, "n2", 1),))
    with pytest.raises(ConfigError, match="a credential of this host n1, not of n2"):
        checks_of(parsed("--allow-checks", str(other), "--controller-keys", files[1]))
    write_credentials(other, (new_signing_key(Role.EXECUTOR, "n1", 1),))
    with pytest.raises(CredentialError, match="role checker"):
        checks_of(parsed("--allow-checks", str(other), "--controller-keys", files[1]))
    with pytest.raises(ConfigError, match="--controller-keys"):
        checks_of(parsed("--allow-checks", files[0]))


def test_a_process_that_ends_is_started_again_and_ends_with_the_agent(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = f"import os, time\nopen({str(said)!r}, 'a').write(str(os.getpid()) + chr(10))\n"
    code += f"time.sleep(600 if len(open({str(said)!r}).readlines()) > 1 else 0)"
    with KeptProcess([sys.executable, "-c", code], again_seconds=0.05):
        until(lambda: said.exists() and len(said.read_text().splitlines()) > 1)
    last = said.read_text().splitlines()[-1]

    assert not Path("/proc", last).exists()


def test_a_checkers_credential_is_one_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["token", "issue", "*", "--role", "checker", "--credentials", str(tmp_path / "all.json")]

    assert main(words) == 2
    assert "one host's name" in capsys.readouterr().err

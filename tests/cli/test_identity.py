"""The flags that say who may speak, and the local token that makes them needless on one machine."""

from __future__ import annotations

import argparse
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.cli import agent, serve
from tocsin.cli.identity import agent_tls_of, gate_of, local_token, tls_of, tokens_of
from tocsin.cli.main import main
from tocsin.cli.paths import local_token_files
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.socket_sink import SocketSink
from tocsin.collectors.transport.spool import MemorySpool
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.schemas.credential_store import read_credentials, write_credentials
from tocsin.schemas.errors import ConfigError, CredentialError
from tocsin.schemas.records import Event, EventSource, JobKey, Severity


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token of a real engine, and no setting of this shell."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("TOCSIN_CREDENTIALS", "TOCSIN_TOKEN_FILE", "TOCSIN_LISTEN", "TOCSIN_ENGINE", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def _serve(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(words)


def _agent(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    agent.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("address", ["0.0.0.0:4440", "10.0.0.1:4440", "[::]:4440", "node-1:4440", "[fe80::1]:4440"])
def test_without_identity_nothing_but_this_machine_is_listened_to(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="tocsin token issue") as raised:
        gate_of(_serve("--listen", address), tmp_path)
    assert "--insecure-no-identity" in str(raised.value)
    assert gate_of(_serve("--listen", address, "--insecure-no-identity"), tmp_path).is_open
    assert not gate_of(_serve("--listen", address, "--tls-cert=c", "--tls-client-ca=a"), tmp_path).is_open
    assert main(["token", "issue", "n0", "--data", str(tmp_path)]) == 0
    gate = gate_of(_serve("--listen", address), tmp_path)
    assert gate.store is not None
    assert gate.local is None


def test_the_command_says_it_before_it_opens_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--data", str(tmp_path / "d"), "--listen", "0.0.0.0:0"]) == 2
    assert "--listen = '0.0.0.0:0'" in capsys.readouterr().err
    assert list((tmp_path / "d").iterdir()) == []


def test_a_named_file_must_be_there_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with pytest.raises(CredentialError, match="No such file"):
        gate_of(_serve("--credentials", str(path)), tmp_path)
    path.write_text('{"version": 1, "credentials": []}')
    path.chmod(0o644)
    with pytest.raises(CredentialError, match="closed to others"):
        gate_of(_serve("--credentials", str(path)), tmp_path)


def test_users_and_groups_by_name_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    args = _serve("--trust-uid", "1234", "--trust-uid", "root", "--trust-group", "root")
    gate = gate_of(args, Path("/nowhere"))
    assert (set(gate.uids), set(gate.gids)) == ({1234, 0}, {0})
    with pytest.raises(SystemExit):
        _serve("--trust-uid", "nobody-of-that-name")
    assert "no such user" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--tls-key", "--tls-client-ca"])
def test_certificates_that_are_of_no_use_alone_are_named(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        tls_of(_serve(flag, "f"))
    with pytest.raises(ConfigError, match="--tls-ca"):
        tokens_of(_agent("--tls-cert", "f"))
    assert agent_tls_of(_agent()) is None


def _wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "did not come"
        time.sleep(0.01)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_on_one_machine_no_option_is_needed(tmp_path: Path, listen: str) -> None:
    """The engine leaves a token for its own user, the agent finds it, and it is gone with the engine."""
    gate = gate_of(_serve("--listen", listen), tmp_path)
    engine = EmbeddedEngine(EngineConfig())
    server = AgentServer(engine, listen, time.time_ns, config=ServerConfig(gate=gate))
    with local_token(gate, server.address) as token:
        assert token is not None
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.is_relative_to(tmp_path / "run")
        server.start()
        config = agent.config_of(_agent("--engine", server.address, "--host", "any-host"))
        sink = SocketSink(config, MemorySpool(1 << 20), SteadyClock(SystemClock()), lambda: None)
        sink.start()
        sink.put(Event(JobKey("c", "j"), "any-host", time.time_ns(), 0, EventSource.PROCESS, "x", Severity.INFO))
        _wait(lambda: engine.counters["records_ok"] == 1)
        sink.close(0.1)
        server.close()
    assert not token.exists()


def test_a_token_of_another_engine_is_left_alone(tmp_path: Path) -> None:
    """The next engine on the same port began before this one ended."""
    first, second = gate_of(_serve(), tmp_path), gate_of(_serve(), tmp_path)
    assert first.local is not None
    assert second.local is not None
    with local_token(first, "127.0.0.1:4440") as token:
        assert token is not None
        write_credentials(token, (second.local,))
    assert read_credentials(token) == (second.local,)


def test_where_a_credential_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    usual = ("/run/credentials/x/token.json", "/etc/tocsin/token.json")
    local = (
        f"{tmp_path}/run/tocsin/engine-4440.json",
        "/run/tocsin/engine-4440.json",
        "/tmp/tocsin-4242/engine-4440.json",
    )
    assert tokens_of(_agent("--engine", "127.0.0.1:4440")).places == (*local, *usual)
    assert tokens_of(_agent("--engine", "localhost:4440")).places == (*local, *usual)
    assert tokens_of(_agent("--engine", "[::1]:4440")).places == (*local, *usual)
    assert tokens_of(_agent("--engine", "node:4440")).places == usual
    assert tokens_of(_agent("--engine", "unix:/x")).places == usual
    assert len(local_token_files(4440)) == 3


def test_a_token_that_cannot_be_used_is_said_and_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = tokens_of(_agent("--token-file", str(tmp_path / "t.json")))
    assert search.named
    assert "No such file" in capsys.readouterr().err

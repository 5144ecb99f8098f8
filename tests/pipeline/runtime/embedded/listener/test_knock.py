"""A knock at the listener: an answer, whatever the listener asks for; none where its thread is gone or busy."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.openssl import make_authority, make_certificate
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.knock import knock
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.pipeline.runtime.embedded.listener_watch import ListenerWatch
from tocsin.schemas.tls import TlsFiles


@pytest.fixture(params=["unix", "tcp", "tls", "tls that asks for a certificate"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentServer]:
    how = str(request.param)
    tls = None
    if how.startswith("tls"):
        make_authority(tmp_path, "ca")
        make_certificate(tmp_path, "ca", "engine", "engine", "IP:127.0.0.1")
        authorities = str(tmp_path / "ca.pem") if "asks" in how else ""
        tls = TlsFiles(str(tmp_path / "engine.pem"), str(tmp_path / "engine.key"), authorities)
    address = f"unix:{tmp_path}/e.sock" if how == "unix" else "127.0.0.1:0"
    made = AgentServer(EmbeddedEngine(EngineConfig()), address, time.time_ns, config=ServerConfig(tls=tls))
    yield made
    made.close()


def test_a_listener_answers_while_its_thread_works_and_not_when_it_is_closed(server: AgentServer) -> None:
    assert not knock(server.address, has_tls=server.has_tls, timeout_seconds=0.2), "bound, and nobody serves it"
    server.start()
    assert knock(server.address, has_tls=server.has_tls)
    server.close()

    assert not knock(server.address, has_tls=server.has_tls, timeout_seconds=0.2)


def test_one_that_takes_connections_and_says_nothing_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert not knock(address, has_tls=False, timeout_seconds=0.1)
        assert not knock(address, has_tls=True, timeout_seconds=0.1)


def test_two_knocks_without_an_answer_are_silence_and_one_is_not() -> None:
    now, answers = [0.0], [True]
    watch = ListenerWatch(lambda: answers[0], lambda: now[0])
    watch.knock()
    answers[0] = False
    now[0] = 15.0
    watch.knock()
    assert not watch.is_silent()
    now[0] = 26.0
    watch.knock()
    assert watch.is_silent()
    answers[0] = True
    watch.knock()

    assert not watch.is_silent()

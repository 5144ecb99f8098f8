"""``tocsin executor own-host`` as a process: asked over a real listener, it checks this machine and reports."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_preflight_group import DISK_ONLY
from tests.pipeline.actions.kit import CLUSTER, LIVE, T0, verdict_on
from tests.pipeline.runtime.embedded.actions.acting import CHECKER_KEY, CONTROLLER_KEY, PUBLIC, Acting
from tests.pipeline.waiting import until
from tocsin.cli.agent_checks import KeptProcess
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer, ServerConfig
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

WAIT_SECONDS = 120.0


@contextlib.contextmanager
def listening(acting: Acting, credentials: Path) -> Iterator[str]:
    """Answer executors of an engine on a TCP port, whose address is given."""
    gate = GateConfig(CredentialStore(credentials))
    server = AgentServer(
        EmbeddedEngine(EngineConfig(history=None)), "127.0.0.1:0", time.time_ns, config=ServerConfig(gate=gate)
    )
    exchange = acting.requests.for_executors()["executor_exchange"]

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        found = exchange(question)
        assert isinstance(found, dict)
        return found

    server.readers.for_executors = {"executor_exchange": answer}
    server.start()
    try:
        yield server.address
    finally:
        server.close()


@pytest.mark.gate
def test_a_signed_action_has_this_machine_checked_and_the_controller_hears_the_result(tmp_path: Path) -> None:
    own, keys, known = (tmp_path / f"{name}.json" for name in ("own", "keys", "known"))
    write_credentials(own, (CHECKER_KEY,))
    write_credentials(keys, (public_half(CONTROLLER_KEY),))
    write_credentials(known, (*(one for one in PUBLIC if one.key_id != CHECKER_KEY.key_id), CHECKER_KEY))
    acting = Acting(tmp_path, LIVE, time.time_ns())

    def is_in(state: ActionState) -> bool:
        acting.tick(seconds=(time.time_ns() - acting.now_ns) / NS_PER_SECOND)
        time.sleep(0.2)
        return [one.state for one in acting.wanted()] == [state]

    with listening(acting, known) as address:
        command = [sys.executable, "-m", "tocsin", "executor", "own-host", "--engine", address, "--cluster", CLUSTER]
        command += ["--token-file", str(own), "--controller-keys", str(keys), "--state-dir", str(tmp_path / "checks")]
        command += ["--folder", str(tmp_path), "--each", "1s", *DISK_ONLY[: DISK_ONLY.index("--each")]]
        acting.tick(verdict_on("n1", action=ActionKind.PROBE, at_seconds=(time.time_ns() - T0) / NS_PER_SECOND))
        assert [(one.state, one.reason) for one in acting.wanted()] == [(ActionState.WAITING, "no_executor")]
        with KeptProcess(command):
            until(lambda: is_in(ActionState.DONE), WAIT_SECONDS)
    acting.close()

    (action,) = acting.wanted()
    assert action.holder == "checker:n1"
    assert os.path.lexists(tmp_path / "checks" / action.action_id)
    assert (acting.letters, acting.left_out) == ([], [])

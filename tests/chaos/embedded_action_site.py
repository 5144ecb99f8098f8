"""``tocsin serve --act`` with chDB, an executor, agents and a job controller; engine and executor can be killed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.job_stub import JobStub
from tests.chaos.live_jobs import CLUSTER, HOSTS, Agents, Fault
from tests.chaos.live_round import ENGINE
from tests.conftest import ROOT
from tocsin.cli.action_settings import PUBLIC_FILE, controller_key
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.paths import control_socket, credentials_file
from tocsin.pipeline.actions.executors.job_desk import RunningJob
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.schemas.actions import Action
from tocsin.schemas.credential_store import read_credentials, write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import EngineError, SchemaError, TransportError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.plain_objects import read_object
from tocsin.schemas.verdicts import ActionKind

EXECUTOR: Final = "executor"
_READY_SECONDS: Final = 60.0
_SPARE_COUNT: Final = 4


class EmbeddedActionSite:
    """One installation.

    Attributes:
        folder: all that it writes.
        agents: the hosts' agents.
        jobs: the job controller.
        children: role -> its process.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir(mode=0o700)
        self.address = f"unix:{folder}/e.sock"
        self.agents = Agents(folder, self.address)
        controller_key(self.data)
        self._key = new_signing_key(Role.EXECUTOR, "job", time.time_ns())
        write_credentials(credentials_file(self.data), (self._key,))
        write_credentials(folder / "executor.json", (self._key,))
        self.jobs = JobStub(read_credentials(self.data / PUBLIC_FILE))
        self._thread = threading.Thread(target=self.jobs.serve_forever, args=(0.1,), daemon=True)
        self.children = {ENGINE: self._engine(), EXECUTOR: self._executor()}

    def _engine(self) -> Child:
        command = [sys.executable, "-m", "tocsin", "serve", "--data", str(self.data), "--listen", self.address]
        command += ["--metrics-listen", "", "--hold", "0", "0", "--act", "--spares", str(_SPARE_COUNT)]
        return Child(Program("tocsin serve", command, self.folder / "serve.log", folder=ROOT))

    def _executor(self) -> Child:
        command = [sys.executable, "-m", "tocsin", "executor", "job", "--url", self.jobs.url]
        command += ["--engine", self.address, "--token-file", str(self.folder / "executor.json")]
        command += ["--controller-keys", str(self.data / PUBLIC_FILE), "--cluster", CLUSTER]
        return Child(Program("tocsin executor", command, self.folder / "executor.log", folder=ROOT))

    def start(self, faults: Sequence[Fault]) -> None:
        """Start all processes; the job controller knows all jobs."""
        self._thread.start()
        for fault in faults:
            self.jobs.add(RunningJob(JobKey(CLUSTER, fault.job_id, 0), frozenset(HOSTS)))
        for role in self.children:
            self._start(role)
        self.agents.start()

    def _start(self, role: str) -> None:
        self.children[role].start()
        if role == ENGINE:
            self.children[role].wait_ready(lambda: self.children[role].said("agents on"), _READY_SECONDS)

    def kill(self, role: str, away_seconds: float) -> None:
        """Kill one with -9, and start it again after a while."""
        self.children[role].crash()
        time.sleep(away_seconds)
        self._start(role)

    def actions(self) -> list[Action]:
        """All actions that are no pages, as the engine shows them; none while it is away."""
        try:
            answer = ControlClient(control_socket(self.data)).call("actions_list", everything=True)
            found = [read_object(Action, one, "action") for one in answer["actions"]]
        except (OSError, EngineError, TransportError, SchemaError, ValueError):
            return []
        return [one for one in found if one.kind is not ActionKind.NOTIFY]

    def close(self) -> None:
        self.agents.stop()
        for child in self.children.values():
            child.kill()
        self.jobs.shutdown()
        self.jobs.server_close()

"""What stands around the job of a drill that acts: an engine that acts, and an executor that hands on its actions."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tocsin.cli.action_settings import PUBLIC_FILE
from tocsin.cli.database import database
from tocsin.cli.drill.act.settings import JOB_ID
from tocsin.cli.drill.engine import DrillEngine, VerdictEar
from tocsin.cli.drill.judge import Heard
from tocsin.cli.drill.launcher import CLUSTER
from tocsin.cli.processes import ProcessGroup
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.schemas.credential_store import change, write_credentials
from tocsin.schemas.credentials import Role

EXECUTOR: Final = "job-executor"
JOB_CONTROLLER: Final = "job-controller"
SPARE_COUNT: Final = 1
"""Hosts of the job beyond its ranks; only the job controller says so."""


class ActGround(Protocol):
    """An engine that acts, in one of the two modes.

    Attributes:
        agent_words: words of an agent's command line that say where it sends; ``{host}`` stands for its host.
        keys_file: public keys of the controller of actions.
        facts_key_file: key pair of role ``scheduler``, with which the job controller says how many spares it has.
    """

    agent_words: tuple[str, ...]
    keys_file: Path
    facts_key_file: Path

    def wait_until_ready(self) -> None:
        """Wait until it takes records, once; raise DrillError if it does not."""
        ...

    def start_executor(self, url: str) -> None:
        """Start the executor that hands actions to a job controller at this address."""
        ...

    def heard(self) -> list[Heard]:
        """Return the verdict lines of the job so far."""
        ...

    def accounts(self) -> list[dict[str, Any]]:
        """Return the ledger's account of each attempt."""
        ...

    def close(self) -> None:
        """End in order what has to; the drill kills the rest."""
        ...


class EmbeddedGround:
    """``tocsin serve --act`` with an executor at its port.

    Attributes:
        agent_words: as ``ActGround`` says.
        keys_file: as ``ActGround`` says.
        facts_key_file: as ``ActGround`` says.
    """

    def __init__(
        self, processes: ProcessGroup, data: Path, hosts: Sequence[str], on_line: Callable[[Heard], None]
    ) -> None:
        """Start the engine.

        Args:
            processes: all processes of the drill.
            data: folder of the engine's data.
            hosts: hosts that the job may use.
            on_line: called for each verdict line, in a thread.
        """
        self._engine = DrillEngine(processes, data, ["--act", "--hold", "0", "0"])
        self._processes, self._on_line = processes, on_line
        for host in hosts:
            self._engine.tokens.file_of(host)
        self._token_file = self._issue(Role.EXECUTOR, EXECUTOR)
        self.facts_key_file = self._issue(Role.SCHEDULER, JOB_CONTROLLER)
        self._ear: VerdictEar | None = None
        self.keys_file = data / PUBLIC_FILE
        tokens = processes.folder / "tokens" / "{host}.json"
        self.agent_words: tuple[str, ...] = ("--engine", f"unix:{self._engine.listen}", "--token-file", str(tokens))

    def wait_until_ready(self) -> None:
        """Wait until the engine answers, and listen to its verdicts.

        Raises:
            DrillError: it does not start.
        """
        if self._ear is not None:
            return
        self._engine.wait_until_ready()
        self._ear = VerdictEar(self._engine.control, self._on_line)

    def start_executor(self, url: str) -> None:
        """Start the executor that hands actions to a job controller at this address."""
        self._processes.start(
            [
                *(sys.executable, "-m", "tocsin", "executor", "job"),
                *("--url", url),
                *("--engine", f"unix:{self._engine.listen}"),
                *("--token-file", str(self._token_file)),
                *("--controller-keys", str(self.keys_file)),
                *("--cluster", CLUSTER),
            ],
            self._processes.folder / "executor.log",
        )

    def heard(self) -> list[Heard]:
        """Return the verdict lines of the job so far."""
        return [] if self._ear is None else self._ear.of_job(JOB_ID)

    def accounts(self) -> list[dict[str, Any]]:
        """Return the ledger's account of each attempt."""
        with database(self._engine.data_folder) as ask:
            return [json.loads(line) for line in ask(ettr_query(JOB_ID), "JSONEachRow").splitlines()]

    def close(self) -> None:
        """Do nothing: the engine may be killed."""

    def _issue(self, role: Role, name: str) -> Path:
        """Make a key pair that is known to the engine; return its file."""
        fresh = new_signing_key(role, name, time.time_ns())
        change(self._engine.tokens.engine_file, lambda before: (*before, fresh))
        path = self._processes.folder / "tokens" / f"{name}.json"
        write_credentials(path, (fresh,))
        return path

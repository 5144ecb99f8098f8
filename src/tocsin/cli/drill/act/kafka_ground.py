"""The distributed engine around the job of a drill that acts: broker, Flink, ClickHouse, controller, executor."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tocsin.cli.action_settings import PUBLIC_FILE
from tocsin.cli.cluster.state import read_state
from tocsin.cli.database import database
from tocsin.cli.drill.act.ground import EXECUTOR, JOB_CONTROLLER
from tocsin.cli.drill.act.settings import JOB_ID
from tocsin.cli.drill.engine import DrillError
from tocsin.cli.drill.judge import Heard
from tocsin.cli.drill.launcher import CLUSTER
from tocsin.cli.drill.tokens import DrillTokens
from tocsin.cli.processes import ProcessGroup
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.pipeline.stores.rows import summary_of
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.credential_store import change, read_credentials, write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import TocsinError
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import VERDICTS, topic_name

_PREFIX: Final = "drill"
_CONTROLLER: Final = "drill-controller"
_UP_SECONDS: Final = 400.0
"""A busy machine takes minutes to start Flink and submit the job."""
_END_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2
_POLL_MS: Final = 200


class KafkaGround:
    """``tocsin cluster up`` with a controller that acts, and an executor over the topics.

    Attributes:
        agent_words: as ``ActGround`` says; known once it is ready.
        keys_file: as ``ActGround`` says.
        facts_key_file: as ``ActGround`` says.
    """

    def __init__(self, processes: ProcessGroup, hosts: Sequence[str], on_line: Callable[[Heard], None]) -> None:
        """Write all credentials, and start the cluster.

        Args:
            processes: all processes of the drill.
            hosts: hosts that the job may use.
            on_line: called for each verdict line, in a thread.
        """
        self._processes, self._on_line = processes, on_line
        self._folder = processes.folder / "cluster"
        self._tokens = DrillTokens(processes.folder)
        for host in hosts:
            self._tokens.file_of(host)
        self._executor_file = self._issue(Role.EXECUTOR, EXECUTOR)
        self.facts_key_file = self._issue(Role.SCHEDULER, JOB_CONTROLLER)
        self._controller_file = self._issue(Role.CONTROLLER, _CONTROLLER)
        self.keys_file = processes.folder / PUBLIC_FILE
        write_credentials(self.keys_file, tuple(map(public_half, read_credentials(self._controller_file))))
        self.agent_words: tuple[str, ...] = ()
        self._kafka: tuple[str, ...] = ()
        self._heard: list[Heard] = []
        self._log = processes.folder / "cluster.log"
        self._up = self._start(
            "cluster",
            *("cluster", "up", "--folder", str(self._folder), "--topic-prefix", _PREFIX, "--no-controller"),
            *("--credentials", str(self._tokens.engine_file)),
        )

    def wait_until_ready(self) -> None:
        """Wait until the cluster runs, and start the controller.

        Raises:
            DrillError: it does not start.
        """
        if self.agent_words:
            return
        deadline = time.monotonic() + _UP_SECONDS
        while (state := read_state(self._folder)) is None or state.phase != "running":
            if self._up.poll() is not None or time.monotonic() > deadline:
                raise DrillError(f"the cluster does not start: {self._log.read_text(errors='replace')[-800:].strip()}")
            time.sleep(_LOOK_SECONDS)
        address = state.addresses["kafka"]
        self._clickhouse = parse_address(state.addresses["clickhouse"])
        self._kafka = ("--kafka", address, "--topic-prefix", _PREFIX)
        self.agent_words = (*self._kafka, "--token-file", str(self._processes.folder / "tokens" / "{host}.json"))
        self._start(
            "controller",
            *("controller", *self._kafka, "--act"),
            *("--controller-key", str(self._controller_file), "--credentials", str(self._tokens.engine_file)),
            *("--verdict-keys", str(self._folder / "keys" / "verdicts.json")),
            *("--signing-key", str(self._folder / "keys" / "engine.json")),
        )
        threading.Thread(target=self._listen, args=(address,), name="verdicts", daemon=True).start()

    def start_executor(self, url: str) -> None:
        """Start the executor that hands actions to a job controller at this address."""
        self._start(
            "executor",
            *("executor", "job", "--url", url, *self._kafka, "--cluster", CLUSTER),
            *("--token-file", str(self._executor_file), "--controller-keys", str(self.keys_file)),
        )

    def heard(self) -> list[Heard]:
        """Return the verdict lines of the job so far."""
        return [one for one in list(self._heard) if one.line["job_id"] == JOB_ID]

    def accounts(self) -> list[dict[str, Any]]:
        """Return the ledger's account of each attempt, as the sink wrote it into ClickHouse."""
        with database(self._folder, self._clickhouse) as ask:
            return [json.loads(line) for line in ask(ettr_query(JOB_ID), "JSONEachRow").splitlines()]

    def close(self) -> None:
        """End the cluster in order; what does not end is killed with all processes of the drill."""
        self._up.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._up.wait(_END_SECONDS)

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of tocsin with a log of its own."""
        command = [sys.executable, "-m", "tocsin", *words]
        return self._processes.start(command, self._processes.folder / f"{name}.log")

    def _issue(self, role: Role, name: str) -> Path:
        """Make a key pair, of which the file of all credentials has the public half; return the file of both."""
        fresh = new_signing_key(role, name, time.time_ns())
        change(self._tokens.engine_file, lambda before: (*before, public_half(fresh)))
        path = self._processes.folder / "tokens" / f"{name}.json"
        write_credentials(path, (fresh,))
        return path

    def _listen(self, address: str) -> None:
        """Receive verdicts from the topic until the cluster ends."""
        from tocsin.pipeline.kafka.client import consumer

        with contextlib.suppress(TocsinError), consumer(kafka_settings(address)) as client:  # the cluster ended
            client.subscribe([topic_name(VERDICTS, _PREFIX)])
            while self._up.poll() is None:
                for messages in client.poll(timeout_ms=_POLL_MS).values():
                    for one in messages:
                        verdict = decode_verdict(one.value)
                        self._heard.append(Heard(time.time_ns(), verdict.to_line(), summary_of(verdict)))
                        self._on_line(self._heard[-1])

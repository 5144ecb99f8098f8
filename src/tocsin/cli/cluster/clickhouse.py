"""Starts and stops the ClickHouse endpoint of a cluster on one machine: ``native_server`` as a child process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.schemas.errors import EngineError

READY_SECONDS: Final = 30.0
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Settings of the endpoint.

    Attributes:
        folder: folder of its database and its log.
        port: port that it listens on; 0: a free one is chosen once and kept for restarts.
        users_file: file of the users, see ``native_engine.read_users``; None: user ``default`` without a password, for
            tests.
        tls_cert_file: its TLS certificate, None: no encryption.
        tls_key_file: private key of the certificate.
        tls_client_ca_file: CA whose certificate clients must show, None: clients need none.
    """

    folder: Path
    port: int = 0
    users_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None


class ClickHouseEndpoint:
    """The endpoint's process; it keeps its port and its data over ``stop``, ``crash`` and ``start``."""

    def __init__(self, config: EndpointConfig) -> None:
        """Create the object; ``start`` starts the process."""
        self._config = config
        self._port = config.port
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """URL for ``--clickhouse``, without credentials."""
        scheme = "clickhouse" if self._config.tls_cert_file is None else "clickhouses"
        return f"{scheme}://127.0.0.1:{self._port}"

    @property
    def child(self) -> Child:
        """The endpoint's process.

        Raises:
            EngineError: it was never started.
        """
        if self._child is None:
            raise EngineError("the ClickHouse endpoint was never started")
        return self._child

    def start(self) -> None:
        """Start the endpoint and wait until it answers; data of an earlier run is kept.

        Raises:
            EngineError: it does not become ready.
        """
        if self._port:
            self._run()
            return
        for last in (*[False] * (_TRIES - 1), True):
            self._port = free_port()
            try:
                self._run()
            except EngineError:
                # somebody else took the port since it was found free
                if last or not self.child.said("Address already in use"):
                    raise
            else:
                return

    def stop(self) -> None:
        """Shut the endpoint down in an orderly way."""
        if self._child is not None:
            self._child.stop()

    def crash(self) -> None:
        """Kill the endpoint with SIGKILL."""
        self.child.crash()

    def is_running(self) -> bool:
        """Return whether the endpoint's process runs."""
        return self._child is not None and self._child.is_running()

    def _run(self) -> None:
        """Start the process on the chosen port and wait until it listens."""
        config = self._config
        data = config.folder / "data"
        command = [sys.executable, "-m", "tocsin.cli.cluster.native_server", str(data), "--port", str(self._port)]
        for flag, file in (
            ("--users", config.users_file),
            ("--tls-cert", config.tls_cert_file),
            ("--tls-key", config.tls_key_file),
            ("--tls-client-ca", config.tls_client_ca_file),
        ):
            if file is not None:
                command += [flag, str(file)]
        if config.users_file is None:
            command.append("--no-password")
        if self._child is not None:
            self._child.kill()
        child = self._child = Child(Program("the ClickHouse endpoint", command, config.folder / "clickhouse.log"))
        child.start()
        child.wait_ready(lambda: child.said("listening on"), READY_SECONDS)

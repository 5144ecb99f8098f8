"""Starts and stops the ClickHouse endpoint of a cluster on one machine: ``native_server`` as a child process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.cli.cluster.kept_server import KeptServer
from tocsin.cli.cluster.process import Child, Program, free_port

READY_SECONDS: Final = 90.0


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


class ClickHouseEndpoint(KeptServer):
    """Keeps its port and its data over ``stop``, ``crash`` and ``start``."""

    def __init__(self, config: EndpointConfig) -> None:
        """Start nothing yet."""
        super().__init__("the ClickHouse endpoint")
        self._config = config
        self._port = config.port

    @property
    def url(self) -> str:
        """URL for ``--clickhouse``, without credentials."""
        scheme = "clickhouse" if self._config.tls_cert_file is None else "clickhouses"
        return f"{scheme}://127.0.0.1:{self._port}"

    def _has_ports(self) -> bool:
        return bool(self._port)

    def _choose_ports(self) -> bool:
        self._port = free_port()
        return True

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
        program = Program("the ClickHouse endpoint", command, config.folder / "clickhouse.log")
        child = self._replace_child(Child(program))
        child.start()
        child.wait_ready(lambda: child.said("listening on"), READY_SECONDS)

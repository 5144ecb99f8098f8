"""The ClickHouse endpoint of a cluster on one machine: ``native_server`` as a supervised process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.cli.cluster.kept_server import KeptServer
from tocsin.cli.cluster.process import Child, Program, free_port

READY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """How the endpoint is started.

    Attributes:
        folder: its database and its log.
        port: 0: a free one is chosen, and kept for restarts.
        users_file: see ``native_engine.read_users``; None: ``default`` without a password, for tests.
        tls_cert_file: its certificate, None: in the clear.
        tls_key_file: the certificate's key.
        tls_client_ca_file: clients must show a certificate of this authority.
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
        """What ``--clickhouse`` takes; without credentials."""
        scheme = "clickhouse" if self._config.tls_cert_file is None else "clickhouses"
        return f"{scheme}://127.0.0.1:{self._port}"

    def _has_ports(self) -> bool:
        return bool(self._port)

    def _choose_ports(self) -> bool:
        self._port = free_port()
        return True

    def _run(self) -> None:
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

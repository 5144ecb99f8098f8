"""ClickHouse servers for tests: chDB behind the native protocol, and Debian's old one for what is not SQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint, EndpointConfig
from tocsin.cli.cluster.process import Child, Program, free_port


@pytest.fixture(scope="session")
def clickhouse_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseEndpoint]:
    """The session's endpoint: one database for all tests, so name verdicts apart, and do not stop it."""
    endpoint = ClickHouseEndpoint(EndpointConfig(tmp_path_factory.mktemp("clickhouse")))
    endpoint.start()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def private_endpoint(tmp_path: Path) -> Iterator[Callable[..., ClickHouseEndpoint]]:
    """Make endpoints of a test's own: empty, to be killed, with users or with TLS. They are not started."""
    made: list[ClickHouseEndpoint] = []

    def make(**settings: object) -> ClickHouseEndpoint:
        config = EndpointConfig(tmp_path / f"clickhouse{len(made)}", **settings)  # type: ignore[arg-type]
        made.append(ClickHouseEndpoint(config))
        return made[-1]

    yield make
    for endpoint in made:
        endpoint.stop()


class Certificates(NamedTuple):
    """Files of a small authority."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of our own with a certificate for 127.0.0.1 and one for a client."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*args: str) -> None:
        try:
            subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder, timeout=60)
        except FileNotFoundError:
            pytest.skip("openssl, which makes the certificates, is not installed")

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=tocsin tests")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*sign, "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
    return Certificates(*(folder / file for file in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")))


class OldServer:
    """Debian's clickhouse-server 18.16: a real server, but too old for the tables of tocsin."""

    _CONFIG = """<yandex>
  <logger><level>warning</level><console>true</console></logger>
  <tcp_port>{port}</tcp_port><listen_host>127.0.0.1</listen_host>
  <path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path>
  <users_config>{folder}/users.xml</users_config>
  <mark_cache_size>100000000</mark_cache_size>
</yandex>"""
    _USERS = """<yandex>
  <profiles><default/></profiles><quotas><default/></quotas>
  <users><tocsin>
    <password>right</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
  </tocsin></users>
</yandex>"""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("clickhouse-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
        if program is None:
            pytest.skip("Debian's clickhouse-server is not installed (apt-get install clickhouse-server)")
        folder.mkdir()
        self.port = free_port()
        (folder / "config.xml").write_text(self._CONFIG.format(port=self.port, folder=folder))
        (folder / "users.xml").write_text(self._USERS)
        command = [program, f"--config-file={folder}/config.xml"]
        self.child = Child(Program("clickhouse-server 18.16", command, folder / "server.log"))

    def start(self) -> None:
        self.child.start()
        self.child.wait_ready(self._listens, 30.0)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False


@pytest.fixture
def old_server(tmp_path: Path) -> Iterator[OldServer]:
    """The old server, started; skips where it is not installed."""
    server = OldServer(tmp_path / "old")
    server.start()
    yield server
    server.child.kill()

"""ClickHouse servers for tests: chDB behind the native protocol, and Debian's old one for what is not SQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.openssl import make_authority, make_certificate
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint, EndpointConfig
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore
from tocsin.pipeline.stores.sql_store import SqlStore


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


@contextlib.contextmanager
def opened_store(kind: str, folder: Path) -> Iterator[SqlStore]:
    """A store in a folder (``chdb``), or on a server of its own (``server``), with its tables."""
    with contextlib.ExitStack() as closing:
        if kind == "chdb":
            store: SqlStore = ChdbStore(folder / "db")
        else:
            endpoint = ClickHouseEndpoint(EndpointConfig(folder))
            closing.callback(endpoint.stop)
            endpoint.start()
            store = ClickHouseStore(parse_address(endpoint.url))
        closing.callback(store.close)
        store.migrate()
        yield store


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
    make_authority(folder, "ca")
    for name in ("server", "client"):
        make_certificate(folder, "ca", name, name, "IP:127.0.0.1,DNS:localhost")
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
        self.child.wait_ready(self._listens, 60.0)

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

"""A ClickHouse server that is away, refuses, is too old, is newer; and what stays exact on the way to it."""

import contextlib
import json
import os
import signal
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clickhouse_fixtures import Certificates, OldServer
from tests.collectors.peer import wait_until
from tests.pipeline.stores.samples import verdict
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.process import free_port
from tocsin.pipeline.stores import clickhouse_store
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress, parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseBackend, ClickHouseStore
from tocsin.pipeline.stores.native_blocks import decode_native, encode_native
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.errors import (
    DatabaseNewerError,
    DatabaseOlderError,
    RowRefusedError,
    StoreAwayError,
    StoreError,
    StoreRefusedError,
)
from tocsin.schemas.migrations import migrations

SECRET = "s3cr3t/p@ss"
MakeEndpoint = Callable[..., ClickHouseEndpoint]

USERS: dict[str, dict[str, Any]] = {
    "admin": {"password": SECRET},
    "writer": {"password": "w", "role": "writer"},
    "reader": {"password": "r", "role": "reader", "readonly": 2},
    "frozen": {"password": "f", "role": "reader", "readonly": 1},
}


def store_of(endpoint: ClickHouseEndpoint, credentials: str = "", options: str = "") -> ClickHouseStore:
    scheme, _, host = endpoint.url.partition("://")
    return ClickHouseStore(parse_address(f"{scheme}://{credentials}{host}{options}", {}))


# --- values --------------------------------------------------------------------------------------

CELLS = {
    "String": st.binary(),
    "DateTime64(9, 'UTC')": st.integers(-(2**63), 2**63 - 1),
    "DateTime('UTC')": st.integers(0, 2**32 - 1),
    "Nullable(Date)": st.none() | st.integers(0, 2**16 - 1),
    "Float64": st.floats(allow_nan=False),
    "Array(Array(Int32))": st.lists(st.lists(st.integers(-(2**31), 2**31 - 1))),
    "LowCardinality(String)": st.binary(),
    "UInt64": st.integers(0, 2**64 - 1),
    "Bool": st.booleans(),
}


@given(st.data())
def test_every_value_comes_back_as_it_was(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    columns = [(f"c{index}", spec) for index, spec in enumerate(CELLS)]
    rows = [data.draw(st.lists(cell, min_size=size, max_size=size)) for cell in CELLS.values()]
    (block,) = decode_native(encode_native(columns, rows))
    assert block.columns_with_types == columns
    for wanted, found in zip(rows, block.get_columns(), strict=True):
        assert _plain(found) == _plain(wanted)


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def test_nanoseconds_and_any_bytes_survive_a_server(clickhouse_endpoint: ClickHouseEndpoint) -> None:
    store = store_of(clickhouse_endpoint)
    store.migrate()
    sql = "SELECT toDateTime64('2025-10-31 23:59:59.123456789', 9, 'UTC') AS t, unhex('ff00c3') AS s, 1, 1"
    assert store.query(sql, "TSVRaw") == b"2025-10-31 23:59:59.123456789\t\\xff\\x00\\xc3\t1\t1\n"
    assert store.query("SELECT unhex('ff00c3')", "RowBinary") == b"\x03\xff\x00\xc3"
    assert store.query("SELECT 1 AS one WHERE 0", "CSVWithNames") == b'"one"\n'
    assert store.query("SELECT 1 AS one FORMAT JSONEachRow", "Pretty") == b'{"one":1}\n'
    store.close()


def test_a_row_that_does_not_fit_is_told_apart(clickhouse_endpoint: ClickHouseEndpoint) -> None:
    store = store_of(clickhouse_endpoint)
    store.migrate()
    with pytest.raises(RowRefusedError, match="update_number"):
        store.write_verdicts([verdict("too-much", update=2**32)])
    store.write_verdicts([verdict("fits")])  # the connection is sound again
    store.close()


# --- users ---------------------------------------------------------------------------------------


@pytest.fixture
def guarded(private_endpoint: MakeEndpoint, tmp_path: Path) -> ClickHouseEndpoint:
    users = tmp_path / "users.json"
    users.write_text(json.dumps(USERS))
    endpoint = private_endpoint(users_file=users)
    endpoint.start()
    return endpoint


def test_refused_credentials_are_a_clear_error_without_the_password(guarded: ClickHouseEndpoint) -> None:
    for credentials in ("admin:wr0ng@", "nobody:wr0ng@", ""):
        store = store_of(guarded, credentials)
        for call in (store.migrate, store.check, lambda s=store: s.query("SELECT 1", "CSV")):
            with pytest.raises(StoreRefusedError, match="Authentication failed: password is incorrect") as caught:
                call()
            assert "wr0ng" not in str(caught.value)
        store.close()


def test_a_password_that_is_rotated_is_read_again(guarded: ClickHouseEndpoint, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("old")
    store = store_of(guarded, "admin@", f"?password_file={file}")
    with pytest.raises(StoreRefusedError):
        store.migrate()
    file.write_text(SECRET + "\n")
    assert store.migrate() == len(migrations())
    store.close()


def test_each_role_may_do_what_it_is_for(guarded: ClickHouseEndpoint) -> None:
    admin, writer, reader, frozen = (
        store_of(guarded, f"{name}:{of['password'].replace('/', '%2F').replace('@', '%40')}@")
        for name, of in USERS.items()
    )
    with pytest.raises(StoreRefusedError, match=r"migration 1 .* Not enough privileges.*run tocsin migrate once as"):
        writer.migrate()
    with pytest.raises(StoreError, match="has no database tocsin: tocsin migrate --clickhouse"):
        writer.query("SELECT 1", "CSV")
    with pytest.raises(DatabaseOlderError, match="schema version 0, this program needs"):
        reader.check()
    admin.migrate()
    assert writer.migrate() == len(migrations()), "nothing is left to do, so no right is needed"
    writer.write_verdicts([verdict("roles")])
    with pytest.raises(StoreRefusedError, match="Not enough privileges"):
        reader.write_verdicts([verdict("roles", 1)])
    for store in (reader, frozen):
        assert store.query("SELECT verdict_id FROM incidents_current", "TSV") == b"roles\n"
    for store in (admin, writer, reader, frozen):
        store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE tocsin.incidents",
        "INSERT INTO tocsin.actions (verdict_id) SELECT 'x'",
        "INSERT INTO tocsin.actions (verdict_id) SELECT 'x' SETTINGS readonly = 0",
        "SET readonly = 0",
    ],
)
def test_a_query_changes_nothing_even_of_a_user_who_could(clickhouse_endpoint: ClickHouseEndpoint, sql: str) -> None:
    store = store_of(clickhouse_endpoint)
    store.migrate()
    with pytest.raises(StoreError, match="a query is one SELECT"):
        store.query(sql, "CSV")
    assert store.query("SELECT count() FROM tocsin.actions WHERE verdict_id = 'x'", "CSV") == b"0\n"
    store.close()


# --- TLS -----------------------------------------------------------------------------------------


def test_tls_checks_the_server_and_shows_our_certificate(
    private_endpoint: MakeEndpoint, certificates: Certificates
) -> None:
    endpoint = private_endpoint(
        tls_cert_file=certificates.server,
        tls_key_file=certificates.server_key,
        tls_client_ca_file=certificates.authority,
    )
    endpoint.start()
    ours = f"&cert_file={certificates.client}&key_file={certificates.client_key}"
    trusted = store_of(endpoint, options=f"?ca_file={certificates.authority}{ours}")
    assert trusted.migrate() == len(migrations())
    trusted.close()
    with pytest.raises(StoreRefusedError, match=r"is not trusted .*ca_file=FILE"):
        store_of(endpoint).check()
    with pytest.raises(StoreRefusedError, match="cannot read /nowhere"):
        store_of(endpoint, options="?ca_file=/nowhere").check()
    with pytest.raises(StoreError, match="cert_file"):  # the server's alert, or its hanging up: whichever comes first
        store_of(endpoint, options=f"?ca_file={certificates.authority}").check()
    plain = endpoint.url.replace("clickhouses", "clickhouse")
    with pytest.raises(StoreError, match=r"is no TLS right for this port|9440 with TLS"):
        ClickHouseStore(parse_address(plain, {})).check()


def test_tls_to_a_port_in_the_clear_says_so(clickhouse_endpoint: ClickHouseEndpoint) -> None:
    url = clickhouse_endpoint.url.replace("clickhouse", "clickhouses")
    with pytest.raises(StoreAwayError, match="is TLS right for this port"):
        ClickHouseStore(parse_address(url, {})).check()


# --- away ----------------------------------------------------------------------------------------


class _Speaker(socketserver.BaseRequestHandler):
    """Answers everybody with the same bytes; nothing means that it holds the line."""

    answer = b""

    def handle(self) -> None:
        if self.answer:
            self.request.recv(1)
            self.request.sendall(self.answer)
        else:
            self.request.recv(1 << 16)
            self.request.recv(1)


def _listening(answer: bytes) -> tuple[socketserver.ThreadingTCPServer, ClickHouseStore]:
    handler = type("Speaker", (_Speaker,), {"answer": answer})
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, ClickHouseStore(ClickHouseAddress("127.0.0.1", server.server_address[1]))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse_store, "ANSWER_TIMEOUT_SECONDS", 0.3)


def test_nobody_listens() -> None:
    store = ClickHouseStore(ClickHouseAddress("127.0.0.1", free_port()))
    with pytest.raises(StoreAwayError, match=r"clickhouse://default@127.0.0.1:\d+ does not answer .*refused"):
        store.check()


def test_a_server_that_holds_the_line_is_away(impatient: None) -> None:
    server, store = _listening(b"")
    with pytest.raises(StoreAwayError, match=r"nothing came for 0.3 s"):
        store.check()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b"\x07ERR\r\n"]
)
def test_what_is_no_clickhouse_is_refused_with_its_port(answer: bytes) -> None:
    server, store = _listening(answer)
    with pytest.raises(StoreRefusedError, match="native protocol: the port is 9000"):
        store.check()
    server.shutdown()
    server.server_close()


def test_a_server_that_is_killed_is_away_and_comes_back(private_endpoint: MakeEndpoint) -> None:
    """The same store goes on; what was acknowledged is there."""
    endpoint = private_endpoint()
    endpoint.start()
    store = store_of(endpoint)
    store.migrate()
    store.write_verdicts([verdict("before")])
    endpoint.crash()
    for _ in range(2):
        with pytest.raises(StoreAwayError, match="does not answer"):
            store.write_verdicts([verdict("meanwhile")])
    with pytest.raises(StoreAwayError):
        store.query("SELECT 1", "CSV")
    endpoint.start()
    store.write_verdicts([verdict("meanwhile")])
    assert store.query("SELECT verdict_id FROM incidents_all ORDER BY 1", "TSV") == b"before\nmeanwhile\n"
    store.close()


def test_a_server_that_hangs_in_a_write_is_away(
    private_endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = private_endpoint()
    endpoint.start()
    patient = store_of(endpoint)  # a busy machine may need longer for the tables, and for what is written later
    patient.migrate()
    with monkeypatch.context() as short:
        short.setattr(clickhouse_store, "ANSWER_TIMEOUT_SECONDS", 0.3)
        store = store_of(endpoint)

        def answers() -> bool:
            with contextlib.suppress(StoreAwayError):
                store.check()
                return True
            return False

        wait_until(answers)
        os.kill(endpoint.child.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreAwayError):
                store.write_verdicts([verdict("stopped")])
        finally:
            os.kill(endpoint.child.pid, signal.SIGCONT)
    store.write_verdicts([verdict("stopped")])
    patient.close()
    assert store.query("SELECT count() FROM incidents_all", "TSV") == b"1\n"
    store.close()


def test_a_closed_store_says_so(clickhouse_endpoint: ClickHouseEndpoint) -> None:
    store = store_of(clickhouse_endpoint)
    store.migrate()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.check()


# --- schema --------------------------------------------------------------------------------------


def test_a_newer_and_an_older_database_are_told_with_what_to_do(private_endpoint: MakeEndpoint) -> None:
    endpoint = private_endpoint()
    endpoint.start()
    address = parse_address(endpoint.url, {})
    known = migrations()
    old = SqlStore(ClickHouseBackend(address), known[:-1])
    assert old.migrate() == len(known) - 1
    new = SqlStore(ClickHouseBackend(address), known)
    with pytest.raises(DatabaseOlderError, match="run tocsin migrate"):
        new.check()
    new.migrate()
    for call in (old.check, old.migrate):
        with pytest.raises(DatabaseNewerError, match="use a newer tocsin"):
            call()
    old.close()
    new.close()


def test_two_that_migrate_at_once_do_no_harm(private_endpoint: MakeEndpoint) -> None:
    endpoint = private_endpoint()
    endpoint.start()
    stores = [store_of(endpoint) for _ in range(4)]
    said: list[int | str] = []

    def migrate(store: ClickHouseStore) -> None:
        try:
            said.append(store.migrate())
        except StoreError as error:
            said.append(str(error))

    threads = [threading.Thread(target=migrate, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [len(migrations())] * 4
    for store in stores:
        store.close()


# --- a real server, old --------------------------------------------------------------------------


def test_an_old_server_is_refused_with_its_version(old_server: OldServer) -> None:
    address = ClickHouseAddress("127.0.0.1", old_server.port, user="tocsin", password="right")
    with pytest.raises(StoreRefusedError, match=r"is ClickHouse 18\.16\.\d+: tocsin's tables need 22\.8 or newer"):
        ClickHouseStore(address).check()


def test_a_real_server_refuses_credentials_and_restarts(old_server: OldServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse_store, "OLDEST_SERVER", (18, 0))
    for user, password in (("tocsin", "wrong"), ("nobody", "right")):
        refused = ClickHouseBackend(ClickHouseAddress("127.0.0.1", old_server.port, user=user, password=password))
        with pytest.raises(StoreRefusedError, match=r"(?i)password|unknown user"):
            refused.select("SELECT 1")
    backend = ClickHouseBackend(ClickHouseAddress("127.0.0.1", old_server.port, user="tocsin", password="right"))
    assert backend.select("SELECT 1 AS one") == [{"one": 1}]
    backend.execute("CREATE TABLE default.t (a UInt32, s String) ENGINE = MergeTree ORDER BY a")
    backend.insert("default.t", ("a", "s"), [{"a": 1, "s": "ü"}])
    with pytest.raises(RowRefusedError):
        backend.insert("default.t", ("a", "s"), [{"a": -1, "s": ""}])
    old_server.child.crash()
    with pytest.raises(StoreAwayError):
        backend.insert("default.t", ("a", "s"), [{"a": 2, "s": ""}])
    old_server.start()
    backend.insert("default.t", ("a", "s"), [{"a": 2, "s": ""}])
    assert backend.select("SELECT a, s FROM default.t ORDER BY a") == [{"a": 1, "s": "ü"}, {"a": 2, "s": ""}]
    with pytest.raises(StoreError, match=r"Table default.nix doesn't exist"):
        backend.select("SELECT * FROM default.nix")
    backend.close()

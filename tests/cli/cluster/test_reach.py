"""Who reaches a cluster of one machine: Beam's ports, the endpoint's users, Flink's settings, and what ``up`` says."""

from __future__ import annotations

import json
import stat
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_driver import Client, errors

from tests.pipeline.stores.hostile import CALLS
from tocsin.cli.cluster import command, flink_conf
from tocsin.cli.cluster.beam_loopback import CLASS, UnknownJarError, opt_folder, patched, write_jar
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.endpoint_users import READER, WRITER, address_of, make_users
from tocsin.cli.cluster.flink_conf import FlinkConfig, flink_environment, flink_home, settings_of
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore
from tocsin.schemas.errors import EngineError, StoreRefusedError

_MAGIC = b"\xca\xfe\xba\xbe"
MakeEndpoint = Callable[..., ClickHouseEndpoint]


@pytest.fixture(scope="module")
def original() -> Path:
    pytest.importorskip("pyflink", reason="no pyflink: pip install 'tocsin[flink]'")
    return next((flink_home() / "opt").glob("flink-python-*.jar"))


# --- Beam's ports --------------------------------------------------------------------------------


def test_the_class_that_binds_gets_one_other_call(original: Path) -> None:
    with zipfile.ZipFile(original) as jar:
        before = jar.read(CLASS)
    after = patched(before)
    assert b"forAddress" not in before
    assert b"forAddress" in after
    assert b"(Ljava/net/SocketAddress;)L" in after
    with pytest.raises(UnknownJarError, match="times, not once"):
        patched(after)


@pytest.mark.parametrize("data", [b"", b"PK", _MAGIC + bytes(4) + b"\xff\xff", _MAGIC + bytes(6)])
def test_another_class_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownJarError):
        patched(data)


def test_a_jar_is_written_whole_or_not_at_all(tmp_path: Path, original: Path) -> None:
    small, other = tmp_path / "small.jar", tmp_path / "other.jar"
    with zipfile.ZipFile(original) as whole, zipfile.ZipFile(small, "w") as jar:
        jar.writestr(CLASS, whole.read(CLASS))
        jar.writestr("a/b.txt", b"kept")
    write_jar(small, tmp_path / "out.jar")
    with zipfile.ZipFile(tmp_path / "out.jar") as jar:
        assert jar.read("a/b.txt") == b"kept"
        assert b"forAddress" in jar.read(CLASS)
    with zipfile.ZipFile(other, "w") as jar:
        jar.writestr("a", b"")
    with pytest.raises(UnknownJarError):
        write_jar(other, tmp_path / "none.jar")
    (tmp_path / "broken.jar").write_bytes(b"no jar")
    with pytest.raises(EngineError):
        write_jar(tmp_path / "broken.jar", tmp_path / "none.jar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jar", "other.jar", "out.jar", "small.jar"]


def test_flink_gets_the_changed_jar(original: Path, tmp_path: Path) -> None:
    found = Path(flink_environment(flink_home(), tmp_path, tmp_path)["FLINK_OPT_DIR"])
    assert found == opt_folder(flink_home())
    with zipfile.ZipFile(found / original.name) as jar:
        assert b"forAddress" in jar.read(CLASS)


# --- what is told --------------------------------------------------------------------------------


def reported(
    monkeypatch: pytest.MonkeyPatch, *, bound: bool, metrics: str = "", settings: list[str] | None = None
) -> str:
    monkeypatch.setattr(command, "bound_opt_folder", lambda _: Path("/opt") if bound else None)
    args = Namespace(metrics_ports=metrics, flink_setting=settings or [])
    return "\n".join(command.reach_lines(args, Path("/home")))


def test_up_says_loopback_only_where_it_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(monkeypatch, bound=True).startswith("all on this machine's loopback")
    for opened in (
        reported(monkeypatch, bound=False),
        reported(monkeypatch, bound=True, metrics="9249"),
        reported(monkeypatch, bound=True, settings=["rest.bind-address=0.0.0.0"]),
    ):
        assert opened.startswith("WARNING: on ALL interfaces of this machine: ")
        assert "all on this machine's loopback" not in opened
    assert "which serve any file" in reported(monkeypatch, bound=False)


def test_an_unknown_flink_keeps_its_own_jar_and_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Path) -> Path:
        raise UnknownJarError("another one")

    monkeypatch.setattr(flink_conf, "opt_folder", refuse)
    assert flink_environment(tmp_path, tmp_path, tmp_path)["FLINK_OPT_DIR"] == str(tmp_path / "opt")
    assert "Beam's ports stay open to the network" in caplog.text


def test_the_address_that_is_shown_holds_no_password(tmp_path: Path) -> None:
    users = json.loads(make_users(tmp_path).read_text())
    shown = address_of("clickhouse://127.0.0.1:9000", tmp_path, READER)
    lines = command.address_lines({"kafka": "k:1", "flink": "f", "clickhouse": shown}, 1.0, ["reach"])
    assert "reach" in lines
    for user in users.values():
        assert user["password"] not in "\n".join(lines)
    assert parse_address(shown).read_password() == users[READER]["password"]
    assert command.PORT_OF_ADDRESS.search(shown)[1] == "9000"  # type: ignore[index]


def test_flink_takes_no_jars_and_binds_to_loopback(tmp_path: Path) -> None:
    settings = settings_of(FlinkConfig(tmp_path), 1, 2, tmp_path)
    assert settings["web.submit.enable"] == "false"
    for name in ("jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address", "rest.address"):
        assert settings[name] == "127.0.0.1"


# --- the endpoint --------------------------------------------------------------------------------


def test_passwords_are_drawn_once_and_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "clickhouse"
    first = json.loads(make_users(folder).read_text())
    assert json.loads(make_users(folder).read_text()) == first
    assert first[READER]["password"] != first[WRITER]["password"]
    assert all(len(user["password"]) >= 32 for user in first.values())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.fixture
def endpoint(private_endpoint: MakeEndpoint, tmp_path: Path) -> ClickHouseEndpoint:
    made = private_endpoint(users_file=make_users(tmp_path / "users"))
    made.start()
    return made


def test_the_endpoint_wants_a_password_and_leaves_the_database_for_nobody(
    endpoint: ClickHouseEndpoint, tmp_path: Path
) -> None:
    secret, written = tmp_path / "secret", tmp_path / "written"
    secret.write_text("do not read me")
    nobody = ClickHouseStore(parse_address(endpoint.url, {}))
    with pytest.raises(StoreRefusedError, match="Authentication failed"):
        nobody.check()
    writer = ClickHouseStore(parse_address(address_of(endpoint.url, tmp_path / "users", WRITER)))
    writer.migrate()
    writer.close()
    hostile = [f"SELECT * FROM {call.format(file=secret)}" for call in CALLS]
    hostile += [f"INSERT INTO FUNCTION file('{written}', 'CSV', 'a Int32') SELECT 1", f"SELECT file('{secret}')"]
    hostile += [f"SELECT 1 INTO OUTFILE '{written}'", f"CREATE TABLE tocsin.x ENGINE = File(CSV, '{secret}')"]
    hostile += ["CREATE TABLE default.x (a String) ENGINE = URL('http://127.0.0.1:9/', CSV)", "SELECT 1; SELECT 2"]
    for name in (READER, WRITER):
        address = parse_address(address_of(endpoint.url, tmp_path / "users", name))
        client = Client(address.host, port=address.port, user=name, password=address.read_password())
        for sql in hostile:
            with pytest.raises(errors.Error):
                client.execute(sql)
            assert not written.exists()
        assert client.execute("SELECT count() FROM tocsin.incidents") == [(0,)]
        if name == READER:
            for sql in ("DROP TABLE tocsin.incidents", "CREATE DATABASE x", "KILL QUERY WHERE 1"):
                with pytest.raises(errors.ServerException, match="Not enough privileges"):
                    client.execute(sql)
        client.disconnect()


def test_a_reader_reads_with_tocsins_own_commands(endpoint: ClickHouseEndpoint, tmp_path: Path) -> None:
    for name in (WRITER, READER):
        store = ClickHouseStore(parse_address(address_of(endpoint.url, tmp_path / "users", name)))
        if name == WRITER:
            store.migrate()
        store.check()
        assert store.query("SELECT count() FROM incidents_current", "TSV") == b"0\n"
        store.close()

"""The same commands on a data folder and on a server: the same lines."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_incidents import FILL
from tests.pipeline.stores.samples import SECOND, verdict
from tocsin.cli import drill_mark
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint, EndpointConfig
from tocsin.cli.cluster.process import free_port
from tocsin.cli.main import main
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseBackend, ClickHouseStore
from tocsin.pipeline.stores.rows import Row
from tocsin.schemas.migrations import migrations
from tocsin.schemas.verdicts import VerdictState


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    data = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, "-c", FILL, str(data)], check=True, timeout=60, cwd=repo_root)
    drill_mark.leave_drill_mark(data)  # no engine is expected to judge there
    return data


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with what ``FILL`` writes."""
    endpoint = ClickHouseEndpoint(EndpointConfig(tmp_path_factory.mktemp("clickhouse")))
    endpoint.start()
    assert main(["migrate", "--clickhouse", endpoint.url]) == 0
    store = ClickHouseStore(parse_address(endpoint.url))
    store.write_verdicts(
        [
            verdict("a", expires_ns=7_000_000_000 * SECOND),
            verdict("b", state=VerdictState.RESOLVED, reason="recovered"),
            verdict("unrenewed", state=VerdictState.CONFIRMED),
        ]
    )
    store.close()
    yield endpoint.url
    endpoint.stop()


@pytest.mark.parametrize(
    "command",
    [
        ("incidents", "--all"),
        ("incidents", "--all", "--json"),
        ("incidents", "--all", "--job", "job-1"),
        ("sql", "SELECT * EXCEPT updated FROM tocsin.incidents FINAL ORDER BY verdict_id"),
        ("sql", "SELECT * FROM incidents_all ORDER BY verdict_id", "--format", "JSONEachRow"),
        ("sql", "SELECT * FROM incidents_all ORDER BY verdict_id", "--format", "CSVWithNames"),
        ("sql", "SHOW TABLES", "--format", "TSV"),
        ("sql", "DESCRIBE incidents", "--format", "Vertical"),
    ],
)
def test_a_server_answers_as_a_folder_does(
    folder: Path, url: str, command: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    said = []
    for flags in (("--clickhouse", url), ("--data", str(folder))):
        assert main([*command, *flags]) == 0
        said.append(capfdbinary.readouterr())
    assert said[0] == said[1]
    assert said[0].out


def test_migrate_says_where_and_which(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--clickhouse", url]) == 0
    assert capsys.readouterr().out == f"{url.replace('//', '//default@')}: schema version {len(migrations())}\n"


def test_the_environment_names_a_server_and_a_flag_counts_more(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOCSIN_CLICKHOUSE", f"clickhouse://nobody@127.0.0.1:{free_port()}")
    assert main(["incidents"]) == 2
    assert "does not answer" in capsys.readouterr().err
    assert main(["incidents", "--clickhouse", url]) == 0
    assert main(["migrate", "--data", str(folder)]) == 0
    assert main(["incidents", "--clickhouse", url, "--data", str(folder)]) == 2
    assert "they are two databases" in capsys.readouterr().err


def test_what_is_wrong_is_one_line_and_no_traceback(url: str) -> None:
    """In a process of its own: the driver's log has no handler there."""
    absent = f"clickhouse://127.0.0.1:{free_port()}"
    for address, said in ((absent, "does not answer"), (url.replace("//", "//nobody:x@"), "Authentication failed")):
        command = [sys.executable, "-m", "tocsin", "incidents", "--clickhouse", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert said in done.stderr


def test_a_newer_database_is_refused_by_every_command(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = ClickHouseEndpoint(EndpointConfig(tmp_path))
    endpoint.start()
    try:
        assert main(["incidents", "--clickhouse", endpoint.url]) == 2
        assert "has schema version 0, this program needs" in capsys.readouterr().err
        assert main(["migrate", "--clickhouse", endpoint.url]) == 0
        backend = ClickHouseBackend(parse_address(endpoint.url))
        backend.insert("tocsin.schema_migrations", ("number", "name", "sha256"), [_NEWER])
        backend.close()
        for command in (["incidents"], ["sql", "SELECT 1"], ["migrate"]):
            assert main([*command, "--clickhouse", endpoint.url]) == 2
            assert "use a newer tocsin" in capsys.readouterr().err
    finally:
        endpoint.stop()


_NEWER: Row = {"number": 99, "name": "of_the_future", "sha256": "0" * 64}

"""tocsin incidents, sql, migrate, causes: by the folder, and through a running engine."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli import paths
from tocsin.cli.incidents import render
from tocsin.cli.main import main
from tocsin.pipeline.control import ControlServer, sql_handler
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import ConfigError, StoreError

FILL = """
import sys
from pathlib import Path
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.schemas.verdicts import VerdictState
store = ChdbStore(Path(sys.argv[1]) / "chdb"); store.migrate()
store.write_verdicts([verdict("a"), verdict("b", state=VerdictState.RESOLVED, reason="recovered")])
store.close()
"""


def tocsin(data: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tocsin", *args, "--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    data = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, "-c", FILL, str(data)], check=True, timeout=60, cwd=repo_root)
    return data


def test_incidents_of_a_folder(filled: Path) -> None:
    done = tocsin(filled, "incidents")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 incident now\n\nhost n3 (rank 3): process frozen since ")
    assert "7 peers wait in all_reduce #41" in done.stdout
    rows = [json.loads(line) for line in tocsin(filled, "incidents", "--all", "--json").stdout.splitlines()]
    assert {row["verdict_id"] for row in rows} == {"a", "b"}


def test_incidents_of_a_job_that_has_none(filled: Path) -> None:
    assert tocsin(filled, "incidents", "--job", "it's").stdout == "nothing is wrong now in job it's\n"


def test_sql_prints_what_the_database_formats(filled: Path) -> None:
    done = tocsin(filled, "sql", "SELECT machine, ranks FROM tocsin.incidents_current", "--format", "CSV")
    assert (done.returncode, done.stdout) == (0, '"n3","3"\n')


def test_sql_into_a_pipe_is_rows_with_tabs_and_a_header(filled: Path) -> None:
    done = tocsin(filled, "sql", "SELECT machine, ranks FROM tocsin.incidents_current")
    assert (done.returncode, done.stdout) == (0, "machine\tranks\nn3\t3\n")


def test_sql_on_a_terminal_is_a_table(filled: Path) -> None:
    near, far = os.openpty()
    command = [sys.executable, "-m", "tocsin", "sql", "SELECT 1 AS one", "--data", str(filled)]
    subprocess.run(command, stdout=far, timeout=60, check=True)
    os.close(far)
    shown = os.read(near, 10_000).decode()
    os.close(near)
    assert "one" in shown
    assert "─" in shown


def test_a_second_statement_is_refused_and_not_dropped(filled: Path) -> None:
    done = tocsin(filled, "sql", "SELECT 1; SELECT 2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Multi-statements are not allowed" in done.stderr


def test_wrong_sql_is_one_line_and_status_2(filled: Path) -> None:
    done = tocsin(filled, "sql", "SELECT * FROM nix")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "nix" in done.stderr


def test_migrate_makes_a_database_and_says_its_version(tmp_path: Path) -> None:
    done = tocsin(tmp_path / "new", "migrate")
    assert done.returncode == 0, done.stderr
    assert "schema version" in done.stdout


def test_reading_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--data", str(tmp_path / "typo")]) == 2
    assert "no incident database in" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    """A running engine's socket, and no folder: whoever opens a folder fails."""

    def query(sql: str, fmt: str) -> bytes:
        if "nix" in sql:
            raise StoreError("Unknown table nix")
        return b"6\n" if "schema_migrations" in sql else b""

    with ControlServer(paths.control_socket(tmp_path), {"sql": sql_handler(query)}):
        yield tmp_path


def test_a_running_engine_is_asked(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--data", str(engine)]) == 0
    assert capsys.readouterr().out == "nothing is wrong now\n"
    assert main(["migrate", "--data", str(engine)]) == 0
    assert "schema version 6, open in the running engine" in capsys.readouterr().out


def test_a_running_engines_error_is_the_same_line(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "SELECT nix", "--data", str(engine)]) == 2
    assert capsys.readouterr().err == "tocsin sql: Unknown table nix\n"


def test_causes_are_all_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["causes"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == list(CAUSES)
    assert main(["causes", "--json"]) == 0
    assert [row["cause"] for row in json.loads(capsys.readouterr().out)] == list(CAUSES)


def test_long_evidence_is_cut() -> None:
    names = (
        "summary",
        "what",
        "state",
        "since",
        "machine",
        "ranks",
        "why",
        "action",
        "reason",
        "job",
        "attempt",
    )
    row: dict[str, Any] = dict.fromkeys((*names, "cluster", "verdict_id", "update_number"), "x")
    text = render([{**row, "confidence": 0.93, "evidence_list": [f"e{n}" for n in range(9)]}])
    assert "e5" in text
    assert "e6" not in text
    assert "3 more" in text
    assert "93%" in text


# --- paths ---------------------------------------------------------------------------------------


def test_the_data_folder_is_flag_then_environment_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("TOCSIN_DATA", raising=False)
    assert paths.data_folder() == tmp_path / "home/.local/share/tocsin"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert paths.data_folder() == tmp_path / "xdg/tocsin"
    monkeypatch.setenv("TOCSIN_DATA", str(tmp_path / "env"))
    assert paths.data_folder() == tmp_path / "env"
    assert paths.data_folder(tmp_path / "flag") == tmp_path / "flag"


def test_a_long_folder_gets_a_short_socket_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="r-") as runtime:  # as short as runtime folders are
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        long = tmp_path / ("x" * 90)
        socket_path = paths.control_socket(long)
        assert socket_path.parent == Path(runtime)
        assert socket_path == paths.control_socket(long / ".." / long.name)
        assert socket_path != paths.control_socket(tmp_path / ("y" * 90))
        with ControlServer(socket_path, {}):
            assert socket_path.exists()


def test_a_runtime_folder_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    monkeypatch.setattr(paths, "Path", lambda text: tmp_path if "/tmp/" in text else Path("/nonexistent"))
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="yours alone"):
        paths.runtime_folder()

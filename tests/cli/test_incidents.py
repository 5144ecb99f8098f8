"""tocsin incidents, sql, migrate, causes: by the folder, and through a running engine."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cli import drill_mark, paths
from tocsin.cli.drill.runner import DrillGround
from tocsin.cli.incident_text import action_text, as_json, length_text, render_one, short_ids
from tocsin.cli.incidents import one_of
from tocsin.cli.main import main
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer, EngineRefusedError, sql_handler
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import ConfigError, StoreError
from tocsin.schemas.verdicts import ActionKind

FILL = """
import sys
from pathlib import Path
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.schemas.verdicts import VerdictState
store = ChdbStore(Path(sys.argv[1]) / "chdb"); store.migrate()
far_ns = 7_000_000_000 * 1_000_000_000
store.write_verdicts([
    verdict("a", expires_ns=far_ns),
    verdict("b", state=VerdictState.RESOLVED, reason="recovered"),
    verdict("unrenewed", state=VerdictState.CONFIRMED),
])
store.close()
"""
"""One that stands, one that is over, one that stood when its engine died."""


def tocsin(data: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tocsin", *args, "--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@cache
def read(data: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """What a command says of a folder in which nothing changes: it is run once, as each start of chDB takes seconds."""
    return tocsin(data, *args)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    data = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, "-c", FILL, str(data)], check=True, timeout=60, cwd=repo_root)
    return data


def test_incidents_of_a_folder(filled: Path) -> None:
    done = read(filled, "incidents")
    count, _, head, row, *_ = done.stdout.splitlines()
    assert count == "1 incident now"
    assert head.split() == ["ID", "AGE", "STATE", "JOB", "MACHINE", "WHAT", "ACTION"]
    for said in (
        "a ",
        "open",
        "job-1",
        "n3 (rank 3)",
        "hangs: process_frozen",
        "restart process of rank 3 of job job-1",
    ):
        assert said in row
    rows = [json.loads(line) for line in read(filled, "incidents", "--all", "--json").stdout.splitlines()]
    assert {row["verdict_id"] for row in rows} == {"a", "b", "unrenewed"}


def test_json_has_the_columns_of_the_view(filled: Path) -> None:
    shown = [json.loads(line) for line in read(filled, "incidents", "--json").stdout.splitlines()]
    query = "SELECT * FROM tocsin.incidents_current WHERE verdict_id = 'a'"
    viewed = [json.loads(line) for line in tocsin(filled, "sql", query, "--format", "JSONEachRow").stdout.splitlines()]
    assert [list(row) for row in shown] == [list(row) for row in viewed]
    otherwise = ("since", "opened", "detected", "action")
    assert [{**row, **dict.fromkeys(otherwise)} for row in shown] == [
        {**row, **dict.fromkeys(otherwise)} for row in viewed
    ]


def test_json_tells_the_same_action_as_the_table(filled: Path) -> None:
    [row] = [json.loads(line) for line in read(filled, "incidents", "--json").stdout.splitlines()]
    assert row["action"] == "restart process of rank 3 of job job-1 (proposed)"


@given(st.sampled_from([one.name for one in CAUSES.values() if one.blames != "machine"]), st.sampled_from(ActionKind))
def test_json_names_no_machine_as_target_of_what_is_not_its_fault(cause: str, kind: ActionKind) -> None:
    times = dict.fromkeys(("since", "opened", "detected"), "2025-11-01 00:00:00.000")
    row = {**times, "action": f"{kind} box (proposed)", "cause": cause, "ranks": "3", "job": "j", "expires": "x"}
    assert "box" not in str(as_json(row)["action"])


def test_times_have_a_zone(filled: Path) -> None:
    rows = [json.loads(line) for line in read(filled, "incidents", "--all", "--json").stdout.splitlines()]
    for row in rows:
        for name in ("since", "opened", "detected"):
            assert row[name].endswith("Z")
            assert datetime.fromisoformat(row[name]).utcoffset() == timedelta(0)
    assert {row["since"] for row in rows} == {"2025-10-31T23:59:50.000Z"}
    assert "since      2025-10-31T23:59:50Z" in read(filled, "incidents", "show", "b").stdout


def test_without_an_engine_nothing_is_judged(filled: Path) -> None:
    for command in (("incidents",), ("incidents", "--all"), ("incidents", "--json"), ("incidents", "show", "a")):
        done = tocsin(filled, *command)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "no engine runs" in done.stderr
        assert done.stdout, "what is known is shown nevertheless"


def test_the_folder_of_a_drill_that_ended_is_fine(filled: Path) -> None:
    drill_mark.leave_drill_mark(filled)
    try:
        done = tocsin(filled, "incidents")
        assert (done.returncode, done.stderr) == (0, "")
        assert "1 incident now" in done.stdout
    finally:
        drill_mark.remove_drill_mark(filled)


def test_an_engine_that_is_gone_is_missed(tmp_path: Path) -> None:
    """Also in a folder that was a drill's before, and whether it was stopped or killed."""
    drill_mark.leave_drill_mark(tmp_path)
    for number in (signal.SIGTERM, signal.SIGKILL):
        command = ["serve", "--listen", f"unix:{tmp_path}/e.sock", "--metrics-listen", "", "--data", str(tmp_path)]
        with subprocess.Popen([sys.executable, "-m", "tocsin", *command], stderr=subprocess.PIPE, text=True) as engine:
            assert engine.stderr is not None
            assert any("agents on" in line for line in engine.stderr)
            with_engine = tocsin(tmp_path, "incidents")
            engine.send_signal(number)
            engine.communicate(timeout=60)
        without = tocsin(tmp_path, "incidents")
        assert (with_engine.returncode, with_engine.stdout, with_engine.stderr) == (0, "nothing is wrong now\n", "")
        assert (without.returncode, without.stdout) == (2, "nothing is wrong now\n")
        assert "no engine runs" in without.stderr


@pytest.mark.parametrize(("error", "is_left"), [(None, True), (KeyboardInterrupt(), False)])
def test_a_drill_that_ends_in_order_leaves_its_mark(
    tmp_path: Path, error: BaseException | None, *, is_left: bool
) -> None:
    ground = DrillGround.__new__(DrillGround)
    ground.processes = mock.Mock()
    ground.engine = mock.Mock(data_folder=tmp_path)
    ground.__exit__(type(error) if error else None, error, None)
    assert drill_mark.has_drill_mark(tmp_path) is is_left


def test_what_nobody_renewed_is_no_now_and_has_an_end(filled: Path) -> None:
    now = read(filled, "incidents").stdout
    assert "unrenewed" not in now
    everything = read(filled, "incidents", "--all").stdout
    for said in (" ENDED ", "LENGTH", "2025-11-01T00:09:50Z", "10 min 0 s", "expired"):
        assert said in everything
    whole = read(filled, "incidents", "show", "unr").stdout
    assert "(expired)" in whole
    assert "ended      2025-11-01T00:09:50Z, after 10 min 0 s" in whole
    assert "ended      2025-10-31T23:59:55Z, after 5 s" in read(filled, "incidents", "show", "b").stdout


def test_one_incident_in_full(filled: Path) -> None:
    whole = read(filled, "incidents", "show", "a").stdout
    assert whole.startswith("host n3 (rank 3): process frozen since ")
    assert "7 peers wait in all_reduce #41" in whole


def test_an_unknown_id_is_refused(filled: Path) -> None:
    for words, said in (
        (("show", "x"), "ID = 'x'"),
        (("show",), "beginning of an incident's id"),
        (("lst",), "'show'"),
    ):
        done = tocsin(filled, "incidents", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_an_ambiguous_beginning_names_what_it_fits() -> None:
    rows = [{"verdict_id": "ab1"}, {"verdict_id": "ab2"}, {"verdict_id": "ab"}]
    assert one_of(rows, "ab")["verdict_id"] == "ab", "a whole id is one"
    with pytest.raises(ConfigError, match="ab1, ab2"):
        one_of(rows[:2], "ab")


def test_a_job_of_which_nobody_has_heard_is_refused(filled: Path) -> None:
    done = tocsin(filled, "incidents", "--job", "job-11")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'job-1'?" in done.stderr


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "restart process of rank 3 of job j (proposed, dry run)"),
        ({"ranks": "3, 4"}, "restart processes of ranks 3, 4 of job j (proposed, dry run)"),
        ({"ranks": ""}, "restart job j (proposed, dry run)"),
        ({"action": "rollback n3 (proposed)", "cause": "nan_gradient"}, "rollback job j (proposed)"),
        ({"action": "notify n3 (proposed)", "cause": "loader_stall"}, "notify (proposed)"),
        ({"action": "drain n3 (waiting)", "cause": "power_cap"}, "drain n3 (waiting)"),
        ({"cause": "hdfs_error"}, "restart process of rank 3 of job j on n3 (proposed, dry run)"),
        ({"cause": "hdfs_error", "ranks": ""}, "restart processes of job j on n3 (proposed, dry run)"),
        ({"action": "none", "cause": "workload_change"}, "none"),
    ],
)
def test_an_action_says_what_of(changes: dict[str, str], text: str) -> None:
    row = {"action": "restart n3 (proposed, dry run)", "cause": "process_frozen", "ranks": "3", "job": "j"}
    assert action_text({**row, **changes}) == text


@pytest.mark.parametrize("cause", [cause.name for cause in CAUSES.values() if cause.blames == "program"])
@pytest.mark.parametrize("kind", ["restart", "rollback", "notify", "drain", "evict"])
def test_a_cause_of_the_program_has_no_machine_as_target(cause: str, kind: str) -> None:
    row = {"action": f"{kind} n3 (proposed)", "cause": cause, "ranks": "3", "job": "j"}
    assert "n3" not in action_text(row)


@given(st.lists(st.text("0123456789abcdef", min_size=1, max_size=16), unique=True))
def test_a_shortened_id_is_the_beginning_of_one_only(ids: list[str]) -> None:
    for whole, short in short_ids(ids).items():
        assert short == whole or [one for one in ids if one.startswith(short)] == [whole]
        assert len(short) >= min(len(whole), 8)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.6, "1 min 0 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")]
)
def test_lengths_have_two_units(seconds: float, text: str) -> None:
    assert length_text(seconds) == text


def test_sql_prints_what_the_database_formats(filled: Path) -> None:
    done = tocsin(filled, "sql", "SELECT DISTINCT machine, ranks FROM tocsin.incidents_current", "--format", "CSV")
    assert (done.returncode, done.stdout) == (0, '"n3","3"\n')


def test_sql_into_a_pipe_is_rows_with_tabs_and_a_header(filled: Path) -> None:
    done = tocsin(filled, "sql", "SELECT DISTINCT machine, ranks FROM tocsin.incidents_current")
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

    def health(_: object) -> dict[str, Any]:
        return {"tick_age_seconds": 0.5, "live": "ok"}

    def status(_: object) -> dict[str, Any]:
        return {"jobs": [{"job_id": "quiet"}]}

    def close(request: dict[str, Any]) -> dict[str, Any]:
        if request["id"] != "ab":
            raise EngineRefusedError("no incident that stands now begins with it", "not_found")
        return {"verdict_id": "abcd", "job": "quiet", "actor": f"{request['actor']} ({request['note']})"}

    handlers = {"sql": sql_handler(query), "health": health, "status": status, "incident_close": close}
    with ControlServer(paths.control_socket(tmp_path), handlers):
        yield tmp_path


def test_a_running_engine_is_asked(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--data", str(engine)]) == 0
    assert capsys.readouterr().out == "nothing is wrong now\n"
    assert main(["migrate", "--data", str(engine)]) == 0
    assert "schema version 6, open in the running engine" in capsys.readouterr().out


def test_a_job_that_the_engine_hears_is_known(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--data", str(engine), "--job", "quiet"]) == 0
    assert capsys.readouterr().out == "nothing is wrong now in job quiet\n"
    assert main(["incidents", "--data", str(engine), "--job", "loud"]) == 2
    assert "known are quiet" in capsys.readouterr().err


def test_an_incident_is_closed_by_whoever_asks(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "close", "ab", "--note", "new card", "--data", str(engine)]) == 0
    reported = capsys.readouterr().out
    assert reported.startswith(f"incident abcd of job quiet is closed by uid:{os.getuid()} (new card)")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["close", "ab"], "--note"),
        (["close", "ab", "--note", " "], "--note"),
        (["close", "x", "--note", "n"], "no incident that stands now"),
        (["close", "--note", "n"], "beginning of an incident's id"),
        (["show", "ab", "--note", "n"], "--note"),
    ],
)
def test_what_cannot_be_closed_is_one_line(
    engine: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["incidents", *words, "--data", str(engine)]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert said in reported.err


def test_nothing_is_closed_where_no_engine_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "close", "ab", "--note", "n", "--data", str(tmp_path)]) == 2
    assert "no engine listens" in capsys.readouterr().err


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
    row: dict[str, Any] = dict.fromkeys((*names, "cluster", "verdict_id", "update_number", "cause"), "x")
    row |= dict.fromkeys(("since", "detected", "expires"), "2025-10-31 23:59:55.000000000")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    text = render_one({**row, "confidence": 0.93, "evidence_list": [f"e{n}" for n in range(9)]}, now)
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

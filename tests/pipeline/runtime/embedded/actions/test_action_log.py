"""The file of actions and of the controller's state."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tocsin.pipeline.runtime.embedded.actions.action_log import ActionLog, LogLine
from tocsin.schemas.errors import ConfigError


def _line(action_id: str, changed_ns: int, value: bytes = b"v") -> LogLine:
    return LogLine(0, action_id, changed_ns, value, b"s")


def test_a_reader_sees_each_action_as_it_is_now(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "a.db")
    log.write([_line("a", 1, b"a1"), _line("b", 2, b"b1"), _line("a", 3, b"a2")], {})
    assert [(one.seq, one.value) for one in log.after(0)] == [(2, b"b1"), (3, b"a2")]
    assert [one.value for one in log.after(2)] == [b"a2"]
    assert log.after(3) == []
    assert [one.value for one in log.history("a")] == [b"a1", b"a2"]


def test_lines_and_state_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "a.db")
    log.write([_line("a", 1)], {"part": b"1"})
    with pytest.raises(sqlite3.Error):
        log.write([_line("b", 2), LogLine(0, "c", 3, None, b"")], {"part": b"2"})  # type: ignore[arg-type]
    assert ([one.action_id for one in log.after(0)], log.parts()) == (["a"], {"part": b"1"})


def test_what_is_written_is_there_for_another_process(tmp_path: Path) -> None:
    first = ActionLog(tmp_path / "a.db")
    first.write([_line("a", 1)], {"x": b"\0\xff", "y": b""})
    second = ActionLog(tmp_path / "a.db")
    assert (second.parts(), [one.action_id for one in second.after(0)]) == ({"x": b"\0\xff", "y": b""}, ["a"])
    assert (tmp_path / "a.db").stat().st_mode & 0o077 == 0


def test_old_actions_are_forgotten_except_those_that_the_controller_knows(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "a.db")
    log.write([_line("old", 1), _line("kept", 1), _line("renewed", 1), _line("renewed", 100)], {})
    log.forget_before(50, ["kept"])
    assert [one.action_id for one in log.after(0)] == ["kept", "renewed"]
    log.write([_line("new", 101)], {})
    assert log.after(0)[-1].seq == 5, "a place in the log is given once"


@pytest.mark.parametrize("content", [b"this is no database, " * 100, None])
def test_a_file_that_cannot_be_used_is_never_begun_anew(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.db"
    if content is None:
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="the log of actions"):
        ActionLog(path)
    assert path.read_bytes() == before

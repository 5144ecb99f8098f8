"""tocsin maintenance and tocsin feedback: what they ask of the engine, and what they print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli import paths
from tocsin.cli.durations import duration_of, moment_ns, seconds_in
from tocsin.cli.main import main
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer, EngineRefusedError
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import NS_PER_SECOND

WORK = {
    "maintenance_id": "0123456789abcdef",
    "cluster": "east",
    "target_kind": "host",
    "target": "n3",
    "begin_ns": 0,
    "end_ns": 7200 * NS_PER_SECOND,
    "reason": "new cable",
    "actor": "uid:7",
    "state": "on",
}
LINE = "01234567  goes on: host n3 of cluster east, 1970-01-01T00:00:00Z to 1970-01-01T02:00:00Z, by uid:7: new cable\n"


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """Requests that an engine got; it refuses ids that begin with x."""
    got: list[dict[str, Any]] = []

    def work(request: dict[str, Any]) -> dict[str, Any]:
        got.append(request)
        if str(request.get("id", "")).startswith("x"):
            raise EngineRefusedError("'x': No work that is planned or goes on has this id.", "not_found")
        return dict(WORK)

    def feedback(request: dict[str, Any]) -> dict[str, Any]:
        got.append(request)
        told = {"verdict_id": "abcd", "is_true": request["is_true"], "note": request["note"], "actor": "uid:7"}
        return {"kind": "feedback", **told}

    handlers = {
        "maintenance": work,
        "maintenance_end": work,
        "maintenance_list": lambda _request: {"works": [WORK, WORK]},
        "feedback": feedback,
    }
    with ControlServer(paths.control_socket(tmp_path), handlers):
        yield got


def test_work_is_planned(asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["maintenance", "n3", "--for", "2h", "--reason", "new cable", "--data", str(tmp_path)]
    assert main([*words, "--kind", "host", "--from", "1970-01-01T00:00:30Z", "--cluster", "east"]) == 0
    [request] = asked
    assert {name: request[name] for name in ("target", "for_seconds", "reason", "kind", "cluster", "begin_ns")} == {
        "target": "n3",
        "for_seconds": 7200,
        "reason": "new cable",
        "kind": "host",
        "cluster": "east",
        "begin_ns": 30 * NS_PER_SECOND,
    }
    assert capsys.readouterr().out == f"{LINE}when it is done: tocsin maintenance end 01234567\n"
    main(words)
    assert "begin_ns" not in asked[-1], "now is the engine's now"


def test_a_host_may_be_called_list(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    assert main(["maintenance", "list", "--for", "2h", "--reason", "r", "--data", str(tmp_path)]) == 0
    assert asked[0]["target"] == "list"


def test_work_is_listed_and_ended(
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["maintenance", "list", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out == 2 * LINE
    assert main(["maintenance", "end", "0123", "--json", "--data", str(tmp_path)]) == 0
    assert asked[0]["id"] == "0123"
    assert json.loads(capsys.readouterr().out) == WORK


@pytest.mark.parametrize(("word", "said"), [("true", "upheld"), ("false", "denied")])
def test_a_verdict_is_judged(
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    assert main(["feedback", "ab", word, "--note", "the card was dead", "--data", str(tmp_path)]) == 0
    assert (asked[0]["id"], asked[0]["is_true"]) == ("ab", word == "true")
    assert capsys.readouterr().out == f"incident abcd is {said} by uid:7: the card was dead\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["n3", "--reason", "r"], "--for"),
        (["n3", "--for", "2h"], "--reason"),
        (["n3", "--for", "2h", "--reason", " "], "--reason"),
        (["n3", "--for", "soon", "--reason", "r"], "--for"),
        (["n3", "--for", "0h", "--reason", "r"], "--for"),
        (["n3", "--for", "2h", "--reason", "r", "--from", "soon"], "--from"),
        (["list", "--kind", "host"], "--kind"),
        (["end", "ab", "--for", "2h"], "--for"),
        (["end"], "--for"),
        (["stop", "ab"], "maintenance"),
        (["end", "x"], "No work that is planned"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["maintenance", *words, "--data", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert len(told.err.splitlines()) == 1
    assert all("target" not in request for request in asked)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "VERDICT"),
        (["ab", "true"], "--note"),
        (["ab", "--note", "n"], "true|false"),
        (["ab", "true", "--note", "n", "--export", "x"], "left out where --export is given"),
        (["--export", "x"], "no incident database"),
    ],
)
def test_a_judgement_is_whole_and_an_export_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["feedback", *words, "--data", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_an_engine_both_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintenance", "list", "--data", str(tmp_path)]) == 2
    assert main(["feedback", "ab", "true", "--note", "n", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("no engine listens") == 2


def test_durations_and_times() -> None:
    assert [seconds_in(text) for text in ("90s", "30min", "5m", "2h", "3d", "2", "h")] == [
        *(90, 1800, 300, 7200, 259_200, None, None)
    ]
    assert moment_ns("2h", "--from", 0, ahead=True) == 7200 * NS_PER_SECOND
    assert moment_ns("1970-01-01T01:00:00", "--from", 0, ahead=True) == 3600 * NS_PER_SECOND
    with pytest.raises(ConfigError, match="--for"):
        duration_of("-2h", "--for")

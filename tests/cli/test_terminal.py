"""Whatever stands in a name, a value or a message: nothing hidden reaches standard output or error."""

import argparse
import contextlib
import io
import json
import logging
import sys
import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile_answers import job_answer
from tocsin.cli import incident_text, logs, main, models, paths, score
from tocsin.cli.drill.judge import Heard
from tocsin.cli.drill.lines import PlainLines
from tocsin.cli.terminal import GuardedStream, guarded, unguarded
from tocsin.pipeline.recording.score import add_up
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer
from tocsin.schemas.errors import StoreError
from tocsin.schemas.printable import HIDDEN_CATEGORIES, json_escaped, json_text, plain

EVIL = "a\x1b[2J\x07\r\nnothing is wrong now\x9b1m\u202eb\u2028\u2029\u200d\x7f\ud800"

_HIDDEN = [
    chr(number) for number in range(sys.maxunicode + 1) if unicodedata.category(chr(number)) in HIDDEN_CATEGORIES
]
whole_texts = st.text() | st.text(st.sampled_from([one for one in _HIDDEN if unicodedata.category(one) != "Cs"]))
"""Texts without half characters."""
texts = st.text(st.characters(codec=None)) | st.text(st.sampled_from(_HIDDEN))


def hidden_in(text: str, *, kept: str = "\n\t") -> set[str]:
    return {one for one in text if unicodedata.category(one) in HIDDEN_CATEGORIES and one not in kept}


def assert_shown(text: str) -> None:
    """Nothing hidden, and no line that begins as somebody else wished."""
    assert not hidden_in(text)
    assert not [line for line in text.splitlines() if line.startswith("nothing is wrong")]


@given(texts)
def test_plain_shows_any_text_in_one_line(text: str) -> None:
    shown = plain(text)
    assert not hidden_in(shown, kept="")
    assert shown == text or not text.isprintable()
    assert not hidden_in(plain(text, kept="\n"), kept="\n")


@given(st.recursive(whole_texts | st.none(), lambda inner: st.dictionaries(whole_texts, inner, max_size=3)))
def test_json_means_what_it_meant(value: object) -> None:
    assert json.loads(json_text(value)) == value
    assert not hidden_in(json_text(value, indent=2), kept="\n")
    others = json.dumps(value, ensure_ascii=False)
    assert json.loads(json_escaped(others)) == value
    assert not hidden_in(json_escaped(others))


@given(texts)
def test_a_guarded_stream_passes_nothing_hidden(text: str) -> None:
    inner = io.StringIO()
    GuardedStream(inner).writelines([text, "\n"])
    begins = "\r" if text.startswith("\r") else ""
    assert not hidden_in(inner.getvalue().removeprefix(begins))
    assert unguarded(GuardedStream(inner)) is inner  # type: ignore[arg-type]


def test_streams_are_as_before_after_a_command() -> None:
    before = sys.stdout, sys.stderr
    with guarded():
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before


# --- each command's fields -----------------------------------------------------------------------

_INCIDENT = (
    *("summary", "what", "state", "since", "machine", "ranks", "why", "action", "reason", "job", "cluster"),
    *("verdict_id", "attempt", "update_number", "cause"),
)


@given(st.sampled_from((*_INCIDENT, "evidence_list")), texts)
def test_incidents_show_any_field(field: str, text: str) -> None:
    times = dict.fromkeys(("since", "detected", "expires"), "2026-01-01 00:00:00.000000000")
    row: dict[str, Any] = {**dict.fromkeys(_INCIDENT, "x"), **times, "confidence": 0.5, "evidence_list": ["e"]}
    row[field] = [text] if field == "evidence_list" else text
    now = datetime(2026, 1, 2, tzinfo=UTC)
    try:
        assert_shown(incident_text.render([row], now, job_id=text) + "\n" + incident_text.render_one(row, now))
    except StoreError as error:  # where a time should be
        assert field == "since"
        assert_shown(plain(str(error)))


def answer_of(evil: str) -> dict[str, Any]:
    dead_letter = {"host": evil, "reason": evil, "message": evil}
    model = {"detector": evil, "version": evil, "state": evil}
    event = {"ts_ns": 0, "name": evil, "job": evil, "error": evil}
    engine = {
        "tick_age_seconds": 1.0,
        "live": evil,
        "is_ready": False,
        "ready": evil,
        "pages": [f"none: {evil}"],
        "events": [event],
        "now_ns": 1,
        "letters_dropped": 1,
    }
    known = {
        "jobs": [job_answer(evil)],
        "connected_hosts": [evil],
        "models": [model],
        "dead_letters": [dead_letter],
        "server": {},
    }
    return {**known, **engine}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Path]]:
    reported: dict[str, Any] = {}
    with ControlServer(paths.control_socket(tmp_path), {"status": lambda _: reported}):

        def tell(answer: dict[str, Any]) -> Path:
            reported.clear()
            reported.update(answer)
            return tmp_path

        yield tell


def test_status_shows_any_field(engine: Callable[[dict[str, Any]], Path], capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer_of(EVIL.removesuffix("\ud800"))
    for answer in (whole, {**whole, "jobs": []}):
        for arguments in ([], ["--json"], [EVIL]):
            main.main(["status", "--data", str(engine(answer)), *arguments])
            said = capsys.readouterr()
            assert_shown(said.out)
            assert_shown(said.err)


def test_an_engines_refusal_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError

    def refuse(_: object) -> dict[str, Any]:
        raise EngineRefusedError(EVIL, "x")

    with ControlServer(paths.control_socket(tmp_path), {"status": refuse, "sql": refuse}):
        for command in (["status"], ["incidents"], ["sql", "SELECT 1"]):
            assert main.main([*command, "--data", str(tmp_path)]) == 2
            assert_shown(capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        [EVIL],
        ["status", EVIL, EVIL],
        ["--" + EVIL],
        ["sql"],
        ["incidents", "--" + EVIL],
        ["serve", "--listen", EVIL],
        ["score", EVIL.replace("\ud800", "")],
        ["replay", EVIL.replace("\ud800", "")],
        ["flight-recorder", EVIL.replace("\ud800", "")],
        ["incidents", "--clickhouse", EVIL],
        ["incidents", "--clickhouse", "clickhouse://h?x=" + EVIL],
        ["models", "list", "--registry", EVIL.replace("\ud800", "")],
        ["models", "show", EVIL],
        ["cluster", "logs", EVIL, "--folder", "/nowhere"],
        ["cluster", "up", "--topic-prefix", EVIL, "--folder", "/nowhere"],
        ["agent", "--job", EVIL, "--nothing"],
        ["causes", EVIL],
    ],
)
def test_a_refused_value_is_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main.main(arguments)
    said = capsys.readouterr()
    assert said.err or said.out
    assert not hidden_in(said.out + said.err)


@given(texts)
def test_scores_and_models_show_any_name(text: str) -> None:
    total, _ = add_up([])
    assert not hidden_in(score.table_of(total, {text: total}, {text: total}))
    assert_shown("\n".join(models.lines_of({text: text, "inner": {text: [text]}})))


def test_a_drills_lines_show_any_field(capsys: pytest.CaptureFixture[str]) -> None:
    PlainLines().heard(Heard(0, {"job_id": EVIL}, EVIL))
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert not hidden_in(said)


@given(whole_texts)
def test_a_log_line_is_one_line(text: str) -> None:
    record = logging.LogRecord("tocsin.x", logging.INFO, "", 0, "said %s", (text,), None)
    record.job = text
    assert not hidden_in(logs.TextFormatter().format(record), kept="")
    found = logs.JsonFormatter().format(record)
    assert not hidden_in(found, kept="")
    assert json.loads(found)["job"] == text


def test_an_argument_parser_says_what_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded(), pytest.raises(SystemExit):
        argparse.ArgumentParser().parse_args(["\x1b[2J"])
    assert not hidden_in(capsys.readouterr().err)

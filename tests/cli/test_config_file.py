"""Settings of serve and agent in one file: which counts, and what is wrong in it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from tocsin.cli import config_file
from tocsin.cli.main import main
from tocsin.schemas.errors import ConfigError

FILE = """
[serve]
listen = "unix:/run/tocsin/engine.sock"
hold = [60, 120]
allow_player = true
metrics-listen = "127.0.0.1:9555"

[agent]
engine = "engine-1:4440"
spool_bytes = 1000
prometheus = ["http://127.0.0.1:9400/metrics"]
period-seconds = 2
nvml = "off"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TOCSIN_LISTEN", "TOCSIN_METRICS_LISTEN", "TOCSIN_ENGINE", "TOCSIN_PROMETHEUS", "TOCSIN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "tocsin.toml"
    path.write_text(FILE)
    return path


def parsed(command: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"tocsin {command}")
    importlib.import_module(f"tocsin.cli.{command}").add_arguments(parser)
    config_file.with_file_defaults(parser, command, arguments)
    return parser.parse_args(arguments)


def test_the_file_sets_what_neither_flag_nor_environment_says(file: Path) -> None:
    serve = parsed("serve", "--config", str(file))
    assert (serve.listen, list(serve.hold), serve.allow_player) == ("unix:/run/tocsin/engine.sock", [60, 120], True)
    agent = parsed("agent", f"--config={file}")
    assert (agent.engine, agent.spool_bytes, agent.period_seconds) == ("engine-1:4440", 1000, 2.0)
    assert agent.prometheus == ["http://127.0.0.1:9400/metrics"]


def test_the_environment_counts_more_and_a_flag_most(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("TOCSIN_METRICS_LISTEN", "")  # nowhere: a value, too
    monkeypatch.setenv("TOCSIN_CONFIG", str(file))
    assert parsed("serve").listen == "127.0.0.1:1"
    assert parsed("serve").metrics_listen == ""
    assert parsed("serve", "--listen", "127.0.0.1:2").listen == "127.0.0.1:2"
    assert parsed("agent", "--prometheus", "http://x/m").prometheus == ["http://x/m"]
    assert parsed("agent", "--nvml", "auto").nvml == "auto"


def test_without_a_file_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOCSIN_CONFIG", raising=False)
    monkeypatch.delenv("TOCSIN_ENGINE", raising=False)
    assert parsed("agent").engine == "127.0.0.1:4440"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[agent]\nengin = "x:1"', ("agent.engin", "did you mean 'engine'?")),
        ("[agents]", ("agents", "did you mean 'agent'?")),
        ('listen = "x"', ("listen",)),
        ("[serve]\nhold = 3", ("serve.hold", "a list")),
        ("[serve]\nhold = [3]", ("serve.hold", "a list of 2 values")),
        ('[serve]\nallow_player = "yes"', ("serve.allow_player", "true or false")),
        ('[serve]\nlog-level = "loud"', ("serve.log-level", "one of debug")),
        ('[agent]\nspool-bytes = "many"', ("agent.spool-bytes",)),
        ("[agent]\nspool-bytes = 1\nspool_bytes = 2", ("agent.spool_bytes", "written once")),
        ('[agent]\nconfig = "other.toml"', ("agent.config",)),
        ("[serve", ("a TOML file",)),
    ],
)
def test_what_is_wrong_names_file_key_and_the_right_key(
    file: Path, text: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert said.count("\n") == 1
    assert all(word in said for word in words), said


def test_serve_refuses_what_check_refuses(file: Path) -> None:
    file.write_text('[serve]\nlisten_on = "x"')
    with pytest.raises(ConfigError, match=r"serve\.listen_on.*did you mean 'listen'"):
        parsed("serve", "--config", str(file))


def test_check_says_what_the_file_sets_and_hides_passwords(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('[serve]\nclickhouse = "clickhouse://me:secret@ch"')
    assert main(["config", "check", str(file)]) == 0
    reported = capsys.readouterr().out
    assert "serve.clickhouse = clickhouse://me:***@ch" in reported
    assert "secret" not in reported
    assert reported.endswith(f"{file}: right\n")


def test_a_file_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err

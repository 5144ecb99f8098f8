"""Settings of serve and agent in one file: which counts, and what is wrong in it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from tocsin.cli import config_file
from tocsin.cli.main import main
from tocsin.cli.setting_checks import CHECKS
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
        ('[serve]\ndetector = ["minder=loud"]', ("serve.detector", "minder=loud", "off, evidence, accuse")),
        ('[serve]\ndetector = ["entropy=off", "minders=off"]', ("serve.detector", "'minders=off'", "one of bilstm")),
        ('[serve]\ndetector = ["minder=off", "minder=accuse"]', ("serve.detector", "given once for minder")),
        ('[serve]\nlisten = "4440"', ("serve.listen", "HOST:PORT")),
        ('[serve]\nmetrics-listen = "127.0.0.1:1, x"', ("serve.metrics-listen", "'x'", "HOST:PORT")),
        ('[serve]\nmetrics_listen = "127.0.0.1:70000"', ("serve.metrics_listen", "below 65536")),
        ('[serve]\nclickhouse = "http://me@ch"', ("serve.clickhouse", "clickhouse://")),
        ('[agent]\nengine = "engine-1"', ("agent.engine", "HOST:PORT")),
        ('[agent]\nengine = "::1:4440"', ("agent.engine", "for IPv6")),
        ('[agent]\nmetrics-listen = "9441"', ("agent.metrics-listen", "HOST:PORT")),
        ("[agent]\nperiod-seconds = -1", ("agent.period-seconds", "positive")),
        ('[agent]\nprometheus = ["http://a/m", "ftp://b"]', ("agent.prometheus", "'ftp://b'", "http://")),
        ('[agent]\nkafka-compression = "zip"', ("agent.kafka-compression", "one of zstd")),
        ('[agent]\ntopic-prefix = "a b"', ("agent.topic-prefix", "1 to 200")),
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


def test_check_refuses_in_the_words_of_serve_and_shows_no_password(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    monkeypatch.setattr("tocsin.cli.serve.set_up_logs", lambda _args: None)
    data = ["--data", str(tmp_path / "data"), "--listen", f"unix:{tmp_path}/engine.sock", "--metrics-listen", ""]
    for text in ('detector = ["minder=loud"]', 'clickhouse = "clickhouse://me:secret@ch/other"'):
        file.write_text(f"[serve]\n{text}")
        said = []
        for command in (["config", "check", str(file)], ["serve", "--config", str(file), *data]):
            assert main(command) == 2
            said.append(capsys.readouterr().err)
        words = [one.partition(": must be ")[2] for one in said]
        assert words[0] == words[1] != ""
        assert "secret" not in "".join(said)


@pytest.mark.parametrize("command", config_file.COMMANDS)
def test_each_further_check_is_of_a_setting_and_takes_its_default(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOCSIN_LISTEN", "TOCSIN_METRICS_LISTEN", "TOCSIN_ENGINE", "TOCSIN_TOPIC_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    parser = argparse.ArgumentParser()
    importlib.import_module(f"tocsin.cli.{command}").add_arguments(parser)
    actions, defaults = config_file.settings_of(parser), vars(parser.parse_args([]))
    for name, check in CHECKS[command].items():
        default = defaults[actions[name].dest]
        if default is not None:
            check(default)


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

"""Every call of ``tocsin`` in deploy/ is one that the command line takes."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest

from tests.deploy import files
from tests.deploy.files import ROOT, Command
from tocsin.cli.main import COMMANDS
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import DEFAULT_PREFIX

CALLS = list(files.commands())
INTERPOLATED = {"TOCSIN_KAFKA_HOST", "TOCSIN_KAFKA_BIND", "TOCSIN_SRE_PASSWORD", "TOCSIN_JOB_CONTROLLER"}
"""Read by docker compose or Grafana, not by us."""


def parsed(command: Command, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """What the command's own parser makes of a call, with its environment."""
    name, *rest = command.arguments
    assert name in COMMANDS, f"{command.where}: no command {name!r}"
    for variable, value in command.environment.items():
        monkeypatch.setenv(variable, value)
    parser = argparse.ArgumentParser(prog=f"tocsin {name}", exit_on_error=False)
    importlib.import_module(COMMANDS[name][0]).add_arguments(parser)
    try:
        return parser.parse_args(rest)
    except SystemExit:
        pytest.fail(f"{command.where}: tocsin {' '.join(command.arguments)} is refused")


@pytest.mark.parametrize("command", CALLS, ids=lambda command: command.where)
def test_the_command_line_takes_each_call(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    args = parsed(command, monkeypatch)

    if hasattr(args, "kafka") and "compose-small" not in command.where:
        assert kafka_settings(args.kafka).servers, command.where
        assert args.topic_prefix == DEFAULT_PREFIX
    for address in (getattr(args, "metrics_listen", "") or "").split(","):
        if not address:
            continue
        host, _, port = address.rpartition(":")
        assert host in {"0.0.0.0", "127.0.0.1"}, command.where
        assert 9400 < int(port) < 9500, command.where


def test_all_parts_are_started() -> None:
    called = {" ".join(command.arguments[:2]) for command in CALLS if command.where.startswith("kubernetes")}

    assert {"topics apply", "sink clickhouse"} <= called
    assert {call.split()[0] for call in called} == {
        "topics",
        "sink",
        "ticker",
        "controller",
        "alerts",
        "migrate",
        "agent",
    }


@pytest.mark.parametrize("namespace", ["tocsin", "tocsin-agents"])
def test_the_kafka_settings_are_read_and_their_secrets_are_mounted(namespace: str, tmp_path: Path) -> None:
    path = tmp_path / "kafka.toml"
    path.write_text(files.config("tocsin-settings", namespace)["kafka.toml"])
    environment = files.config("tocsin-environment", namespace)
    settings = kafka_settings(environment["TOCSIN_KAFKA"], str(path))

    assert (settings.protocol, settings.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (settings.password.file, settings.ca_file) == ("/etc/tocsin/kafka/password", "/etc/tocsin/kafka/ca.pem")
    assert environment["TOCSIN_KAFKA_CONFIG"] == "/etc/tocsin/settings/kafka.toml"


@pytest.mark.parametrize(
    "url",
    [
        files.config("tocsin-environment", "tocsin")["TOCSIN_CLICKHOUSE"],
        files.compose()["services"]["sink"]["environment"]["TOCSIN_CLICKHOUSE"],
    ],
)
def test_the_clickhouse_address_names_a_file_for_the_password(url: str) -> None:
    address = parse_address(url, {})

    assert address.password == ""
    assert address.password_file is not None
    assert address.user == "tocsin"
    assert address.tls == (address.ca_file is not None)


def test_every_variable_of_ours_is_one_that_the_code_reads() -> None:
    sources = [path for room in ("src", "collectors", "pipeline", "schemas") for path in (ROOT / room).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"TOCSIN_[A-Z_]+", path.read_text("utf-8"))}
    texts = [path.read_text("utf-8") for path in files.DEPLOY.rglob("*") if path.is_file()]
    written = {name for text in texts for name in re.findall(r"TOCSIN_[A-Z_]+", text)}

    assert written - read - INTERPOLATED == set()

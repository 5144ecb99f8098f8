"""The commands of a cluster: each is called with flags that it knows, and signs and checks with the cluster's keys."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.cli.cluster.commands import COMMANDS, CommandConfig, arguments_of, works_text
from tocsin.cli.main import COMMANDS as PROGRAMS

PLAIN = CommandConfig("p1", Path("/keys/engine.json"), Path("/keys/verdicts.json"))
FULL = replace(PLAIN, alerts="/routes.yaml", credentials="/all.json", is_player_allowed=True)
CLICKHOUSE = "clickhouse://tocsin@127.0.0.1:9000"


def test_which_run() -> None:
    assert PLAIN.names() == ["ticker", "sink", "controller"]
    assert FULL.names() == ["ticker", "sink", "controller", "alerts"]
    assert replace(PLAIN, is_ticking=False, has_controller=False).names() == ["sink"]


@pytest.mark.parametrize("config", [PLAIN, FULL, replace(FULL, is_ticking=False)])
@pytest.mark.parametrize("name", COMMANDS)
def test_each_is_called_with_flags_that_it_knows(name: str, config: CommandConfig) -> None:
    command, *flags = arguments_of(name, config, "127.0.0.1:9092", lambda: CLICKHOUSE)
    parser = argparse.ArgumentParser()
    importlib.import_module(PROGRAMS[command][0]).add_arguments(parser)
    args = parser.parse_args(flags)
    assert (args.kafka, args.topic_prefix) == ("127.0.0.1:9092", "p1")
    assert works_text(name)
    if name != "ticker":
        assert args.verdict_keys == "/keys/verdicts.json"
    if name in ("controller", "alerts"):
        assert args.signing_key == "/keys/engine.json"
    if name == "controller":
        said = (args.credentials, args.allow_player, args.from_beginning)
        assert said == (config.credentials, config.is_player_allowed, not config.is_ticking)
    if name == "alerts":
        assert args.alerts == Path(config.alerts)

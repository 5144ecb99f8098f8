"""``tocsin models``: to an embedded engine as a record, to Kafka as a message; a bad file goes nowhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kafka_kit import make_topics, read_until
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.main import main
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.model_handler import model_handler
from tocsin.schemas.model_announcement import BOUNDARY_NS, DEFAULT_FORMAT, NOTICE_NS
from tocsin.schemas.records import ModelAnnouncement
from tocsin.schemas.wire.codec import decode


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of the peers detector."""
    path = tmp_path / "peers.json"
    path.write_text('{"working": {"alarm_sum": 12}}')
    return path


class Listening(NamedTuple):
    """An engine, and its control socket."""

    engine: EmbeddedEngine
    control: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Listening]:
    """An engine that can be asked."""
    engine, path = EmbeddedEngine(EngineConfig()), tmp_path / "c.sock"
    with ControlServer(path, {"model": model_handler(engine.take_record, time.time_ns)}):
        yield Listening(engine, path)


def test_an_embedded_engine_takes_it_and_says_what_is_refused(
    server: Listening, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["models", "announce", str(model), "--detector=peers", "--version=v7", f"--to={server.control}"]
    assert main([*flags, "--effective-in=20"]) == 0
    assert "peers v7: used by slices from" in capsys.readouterr().out
    [waiting] = server.engine.models.status(time.time_ns())

    assert (waiting["version"], waiting["state"], waiting["effective_ns"] % BOUNDARY_NS) == ("v7", "waiting", 0)
    server.engine.tick(time.time_ns() + 3600 * 10**9)  # the engine's time is beyond it
    assert main(flags) == 2
    assert "refused (too_late): effective_ns" in capsys.readouterr().err
    assert server.engine.models.counters == {"accepted": 1, "too_late": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["announce", "FILE", "--to=local"], "--detector"),
        (["announce", "FILE", "--detector=peers"], "--kafka"),
        (["announce", "nowhere.json", "--detector=peers", "--dry-run"], "No such file"),
        (["announce", "/dev/null", "--detector=peers", "--dry-run"], "/dev/null, 0 bytes"),
        (["announce", "FILE", "--detector=oracle", "--dry-run"], "unknown_detector"),
        (["announce", "FILE", "--detector=steps", "--dry-run"], "model_undecodable"),
        (["announce", "FILE", "--detector=peers", "--format=peers/2", "--dry-run"], "newer_format"),
        (["announce", "FILE", "--detector=peers", "--effective-in=9", "--dry-run"], "--effective-in = 9.0"),
        (["announce", "FILE", "--detector=peers", "--effective-in=1e9", "--dry-run"], "--effective-in"),
        (["announce", "FILE", "--detector=peers", "--effective-in=nan", "--dry-run"], "--effective-in"),
        (["withdraw", "oracle", "--dry-run"], "unknown_detector"),
        (["withdraw", "peers", "--to=/nowhere/c.sock"], "no engine listens on /nowhere/c.sock"),
        (["withdraw", "peers", "--to=unix:/nowhere/c.sock"], "no engine listens on /nowhere/c.sock"),
        (["withdraw", "peers", "--to=127.0.0.1:1"], "models do not go to the agents' address"),
        (["withdraw", "peers", "--to=nowhere"], "control socket"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_sent(
    arguments: list[str], words: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *(str(model) if one == "FILE" else one for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_a_dry_run_says_that_it_can_be_used(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "announce", str(model), "--detector=peers", "--dry-run"]) == 0
    assert "can be used" in capsys.readouterr().out


def test_on_kafka_it_stands_under_its_detectors_name(kafka_broker: Broker, topic_prefix: str, model: Path) -> None:
    make_topics(kafka_broker, topic_prefix)
    kafka = [f"--kafka={kafka_broker.address}", f"--topic-prefix={topic_prefix}"]
    assert main(["models", "announce", str(model), "--detector=peers", *kafka]) == 0
    assert main(["models", "withdraw", "peers", *kafka]) == 0
    found = read_until(kafka_broker.address, [f"{topic_prefix}.models"], lambda records: len(records) >= 2)
    first, second = (decode(record.value) for record in found)

    assert isinstance(first, ModelAnnouncement)
    assert isinstance(second, ModelAnnouncement)
    assert first.payload == model.read_bytes()
    assert (second.format, second.payload) == (DEFAULT_FORMAT, b"")
    for record, one in zip(found, (first, second), strict=True):
        assert (record.key, dict(record.headers)) == (b"peers", {"kind": b"model"})
        assert record.timestamp == one.ts_ns // 1_000_000
        assert one.effective_ns - one.ts_ns >= NOTICE_NS


def test_without_topics_it_says_what_to_do(
    kafka_broker: Broker, topic_prefix: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--kafka={kafka_broker.address}", f"--topic-prefix={topic_prefix}"]
    assert main(["models", "announce", str(model), "--detector=peers", *flags]) == 2
    assert "tocsin topics apply" in capsys.readouterr().err

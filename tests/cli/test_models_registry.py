"""``tocsin models`` with a registry: list, show, promote, refuse, announce; a promoted model in a running engine."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.kafka_kit import make_topics, read_until
from tests.model_announcements import DEAF
from tests.pipeline.lab.registry.kit import card, minder_payload, payload_of
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.main import main
from tocsin.models.documents import write_numbers
from tocsin.pipeline.lab.registry import Registry, comparison, fingerprint_of
from tocsin.pipeline.lab.registry import validation as registry_validation
from tocsin.pipeline.lab.registry.card import named, write_card
from tocsin.pipeline.lab.simulation.case import Case, draw_case
from tocsin.pipeline.recording.replay import ReplayConfig, drive
from tocsin.pipeline.recording.score import score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.model_handler import model_handler
from tocsin.schemas.reasons import PromotionRefusal
from tocsin.schemas.records import NS_PER_SECOND, ModelAnnouncement
from tocsin.schemas.wire.codec import decode

SAME = payload_of(8.5)
"""A hair above the program's own line: says the same of the recording."""


@cache
def case() -> Case:
    """A machine whose power is capped: the peers detector finds it, and nobody else does."""
    return draw_case(9, 4, "power_cap", duration_seconds=180.0)


@cache
def recording(start_ns: int = 0) -> Recording:
    """What it gives, at another time if asked for."""
    shape = case().shape
    moved = replace(
        case(), shape=replace(shape, start_ns=start_ns // shape.slice_ns * shape.slice_ns or shape.start_ns)
    )
    return moved.recording()


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where the registry is."""
    return str(tmp_path / "models")


@pytest.fixture
def registry(place: str) -> Registry:
    return Registry.open(place)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds one recording."""
    write_recording(tmp_path / "recordings" / "one", recording())
    return tmp_path / "recordings"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One recording is enough to tell."""
    monkeypatch.setattr(comparison, "MIN_FAULT_COUNT", 1)
    monkeypatch.setattr(comparison, "MIN_MACHINE_DAYS", 0.0)


class Listening(NamedTuple):
    """An engine, and its control socket."""

    engine: EmbeddedEngine
    control: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Listening]:
    """An engine that can be asked."""
    engine, path = EmbeddedEngine(EngineConfig(history=None)), tmp_path / "c.sock"
    with ControlServer(path, {"model": model_handler(engine.take_record, time.time_ns)}):
        yield Listening(engine, path)


def add(registry: Registry, payload: bytes, detector: str = "peers") -> str:
    return registry.add(card(detector), payload).version


# -- list, show, refuse ----------------------------------------------------------------------------


def test_a_list_says_what_is_current_and_what_is_refused(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = add(registry, payload_of(11.0)), add(registry, payload_of(12.0))
    registry.promote("peers", good, {})
    assert main(["models", "refuse", "peers", bad, "--reason", "blamed the switch", "--registry", place]) == 0
    assert main(["models", "list", "--registry", place, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    states = {(row["detector"], row["version"]): row["state"] for row in rows}

    assert states[("peers", good)] == "current"
    assert states[("peers", bad)] == "refused"
    assert states[("peers", "builtin")] == ""
    assert states[("steps", "builtin")] == "current"
    assert {row["refused"] for row in rows} == {None, "blamed the switch"}
    assert main(["models", "list", "peers", "--registry", place]) == 0
    table = capsys.readouterr().out
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        ["peers", "builtin"],
        *sorted([["peers", good], ["peers", bad]]),
    ]
    assert "0.970" in table


def test_a_damaged_model_is_told_and_the_others_are_listed(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, lost, good = (add(registry, payload_of(value)) for value in (11.0, 12.0, 13.0))
    registry.promote("peers", lost, {})
    (Path(place) / "peers" / cut / "card.json").write_bytes(b'{"card_version": 1')
    (Path(place) / "peers" / lost / "card.json").unlink()
    assert main(["models", "list", "--registry", place]) == 2
    reported = capsys.readouterr()

    assert good in reported.out
    assert f"peers/{cut}/card.json: card is no JSON" in reported.err
    assert f"current.json: names {lost}, which is not there (promote another one with --force)" in reported.err


def test_a_model_whose_bytes_are_not_those_of_its_card_is_listed_as_damaged(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, good = (add(registry, payload_of(value)) for value in (11.0, 13.0))
    (Path(place) / "peers" / cut / "model.bin").write_bytes(b"0123456789")
    assert main(["models", "list", "--registry", place, "--json"]) == 2
    reported = capsys.readouterr()
    states = {row["version"]: row["state"] for row in json.loads(reported.out)}

    assert (states[cut], states[good]) == ("damaged", "")
    assert f"peers/{cut}/model.bin" in reported.err


def test_show_names_data_figures_and_promotion(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, payload_of())
    registry.promote("peers", version, {"against": "builtin"})
    assert main(["models", "show", "peers", "--registry", place]) == 0
    shown = capsys.readouterr().out
    for words in (
        f"version: {version}",
        "fingerprint: 000",
        "f1: 0.97",
        "against: builtin",
        "alarm_sum: 12",
        "bytes: 30",
    ):
        assert words in shown
    assert main(["models", "show", "peers", version, "--json", "--registry", place]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["machine_days"] == 1.5


def test_the_environment_names_the_registry(
    registry: Registry, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, payload_of())
    monkeypatch.setenv("TOCSIN_REGISTRY", place)
    assert main(["models", "list"]) == 0
    assert version in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "peers", "20260101-aaaaaaaa"], "peers has builtin, 2"),
        (["show", "oracle"], "none of oracle"),
        (["refuse", "peers", "builtin", "--reason=x"], "part of the program"),
        (["refuse", "peers", "VERSION", "--reason= "], "--reason"),
        (["promote", "peers", "VERSION"], "--validate"),
        (["promote", "peers", "VERSION", "--force", "--jobs=0"], "--jobs"),
        (["promote", "peers", "VERSION", "--validate", "nowhere"], "nowhere: no such folder"),
        (["promote", "peers", "20260101-aaaaaaaa", "--force"], "no such model"),
        (["promote", "peers", "VERSION", "--force", "--to=/nowhere/c.sock", "--effective-in=1"], "--effective-in"),
        (["announce", "peers", "--dry-run"], "nothing of peers is promoted"),
        (["list", "--registry", "ftp://host/models"], "--registry"),
    ],
)
def test_what_is_wrong_is_said(
    registry: Registry, place: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, payload_of())
    given = arguments if "--registry" in arguments else [*arguments, "--registry", place]
    reported = [one.replace("VERSION", version) for one in given]
    assert main(["models", *reported]) == 2
    assert words in capsys.readouterr().err
    assert registry.promotion("peers") is None


def test_the_alarm_line_of_entropy_can_be_announced(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, b'{"lines": {"max_sigmas": 5.0}}', "entropy")
    flags = ["models", "announce", "entropy", f"--version={version}", "--dry-run", "--registry", place]

    assert main(flags) == 0
    assert f"entropy {version}" in capsys.readouterr().out


# -- promote ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_a_worse_model_is_refused_and_by_how_much_is_said(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = add(registry, write_numbers(DEAF))
    flags = ["models", "promote", "peers", deaf, "--registry", place, "--jobs=1"]
    assert main([*flags, "--validate", str(folder)]) == 1
    reported = capsys.readouterr().out

    assert f"current (builtin)  new ({deaf})" in reported
    assert "refused (f1_lower): F1 0.0000 instead of 1.0000: lower by 1.0000" in reported
    assert registry.promotion("peers") is None
    assert main([*flags, "--validate", str(folder), "--force"]) == 0
    promotion = registry.promotion("peers")
    assert promotion is not None
    assert promotion.figures["forced"] is True
    assert list(promotion.figures["shortfalls"]) == ["f1_lower"]


@pytest.mark.usefixtures("few")
def test_a_model_as_good_is_promoted_with_its_figures(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, SAME)
    flags = ["models", "promote", "peers", version, "--registry", place, "--jobs=1", "--validate", str(folder)]
    assert main(flags) == 0
    assert f"peers {version}: promoted (before: nothing)" in capsys.readouterr().out
    promotion = registry.promotion("peers")
    assert promotion is not None
    figures = promotion.figures
    assert (promotion.version, figures["against"], figures["recordings"]) == (version, "builtin", 1)
    assert (figures["current"]["f1"], figures["new"]["f1"], figures["forced"]) == (1.0, 1.0, False)
    assert figures["fingerprint"] == fingerprint_of([folder / "one"])
    assert main(flags) == 0
    assert "is the current one already" in capsys.readouterr().out


@pytest.mark.usefixtures("few")
def test_the_current_models_of_the_other_detectors_are_beside_it(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.promote("peers", add(registry, write_numbers(DEAF)), {})
    quiet = write_numbers({"lines": {"max_lasting_seconds": 61.0}})
    steps = registry.add(card("steps"), quiet).version
    flags = ["models", "promote", "steps", steps, "--registry", place, "--jobs=1", "--validate", str(folder)]
    assert main(flags) == 0
    promotion = registry.promotion("steps")

    assert promotion is not None
    assert promotion.figures["current"]["hits"] == promotion.figures["new"]["hits"] == 0  # peers is deaf in both


def lose(place: str, version: str) -> str:
    """As after ``rm -r``; returns what is said of it."""
    shutil.rmtree(Path(place) / "peers" / version)
    return f"peers {version}: no such model"


def garble(place: str, _: str) -> str:
    (Path(place) / "peers" / "current.json").write_bytes(b"garbage")
    return "current.json: "


@pytest.mark.parametrize("damage", [lose, garble])
@pytest.mark.parametrize("wanted", ["builtin", "VERSION"])
def test_a_registry_whose_current_version_is_gone_is_mended_with_force(
    registry: Registry, place: str, damage: Any, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, other = add(registry, payload_of(11.0)), add(registry, payload_of(12.0))
    registry.promote("peers", lost, {})
    said = damage(place, lost)
    version = other if wanted == "VERSION" else wanted
    flags = ["models", "promote", "peers", version, "--registry", place]
    assert main(["models", "list", "--registry", place]) == 2
    assert "promote another one with --force" in capsys.readouterr().err
    assert main([*flags, "--force"]) == 0
    reported = capsys.readouterr()
    promotion = registry.promotion("peers")

    assert "in spite of (current_unreadable): " in reported.err
    assert said in reported.err
    assert f"peers {version}: promoted (before: {lost if damage is lose else 'unreadable'})" in reported.out
    assert promotion is not None
    assert (promotion.version, promotion.previous) == (version, lost if damage is lose else None)
    assert list(promotion.figures["shortfalls"]) == ["current_unreadable", "not_validated"]
    assert main(["models", "list", "--registry", place]) == 0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("damage", [lose, garble])
def test_recordings_are_compared_with_nothing_where_the_current_version_is_gone(
    registry: Registry, place: str, folder: Path, damage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, version = add(registry, payload_of(11.0)), add(registry, SAME)
    registry.promote("peers", lost, {})
    said = damage(place, lost)
    flags = ["models", "promote", "peers", version, "--registry", place, "--jobs=1", "--validate", str(folder)]
    assert main(flags) == 2
    reported = capsys.readouterr().err
    assert "the current model of peers: cannot be read: " in reported
    assert said in reported
    assert "with --force" in reported
    assert main([*flags, "--force"]) == 0
    promotion = registry.promotion("peers")

    assert promotion is not None
    assert (promotion.figures["against"], promotion.figures["current"]) == (None, None)
    assert promotion.figures["new"]["f1"] == 1.0
    assert (list(promotion.figures["shortfalls"]), promotion.figures["forced"]) == (["current_unreadable"], True)


def test_damaged_bytes_of_the_current_version_are_left_out_of_the_comparison_with_force(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, version = add(registry, payload_of(11.0)), add(registry, SAME)
    registry.promote("peers", cut, {})
    (Path(place) / "peers" / cut / "model.bin").write_bytes(b"{")
    flags = ["models", "promote", "peers", version, "--registry", place, "--jobs=1", "--validate", str(folder)]
    assert main(flags) == 2
    assert "model.bin: 1 bytes whose SHA-256" in capsys.readouterr().err
    assert main([*flags, "--force"]) == 0
    promotion = registry.promotion("peers")

    assert promotion is not None
    assert (promotion.version, promotion.previous, promotion.figures["against"]) == (version, cut, None)
    assert list(promotion.figures["shortfalls"]) == ["current_unreadable", "too_few_recordings"]


def test_what_the_detector_cannot_read_is_not_promoted_with_force_either(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file whose hash, version and card agree, as older programs took it in."""
    whole = named(card("minder"), minder_payload(16))
    folder = Path(place) / "minder" / whole.version
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(minder_payload(16))
    (folder / "card.json").write_bytes(write_card(whole))
    assert main(["models", "promote", "minder", whole.version, "--force", "--registry", place]) == 2
    assert f"minder {whole.version}: model file: LSTM-VAE of metric_0: window_ticks = 16" in capsys.readouterr().err
    assert registry.promotion("minder") is None


def _promote_by_force(place: str, version: str, start: Any, statuses: Any) -> None:
    start.wait(timeout=60)
    statuses.put(main(["models", "promote", "peers", version, "--force", "--registry", place]))


def test_two_commands_that_promote_at_the_same_time_leave_one_of_the_two(registry: Registry, place: str) -> None:
    versions = [add(registry, payload_of(value)) for value in (11.0, 12.0)]
    context = multiprocessing.get_context("spawn")
    start, statuses = context.Barrier(2), context.Queue()
    running = [context.Process(target=_promote_by_force, args=(place, one, start, statuses)) for one in versions]
    for one in running:
        one.start()
    found = sorted(statuses.get(timeout=90) for _ in running)
    for one in running:
        one.join(timeout=60)
    current = registry.current("peers")

    assert found in ([0, 0], [0, 2])  # 2: the other one was promoted meanwhile
    assert current is not None
    assert current.version in versions
    assert main(["models", "list", "--registry", place]) == 0


def test_too_few_recordings_are_refused_before_anything_is_judged(
    registry: Registry,
    place: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where they are well-formed: truth and names say it, and no minutes of replays."""
    monkeypatch.setattr(registry_validation, "run_models", lambda *_: pytest.fail("recordings were judged"))
    write_recording(folder / "two", recording())
    version = add(registry, SAME)
    flags = ["models", "promote", "peers", version, "--registry", place, "--jobs=2", "--validate", str(folder)]
    assert main(flags) == 1
    reported = capsys.readouterr().out

    assert "2 recordings, 0.02 machine-days" in reported
    assert "refused (too_few_recordings): 2 faults and 0.02 machine-days" in reported
    assert registry.promotion("peers") is None


@pytest.mark.usefixtures("few")
def test_who_is_compared_on_its_own_training_data_hears_of_it(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {"fingerprint": fingerprint_of([folder / "one"])}
    version = registry.add(card(training=training), SAME).version
    flags = ["models", "promote", "peers", version, "--registry", place, "--jobs=1", "--validate", str(folder)]
    assert main(flags) == 0
    assert "was trained on these very recordings" in capsys.readouterr().err


def test_recordings_without_truth_cannot_be_compared_on(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "one" / "truth.json").unlink()
    flags = ["models", "promote", "peers", add(registry, SAME), "--registry", place, "--jobs=1"]
    assert main([*flags, "--validate", str(folder)]) == 2
    assert f"truth.json: missing in {folder / 'one'}" in capsys.readouterr().err


@pytest.mark.usefixtures("few")
def test_a_learned_detector_is_compared_alone(
    registry: Registry, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = registry.add(card("entropy"), b'{"lines": {"max_sigmas": 5.0}}').version
    flags = ["models", "promote", "entropy", version, "--registry", place, "--jobs=1", "--validate", str(folder)]
    assert main(flags) == 0
    assert f"new ({version})" in capsys.readouterr().out
    unknown = registry.add(card("oracle"), b"?").version
    assert main([*flags[:2], "oracle", unknown, *flags[4:]]) == 2
    assert "nothing here runs its models" in capsys.readouterr().err


def test_a_refused_model_is_neither_promoted_nor_announced(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, payload_of())
    registry.promote("peers", version, {})
    assert main(["models", "refuse", "peers", version, "--reason", "blamed the switch", "--registry", place]) == 0
    assert "it is the current one" in capsys.readouterr().out
    for arguments in (["promote", "peers", version, "--force"], ["announce", "peers", "--dry-run"]):
        assert main(["models", *arguments, "--registry", place]) == 2
        assert "marked as refused: blamed the switch" in capsys.readouterr().err


# -- running engines -------------------------------------------------------------------------------


def found_in(engine: EmbeddedEngine, data: Recording) -> list[float | None]:
    """The delay of each fault, None where it was missed."""
    lines = [verdict.to_line() for verdict in drive(engine, data, ReplayConfig())]
    assert data.truth is not None
    return [fault.delay_seconds for fault in score_lines(lines, data.truth["faults"], 1.0).faults]


def test_a_promoted_model_is_used_by_a_running_engine(
    registry: Registry, place: str, server: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, write_numbers(DEAF))
    engine = server.engine
    [before] = found_in(engine, recording(time.time_ns() - 600 * NS_PER_SECOND))
    flags = ["models", "promote", "peers", version, "--force", "--registry", place, "--effective-in=10"]
    assert main([*flags, f"--to={server.control}"]) == 0
    reported = capsys.readouterr().out
    later = recording(time.time_ns() + 60 * NS_PER_SECOND)
    engine.tick(later.manifest.start_ns)
    [after] = found_in(engine, later)

    assert f"peers {version}: promoted" in reported
    assert f"peers {version}: used by slices from" in reported
    assert before is not None
    assert after is None
    assert found_in(EmbeddedEngine(EngineConfig(history=None)), later) == [before]  # another engine: its own settings
    assert [(m["version"], m["state"]) for m in engine.models.status(later.manifest.end_ns)] == [(version, "in use")]


def test_a_version_of_the_registry_and_what_ships_can_be_announced(
    registry: Registry, place: str, server: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = add(registry, payload_of(11.0)), add(registry, payload_of(12.0))
    registry.promote("peers", second, {})
    flags = ["--registry", place, f"--to={server.control}"]
    assert main(["models", "announce", "peers", "--version", first, *flags]) == 0
    assert main(["models", "announce", "peers", "--effective-in=60", *flags]) == 0
    assert main(["models", "announce", "peers", "--version=builtin", "--effective-in=120", *flags]) == 0
    waiting = [model["version"] for model in server.engine.models.status(time.time_ns())]

    assert waiting == [first, second, "default"]


def test_status_shows_what_waits_also_where_no_job_is(
    registry: Registry, place: str, server: Listening, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    version = add(registry, payload_of())
    assert (
        main(["models", "announce", "peers", f"--version={version}", "--registry", place, f"--to={server.control}"])
        == 0
    )
    reported = {
        "tick_age_seconds": 0.5,
        "live": "ok",
        "is_ready": True,
        "pages": [],
        "events": [],
        "letters_dropped": {},
    }
    answer = {"jobs": [], "connected_hosts": [], "dead_letters": [], **reported, **server.engine.status()}
    monkeypatch.setattr("tocsin.cli.status.ControlClient", lambda *_: SimpleNamespace(call=lambda *_, **__: answer))
    assert main(["status"]) == 0
    assert f"model     peers {version}: waiting" in capsys.readouterr().out


def test_a_promoted_model_goes_to_flink_jobs_by_their_topic(
    registry: Registry, place: str, kafka_broker: Broker, topic_prefix: str
) -> None:
    make_topics(kafka_broker, topic_prefix)
    version = add(registry, payload_of())
    kafka = [f"--kafka={kafka_broker.address}", f"--topic-prefix={topic_prefix}"]
    assert main(["models", "promote", "peers", version, "--force", "--registry", place, *kafka]) == 0
    [found] = read_until(kafka_broker.address, [f"{topic_prefix}.models"], bool)
    sent = decode(found.value)

    assert isinstance(sent, ModelAnnouncement)
    assert (found.key, sent.version, sent.payload) == (b"peers", version, payload_of())


def test_an_engine_that_is_away_leaves_it_promoted_and_says_so(
    registry: Registry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = add(registry, payload_of())
    assert main(["models", "promote", "peers", version, "--force", "--registry", place, "--to=/nowhere/c.sock"]) == 2
    reported = capsys.readouterr().err

    assert f"peers {version} is promoted, but not announced: no engine listens on /nowhere/c.sock" in reported
    assert f"tocsin models announce peers --version {version}" in reported
    promotion = registry.promotion("peers")
    assert promotion is not None
    assert promotion.figures["shortfalls"] == {"not_validated": PromotionRefusal.NOT_VALIDATED.meaning}

"""``tocsin train`` as a command: recordings in, a version in the registry out, or a sentence that says why not."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from tests.pipeline.lab.backtest.trace_kit import traced
from tests.pipeline.recording.kit import good_tables, write_folder
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.main import main
from tocsin.models.bilstm_file import decode_bilstm
from tocsin.models.entropy_file import decode_entropy
from tocsin.models.minder import PRIORITY
from tocsin.models.minder_file import decode_minder
from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.lab.backtest.engine_runner import announced_from_start
from tocsin.pipeline.lab.registry import ModelCard, Registry
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.lab.training import numbers
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.score import FolderScore, add_up, score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording

CASES = (("power_cap", 2), ("cpu_contention", 2), ("healthy", 2))
FEW = {
    name: tuple(dataclasses.replace(one, values=one.values[:2]) for one in coordinates[:2])
    for name, coordinates in numbers.COORDINATES.items()
}


@cache
def case(kind: str, seed: int) -> Recording:
    return draw_case(seed, 4, kind, duration_seconds=300.0).recording()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three recordings, and few values of few numbers to try."""
    monkeypatch.setattr(numbers, "COORDINATES", FEW)
    monkeypatch.setenv("TOCSIN_REGISTRY", str(tmp_path / "registry"))
    for index, (kind, seed) in enumerate(CASES):
        write_recording(tmp_path / "all" / f"case-{index}", case(kind, seed))
    return tmp_path / "all"


def train(*arguments: object) -> int:
    return main(["train", *map(str, arguments), "--jobs", "1"])


def cards(tmp_path: Path, detector: str) -> list[ModelCard]:
    return [card for card in Registry.open(str(tmp_path / "registry")).cards(detector) if card.version != "builtin"]


def replayed(card: ModelCard, payload: bytes, cases: Sequence[tuple[str, int]] = CASES) -> FolderScore:
    """What running engines would have said with this model, all recordings together."""
    found = []
    for kind, seed in cases:
        job = case(kind, seed)
        announced = announced_from_start(card.detector, payload, job.manifest.start_ns, card.version)
        assert job.truth is not None
        lines = [verdict.to_line() for verdict in replay(job, ReplayConfig(announcements=(announced,)))]
        found.append(score_lines(lines, job.truth["faults"], 1.0))
    return FolderScore(
        tuple(fault for one in found for fault in one.faults), sum(one.false_count for one in found), len(found)
    )


@pytest.mark.parametrize("detector", ["peers", "steps"])
def test_numbers_are_fitted_within_the_budget_and_come_into_the_registry_unpromoted(
    folder: Path, tmp_path: Path, detector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, "--detector", detector) == 0
    [card] = cards(tmp_path, detector)
    registry = Registry.open(str(tmp_path / "registry"))
    payload = registry.payload(detector, card.version)
    reported = capsys.readouterr()

    read = FORMATS[detector].read(payload)
    assert {f"{section}.{name}" for section in read for name in read[section]} == {one.path for one in FEW[detector]}
    score = add_up([replayed(card, payload)])[0]
    figures = card.metrics["training"]
    assert (
        (figures["hits"], figures["false_accusations"]) == (score.hit_count, 0) == (score.hit_count, score.false_count)
    )
    assert card.thresholds["budget"] == "count_within_budget"
    assert (card.training["recordings"], card.training["faults"]) == (3, 2)
    assert registry.current(detector) is None
    assert f"{detector} {card.version}: added to {tmp_path / 'registry'}" in reported.out
    assert "too few to prove the budget of 0.01, which takes 300 without any" in reported.out
    size = f"3 recordings, {card.training['machine_days']:.3g} machine-days, 2 faults"
    assert reported.err.splitlines()[:2] == [f"{detector}: {size}", "pass 1: done"]


def test_the_entropy_line_is_fitted_and_judged_on_recordings_that_it_did_not_see(folder: Path, tmp_path: Path) -> None:
    seen, unseen = [folder / "case-0", folder / "case-2"], folder / "case-1"
    assert train(*seen, "--detector", "entropy", "--validate", unseen) == 0
    [card] = cards(tmp_path, "entropy")
    payload = Registry.open(str(tmp_path / "registry")).payload("entropy", card.version)

    assert decode_entropy(payload).max_sigmas == card.thresholds["max_sigmas"]
    assert card.metrics["training"]["faults"] == card.metrics["validation"]["faults"] == 1


def test_healthy_recordings_alone_prove_no_recall_and_it_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder / "case-2", "--detector", "entropy") == 0
    [card] = cards(tmp_path, "entropy")

    assert (card.metrics["training"]["f1"], card.metrics["training"]["false_accusations"]) == (None, 0)
    assert "no fault in these recordings: how many it finds" in capsys.readouterr().out


def test_a_terminal_sees_bars(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")

    assert train(folder / "case-2", "--detector", "entropy") == 0
    reported = capsys.readouterr().err
    assert "recordings" in reported
    assert "100%" in reported


def test_minders_models_come_out_whole(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = pytest.importorskip("tocsin.models.training.lstm_vae_training", reason="training needs tocsin[train]")
    short = partial(training.VaeTrainingConfig, window_count=500, epoch_count=1)
    monkeypatch.setattr(training, "VaeTrainingConfig", short)

    assert train(folder, "--detector", "minder", "--budget-per-machine-day", "inf", "--seed", "5") == 0
    [card] = cards(tmp_path, "minder")
    model = decode_minder(Registry.open(str(tmp_path / "registry")).payload("minder", card.version))
    assert set(model.single) == set(PRIORITY)
    assert (card.format, card.seed, card.settings) == ("minder/1", 5, {"budget_per_machine_day": None})
    assert card.thresholds["threshold_sigmas"] == model.threshold_sigmas


def test_the_networks_of_bilstm_go_through_the_registry_into_a_backtest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = pytest.importorskip("tocsin.models.training.bilstm_ocnn_training", reason="training needs tocsin[train]")
    monkeypatch.setattr(training, "OcnnTraining", partial(training.OcnnTraining, hidden_size=8, head_size=8))
    monkeypatch.setenv("TOCSIN_REGISTRY", str(tmp_path / "registry"))
    for seed in range(8):
        write_recording(tmp_path / "all" / str(seed), traced(400, seed))
    write_recording(tmp_path / "slow", traced(400, 77, slow_from=200))
    assert train(tmp_path / "all", "--detector", "bilstm", "--seed", "3", "--validate", tmp_path / "slow") == 0
    [card] = cards(tmp_path, "bilstm")
    reported = capsys.readouterr()

    payload = Registry.open(str(tmp_path / "registry")).payload("bilstm", card.version)
    [network] = decode_bilstm(payload).values()
    assert (card.format, card.seed) == ("bilstm/1", 3)
    assert card.thresholds["line_factor"] == {"phases": network.line_factor}
    assert (card.metrics["training"]["false_accusations"], card.metrics["validation"]["hits"]) == (0, 1)
    assert "network of phases: done" in reported.err
    assert "phases: taught by" in reported.out

    argv = ["backtest", str(tmp_path / "slow"), "--detectors", "bilstm", "--json", "--jobs", "1"]
    assert main([*argv, "--model", f"bilstm={card.version}"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["bilstm"]["all"]["hits"] == 1
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["bilstm"]["not_judged"] == {}
    assert main(["models", "show", "bilstm", card.version]) == 0
    assert main(["models", "promote", "bilstm", card.version, "--force"]) == 0
    assert main([*argv, "--model", "bilstm=current"]) == 0


def test_a_recording_with_operations_only_is_enough_for_entropy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_REGISTRY", str(tmp_path / "registry"))
    write_recording(tmp_path / "a", traced(160, 1, slow_from=80, tables=("topology", "ops")))

    assert train(tmp_path / "a", "--detector", "entropy", "--budget-per-machine-day", "inf") == 0
    [card] = cards(tmp_path, "entropy")
    assert (card.metrics["training"]["hits"], card.metrics["training"]["false_accusations"]) == (1, 0)


def test_again_it_is_the_same_version_and_no_second_entry(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert train(folder, "--detector", "steps", "--seed", "3") == 0

    assert len(cards(tmp_path, "steps")) == 1


def test_where_nothing_keeps_the_budget_there_is_no_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = folder / "case-0" / "truth.json"
    truth.write_text('{"faults": []}')  # a lie: whoever finds the fault now accuses a healthy machine

    assert train(folder, "--detector", "peers") == 1
    reported = capsys.readouterr()
    assert cards(tmp_path, "peers") == []
    assert "the budget is 0.01, and nothing that was tried accuses less" in reported.out
    assert "peers: no model (budget_exceeded)" in reported.out


def test_written_as_the_sources_keep_it(folder: Path, tmp_path: Path) -> None:
    assert train(folder, "--detector", "entropy", "--out", tmp_path / "out") == 0

    assert json.loads((tmp_path / "out" / "entropy" / "card.json").read_text())["version"] == "builtin"
    assert (tmp_path / "out" / "entropy" / "model.bin").is_file()
    assert not (tmp_path / "registry").exists()


def test_recordings_without_truth_are_refused_for_thresholds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "case-1" / "truth.json").unlink()

    assert train(folder) == 2
    reported = capsys.readouterr().err
    assert f"tocsin train: truth.json: missing in {folder / 'case-1'}: without it nobody knows" in reported


def test_a_detector_that_the_recordings_say_nothing_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {name: rows for name, rows in good_tables().items() if name in ("topology", "events")}
    write_folder(tmp_path / "a", tables, truth={"faults": []})

    assert train(tmp_path / "a", "--registry", tmp_path / "r") == 2
    assert "host_metrics.parquet: not a row in all 1 recordings: peers looks at nothing else" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], "RECORDING = 'none': must be given, or --from-kafka, or --defaults"),
        (["x", "--defaults"], "--defaults = 'RECORDING': must be used alone"),
        (["--defaults", "--detector", "steps"], "--detector = 'steps': must be minder or bilstm with --defaults"),
        (["x", "--since", "2h"], "--since = '2h': must be used with --from-kafka"),
        (["x", "--seed", "-1"], "--seed = -1: must be 0 or more"),
        (["x", "--budget-per-machine-day", "0"], "--budget-per-machine-day = 0.0: must be above 0"),
        (["--from-kafka", "job"], "kafka = '': must be the brokers"),
        (["nowhere"], "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_asked(
    arguments: list[str], reported: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOCSIN_KAFKA", raising=False)

    assert train(*arguments) == 2
    assert reported in capsys.readouterr().err


def test_a_job_is_read_back_from_kafka_and_trained_on_with_the_truth_that_is_given(
    tmp_path: Path, folder: Path, kafka_broker: Broker, topic_prefix: str
) -> None:
    played = folder / "case-1"
    job = case("cpu_contention", 2).manifest.job_id
    kafka = ["--kafka", kafka_broker.address, "--topic-prefix", topic_prefix]
    assert main(["topics", "apply", "--retain-forever", *kafka]) == 0
    assert main(["replay", str(played), "--to-kafka", *kafka[1:], "--speed", "1000"]) == 0
    flags = [*kafka, "--truth", played / "truth.json", "--detector", "entropy"]

    assert train(folder / "case-2", "--from-kafka", f"default/{job}", *flags) == 0
    assert train(folder / "case-2", "--from-kafka", "default/another", *flags) == 2

    [card] = cards(tmp_path, "entropy")
    assert (card.training["recordings"], card.training["faults"]) == (2, 1)
    assert card.training["source"][1] == f"kafka {topic_prefix}.* default/{job} all to now"


@pytest.mark.slow
def test_side_by_side_the_same_model(folder: Path, tmp_path: Path) -> None:
    assert train(folder, "--detector", "entropy") == 0
    assert main(["train", str(folder), "--detector", "entropy", "--jobs", "2"]) == 0

    assert len(cards(tmp_path, "entropy")) == 1

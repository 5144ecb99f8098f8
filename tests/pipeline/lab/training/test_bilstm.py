"""Training of ``bilstm`` from recordings: what teaches it, what is refused by name, what comes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs tocsin[train]")

from tests.pipeline.lab.backtest.trace_kit import OP_TYPES, traced  # noqa: E402  # torch first
from tests.pipeline.lab.training.kit import looked, written  # noqa: E402
from tocsin.models.bilstm_file import decode_live_bilstm, encode_bilstm  # noqa: E402
from tocsin.models.op_features import PHASES  # noqa: E402
from tocsin.models.training.bilstm_ocnn_training import OcnnTraining  # noqa: E402
from tocsin.pipeline.detect.traces.training import role_windows, sequences_in, sequences_of  # noqa: E402
from tocsin.pipeline.detect.traces.windows import PHASE_VOCABULARY, WindowConfig  # noqa: E402
from tocsin.pipeline.lab.backtest.detector_sets import runner_of  # noqa: E402
from tocsin.pipeline.lab.parallel import serial  # noqa: E402
from tocsin.pipeline.lab.training import bilstm  # noqa: E402
from tocsin.pipeline.lab.training.bilstm import (  # noqa: E402
    Cutting,
    FittedNetworks,
    cut_at,
    fit_bilstm,
    words_at,
)
from tocsin.pipeline.lab.training.budget import BudgetReason  # noqa: E402
from tocsin.schemas.errors import ModelRefusedError, RecordingError  # noqa: E402

SMALL = OcnnTraining(hidden_size=8, head_size=8, batch_size=128)
HASTY = replace(SMALL, encoder_steps=2, turn_count=2, turn_steps=2)
"""Learns nothing; enough where something else is looked at."""
STEPS_ONLY, OPS_ONLY = ("topology", "steps"), ("ops",)


def folders(base: Path, tables: Sequence[str], healthy: int = 12, seconds: int = 400) -> Path:
    """Healthy jobs, and one whose n3 is slow from the middle on; made once."""
    if base.is_dir() and any(base.iterdir()):
        return base
    for seed in range(healthy):
        written(base / f"healthy-{seed}", traced(seconds, seed, tables=tables))
    written(base / "slow", traced(seconds, 90, slow_from=seconds // 2, tables=tables))
    return base


@cache
def fitted(base: Path, tables: tuple[str, ...]) -> tuple[FittedNetworks, list[tuple[str, int, int]]]:
    """What came out, and what was told of the progress."""
    torch.set_num_threads(1)
    reported: list[tuple[str, int, int]] = []
    data = looked(folders(base, tables))
    found = fit_bilstm(data, float("inf"), serial, config=SMALL, on_progress=lambda *one: reported.append(one))
    return found, reported


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bilstm")


@pytest.mark.parametrize(("tables", "family"), [(STEPS_ONLY, "phases"), (OPS_ONLY, "ops")])
def test_a_network_taught_by_healthy_time_names_the_slow_rank_of_an_unseen_job(
    base: Path, tables: tuple[str, ...], family: str
) -> None:
    found, _ = fitted(base / family, tables)
    runner = runner_of("bilstm", {"bilstm": encode_bilstm(found.choice.thing)})
    opinion = runner.judge(traced(400, 77, slow_from=200, tables=tables))
    quiet = runner.judge(traced(400, 78, tables=tables))

    assert set(found.choice.thing) == {family}
    assert found.choice.thing[family].vocabulary.words == (PHASES if family == "phases" else OP_TYPES)
    assert {line["suspects"][0]["name"] for line in opinion.lines} == ({"n3"} if "topology" in tables else {"3"})
    assert {line["metric"] for line in opinion.lines} == {f"{family}_distribution"}
    assert found.operations[family]["sources"] == list(found.choice.thing[family].vocabulary.words)
    assert (found.operations[family]["recordings"], found.operations[family]["roles"]) == (13, 13)
    assert (quiet.lines, quiet.reason) == ((), None)
    assert any(note.startswith(f"{family}: taught by") for note in found.notes)


def test_a_line_is_chosen_on_the_recordings_with_a_truth(base: Path) -> None:
    found, _ = fitted(base / "phases", STEPS_ONLY)

    assert found.line_factor in bilstm.LINE_FACTORS
    assert (found.choice.score.hit_count, found.choice.score.missed_count, found.choice.score.false_count) == (1, 0, 0)
    assert found.choice.reason is BudgetReason.NO_BUDGET


@pytest.mark.parametrize(("tables", "family"), [(STEPS_ONLY, "phases"), (OPS_ONLY, "ops")])
def test_an_engine_takes_what_training_makes_with_every_line_that_it_may_choose(
    base: Path, tables: tuple[str, ...], family: str
) -> None:
    found, _ = fitted(base / family, tables)
    network = found.choice.thing[family]
    trained = network.line_factor / found.line_factor

    for factor in bilstm.LINE_FACTORS:
        decode_live_bilstm(encode_bilstm({family: replace(network, line_factor=factor * trained)}))


def test_time_of_a_fault_teaches_nothing(tmp_path: Path) -> None:
    slow, words = written(tmp_path / "slow", traced(400, 90, slow_from=200)), {"phases": PHASES}
    unaware = written(tmp_path / "unaware", traced(400, 90, slow_from=200), truth={"faults": []})
    [cut, whole] = [cut_at(Cutting(folder, words, 0)) for folder in (slow, unaware)]

    assert isinstance(cut, dict)
    assert isinstance(whole, dict)
    assert 0 < len(cut["phases"][0]) < len(whole["phases"][0])
    assert cut["phases"][1] < whole["phases"][1]


def test_no_sequence_spans_a_fault() -> None:
    from tocsin.pipeline.lab.backtest.trace_runner import slices_of

    job = traced(400, 5)
    windows = [one for one in role_windows(slices_of(job), WindowConfig()) if one.family == "phases"]
    middle = windows[len(windows) // 2]
    struck = [(middle.begin_ns + 1, middle.begin_ns + 2)]
    found, _ = sequences_in(windows, PHASE_VOCABULARY, 6, struck=struck)
    whole, _ = sequences_of(slices_of(job), 6, WindowConfig())

    assert len(whole) - len(found) == 6 * 8  # all six sequences of each of eight ranks that the window is part of
    assert np.isfinite(found).all()


def test_a_network_that_learned_nothing_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bilstm, "TRIES", bilstm.TRIES[:1])
    data = looked(folders(tmp_path, STEPS_ONLY))
    free = replace(SMALL, anchor_weight=0.0)

    with pytest.raises(ModelRefusedError, match=r"phases: no network: collapsed_\w+: ") as caught:
        fit_bilstm(data, 0.01, serial, config=free)
    assert caught.value.reason.startswith("collapsed_")


def test_one_recording_is_not_enough_to_hold_another_out(tmp_path: Path) -> None:
    data = looked(written(tmp_path / "one", traced(400, 1)))

    with pytest.raises(RecordingError, match="in 1 recordings, it takes two recordings with 20 each"):
        fit_bilstm(data, 0.01, serial, config=HASTY)


def test_without_a_truth_there_is_no_line(tmp_path: Path) -> None:
    for seed in range(2):
        written(tmp_path / str(seed), traced(100, seed, healthy_truth=False))

    with pytest.raises(RecordingError, match="thresholds need to know what happened"):
        fit_bilstm(looked(tmp_path), 0.01, serial, config=HASTY)


def test_words_of_operations_come_from_the_recordings(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", traced(20, 1, tables=OPS_ONLY))

    assert words_at(folder) == {"phases": (), "collectives": (), "ops": OP_TYPES}
    assert "no such folder" in str(words_at(tmp_path / "gone"))


def test_phases_are_those_that_all_recordings_measure(tmp_path: Path) -> None:
    full, fewer = traced(20, 1), traced(20, 2)
    steps = {name: column for name, column in fewer.tables["steps"].items() if name != "forward_seconds"}
    folders = [
        written(tmp_path / "full", full),
        written(tmp_path / "fewer", replace(fewer, tables={**fewer.tables, "steps": steps})),
        written(tmp_path / "ops", traced(20, 3, tables=OPS_ONLY)),
    ]
    found = [words_at(folder) for folder in folders]

    assert [one["phases"] for one in found if isinstance(one, dict)] == [
        PHASES,
        tuple(name for name in PHASES if name != "forward"),
        (),
    ]
    assert bilstm.vocabularies(found) == {  # type: ignore[arg-type]  # all were read
        "phases": tuple(name for name in PHASES if name != "forward"),
        "ops": OP_TYPES,
    }


def test_the_same_seed_gives_the_same_file_and_another_one_another(base: Path) -> None:
    data = looked(folders(base / "phases", STEPS_ONLY))
    cuts = [cut_at(Cutting(folder, {"phases": PHASES}, 0)) for folder in data.folders]
    files = []
    for seed in (1, 1, 2):
        config = replace(SMALL, seed=seed)
        networks, _ = bilstm.train_networks(cuts, {"phases": PHASES}, config, None)  # type: ignore[arg-type]  # all were read
        files.append(encode_bilstm(networks))

    assert files[0] == files[1] != files[2]


def test_progress_tells_each_stage(base: Path) -> None:
    _, reported = fitted(base / "phases", STEPS_ONLY)

    assert list(dict.fromkeys(what for what, _, _ in reported)) == [
        "operation names",
        "windows",
        "network of phases",
        "recordings",
    ]
    assert ("network of phases", SMALL.turn_count, SMALL.turn_count) in reported
    assert json.dumps(reported)

"""Detector sets: they judge what they can, and name the reason where they cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.model_announcements import DEAF
from tests.models.test_lstm_vae_file import drawn
from tests.pipeline.lab.backtest.kit import at, cpu_recording, manifest, metric_table
from tests.pipeline.lab.backtest.trace_kit import traced
from tocsin.models.documents import write_numbers
from tocsin.models.lstm_vae import Limits
from tocsin.models.minder import MinderConfig, MinderModel
from tocsin.models.minder_file import encode_minder
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.lab.backtest.detector_sets import (
    MINDER_SETS,
    SETS,
    checked_sets,
    runner_of,
)
from tocsin.pipeline.lab.backtest.minder_runner import MinderRunner
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.tables import Column, Columns, Recording, Text
from tocsin.schemas.errors import ConfigError, ModelRefusedError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND

CPU_VAE = replace(drawn(), metrics=("cpu_util_ratio",), limits=(Limits(0.0, 1.0),))
OF_CPU = MinderModel({"cpu_util_ratio": Limits(0.0, 1.0)}, {"cpu_util_ratio": CPU_VAE}, priority=("cpu_util_ratio",))
"""Its LSTM-VAE has weights that nobody trained: enough for the variants that use none."""
MODELS = {"minder": encode_minder(OF_CPU)}
EMPTY = Recording(manifest(600), {})
NO_VALUES = {"host_metrics": metric_table(["a", "b", "c", "d"], {"cpu_util_ratio": np.full((600, 4), np.nan)})}


@pytest.mark.parametrize(
    ("name", "recording", "reason"),
    [
        ("ours", EMPTY, Reason.NOTHING_RECORDED),
        ("ours", cpu_recording(2), Reason.TOO_FEW_PEERS),
        ("ours", cpu_recording(seconds=50), Reason.SPAN_TOO_SHORT),
        ("plain", EMPTY, Reason.METRIC_MISSING),
        ("plain", cpu_recording(2), Reason.TOO_FEW_PEERS),
        ("plain", cpu_recording(seconds=60), Reason.SPAN_TOO_SHORT),
        ("entropy", EMPTY, Reason.NO_HOOK),
        ("entropy", cpu_recording(), Reason.NO_HOOK),
        ("bilstm", cpu_recording(), Reason.NO_MODEL),
        ("peers", EMPTY, Reason.METRIC_MISSING),
        ("steps", cpu_recording(), Reason.NO_HOOK),
        ("minder", cpu_recording(2), Reason.TOO_FEW_PEERS),
        ("minder-raw", EMPTY, Reason.METRIC_MISSING),
        ("minder-raw", cpu_recording(2), Reason.TOO_FEW_PEERS),
        ("minder-raw", cpu_recording(seconds=300), Reason.SPAN_TOO_SHORT),
        ("mahalanobis", cpu_recording(2), Reason.TOO_FEW_PEERS),
        ("minder-raw", replace(cpu_recording(), tables=NO_VALUES), Reason.METRIC_MISSING),
        ("minder-streaming", EMPTY, Reason.METRIC_MISSING),
        ("minder-streaming", cpu_recording(2), Reason.TOO_FEW_PEERS),
        ("minder-streaming", cpu_recording(seconds=30), Reason.SPAN_TOO_SHORT),
        ("minder-streaming", cpu_recording(seconds=60), Reason.WARMING_UP),
        ("minder-streaming", replace(cpu_recording(), tables=NO_VALUES), Reason.METRIC_MISSING),
        ("ours", replace(cpu_recording(), tables=NO_VALUES), Reason.METRIC_MISSING),
    ],
)
def test_what_cannot_be_judged_has_a_named_reason(name: str, recording: Recording, reason: Reason) -> None:
    opinion = runner_of(name, MODELS).judge(recording)

    assert opinion.reason is reason
    assert opinion.lines == ()


def test_without_its_lstm_vae_minder_says_so() -> None:
    assert MinderRunner(replace(OF_CPU, single={})).judge(cpu_recording()).reason is Reason.NO_MODEL


@pytest.mark.parametrize("name", ["ours", "plain", "minder-raw", "minder-streaming", "mahalanobis"])
def test_a_quiet_recording_is_judged_and_accuses_nobody(name: str) -> None:
    opinion = runner_of(name, {"minder": encode_minder(replace(OF_CPU, threshold_sigmas=2.2))}).judge(cpu_recording())

    assert opinion.reason is None
    assert opinion.lines == ()


def accused(name: str, recording: Recording) -> list[tuple[str, int]]:
    """Whom a set names, and when; Minder at any threshold, without continuity, so that it has something to say."""
    models = {"minder": encode_minder(replace(OF_CPU, threshold_sigmas=1.2, variant_sigmas={}))}
    runner = runner_of(name, models)
    if isinstance(runner, MinderRunner):
        runner = replace(runner, config=replace(runner.config, continuity_seconds=0.0))
    return [(line["suspects"][0]["name"], line["detected_ns"]) for line in runner.judge(recording).lines]


def throttled(seconds: float) -> Recording:
    """Four machines, one of which is slow; all sets have something to say of it."""
    return draw_case(4, 4, "power_cap", duration_seconds=seconds).recording()


NAMES_SOMEBODY = ("entropy", "minder-raw", "mahalanobis", "plain")


@pytest.mark.parametrize("name", NAMES_SOMEBODY)
def test_of_a_recording_of_no_length_nobody_is_accused(name: str) -> None:
    """Its rows all lie after its end: a replay leaves them out, and so does every set."""
    whole = throttled(600.0)
    empty = replace(whole, manifest=replace(whole.manifest, end_ns=whole.manifest.start_ns))
    opinion = runner_of(name, MODELS).judge(empty)

    assert name == "plain" or accused(name, whole)
    assert accused(name, empty) == []
    assert (opinion.lines, opinion.reason) == ((), Reason.SPAN_TOO_SHORT)


@pytest.mark.parametrize("name", NAMES_SOMEBODY)
def test_rows_after_the_end_change_no_set_s_opinion(name: str) -> None:
    whole = throttled(1100.0)
    end_ns = whole.manifest.start_ns + 520 * NS_PER_SECOND
    cut = replace(whole, manifest=replace(whole.manifest, end_ns=end_ns))
    tables = {
        table: {column: _rows(values, np.asarray(columns["ts_ns"]) < end_ns) for column, values in columns.items()}
        if "ts_ns" in columns
        else columns
        for table, columns in whole.tables.items()
    }

    assert accused(name, cut) == accused(name, replace(cut, tables=tables))
    assert name == "plain" or len(accused(name, cut)) < len(accused(name, whole))


def _rows(column: Column, kept: NDArray[np.bool_]) -> Column:
    if isinstance(column, Text):
        return column.take(kept)
    assert isinstance(column, np.ndarray)
    return column[kept]


@pytest.mark.parametrize("name", SETS)
def test_rows_without_a_value_crash_nobody(name: str) -> None:
    table = metric_table(["a", "b", "c", "d"], {"cpu_util_ratio": np.full((600, 4), np.nan)})
    wild = metric_table(["a", "b", "c", "d"], {"cpu_util_ratio": np.full((600, 4), np.inf)})
    for columns in (table, wild):
        recording = Recording(manifest(600), {"host_metrics": columns})
        assert runner_of(name, MODELS).judge(recording).lines == ()


def test_no_rows_at_all_are_no_metrics() -> None:
    columns: Columns = {"ts_ns": np.zeros(0, np.int64), "host": Text.of([]), "gpu": np.zeros(0, np.int8)}
    recording = Recording(manifest(600), {"host_metrics": columns})

    assert runner_of("ours", {}).judge(recording).reason is Reason.NOTHING_RECORDED
    assert runner_of("plain", {}).judge(recording).reason is Reason.METRIC_MISSING
    for name in MINDER_SETS:
        assert runner_of(name, MODELS).judge(recording).reason is not None


def test_ours_is_the_replay() -> None:
    recording = draw_case(2, 4, "machine_unreachable", duration_seconds=300.0).recording()
    wanted = [verdict.to_line() for verdict in replay(recording, ReplayConfig())]
    opinion = runner_of("ours", {}).judge(recording)

    assert wanted
    assert list(opinion.lines) == wanted


def test_a_model_of_ours_counts_from_the_first_slice() -> None:
    """As hard of hearing as a model may make it, it misses a machine that is a tenth busier, not one that is full."""
    said = {}
    for level in (0.55, 0.95):
        columns = np.full((600, 6), 0.5) + 0.005 * np.random.default_rng(1).standard_normal((600, 6))
        columns[60:, 2] += level - 0.5
        table = metric_table([f"n{index}" for index in range(6)], {"cpu_util_ratio": columns})
        recording = Recording(manifest(600), {"host_metrics": table})
        for name, models in (("own", {}), ("deaf", {"peers": write_numbers(DEAF)})):
            lines = runner_of("ours", models).judge(recording).lines
            said[name, level] = {line["suspects"][0]["name"] for line in lines}

    assert said == {("own", 0.55): {"n2"}, ("deaf", 0.55): set(), ("own", 0.95): {"n2"}, ("deaf", 0.95): {"n2"}}


def test_the_plain_detector_names_the_machine_that_changed() -> None:
    opinion = runner_of("plain", {}).judge(busier(4, 0.9))

    assert [line["suspects"][0]["name"] for line in opinion.lines] == ["n4"]


def busier(host: int, level: float) -> Recording:
    """Six machines for ten minutes; from half of it on one is busier."""
    quiet = cpu_recording()
    table = dict(quiet.tables["host_metrics"])
    values = np.asarray(table["cpu_util_ratio"]).reshape(600, 6).copy()
    values[300:, host] = level
    table["cpu_util_ratio"] = values.reshape(-1)
    return replace(quiet, tables={"host_metrics": table})


def test_streaming_minder_names_the_machine_that_changed_when_it_has_seen_it() -> None:
    data = shipped_model("minder")
    assert data is not None
    [line] = runner_of("minder-streaming", {"minder": data}).judge(busier(4, 0.9)).lines

    assert line["suspects"][0]["name"] == "n4"
    assert 5 < (line["detected_ns"] - at(300)) / NS_PER_SECOND < 60, "slices of five seconds, and not calls of minutes"


def test_entropy_speaks_of_the_hosts_of_the_steps() -> None:
    opinion = runner_of("entropy", {}).judge(traced(240, 1, slow_from=120))

    assert opinion.reason is None
    assert {line["suspects"][0]["name"] for line in opinion.lines} == {"n3"}


def test_entropy_says_that_a_recording_is_too_short_for_it() -> None:
    assert runner_of("entropy", {}).judge(traced(60, 1)).reason is Reason.WARMING_UP


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("ours", {"peers": b"no json"}),
        ("minder", {"minder": b"cut"}),
        ("minder-streaming", {"minder": b"cut"}),
        ("entropy", {"entropy": b"{}x"}),
        ("bilstm", {"bilstm": b"x"}),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_at_once(name: str, models: dict[str, bytes]) -> None:
    with pytest.raises(ModelRefusedError):
        runner_of(name, models)


def test_sets_that_need_a_model_say_so() -> None:
    with pytest.raises(ConfigError, match="minder-raw needs a model"):
        runner_of("minder-raw", {})


def test_names_of_sets_are_checked() -> None:
    assert checked_sets([" ours", "plain", "ours", ""]) == ("ours", "plain")
    for wrong in (["our"], [""]):
        with pytest.raises(ConfigError, match="minder-no-continuity"):
            checked_sets(wrong)


def test_each_set_of_minder_is_named_as_its_runner_names_itself() -> None:
    names = {name: MinderRunner(MinderModel({}), config).name for name, config in MINDER_SETS.items()}

    assert names == {name: name for name in MINDER_SETS}
    assert MINDER_SETS["minder"] == MinderConfig()

"""The faithful mode over recordings: what it answers, when, and that the operator says the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.models.minder_cases import LIMITS
from tocsin.models.lstm_vae import Limits
from tocsin.models.minder import PRIORITY, MinderConfig, MinderModel
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, MetricSlice, blocks_of
from tocsin.pipeline.detect.baselines.minder import MinderDetector, MinderDetectorConfig
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks
from tocsin.pipeline.lab.backtest.minder_runner import MinderRunner, pulls
from tocsin.pipeline.lab.backtest.runner import RunnerAccusation, lines_of
from tocsin.pipeline.lab.backtest.series import series_of
from tocsin.pipeline.recording.frames import frames_of
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.score import score_lines
from tocsin.pipeline.recording.tables import Manifest, Recording, Text
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly

T0 = 1_700_000_000 * NS_PER_SECOND
HOSTS = tuple(f"n{row}" for row in range(6))
MODEL = MinderModel(LIMITS | {"gpu_power_watts": Limits(0.0, 900.0)})
CONFIG = MinderConfig("raw", threshold_sigmas=1.6)
RUNNER = MinderRunner(MODEL, CONFIG)


def recording(seconds: int = 1500, onset: int = 600, tick_seconds: int = 1, without: tuple[str, ...] = ()) -> Recording:
    """Six machines of two GPUs; n2's power falls at the onset."""
    rng = np.random.default_rng(0)
    times = np.arange(0, seconds, tick_seconds)
    rows = [(second, host, gpu) for second in times.tolist() for host in range(6) for gpu in (-1, 0, 1)]
    second, host, gpu = (np.array(column) for column in zip(*rows, strict=True))
    columns: dict[str, object] = {
        "ts_ns": T0 + second * NS_PER_SECOND,
        "host": Text(host.astype(np.int32), HOSTS),
        "gpu": gpu.astype(np.int8),
    }
    for metric in (*GPU_METRICS, *HOST_METRICS):
        high = MODEL.limits.get(metric.name, Limits(0.0, 1.0)).high
        values = high * (0.5 + 0.01 * rng.standard_normal(len(rows)))
        if metric.name == "gpu_power_watts":
            values[(host == 2) & (second >= onset)] *= 0.5
        values[(gpu >= 0) != (metric.scope == "gpu")] = np.nan
        if metric.name not in without:
            columns[metric.name] = values.astype(np.float32)
    manifest = Manifest("j", 0, T0, T0 + seconds * NS_PER_SECOND, float(tick_seconds))
    truth = {"faults": [_fault(onset, seconds)]}
    return Recording(manifest, {"host_metrics": columns}, truth=truth)  # type: ignore[dict-item]


def _fault(onset: int, end: int) -> dict[str, object]:
    suspects = [{"kind": "host", "name": "n2"}]
    times = {"onset_ns": T0 + onset * NS_PER_SECOND, "end_ns": T0 + end * NS_PER_SECOND}
    return {"kind": "power_cap", "cause": "power_cap", "suspects": suspects, **times}


def through_the_operator(job: Recording, *, as_means: bool = False) -> list[Anomaly]:
    """The same recording, slice by slice."""
    frames = list(frames_of(job, Places(job)))
    detector = MinderDetector(MinderDetectorConfig(MODEL, CONFIG))
    said: list[Anomaly] = []
    for end_ns in sorted({frame.ts_ns + 1_000_000 for frame in frames}):
        own = tuple(frame for frame in frames if frame.ts_ns + 1_000_000 == end_ns)
        start_ns = end_ns - 5 * NS_PER_SECOND
        data = Slice(own[0].job, start_ns, end_ns, own)
        if as_means:
            data = MetricSlice(own[0].job, start_ns, end_ns, (), tuple(blocks_of(own, BUILTIN_TABLES)))
        said += detector.on_slice(data)
    return said


def test_it_names_machine_metric_and_onset_at_the_call_that_saw_four_minutes_of_it() -> None:
    answer, _ = RUNNER.run(recording())  # it says it again at the next call

    assert (answer.host, answer.metric) == ("n2", "gpu_power_watts")
    assert abs(answer.onset_ns - T0 - 600 * NS_PER_SECOND) <= 8 * NS_PER_SECOND
    assert answer.detected_ns == T0 + round((960 + 3.6) * NS_PER_SECOND)
    assert answer.score >= 1


def test_its_answers_are_scored_as_verdicts_are() -> None:
    job = recording(2500)
    answers = RUNNER.run(job)
    score = score_lines(lines_of(answers), job.truth["faults"] if job.truth else (), 1.0)

    assert len(answers) == 4  # at every call while it lasts: one accusation
    assert (len(score.faults), score.false_count) == (1, 0)
    assert score.faults[0].delay_seconds == pytest.approx(363.6)


def test_the_operator_says_the_same_as_the_runner() -> None:
    job = recording()
    answers, anomalies = RUNNER.run(job), through_the_operator(job)

    assert len(answers) == len(anomalies) == 2
    for answer, anomaly in zip(answers, anomalies, strict=True):
        assert anomaly.component.name == answer.host
        assert (anomaly.metric, anomaly.start_ns) == (answer.metric, answer.onset_ns)
        assert anomaly.score == pytest.approx(answer.score, rel=1e-6)


def test_fed_with_means_the_operator_finds_the_same_machine() -> None:
    anomaly, *_ = through_the_operator(recording(), as_means=True)

    assert (anomaly.component.name, anomaly.metric) == ("n2", "gpu_power_watts")
    assert abs(anomaly.start_ns - T0 - 600 * NS_PER_SECOND) <= 40 * NS_PER_SECOND


def test_other_sampling_periods_work() -> None:
    answer, *_ = RUNNER.run(recording(tick_seconds=5))

    assert (answer.host, answer.metric) == ("n2", "gpu_power_watts")


def test_truth_is_not_looked_at() -> None:
    assert RUNNER.run(dataclasses.replace(recording(), truth=None)) == RUNNER.run(recording())


def test_a_recording_without_metrics_or_shorter_than_a_call_has_no_answer() -> None:
    job = recording(400)

    assert RUNNER.run(job) == []
    assert RUNNER.run(dataclasses.replace(job, tables={})) == []


def test_a_metric_that_the_recording_lacks_is_named() -> None:
    calls = list(RUNNER.calls(recording(without=("gpu_power_watts", "cpu_util_ratio"))))

    assert len(calls) == 3
    assert all(call.outcome.alert is None for call in calls)
    assert calls[0].outcome.reasons["gpu_power_watts"] is Reason.METRIC_MISSING


def test_where_machines_are_there_and_all_of_the_models_metrics_are_missing_the_metrics_are_named() -> None:
    job = recording(without=PRIORITY)

    assert RUNNER.judge(job).reason is Reason.METRIC_MISSING


@pytest.mark.parametrize("is_bare", [False, True])
def test_among_too_few_machines_for_the_threshold_nothing_was_judged(is_bare: bool) -> None:
    """Six machines: no z-score is above 2.24. Also where more metrics are missing than can be compared."""
    job = recording(without=tuple(set(PRIORITY) - {"gpu_power_watts"}) if is_bare else ())
    high = MinderRunner(MODEL, dataclasses.replace(CONFIG, threshold_sigmas=2.3))
    opinion = high.judge(job)

    assert (opinion.lines, opinion.reason) == ((), Reason.THRESHOLD_UNREACHABLE)
    assert RUNNER.judge(job).reason is None


def test_negative_counters_and_infinite_values_are_missing_samples_and_accuse_nobody() -> None:
    job = recording(onset=10_000)
    columns = dict(job.tables["host_metrics"])
    host = columns["host"]
    assert isinstance(host, Text)
    for metric, value in (("pfc_tx_packets_per_second", -1e6), ("cpu_util_ratio", np.inf)):
        values = np.array(columns[metric])
        values[(host.codes == 3) & np.isfinite(values)] = value
        columns[metric] = values
    broken = dataclasses.replace(job, tables={"host_metrics": columns})
    series = series_of(broken, ("pfc_tx_packets_per_second", "cpu_util_ratio", "gpu_power_watts"))

    assert series is not None
    assert np.isnan(series.values[3, :2]).all()
    assert np.isfinite(series.values[3, 2]).all()
    assert RUNNER.run(broken) == []


def test_a_machines_gpus_count_as_their_mean() -> None:
    series = series_of(recording(100), ("gpu_power_watts",))

    assert series is not None
    assert series.values.shape == (6, 1, 100)
    assert series.values.mean() == pytest.approx(450, rel=0.01)
    assert series.values.std() == pytest.approx(9 / np.sqrt(2), rel=0.1)


def test_pulls_are_the_last_fifteen_minutes_at_every_call() -> None:
    series = Ticks(HOSTS, np.zeros((6, 1, 2000), np.float32), T0, NS_PER_SECOND)
    found = [((part.start_ns - T0) // NS_PER_SECOND, part.values.shape[2]) for part, _ in pulls(series, CONFIG)]

    assert found == [(0, 480), (60, 900), (540, 900), (1020, 900)]


def test_each_variant_has_a_name_for_tables() -> None:
    names = {
        MinderRunner(MODEL, MinderConfig(variant, continuity_seconds=seconds)).name
        for variant in ("vae", "raw", "concatenated", "integrated", "mahalanobis")
        for seconds in (240.0, 0.0)
    }

    assert {"minder", "minder-raw", "minder-no-continuity", "mahalanobis"} < names
    assert len(names) == 10


def test_a_machine_named_again_and_again_is_one_accusation() -> None:
    lines = lines_of([RunnerAccusation("n1", "m", T0, T0 + 5, 1.0), RunnerAccusation("n1", "m", T0, T0 + 1, 1.0)])

    assert [line["detected_ns"] - T0 for line in lines] == [1, 5]
    assert len({line["id"] for line in lines}) == 1

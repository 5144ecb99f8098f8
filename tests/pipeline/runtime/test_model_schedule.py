"""A model swapped under a running job: at its slice, whatever the order; a bad one changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from tests.flink_fixtures import case_of
from tests.model_announcements import announced, with_payload
from tests.step_times import slices_of, worker_name
from tocsin.models.model_formats import accept
from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.recording.replay import ReplayConfig, drive, replay, seconds_with_models
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.model_schedule import KEEP_NS, ModelSchedule
from tocsin.schemas.errors import ClockAheadError, ModelRefusedError
from tocsin.schemas.model_announcement import ModelAnnouncement, withdrawal
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, Slice
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

RECORDING = case_of(11)
"""Four machines; the peers detector opens verdicts by the slices that end at 110 and at 125 s."""
START_NS = RECORDING.manifest.start_ns
POWER = "gpu_power_watts"
STILL = MachineShape(noise_ratio=0.002, own_ratio=0.01, has_hook=False)
"""Machines whose metrics vary less than the scales' floors."""


def reported(*announcements: ModelAnnouncement, **config: Any) -> list[tuple[float, str]]:
    """When verdicts that stand on the peers detector opened, seconds from the start."""
    found = replay(RECORDING, ReplayConfig(announcements=announcements, **config))
    return [(at(line), line.suspects[0].component.name) for line in found if line.update == 0 and by_peers(line)]


def at(verdict: Verdict) -> float:
    """When it was said, seconds from the start."""
    return (verdict.detected_ns - START_NS) / NS_PER_SECOND


def by_peers(verdict: Verdict) -> bool:
    """Whether the peers detector has part in it."""
    return any(evidence.detector == "peers" for evidence in verdict.evidence)


def test_a_model_is_used_by_the_slice_that_begins_at_its_time_and_by_none_before() -> None:
    assert reported() == [(110.0, "node0784"), (125.0, "node0780")]
    assert reported(announced(START_NS, 60, 110)) == [(110.0, "node0784")]  # the slice that ends at 110 began at 105
    assert reported(announced(START_NS, 60, 105)) == []


def test_evidence_carries_the_version_of_the_model_that_its_detector_used() -> None:
    model = announced(START_NS, 60, 110, {}, version="v7")
    found = [line for line in replay(RECORDING, ReplayConfig(announcements=(model,))) if by_peers(line)]
    versions = {
        at(line): {evidence.model_version for evidence in line.evidence if evidence.detector == "peers"}
        for line in found
    }

    assert versions[110.0] == {""}
    assert versions[max(versions)] == {"v7"}


def test_a_later_model_takes_its_place_and_a_withdrawal_gives_back_the_detectors_own() -> None:
    back = withdrawal("peers", START_NS + 90 * NS_PER_SECOND)

    assert back.effective_ns == START_NS + 100 * NS_PER_SECOND
    assert reported(announced(START_NS, 60, 70), back) == reported()
    assert (
        reported(announced(START_NS, 60, 70), announced(START_NS, 70, 115, {}, version="all as before"))[-1][0] == 125.0
    )


def test_order_of_arrival_and_repetition_do_not_matter() -> None:
    wanted = reported(announced(START_NS, 60, 110))

    assert reported(announced(START_NS, 60, 110), shuffle_seed=3, repeat_count=2) == wanted


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (announced(START_NS, 60, 105, {"working": {"alarm_sum": 0.0}}), "out_of_range"),
        (replace(announced(START_NS, 60, 105), payload=b"{}"), "hash_mismatch"),
        (with_payload(announced(START_NS, 60, 105), b"\x00"), "model_undecodable"),
        (announced(START_NS, 60, 69), "not_a_boundary"),
        (announced(START_NS, 61, 70), "short_notice"),
        (replace(announced(START_NS, 60, 105), name="oracle"), "unknown_detector"),
    ],
)
def test_a_bad_model_is_refused_and_the_old_one_goes_on(bad: ModelAnnouncement, reason: str) -> None:
    good = announced(START_NS, 20, 30, version="good")
    engine = EmbeddedEngine(EngineConfig(history=None))
    config = ReplayConfig(announcements=(good, bad))
    found = list(drive(engine, RECORDING, config))

    assert not any(line.update == 0 and by_peers(line) for line in found)
    assert engine.models.counters == {"accepted": 1, reason: 1}
    assert [(m["version"], m["state"]) for m in engine.status()["models"]] == [("good", "in use")]
    assert engine.status()["jobs"][0]["models"] == {"peers": "good"}


def test_one_that_comes_behind_its_time_is_refused() -> None:
    engine = EmbeddedEngine(EngineConfig(history=None))
    engine.tick(START_NS + 110 * NS_PER_SECOND)
    late = announced(START_NS, 60, 110)

    with pytest.raises(ModelRefusedError, match="ahead of the stream") as caught:
        engine.take(encode(late))
    assert caught.value.reason == "too_late"
    assert engine.take(encode(announced(START_NS, 60, 115))) is RecordOutcome.OK
    assert engine.take(encode(announced(START_NS, 60, 115))) is RecordOutcome.DUPLICATE


def test_a_clock_that_runs_ahead_is_refused_as_for_all_records() -> None:
    engine = EmbeddedEngine(EngineConfig(history=None))

    with pytest.raises(ClockAheadError):
        engine.take(encode(announced(START_NS, 60, 110)), START_NS + 57 * NS_PER_SECOND)


@pytest.mark.parametrize("cut_second", [50, 61, 104, 107, 120])
def test_an_engine_restored_anywhere_says_what_one_that_ran_through_says(cut_second: int) -> None:
    config = ReplayConfig(announcements=(announced(START_NS, 60, 105), announced(START_NS, 62, 115, {}, version="2")))
    wanted = list(replay(RECORDING, config))
    engine = EmbeddedEngine(config.engine)
    found: list[Verdict] = []
    for tick_ns, records in seconds_with_models(RECORDING, config):
        for record in records:
            engine.take_record(record)
        found += engine.tick(tick_ns).verdicts
        if tick_ns == START_NS + cut_second * NS_PER_SECOND:
            parts, engine = engine.snapshot(), EmbeddedEngine(config.engine)
            engine.restore(parts)

    assert found == wanted


def test_anomalies_name_the_model_that_found_them() -> None:
    engine = EmbeddedEngine(EngineConfig(history=None))
    versions: dict[tuple[str, str], int] = {}
    keen = announced(START_NS, 60, 105, {"working": {"alarm_sum": 9.0}}, version="keen")
    for tick_ns, records in seconds_with_models(RECORDING, ReplayConfig(announcements=(keen,))):
        for record in records:
            engine.take_record(record)
        for anomaly in engine.tick(tick_ns).anomalies:
            versions.setdefault((anomaly.detector, anomaly.model_version), (anomaly.slice_end_ns - START_NS) // 10**9)

    assert versions[("peers", "keen")] == 110
    assert all(second < 110 for name, second in versions.items() if name == ("peers", ""))
    assert {detector for detector, version in versions if version == "keen"} == {"peers"}


def test_the_newest_time_counts_in_whatever_order_they_came() -> None:
    three = [announced(0, 0, 20, version="b"), announced(0, 1, 30, version="c"), announced(0, 2, 20, version="a")]
    for order in permutations(three):
        book = ModelSchedule()
        for one in order:
            assert book.offer(one, 0)
        versions = [
            model.version if (model := book.at("peers", second * NS_PER_SECOND)) else "" for second in (15, 20, 25, 30)
        ]
        assert versions == ["", "a", "a", "c"]


def test_what_was_replaced_long_ago_is_forgotten_and_what_is_in_use_is_not() -> None:
    book = ModelSchedule()
    for second in (10, 20, 4000):
        book.offer(announced(0, second - 10, second, version=str(second)), 0)
    book.forget(4000 * NS_PER_SECOND - KEEP_NS)

    assert [one["version"] for one in book.status(0)] == ["20", "4000"]
    other = ModelSchedule()
    other.restore(book.snapshot())
    assert other.status(0) == book.status(0)
    assert ModelSchedule().snapshot() == {}


def test_a_model_of_the_state_that_this_program_refuses_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    book = ModelSchedule()
    good, bad = announced(0, 0, 10), announced(0, 0, 20, {"working": {"alarm_sum": -1.0}})
    book.load([encode(good), encode(bad)])

    assert [one["effective_ns"] for one in book.status(0)] == [10 * NS_PER_SECOND]
    assert "cannot be used any more" in caplog.text


@pytest.mark.parametrize(("floor_watts", "deviating"), [(2.0, {("n03", POWER)}), (8.0, set())])
def test_the_peers_detector_takes_the_numbers_and_keeps_what_it_learned(
    floor_watts: float, deviating: set[tuple[str, str]]
) -> None:
    job, graph = MetricsJob(JobShape(), STILL), JobGraph()
    detector = PeerDetector(PeersConfig(), graph)
    assert _deviating(detector, graph, job, 120) == set()
    learned = detector.snapshot()
    detector.on_model(accept(announced(0, 0, 10, {"floors": {POWER: floor_watts}})))
    assert detector.snapshot() == learned

    job.shift(3, POWER, 0.93)  # by 31 W: by a scale of 8 W that is little
    assert _deviating(detector, graph, job, 60) == deviating


def _deviating(detector: PeerDetector, graph: JobGraph, job: MetricsJob, seconds: int) -> set[tuple[str, str]]:
    """Hosts and metrics of the anomalies of the next seconds of a job."""
    found: set[tuple[str, str]] = set()
    held: list[JobRecord] = []
    for _ in range(seconds):
        held += job.second()
        if job.now_ns % job.slice_ns == 0:
            data = Slice(job.job, job.now_ns - job.slice_ns, job.now_ns, tuple(held))
            graph.take(data.records)
            found |= {(reported.component.name, reported.metric) for reported in detector.on_slice(data)}
            held = []
    return found


@pytest.mark.parametrize(("spread_factor", "named"), [(5.0, {worker_name(3)}), (9.0, set())])
def test_the_steps_detector_takes_the_numbers(spread_factor: float, named: set[str]) -> None:
    graph = JobGraph()
    detector = StepDetector(StepsConfig(), graph)
    detector.on_model(
        accept(announced(0, 0, 10, {"slow": {"spread_factor": spread_factor}, "lines": {}}, name="steps"))
    )
    seconds = 1 + 0.02 * np.random.default_rng(1).standard_normal((100, 8))
    seconds[40:, 3] *= 1.1
    found: set[str] = set()
    for data in slices_of(seconds):
        graph.take(data.records)
        found |= {anomaly.component.name for anomaly in detector.on_slice(data)}

    assert found == named

"""Learned detectors in a running engine: announced, judging from a slice on, evidence beside that of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import pytest

from tests.pipeline.detect.learned.test_minder import of_power
from tests.pipeline.runtime.flink.stream import Stream
from tocsin.models.minder_file import encode_minder
from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.detect.learned.config import DetectorMode, LearnedConfig
from tocsin.pipeline.detect.learned.registry import LEARNED, learned_config
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob, MetricsScenario
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.model_announcement import ModelAnnouncement, boundary_after, content_hash
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, Frame, JobRecord, StepBatch
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

POWER = "gpu_power_watts"


def engine_of(mode: DetectorMode) -> EngineConfig:
    """Settings with Minder in this mode."""
    return EngineConfig(history=None, job=JobConfig(learned=LearnedConfig({"minder": mode})))


def announcement(ts_ns: int, version: str = "of power") -> ModelAnnouncement:
    """A model of one metric."""
    payload = encode_minder(of_power())
    return ModelAnnouncement(
        ts_ns, "minder", version, "minder/1", content_hash(payload), payload, boundary_after(ts_ns)
    )


_RECORDS: dict[int, list[JobRecord]] = {}
"""Scenario -> the records that it sent."""


def told(mode: DetectorMode, *, announced_at: float | None = None) -> tuple[MetricsScenario, list[Verdict]]:
    """A machine that draws less power from second 150 on, and makes the job slower."""
    scenario = MetricsScenario(JobShape(rank_count=8, step_seconds=2.0), engine_config=engine_of(mode))
    scenario.at(150).inject(scenario.job.shift, 3, POWER, 0.7)
    scenario.at(150).inject(scenario.job.slow, 3, "forward", 1.5)
    if announced_at is not None:
        taken: list[RecordOutcome] = []
        record = encode(announcement(scenario.job.now_ns + round(announced_at * NS_PER_SECOND)))
        scenario.at(announced_at).inject(lambda: taken.append(scenario.engine.take(record)))
    sent = _RECORDS.setdefault(id(scenario), [])
    scenario.followers.append(lambda records, _lines, _end_ns: sent.extend(records))
    scenario.run(240)
    return scenario, scenario.verdicts


def scenario_records(scenario: MetricsScenario) -> list[JobRecord]:
    """The records that a scenario sent."""
    return _RECORDS[id(scenario)]


@cache
def told_once(mode: DetectorMode) -> tuple[MetricsScenario, list[Verdict]]:
    """The same, once for all tests that only look at it."""
    return told(mode)


def by_minder(lines: Sequence[Verdict]) -> list[str]:
    """Metrics that Minder shows."""
    return [evidence.metric for line in lines for evidence in line.evidence if evidence.detector == "minder"]


def plain(lines: Sequence[Verdict]) -> list[Verdict]:
    """The lines without what learned detectors add: their evidence and their confidence."""
    return [
        dataclasses.replace(line, confidence=0.0, evidence=tuple(e for e in line.evidence if e.detector != "minder"))
        for line in lines
    ]


def test_its_evidence_stands_beside_the_others_and_changes_nothing_else() -> None:
    off, on = told_once(DetectorMode.OFF)[1], told_once(DetectorMode.EVIDENCE)[1]

    assert set(by_minder(on)) == {POWER}
    assert not by_minder(off)
    assert plain(on) == plain(off)
    assert all(one.confidence >= other.confidence for one, other in zip(on, off, strict=True))
    assert any(one.confidence > other.confidence for one, other in zip(on, off, strict=True))


def test_an_announced_model_judges_from_its_slice_on_and_status_says_so() -> None:
    scenario, lines = told(DetectorMode.EVIDENCE, announced_at=40)
    job = scenario.engine.status()["jobs"][0]
    versions = {one.model_version for line in lines for one in line.evidence if one.detector == "minder"}

    assert versions == {"of power"}
    [state] = [one for one in job["learned"] if one["detector"] == "minder"]
    assert (state["mode"], state["card"]["version"], state["card"]["metrics"]) == ("evidence", "of power", [POWER])
    assert state["names"] == ["n03"]
    assert job["models_in_use"]["minder"]["content_hash"] == state["card"]["content_hash"]
    assert job["models_in_use"]["minder"]["since_ns"] % (5 * NS_PER_SECOND) == 0


def test_off_it_costs_nothing_and_a_model_waits() -> None:
    scenario, _ = told(DetectorMode.OFF, announced_at=40)
    job = scenario.engine.status()["jobs"][0]

    assert {"detector": "minder", "mode": "off"} in job["learned"]
    assert scenario.engine.models.status(scenario.job.now_ns)[0]["version"] == "of power"
    assert not any("minder" in name or "learned" in name for name in scenario.engine.snapshot() if "models" not in name)


def test_settings_are_read_strictly() -> None:
    assert learned_config(["minder=accuse"]).mode_of("minder") is DetectorMode.ACCUSE
    assert learned_config([]).mode_of("minder") is DetectorMode.OFF
    for wrong in (["minder"], ["minder=loud"], ["oracle=off"], ["minder=off", "minder=accuse"]):
        with pytest.raises(ConfigError, match="--detector"):
            learned_config(wrong)


@pytest.mark.parametrize(
    ("kept", "abstained"),
    [
        ((Frame,), {"entropy": Reason.NO_HOOK, "bilstm": Reason.NO_HOOK}),
        ((StepBatch, CollectiveBatch), {"minder": Reason.METRIC_MISSING}),
    ],
)
def test_a_job_without_what_a_detector_looks_at_is_an_abstention_by_name(
    kept: tuple[type[JobRecord], ...], abstained: dict[str, Reason]
) -> None:
    job = MetricsJob(JobShape(rank_count=8, step_seconds=1.0), MachineShape())
    learned = learned_config([f"{name}=accuse" for name in LEARNED])
    engine = EmbeddedEngine(EngineConfig(history=None, job=JobConfig(learned=learned)))
    for _ in range(62):
        for record in job.second():
            if isinstance(record, kept) or not isinstance(record, Frame | StepBatch | CollectiveBatch):
                engine.take(encode(record))
        engine.tick(job.now_ns)

    states = {one["detector"]: one for one in engine.status()["jobs"][0]["learned"]}
    for name, state in states.items():
        missing = {Reason.NO_HOOK, Reason.METRIC_MISSING} & set(state["abstained"])
        assert missing == ({abstained[name]} if name in abstained else set())
        assert all(state["abstained"][reason] > 5 for reason in missing)


# -- both runtimes --------------------------------------------------------------------


def test_flink_says_what_the_embedded_engine_says_killed_or_not() -> None:
    scenario, lines = told_once(DetectorMode.EVIDENCE)
    driver = DriverConfig(engine=engine_of(DetectorMode.EVIDENCE), snapshot_seconds=20)
    killed = Stream(scenario_records(scenario), config=driver, is_cut=True)

    found = killed.run(kill_at=(70, 181, 215), stride=3).verdicts()
    assert by_minder(lines)
    assert found == [encode_verdict(line) for line in lines]


def test_a_state_without_it_begins_it_anew_and_one_with_it_is_not_needed_without() -> None:
    scenario, _ = told_once(DetectorMode.EVIDENCE)
    with_it = scenario.engine.snapshot()
    off, on = EmbeddedEngine(engine_of(DetectorMode.OFF)), EmbeddedEngine(engine_of(DetectorMode.EVIDENCE))
    off.restore(with_it)
    on.restore(off.snapshot())

    assert not any(name.endswith(("/minder", "/learned")) for name in off.snapshot())
    [state] = [one for one in on.status()["jobs"][0]["learned"] if one["detector"] == "minder"]
    assert state["names"] == []

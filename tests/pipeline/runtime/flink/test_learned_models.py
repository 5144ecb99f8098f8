"""Models of learned detectors on the topic of models: a Flink job judges with them from their slice on."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.pipeline.detect.learned.test_minder import of_power
from tests.pipeline.detect.learned.test_traces import network
from tests.pipeline.runtime.flink.test_model_log import END_SECOND, START_NS, Slot, row
from tocsin.models.bilstm_file import encode_bilstm
from tocsin.models.entropy import EntropyConfig
from tocsin.models.entropy_file import encode_entropy
from tocsin.models.minder_file import encode_minder
from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.detect.learned.config import DetectorMode, LearnedConfig
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.lab.testing import JobShape, MetricsScenario
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig
from tocsin.pipeline.runtime.flink.model_log import ModelLog
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.pipeline.stores.report_codec import decode_status
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.kafka.topics import JOB_STATUS
from tocsin.schemas.model_announcement import BOUNDARY_NS, ModelAnnouncement, boundary_after, content_hash, withdrawal
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, Frame, JobRecord, StepBatch
from tocsin.schemas.wire.codec import decode, encode

ENGINE = EngineConfig(history=None, job=JobConfig(learned=LearnedConfig(dict.fromkeys(LEARNED, DetectorMode.EVIDENCE))))
CONFIG = DriverConfig(engine=ENGINE, snapshot_seconds=20)
JOB_NS = -(-START_NS // BOUNDARY_NS) * BOUNDARY_NS
FAULT_SECOND, LAST_SECOND = 150, 290
PAYLOADS: Mapping[str, bytes] = {
    "minder": encode_minder(of_power()),
    "entropy": encode_entropy(dataclasses.replace(EntropyConfig(), max_sigmas=5.0)),
    "bilstm": encode_bilstm({"phases": network()}),
}


def announced(detector: str, payload: bytes, second: int) -> ModelAnnouncement:
    """A model that is announced at this second of the job."""
    ts_ns, digest = JOB_NS + second * NS_PER_SECOND, content_hash(payload)
    return ModelAnnouncement(ts_ns, detector, "new", f"{detector}/1", digest, payload, boundary_after(ts_ns))


ALL = [announced(name, payload, 20) for name, payload in PAYLOADS.items()]


def take(scenario: MetricsScenario, one: ModelAnnouncement) -> None:
    """Give the scenario's engine a model."""
    assert scenario.engine.take_record(one) is RecordOutcome.OK


@pytest.fixture(scope="module")
def played() -> tuple[MetricsScenario, dict[int, list[bytes]]]:
    """The embedded engine's answer to a machine that becomes slow, and the records by the end of their second."""
    scenario = MetricsScenario(JobShape(rank_count=6, step_seconds=1.0, start_ns=JOB_NS), engine_config=ENGINE)
    scenario.at(FAULT_SECOND).inject(scenario.job.shift, 3, "gpu_power_watts", 0.7)
    scenario.at(FAULT_SECOND).inject(scenario.job.slow, 3, "forward", 1.5)
    for one in ALL:
        scenario.at(20).inject(take, scenario, one)
    windows: dict[int, list[bytes]] = defaultdict(list)

    def keep(records: list[JobRecord]) -> None:
        for record in records:
            windows[(record.ts_ns // NS_PER_SECOND + 1) * NS_PER_SECOND].append(encode(record))

    scenario.followers.append(lambda records, _lines, _end_ns: keep(list(records)))
    scenario.run(END_SECOND)
    return scenario, windows


def slot(windows: dict[int, list[bytes]], *announcements: ModelAnnouncement) -> Slot:
    """A slot of the Flink job with the learned detectors on."""
    return Slot(windows, list(announcements), config=CONFIG, key=b"test/job")


def states_of(one: Slot) -> Iterator[dict[str, Any]]:
    """Yield the states of the job for ``tocsin status``, in order."""
    for output in one.outputs:
        if output.topic == JOB_STATUS:
            state = dict(decode_status(output.value).state)
            yield {**state, "learned": {each["detector"]: each for each in state["learned"]}}


@pytest.mark.gate
def test_each_learned_detector_judges_with_the_model_of_the_topic_killed_or_not(
    played: tuple[MetricsScenario, dict[int, list[bytes]]],
) -> None:
    scenario, windows = played
    wanted = [
        encode_verdict(one) for one in scenario.verdicts if one.detected_ns <= JOB_NS + LAST_SECOND * NS_PER_SECOND
    ]
    [embedded] = scenario.engine.status()["jobs"]
    killed = slot(windows, *ALL).run([35, 70, 181, 215])
    states = list(states_of(killed))

    assert wanted
    assert killed.verdicts()[: len(wanted)] == wanted
    assert not killed.refused()
    for one in embedded["learned"]:
        name, last = one["detector"], states[-1]
        assert last["learned"][name]["card"] == one["card"]
        assert (one["card"]["version"], one["card"]["content_hash"]) == ("new", content_hash(PAYLOADS[name]))
        assert last["models_in_use"][name] == embedded["models_in_use"][name]
        assert last["models_in_use"][name]["since_ns"] == ALL[0].effective_ns
        names = {host for state in states for host in state["learned"][name]["names"]}
        assert names == ({"n03"} if name != "bilstm" else set()), "nobody trained this network"
        assert not {"sources_missing", "metric_missing"}.intersection(last["learned"][name]["abstained"])


def test_what_a_job_lacks_is_said_by_name_killed_or_not(
    played: tuple[MetricsScenario, dict[int, list[bytes]]],
) -> None:
    _, windows = played
    bare = {
        end_ns: [one for one in held if not isinstance(decode(one), Frame | StepBatch | CollectiveBatch)]
        for end_ns, held in windows.items()
    }
    whole, killed = (list(states_of(slot(bare).run(kills)))[-1]["learned"] for kills in ([], [35, 70, 181, 215]))

    for name, reason in (("entropy", Reason.NO_HOOK), ("bilstm", Reason.NO_HOOK), ("minder", Reason.METRIC_MISSING)):
        assert set(whole[name]["abstained"]) == {reason}
        assert whole[name]["abstained"][reason] > 10
        assert killed[name]["abstained"] == whole[name]["abstained"]


@pytest.mark.parametrize("detector", sorted(LEARNED))
def test_a_model_of_another_detector_is_a_dead_letter_and_a_withdrawal_gives_back_what_ships(detector: str) -> None:
    other = next(payload for name, payload in PAYLOADS.items() if name != detector)
    good, bad = announced(detector, PAYLOADS[detector], 20), announced(detector, other, 40)
    log = ModelLog(20)
    assert log.take(row(good)) is None
    dead_letter = log.take(row(bad))
    assert log.take(row(withdrawal(detector, JOB_NS + 60 * NS_PER_SECOND))) is None
    restored = ModelLog(20)
    restored.load(log.state())

    assert dead_letter is not None
    assert dead_letter.headers["reason"] in {b"model_undecodable", b"out_of_range"}
    versions = [(one["version"], one["state"]) for one in restored.book.status(JOB_NS + 90 * NS_PER_SECOND)]
    assert versions == [("new", "replaced"), ("default", "in use")]

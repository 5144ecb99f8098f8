"""Models announced to the real job on a real Flink cluster, and what the cluster's metrics say of it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from tests.collectors.peer import wait_until
from tests.flink_fixtures import Stream, case_of, wanted_lines
from tests.model_announcements import announced
from tocsin.pipeline.recording.stream import records_of
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.formats.prometheus_page import parse_page
from tocsin.schemas.kafka.topics import DEAD_LETTER, LATE
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

pytestmark = pytest.mark.timeout(400)
RECORDING = case_of(11)
START_NS = RECORDING.manifest.start_ns
"""Four machines; the peers detector opens verdicts by the slices that end at 110 and at 125 s."""
KEEN = announced(START_NS, 60, 70, {"working": {"alarm_sum": 9.0}}, version="keen")
BAD = announced(START_NS, 84, 105, {"working": {"alarm_sum": 0.0}}, version="bad")
DEAF = announced(START_NS, 100, 120)


OURS = "flink_taskmanager_job_task_operator_tocsin_"
WATERMARK = "flink_taskmanager_job_task_operator_currentInputWatermark"
RECORDS_IN = "flink_taskmanager_job_task_operator_numRecordsIn"
LATE_WRITER = "tocsin_late.*Writer$"


def test_a_model_is_swapped_at_its_slice_and_a_bad_one_is_refused(stream: Callable[..., Stream]) -> None:
    wanted = wanted_lines(RECORDING, KEEN, BAD, DEAF)
    assert wanted not in (wanted_lines(RECORDING), wanted_lines(RECORDING, KEEN), wanted_lines(RECORDING, DEAF))
    job = stream(RECORDING, KEEN, BAD, DEAF)
    job.submit("--parallelism=2")
    job.play(0, 1)
    found = job.wait_verdicts(len(wanted))
    [dead_letter] = job.read(DEAD_LETTER, bool)

    assert found == wanted
    assert dead_letter.value == encode(BAD)
    assert dict(dead_letter.headers)["reason"] == b"out_of_range"
    job.send_again()
    job.tick(3)
    assert job.read(LATE, bool)
    _look_at_metrics(job, wanted)


@pytest.mark.slow
def test_a_model_that_waits_outlives_the_task_manager(stream: Callable[..., Stream]) -> None:
    wanted = wanted_lines(RECORDING, KEEN, DEAF)
    job = stream(RECORDING, KEEN, DEAF)
    job.submit("--parallelism=2")
    job.play(0, 110 / 645)
    job.wait_checkpoints(2)
    job.flink.task_managers[0].crash()
    job.play(110 / 645, 1)
    job.flink.start_task_manager(0)
    job.flink.wait_ready()

    assert job.wait_verdicts(len(wanted), 120) == wanted


def _look_at_metrics(job: Stream, wanted: list[bytes]) -> None:
    """What the Prometheus reporters of the cluster say of the job."""
    span_ns = RECORDING.manifest.end_ns - START_NS
    record_count = sum(1 for _ in records_of(RECORDING))
    found: dict[tuple[str, ...], float] = {}

    def look() -> bool:
        slots = _values(job, found)
        judged = found.get(("slices",), 0) >= span_ns // NS_PER_SECOND
        # Each slot's reporter has its own turn: one may tell of its last slice before the other tells of its records.
        told = {"records": record_count, "verdicts": len(wanted), "late": 1, "dead_letters": 1}
        return slots == {"0", "1"} and judged and all(found.get((name,), 0) >= count for name, count in told.items())

    wait_until(look, 120)

    assert found["verdicts",] == len(wanted)
    assert found["late",] == 1
    assert found["records",] == record_count
    assert (found["dead_letters",], found["operator_failed",], found["jobs",]) == (1, 0, 1)
    assert (found["outcome_models", "accepted"], found["outcome_models", "out_of_range"]) == (2, 1)
    lines = Counter(decode_verdict(line).reason for line in wanted)
    assert {key[1]: count for key, count in found.items() if key[0] == "reason_verdict_lines"} == lines
    assert {key[1] for key in found if key[0] == "detector_detector_microseconds"} >= {"peers", "steps", "diagnose"}
    assert min(count for key, count in found.items() if key[0] == "detector_detector_microseconds") > 0


def _values(job: Stream, found: dict[tuple[str, ...], float]) -> set[str]:
    """Put (name, value of its label if it has one) -> sum over the slots into ``found``; the slots that report."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    slots = set()
    for sample in parse_page(job.metrics()).samples:
        is_own = sample.labels.get("job_name") == job.prefix
        if is_own and sample.name.startswith(OURS):
            name = sample.name.removeprefix(OURS)
            label = sample.labels.get(name.partition("_")[0])
            sums[(name,) if label is None else (name, label)] += sample.value
        elif is_own and sample.name == RECORDS_IN and re.match(LATE_WRITER, sample.labels["operator_name"]):
            sums["late",] += sample.value
        if is_own and sample.name == WATERMARK and sample.labels.get("operator_name") == "operators":
            slots.add(sample.labels["subtask_index"])
    found.clear()
    found.update(sums)
    return slots

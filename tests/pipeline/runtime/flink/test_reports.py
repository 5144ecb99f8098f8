"""What the distributed engine says beside verdicts: the rows of the embedded one, whatever is killed when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.embedded_rows import KeepingWriter, output_into
from tests.pipeline.runtime.flink.stream import END_SECOND, KEY, Stream, second_of
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.beside import REPORTS_FAILED
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.pipeline.runtime.flink.reports import PREFIX, JobReports
from tocsin.pipeline.stores.base import EvidencePoint, HostHealth, JobStatus
from tocsin.pipeline.stores.report_codec import decode_evidence, decode_health, decode_status
from tocsin.pipeline.stores.rows import evidence_row, host_health_row
from tocsin.schemas.kafka.topics import EVIDENCE, HOST_HEALTH, JOB_STATUS, VERDICTS
from tocsin.schemas.records import NS_PER_SECOND, JobRecord
from tocsin.schemas.wire.codec import encode

Rows = dict[tuple[Any, ...], dict[str, Any]]


def _embedded(records: list[JobRecord]) -> tuple[Rows, Rows, dict[int, list[dict[str, Any]]]]:
    """What the embedded service writes: evidence, minutes; and its states, by time."""
    engine, writer = EmbeddedEngine(EngineConfig()), KeepingWriter()
    output = output_into(engine, writer)
    states = {}
    start, held = records[0].ts_ns // NS_PER_SECOND, list(records)
    for second in range(start + 1, start + END_SECOND + 5):
        while held and held[0].ts_ns < second * NS_PER_SECOND:
            engine.take_record(held.pop(0))
        tick_ns = second * NS_PER_SECOND
        output.follow_up(engine.tick(tick_ns), tick_ns)
        states[tick_ns] = engine.status()["jobs"]
    return _evidence(writer.kept.evidence), _minutes(writer.kept.health), states


def _evidence(points: tuple[EvidencePoint, ...] | list[EvidencePoint]) -> Rows:
    """The rows that stay, with None for a missing value."""
    found: Rows = {}
    for point in points:
        row = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in evidence_row(point).items()
        }
        found[row["verdict_id"], row["metric"], row["component"], row["ts"]] = row
    return found


def _minutes(minutes: tuple[HostHealth, ...] | list[HostHealth]) -> Rows:
    rows = [dict(host_health_row(one)) for one in minutes]
    return {(row["host"], row["minute"], row["attempt"]): row for row in rows}


def _reported(outputs: list[Output]) -> tuple[Rows, Rows, list[JobStatus]]:
    points = [point for one in outputs if one.topic == EVIDENCE for point in decode_evidence(one.value)]
    minutes = [minute for one in outputs if one.topic == HOST_HEALTH for minute in decode_health(one.value)]
    return _evidence(points), _minutes(minutes), [decode_status(o.value) for o in outputs if o.topic == JOB_STATUS]


@pytest.mark.parametrize("kill_at", [(), (47, 83, 101, 112, 128)], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("shuffle_seed", [None, 5], ids=["in_order", "shuffled_twice"])
def test_rows_are_those_of_the_embedded_engine(
    records: list[JobRecord], kill_at: tuple[int, ...], shuffle_seed: int | None
) -> None:
    evidence, minutes, states = _embedded(records)
    stream = Stream(records, shuffle_seed=shuffle_seed, repeat_count=1 if shuffle_seed is None else 2)
    told_evidence, told_minutes, told_states = _reported(stream.run(kill_at=kill_at).outputs)

    assert evidence
    assert minutes
    assert told_evidence == evidence
    assert told_minutes == minutes
    assert len({one.ts_ns for one in told_states}) >= END_SECOND // 10
    for one in told_states:
        assert [dict(one.state)] == [state for state in states[one.ts_ns] if state["attempt"] == one.job.attempt]


def test_the_same_state_comes_twice_after_a_restart(records: list[JobRecord]) -> None:
    calm, killed = Stream(records).run(), Stream(records).run(kill_at=(60, 95, 119))
    reports = {(one.topic, one.key, one.value) for one in calm.outputs if one.topic != VERDICTS}

    assert {(one.topic, one.key, one.value) for one in killed.outputs if one.topic != VERDICTS} == reports


def test_a_job_that_is_forgotten_says_so_once(records: list[JobRecord]) -> None:
    driver = JobDriver(DriverConfig(), KEY, MemoryState())
    first = second_of(records[0])
    driver.on_window(first, pack([encode(records[0])], ["t:0:0"]))
    outputs: list[Output] = []
    for second in range(3_700):
        outputs += driver.on_time(first + second * NS_PER_SECOND)
        if driver.is_idle:
            break
    states = [decode_status(one.value) for one in outputs if one.topic == JOB_STATUS]

    assert [one.is_known for one in states].count(False) == 1
    assert not states[-1].is_known


def test_a_failure_beside_the_verdicts_costs_no_verdict(
    records: list[JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Stream(records).run().verdicts()

    def broken(*_: object) -> list[Output]:
        raise ZeroDivisionError

    monkeypatch.setattr(JobReports, "on_output", broken)
    stream = Stream(records).run()
    driver, end_ns = JobDriver(DriverConfig(), KEY, MemoryState()), second_of(records[0])
    driver.on_window(end_ns, pack([encode(records[0])], ["t:0:0"]))
    driver.on_time(end_ns)

    assert stream.verdicts() == wanted
    assert driver.counters[REPORTS_FAILED] == 1


def test_a_state_of_a_version_without_reports_is_taken_over(records: list[JobRecord]) -> None:
    stream = Stream(records).run()
    old = [name for name in stream.state.parts() if name.startswith(PREFIX)]
    stream.state.replace({}, old)
    driver = JobDriver(replace(DriverConfig(), snapshot_seconds=20), KEY, stream.state)

    assert old
    assert not driver.is_idle

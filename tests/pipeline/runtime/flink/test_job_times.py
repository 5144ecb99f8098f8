"""What the distributed engine says of a job's wall time: the rows of the embedded one, whatever is killed when."""

from __future__ import annotations

import pytest

from tests.chaos.embedded_rows import KeepingWriter, output_into
from tests.pipeline.runtime.flink.stream import END_SECOND, KEY, Stream, second_of
from tocsin.pipeline.core.slices import SliceConfig
from tocsin.pipeline.incidents.ettr.ledger import EttrLedger
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.pipeline.runtime.flink.reports import JobReports
from tocsin.pipeline.stores.attempt_time_codec import decode_attempt_time
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.schemas import events
from tocsin.schemas.kafka.topics import ETTR
from tocsin.schemas.records import NS_PER_SECOND, JobKey, JobRecord
from tocsin.schemas.wire.codec import encode

START_NS = JobShape().start_ns


def told_of(outputs: list[Output]) -> list[AttemptTime]:
    """The accounts among some messages, each once."""
    return [decode_attempt_time(value) for value in dict.fromkeys(one.value for one in outputs if one.topic == ETTR)]


def embedded(records: list[JobRecord], seconds: int, config: EngineConfig | None = None) -> list[AttemptTime]:
    """The rows of the embedded service over so many seconds."""
    engine, writer = EmbeddedEngine(config or EngineConfig()), KeepingWriter()
    output = output_into(engine, writer)
    start, held = records[0].ts_ns // NS_PER_SECOND, list(records)
    for second in range(start + 1, start + seconds):
        while held and held[0].ts_ns < second * NS_PER_SECOND:
            engine.take_record(held.pop(0))
        output.follow_up(engine.tick(second * NS_PER_SECOND), second * NS_PER_SECOND)
    return list(writer.kept.attempt_times)


def two_attempts() -> list[JobRecord]:
    """An attempt that ends in order, and after a wait one that makes its last steps again."""
    found: list[JobRecord] = []
    step = 0
    for attempt, start_second in ((0, 0), (1, 150)):
        shape = JobShape(rank_count=4, step_seconds=1.0, start_ns=START_NS + start_second * NS_PER_SECOND)
        job = FakeJob(shape, JobKey("test", "job", attempt))
        job.step = max(0, step - 10)
        for rank in range(shape.rank_count):
            job.event(rank, events.HELLO, world_size=shape.rank_count)
        for _ in range(40):
            found += job.second()
        step = job.step
        job.end()
        for _ in range(5):
            found += job.second()
    return sorted(found, key=lambda record: record.ts_ns)


def driven(records: list[JobRecord], config: DriverConfig, seconds: int) -> tuple[list[Output], int]:
    """Drive records as Flink does: an idle job has no timer, and no driver until its next record.

    Returns:
        The outputs, and how often the job was idle.
    """
    windows: dict[int, list[bytes]] = {}
    for record in records:
        windows.setdefault(second_of(record), []).append(encode(record))
    state, outputs, idle_count = MemoryState(), list[Output](), 0
    driver = JobDriver(config, KEY, state)
    start_ns = records[0].ts_ns // NS_PER_SECOND * NS_PER_SECOND
    for second in range(1, seconds):
        end_ns = start_ns + second * NS_PER_SECOND
        if own := windows.get(end_ns):
            driver.on_window(end_ns, pack(own, ["t:0:0"] * len(own)))
        if driver.next_ns <= end_ns:
            outputs += driver.on_time(end_ns)
            if driver.is_idle:
                driver, idle_count = JobDriver(config, KEY, state), idle_count + 1
    return outputs, idle_count


@pytest.mark.parametrize("kill_at", [(), (47, 83, 101, 112, 128)], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("shuffle_seed", [None, 5], ids=["in_order", "shuffled_twice"])
def test_rows_are_those_of_the_embedded_engine(
    records: list[JobRecord], kill_at: tuple[int, ...], shuffle_seed: int | None
) -> None:
    wanted = embedded(records, END_SECOND + 5)
    stream = Stream(records, shuffle_seed=shuffle_seed, repeat_count=1 if shuffle_seed is None else 2)

    assert told_of(stream.run(kill_at=kill_at).outputs) == wanted
    assert wanted[-1].parts_ns[TimePart.DETECTION] > 0
    assert len(wanted) >= 3


def test_an_attempt_that_follows_when_the_job_is_long_forgotten_ends_the_one_before() -> None:
    records = two_attempts()
    engine = EngineConfig(slices=SliceConfig(forget_job_after_ns=20 * NS_PER_SECOND))
    outputs, idle_count = driven(records, DriverConfig(engine, snapshot_seconds=20), 260)
    told = told_of(outputs)

    assert idle_count == 2
    assert told == embedded(records, 262, engine)
    newest = {one.job.attempt: one for one in told}
    assert newest[0].until_ns == newest[1].began_ns
    assert newest[0].parts_ns[TimePart.SCHEDULING] == pytest.approx(110 * NS_PER_SECOND, rel=0.05)
    assert newest[1].recomputed_steps_count == 10


def test_a_failure_of_the_reports_costs_no_time(records: list[JobRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = told_of(Stream(records).run().outputs)

    def broken(*_: object) -> list[Output]:
        raise ZeroDivisionError

    monkeypatch.setattr(JobReports, "on_output", broken)
    assert told_of(Stream(records).run().outputs) == wanted


def test_a_failure_of_the_ledger_costs_no_report(records: list[JobRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [one for one in Stream(records).run().outputs if one.topic != ETTR]

    def broken(*_: object) -> list[Output]:
        raise ZeroDivisionError

    monkeypatch.setattr(EttrLedger, "on_time", broken)
    assert Stream(records).run().outputs == wanted


def test_a_restart_says_the_same_bytes_again(records: list[JobRecord]) -> None:
    calm, killed = (Stream(records).run(kill_at=seconds) for seconds in ((), (61, 95, 119)))
    said = [{(one.key, one.value) for one in stream.outputs if one.topic == ETTR} for stream in (calm, killed)]

    assert said[0] == said[1]

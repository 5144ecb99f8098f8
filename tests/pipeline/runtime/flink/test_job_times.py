"""What the distributed engine says of a job's wall time: the rows of the embedded one, whatever is killed when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.embedded_rows import KeepingWriter, ledger_into, output_into
from tests.pipeline.runtime.flink.stream import END_SECOND, KEY, Stream, second_of
from tocsin.pipeline.core.slices import SliceConfig
from tocsin.pipeline.incidents.ettr.ledger import EttrLedger
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.actions.action_rows import change_of
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.pipeline.runtime.flink.reports import JobReports
from tocsin.pipeline.stores.attempt_start_codec import decode_account
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.schemas import events
from tocsin.schemas.action_records import action_event
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine
from tocsin.schemas.kafka.topics import ETTR
from tocsin.schemas.records import NS_PER_SECOND, JobKey, JobRecord
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.codec import encode

START_NS = JobShape().start_ns


def told_of(outputs: list[Output]) -> list[AttemptTime]:
    """The accounts of attempts among some messages, each once."""
    values = dict.fromkeys(one.value for one in outputs if one.topic == ETTR)
    return [told for told in map(decode_account, values) if isinstance(told, AttemptTime)]


def starts_of(outputs: list[Output]) -> list[AttemptStart]:
    """The accounts of starts among some messages, each once."""
    values = dict.fromkeys(one.value for one in outputs if one.topic == ETTR)
    return [told for told in map(decode_account, values) if isinstance(told, AttemptStart)]


def embedded_rows(
    records: list[JobRecord], seconds: int, config: EngineConfig | None = None, changes: Sequence[Action] = ()
) -> tuple[list[AttemptTime], list[AttemptStart]]:
    """The rows of the embedded service over so many seconds, in which its controller changes some actions."""
    engine, writer = EmbeddedEngine(config or EngineConfig()), KeepingWriter()
    ledger = ledger_into(writer)
    output = output_into(engine, writer, ledger)
    start, held = records[0].ts_ns // NS_PER_SECOND, list(records)
    for second in range(start + 1, start + seconds):
        while held and held[0].ts_ns < second * NS_PER_SECOND:
            engine.take_record(held.pop(0))
        for action in (one for one in changes if 0 <= second * NS_PER_SECOND - one.changed_ns < NS_PER_SECOND):
            ledger.take_action(change_of(action, is_dry_run=False))
        output.follow_up(engine.tick(second * NS_PER_SECOND), second * NS_PER_SECOND)
    return list(writer.kept.attempt_times), list(writer.kept.attempt_starts)


def embedded(
    records: list[JobRecord], seconds: int, config: EngineConfig | None = None, changes: Sequence[Action] = ()
) -> list[AttemptTime]:
    """The accounts of attempts that the embedded service writes."""
    return embedded_rows(records, seconds, config, changes)[0]


def two_attempts(*, ends: bool = True) -> list[JobRecord]:
    """An attempt that ends in order (or unseen), and after a wait one that makes its last steps again."""
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
        if not ends:
            continue
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
    wanted, starts = embedded_rows(records, END_SECOND + 5)
    stream = Stream(records, shuffle_seed=shuffle_seed, repeat_count=1 if shuffle_seed is None else 2)
    outputs = stream.run(kill_at=kill_at).outputs

    assert told_of(outputs) == wanted
    assert starts_of(outputs) == starts
    assert wanted[-1].parts_ns[TimePart.DETECTION] > 0
    assert len(wanted) >= 3


def test_starts_are_those_of_the_embedded_engine() -> None:
    shape = JobShape(rank_count=4, step_seconds=0.3, start_ns=START_NS)
    job, records = FakeJob(shape, JobKey("test", "job", 0)), list[JobRecord]()
    for rank in range(shape.rank_count):
        job.event(rank, events.HELLO, world_size=shape.rank_count)
        job.event(rank, events.STAGE, stage="env_setup", edge="begin", start_kind="full")
    job.pause(25.5, "")
    for second in range(40):
        if second == 12:
            for rank in range(shape.rank_count):
                job.event(rank, events.STAGE, stage="env_setup", edge="end", start_kind="full")
        records += job.second()
    records.sort(key=lambda record: record.ts_ns)
    outputs, _ = driven(records, DriverConfig(EngineConfig(), snapshot_seconds=7), 60)
    wanted = embedded_rows(records, 62)[1]

    assert starts_of(outputs) == wanted
    assert [bool(one.train_ns) for one in wanted] == sorted(bool(one.train_ns) for one in wanted)
    assert len(wanted) >= 3, "told while it goes on, and when training begins"
    assert wanted[-1].start_up_ns == pytest.approx(25.5 * NS_PER_SECOND, rel=0.02)


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


def restart(state: ActionState, second: float, kind: ActionKind = ActionKind.RESTART) -> Action:
    """A change of an action on the first attempt, at a second of the job."""
    target = ActionTarget(JobKey("test", "job", 0), None, (Machine("n0"),))
    times = (START_NS, START_NS + 600 * NS_PER_SECOND)
    changed_ns = START_NS + int(second * NS_PER_SECOND)
    return Action("a" * 32, "v", 0, kind, target, "hang", "named", "hang", *times, state, "allowed", changed_ns)


@pytest.mark.parametrize(
    ("changes", "waited_seconds"),
    [
        ([restart(ActionState.APPROVED, 60.4), restart(ActionState.STARTED, 62.1)], 89.6),
        ([restart(ActionState.APPROVED, 148.5), restart(ActionState.DONE, 155)], 1.5),  # told when the next one runs
        ([restart(ActionState.APPROVED, 60.4), restart(ActionState.CANCELLED, 70.2)], 0),
        ([restart(ActionState.APPROVED, 60.4, ActionKind.PROBE)], 0),
    ],
    ids=["restarted", "late", "given up", "no restart"],
)
def test_both_engines_hear_of_actions_and_account_for_the_same_wait(
    changes: list[Action], waited_seconds: float
) -> None:
    records = two_attempts(ends=False)
    told = [action_event(one, one.changed_ns + 23 * NS_PER_SECOND // 10) for one in changes]
    stream: list[JobRecord] = sorted([*records, *told], key=lambda one: one.ts_ns)
    distributed = {one.job.attempt: one for one in told_of(driven(stream, DriverConfig(), 260)[0])}
    own = {one.job.attempt: one for one in embedded(records, 262, changes=changes)}

    assert {number: (one.parts_ns, one.wall_ns) for number, one in distributed.items()} == {
        number: (one.parts_ns, one.wall_ns) for number, one in own.items()
    }
    spent_ns = distributed[0].parts_ns.get(TimePart.SCHEDULING, 0)
    assert spent_ns / NS_PER_SECOND == pytest.approx(waited_seconds, abs=0.3)


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


def test_a_start_that_failed_is_told_as_in_the_embedded_engine_once_the_job_trains() -> None:
    records = list[JobRecord]()
    for attempt, start_second, seconds in ((0, 0, 25), (1, 40, 20)):
        shape = JobShape(rank_count=4, step_seconds=0.3, start_ns=START_NS + start_second * NS_PER_SECOND)
        job = FakeJob(shape, JobKey("test", "job", attempt))
        for rank in range(shape.rank_count):
            job.event(rank, events.HELLO, world_size=shape.rank_count)
            job.event(rank, events.STAGE, stage="env_setup", edge="begin", start_kind="full")
        job.pause(100.0 if attempt == 0 else 5.0, "")
        for second in range(seconds):
            if attempt == 0 and second == seconds - 2:
                for rank in range(shape.rank_count):
                    job.event(rank, events.EXIT, code=1, signal=0)
            records += job.second()
    records.sort(key=lambda record: record.ts_ns)
    outputs, _ = driven(records, DriverConfig(EngineConfig(), snapshot_seconds=7), 80)
    wanted = embedded_rows(records, 82)[1]
    last = {one.job.attempt: one for one in wanted}

    assert starts_of(outputs) == wanted
    assert (last[0].is_failed, last[1].is_failed) == (True, False)
    assert last[0].start_up_ns == pytest.approx(23 * NS_PER_SECOND, rel=0.05)
    assert last[0].stages[0].own_gpu_ns == pytest.approx(4 * 23 * NS_PER_SECOND, rel=0.05)

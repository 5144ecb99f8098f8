"""The embedded runtime: deterministic, restorable, and robust against bad input."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.pipeline.core.operator import STATE_VERSION
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.job.rank_filter import RefusedRecords
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.rca.operator import Diagnose
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.errors import ClockAheadError, DecodeError, SchemaError, SnapshotError
from tocsin.schemas.metrics import Metric, MetricTable
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Frame, JobKey, Severity, TableAnnouncement
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

FAULTS: dict[str, Callable[[FakeJob], None]] = {
    "kill": lambda job: job.kill(3),
    "freeze": lambda job: job.freeze(3),
    "slow": lambda job: job.slow(3, "forward", 4.0),
    "skip": lambda job: job.skip_collective(3),
    "nan": lambda job: job.nan(3),
    "link": lambda job: job.slow_link(3, 0.05),
    "host": lambda job: job.lose_host(3),
}
SECONDS = 50


def _recording(fault: str) -> list[tuple[int, list[bytes]]]:
    """(tick, records that arrive before it), fault at 15 s."""
    job = FakeJob(JobShape())
    seconds = []
    for second in range(SECONDS):
        if second == 15:
            FAULTS[fault](job)
        data = [encode(record) for record in job.second()]
        seconds.append((job.now_ns, data))
    return seconds


def _play(seconds: list[tuple[int, list[bytes]]], break_at: int = -1, seed: int | None = None) -> list[Verdict]:
    engine = EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    for index, (tick_ns, data) in enumerate(seconds):
        records = data if seed is None else data * 2
        if seed is not None:
            random.Random(seed + index).shuffle(records)
        for record in records:
            engine.take(record)
        verdicts += engine.tick(tick_ns).verdicts
        if index == break_at:
            parts = engine.snapshot()
            engine = EmbeddedEngine(EngineConfig())
            engine.restore(parts)
    return verdicts


RECORDINGS = {fault: _recording(fault) for fault in FAULTS}
EXPECTED = {fault: _play(seconds) for fault, seconds in RECORDINGS.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found_at_all(fault: str) -> None:
    """The properties below are worth nothing on recordings without verdicts."""
    assert [suspect.component.name for v in EXPECTED[fault] for suspect in v.suspects]


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_order_within_the_lateness_and_duplicates_change_nothing(fault: str, seed: int) -> None:
    """Every record twice, shuffled within its second: the same verdict lines."""
    assert _play(RECORDINGS[fault], seed=seed) == EXPECTED[fault]


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=6)
@given(break_at=st.integers(0, SECONDS - 1))
def test_killed_and_restored_anywhere_gives_the_same_verdicts(fault: str, break_at: int) -> None:
    """Snapshot, a new process, restore: nothing doubled, nothing lost."""
    assert _play(RECORDINGS[fault], break_at=break_at) == EXPECTED[fault]


@pytest.mark.parametrize("fault", FAULTS)
def test_relabelled_hosts_change_nothing_else(fault: str) -> None:
    """Another name for each machine gives the same verdicts with the other names."""
    job, other = FakeJob(JobShape()), FakeJob(JobShape())
    names = {rank.host: f"zz{7 - rank.rank}" for rank in other.ranks}
    for rank in other.ranks:
        rank.host = names[rank.host]
    reported = []
    for fake in (job, other):
        engine = EmbeddedEngine(EngineConfig())
        verdicts: list[Verdict] = []
        for second in range(SECONDS):
            if second == 15:
                FAULTS[fault](fake)
            for record in fake.second():
                engine.take(encode(record))
            verdicts += engine.tick(fake.now_ns).verdicts
        reported.append(
            [
                (v.fault, v.cause, v.detected_ns, v.onset_ns, v.state, v.action, [s.component.name for s in v.suspects])
                for v in verdicts
            ]
        )
    renamed = [(*line[:-1], [names[name] for name in line[-1]]) for line in reported[0]]

    assert renamed == reported[1]


def test_two_jobs_do_not_mix() -> None:
    """A fault in one job says nothing of the other."""
    sick, well = FakeJob(JobShape(), JobKey("c", "sick")), FakeJob(JobShape(seed=1), JobKey("c", "well"))
    engine = EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    for second in range(30):
        if second == 15:
            sick.freeze(2)
        for fake in (sick, well):
            for record in fake.second():
                engine.take(encode(record))
        verdicts += engine.tick(sick.now_ns).verdicts

    assert {verdict.job.job_id for verdict in verdicts} == {"sick"}


def test_status_tells_which_attempt_is_over() -> None:
    first = FakeJob(JobShape(), JobKey("c", "j", 0))
    second = FakeJob(JobShape(start_ns=first.shape.start_ns + 30 * NS_PER_SECOND), JobKey("c", "j", 1))
    engine = EmbeddedEngine(EngineConfig())
    for at in range(45):
        for record in first.second() if at < 30 else second.second():
            engine.take(encode(record))
        engine.tick(first.shape.start_ns + (at + 1) * NS_PER_SECOND)
    before, after = engine.status()["jobs"]
    assert [before["attempt"], after["attempt"]] == [0, 1]
    assert [before["superseded"], after["superseded"]] == [True, False]
    assert 0 <= after["max_step"] < before["max_step"]


def test_a_new_attempt_closes_the_verdicts_of_the_old_one() -> None:
    """Nobody is evicted for a fault of an attempt that is over."""
    first = FakeJob(JobShape(), JobKey("c", "j", 0))
    second = FakeJob(JobShape(start_ns=first.shape.start_ns + 40 * NS_PER_SECOND), JobKey("c", "j", 1))
    engine = EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    for at in range(60):
        if at == 15:
            first.kill(3)
        records = list(first.second()) if at < 40 else list(second.second())
        for record in records:
            engine.take(encode(record))
        verdicts += engine.tick(first.shape.start_ns + (at + 1) * NS_PER_SECOND).verdicts

    assert verdicts[-1].state.value == "resolved"
    assert verdicts[-1].reason == "new_attempt"


@pytest.mark.parametrize("broken_off", [False, True], ids=["through", "restored"])
def test_a_nan_that_comes_again_at_the_same_step_on_another_machine_names_nobody(broken_off: bool) -> None:
    """The machine was replaced, the data was not: the second attempt knows what happened in the first."""
    first = FakeJob(JobShape(), JobKey("c", "j", 0))
    second = FakeJob(JobShape(start_ns=first.shape.start_ns + 40 * NS_PER_SECOND), JobKey("c", "j", 1))
    second.ranks[3].host = "spare"
    engine = EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    lost_step = -1
    for at in range(80):
        job = first if at < 40 else second
        if at == 15:
            lost_step = first.step
            first.nan(3)
        if at > 40 and second.step == lost_step:
            second.nan(3)
            lost_step = -1
        for record in job.second():
            engine.take(encode(record))
        verdicts += engine.tick(first.shape.start_ns + (at + 1) * NS_PER_SECOND).verdicts
        if at == 45 and broken_off:
            parts = engine.snapshot()
            engine = EmbeddedEngine(EngineConfig())
            engine.restore(parts)

    assert lost_step == -1
    opened = [verdict for verdict in verdicts if verdict.update == 0]
    reported = [
        (verdict.job.attempt, [s.component.name for s in verdict.suspects], verdict.reason) for verdict in opened
    ]
    assert reported == [(0, ["n03"], "nan_first_by_step"), (1, [], "nan_same_step_again")]


class TestBadInput:
    """Nothing crashes; each error names what is wrong; the rest goes on."""

    NOW = 1_700_000_000 * NS_PER_SECOND

    def _event(self, ts_ns: int) -> bytes:
        event = Event(JobKey("c", "j"), "n0", ts_ns, 0, EventSource.PROCESS, "hello", Severity.INFO)
        return encode(event)

    def test_a_clock_ten_minutes_ahead_is_refused_with_its_offset(self) -> None:
        """The sender learns by how much; the other hosts are not made late."""
        engine = EmbeddedEngine(EngineConfig())
        engine.tick(self.NOW)

        with pytest.raises(ClockAheadError) as caught:
            engine.take(self._event(self.NOW + 600 * NS_PER_SECOND), self.NOW)
        assert caught.value.ahead_ns == 600 * NS_PER_SECOND
        assert engine.take(self._event(self.NOW), self.NOW).value == "ok"

    @given(cut=st.integers(0, 60))
    def test_truncated_records(self, cut: int) -> None:
        """Cut anywhere: an error of ours, never another one."""
        engine = EmbeddedEngine(EngineConfig())
        data = self._event(self.NOW)

        with pytest.raises(SchemaError):
            engine.take(data[: min(cut, len(data) - 1)])

    @given(at=st.integers(0, 1 << 16), bit=st.integers(0, 7))
    def test_flipped_bits(self, at: int, bit: int) -> None:
        """The checksum catches what the header check does not."""
        engine = EmbeddedEngine(EngineConfig())
        data = bytearray(self._event(self.NOW))
        data[at % len(data)] ^= 1 << bit

        with pytest.raises(DecodeError):
            engine.take(bytes(data))

    def test_a_damaged_snapshot_is_refused_by_name(self) -> None:
        """Which part, and why."""
        engine = EmbeddedEngine(EngineConfig())
        for record in FakeJob(JobShape()).second():
            engine.take(encode(record))
        engine.tick(self.NOW + 3 * NS_PER_SECOND)
        parts = engine.snapshot()
        name = next(name for name in parts if name.endswith("/steps"))
        parts[name] = parts[name].replace(b'"version":%d' % STATE_VERSION, b'"version":99')

        with pytest.raises(SnapshotError, match=r"'steps' has version 99.*reads version \d"):
            EmbeddedEngine(EngineConfig()).restore(parts)


def test_slashes_in_names_outlive_a_snapshot() -> None:
    jobs = [JobKey("eu/west", "r", 0), JobKey("eu", "west/r", 0), JobKey("eu%2Fwest", "r", 1)]
    engine = EmbeddedEngine(EngineConfig(history=None))
    now_ns = 1_700_000_000 * NS_PER_SECOND
    for job in jobs:
        engine.take_record(Event(job, "h", now_ns, 0, EventSource.JOB, "phase", Severity.INFO, {}))
    engine.tick(now_ns + 3 * NS_PER_SECOND)
    other = EmbeddedEngine(EngineConfig(history=None))
    other.restore(engine.snapshot())

    assert other.jobs() == engine.jobs() == tuple(sorted(jobs))
    assert other.snapshot() == engine.snapshot()


def test_frames_of_another_size_than_their_table_says_are_left_out_by_name() -> None:
    start_ns = 1_700_000_000 * NS_PER_SECOND
    job, stamp_ns = JobKey("c", "j", 0), start_ns + 5 * NS_PER_SECOND - 1_000_000
    table = MetricTable(16, (), (Metric("fan_speed_ratio", "host", 0.0, 1.0, "both"),))
    engine = EmbeddedEngine(EngineConfig())
    engine.take(encode(TableAnnouncement(job, "n00", start_ns, table)))
    for host, metric_count in (("n00", 1), ("n01", 1), ("n02", 2)):
        matrix = bytes(4 * 5 * metric_count)
        frame = Frame(job, host, stamp_ns, 16, start_ns, NS_PER_SECOND, 5, (), b"", matrix)
        engine.take(encode(frame))
    for second in range(12):
        engine.tick(start_ns + second * NS_PER_SECOND)
    assert engine.status()["jobs"][0]["abstained"] == {"misfit_frame": 1, "too_few_peers": 1}


class TestAttempts:
    """No quorum: who spoke in a later attempt left the older one, which is judged for the others."""

    def _restart(self, moves_at: Callable[[int], float], seconds: int = 90) -> tuple[EmbeddedEngine, list[Verdict]]:
        """A job that is started again after 40 s; each host's first word in the new attempt comes at its own time."""
        first = FakeJob(JobShape(), JobKey("c", "j", 0))
        second = FakeJob(JobShape(start_ns=first.shape.start_ns + 40 * NS_PER_SECOND), JobKey("c", "j", 1))
        engine = EmbeddedEngine(EngineConfig())
        verdicts: list[Verdict] = []
        for at in range(seconds):
            for record in first.second() if at < 40 else second.second():
                host = record.host
                if record.job.attempt == 0 or at >= moves_at(int(host[1:])):
                    engine.take(encode(record))
            verdicts += engine.tick(first.shape.start_ns + (at + 1) * NS_PER_SECOND).verdicts
        return engine, verdicts

    def test_hosts_that_move_one_after_the_other_are_neither_silent_nor_waited_for(self) -> None:
        engine, verdicts = self._restart(lambda number: 42 + number)
        old = engine.pipeline(JobKey("c", "j", 0))

        assert [v for v in verdicts if v.suspects] == []
        assert old is not None
        assert old.rests

    def test_the_old_attempt_is_over_once_nobody_speaks_there(self) -> None:
        engine, _ = self._restart(lambda number: 41 if number else 1000)
        old, new = engine.pipeline(JobKey("c", "j", 0)), engine.pipeline(JobKey("c", "j", 1))

        assert old is not None
        assert new is not None
        assert old.rests
        assert sorted(old.graph.moved_ns) == [f"n{number:02d}" for number in range(1, 8)]
        assert not new.rests

    def test_one_that_lies_takes_itself_away_and_may_come_back(self) -> None:
        job = FakeJob(JobShape(), JobKey("c", "j", 0))
        engine = EmbeddedEngine(EngineConfig())
        for at in range(50):
            for record in job.second():
                engine.take(encode(record))
            if at == 20:
                forged = replace(job.job, attempt=2**31 - 1)
                engine.take(encode(Event(forged, "n06", job.now_ns - 1, -1, EventSource.JOB, "agent", Severity.INFO)))
            engine.tick(job.now_ns)
            pipeline = engine.pipeline(job.job)
            assert pipeline is None or not pipeline.rests
            if at == 25:
                assert pipeline is not None
                assert list(pipeline.graph.moved_ns) == ["n06"]
        engine.take(encode(Event(forged, "n05", job.now_ns - 1, -1, EventSource.JOB, "agent", Severity.INFO)))
        for record in job.second():
            engine.take(encode(record))
        engine.tick(job.now_ns + NS_PER_SECOND)
        assert pipeline is not None
        assert list(pipeline.graph.moved_ns) == ["n05"]


def test_what_is_refused_is_told_and_reaches_no_recorder() -> None:
    job = FakeJob(JobShape(), JobKey("c", "j", 0))
    engine = EmbeddedEngine(EngineConfig())
    heard: list[SliceBundle] = []
    engine.taps.append(heard.append)
    refused: list[tuple[JobKey, RefusedRecords]] = []
    for at in range(15):
        for record in job.second():
            engine.take(encode(record))
        if at == 10:
            event = Event(
                job.job, "laptop", job.now_ns - 1, 5, EventSource.PROCESS, "exit", Severity.FATAL, {"code": 1}
            )
            engine.take(encode(event))
        refused += engine.tick(job.now_ns).refused

    assert [(key, entry.host, entry.rank, entry.reason.value) for key, entry in refused] == [
        (job.job, "laptop", 5, "rank_of_other_host")
    ]
    assert refused[0][1].data == encode(event)
    assert "laptop" not in {record.host for turn in heard for record in turn.fast.records}
    status = engine.status()["jobs"][0]
    assert status["abstained"]["rank_of_other_host"] == 1
    assert engine.counters["refused_rank_of_other_host"] == 1


def _judged(engine: EmbeddedEngine, job: FakeJob) -> tuple[int, list[str]]:
    for record in job.second():
        engine.take(encode(record))
    output = engine.tick(job.now_ns)
    return output.turn_count, [failure.text for failure in output.failures]


def test_a_cleared_engine_knows_no_attempt_of_before() -> None:
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    for _ in range(8):
        _judged(engine, job)
    parts = engine.snapshot()
    engine.restore(parts)
    engine.clear()
    later = FakeJob(JobShape(start_ns=job.now_ns), JobKey(job.job.cluster, job.job.job_id, 1))
    found = [_judged(engine, later) for _ in range(8)]

    assert sum(turns for turns, _ in found) > 0
    assert [text for _, texts in found for text in texts] == []


def test_a_job_that_cannot_begin_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    for _ in range(8):
        _judged(engine, job)
    later = FakeJob(JobShape(start_ns=job.now_ns), JobKey(job.job.cluster, job.job.job_id, 1))
    with monkeypatch.context() as patch:
        patch.setattr(Diagnose, "follow", lambda *_: 1 / 0)
        broken = [_judged(engine, later) for _ in range(6)]
        assert any(texts for _, texts in broken)
        assert engine.jobs() == (job.job,)
    found = [_judged(engine, later) for _ in range(6)]

    assert [text for _, texts in found for text in texts] == []
    assert later.job in engine.jobs()

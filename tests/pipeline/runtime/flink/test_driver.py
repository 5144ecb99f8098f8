"""One job's operators behind windows and timers: the same verdicts as embedded, whatever is killed when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.runtime.flink.stream import CONFIG, END_SECOND, KEY, Stream, second_of
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, blocks_of, encode_block
from tocsin.pipeline.core.operator import STATE_VERSION, UNCHANGED
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.detect.steps import rows as step_rows
from tocsin.pipeline.lab.testing import (
    FakeJob,
    JobShape,
)
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput
from tocsin.pipeline.runtime.flink.driver import OPERATOR_FAILED, DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output, canary
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.pipeline.runtime.job_pipeline import BundleResult, JobPipeline
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.kafka.topics import DEAD_LETTER, ETTR, LATE, REPORTS, VERDICTS
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Frame, JobRecord, Severity
from tocsin.schemas.wire.codec import encode


@pytest.fixture(scope="module")
def wanted(records: list[JobRecord]) -> list[bytes]:
    """What the embedded engine says."""
    found = said_by_embedded(records)
    assert found
    return found


def said_by_embedded(records: Sequence[JobRecord]) -> list[bytes]:
    engine = EmbeddedEngine(EngineConfig(history=None))
    found = []
    start = records[0].ts_ns // NS_PER_SECOND
    held = list(records)
    for second in range(start + 1, start + END_SECOND + 6):
        while held and held[0].ts_ns < second * NS_PER_SECOND:
            engine.take_record(held.pop(0))
        found += [encode_verdict(verdict) for verdict in engine.tick(second * NS_PER_SECOND).verdicts]
    return found


def _of_attempt(record: JobRecord, attempt: int) -> JobRecord:
    return replace(record, job=replace(record.job, attempt=attempt))


def test_it_says_what_the_embedded_engine_says(records: list[JobRecord], wanted: list[bytes]) -> None:
    assert Stream(records).run().verdicts() == wanted


def test_shuffled_and_twice(records: list[JobRecord], wanted: list[bytes]) -> None:
    assert Stream(records, shuffle_seed=1, repeat_count=2).run().verdicts() == wanted


def test_cut_by_metric_groups(records: list[JobRecord], wanted: list[bytes]) -> None:
    assert Stream(records, is_cut=True).run(kill_at=(70, 110), stride=3).verdicts() == wanted


def test_groups_whose_windows_come_in_any_order(records: list[JobRecord], wanted: list[bytes]) -> None:
    assert Stream(records, shuffle_seed=3, is_cut=True).run(stride=7).verdicts() == wanted


def test_a_backlog_is_judged_as_it_would_have_been_live(records: list[JobRecord], wanted: list[bytes]) -> None:
    assert Stream(records).run(stride=1000).verdicts() == wanted


@settings(max_examples=8, deadline=None)
@given(stride=st.integers(1, 40), kills=st.lists(st.integers(6, END_SECOND), min_size=1, max_size=4, unique=True))
def test_killed_anywhere_it_goes_on(
    records: list[JobRecord], wanted: list[bytes], stride: int, kills: list[int]
) -> None:
    assert Stream(records).run(kill_at=tuple(kills), stride=stride).verdicts() == wanted


@pytest.fixture(scope="module")
def own_parts() -> Iterator[None]:
    """Each step is a part of its own, as a large job's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_rows, "_OWN_PART_SIZE", 0)
        yield


@pytest.mark.usefixtures("own_parts")
class TestPartsWrittenAhead:
    """What never changes is written before the snapshot that names it."""

    @settings(max_examples=8, deadline=None)
    @given(
        stride=st.integers(1, 12),
        save_every=st.integers(1, 25),
        kills=st.lists(st.integers(6, END_SECOND), min_size=1, max_size=4, unique=True),
    )
    def test_killed_anywhere_it_goes_on(
        self, records: list[JobRecord], wanted: list[bytes], stride: int, save_every: int, kills: list[int]
    ) -> None:
        stream = Stream(records).run(kill_at=tuple(kills), stride=stride, save_every=save_every)
        assert stream.verdicts() == wanted

    @settings(max_examples=8, deadline=None)
    @given(
        save_every=st.integers(1, 25),
        begun=st.integers(20, 90),
        kills=st.lists(st.integers(20, END_SECOND), min_size=1, max_size=4, unique=True),
    )
    def test_killed_anywhere_after_a_new_attempt_began_it_goes_on(
        self, records: list[JobRecord], save_every: int, begun: int, kills: list[int]
    ) -> None:
        """The next snapshot is the first that has the attempt: nothing of it may stand in the state before."""
        begun_ns = records[0].ts_ns + begun * NS_PER_SECOND
        again = [record if record.ts_ns < begun_ns else _of_attempt(record, 1) for record in records]
        stream = Stream(again).run(kill_at=tuple(kills), save_every=save_every)
        assert stream.verdicts() == said_by_embedded(again)

    def test_a_snapshot_writes_what_is_new_and_keeps_no_more_than_it_names(self, records: list[JobRecord]) -> None:
        state = CountedState()
        Stream(records, state=state).run()

        written = Counter(name for names in state.added for name in names)
        assert written
        assert set(written.values()) == {1}
        assert not {name for names in state.replaced[1:] for name in names if ":" in name.rpartition("/")[2]} & set(
            written
        )
        assert len([name for name in state.parts() if "/steps:" in name]) <= 24 + CONFIG.snapshot_seconds

    def test_after_a_snapshot_the_state_restores_to_the_same_bytes(self, records: list[JobRecord]) -> None:
        stream = Stream(records).run()
        engines = [EmbeddedEngine(EngineConfig(history=None)) for _ in range(2)]
        engines[0].restore(stream.state.parts())
        engines[1].restore(engines[0].snapshot())

        assert engines[0].snapshot() == engines[1].snapshot()
        known = engines[0].snapshot(engines[0].snapshot().keys())
        assert {name for name, data in known.items() if data == UNCHANGED} == {
            name for name in known if "/steps:" in name
        }

    def test_operators_that_begin_anew_take_no_part_of_the_old_ones_for_theirs(
        self, records: list[JobRecord], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = Stream([record for record in records if record.ts_ns < records[0].ts_ns + 60 * NS_PER_SECOND]).run()
        state = CountedState()
        state.replace(stream.state.parts(), [])
        driver = JobDriver(CONFIG, KEY, state)
        first_ns = driver.next_ns
        for second in range(40):  # they wait: a driver without a job and without these would be over
            end_ns = first_ns + second * NS_PER_SECOND
            own = [encode(record) for record in records if second_of(record) == end_ns]
            driver.on_window(end_ns, pack(own, ["t:0:0"] * len(own)))
        monkeypatch.setattr(EmbeddedEngine, "tick", _broken)
        driver.on_time(first_ns)
        monkeypatch.undo()
        for second in range(1, 40):
            driver.on_time(first_ns + second * NS_PER_SECOND)
            assert driver.counters["snapshots"] or not state.added
        assert driver.counters["snapshots"]
        assert state.added

        engine = EmbeddedEngine(EngineConfig(history=None))
        engine.restore(state.parts())
        assert engine.jobs()


class CountedState(MemoryState):
    """Remembers which parts were written when."""

    def __init__(self) -> None:
        """Nothing was."""
        super().__init__()
        self.added: list[list[str]] = []
        self.replaced: list[list[str]] = []

    def add(self, parts: Mapping[str, bytes]) -> None:
        """As it does, and remember."""
        self.added.append(sorted(parts))
        super().add(parts)

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """As it does, and remember."""
        self.replaced.append(sorted(changed))
        super().replace(changed, removed)


def test_the_journal_is_no_longer_than_a_snapshots_time(records: list[JobRecord]) -> None:
    stream = Stream(records).run()

    timers = [entry for entry in stream.state.journal() if entry[:1] == b"T"]
    assert len(timers) <= CONFIG.snapshot_seconds
    assert stream.state.parts()


def test_what_is_no_record_goes_to_the_dead_letters_and_the_rest_goes_on(
    records: list[JobRecord], wanted: list[bytes]
) -> None:
    driver = JobDriver(CONFIG, KEY, MemoryState())
    driver.on_window(second_of(records[0]), pack([encode(records[0]), b"poison"], ["in.steps:1:41", "in.steps:1:42"]))
    [dead_letter] = [one for one in driver.on_time(second_of(records[0])) if one.topic not in REPORTS]

    assert (dead_letter.topic, dead_letter.key, dead_letter.value) == (DEAD_LETTER, KEY, b"poison")
    reported = {name: data.decode() for name, data in dead_letter.headers.items()}
    assert (reported["topic"], reported["partition"], reported["offset"]) == ("in.steps", "1", "42")
    assert reported["reason"]
    assert reported["detail"]
    assert driver.counters["records"] == 2


def test_a_late_timer_and_a_timer_without_a_job_do_nothing(records: list[JobRecord]) -> None:
    state = MemoryState()
    driver = JobDriver(CONFIG, KEY, state)
    assert driver.on_time(second_of(records[0])) == []
    assert driver.is_idle
    driver.on_window(second_of(records[0]), pack([encode(records[0])], ["t:0:0"]))
    driver.on_time(second_of(records[0]) + 5 * NS_PER_SECOND)
    before = state.saved()

    assert driver.on_time(second_of(records[0]) + NS_PER_SECOND) == []
    assert state.journal() == before.journal()


def test_windows_that_wait_outlive_a_snapshot(records: list[JobRecord]) -> None:
    state = MemoryState()
    driver = JobDriver(CONFIG, KEY, state)
    first = second_of(records[0])
    driver.on_window(first, pack([encode(records[0])], ["t:0:0"]))
    driver.on_window(first + 500 * NS_PER_SECOND, pack([encode(records[-1])], ["t:0:1"]))
    driver.on_time(first + 400 * NS_PER_SECOND)
    assert driver.counters["snapshots"]

    assert [entry[:1] for entry in state.journal()].count(b"W") == 1
    assert not JobDriver(CONFIG, KEY, state).is_idle


def test_an_operator_that_fails_costs_its_job_the_past_and_nobody_a_restart(
    records: list[JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = MemoryState()
    driver = JobDriver(CONFIG, KEY, state)
    end_ns = second_of(records[0])
    driver.on_window(end_ns, pack([encode(records[0])], ["t:0:0"]))
    monkeypatch.setattr(EmbeddedEngine, "tick", _broken)
    dead_letter, *_ = driver.on_time(end_ns)
    monkeypatch.undo()

    assert dead_letter.headers["reason"] == OPERATOR_FAILED.encode()
    assert b"ZeroDivisionError" in dead_letter.headers["detail"]
    driver.on_window(end_ns + NS_PER_SECOND, pack([encode(replace(records[1], ts_ns=end_ns))], ["t:0:1"]))
    assert {one.topic for one in driver.on_time(end_ns + NS_PER_SECOND)} == {ETTR}
    assert driver.counters[OPERATOR_FAILED] == 1


def test_an_operator_that_raises_in_one_second_is_a_dead_letter_and_the_job_goes_on(
    records: list[JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine gives the job operators without a past; the next snapshot is a whole one."""
    state = CountedState()
    driver = JobDriver(CONFIG, KEY, state)
    first_ns = second_of(records[0])
    real, ends = JobPipeline.on_bundle, []

    def on_bundle(self: JobPipeline, turn: SliceBundle) -> BundleResult:
        ends.append(turn.end_ns)
        if len(ends) == 5:
            raise OverflowError("int too large to convert to float")
        return real(self, turn)

    monkeypatch.setattr(JobPipeline, "on_bundle", on_bundle)
    outputs = []
    for second in range(80):
        end_ns = first_ns + second * NS_PER_SECOND
        own = [encode(record) for record in records if second_of(record) == end_ns]
        driver.on_window(end_ns, pack(own, ["t:0:0"] * len(own)))
        outputs += driver.on_time(end_ns)
    dead_letters = [one for one in outputs if one.headers.get("reason") == OPERATOR_FAILED.encode()]

    assert len(dead_letters) == driver.counters[OPERATOR_FAILED] == 1
    assert b"OverflowError" in dead_letters[0].headers["detail"]
    assert len(ends) == 80
    engine = EmbeddedEngine(EngineConfig(history=None))
    engine.restore(state.parts())
    assert engine.jobs()


def test_a_verdict_that_nobody_may_write_costs_its_job_the_past_and_nobody_a_restart(
    records: list[JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = JobDriver(CONFIG, KEY, MemoryState())
    end_ns = second_of(records[0])
    driver.on_window(end_ns, pack([encode(records[0])], ["t:0:0"]))
    odd = replace(canary(records[0].job, end_ns), onset_ns=-1)
    monkeypatch.setattr(EmbeddedEngine, "tick", lambda *_: EngineOutput((odd,), (), (), 1))

    [dead_letter] = driver.on_time(end_ns)

    assert dead_letter.headers["reason"] == OPERATOR_FAILED.encode()
    assert b"onset_ns" in dead_letter.headers["detail"]


def _broken(*_: object) -> None:
    raise ZeroDivisionError


def test_a_state_of_another_version_is_refused_in_a_sentence(records: list[JobRecord]) -> None:
    stream = Stream(records).run()
    parts = stream.state.parts()
    name = next(iter(parts))
    stream.state.replace({name: parts[name].replace(b'"version":%d' % STATE_VERSION, b'"version":99')}, [])

    with pytest.raises(SnapshotError, match=r"job test/job .* version 99.*without a savepoint"):
        JobDriver(CONFIG, KEY, stream.state)


def test_a_job_that_is_over_leaves_its_times_behind_for_a_month(records: list[JobRecord]) -> None:
    state = MemoryState()
    driver = JobDriver(CONFIG, KEY, state)
    first = records[0].ts_ns // NS_PER_SECOND + 1
    driver.on_window(first * NS_PER_SECOND, pack([encode(records[0])], ["t:0:0"]))
    for second in range(first, first + 3670):
        driver.on_time(second * NS_PER_SECOND)
        if driver.is_idle:
            break

    assert driver.is_idle
    assert ([*state.parts()], state.journal()) == (["times/ettr"], [])
    driver = JobDriver(CONFIG, KEY, state)
    assert driver.is_idle
    assert driver.on_time(driver.kept_until_ns - 1) == []
    assert state.parts()
    assert driver.on_time(driver.kept_until_ns) == []
    assert (driver.kept_until_ns, state.parts(), state.journal()) == (0, {}, [])


def test_a_canary_every_five_seconds_accuses_nobody(records: list[JobRecord]) -> None:
    driver = JobDriver(DriverConfig(canary_seconds=5), KEY, MemoryState())
    first = records[0].ts_ns // NS_PER_SECOND + 1
    driver.on_window(first * NS_PER_SECOND, pack([encode(records[0])], ["t:0:0"]))
    said = [output for second in range(first, first + 20) for output in driver.on_time(second * NS_PER_SECOND)]

    verdicts = [decode_verdict(output.value) for output in said if output.topic == VERDICTS]
    assert len(verdicts) == 4
    assert {(v.reason, v.suspects, v.action.value, v.state.value) for v in verdicts} == {
        ("canary", (), "none", "resolved")
    }
    assert len({v.verdict_id for v in verdicts}) == 4


def test_a_record_whose_own_time_is_not_kafkas_is_not_dropped_in_silence(records: list[JobRecord]) -> None:
    driver = JobDriver(CONFIG, KEY, MemoryState())
    first = second_of(records[0])
    driver.on_window(first, pack([encode(records[0])], ["t:0:0"]))
    driver.on_time(first)
    old, ahead = (replace(records[0], ts_ns=first + by * NS_PER_SECOND) for by in (-3600, 3600))
    driver.on_window(first + NS_PER_SECOND, pack([encode(old), encode(ahead)], ["in.steps:1:7", "in.steps:1:8"]))
    late, dead_letter = driver.on_time(first + NS_PER_SECOND)

    assert (late.topic, late.value, late.headers["reason"]) == (LATE, encode(old), b"late")
    assert (dead_letter.topic, dead_letter.value, dead_letter.headers["reason"]) == (
        DEAD_LETTER,
        encode(ahead),
        b"stamps_differ",
    )
    assert driver.counters["late_records"] == driver.counters["dead_letters"] == 1


@pytest.mark.parametrize("known", [False, True], ids=["first_record", "idle_for_a_day"])
def test_an_old_stamp_does_not_bring_all_seconds_since(records: list[JobRecord], known: bool) -> None:
    """A record of 1970 that Kafka stamped now, for a job that nobody knows (yet, or any more)."""
    driver, end_ns = JobDriver(CONFIG, KEY, MemoryState()), second_of(records[0])
    if known:
        driver.on_window(end_ns, pack([encode(records[0])], ["t:0:0"]))
        while not driver.is_idle:
            driver.on_time(end_ns := driver.next_ns)
        end_ns += 86_400 * NS_PER_SECOND
    old = replace(records[0], ts_ns=1 if not known else end_ns - 43_200 * NS_PER_SECOND)
    driver.counters.clear()
    driver.on_window(end_ns, pack([encode(old)], ["in.steps:1:7"]))
    [late] = driver.on_time(end_ns)

    assert (late.topic, late.value, late.headers["offset"]) == (LATE, encode(old), b"7")
    assert driver.counters["slices"] == 0


def test_frames_whose_own_time_is_not_kafkas_are_told_one_by_one(records: list[JobRecord]) -> None:
    frame = next(record for record in records if isinstance(record, Frame))
    end_ns = second_of(frame)
    old, ahead = (replace(frame, ts_ns=end_ns + by * NS_PER_SECOND) for by in (-3600, 3600))
    values = [encode(one) for one in (frame, old, ahead)]
    driver = JobDriver(CONFIG, KEY, MemoryState())
    packed = reduce_and_pack(values, ["t:0:0", "t:0:1", "t:0:2"], "all", KEY.decode(), end_ns // NS_PER_SECOND)
    driver.on_window(end_ns, packed)

    reported = {output.headers["offset"]: (output.topic, output.value) for output in driver.on_time(end_ns)}
    assert reported == {b"1": (LATE, values[1]), b"2": (DEAD_LETTER, values[2])}


@pytest.mark.parametrize("group", ["", "all"])
def test_what_its_key_does_not_name_is_a_dead_letter(records: list[JobRecord], group: str) -> None:
    frame = next(record for record in records if isinstance(record, Frame))
    strange = encode(replace(frame, job=replace(frame.job, job_id="other")))
    driver, end_ns = JobDriver(CONFIG, KEY, MemoryState()), second_of(frame)
    driver.on_window(
        end_ns,
        reduce_and_pack([strange, encode(frame)], ["t:0:4", "t:0:5"], group, KEY.decode(), end_ns // NS_PER_SECOND),
    )
    [dead_letter] = driver.on_time(end_ns)

    assert (dead_letter.topic, dead_letter.value, dead_letter.headers["reason"]) == (
        DEAD_LETTER,
        strange,
        b"key_differs",
    )
    assert driver.counters["dead_letters"] == 1


@pytest.mark.parametrize("origin", ["t:0:9", None])
def test_a_strangers_block_is_no_block(records: list[JobRecord], origin: str | None) -> None:
    """Only what the job itself made of frames is: nothing from Kafka is decoded without the codec's checks."""
    frame = next(record for record in records if isinstance(record, Frame))
    [block] = blocks_of([frame], BUILTIN_TABLES)
    forged, end_ns = encode_block(block), second_of(frame)
    for group in ("", "all"):
        driver = JobDriver(CONFIG, KEY, MemoryState())
        driver.on_window(end_ns, reduce_and_pack([forged], [origin], group))
        [dead_letter] = driver.on_time(end_ns)
        assert (dead_letter.topic, dead_letter.value) == (DEAD_LETTER, forged)


def test_frames_that_cannot_be_reduced_go_on_as_they_came(
    records: list[JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [encode(record) for record in records if isinstance(record, Frame)][:3]
    monkeypatch.setattr("tocsin.pipeline.runtime.flink.reduce.blocks_of", _broken)

    assert reduce_and_pack(frames, ["t:0:0"] * 3, "all") == pack(frames, ["t:0:0"] * 3)


def test_what_a_host_says_of_another_s_rank_is_a_dead_letter_as_in_the_embedded_engine() -> None:
    job = FakeJob(JobShape())
    driver = JobDriver(DriverConfig(), KEY, MemoryState())
    reported: list[Output] = []
    for second in range(12):
        records: list[JobRecord] = list(job.second())
        if second == 8:
            exit_of_other = Event(job.job, "laptop", job.now_ns - 1, 5, EventSource.PROCESS, "exit", Severity.FATAL, {})
            records.append(exit_of_other)
        data = [encode(record) for record in records]
        driver.on_window(job.now_ns, pack(data, [f"events:0:{index}" for index in range(len(data))]))
        reported += driver.on_time(job.now_ns)

    dead_letters = [output for output in reported if output.topic == DEAD_LETTER]
    assert [dead_letter.headers["reason"] for dead_letter in dead_letters] == [b"rank_of_other_host"]
    assert dead_letters[0].value == encode(exit_of_other)

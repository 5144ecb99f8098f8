"""The agent's core on a fake clock: datagrams in, records out."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.collectors.peer import datagram
from tocsin.collectors.api import Reading, Sighting
from tocsin.collectors.clock import FakeClock, SteadyClock
from tocsin.collectors.core import AgentCore, CoreConfig, Surroundings
from tocsin.collectors.job_state import HostPlace
from tocsin.schemas.codec import decode, encode
from tocsin.schemas.records import (
    CollectiveBatch,
    Event,
    EventSource,
    Frame,
    Groups,
    HostStatus,
    JobKey,
    Record,
    Severity,
    StepBatch,
    Topology,
)

T0 = 1_700_000_000
S = 1_000_000_000
JOB = ("c", "j", 0)


class FakeWatcher:
    def __init__(self) -> None:
        self.watched: dict[tuple[JobKey, int], int] = {}

    def watch(self, job: JobKey, rank: int, pid: int) -> None:
        self.watched[job, rank] = pid

    def settle(self, job: JobKey, rank: int) -> None:
        self.watched.pop((job, rank), None)

    def state(self, job: JobKey, rank: int) -> str:
        return "S"


class Bench:
    """A core on a host of its own; ``at`` moves its clock and collects what it gives."""

    def __init__(self) -> None:
        self.fake = FakeClock(wall_ns=T0 * S)
        self.clock = SteadyClock(self.fake)
        self.watcher = FakeWatcher()
        now, _ = self.clock.read()
        self.core = AgentCore(CoreConfig(HostPlace("h"), "c", pass_on_spread=False), self.watcher, now)
        self.records: list[Record] = []

    @property
    def ts(self) -> int:
        return self.fake.wall_ns()

    def hook(self, kind: str, rank: int = 0, job: tuple[str, str, int] = JOB, **keys: Any) -> None:
        keys.setdefault("ts", self.ts)
        self.core.on_datagram(datagram(kind, rank, job, **keys), 77, self.clock.read()[0])

    def hello(self, rank: int = 0, job: tuple[str, str, int] = JOB, **keys: Any) -> None:
        self.hook("hello", rank, job, **{"pid": 7, "world_size": 8, **keys})

    def step(self, number: int, rank: int = 0, **keys: Any) -> None:
        self.hook("step", rank, **{"step": number, "dur": 0.2, **keys})

    def beat(self, step: int, phase: str = "forward", since: float = 0.0, **keys: Any) -> None:
        self.hook("beat", step=step, phase=phase, step_ns=self.ts - round(since * S), **keys)

    def runs(self, seconds: float, tick: float = 0.25) -> list[Record]:
        """Let time pass; return what came."""
        found: list[Record] = []
        for _ in range(round(seconds / tick)):
            self.fake.advance(tick)
            self.core.on_time(self.clock.read()[0], Surroundings)
            found += self.take()
        return found

    def trains(self, seconds: float, first: int = 0, step_seconds: float = 0.5, **keys: Any) -> list[Record]:
        """Let rank 0 train for so long."""
        found: list[Record] = []
        for number in range(round(seconds / step_seconds)):
            found += self.runs(step_seconds, step_seconds / 2)
            self.step(first + number, dur=step_seconds, **keys)
        return found + self.take()

    def take(self) -> list[Record]:
        found = self.core.take()
        for record in found:
            assert decode(encode(record), now_ns=self.ts) == record  # whatever leaves can be read
        self.records += found
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def of(records: Iterable[Record], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def names(records: Iterable[Record]) -> list[str]:
    return [record.name for record in of(records, Event)]


def events(records: Iterable[Record], name: str) -> list[Event]:
    return [record for record in of(records, Event) if record.name == name]


# --- jobs ----------------------------------------------------------------------------------------


def test_a_host_without_a_job_reports_as_idle(bench: Bench) -> None:
    found = bench.runs(11)

    assert [event.job.job_id for event in events(found, "agent")] == ["idle"]
    assert [status.job.job_id for status in of(found, HostStatus)] == ["idle", "idle"]
    assert [status.ts_ns for status in of(found, HostStatus)] == [(T0 + 5) * S - 10**6, (T0 + 10) * S - 10**6]


def test_the_first_hello_is_an_event_the_next_ones_are_not(bench: Bench) -> None:
    bench.hello()
    bench.runs(10)
    bench.hello()
    bench.runs(1)

    assert names(bench.records).count("hello") == 1
    assert bench.watcher.watched == {(JobKey(*JOB), 0): 77}


def test_the_pid_of_the_kernel_goes_before_the_hooks_own(bench: Bench) -> None:
    bench.hello(rank=0, pid=7)
    bench.core.on_datagram(datagram("hello", 1, JOB, pid=8, world_size=8, ts=bench.ts), 0, bench.clock.read()[0])
    places = {place.rank: place.pid for place in of(bench.runs(1), Topology)[0].places}

    assert places == {0: 77, 1: 8}


def test_topology_and_groups_are_announced_at_change_and_every_half_minute(bench: Bench) -> None:
    bench.hello(gpu=3, gpu_uuid="GPU-1", dp=1)
    bench.hook("groups", groups=[{"comm_id": "w", "kind": "dp", "ranks": [0, 1]}])
    first = bench.runs(2)
    later = bench.runs(62)

    assert len(of(first, Topology)) == len(of(first, Groups)) == 1
    assert of(first, Topology)[0].places[0].gpu_uuid == "GPU-1"
    assert len(of(later, Topology)) == len(of(later, Groups)) == 2


def test_a_new_attempt_forgets_the_old_one_and_its_late_words(bench: Bench) -> None:
    bench.hello()
    bench.hello(job=("c", "j", 1))
    bench.hook("bye", job=JOB)

    assert [state.job.attempt for state in bench.core.jobs.values()] == [1]
    assert bench.core.tally.dead_letters["old_attempt"] == 1
    assert list(bench.watcher.watched) == [(JobKey("c", "j", 1), 0)]


def test_a_process_that_was_replaced_within_the_attempt_says_hello_again(bench: Bench) -> None:
    bench.hello()
    bench.core.on_datagram(datagram("hello", 0, JOB, pid=9, world_size=8, ts=bench.ts), 78, bench.clock.read()[0])
    bench.take()

    assert names(bench.records).count("hello") == 2
    assert bench.watcher.watched[JobKey(*JOB), 0] == 78


def test_two_jobs_have_their_gpus_and_share_the_host(bench: Bench) -> None:
    bench.hello(rank=0, job=("c", "a", 0), gpu_uuid="GPU-a")
    bench.hello(rank=0, job=("c", "b", 0), gpu_uuid="GPU-b")
    gpus = {"GPU-a": {"gpu_util_ratio": 0.1}, "GPU-b": {"gpu_util_ratio": 0.2}, "GPU-c": {"gpu_util_ratio": 0.3}}
    bench.core.on_reading(T0 * S, Reading({"cpu_util_ratio": 0.5}, gpus), bench.clock.read()[0])
    frames = {frame.job.job_id: frame for frame in of(bench.runs(5), Frame)}

    assert frames["a"].gpu_uuids == ("GPU-a",)
    assert frames["b"].gpu_uuids == ("GPU-b",)
    assert frames["a"].host_matrix == frames["b"].host_matrix


def test_a_job_is_forgotten_a_minute_after_all_ranks_ended(bench: Bench) -> None:
    bench.hello()
    bench.hook("bye")
    bench.hook("exit", pid=7, code=0)
    bench.runs(59)
    assert bench.core.jobs
    bench.runs(2)

    assert not bench.core.jobs
    assert [event.severity for event in events(bench.records, "exit")] == [Severity.INFO]


# --- steps ---------------------------------------------------------------------------------------


def test_healthy_steps_travel_once_a_metric_slice(bench: Bench) -> None:
    bench.hello()
    batches = of(bench.trains(20), StepBatch)

    assert [batch.ts_ns for batch in batches] == [(T0 + t) * S - 10**6 for t in (5, 10, 15, 20)]
    steps = [row.step for batch in batches for row in batch.rows]
    assert steps == list(range(39))  # the step that ended with the last slice waits for the next one
    assert all(row.ts_ns <= batch.ts_ns for batch in batches for row in batch.rows)


def test_steps_travel_every_second_for_half_a_minute_after_an_odd_one(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.step(20, dur=0.9)
    odd = of(bench.trains(30, first=21), StepBatch)
    calm = of(bench.trains(20, first=81), StepBatch)

    assert len(odd) >= 29
    assert len(calm) <= 6
    rows = [row.step for batch in of(bench.records, StepBatch) for row in batch.rows]
    assert sorted(set(rows)) == sorted(rows)


def test_one_slow_phase_is_odd_even_if_the_step_is_not(bench: Bench) -> None:
    bench.hello()
    bench.trains(10, data=0.01)
    bench.step(20, dur=0.5, data=0.1)

    assert len(of(bench.runs(1), StepBatch)) == 1


def test_a_nan_an_announced_phase_and_a_bye_are_events_at_once(bench: Bench) -> None:
    bench.hello()
    bench.hook("nan", step=3, what="loss", value="nan")
    bench.hook("phase", phase="checkpoint", edge="begin")
    bench.hook("bye")
    found = bench.take()

    assert names(found)[-3:] == ["nan", "phase", "bye"]
    assert events(found, "nan")[0].payload == {"step": 3, "what": "loss", "value": "nan"}


# --- stalls --------------------------------------------------------------------------------------


def test_a_step_is_overdue_after_four_medians_but_not_before_two_seconds(bench: Bench) -> None:
    bench.hello()
    bench.trains(10, step_seconds=0.25)
    assert names(bench.runs(1.9)).count("stall") == 0
    begin = events(bench.runs(0.5), "stall")

    assert [event.payload["edge"] for event in begin] == ["begin"]
    assert begin[0].payload["elapsed_seconds"] == pytest.approx(2.25, abs=0.25)


def test_slow_steps_have_more_patience(bench: Bench) -> None:
    bench.hello()
    bench.trains(50, step_seconds=2.5)

    assert events(bench.runs(9.5), "stall") == []
    assert [event.payload["edge"] for event in events(bench.runs(1), "stall")] == ["begin"]


def test_a_stall_changes_stays_and_ends(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.beat(20, "backward")
    bench.runs(3)
    bench.beat(20, "communication", since=3, inflight=[["w", "all_reduce", 9, 1, bench.ts]])
    bench.runs(12)
    bench.step(20)
    bench.runs(1)
    found = [(e.payload["edge"], e.payload["phase"]) for e in events(bench.records, "stall")]

    assert found == [
        ("begin", "backward"),
        ("change", "communication"),
        ("still", "communication"),
        ("end", "communication"),
    ]
    still = events(bench.records, "stall")[2].payload
    assert still["in_collective"] is True
    assert still["beat_age_seconds"] == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "compile"])
def test_an_announced_phase_is_no_stall_and_the_step_has_time_after_it(bench: Bench, phase: str) -> None:
    bench.hello()
    bench.trains(10)
    bench.hook("phase", phase=phase, edge="begin")
    bench.runs(20)
    bench.hook("phase", phase=phase, edge="end")
    bench.runs(1.5)

    assert events(bench.records, "stall") == []


def test_a_lost_end_of_a_phase_does_not_blind_for_good(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.hook("phase", phase="checkpoint", edge="begin")
    bench.runs(5)
    bench.beat(20, "forward")

    assert [event.payload["edge"] for event in events(bench.runs(3), "stall")] == ["begin"]


def test_the_first_step_may_take_half_a_minute(bench: Bench) -> None:
    bench.hello()
    bench.beat(0, "forward")

    assert events(bench.runs(29), "stall") == []
    assert len(events(bench.runs(2), "stall")) == 1


def test_between_two_steps_there_is_half_a_minute(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.hook("beat", step=-1, phase="", step_ns=0)

    assert events(bench.runs(29), "stall") == []


@pytest.mark.parametrize("how", ["bye", "exit", "gone"])
def test_a_rank_that_ended_is_no_stall(bench: Bench, how: str) -> None:
    bench.hello()
    bench.trains(10)
    if how == "gone":
        gone = Sighting("process_gone", EventSource.PROCESS, Severity.ERROR, {"pid": 7}, 0, JobKey(*JOB))
        bench.core.on_reading(0, Reading(events=(gone,)), bench.clock.read()[0])
    else:
        keys: dict[str, Any] = {"pid": 7, "code": -9, "signal": 9} if how == "exit" else {}
        bench.hook(how, **keys)

    assert events(bench.runs(40), "stall") == []


def test_an_exit_before_the_watcher_looked_hides_process_gone(bench: Bench) -> None:
    bench.hello()
    bench.hook("exit", pid=7, code=1)
    gone = Sighting("process_gone", EventSource.PROCESS, Severity.ERROR, {"pid": 7}, 0, JobKey(*JOB))
    bench.core.on_reading(0, Reading(events=(gone,)), bench.clock.read()[0])
    bench.take()

    assert names(bench.records).count("process_gone") == 0
    assert events(bench.records, "exit")[0].severity is Severity.FATAL


# --- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_seconds", [600.0, -600.0])
def test_a_jump_of_the_wall_clock_is_an_event_and_no_stall(bench: Bench, jump_seconds: float) -> None:
    bench.hello()
    bench.trains(10)
    bench.fake.step(jump_seconds)
    now, jump_ns = bench.clock.read()
    bench.core.on_clock_jump(jump_ns, now)
    found = bench.trains(15, first=20)

    assert [e.payload["step_seconds"] for e in events(found, "clock_step")] == [pytest.approx(jump_seconds, abs=0.01)]
    assert events(found, "stall") == []
    assert of(found, StepBatch)


def test_a_small_difference_is_slewed_away(bench: Bench) -> None:
    bench.fake.step(0.4)
    first, jump_ns = bench.clock.read()
    assert (jump_ns, first.host_ns) == (0, T0 * S)
    for _ in range(100):
        bench.fake.advance(0.1)
        bench.clock.read()

    assert bench.clock.read()[0].host_ns == bench.fake.wall_ns()


def test_stamps_are_corrected_once_the_engine_refused_them(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.clock.correction_ns = 600 * S
    bench.core.on_clock_ahead(600 * S, bench.clock.read()[0])
    found = bench.trains(10, first=20, coll=[["w", "all_reduce", 1, 1, bench.ts, bench.ts]])

    ahead = events(found, "clock_ahead")[0]
    assert ahead.payload == {"ahead_seconds": 600.0}
    assert ahead.ts_ns == (T0 + 10 - 600) * S
    rows = [row.ts_ns for batch in of(found, StepBatch) for row in batch.rows]
    assert rows
    assert max(rows) < (T0 + 20 - 600) * S
    done = [row for batch in of(found, CollectiveBatch) for row in batch.rows]
    assert all(0 < row.end_ns < (T0 + 20 - 600) * S for row in done)


# --- bad input -----------------------------------------------------------------------------------


def test_bad_datagrams_are_counted_by_reason_and_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        bench.step(1, dur=-5)
        bench.core.on_datagram(b"nonsense", 1, bench.clock.read()[0])
        bench.core.on_datagram(datagram("song"), 1, bench.clock.read()[0])
    bench.hello()

    assert dict(bench.core.tally.dead_letters) == {"bad_field": 3, "undecodable": 3, "unknown_kind": 3}
    assert len(caplog.records) == 3
    assert names(bench.take()).count("hello") == 1


def test_a_broken_hook_cannot_fill_the_memory(bench: Bench) -> None:
    for number in range(100):
        bench.hello(job=("c", f"j{number}", 0))
    for rank in range(300):
        bench.hook("bye", rank, ("c", "j0", 0))

    assert len(bench.core.jobs) == 64
    assert len(bench.core.jobs["c", "j0"].ranks) == 256
    assert bench.core.tally.dead_letters["too_many_jobs"] == 36
    assert bench.core.tally.dead_letters["too_many_ranks"] == 44


def test_an_exit_belongs_to_the_job_that_its_process_named(bench: Bench) -> None:
    """``tocsin exec`` knows the environment only; ``hook.init(job_id=…)`` may have said otherwise."""
    bench.hello(rank=3, pid=4711)
    bench.take()
    other = ("default", "127.0.0.1:29500", 0)
    bench.hook("exit", 0, other, pid=4711, code=1, signal=0, stderr_tail="ValueError: x")

    (event,) = [record for record in of(bench.take(), Event) if record.name == "exit"]
    assert (event.job, event.rank) == (JobKey(*JOB), 3)

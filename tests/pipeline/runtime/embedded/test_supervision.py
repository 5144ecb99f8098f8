"""What is raised inside harms one job, or one part, and is said; the engine goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.lab.testing import FakeJob, JobShape, MemoryStore
from tocsin.pipeline.runtime.embedded.clock_watch import ClockWatch, EngineTime, HostTimes
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread, describe_dead
from tocsin.pipeline.runtime.job_pipeline import BundleResult, JobPipeline
from tocsin.schemas.errors import ClockAheadError
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, Severity
from tocsin.schemas.verdicts import Verdict, VerdictState
from tocsin.schemas.wire.codec import decode, encode

POISON = "poison"


@pytest.fixture
def brittle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that raise at an event that the codec accepts, as those of the report did."""
    real = JobPipeline.on_bundle

    def on_bundle(self: JobPipeline, turn: SliceBundle) -> BundleResult:
        result = real(self, turn)
        if any(isinstance(record, Event) and record.name == POISON for record in turn.fast.records):
            raise OverflowError("int too large to convert to float")
        return result

    monkeypatch.setattr(JobPipeline, "on_bundle", on_bundle)


def poison(job: JobKey, ts_ns: int) -> Event:
    return Event(job, "n00", ts_ns, 0, EventSource.PROCESS, POISON, Severity.INFO)


class Two:
    """Two jobs in one engine."""

    def __init__(self) -> None:
        self.engine = EmbeddedEngine(EngineConfig(history=None))
        self.jobs = [FakeJob(JobShape(rank_count=4), JobKey("test", name, 0)) for name in ("struck", "other")]
        self.lines: list[Verdict] = []
        self.failures: list[Any] = []

    def run(self, seconds: int, *more: Event) -> None:
        for _ in range(seconds):
            for job in self.jobs:
                for record in job.second():
                    self.engine.take(encode(record))
            for record in more:
                self.engine.take(encode(record))
            output = self.engine.tick(self.jobs[0].now_ns)
            self.lines += output.verdicts
            self.failures += output.failures


@pytest.mark.usefixtures("brittle")
def test_an_operator_that_raises_costs_its_own_job_its_past() -> None:
    """The other job's verdicts are those of an engine that nobody attacked."""
    calm, struck = Two(), Two()
    for two in (calm, struck):
        two.run(20)
        now_ns = two.jobs[0].now_ns
        two.run(1, *([poison(two.jobs[0].job, now_ns)] if two is struck else []))
        two.run(3)
        two.jobs[1].kill(2)
        two.run(10)
    wanted = [line for line in calm.lines if line.job.job_id == "other"]

    assert wanted
    assert [line for line in struck.lines if line.job.job_id == "other"] == wanted
    (failure,) = struck.failures
    assert failure.job.job_id == "struck"
    assert "OverflowError" in failure.text
    assert any(getattr(decode(data), "name", "") == POISON for data in failure.records)
    assert struck.engine.counters["operator_failed"] == 1
    assert not calm.failures


@pytest.mark.usefixtures("brittle")
def test_no_incident_stays_open_and_none_starts_anew_under_an_old_id() -> None:
    two = Two()
    two.run(20)
    two.jobs[0].kill(2)
    two.run(6)
    opened = [line for line in two.lines if line.state in (VerdictState.OPEN, VerdictState.CONFIRMED)]
    assert opened
    two.run(1, poison(two.jobs[0].job, two.jobs[0].now_ns))
    two.run(5)
    closing = [line for line in two.lines if line.reason == "operator_failed"]

    assert {line.verdict_id for line in closing} == {line.verdict_id for line in opened}
    assert all(line.state is VerdictState.EXPIRED for line in closing)
    updates: dict[str, list[int]] = {}
    for line in two.lines:
        updates.setdefault(line.verdict_id, []).append(line.update)
    assert all(numbers == list(range(len(numbers))) for numbers in updates.values())


@pytest.mark.usefixtures("brittle")
def test_a_job_that_began_anew_is_judged_again() -> None:
    two = Two()
    two.run(20)
    two.run(1, poison(two.jobs[0].job, two.jobs[0].now_ns))
    two.run(40)
    two.jobs[0].kill(1)
    two.run(10)

    assert any(line.job.job_id == "struck" and line.fault.value == "fail_stop" for line in two.lines)


def test_records_that_cannot_be_made_into_a_turn_cost_their_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from tocsin.pipeline.core import slices

    real = slices.sort_records

    def canonical(held: Any) -> Any:
        if any(getattr(record, "name", "") == POISON for record in held.values()):
            raise TypeError("'<' not supported")
        return real(held)

    monkeypatch.setattr(slices, "sort_records", canonical)
    two = Two()
    two.run(20)
    two.run(1, poison(two.jobs[0].job, two.jobs[0].now_ns))
    two.run(3)
    two.jobs[1].kill(2)
    two.run(10)

    assert [failure.job.job_id for failure in two.failures] == ["struck"]
    assert any(line.job.job_id == "other" for line in two.lines)


def test_a_tap_or_a_history_that_raises_harms_nobody() -> None:
    engine = EmbeddedEngine(EngineConfig())
    job = FakeJob(JobShape(rank_count=4))
    seen: list[SliceBundle] = []

    def bad(turn: SliceBundle) -> None:
        raise RuntimeError("a recorder that fails")

    engine.taps += [bad, seen.append]
    lines: list[Verdict] = []
    for second in range(35):
        if second == 20:
            job.kill(2)
        for record in job.second():
            engine.take(encode(record))
        lines += engine.tick(job.now_ns).verdicts

    assert len(seen) == engine.counters["turns"] == engine.counters["tap_failed"]
    assert lines


class Clocks:
    """Wall and steady clock, set by hand."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * NS_PER_SECOND
        self.steady_ns = 77 * NS_PER_SECOND

    def pass_seconds(self, seconds: float, wall_seconds: float | None = None) -> None:
        self.steady_ns += round(seconds * NS_PER_SECOND)
        self.wall_ns += round((seconds if wall_seconds is None else wall_seconds) * NS_PER_SECOND)


class Bench:
    """A service whose clocks are set by hand, with a job whose hosts' clocks are right."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.job = FakeJob(JobShape(rank_count=6))
        self.clocks = Clocks()
        self.clocks.wall_ns = self.job.now_ns
        config = ServiceConfig(f"unix:{folder}/e.sock", folder / "c.sock", dead_letter_folder=folder)
        clocks = self.clocks
        self.service = EngineService(
            config, self.store, lambda: clocks.wall_ns, StoreWriter(self.store), lambda: clocks.steady_ns
        )
        self.service.start(ticking=False)
        self.client = ControlClient(folder / "c.sock")
        self.taken = 0

    def run(self, seconds: int, wall_step_seconds: float = 0.0) -> None:
        """Seconds of the job; the wall clock is set in the first of them."""
        for second in range(seconds):
            for record in self.job.second():
                with contextlib.suppress(ClockAheadError):
                    self.taken += self.service.engine.take(encode(record), self.service.time.now_ns()) == "ok"
            self.clocks.pass_seconds(1.0, 1.0 + (wall_step_seconds if second == 0 else 0.0))
            self.service.on_second(self.service.time.now_ns() // NS_PER_SECOND * NS_PER_SECOND)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [line["verdict"] for line in self.service.memory.lines]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.service.stop()


@pytest.mark.parametrize("step_seconds", [3600.0, 5.0])
def test_one_tick_ahead_blinds_nobody(bench: Bench, step_seconds: float) -> None:
    """The wall clock goes ahead and comes back: jobs begin anew twice, records are taken, a real kill is named."""
    bench.run(20)
    bench.run(1, step_seconds)
    bench.run(1, -step_seconds)
    before = bench.taken
    bench.run(40)
    assert bench.taken > before
    assert not bench.lines, "nothing is wrong"
    bench.job.kill(3)
    bench.run(10)

    assert bench.service.clock.jump_count == 2
    assert bench.lines[0]["fault"] == "fail_stop"
    assert bench.lines[0]["suspects"][0]["name"] == "n03"
    events = bench.client.call("status")["events"]
    assert [round(event["jump_seconds"]) for event in events] == [step_seconds, -step_seconds]


def test_a_clock_that_goes_back_and_stays_is_followed(bench: Bench) -> None:
    """The hosts' clocks are the engine's: they go back, too."""
    bench.run(20)
    bench.job.now_ns -= 60 * NS_PER_SECOND
    bench.run(1, -60.0)
    bench.run(40)
    assert not bench.lines
    bench.job.kill(3)
    bench.run(10)

    assert bench.lines[0]["suspects"][0]["name"] == "n03"


@pytest.mark.parametrize("step_seconds", [3600.0, -60.0])
def test_a_clock_that_is_wrong_and_stays_so_is_not_believed_against_all_hosts(
    bench: Bench, step_seconds: float
) -> None:
    """The hosts' clocks are right: after five seconds in which no record was on time the engine goes by theirs."""
    bench.run(20)
    bench.run(1, step_seconds)
    bench.run(45)
    assert not bench.lines, "nothing is wrong"
    bench.job.kill(3)
    bench.run(10)
    assert bench.lines[0]["suspects"][0]["name"] == "n03"
    bench.run(1, -step_seconds)  # somebody mends the clock
    bench.run(45)

    assert bench.service.time.correction_ns == 0
    events = bench.client.call("status")["events"]
    assert [event["follows_hosts"] for event in events] == [False, True]
    assert {line["suspects"][0]["name"] for line in bench.lines} == {"n03"}


class Hosts:
    """Hosts that speak once a second by right clocks, beside some that have the engine's wall clock."""

    def __init__(self, count: int, jumping_count: int, invented_count: int = 0) -> None:
        self.clocks = Clocks()
        clocks = self.clocks
        self.right_ns = clocks.wall_ns
        self.time = EngineTime(lambda: clocks.wall_ns, lambda: clocks.steady_ns)
        self.times = HostTimes()
        self.count, self.jumping_count, self.invented_count = count, jumping_count, invented_count

    def run(self, seconds: int, wall_step_seconds: float = 0.0) -> list[int]:
        """What the looks said, where they said something, in seconds."""
        said = []
        for second in range(seconds):
            self.clocks.pass_seconds(1.0, 1.0 + (wall_step_seconds if second == 0 else 0.0))
            self.right_ns += NS_PER_SECOND
            change_ns = self.time.look(self.times)
            said += [round(change_ns / NS_PER_SECOND)] if change_ns else []
            for number in range(self.count):
                stamp_ns = self.clocks.wall_ns if number < self.jumping_count else self.right_ns
                is_on_time = abs(stamp_ns - self.time.now_ns()) < NS_PER_SECOND
                self.times.heard(f"n{number}", is_on_time=is_on_time)
            for number in range(self.invented_count if said else 0):
                self.times.heard(f"invented{number}", is_on_time=self.invented_on_time)
        return said

    invented_on_time = False


@pytest.mark.parametrize("step_seconds", [3600.0, -60.0])
def test_the_engines_own_machine_does_not_speak_for_its_clock_against_the_others(step_seconds: float) -> None:
    hosts = Hosts(9, jumping_count=1)
    hosts.run(10)
    assert hosts.run(60, step_seconds) == [step_seconds, -step_seconds]
    assert hosts.time.now_ns() == hosts.right_ns
    assert hosts.run(60, -step_seconds) == []  # somebody mends the clock
    assert hosts.time.correction_ns == 0


@pytest.mark.parametrize("jumping_count", [2, 3, 4])
def test_where_half_of_the_hosts_jump_along_the_wall_clock_is_believed(jumping_count: int) -> None:
    hosts = Hosts(4, jumping_count)
    hosts.run(10)
    assert hosts.run(60, 3600.0) == [3600]


@pytest.mark.parametrize("is_on_time", [True, False])
def test_invented_hosts_have_no_say(is_on_time: bool) -> None:
    hosts = Hosts(4, 4 if not is_on_time else 0, invented_count=50)
    hosts.invented_on_time = is_on_time
    hosts.run(10)
    assert hosts.run(60, 3600.0) == ([3600, -3600] if is_on_time else [3600])


def test_hosts_that_bring_what_they_held_back_are_followed_in_the_end() -> None:
    """A machine slept: the hosts have jumped with it, and at first all they send is old."""
    hosts = Hosts(4, jumping_count=0)
    hosts.run(10)
    assert hosts.run(20, 600.0) == [600, -600]
    hosts.jumping_count = 4
    assert hosts.run(60) == [600]
    assert hosts.time.correction_ns == 0


def test_what_was_open_is_closed_by_name_when_the_clock_jumps(bench: Bench) -> None:
    bench.run(20)
    bench.job.kill(3)
    bench.run(8)
    opened = {line["id"] for line in bench.lines}
    bench.run(1, 3600.0)
    closing = [line for line in bench.lines if line["reason"] == "clock_jumped"]

    assert opened
    assert {line["id"] for line in closing} == opened
    assert {line["state"] for line in closing} == {"expired"}


@pytest.mark.parametrize("slew_seconds", [0.0005, -0.0005, 0.009])
def test_a_slew_is_no_jump(bench: Bench, slew_seconds: float) -> None:
    clocks = Clocks()
    watch = ClockWatch(lambda: clocks.wall_ns, lambda: clocks.steady_ns)
    for _ in range(1000):
        clocks.pass_seconds(1.0, 1.0 + slew_seconds)
        assert watch.look() == 0
    clocks.pass_seconds(1.0, 1.4)  # a small step
    assert watch.look() == 0
    for _ in range(4):  # several that add up
        clocks.pass_seconds(1.0, 1.4)
        watch.look()
    assert watch.jump_count == 1


@pytest.mark.parametrize("step_seconds", [0.95, -0.95])
def test_small_steps_that_come_again_and_again_add_up(step_seconds: float) -> None:
    clocks = Clocks()
    watch = ClockWatch(lambda: clocks.wall_ns, lambda: clocks.steady_ns)
    jumps = []
    for second in range(1, 1000):
        clocks.pass_seconds(1.0, 1.0 + (step_seconds if second % 120 == 0 else 0.0))
        jumps.append(watch.look())

    assert [round(jump / NS_PER_SECOND, 1) for jump in jumps if jump] == [pytest.approx(2 * step_seconds, abs=0.1)] * 4


def test_a_step_there_and_back_is_no_jump() -> None:
    clocks = Clocks()
    watch = ClockWatch(lambda: clocks.wall_ns, lambda: clocks.steady_ns)
    for second in range(1, 400):
        moved = {0: 0.9, 20: -0.9}.get(second % 40, 0.0)
        clocks.pass_seconds(1.0, 1.0 + moved)
        assert watch.look() == 0


def test_the_newest_tick_s_age_is_told_and_an_old_one_is_ill(bench: Bench) -> None:
    bench.run(3)
    assert bench.client.call("health")["tick_age_seconds"] < 1
    bench.clocks.pass_seconds(11.0)
    answer = bench.client.call("health")

    assert answer["tick_age_seconds"] == 11.0
    assert answer["is_live"] is False
    assert bench.client.call("status")["tick_age_seconds"] == 11.0


def test_parts_that_raise_do_not_end_the_ticks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence, rows of health, the store's actions: the verdict's row is written all the same."""
    service = bench.service

    def fails(*_: object) -> None:
        raise ValueError("unforeseen")

    for name in ("_evidence", "_changes_of"):
        monkeypatch.setattr(service._output, name, fails)  # noqa: SLF001  # the service's parts fail one by one
    monkeypatch.setattr(service.memory.minutes, "finish", fails)
    bench.run(20)
    bench.job.kill(3)
    bench.run(8)
    service.writer.stop()

    assert [verdict.update for verdict in bench.store.verdicts] == list(range(len(bench.store.verdicts)))
    assert bench.store.verdicts
    assert service.failures["health"] == 28
    assert service.failures["evidence"] == service.failures["actions"] > 0


def test_dead_letters_of_a_failed_turn_are_written(bench: Bench, brittle: None, tmp_path: Path) -> None:
    bench.run(5)
    bench.service.engine.take(encode(poison(bench.job.job, bench.job.now_ns)))
    bench.run(3)
    bench.service.dead_letters.close()
    dead_letters = [json.loads(line) for line in (tmp_path / "dead-letters.jsonl").read_text().splitlines()]

    assert dead_letters
    assert {dead_letter["reason"] for dead_letter in dead_letters} == {"operator_failed"}
    assert "OverflowError" in dead_letters[0]["message"]
    assert (tmp_path / "dead-letters.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_thread_that_dies_is_told_with_what_ended_it() -> None:
    def dies() -> None:
        raise MemoryError

    lives, dead = SupervisedThread("idle", lambda: None), SupervisedThread("ticker", dies)
    assert describe_dead([lives, dead]) == ""
    dead.start()
    dead.join(60)

    assert describe_dead([lives, dead]) == "dead threads: ticker (MemoryError)"

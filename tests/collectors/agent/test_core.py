"""The agent's core on a fake clock: datagrams in, records out."""

import pytest

from tests.collectors.agent.core_bench import (
    JOB,
    T0,
    USER,
    Bench,
    S,
    events,
    names,
    of,
)
from tests.collectors.peer import datagram
from tocsin.collectors.agent.metric_slices import Surroundings
from tocsin.collectors.api import HostEvent, Reading
from tocsin.collectors.owners import LocalSender
from tocsin.schemas.records import (
    CollectiveBatch,
    Event,
    EventSource,
    Frame,
    Groups,
    HostStatus,
    JobKey,
    Severity,
    StepBatch,
    Topology,
)

# --- jobs ----------------------------------------------------------------------------------------


def test_a_host_without_a_job_reports_as_idle(bench: Bench) -> None:
    found = bench.runs(11)

    assert [event.job.job_id for event in events(found, "agent")] == ["idle"]
    assert [status.job.job_id for status in of(found, HostStatus)] == ["idle", "idle"]
    assert [status.ts_ns for status in of(found, HostStatus)] == [(T0 + 5) * S - 10**6, (T0 + 10) * S - 10**6]


@pytest.mark.parametrize(("minipod", "told"), [("pod3", {"boot_id": "a", "minipod": "pod3"}), ("", {"boot_id": "a"})])
def test_an_idle_host_tells_its_minipod_with_its_facts(minipod: str, told: dict[str, str]) -> None:
    bench = Bench(minipod=minipod)
    facts = HostEvent("host_facts", EventSource.KERNEL, Severity.INFO, {"boot_id": "a"})
    ecc = HostEvent("ecc", EventSource.KERNEL, Severity.INFO, {"kind": "corrected", "count": 1})
    bench.core.on_reading(bench.clock.read()[0].stamp_ns, Reading(events=(facts, ecc)), bench.clock.read()[0])
    found = bench.runs(1)

    assert [event.payload for event in events(found, "host_facts")] == [told]
    assert "minipod" not in events(found, "ecc")[0].payload


def test_the_first_hello_is_an_event_the_next_ones_are_not(bench: Bench) -> None:
    bench.hello()
    bench.runs(10)
    bench.hello()
    bench.runs(1)

    assert names(bench.records).count("hello") == 1
    assert bench.watcher.watched == {(JobKey(*JOB), 0): 77}


def test_the_pid_of_the_kernel_goes_before_the_hooks_own(bench: Bench) -> None:
    bench.hello(rank=0, pid=7)
    with bench.spoken_by(0):
        bench.hello(rank=1, pid=8)
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
    bench.watcher.gone.add(77)
    with bench.spoken_by(78):
        bench.hello(pid=9)
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


def test_a_slice_that_is_cut_late_has_nothing_of_a_job_that_began_after_it(bench: Bench) -> None:
    bench.runs(4)
    bench.fake.advance(1.3)  # the agent is behind: the slice up to second five is still to be cut

    def catch_up() -> None:
        bench.hello()
        bench.hook("beat", step=0, phase="communication", inflight=[["w", "all_reduce", 1, 64, bench.ts]])

    bench.core.on_time(bench.clock.read()[0], Surroundings, catch_up)
    own = [one for one in bench.take() if isinstance(one, Event | HostStatus | CollectiveBatch | Topology)]

    assert [(type(one), one.job.job_id) for one in own if one.ts_ns < (T0 + 5) * S] == [(HostStatus, "idle")]
    assert min(one.ts_ns for one in bench.runs(5) if isinstance(one, HostStatus)) == (T0 + 10) * S - 10**6


def test_a_job_is_forgotten_a_minute_after_all_ranks_ended(bench: Bench) -> None:
    bench.hello()
    bench.hook("bye")
    bench.hook("exit", pid=7, code=0)
    bench.runs(59)
    assert bench.core.jobs
    bench.runs(2)

    assert not bench.core.jobs
    assert [e.severity for e in events(bench.records, "exit") if "ended_ns" not in e.payload] == [Severity.INFO]


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


def test_a_model_is_an_event_after_a_change_and_every_five_minutes(bench: Bench) -> None:
    bench.hello()
    for tokens in (8.0, 8.0, 16.0):
        bench.hook("model", parameters=7e9, tokens_per_step=tokens, world_size=2, gpu_name="NVIDIA H100 NVL")
    found = events(bench.runs(301), "model")
    bench.hook("model", parameters=7e9, tokens_per_step=16.0, world_size=2, gpu_name="NVIDIA H100 NVL")
    found += events(bench.take(), "model")

    assert [one.payload["tokens_per_step"] for one in found] == [8.0, 16.0, 16.0]
    assert found[0].payload == {
        "parameters": 7e9,
        "tokens_per_step": 8.0,
        "world_size": 2,
        "gpu_name": "NVIDIA H100 NVL",
    }


def test_a_report_of_a_loader_is_an_event_at_once(bench: Bench) -> None:
    bench.hello()
    bench.hook("loader", step=3, source="web", fetch_seconds=0.5, rows=4, tokens=9, recovery_seconds=None)
    [found] = events(bench.take(), "loader")

    assert found.payload == {"step": 3, "source": "web", "fetch_seconds": 0.5, "rows": 4, "tokens": 9}
    assert found.source is EventSource.LOADER


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
        bench.core.on_datagram(b"nonsense", bench.sender, bench.clock.read()[0])
        bench.core.on_datagram(datagram("song"), bench.sender, bench.clock.read()[0])
    bench.hello()

    assert dict(bench.core.tally.dead_letters) == {"bad_field": 3, "undecodable": 3, "unknown_kind": 3}
    assert len(caplog.records) == 3
    assert names(bench.take()).count("hello") == 1


def test_containers_where_numbers_belong_are_dead_letters_and_the_core_lives(bench: Bench) -> None:
    bench.step(1, loss=[])
    bench.step(1, gn={})
    bench.hook("nan", step=1, what="loss", value={})
    bench.hello(job=("", "j", 0))
    bench.hello()

    assert dict(bench.core.tally.dead_letters) == {"bad_field": 4}
    assert names(bench.take()).count("hello") == 1


def test_a_broken_hook_cannot_fill_the_memory(bench: Bench) -> None:
    for number in range(100):
        with bench.spoken_by(1000 + number // 8):
            bench.hello(job=("c", f"j{number}", 0))
    bench.sender = LocalSender(1000, USER)
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

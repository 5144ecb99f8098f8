"""Who may speak for a job and a rank: any local user reaches the agent's socket."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.collectors.agent.core_bench import (
    JOB,
    USER,
    Bench,
    events,
    names,
    of,
)
from tocsin.collectors.clock import SystemClock
from tocsin.collectors.owners import (
    Life,
    LocalSender,
    holder_of,
    is_family,
    still_runs,
)
from tocsin.collectors.sources.process import ProcessWatcher
from tocsin.schemas.records import Event, JobKey, Topology

RANK, LAUNCHER, SHELL, CHILD, STRANGER = 77, 70, 60, 78, 99
OTHER_USER = 2000
LAST = 2**31 - 1


@pytest.fixture
def host(bench: Bench) -> Bench:
    """A rank that said hello, below its launcher, which is below a shell."""
    bench.watcher.parents = {RANK: LAUNCHER, LAUNCHER: SHELL, SHELL: 1, CHILD: RANK}
    bench.hello()
    bench.take()
    return bench


def refused(bench: Bench) -> dict[str, int]:
    return dict(bench.core.tally.dead_letters)


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("hello", {"pid": 5, "world_size": 8}),
    ("nan", {"step": 3, "what": "loss", "value": "nan"}),
    ("phase", {"phase": "checkpoint", "edge": "begin"}),
    ("bye", {}),
    ("exit", {"pid": 7, "code": 1, "signal": 0, "stderr_tail": "CUDA error: uncorrectable ECC error encountered"}),
    ("exit", {"pid": 0, "code": 1, "signal": 0}),
    ("step", {"step": 1, "dur": 9.0}),
    ("beat", {"step": 1, "phase": "", "step_ns": 0}),
    ("dump", {"path": "/etc/shadow", "why": "stuck"}),
    ("groups", {"groups": []}),
]


@pytest.mark.parametrize(("kind", "keys"), HOSTILE)
def test_another_process_does_not_speak_for_a_rank(host: Bench, kind: str, keys: dict[str, Any]) -> None:
    with host.spoken_by(STRANGER):
        host.hook(kind, **keys)

    assert host.take() == []
    assert host.core.dumps == []
    assert refused(host) == {"foreign_rank": 1}
    assert host.watcher.watched == {(JobKey(*JOB), 0): RANK}


@pytest.mark.parametrize(("kind", "keys"), HOSTILE)
@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("attempt", [0, 1, LAST])
def test_another_user_does_not_speak_for_a_job(
    host: Bench, kind: str, keys: dict[str, Any], rank: int, attempt: int
) -> None:
    """``hello`` with attempt 2^31-1 silenced a job on all hosts; rank 5 lived on another host."""
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hook(kind, rank, ("c", "j", attempt), **keys)

    assert host.take() == []
    assert refused(host) == {"foreign_job": 1}
    assert [state.job.attempt for state in host.core.jobs.values()] == [0]


def test_an_exit_of_a_launcher_without_a_rank_needs_the_jobs_user(host: Bench) -> None:
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hook("exit", -1, pid=0, code=1)
    assert host.take() == []
    with host.spoken_by(STRANGER):
        host.hook("exit", -1, pid=0, code=1)

    assert names(host.take()) == ["exit"]


@pytest.mark.parametrize("pid", [RANK, LAUNCHER, SHELL, CHILD])
def test_its_relatives_speak_for_a_rank(host: Bench, pid: int) -> None:
    with host.spoken_by(pid):
        host.hook("nan", step=3, what="loss", value="nan")
        host.hook("exit", pid=RANK, code=1)

    assert names(host.take()) == ["nan", "exit"]
    assert refused(host) == {}


def test_a_launcher_of_root_reports_its_childs_exit_and_may_be_gone_by_then(host: Bench) -> None:
    host.watcher.gone |= {RANK, LAUNCHER}
    with host.spoken_by(LAUNCHER, 0):
        host.hook("exit", pid=RANK, code=-9, signal=9)

    assert names(host.take()) == ["exit"]


def test_a_process_that_got_an_ancestors_id_later_is_a_stranger(host: Bench) -> None:
    host.watcher.starts[LAUNCHER] = 12345
    with host.spoken_by(LAUNCHER):
        host.hook("nan", step=3, what="loss", value="nan")

    assert refused(host) == {"foreign_rank": 1}


def test_a_child_of_a_process_that_got_the_ranks_id_later_is_a_stranger(host: Bench) -> None:
    host.watcher.starts[RANK] = 12345
    with host.spoken_by(CHILD):
        host.hook("nan", step=3, what="loss", value="nan")

    # nor is the rank's own process there any more: the next one of its user may be the rank
    assert names(host.take()) == ["nan"]
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hook("nan", step=3, what="loss", value="nan")
    assert refused(host) == {"foreign_job": 1}


def test_a_rank_whose_process_vanished_is_free_for_the_next_of_its_user(host: Bench) -> None:
    host.watcher.gone.add(RANK)
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hello(pid=1)
    assert host.take() == []
    with host.spoken_by(100):
        host.hello(pid=1)

    assert names(host.take()) == ["hello"]
    assert host.watcher.watched[JobKey(*JOB), 0] == 100


def test_the_end_of_an_earlier_process_is_no_news_of_the_next(host: Bench) -> None:
    host.watcher.gone.add(RANK)
    with host.spoken_by(100):
        host.step(1)

    assert not host.watcher.watched, "its hello begins the watch"


def test_a_recycled_id_is_another_process(host: Bench) -> None:
    host.watcher.starts[RANK] = 12345
    host.hello()

    state = host.core.jobs["c", "j"]
    assert state.ranks[0].holder is not None
    assert state.ranks[0].holder.sight.start_ticks == 12345


def test_a_rank_that_said_goodbye_is_free_while_its_process_goes_on(host: Bench) -> None:
    host.hook("bye")
    with host.spoken_by(100):
        host.hello(pid=1)

    assert names(host.take()) == ["bye", "hello"]


def test_a_process_that_died_before_it_was_heard_of_is_reported_by_its_user(bench: Bench) -> None:
    """A crash in the first moment: hello and exit wait together, the parents are not known any more."""
    bench.watcher.gone.add(RANK)
    bench.hello()
    with bench.spoken_by(STRANGER, OTHER_USER):
        bench.hook("exit", pid=7, code=1)
    with bench.spoken_by(LAUNCHER):
        bench.hook("exit", pid=7, code=1)

    assert names(bench.take())[-2:] == ["hello", "exit"]
    assert refused(bench) == {"foreign_job": 1}


def test_an_exit_of_a_child_that_never_spoke_needs_the_jobs_user(host: Bench) -> None:
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hook("exit", 1, pid=8, code=1)
    with host.spoken_by(STRANGER):
        host.hook("exit", 1, pid=8, code=1)

    assert [event.rank for event in events(host.take(), "exit")] == [1]
    assert refused(host) == {"foreign_job": 1}


def test_nobody_draws_anothers_exit_to_a_job_of_his_own(host: Bench) -> None:
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hello(rank=9, job=("c", "mine", 0), pid=4711)
    host.take()
    with host.spoken_by(LAUNCHER):
        host.hook("exit", 1, pid=4711, code=1)

    assert [(event.job.job_id, event.rank) for event in events(host.take(), "exit")] == [("j", 1)]


def test_a_job_name_is_free_for_others_once_its_processes_are_gone(host: Bench) -> None:
    host.hook("bye")
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hello(rank=2)
    assert refused(host) == {"foreign_job": 1}
    host.runs(61)
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hello(rank=2)

    assert [event.rank for event in events(host.take(), "hello")] == [2]
    assert host.core.jobs["c", "j"].sender == LocalSender(STRANGER, OTHER_USER)


# --- attempts ------------------------------------------------------------------------------------


def test_a_new_attempt_of_a_stranger_waits_until_the_present_one_is_gone_or_silent(host: Bench) -> None:
    host.beat(1)
    with host.spoken_by(STRANGER):
        host.hello(job=("c", "j", 1))
    assert refused(host) == {"attempt_runs": 1}
    host.runs(11)
    with host.spoken_by(STRANGER):
        host.hello(job=("c", "j", 1))

    assert [state.job.attempt for state in host.core.jobs.values()] == [1]


@pytest.mark.parametrize("pid", [RANK, LAUNCHER, CHILD])
def test_a_new_attempt_of_a_relative_begins_at_once(host: Bench, pid: int) -> None:
    with host.spoken_by(pid):
        host.hello(job=("c", "j", 1))

    assert [state.job.attempt for state in host.core.jobs.values()] == [1]


def test_a_new_attempt_begins_at_once_where_the_processes_are_gone(host: Bench) -> None:
    host.watcher.gone.add(RANK)
    with host.spoken_by(STRANGER):
        host.hello(job=("c", "j", 1))

    assert [state.job.attempt for state in host.core.jobs.values()] == [1]


def test_an_attempt_that_never_was_one_is_forgotten_and_the_job_goes_on(host: Bench) -> None:
    host.watcher.gone.add(STRANGER)
    host.runs(11)  # frozen: silent
    with host.spoken_by(STRANGER):
        host.hello(job=("c", "j", LAST))
    host.runs(11)
    host.hello()

    assert [state.job.attempt for state in host.core.jobs.values()] == [0]


# --- made-up jobs --------------------------------------------------------------------------------


def make_up(bench: Bench, count: int, uid: int, first_pid: int = 1000, a_process: int = 1) -> None:
    for number in range(count):
        with bench.spoken_by(first_pid + number // a_process, uid):
            bench.hello(job=("c", f"made-up-{uid}-{first_pid + number}", 0))


def serves(bench: Bench, job: str, uid: int = USER, pid: int = 50) -> bool:
    with bench.spoken_by(pid, uid):
        bench.hello(job=("c", job, 0))
    return ("c", job) in bench.core.jobs


@pytest.mark.parametrize("uid", [USER, OTHER_USER])
def test_jobs_made_up_by_one_process_hide_none(bench: Bench, uid: int) -> None:
    make_up(bench, 640, uid, a_process=640)

    assert refused(bench)["too_many_jobs"] == 632
    assert serves(bench, "real")


@pytest.mark.parametrize("uid", [USER, OTHER_USER])
def test_jobs_made_up_by_processes_that_are_gone_hide_none(bench: Bench, uid: int) -> None:
    make_up(bench, 64, uid)
    bench.watcher.gone |= set(range(1000, 1064))
    bench.watcher.gone -= {50}
    for state in bench.core.jobs.values():
        for rank in state.ranks.values():
            rank.end("gone", bench.clock.read()[0])  # as the watcher says after a second

    assert serves(bench, "real")
    bench.runs(11)
    assert [name for _, name in bench.core.jobs] == ["real"]


def test_jobs_of_processes_that_were_gone_at_their_hello_are_forgotten(bench: Bench) -> None:
    bench.watcher.gone |= set(range(1000, 1064))
    make_up(bench, 64, OTHER_USER)
    assert serves(bench, "real")
    bench.runs(11)

    assert [name for _, name in bench.core.jobs] == ["real"]


def test_one_user_cannot_fill_the_table(bench: Bench) -> None:
    make_up(bench, 64, OTHER_USER)
    for number in range(30):
        assert serves(bench, f"real{number}", pid=50 + number)
    make_up(bench, 64, OTHER_USER, first_pid=5000)

    assert all(("c", f"real{number}") in bench.core.jobs for number in range(30))
    assert len(bench.core.jobs) == 64


def test_a_users_own_made_up_jobs_make_room_when_they_are_silent(bench: Bench) -> None:
    make_up(bench, 64, USER)
    assert not serves(bench, "real")
    bench.runs(16)

    assert serves(bench, "real")


def test_an_exit_without_a_rank_keeps_no_job(bench: Bench) -> None:
    bench.hook("exit", -1, ("c", "made-up", 0), pid=0, code=1)
    bench.runs(61)

    assert bench.core.jobs == {}


def test_ranks_of_a_user_are_bounded(bench: Bench) -> None:
    for job in range(8):
        for rank in range(100):
            with bench.spoken_by(100 + rank):
                bench.hello(rank, ("c", f"j{job}", 0))

    assert sum(len(state.ranks) for state in bench.core.jobs.values()) == 512
    with bench.spoken_by(99, OTHER_USER):
        bench.hello(0, ("c", "other", 0))
    assert bench.core.jobs["c", "other"].ranks


def test_a_flood_of_one_refusal_hides_no_other_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        bench.step(number, dur=f"x{number}")
    bench.hello()
    with bench.spoken_by(STRANGER):
        for _ in range(100):
            bench.hook("bye")

    said = [record.error for record in caplog.records if record.message == "dead letter"]  # type: ignore[attr-defined]
    assert len(said) == 33
    assert said[-1] == "rank 0 of job j is process 77 of user 1000: another process may not speak for it"


# --- processes that cannot be seen ---------------------------------------------------------------


def test_processes_of_another_pid_namespace_are_bound_to_their_user(bench: Bench) -> None:
    with bench.spoken_by(0):
        bench.hello(pid=8)
        bench.hook("nan", step=3, what="loss", value="nan")
    for pid, uid in ((0, OTHER_USER), (STRANGER, USER), (STRANGER, OTHER_USER)):
        with bench.spoken_by(pid, uid):
            bench.hook("phase", phase="checkpoint", edge="begin")
    with bench.spoken_by(0):
        bench.hook("exit", pid=8, code=1)

    assert names(bench.take())[-3:] == ["hello", "nan", "exit"]
    assert refused(bench) == {"foreign_job": 2, "foreign_rank": 1}
    assert not bench.watcher.watched, "their number means another process here, or none"


def test_a_job_of_unseen_processes_is_given_up_after_a_minute_of_silence_only_where_another_wants_its_name(
    bench: Bench,
) -> None:
    with bench.spoken_by(0):
        bench.hello()
    bench.runs(50)
    with bench.spoken_by(STRANGER, OTHER_USER):
        bench.hello()
    assert refused(bench) == {"foreign_job": 1}
    bench.runs(300)
    assert bench.core.jobs["c", "j"].sender.uid == USER
    with bench.spoken_by(STRANGER, OTHER_USER):
        bench.hello()

    assert bench.core.jobs["c", "j"].sender.uid == OTHER_USER


def test_hidden_processes_of_a_users_own_proc_are_told_apart_by_their_id(bench: Bench) -> None:
    bench.watcher.hidden |= {RANK, STRANGER, LAUNCHER}
    bench.hello()
    with bench.spoken_by(STRANGER):
        bench.hook("nan", step=3, what="loss", value="nan")
    with bench.spoken_by(LAUNCHER):
        bench.hook("exit", pid=RANK, code=1)

    assert refused(bench) == {"foreign_rank": 1}
    assert names(bench.take())[-1] == "exit"


# --- real processes ------------------------------------------------------------------------------


def test_real_processes_are_told_apart() -> None:
    processes = ProcessWatcher(SystemClock())
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    stranger = subprocess.Popen(["sleep", "60"])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    uid = os.getuid()
    try:
        holder = holder_of(LocalSender(child, uid), processes)
        assert [is_family(holder, LocalSender(pid, uid), processes) for pid in (child, parent.pid, os.getpid())] == [
            True
        ] * 3
        assert not is_family(holder, LocalSender(stranger.pid, uid), processes)
        above = holder_of(LocalSender(parent.pid, uid), processes)
        assert is_family(above, LocalSender(child, uid), processes)
        assert still_runs(holder, processes)
    finally:
        os.kill(child, 9)
        parent.kill()
        stranger.kill()
        parent.wait()
        stranger.wait()
        parent.stdout.close()

    assert not still_runs(above, processes)
    assert processes.look(stranger.pid).life is Life.GONE
    assert processes.look(0).life is Life.HIDDEN


# --- what ended ----------------------------------------------------------------------------------


def repeated(bench: Bench, name: str = "exit") -> list[Event]:
    return [event for event in events(bench.take() or bench.records, name) if "ended_ns" in event.payload]


def test_what_ended_is_said_again_as_long_as_the_job_lives(host: Bench) -> None:
    with host.spoken_by(100):
        host.hello(rank=1, pid=2)
    ended_ns = host.ts
    host.hook("exit", pid=7, code=1, stderr_tail="boom")
    host.take()
    found = host.runs(95)
    again = events(found, "exit")

    assert [event.rank for event in again] == [0, 0, 0]
    first = events(host.records, "exit")[0]
    assert {**first.payload, "ended_ns": ended_ns} == again[0].payload
    assert all(event.ts_ns - ended_ns >= 29 * 10**9 for event in again)
    assert "ended_ns" not in first.payload


def test_a_bad_end_is_said_for_an_hour_and_a_good_one_while_the_job_is_here(host: Bench) -> None:
    with host.spoken_by(100):
        host.hello(rank=1, pid=2)
        host.hook("bye", 1)
    host.hook("exit", pid=7, code=1)
    host.take()
    first = host.runs(120)
    rest = host.runs(3700, tick=5)

    assert {event.rank for event in events(first, "bye")} == {1}
    assert not events(rest, "bye")
    assert not host.core.jobs
    assert 110 < len(events(first, "exit")) + len(events(rest, "exit")) < 120
    assert not of(rest, Topology)
    assert len(host.core.endings) == 0


def test_a_goodbye_becomes_an_exit(host: Bench) -> None:
    host.hook("bye")
    host.hook("exit", pid=7, code=0)
    host.take()

    assert names(host.runs(31)).count("exit") == 1
    assert names(host.records).count("bye") == 1


def test_a_new_process_or_attempt_ends_it_and_another_users_does_not(host: Bench) -> None:
    host.hook("exit", pid=7, code=1)
    host.runs(70)
    assert not host.core.jobs
    with host.spoken_by(STRANGER, OTHER_USER):
        host.hello(job=("c", "j", 5))
    assert events(host.runs(31), "exit")
    host.watcher.gone.add(STRANGER)
    host.core.table.forget(("c", "j"))
    with host.spoken_by(100):
        host.hello(job=("c", "j", 1))

    assert not events(host.runs(61), "exit")


def test_a_restarted_rank_is_not_said_to_have_ended(host: Bench) -> None:
    host.hook("exit", pid=7, code=1)
    with host.spoken_by(100):
        host.hello()
    host.take()

    assert not events(host.runs(61), "exit")


def test_a_launchers_exit_without_a_rank_is_said_once(host: Bench) -> None:
    host.hook("exit", -1, pid=0, code=1)
    host.take()

    assert not events(host.runs(61), "exit")


def test_endings_are_bounded_and_the_user_with_the_most_loses_them(host: Bench) -> None:
    host.hook("exit", pid=7, code=1)
    for number in range(1100):
        with host.spoken_by(1000 + number, OTHER_USER):
            host.hook("exit", number % 200, ("c", f"x{number // 200}", 0), pid=0, code=1)
    host.take()

    assert len(host.core.endings) <= 1024
    assert any(event.job.job_id == "j" for event in events(host.runs(31), "exit"))

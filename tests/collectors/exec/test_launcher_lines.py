"""``tocsin exec -- torchrun``: the launcher is no rank, and its workers' ends are told as it tells them."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.collectors.agent.core_bench import (
    T0,
    Bench,
    S,
    events,
    names,
)
from tests.collectors.agent.test_agent import ROOT
from tests.collectors.peer import EnginePeer, wait_until
from tocsin.collectors.exec.launcher_lines import WorkerEnds
from tocsin.schemas.records import Event

SHELL, EXEC, TORCHRUN, FIRST = 50, 60, 70, 100
OWN = ("default", "me-train-local", 0)
FILE = "1125 04:50:06.264000 627 torch/distributed/elastic/multiprocessing/api.py:1028]"
ASKED = f"W{FILE} Sending process {{}} closing signal SIGTERM\n"
FAILED = f"E{FILE} failed (exitcode: {{}}) local_rank: 2 (pid: {{}}) of binary: /usr/bin/python\n"
LISTED = "  exitcode  : {} (pid: {})\n"


@pytest.fixture
def host() -> Bench:
    """Four ranks below a launcher, below ``tocsin exec``, below a shell."""
    bench = Bench()
    bench.watcher.parents = {EXEC: SHELL, TORCHRUN: EXEC, **dict.fromkeys(range(FIRST, FIRST + 4), TORCHRUN)}
    for rank in range(4):
        with bench.spoken_by(FIRST + rank):
            bench.hello(rank, pid=FIRST + rank)
    bench.take()
    return bench


@pytest.mark.parametrize("job", [OWN, ("c", "j", 0)], ids=["no-name", "the-jobs-name"])
def test_a_launchers_exit_is_no_ranks_and_makes_no_job(host: Bench, job: tuple[str, str, int]) -> None:
    host.watcher.gone |= {TORCHRUN}
    with host.spoken_by(EXEC):
        host.hook("exit", 0, job, pid=TORCHRUN, code=1, of="command")

    assert host.take() == []
    assert list(host.core.jobs) == [("c", "j")]
    assert host.core.tally.dead_letters == {}
    assert host.core.tally.datagrams["LauncherExit"] == 1


def test_a_launcher_in_a_container_is_known_by_its_supervisor(host: Bench) -> None:
    with host.spoken_by(EXEC):
        host.hook("exit", 0, OWN, pid=12, code=1, of="command")

    assert host.take() == []


def test_a_wrapped_rank_is_heard_whatever_stands_between(host: Bench) -> None:
    """``tocsin exec -- sh -c "python train.py"``: one descendant, which is the rank that the environment names."""
    bench = Bench()
    bench.watcher.parents = {FIRST: TORCHRUN, TORCHRUN: EXEC}
    with bench.spoken_by(FIRST):
        bench.hello(0, pid=FIRST)
    with bench.spoken_by(EXEC):
        bench.hook("exit", 0, pid=TORCHRUN, code=1, of="command")

    assert [event.rank for event in events(bench.take(), "exit")] == [0]


def test_a_supervisor_of_many_ranks_tells_of_one_that_never_spoke(host: Bench) -> None:
    with host.spoken_by(TORCHRUN):
        host.hook("exit", 5, pid=FIRST + 5, code=1)

    assert [(event.job.job_id, event.rank) for event in events(host.take(), "exit")] == [("j", 5)]


def test_a_workers_exit_is_its_ranks_and_that_of_an_unknown_process_nobodys(host: Bench) -> None:
    with host.spoken_by(EXEC):
        host.hook("exit", -1, OWN, pid=FIRST + 2, code=137, signal=9, of="worker")
        host.hook("exit", -1, OWN, pid=4711, code=1, of="worker")
    with host.spoken_by(99, 4):
        host.hook("exit", -1, OWN, pid=FIRST + 1, code=137, signal=9, of="worker")

    found = events(host.take(), "exit")
    assert [(event.job.job_id, event.rank, event.payload["signal"]) for event in found] == [("j", 2, 9)]
    assert list(host.core.jobs) == [("c", "j")]


@pytest.mark.parametrize(("runs", "expected"), [(False, [2]), (True, [])])
def test_a_workers_exit_is_that_of_the_one_rank_below_it(host: Bench, runs: bool, expected: list[int]) -> None:
    """``torchrun --no-python bash run.sh``; what the shell's end says of a rank that still runs is nothing."""
    bench = Bench()
    bench.watcher.parents = {FIRST + 2: SHELL, SHELL: TORCHRUN, TORCHRUN: EXEC}
    with bench.spoken_by(FIRST + 2):
        bench.hello(2, pid=FIRST + 2)
    bench.watcher.gone |= {SHELL} if runs else {SHELL, FIRST + 2}
    with bench.spoken_by(EXEC):
        bench.hook("exit", -1, OWN, pid=SHELL, code=137, of="worker")

    assert [event.rank for event in events(bench.take(), "exit")] == expected


def ends(text: str, alive: set[int] | None = None, cut: int = 10_000) -> list[tuple[int, int, int]]:
    """What is told of a stream that comes in pieces; each look at the clock is a second later."""
    reported: list[tuple[int, int, int]] = []
    clock = iter(range(T0, T0 + 100))
    reader = WorkerEnds(
        lambda *end: reported.append(end), lambda pid: pid not in (alive or set()), lambda: next(clock) * S
    )
    data = text.encode()
    for start in range(0, len(data), cut):
        reader.feed(data[start : start + cut])
    reader.close()
    return [(pid, code, ts_ns // S - T0) for pid, code, ts_ns in reported]


@pytest.mark.parametrize("cut", [10_000, 7, 100])
def test_who_failed_is_told_first_and_who_was_asked_to_end_as_ended_so(cut: int) -> None:
    text = "step 3\n" + ASKED.format(11) + ASKED.format(13) + FAILED.format(-9, 12)
    listed = "".join(LISTED.format(code, pid) for code, pid in ((-15, 11), (1, 13), (-9, 12)))

    reported = ends(text + "Traceback\n" + listed, cut=cut)

    assert [(pid, code) for pid, code, _ in reported] == [(12, -9), (11, -15), (13, -15)]
    assert reported[0][2] < reported[1][2]


def test_of_two_that_failed_in_one_look_both_ended_before_the_others_were_asked() -> None:
    """torchrun names the one with the lower rank; the other is only in the list at the end."""
    reported = ends(ASKED.format(13) + FAILED.format(1, 11) + LISTED.format(-15, 13) + LISTED.format(-9, 12))

    assert reported == [(11, 1, 0), (13, -15, 1), (12, -9, 0)]


def test_after_a_restart_of_the_workers_it_begins_anew() -> None:
    reported = ends(ASKED.format(11) + FAILED.format(-9, 12) + ASKED.format(21) + FAILED.format(-6, 22))

    assert [(pid, code) for pid, code, _ in reported] == [(12, -9), (11, -15), (22, -6), (21, -15)]
    assert reported[2][2] > reported[1][2]


def test_a_launcher_that_is_told_to_end_ends_them_all_and_nobody_failed() -> None:
    assert [end[:2] for end in ends(ASKED.format(11) + ASKED.format(12))] == [(11, -15), (12, -15)]


def test_nothing_is_told_of_a_process_that_runs() -> None:
    assert ends(ASKED.format(11) + FAILED.format(-9, 12), alive={11, 12}) == []


def test_other_lines_tell_nothing() -> None:
    text = "exitcode: 3\nloss failed (exitcode: x) local_rank: 2 (pid: 3) of binary\n" + "x" * 5000 + "\n"

    assert ends(text) == []


TRAIN = """
    import os, signal, time, torch
    import torch.distributed as dist
    from tocsin.collectors import hook
    dist.init_process_group("gloo")
    hook.attach()
    for step in range(600):
        with hook.step():
            dist.all_reduce(torch.ones(4))
            time.sleep(0.05)
        if step == 20 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_rank_of_a_real_torchrun_is_the_one_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    peer = EnginePeer(tmp_path / "engine")
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TOCSIN_AGENT_SOCKET": f"{tmp_path}/a",
        "OMP_NUM_THREADS": "1",
    }
    tocsin = [sys.executable, "-m", "tocsin"]
    flags = [
        "--host=h",
        f"--engine=unix:{peer.path}",
        "--spool-dir=",
        "--metrics-listen=",
        "--nvml=off",
        "--kmsg-path=",
    ]
    agent = subprocess.Popen([*tocsin, "agent", *flags], env=env)
    try:
        wait_until((tmp_path / "a").exists)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
        done = subprocess.run(
            [*tocsin, "exec", "--", *torchrun, f"{tmp_path}/train.py"],
            env=env,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, done.stderr.decode()
        wait_until(lambda: len({e.rank for e in ended(peer)}) == 4)
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
        peer.close()

    assert {event.job.job_id for event in ended(peer)} == {next(iter(e.job.job_id for e in peer.events("hello")))}
    dead = {event.rank: event for event in ended(peer) if event.name == "exit"}
    assert dead[2].payload["signal"] == signal.SIGKILL
    for rank in (0, 1, 3):  # asked to end, or told itself that it lost its peers
        assert dead[rank].payload["signal"] == signal.SIGTERM or "Connection" in dead[rank].payload["stderr_tail"]
    assert names(peer.of(Event)).count("process_gone") == 0


def ended(peer: EnginePeer) -> list[Event]:
    return [*peer.events("exit"), *peer.events("process_gone")]

"""The watcher, on a made-up /proc with a fake clock, and on a real child."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tocsin.collectors.api import HostEvent
from tocsin.collectors.clock import FakeClock, SystemClock
from tocsin.collectors.sources.process import ProcessWatcher
from tocsin.collectors.sources.procfs import Roots
from tocsin.schemas.records import JobKey

JOB = JobKey("c", "j", 0)
PID = 4711


class FakeProcess:
    """One process in a made-up /proc; its watcher is asked every 0.25 s."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.folder = folder / str(PID)
        self.folder.mkdir()
        self.is_("S")
        self.watcher = ProcessWatcher(self.clock, Roots(str(folder)))
        self.watcher.watch(JOB, 3, PID)

    def is_(self, state: str, start_ticks: int = 99) -> None:
        text = f"{PID} (python) {state} " + "1 " * 18 + f"{start_ticks} 1 1"
        (self.folder / "stat").write_text(text)

    def leaves(self) -> None:
        (self.folder / "stat").unlink()

    def lives(self, seconds: float, states: str = "") -> list[HostEvent]:
        """Let time pass, through ``states`` in turn where given; return what was seen."""
        seen: list[HostEvent] = []
        for index in range(round(seconds / 0.25)):
            if states:
                self.is_(states[index % len(states)])
            self.clock.advance(0.25)
            seen += self.watcher.collect(self.clock.wall_ns()).events
        return seen


@pytest.fixture
def process(tmp_path: Path) -> FakeProcess:
    return FakeProcess(tmp_path)


def test_a_running_process_is_no_news(process: FakeProcess) -> None:
    assert process.lives(5, "SRSD") == []


def test_a_stop_begins_after_half_a_second_and_ends_with_its_length(process: FakeProcess) -> None:
    process.lives(1)
    process.is_("T")
    begin = process.lives(4)
    process.is_("R")
    end = process.lives(2)

    assert [(seen.name, seen.payload["edge"], seen.rank, seen.job) for seen in begin + end] == [
        ("stopped", "begin", 3, JOB),
        ("stopped", "end", 3, JOB),
    ]
    assert begin[0].payload["pid"] == PID
    assert end[0].payload["seconds"] == pytest.approx(4.0, abs=0.3)


def test_a_stop_of_a_quarter_second_is_no_news(process: FakeProcess) -> None:
    process.lives(1)
    process.is_("t")
    process.lives(0.25)
    process.is_("R")

    assert process.lives(3) == []


def test_a_duty_cycle_is_a_stop_with_its_share_and_at_most_a_pair_a_second(process: FakeProcess) -> None:
    seen = process.lives(10, "TR") + process.lives(3, "R")

    begins = [found for found in seen if found.payload["edge"] == "begin"]
    assert begins
    assert begins[0].payload["stopped_ratio"] == pytest.approx(0.5, abs=0.2)
    assert len(begins) <= 10
    assert [found.payload["edge"] for found in seen] == ["begin", "end"] * len(begins)


def test_gone_without_an_exit_is_said_once_after_a_second(process: FakeProcess) -> None:
    process.leaves()

    assert process.lives(0.75) == []
    assert [(seen.name, seen.payload) for seen in process.lives(3)] == [("process_gone", {"pid": PID})]


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_corpse_that_nobody_waits_for_is_gone(process: FakeProcess, state: str) -> None:
    process.is_(state)

    assert [seen.name for seen in process.lives(3)] == ["process_gone"]


def test_an_exit_in_time_settles_it(process: FakeProcess) -> None:
    process.leaves()
    process.lives(0.5)
    process.watcher.settle(JOB, 3)

    assert process.lives(3) == []


def test_a_new_process_with_the_old_pid_is_not_the_rank(process: FakeProcess) -> None:
    process.is_("T", start_ticks=12345)

    assert [seen.name for seen in process.lives(3)] == ["process_gone"]


def test_hearing_of_it_again_changes_nothing(process: FakeProcess) -> None:
    process.is_("T")
    begin = process.lives(1)
    process.watcher.watch(JOB, 3, PID)

    assert [seen.payload["edge"] for seen in begin] == ["begin"]
    assert process.lives(3) == []


def test_a_pid_that_is_not_visible_is_not_watched(process: FakeProcess) -> None:
    process.watcher.watch(JOB, 9, 123456)

    assert process.lives(3) == []
    assert process.watcher.state(JOB, 9) == ""


def test_a_real_child_is_stopped_continued_and_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watcher = ProcessWatcher(SystemClock())
    watcher.watch(JOB, 0, child.pid)

    def until_seen(seconds: float = 60.0) -> HostEvent:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            events = watcher.collect(time.time_ns()).events
            if events:
                return events[0]
            time.sleep(0.05)
        raise AssertionError("nothing seen")

    try:
        os.kill(child.pid, signal.SIGSTOP)
        assert until_seen().payload["edge"] == "begin"
        os.kill(child.pid, signal.SIGCONT)
        end = until_seen()
        assert (end.name, end.payload["edge"]) == ("stopped", "end")
        assert watcher.state(JOB, 0) in {"S", "R", "D"}  # D: it still reads its modules from a busy disk
    finally:
        child.kill()
    assert until_seen().name == "process_gone"
    child.wait()

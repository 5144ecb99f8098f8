"""A program that checks machines for an action: it outlives who started it, and its answer is read by a successor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.actions.executors.made import made_action
from tests.pipeline.waiting import until
from tocsin.pipeline.actions.executors.check_runs import CheckRun, ProgramRuns
from tocsin.schemas.errors import TargetAwayError
from tocsin.schemas.verdicts import ActionKind

ACTION = made_action(ActionKind.PROBE, "n1", "n2")
WAITING = """
import json, os, sys, time
hosts = open(sys.argv[sys.argv.index("--group") + 1]).read().split()
until = time.monotonic() + 60  # not for ever, where a test breaks off
while not os.path.exists(sys.argv[1]) and time.monotonic() < until:
    time.sleep(0.01)
print(json.dumps({"hosts": [{"version": 1, "host": host, "seconds": 1.0, "checks": []} for host in hosts]}))
"""
BROKEN = "import sys; print('{}'); sys.exit('srun: error: nodes are down')"


def _runs(folder: Path, script: str, *words: str) -> ProgramRuns:
    return ProgramRuns(folder / "checks", [sys.executable, "-c", script, *words])


def _ended(runs: ProgramRuns) -> CheckRun:
    until(lambda: (run := runs.read(ACTION.action_id)) is not None and not run.is_running)
    run = runs.read(ACTION.action_id)
    assert run is not None
    return run


def test_a_successor_finds_checks_that_run_and_reads_their_answer(tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = _runs(tmp_path, WAITING, str(go))
    assert first.read(ACTION.action_id) is None
    first.begin(ACTION, ["a", "b"])
    second = _runs(tmp_path, WAITING, str(go))
    assert second.read(ACTION.action_id) == CheckRun(is_running=True)
    second.begin(ACTION, ["c"])  # they run already
    go.touch()
    run = _ended(second)
    assert [one.host for one in run.answers] == ["a", "b"]
    assert (run.trouble, abs(run.ended_ns - time.time_ns()) < 60 * 10**9) == ("", True)
    second.begin(ACTION, ["c"])  # they ended already
    assert second.read(ACTION.action_id) == run


def test_a_program_without_an_answer_says_why(tmp_path: Path) -> None:
    runs = _runs(tmp_path, BROKEN)
    runs.begin(ACTION, ["a"])
    run = _ended(runs)
    assert (run.answers, run.trouble) == ((), "srun: error: nodes are down")


def test_what_cannot_be_started_is_an_error_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "checks").write_text("a file")
    with pytest.raises(TargetAwayError):
        _runs(tmp_path, WAITING).begin(ACTION, ["a"])


def test_runs_of_long_ago_are_forgotten(tmp_path: Path) -> None:
    old, new = tmp_path / "checks" / "old", tmp_path / "checks" / "new"
    for place in (old, new):
        place.mkdir(parents=True)
    os.utime(old, (0, 0))
    runs = _runs(tmp_path, BROKEN)
    runs.begin(ACTION, ["a"])
    _ended(runs)
    assert (old.exists(), new.exists()) == (False, True)

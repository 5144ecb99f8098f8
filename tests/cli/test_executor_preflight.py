"""``tocsin executor preflight`` starts the command that checks a group, and reads what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.cli.test_preflight_group import DISK_ONLY
from tests.pipeline.actions.executors.made import made_action
from tests.pipeline.waiting import until
from tocsin.cli import executor
from tocsin.cli.executor_preflight import check_command
from tocsin.pipeline.actions.executors.check_runs import ProgramRuns
from tocsin.schemas.preflight import CheckName, CheckOutcome
from tocsin.schemas.verdicts import ActionKind


def _args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    executor.add_arguments(parser)
    return parser.parse_args(["preflight", *words])


@pytest.mark.slow
def test_one_machine_is_checked_by_the_command_that_the_flags_give(tmp_path: Path) -> None:
    without = DISK_ONLY[: DISK_ONLY.index("--each")]
    args = _args("--via", "here", "--each", "1s", "--folder", str(tmp_path), *without)
    runs, action = ProgramRuns(tmp_path / "checks", check_command(args)), made_action(ActionKind.PROBE, "n1")
    runs.begin(action, ["n1"])
    until(lambda: (run := runs.read(action.action_id)) is not None and not run.is_running)
    run = runs.read(action.action_id)
    assert run is not None
    assert run.trouble == ""
    (answer,) = run.answers
    written = [one for one in answer.checks if one.name is CheckName.DISK_WRITE_BANDWIDTH]
    assert (answer.host, [one.outcome is CheckOutcome.SKIPPED for one in written]) == ("n1", [False])
    assert answer.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def test_kubernetes_is_given_what_its_jobs_need() -> None:
    command = check_command(_args("--via", "kubectl", "--image", "tocsin:1", "--namespace", "ops", "--gpus", "8"))
    words = " ".join(command)
    assert "--via kubectl" in words
    assert "--image tocsin:1 --namespace ops --gpus 8" in words
    assert "--image" not in check_command(_args())

"""What ``tocsin flink status`` says of a job that runs and yet does not go on."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.cli.flink_status import warnings_of


def job(**changes: Any) -> dict[str, Any]:
    done = {"last_path": "file:/chk-7", "last_age_seconds": changes.pop("checkpoint_age_seconds", 4.0)}
    known = {"is_running": True, "age_seconds": 600.0, "behind_seconds": 2.5, "options": {"checkpoint_seconds": 5.0}}
    return {**known, "checkpoints": done, **changes}


def test_a_job_that_is_well_has_no_warning() -> None:
    assert warnings_of(job()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checkpoint_age_seconds": 170.0}, "no checkpoint for 170 s, one is due each 5 s"),
        ({"checkpoints": {"last_path": "", "last_age_seconds": 0.0}}, "no checkpoint for 600 s"),
        ({"behind_seconds": 171.0}, "event time is 171 s behind"),
    ],
)
def test_what_stands_is_said(changes: dict[str, Any], said: str) -> None:
    [warning] = warnings_of(job(**changes))

    assert warning.startswith(said)


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint_age_seconds": 28.0},
        {"checkpoint_age_seconds": 100.0, "options": {"checkpoint_seconds": 60.0}},
        {"behind_seconds": None},
        {"is_running": False, "behind_seconds": 900.0},
    ],
    ids=["a_restart", "long_intervals", "no_event_time_yet", "it_is_over"],
)
def test_what_may_be_is_not(changes: dict[str, Any]) -> None:
    assert warnings_of(job(**changes)) == []

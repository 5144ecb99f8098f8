"""Programs run without a shell, within their time, and their failures are told in their own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.pipeline.actions.executors.commands import Programs
from tocsin.schemas.errors import TargetAwayError


def test_output_status_and_environment(tmp_path: Path) -> None:
    script = tmp_path / "say"
    script.write_text('#!/bin/sh\necho "$WORD $1"\necho "no\n  good" >&2\nexit 3\n')
    script.chmod(0o755)
    answer = Programs(10, {"WORD": "hello"}, str(tmp_path)).run(["say", "$HOME; ls"])
    assert (answer.status, answer.output, answer.is_success) == (3, "hello $HOME; ls\n", False)
    assert answer.complaint == "no good"


def test_a_program_that_does_not_end_is_killed_and_named() -> None:
    with pytest.raises(TargetAwayError, match=r"sleep did not end within 0\.1 s"):
        Programs(0.1).run(["sleep", "30"])


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetAwayError, match="scontrol cannot be started: No such file"):
        Programs(1, folder=str(tmp_path)).run(["scontrol"])

"""The vendor's tools as programs on the PATH."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.collectors.preflight.vendor import dcgm_check, smi_check

SOUND = "<nvidia_smi_log><gpu id='0'><gpu_recovery_action>None</gpu_recovery_action></gpu></nvidia_smi_log>"
Tool = Callable[[str, str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return make


def test_a_tool_that_is_not_there_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert [str(check.reason) for check in (smi_check(1), dcgm_check(1))] == ["not_installed"] * 2


def test_a_sound_report_passes_and_a_fault_fails(tool: Tool) -> None:
    tool("nvidia-smi", f'echo "{SOUND}"')
    assert (str(smi_check(5).reason), smi_check(5).detail) == ("healthy", "1 GPUs")

    tool("nvidia-smi", f'echo "{SOUND}" | sed s/None/Reset/')
    assert (str(smi_check(5).reason), smi_check(5).detail) == ("tool_found_fault", "0: the driver asks for Reset")


def test_dcgm_that_fails_a_test_fails_whatever_its_status(tool: Tool) -> None:
    tool("dcgmi", """echo '{"tests": [{"name": "Memory", "results": [{"gpu_id": 0, "status": "Fail"}]}]}'; exit 226""")
    assert (str(dcgm_check(5).reason), dcgm_check(5).detail) == ("tool_found_fault", "Memory (GPU 0): Fail")


def test_a_tool_that_cannot_speak_to_its_service_says_nothing_about_the_host(tool: Tool) -> None:
    tool("dcgmi", "echo 'Error: unable to establish a connection' >&2; exit 1")
    assert str(dcgm_check(5).reason) == "unreadable"
    assert dcgm_check(5).detail == "exit status 1: Error: unable to establish a connection"


def test_a_tool_that_hangs_fails(tool: Tool) -> None:
    tool("nvidia-smi", "exec sleep 60")
    assert str(smi_check(0.2).reason) == "timed_out"

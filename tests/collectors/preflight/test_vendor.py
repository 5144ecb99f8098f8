"""The vendor's tools as programs on the PATH."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.collectors.preflight.vendor import dcgm_check, smi_check
from tocsin.schemas.preflight import CheckOutcome, CheckReason

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


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("echo 'No devices were found'; exit 6", "exit status 6: No devices were found"),
        ("echo '<nvidia_smi_log></nvidia_smi_log>'", "exit status 0: 0 devices"),
        (f'echo "{SOUND}"; exit 14', "exit status 14: 1 devices"),
        (f'echo "{SOUND}"; echo "Unable to determine the device handle" >&2; exit 15', "exit status 15: Unable"),
    ],
)
def test_an_installed_tool_that_ends_with_an_error_or_finds_no_device_fails(
    tool: Tool, script: str, detail: str
) -> None:
    tool("nvidia-smi", script)
    check = smi_check(30)
    assert (check.outcome, check.reason) == (CheckOutcome.FAILED, CheckReason.TOOL_FAILED)
    assert check.detail.startswith(detail)


def test_dcgm_that_cannot_be_read_for_another_reason_than_its_service_fails(tool: Tool) -> None:
    tool("dcgmi", "echo 'Error: no GPUs are supported' >&2; exit 1")
    check = dcgm_check(30)
    assert (check.outcome, check.reason) == (CheckOutcome.FAILED, CheckReason.TOOL_FAILED)


def test_a_tool_that_hangs_fails(tool: Tool) -> None:
    tool("nvidia-smi", "exec sleep 60")
    assert str(smi_check(0.2).reason) == "timed_out"

"""Diagnostics of the vendor, where they are installed: ``nvidia-smi`` and ``dcgmi``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Final

from tocsin.schemas.errors import DecodeError
from tocsin.schemas.formats import dcgm_diag, nvidia_smi
from tocsin.schemas.preflight import CheckName, CheckReason, PreflightResult, failed, passed, skipped

NVIDIA_SMI: Final = ("nvidia-smi", "-q", "-x")
DCGM: Final = ("dcgmi", "diag", "-r", "1", "--json")
"""Level 1 takes seconds and puts no load on the GPU; a level that does could change what is measured beside it."""
_SHOWN_COUNT: Final = 3
_NO_SERVICE: Final = "unable to establish a connection"
"""Words of ``dcgmi`` when its service, nv-hostengine, does not run."""


def smi_check(seconds: float) -> PreflightResult:
    """Return what the driver knows of the GPUs' faults."""
    return _check(CheckName.NVIDIA_SMI, NVIDIA_SMI, seconds, nvidia_smi.faults_in)


def dcgm_check(seconds: float) -> PreflightResult:
    """Return what DCGM's short diagnostics found."""
    return _check(CheckName.DCGM, DCGM, seconds, lambda text: dcgm_diag.failures_in(text.decode("utf-8", "replace")))


def _check(
    name: CheckName, command: tuple[str, ...], seconds: float, read: Callable[[bytes], tuple[int, list[str]]]
) -> PreflightResult:
    """Run a tool and return what its report says.

    A host on which the tool is installed and finds no device may have lost it. Only that the tool's own service does
    not run says nothing about the host.
    """
    if shutil.which(command[0]) is None:
        return skipped(name, CheckReason.NOT_INSTALLED, f"no {command[0]} on the PATH")
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return failed(name, CheckReason.TIMED_OUT, f"{command[0]} did not end in {seconds:g} s")
    except OSError as error:
        return failed(name, CheckReason.TOOL_FAILED, f"{command[0]}: {error.strerror or error}")
    said = done.stderr.decode("utf-8", "replace").strip() or done.stdout.decode("utf-8", "replace").strip()
    try:
        count, faults = read(done.stdout)
    except DecodeError as error:
        is_service = name is CheckName.DCGM and _NO_SERVICE in said
        ended, reason = (skipped, CheckReason.UNREADABLE) if is_service else (failed, CheckReason.TOOL_FAILED)
        return ended(name, reason, f"exit status {done.returncode}: {said or error}"[:300])
    if faults:
        return failed(name, CheckReason.TOOL_FOUND_FAULT, "; ".join(faults[:_SHOWN_COUNT]))
    if done.returncode or not count:
        shown = said if done.stderr else f"{count} devices"
        return failed(name, CheckReason.TOOL_FAILED, f"exit status {done.returncode}: {shown}"[:300])
    return passed(name, CheckReason.HEALTHY, f"{count} {'GPUs' if name is CheckName.NVIDIA_SMI else 'results'}")

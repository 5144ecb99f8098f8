"""The systemd units of the agent and of the engine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy import files

EXPOSURE_MAX = 2.5
"""As systemd-analyze reckons it, of 10; a unit without any sandbox has 9.6."""


@pytest.fixture(params=[path.name for path in sorted((files.DEPLOY / "systemd").glob("*.service"))])
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A unit with a program that exists here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on the PATH")
    name = str(request.param)
    path = tmp_path / name
    text = (files.DEPLOY / "systemd" / name).read_text("utf-8")
    path.write_text(text.replace("/opt/tocsin/bin/tocsin", "/bin/true"))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_systemd_understands_every_line(unit: Path) -> None:
    ran = analyze("verify", "--man=no", str(unit))

    assert ran.returncode == 0, ran.stderr
    assert str(unit) not in ran.stderr  # unknown settings are words there, not a status


def test_it_is_shut_in(unit: Path) -> None:
    ran = analyze("security", "--offline=true", "--no-pager", str(unit))
    if "exposure" not in ran.stdout:
        pytest.skip(f"this systemd-analyze does not look at files: {ran.stderr.strip()[:80]}")

    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", ran.stdout)
    assert float(exposure) <= EXPOSURE_MAX


def test_it_has_one_capability_and_two_folders() -> None:
    settings = files.unit()

    assert settings["CapabilityBoundingSet"] == settings["AmbientCapabilities"] == ["CAP_SYSLOG"]
    assert settings["RuntimeDirectory"] == settings["StateDirectory"] == ["tocsin"]
    assert settings["DeviceAllow"] == ["/dev/kmsg r", "char-nvidia* rw"]
    for variable in ("TOCSIN_SPOOL_DIR=/var/lib/tocsin/spool", "TOCSIN_AGENT_SOCKET=/run/tocsin/agent.sock"):
        assert variable in settings["Environment"]


def test_the_engine_has_no_capability_one_folder_and_comes_back() -> None:
    settings = files.unit("tocsin-serve.service")

    assert settings["CapabilityBoundingSet"] == settings["AmbientCapabilities"] == [""]
    assert settings["StateDirectory"] == ["tocsin-serve"]
    assert settings["Restart"] == ["always"]
    assert "TOCSIN_DATA=/var/lib/tocsin-serve" in settings["Environment"]

"""The checks of this host with real children: a wrong core is named, a busy disk fails."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.collectors.preflight import checks
from tocsin.collectors.preflight.checks import HostChecks, PreflightConfig
from tocsin.collectors.testing.fake_nvml import FakeNvml, fake_host
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult

HEAVY = frozenset({CheckName.TENSOR_COMPUTATION, CheckName.GPU_MEMORY_BANDWIDTH})
WRONG_CORE = """
import math, os
real = math.sqrt
def sqrt(value):
    own = os.sched_getaffinity(0)
    return math.nextafter(real(value), 9) if own == {CORE} else real(value)
math.sqrt = sqrt
"""


def no_driver() -> FakeNvml:
    return FakeNvml([], init_error=9)


@pytest.fixture
def config(tmp_path: Path) -> PreflightConfig:
    return PreflightConfig(
        host="n0",
        seconds=0.05,
        grace_seconds=30,
        folder=str(tmp_path),
        disk_bytes=2**22,
        memory_bytes=2**21,
        left_out=HEAVY,
        nvml=no_driver,
    )


def results(answer: HostAnswer) -> dict[CheckName, PreflightResult]:
    return {check.name: check for check in answer.checks}


def test_every_check_has_one_result_and_a_figure_where_something_was_measured(config: PreflightConfig) -> None:
    answer = HostChecks(config).run()
    found = results(answer)

    assert len(found) == len(answer.checks)
    assert set(found) == set(CheckName) - {CheckName.ANSWER}
    assert {name for name, check in found.items() if check.figure is not None} >= {
        CheckName.COMPUTATION,
        CheckName.MEMORY_BANDWIDTH,
        CheckName.DISK_WRITE_BANDWIDTH,
        CheckName.DISK_READ_BANDWIDTH,
    }
    assert str(found[CheckName.COMPUTATION].reason) == "exact"
    assert {str(found[name].reason) for name in HEAVY} == {"not_asked"}
    assert str(found[CheckName.GROUP_ALL_REDUCE].reason) == "one_host"


def test_a_core_that_computes_one_bit_wrong_is_named(
    config: PreflightConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = max(os.sched_getaffinity(0))
    folder = tmp_path / "fault"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WRONG_CORE.replace("CORE", str(core)))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    left_out = frozenset(CheckName) - {CheckName.COMPUTATION}

    check = results(HostChecks(replace(config, left_out=left_out)).run())[CheckName.COMPUTATION]

    assert (check.outcome, check.reason) == (CheckOutcome.FAILED, CheckReason.WRONG_RESULT)
    assert check.detail.startswith(f"core {core}: ")
    assert "," not in check.detail


def test_the_first_failure_skips_what_comes_after_it(config: PreflightConfig) -> None:
    config = replace(config, folder="/nowhere", ends_at_failure=True)
    found = results(HostChecks(config).run())

    assert str(found[CheckName.DISK_WRITE_BANDWIDTH].reason) == "disk_refuses"
    assert str(found[CheckName.MEMORY_BANDWIDTH].reason) == "too_few_peers"
    assert str(found[CheckName.COMPUTATION].reason) == "earlier_failure"


def test_gpus_of_the_driver_are_counted_and_their_clocks_told(config: PreflightConfig) -> None:
    checks = HostChecks(
        replace(config, nvml=lambda: fake_host(2), left_out=frozenset(CheckName) - {CheckName.GPU_CLOCKS})
    )
    assert checks.gpu_count == 2
    assert str(results(checks.run())[CheckName.GPU_CLOCKS].reason) == "unreadable"


@pytest.mark.parametrize(("has_torch", "worked"), [(True, 2), (False, 0)])
def test_an_answer_says_how_many_gpus_worked_and_how_many_there_are(
    config: PreflightConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_torch: bool, worked: int
) -> None:
    for index, (vendor, kind) in enumerate(
        (("0x10de", "0x030200"),) * 3 + (("0x10de", "0x068000"), ("0x15b3", "0x0207"))
    ):
        place = tmp_path / f"bus/pci/devices/{index}"
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "class").write_text(f"{kind}\n")
    names = (CheckName.TENSOR_COMPUTATION, CheckName.GPU_MEMORY_BANDWIDTH)
    fine = [PreflightResult(name, CheckOutcome.PASSED, CheckReason.EXACT) for name in names]
    monkeypatch.setattr(checks, "tensor_results", lambda *_: fine)
    monkeypatch.setattr(checks, "run_all", lambda *_, **__: [])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if has_torch else None)
    settings = replace(
        config, nvml=lambda: fake_host(2), sys_root=str(tmp_path), left_out=frozenset(CheckName) - frozenset(names)
    )
    answer = HostChecks(settings).run()

    assert (answer.gpu_count, answer.known_gpu_count) == (worked, 3)


@pytest.mark.gate
def test_a_disk_that_another_writer_keeps_busy_fails(config: PreflightConfig, tmp_path: Path) -> None:
    writer = (
        "import os; f = os.open('busy', os.O_RDWR | os.O_CREAT); b = os.urandom(1 << 22)\n"
        "while True: os.pwrite(f, b, 0); os.fdatasync(f)"
    )
    disk = {CheckName.DISK_WRITE_BANDWIDTH, CheckName.DISK_READ_BANDWIDTH}
    config = replace(config, seconds=4.0, disk_bytes=2**30, left_out=frozenset(CheckName) - disk)
    with subprocess.Popen([sys.executable, "-c", writer], cwd=tmp_path) as other:
        answer = HostChecks(config).run()
        other.kill()

    assert answer.is_failed
    assert str(results(answer)[CheckName.DISK_WRITE_BANDWIDTH].reason) == "other_writer"

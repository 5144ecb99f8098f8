"""Clocks: throttling under load and changed settings fail; a flap of the mask and a power cap do not."""

from pathlib import Path

import pytest

from tocsin.collectors.preflight.clocks import CpuClocks, GpuClocks
from tocsin.collectors.testing.fake_nvml import FakeNvml, fake_host
from tocsin.schemas.errors import NothingHere
from tocsin.schemas.preflight import PreflightResult


def cpu(folder: Path, core: int, name: str, text: str) -> None:
    path = folder / f"devices/system/cpu/cpu{core}/{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    for core in range(2):
        cpu(tmp_path, core, "cpufreq/scaling_governor", "performance")
        cpu(tmp_path, core, "cpufreq/scaling_cur_freq", "2000000")
        cpu(tmp_path, core, "thermal_throttle/core_throttle_count", "5")
    return tmp_path


def test_steady_processors_pass_with_their_clock(sys_root: Path) -> None:
    clocks = CpuClocks(str(sys_root))
    clocks.sample()

    assert (str(clocks.result().reason), clocks.result().figure) == ("steady", 2e9)


def test_throttle_events_under_load_fail_and_older_ones_do_not(sys_root: Path) -> None:
    clocks = CpuClocks(str(sys_root))
    cpu(sys_root, 1, "thermal_throttle/core_throttle_count", "8")

    assert str(clocks.result().reason) == "throttled"
    assert clocks.result().detail == "3 throttle events, first at cpu1/thermal_throttle/core_throttle_count"


def test_a_changed_governor_fails(sys_root: Path) -> None:
    clocks = CpuClocks(str(sys_root))
    cpu(sys_root, 0, "cpufreq/scaling_governor", "powersave")

    assert clocks.result().detail == "cpu0/cpufreq/scaling_governor: performance before, powersave after"


def test_a_virtual_machine_shows_nothing(tmp_path: Path) -> None:
    assert str(CpuClocks(str(tmp_path)).result().reason) == "unreadable"


def under_load(library: FakeNvml, *masks: int) -> PreflightResult:
    clocks = GpuClocks(lambda: library)
    for mask in masks:
        library.gpus[1].reasons_mask = mask
        clocks.sample()
    return clocks.result()


def test_a_gpu_at_its_power_cap_or_with_one_flap_passes_with_the_slowest_clock() -> None:
    library = fake_host(2)
    library.gpus[1].sm_clock_megahertz = 1_500

    found = under_load(library, *[0x04] * 19, 0x40)

    assert (str(found.reason), found.figure, found.unit) == ("steady", 1.5e9, "hertz")


@pytest.mark.parametrize(("mask", "name"), [(0x08, "hw_slowdown"), (0x40, "hw_thermal"), (0x80, "hw_power_brake")])
def test_a_gpu_that_the_hardware_slows_fails(mask: int, name: str) -> None:
    found = under_load(fake_host(2), *[mask] * 5, *[0] * 5)

    assert (str(found.reason), found.detail) == ("throttled", f"GPU 1: {name}")


def test_samples_of_an_idle_gpu_say_nothing() -> None:
    library = fake_host(1)
    clocks = GpuClocks(lambda: library)
    library.gpus[0].util_percent, library.gpus[0].sm_clock_megahertz = 0, 345
    for _ in range(5):
        clocks.sample()
    assert str(clocks.result().reason) == "unreadable"

    library.gpus[0].util_percent, library.gpus[0].sm_clock_megahertz = 99, 1_400
    clocks.sample()
    assert clocks.result().figure == 1.4e9


def test_a_power_limit_that_a_tool_changed_fails() -> None:
    library = fake_host(2)
    clocks = GpuClocks(lambda: library)
    clocks.sample()
    library.gpus[0].power_limit_milliwatts = 300_000

    assert clocks.result().detail == "GPU 0, power limit (mW): 700000 before, 300000 after"


def test_a_gpu_that_is_lost_under_load_fails() -> None:
    library = fake_host(2)
    clocks = GpuClocks(lambda: library)
    library.gpus[1].lost = True
    clocks.sample()

    assert clocks.result().detail == "GPU 1 was lost under load"


def test_a_host_without_a_driver_has_no_gpus() -> None:
    with pytest.raises(NothingHere):
        GpuClocks(lambda: FakeNvml([], init_error=9))

"""The collector of host facts: what it reads, when it says so, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tocsin.collectors.api import NothingHere
from tocsin.collectors.sources.host_facts import AGAIN_NS, LOOK_NS, HostFactsCollector, HostFactsConfig
from tocsin.collectors.sources.procfs import Roots
from tocsin.collectors.testing.fake_nvml import FakeNvml, hopper
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.event_payloads import check_payload

T0 = 1_800_000_000 * NS_PER_SECOND


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    kernel = tmp_path / "sys/kernel"
    (kernel / "random").mkdir(parents=True)
    (kernel / "random/boot_id").write_text("0d3c61b2-4f0e-4a34-9d4e-2f7f3e0b8a11\n")
    (kernel / "osrelease").write_text("6.8.0-45-generic\n")
    (tmp_path / "uptime").write_text("3600.25 28000.10\n")
    return tmp_path


def said(collector: HostFactsCollector, now_ns: int) -> dict[str, Any]:
    """The payload of what it says now, {} for nothing."""
    found = collector.collect(now_ns).events
    for one in found:
        assert one.name == events.HOST_FACTS
        check_payload(one.name, one.payload, "event.payload")
    return dict(found[0].payload) if found else {}


def collector_of(proc: Path, fake: FakeNvml | None = None) -> HostFactsCollector:
    return HostFactsCollector(HostFactsConfig(Roots(str(proc)), None if fake is None else lambda: fake))


def test_boot_kernel_driver_and_firmware_are_one_event_at_start(proc: Path) -> None:
    old, new = hopper(0), hopper(1)
    old.vbios = "96.00.30.00.01"
    fake = FakeNvml([old, new])
    assert said(collector_of(proc, fake), T0) == {
        "boot_id": "0d3c61b2-4f0e-4a34-9d4e-2f7f3e0b8a11",
        "booted_ns": T0 - 3_600_250_000_000,
        "kernel": "6.8.0-45-generic",
        "driver": "570.86.15",
        "firmware": "vbios 96.00.30.00.01,96.00.74.00.01 gsp 570.86.15",
    }
    assert not fake.is_open


def test_it_is_said_again_at_a_change_and_every_five_minutes(proc: Path) -> None:
    fake = FakeNvml([hopper(0)])
    collector = collector_of(proc, fake)
    times = [T0 + second * NS_PER_SECOND for second in range(0, 900, 5)]
    assert [(now_ns - T0) // NS_PER_SECOND for now_ns in times if said(collector, now_ns)] == [0, 300, 600]
    fake.driver = "575.57.08"
    later_ns = times[-1] + LOOK_NS
    assert said(collector, later_ns)["driver"] == "575.57.08"
    assert not said(collector, later_ns + LOOK_NS)
    assert said(collector, later_ns + AGAIN_NS)


def test_what_nvml_does_not_know_is_left_out(proc: Path) -> None:
    gpu = hopper(0)
    gpu.unsupported = {"nvmlDeviceGetVbiosVersion", "nvmlDeviceGetGspFirmwareVersion"}
    assert "firmware" not in said(collector_of(proc, FakeNvml([gpu])), T0)
    assert "driver" not in said(collector_of(proc, FakeNvml([gpu], init_error=9)), T0)
    assert set(said(collector_of(proc), T0)) == {"boot_id", "booted_ns", "kernel"}


def test_a_host_without_any_fact_has_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(NothingHere):
        collector_of(tmp_path).collect(T0)

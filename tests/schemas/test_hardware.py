"""One event in, one meaning out, whoever saw it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas import events
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.hardware import HARDWARE_EVENTS, HardwareMeaning, cause_of_event
from tocsin.schemas.records import Event, EventSource, JobKey, Severity


def meaning(name: str, payload: Any, architecture: str = "") -> HardwareMeaning | None:
    event = Event(JobKey("c", "j"), "n012", 1, -1, EventSource.KERNEL, name, Severity.ERROR, payload)
    return cause_of_event(event, architecture)


@pytest.mark.parametrize(
    ("name", "payload", "cause", "fault", "accuses"),
    [
        ("xid", {"code": 94, "pci": "0000:c1:00.0"}, "ecc_error", "fail_stop", True),
        ("xid", {"code": 79}, "gpu_card_drop", "fail_stop", True),
        ("xid", {"code": 31}, "cuda_execution_error", "degraded", False),
        ("xid", {"code": 145, "registers": [4, 0x40]}, "nvlink_error", "fail_stop", True),
        ("xid", {"code": 154, "recovery_action": 2}, "unknown", "fail_stop", True),
        ("sxid", {"code": 24007, "severity": "fatal"}, "nvlink_error", "fail_stop", True),
        ("sxid", {"code": 20009, "severity": "non-fatal"}, "nvlink_error", "degraded", False),
        ("ecc", {"kind": "uncorrected", "count": 1}, "ecc_error", "fail_stop", True),
        ("ecc", {"kind": "uncorrected", "count": 1, "at_start": True}, "ecc_error", "degraded", False),
        ("ecc", {"kind": "corrected", "count": 9}, "ecc_error", "degraded", False),
        ("ecc", {"kind": "corrected", "count": 3}, "", "degraded", False),
        ("row_remap", {"pending": True, "failure": False}, "ecc_error", "degraded", False),
        ("row_remap", {"pending": False, "failure": True}, "ecc_error", "fail_stop", True),
        ("nvlink_error", {}, "nvlink_error", "fail_slow", True),
        ("nvlink_error", {"kind": "replay", "count": 1}, "nvlink_error", "fail_slow", False),
        ("nvlink_error", {"state": "down", "link": 3}, "nvlink_error", "fail_slow", True),
        ("pcie_link", {"gen": 5, "width": 4, "max_gen": 5, "max_width": 16}, "pcie_downgrade", "fail_slow", True),
        ("pcie_link", {"gen": 3, "width": 16, "max_gen": 5, "max_width": 16}, "pcie_downgrade", "fail_slow", True),
        ("clocks_event", {"reasons": ["sw_power_cap", "hw_thermal"]}, "thermal_throttle", "fail_slow", True),
        ("clocks_event", {"reasons": ["sw_thermal"]}, "thermal_throttle", "fail_slow", True),
        ("clocks_event", {"reasons": ["hw_slowdown", "hw_power_brake"]}, "power_cap", "fail_slow", True),
        ("clocks_event", {"reasons": ["sw_power_cap"]}, "power_cap", "fail_slow", False),
        ("clocks_event", {"reasons": ["hw_slowdown"]}, "unknown", "fail_slow", True),
        ("ib_port", {"port": "mlx5_0/1", "state": "down"}, "nic_dropout", "fail_stop", True),
        ("ib_port", {"state": "down", "at_start": True}, "nic_dropout", "degraded", False),
        ("ib_port", {"state": "active", "flaps": 1}, "nic_dropout", "degraded", False),
        ("ib_port", {"state": "active", "rate_gbps": 400, "link_downed": 2}, "aoc_error", "degraded", False),
        ("net_link", {"device": "eth0", "state": "down"}, "nic_dropout", "fail_stop", False),
        ("net_link", {"state": "cable_error"}, "aoc_error", "fail_stop", True),
        ("gpu_lost", {"uuid": "GPU-1"}, "gpu_card_drop", "fail_stop", True),
        ("gpu_recovery", {"action": 1}, "unknown", "fail_stop", True),
        ("oom", {"pid": 1, "process": "python"}, "process_exit", "fail_stop", False),
        ("segfault", {"pid": 1, "library": "libnccl.so.2"}, "process_exit", "fail_stop", False),
        ("file_system", {"kind": "not_responding", "remote": True}, "hdfs_error", "fail_slow", True),
        ("file_system", {"kind": "read_only", "remote": False}, "unknown", "fail_stop", True),
        ("thermal", {"device": "cpu3"}, "thermal_throttle", "fail_slow", True),
        ("pcie_error", {"kind": "corrected"}, "", "degraded", False),
        ("pcie_error", {"kind": "fatal"}, "unknown", "fail_stop", True),
    ],
)
def test_each_event(name: str, payload: dict[str, Any], cause: str, fault: str, accuses: bool) -> None:
    found = meaning(name, payload)
    assert found is not None
    assert (found.cause, found.fault, found.accuses) == (cause, fault, accuses)
    assert found.text


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("pcie_link", {"gen": 5, "width": 16, "max_gen": 5, "max_width": 16}),
        ("clocks_event", {"reasons": []}),
        ("clocks_event", {"reasons": ["idle"]}),
        ("ib_port", {"port": "mlx5_0/1", "state": "active", "rate_gbps": 400, "link_downed": 0}),
        ("ib_port", {"port": "mlx5_0/1", "state": "up"}),
        ("ib_port", {"port": "mlx5_0/1", "state": "LinkUp", "rate_gbps": 400}),
        ("row_remap", {"pending": False, "failure": False}),
        ("file_system", {"kind": "ok", "remote": True}),
        ("nvlink_error", {"state": "up", "link": 3}),
        ("gpu_recovery", {"action": 0}),
        ("ecc", {"kind": "uncorrected", "count": 0}),
        ("exit", {"code": 1}),
        ("hello", {}),
    ],
)
def test_what_is_fine_or_no_hardware_means_nothing(name: str, payload: dict[str, Any]) -> None:
    assert meaning(name, payload) is None


def test_a_port_that_lost_speed_is_slow() -> None:
    found = meaning("ib_port", {"port": "mlx5_0/1", "state": "active", "rate_gbps": 100, "max_rate_gbps": 400})
    assert found is not None
    assert (found.cause, found.fault) == ("aoc_error", "fail_slow")


def test_the_architecture_of_the_card_counts() -> None:
    hopper, blackwell = meaning("xid", {"code": 74}, "hopper"), meaning("xid", {"code": 74}, "blackwell")
    assert hopper is not None
    assert blackwell is not None
    assert (hopper.accuses, blackwell.accuses) == (True, False)
    own_word = meaning("xid", {"code": 74, "architecture": "blackwell"}, "hopper")
    assert own_word is not None
    assert not own_word.accuses


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("code", "severity", "registers", "kind", "count", "state", "reasons", "gen", "width", "max_gen", "max_width",
          "rate_gbps", "max_rate_gbps", "link", "action", "remote", "recovery_action", "pending", "device")  # fmt: skip


@given(st.sampled_from(sorted(HARDWARE_EVENTS)), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_payload_makes_it_raise(name: str, payload: dict[str, Any]) -> None:
    found = meaning(name, payload)
    if found is not None:
        assert found.cause == "" or found.cause in CAUSES
        assert found.accuses is False or CAUSES[found.cause].blames == "machine"


def test_the_names_are_those_of_the_list() -> None:
    assert {value for name, value in vars(events).items() if name.isupper()} >= HARDWARE_EVENTS

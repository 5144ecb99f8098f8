"""Kernel lines: real ones give exactly these findings, others none, and no line is too strange."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.kernel_lines import MAX_LINE_CHARACTERS, read_line
from tocsin.schemas.formats.kmsg import parse_kmsg, strip_prefix
from tocsin.schemas.formats.pci import normal_pci
from tocsin.schemas.kinds import Severity


def test_real_xid_lines(shared_data: Path) -> None:
    lines = (shared_data / "xid" / "xid_sxid_lines_from_tests.txt").read_text().splitlines()
    nothing = [line for line in lines if read_line(line) is None]
    assert nothing == [  # templates and nonsense of the other project's tests
        "NVRM: Xid (PCI:0000:0%d:00.0): 119, pid=10000%d, name=proc, Timeout after 6s waiting for GPU GSP response",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:b3:00.0): INVALID, pid=1234, name=process",
        "nvidia-nvswitch0: SXid ",
    ]
    found = [finding for line in lines if (finding := read_line(line))]
    assert {finding.name for finding in found} == {"xid", "sxid"}
    assert all(normal_pci(finding.payload["pci"]) == finding.payload["pci"] for finding in found)


def test_real_logs(shared_data: Path) -> None:
    seen: dict[str, list[tuple[str, object]]] = {}
    for path in sorted((shared_data / "kernel_logs").iterdir()):
        findings = [finding for line in path.read_text().splitlines() if (finding := read_line(line))]
        seen[path.name] = [
            (finding.name, finding.payload.get("code", finding.payload.get("pid"))) for finding in findings
        ]
    assert seen == {
        "dmesg-with-xid-119.log": [("xid", 119)] * 5,
        "dmesg.decode.iso.log": [("segfault", 2536443)] * 2,
        "fabricmanager.log": [("sxid", 12028)],
        "kmsg.1.log": [],
        "kmsg.2.peermem.log": [],
    }


@pytest.mark.parametrize(
    ("line", "name", "fields"),
    [
        (
            (
                "NVRM: Xid (PCI:0000:00:06): 31, pid=908, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: "
                "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. "
                "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
            ),
            "xid",
            {"code": 31, "pci": "0000:00:06.0", "pid": 908, "process": "python3"},  # an H100, driver 580
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0 0x0 0x0 0x0 0x0)",
            "xid",
            {"code": 149, "pci": "0018:01:00.0", "link": 9, "severity": "fatal", "unit": "NETIR_LINK_EVT"},
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "xid",
            {"code": 154, "recovery_action": 1},
        ),
        (
            "NVRM: Xid (PCI:0000:b5:00): 31, pid=2079991, name=pt_main_thread, Ch 00000007, intr 00000000.",
            "xid",
            {"code": 31, "pid": 2079991, "process": "pt_main_thread"},
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO",
            "sxid",
            {"code": 28006, "severity": "non-fatal", "link": 46},
        ),
        ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", "gpu_lost", {"pci": "0000:b3:00.0"}),
        ("NVRM: GPU 0000:b3:00.0: NVLink 3: training failed", "nvlink_error", {"pci": "0000:b3:00.0"}),
        (
            "mlx5_core 0000:1a:00.0 ib0: Link down",
            "net_link",
            {"device": "ib0", "pci": "0000:1a:00.0", "state": "down"},
        ),
        ("ixgbe 0000:03:00.0 eth0: NIC Link is Up 10 Gbps", "net_link", {"device": "eth0", "state": "up"}),
        (
            "bond0: (slave eth0): link status definitely down, disabling",
            "net_link",
            {"device": "eth0", "state": "down"},
        ),
        (
            "mlx5_core 0000:86:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded",
            "net_link",
            {"state": "cable_error", "pci": "0000:86:00.0"},
        ),
        ("Out of memory: Killed process 12 (python3) total-vm:1kB", "oom", {"pid": 12, "cgroup": False}),
        ("Memory cgroup out of memory: Killed process 7 (a b) total-vm", "oom", {"process": "a b", "cgroup": True}),
        ("EDAC MC0: 3 CE memory read error on CPU_SrcID#0", "ecc", {"kind": "corrected", "count": 3}),
        ("EDAC MC1: 1 UE memory scrubbing error", "ecc", {"kind": "uncorrected", "device": "host_memory"}),
        ("CPU3: Package temperature above threshold, cpu clock throttled", "thermal", {"device": "cpu3"}),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received", "pcie_error", {"kind": "fatal"}),
        ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=x", "pcie_error", {"kind": "corrected"}),
        ("EXT4-fs error (device sda1): ext4_lookup", "file_system", {"kind": "error", "device": "sda1"}),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "file_system", {"kind": "read_only", "device": "sda1"}),
        ("Buffer I/O error on dev dm-0, logical block 1", "file_system", {"kind": "io_error", "device": "dm-0"}),
        (
            "nfs: server 10.0.0.1 not responding, still trying",
            "file_system",
            {"kind": "not_responding", "remote": True},
        ),
        ("nfs: server 10.0.0.1 OK", "file_system", {"kind": "ok", "device": "10.0.0.1"}),
    ],
)
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[  123.456789] ",
        "[Sun Feb 23 16:24:18 2025] ",
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 ",
        "Feb 23 16:24:18 n012 kernel: [  12.345678] ",
        "2025-02-23T16:24:18.123456+01:00 n012 kernel: ",
        "<4>",
    ],
)
def test_lines_of_each_kind_behind_each_time_stamp(
    prefix: str, line: str, name: str, fields: dict[str, object]
) -> None:
    finding = read_line(prefix + line)
    assert finding is not None
    assert finding.name == name
    assert fields.items() <= finding.payload.items()
    assert finding.payload["text"] == line


@pytest.mark.parametrize(
    "line",
    [
        "",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        "mlx5_core 0000:86:00.0: Port module event: module 0, Cable plugged",
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "nvidia-nvlink: Unregistered Nvlink Core, major device number 510",
        "my app said: NVRM: Xid later",
    ],
)
def test_what_is_no_finding(line: str) -> None:
    assert read_line(line) is None


def test_the_severity_follows_the_catalogue() -> None:
    def severity(code: int) -> Severity:
        finding = read_line(f"NVRM: Xid (PCI:0000:17:00): {code}, pid=1")
        assert finding is not None
        return finding.severity

    assert [severity(79), severity(94), severity(13), severity(4711)] == ["fatal", "error", "warning", "warning"]


@pytest.mark.parametrize("text", ["", "6,1,2", "6,x,3,-;a", "no", ";", "6,1," + "9" * 40 + ",-;x"])
def test_a_broken_kmsg_record_is_named(text: str) -> None:
    with pytest.raises(FieldError, match="kmsg"):
        parse_kmsg(text)


def test_kmsg_continuation_lines_are_left_out() -> None:
    record = parse_kmsg(
        "3,77,206764307,-,caller=T1;NVRM: Xid (PCI:0000:17:00): 79, x\n SUBSYSTEM=pci\n DEVICE=+pci:x\n"
    )
    assert (record.priority, record.seq) == (3, 77)
    assert record.message == "NVRM: Xid (PCI:0000:17:00): 79, x"


@given(st.text(max_size=400))
def test_no_line_makes_it_raise(line: str) -> None:
    read_line(line)
    strip_prefix(line)
    normal_pci(line)


@pytest.mark.parametrize("unit", ["a", "link down ", "NVRM: ", "EDAC MC0: ", "[1.1] ", "0000:", "Out of memory "])
def test_a_line_of_100_kb_is_cut_and_costs_little(unit: str) -> None:
    line = unit * (100_000 // len(unit))
    start = time.process_time()
    finding = read_line(line)
    assert time.process_time() - start < 0.5
    if finding is not None:
        assert len(finding.payload["text"]) <= MAX_LINE_CHARACTERS

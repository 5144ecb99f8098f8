import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.collectors.peer import wait_until
from tocsin.collectors.api import CollectorError, NothingHere
from tocsin.collectors.sources.host import HostCollector, HostConfig
from tocsin.collectors.sources.process_tree import ProcessTreeCollector, ProcessTreeConfig
from tocsin.collectors.sources.procfs import (
    CpuTimes,
    KeptFiles,
    Roots,
    memory_used_ratio,
    parse_cpu_times,
    parse_net_dev,
    parse_process_stat,
)

# From a virtual machine with Linux 6.1, shortened.
STAT = """cpu  4130 0 4336 245748 356 0 208 190 0 0
cpu0 1425 0 1863 124122 14 0 24 81 0 0
cpu1 2704 0 2473 121626 342 0 183 108 0 0
intr 328955 0 0
ctxt 567890
"""
MEMINFO = """MemTotal:       24689088 kB
MemFree:        24004652 kB
MemAvailable:   18516816 kB
Buffers:            1404 kB
HugePages_Total:       0
"""
NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 8449311   31758    0    0    0     0          0         0  8449311   31758    0    0 0 0 0 0
  ifb0:       0       0    0    0    0     0          0         0        0       0    0    0 0 0 0 0
  eth0: 3680859306  185492    0    0    0     0          0         0  3175636   39537    0    0 0 0 0 0
"""
PROCESS_STAT = (
    "9021 (a (b) c) T 9007 9007 5960 0 -1 4194304 100 0 0 0 11 7 3 1 20 0 1 0 127783 3133440 388 "
    "18446744073709551615 94738896064512 94738896084393 140729739998000 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
SECOND_NS = 1_000_000_000


def test_cpu_times_count_iowait_as_idle() -> None:
    assert parse_cpu_times(STAT) == CpuTimes(busy_ticks=8864, total_ticks=254968)


def test_memory_is_what_no_new_program_could_get() -> None:
    assert memory_used_ratio(MEMINFO) == pytest.approx(0.25)


def test_both_directions_of_an_interface_are_added() -> None:
    assert parse_net_dev(NET_DEV) == {"lo": 16898622, "ifb0": 0, "eth0": 3684034942}


def test_a_command_name_may_hold_blanks_and_brackets() -> None:
    stat = parse_process_stat(PROCESS_STAT)

    assert (stat.state, stat.cpu_ticks, stat.start_ticks, stat.rss_page_count) == ("T", 22, 127783, 388)


@pytest.mark.parametrize("text", ["", "intr 1 2 3", "cpu0 1 2 3 4 5 6"])
def test_a_text_of_another_kind_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(CollectorError, match="sum of all CPUs"):
        parse_cpu_times(text)


def fake_roots(folder: Path) -> Roots:
    (folder / "proc/net").mkdir(parents=True)
    (folder / "sys/class/net/eth0/device").mkdir(parents=True)
    (folder / "proc/stat").write_text(STAT)
    (folder / "proc/meminfo").write_text(MEMINFO)
    (folder / "proc/net/dev").write_text(NET_DEV)
    return Roots(str(folder / "proc"), str(folder / "sys"))


def _descriptors_of(path: str) -> list[int]:
    """This process's descriptors of a file."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            if str(link.readlink()) == path:
                found.append(int(link.name))
    return found


def test_a_file_that_the_kernel_makes_up_stays_open_and_is_read_anew() -> None:
    files = KeptFiles()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = f"/proc/{child.pid}/stat"
    try:
        first = parse_process_stat(files.read(path))
        kept = _descriptors_of(path)
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: parse_process_stat(files.read(path)).state == "T")
    finally:
        child.kill()
        child.wait()

    assert first.state in "RSD"
    assert len(kept) == len(files) == 1
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        files.read(path)
    assert len(files) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept.pop())


def test_a_plain_file_may_be_replaced_under_its_name(tmp_path: Path) -> None:
    files, path = KeptFiles(), tmp_path / "state"
    path.write_text("4: ACTIVE")
    assert files.read(str(path)) == "4: ACTIVE"
    (tmp_path / "new").write_text("1: DOWN")
    (tmp_path / "new").replace(path)
    assert files.read(str(path)) == "1: DOWN"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.read(str(path))


def test_files_of_no_use_any_more_are_closed() -> None:
    files = KeptFiles()
    files.read("/proc/self/stat")
    files.read("/proc/meminfo")
    assert _descriptors_of(f"/proc/{os.getpid()}/stat")
    files.close_others({"/proc/meminfo"})

    assert len(files) == 1
    assert _descriptors_of("/proc/meminfo")
    assert not _descriptors_of(f"/proc/{os.getpid()}/stat")
    files.close("/proc/meminfo")


def test_rates_come_with_the_second_sample_and_count_physical_interfaces_only(tmp_path: Path) -> None:
    roots = fake_roots(tmp_path)
    collector = HostCollector(HostConfig(roots))

    first = collector.collect(100 * SECOND_NS).host
    (tmp_path / "proc/stat").write_text(STAT.replace("4130 0 4336 245748", "4180 0 4336 245898"))
    (tmp_path / "proc/net/dev").write_text(NET_DEV.replace("3175636", "3177636").replace("8449311", "9999999"))
    second = collector.collect(102 * SECOND_NS).host

    assert set(first) == {"memory_used_ratio"}
    assert second["cpu_util_ratio"] == pytest.approx(0.25)
    assert second["tcp_bytes_per_second"] == pytest.approx(1000.0)


def test_without_a_physical_interface_all_but_loopback_count(tmp_path: Path) -> None:
    roots = fake_roots(tmp_path)
    collector = HostCollector(HostConfig(Roots(roots.proc, str(tmp_path / "nothing"))))

    collector.collect(SECOND_NS)
    (tmp_path / "proc/net/dev").write_text(NET_DEV.replace("ifb0:       0", "ifb0:     500"))

    assert collector.collect(2 * SECOND_NS).host["tcp_bytes_per_second"] == pytest.approx(500.0)


def test_a_counter_that_went_back_gives_no_rate(tmp_path: Path) -> None:
    roots = fake_roots(tmp_path)
    collector = HostCollector(HostConfig(roots))

    collector.collect(SECOND_NS)
    (tmp_path / "proc/net/dev").write_text(NET_DEV.replace("3680859306", "1"))

    assert "tcp_bytes_per_second" not in collector.collect(2 * SECOND_NS).host


def test_no_proc_is_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(NothingHere):
        HostCollector(HostConfig(Roots(str(tmp_path)))).collect(0)


def test_this_machine_can_be_read() -> None:
    values = HostCollector(HostConfig()).collect(time.time_ns()).host

    assert 0 < values["memory_used_ratio"] < 1


def test_the_pretended_host_is_the_process_tree_and_ends_with_it() -> None:
    burner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", burner], start_new_session=True)
    try:
        collector = ProcessTreeCollector(ProcessTreeConfig(parent.pid))
        until = time.monotonic() + 60
        values: dict[str, float] = {}
        while values.get("cpu_util_ratio", 0.0) < 0.05 and time.monotonic() < until:
            values = dict(collector.collect(time.time_ns()).host)
            time.sleep(0.1)
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()

    assert values["cpu_util_ratio"] >= 0.05  # its child burns a core, as far as others leave it one
    assert 0 < values["memory_used_ratio"] < 0.5
    assert "tcp_bytes_per_second" not in values
    with pytest.raises(NothingHere):
        collector.collect(time.time_ns())

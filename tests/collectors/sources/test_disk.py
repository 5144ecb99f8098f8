import argparse
import os
import threading
import time
from pathlib import Path

import pytest

from tests.collectors.peer import wait_until
from tocsin.cli import agent as command
from tocsin.collectors.agent.runner import CollectorRunner, Supervision
from tocsin.collectors.api import NothingHere, Reading
from tocsin.collectors.sources.disk import DiskCollector
from tocsin.collectors.sources.registry import make_collectors


def test_the_fill_of_this_disk_is_a_ratio(tmp_path: Path) -> None:
    assert 0 < DiskCollector(str(tmp_path)).collect(0).host["disk_used_ratio"] <= 1


@pytest.mark.parametrize("path", ["/nonexist", "/proc"])
def test_no_disk_is_nothing_here(path: str) -> None:
    with pytest.raises(NothingHere, match=path):
        DiskCollector(path).collect(0)


def runners(flags: list[str], seen: dict[str, Reading]) -> list[CollectorRunner]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--period-seconds=0.1", "--nvml=off", "--rdma=off", "--kmsg-path=", *flags])
    deliver = Supervision(
        time.time_ns, time.monotonic_ns, lambda name, _tick, reading: seen.update({name: reading}), deadline_seconds=0.1
    )
    made = [one for one in make_collectors(command.source_settings(args)) if one.name != "host_facts"]
    return [CollectorRunner(collector, deliver) for collector in made]


def test_a_missing_disk_path_takes_no_other_metric_away() -> None:
    seen: dict[str, Reading] = {}
    for runner in runners(["--disk-path=/nonexist"], seen):
        for tick in (1, 2):
            deadline = time.process_time_ns() + 20_000_000
            while time.process_time_ns() < deadline:  # until the kernel has counted a tick of CPU time
                pass
            runner.call(tick * 10**9)

    assert set(seen) == {"host"}
    assert set(seen["host"].host) >= {"cpu_util_ratio", "memory_used_ratio", "tcp_bytes_per_second"}


def test_no_disk_path_is_no_disk_collector() -> None:
    assert [runner.name for runner in runners(["--disk-path="], {})] == ["host"]
    assert [runner.name for runner in runners(["--as-process-tree=1"], {})] == ["pose_process_tree", "disk"]


def test_a_disk_that_does_not_answer_stops_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(os, "statvfs", lambda _: gate.wait())
    seen: dict[str, Reading] = {}
    host, disk = runners([], seen)
    for runner in (host, disk):
        runner.start()
    # a busy machine may take the tenth of a second from the host's collector, too: its next reading is well again
    wait_until(lambda: disk.report().reason == "hung" and "host" in seen and host.report().ok)

    assert disk.report().reason == "hung"
    for runner in (host, disk):
        runner.stop()
    gate.set()

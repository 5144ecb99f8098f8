"""The kernel log collector: new lines only, once each, whatever the file does."""

import errno
import os
from pathlib import Path

import pytest

from tocsin.collectors.agent.runner import checked
from tocsin.collectors.api import CollectorError, HostEvent, NothingHere
from tocsin.collectors.sources.kernel_log import REPEAT_NS, KernelLogCollector, KernelLogConfig
from tocsin.schemas.errors import CollectorError as BaseError

SECOND = 10**9
DROP = "[ 1.5] NVRM: Xid (PCI:0000:17:00): 79, pid=7, name=x, GPU has fallen off the bus.\n"
ECC = "[ 1.6] NVRM: Xid (PCI:0000:17:00): 94, pid=7, name=x, Contained ECC error.\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(DROP)
    return path


def collector(path: Path, *, from_start: bool = False) -> KernelLogCollector:
    return KernelLogCollector(KernelLogConfig(str(path), from_start=from_start))


def look(found: KernelLogCollector, second: float = 0) -> list[HostEvent]:
    return list(checked(found.collect(round(second * SECOND))).events)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_is_there_at_start_is_old(log: Path) -> None:
    found = collector(log)
    assert look(found) == []
    append(log, ECC)
    (event,) = look(found, 1)
    assert (event.name, event.source, event.payload["code"], event.rank) == ("xid", "kernel", 94, -1)
    assert look(found, 2) == []


def test_from_the_start_on_demand(log: Path) -> None:
    assert [event.payload["code"] for event in look(collector(log, from_start=True))] == [79]


def test_half_a_line_waits_for_its_end(log: Path) -> None:
    found = collector(log)
    look(found)
    append(log, ECC[:40])
    assert look(found, 1) == []
    append(log, ECC[40:])
    assert [event.payload["code"] for event in look(found, 2)] == [94]


def test_a_storm_is_one_event_and_a_count(log: Path) -> None:
    found = collector(log)
    look(found)
    append(log, ECC * 1000)
    assert [event.payload["repeats"] for event in look(found, 1)] == [0]
    append(log, ECC * 500)
    assert look(found, 30) == []
    assert [event.payload["repeats"] for event in look(found, 1 + REPEAT_NS / SECOND)] == [1499]
    assert look(found, 1 + 2 * REPEAT_NS / SECOND) == []
    append(log, ECC)
    assert len(look(found, 2 + 2 * REPEAT_NS / SECOND)) == 1
    assert found.skipped["repeated"] == 1499


def test_two_gpus_are_two_events(log: Path) -> None:
    found = collector(log)
    look(found)
    append(log, ECC + ECC.replace("17:00", "18:00"))
    assert [event.payload["pci"] for event in look(found, 1)] == ["0000:17:00.0", "0000:18:00.0"]


def test_a_rotated_and_a_truncated_file_are_followed(log: Path) -> None:
    found = collector(log)
    look(found)
    log.rename(log.with_suffix(".1"))
    log.write_text(ECC)
    assert [event.payload["code"] for event in look(found, 1)] == [94]
    log.write_text("")
    look(found, 2)
    append(log, DROP)
    assert [event.payload["code"] for event in look(found, 3)] == [79]
    log.unlink()
    assert look(found, 4) == []


def test_a_line_of_100_kb_is_cut_and_counted_and_the_rest_goes_on(log: Path) -> None:
    found = collector(log)
    look(found)
    append(log, "NVRM: Xid (PCI:0000:18:00): 48, " + "x" * 100_000 + "\n" + ECC)
    codes = [event.payload["code"] for event in look(found, 1)]
    assert codes == [48, 94]
    assert found.skipped["truncated"] == 1
    append(log, "y" * 50_000)  # one that grows over several looks counts once
    look(found, 2)
    append(log, "y" * 50_000)
    look(found, 3)
    append(log, "y\n" + DROP)
    assert [event.payload["code"] for event in look(found, 4)] == [79]
    assert found.skipped["truncated"] == 2


def test_bytes_that_are_no_text_do_no_harm(log: Path) -> None:
    found = collector(log)
    look(found)
    with log.open("ab") as file:
        file.write(b"\xff\xfe\x00 rubbish\n" + ECC.encode())
    assert len(look(found, 1)) == 1


def test_absent_forbidden_and_wrong_paths_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NothingHere, match="does not exist"):
        look(collector(tmp_path / "none"))
    with pytest.raises(CollectorError, match="is a folder"):
        look(collector(tmp_path))

    def refuse(*_args: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NothingHere, match="CAP_SYSLOG"):
        look(collector(tmp_path))


class Kmsg:
    """/dev/kmsg as documented: one record a read, EAGAIN at the end, EPIPE where records were overwritten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        path.write_text("")
        self.path = path
        self.items: list[bytes | OSError] = []
        monkeypatch.setattr(os, "read", self.read)
        monkeypatch.setattr("tocsin.collectors.sources.kernel_log.stat.S_ISCHR", lambda _mode: True)

    def read(self, _descriptor: int, size: int) -> bytes:
        if not self.items:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        item = self.items.pop(0)
        if isinstance(item, OSError):
            raise item
        if len(item) > size:
            raise OSError(errno.EINVAL, "Invalid argument")
        return item


@pytest.fixture
def kmsg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kmsg:
    return Kmsg(monkeypatch, tmp_path / "kmsg")


def test_kmsg_records_with_overwriting_and_nonsense(kmsg: Kmsg) -> None:
    found = collector(kmsg.path)
    assert look(found) == []
    kmsg.items = [
        b"6,1,100,-;IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\n",
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        b"no record",
        b"3,9,200,-,caller=T1;NVRM: Xid (PCI:0000:17:00): 94, pid=7, name=x, Contained\n SUBSYSTEM=pci\n",
        b"3,10,201,-;" + b"z" * 50_000,
    ]
    assert [event.name for event in look(found, 1)] == ["xid", "kernel_log_lost"]
    assert found.skipped == {"overwritten": 1, "malformed": 1, "truncated": 1}


def test_a_device_that_breaks_is_a_failure_and_is_opened_anew(kmsg: Kmsg) -> None:
    found = collector(kmsg.path)
    look(found)
    kmsg.items = [OSError(errno.EIO, "Input/output error")]
    with pytest.raises(BaseError, match=r"cannot be read: Input/output error"):
        look(found, 1)
    kmsg.items = [b"3,9,200,-;NVRM: Xid (PCI:0000:17:00): 94, pid=7, name=x, Contained\n"]
    assert len(look(found, 2)) == 1


def test_a_real_kmsg_as_a_plain_file_gives_its_findings(shared_data: Path) -> None:
    path = shared_data / "kernel_logs" / "dmesg-with-xid-119.log"
    seen = look(collector(path, from_start=True))
    assert {event.payload["code"] for event in seen} == {119}
    assert len(seen) == 3  # three processes; each one's repeats are counted

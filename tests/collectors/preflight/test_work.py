"""The loads of the children: known digests, copies, blocks of a disk; and what a fault does to each."""

import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tocsin.collectors.preflight import _copy_work, _disk_work, _exact_work
from tocsin.collectors.preflight.bounded import ChildAnswer, module_command, run_all
from tocsin.collectors.preflight.checks import disk_results, tensor_results
from tocsin.schemas.preflight import CheckReason


def test_this_machine_has_the_known_digests() -> None:
    assert tuple(_exact_work.digest_of_block(number) for number in range(len(_exact_work.KNOWN))) == _exact_work.KNOWN


def test_one_wrong_bit_of_one_operation_is_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**9))
    wrong = SimpleNamespace(sqrt=lambda x: math.sqrt(x) if next(calls) != 777 else math.nextafter(math.sqrt(x), 9))
    monkeypatch.setattr(_exact_work, "math", wrong)

    found = _exact_work.work(-1, 0.02)

    assert found["wrong_count"] == 1


def test_copies_are_measured_and_compared() -> None:
    found = _copy_work.work(-1, 0.01, 2**20)

    assert found["wrong_count"] == 0
    assert isinstance(found["bytes_per_second"], float)
    assert found["bytes_per_second"] > 1e6


def test_a_file_is_read_back_as_it_was_written_and_nothing_is_left(tmp_path: Path) -> None:
    found = _disk_work.work(str(tmp_path), 1.0, 2**20, 2**18)

    assert (found["own_bytes"], found["wrong_count"]) == (2**20, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_changed_on_the_disk_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwrite

    def misplaced(file: int, block: bytes, offset: int) -> int:
        """Write the third block in the second's place, too."""
        if offset == 2 * 2**18:
            written(file, block, 2**18)
        return written(file, block, offset)

    monkeypatch.setattr(os, "pwrite", misplaced)
    found = _disk_work.work(str(tmp_path), 1.0, 2**20, 2**18)

    assert found["wrong_count"] == 1
    assert str(disk_results(ChildAnswer(found))[1].reason) == "read_back_differs"


def test_others_writes_are_what_the_kernel_counts_beyond_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([1000, 1000 + 3 * 2**20])
    monkeypatch.setattr(_disk_work, "written_bytes", lambda disk: next(counts))

    found = _disk_work.work(str(tmp_path), 1.0, 2**20, 2**18)
    write, read = disk_results(ChildAnswer(found))

    assert found["others_bytes"] == 2 * 2**20
    assert (str(write.reason), str(read.reason)) == ("other_writer", "too_few_peers")
    assert write.detail == "2 MiB by others beside 1 MiB"


def test_the_counter_of_a_disk_is_read_in_sectors(tmp_path: Path) -> None:
    (tmp_path / "diskstats").write_text(" 254 0 vda 1 2 3 4 5 6 100 8 9 10 11\n 254 1 vda1 1 2 3 4 5 6 7 8\n")

    assert _disk_work.written_bytes("vda", str(tmp_path)) == 51_200
    assert _disk_work.written_bytes("sdb", str(tmp_path)) is None
    assert _disk_work.written_bytes("vda", str(tmp_path / "none")) is None


def test_a_partition_is_on_its_disk(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    disk = tmp_path / "devices/nvme0n1"
    (disk / "nvme0n1p2").mkdir(parents=True)
    (disk / "nvme0n1p2/partition").write_text("2\n")
    link = tmp_path / f"dev/block/{os.major(device)}:{os.minor(device)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(disk / "nvme0n1p2")

    assert _disk_work.disk_of(str(tmp_path), str(tmp_path)) == "nvme0n1"
    assert _disk_work.disk_of(str(tmp_path), str(tmp_path / "none")) == ""


def test_a_disk_that_refuses_is_a_failure_with_its_words(tmp_path: Path) -> None:
    values = _disk_work.main([str(tmp_path / "gone"), "1", "1048576", "65536"])
    results = disk_results(ChildAnswer(values))

    assert [str(result.reason) for result in results] == ["disk_refuses"] * 2
    assert "No such file or directory" in results[0].detail


def child(**values: object) -> ChildAnswer:
    return ChildAnswer({"kind": "H100", "flop_per_second": 5.0, "digests": {"a": 3}, "wrong_count": 0, **values})


def test_devices_of_one_host_with_another_digest_or_wrong_products_are_named() -> None:
    def reason(*answers: ChildAnswer) -> tuple[str, str]:
        devices = [f"cuda:{index}" for index in range(len(answers))]
        found = tensor_results(devices, answers, "")[0]
        return str(found.reason), found.detail

    assert reason(child(), child()) == ("exact", "cuda:0")
    assert reason(child(), child(), child(digests={"b": 1}))[1].startswith("cuda:2: another result")
    assert reason(child(), child(digests={"a": 1, "b": 1})) == (
        "not_repeatable", "cuda:1: the training step gave 2 results",
    )  # fmt: skip
    assert reason(child(), child(wrong_count=2, compared_count=8)) == ("wrong_result", "cuda:1: 2 of 8 products")
    assert reason(child(), ChildAnswer(reason=CheckReason.TIMED_OUT))[0] == "timed_out"
    assert reason(child(missing="torch"))[0] == "no_torch"


def _has_ended(pid: int) -> bool:
    """Whether a process ends within a minute: one that was killed may be on its way out for a moment."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def test_a_child_that_hangs_is_killed_with_its_own_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(mark)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    for seconds in (1.0, 5.0, 30.0):  # a slow machine may need more before both have begun
        answers = run_all([[sys.executable, "-c", script], [sys.executable, "-c", "print('{\"a\": 1}')"]], seconds)
        if mark.exists() and mark.read_text() and answers[1].reason is None:
            break

    assert [answer.reason for answer in answers] == [CheckReason.TIMED_OUT, None]
    assert answers[1].values == {"a": 1}
    assert _has_ended(int(mark.read_text()))


def test_a_child_that_dies_or_says_nonsense_is_told_with_its_last_words() -> None:
    commands = [[sys.executable, "-c", code] for code in ("raise SystemExit('no room')", "print('[]')", "pass")]
    answers = run_all(commands, 60)

    assert [answer.reason for answer in answers] == [CheckReason.CHECK_DIED] * 3
    assert answers[0].detail == "exit status 1: no room"


def test_the_children_import_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, tocsin.cli.preflight, tocsin.collectors.preflight.checks;"
        "import tocsin.collectors.preflight._tensor_work;"
        "print('{\"heavy\":', int(any(name in sys.modules for name in ('numpy', 'torch', 'kafka'))), '}')"
    )
    assert run_all([[sys.executable, "-c", code]], 20)[0].values == {"heavy": 0}
    assert module_command("_exact_work", 0, 1)[1:] == ["-m", "tocsin.collectors.preflight._exact_work", "0", "1"]

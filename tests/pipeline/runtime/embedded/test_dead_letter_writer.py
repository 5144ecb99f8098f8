"""Letters are written by a thread; floods are cut by host and in all, and counted."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.hand_clock import HandClock
from tocsin.pipeline.runtime.embedded.dead_letter_writer import DeadLetterLimits, DeadLetterWriter
from tocsin.pipeline.runtime.embedded.dead_letters import (
    DEAD_LETTERS,
    LATE,
    MAX_DATA_BYTES,
    DeadLetter,
    DeadLetterLog,
)


def dead_letter(host: str = "n0", data: bytes = b"x", number: int = 0) -> DeadLetter:
    return DeadLetter(number, host, "undecodable", "no record", data)


def kept(folder: Path, kind: str = DEAD_LETTERS) -> list[dict[str, object]]:
    path = folder / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    writer = DeadLetterWriter(tmp_path)
    for number in range(100):
        writer.put(DEAD_LETTERS if number % 2 else LATE, dead_letter(number=number))
    writer.start()
    writer.close()

    assert [one["received_ns"] for one in kept(tmp_path)] == list(range(1, 100, 2))
    assert [one["received_ns"] for one in kept(tmp_path, LATE)] == list(range(0, 100, 2))


def test_one_host_s_flood_leaves_room_for_the_others(tmp_path: Path) -> None:
    clock = HandClock()
    writer = DeadLetterWriter(tmp_path, DeadLetterLimits(burst_count=10, per_second=2.0), clock)
    for _ in range(1000):
        writer.put(DEAD_LETTERS, dead_letter("evil"))
    writer.put(DEAD_LETTERS, dead_letter("n0"))
    clock.seconds = 2.0
    for _ in range(1000):
        writer.put(DEAD_LETTERS, dead_letter("evil"))
    writer.start()
    writer.close()
    hosts = [one["host"] for one in kept(tmp_path)]

    assert hosts.count("evil") == 14
    assert hosts.count("n0") == 1
    assert writer.dropped == {(DEAD_LETTERS, "too_many_of_host"): 1986}


def test_made_up_hosts_are_bounded_together(tmp_path: Path) -> None:
    writer = DeadLetterWriter(tmp_path, DeadLetterLimits(burst_in_all_count=50, in_all_per_second=0.0), HandClock())
    for number in range(10_000):
        writer.put(LATE, dead_letter(f"made-up-{number}"))
    writer.start()
    writer.close()

    assert len(kept(tmp_path, LATE)) == 50
    assert writer.dropped == {(LATE, "too_many_in_all"): 9950}
    assert writer.source_count <= 4096


def test_a_disk_that_stands_costs_letters_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``put`` returns at once while the file is being written."""
    go = threading.Event()
    monkeypatch.setattr(DeadLetterLog, "write_all", lambda _self, _dead_letters: go.wait(60))
    writer = DeadLetterWriter(tmp_path, DeadLetterLimits(queue_bytes=10_000))
    writer.start()
    for _ in range(500):
        writer.put(DEAD_LETTERS, dead_letter(data=b"x" * 1000))

    assert writer.dropped[DEAD_LETTERS, "disk_too_slow"] >= 480
    go.set()
    writer.close()


def test_a_disk_that_refuses_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: DeadLetterLog, _dead_letters: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeadLetterLog, "write_all", full)
    writer = DeadLetterWriter(tmp_path)
    writer.put(DEAD_LETTERS, dead_letter())
    writer.start()
    writer.close()

    assert writer.dropped == {(DEAD_LETTERS, "disk_refuses"): 1}
    assert writer.thread.error is None


def test_a_huge_record_is_kept_in_part(tmp_path: Path) -> None:
    """Two files of 32 MB each hold, whatever is sent."""
    file = DeadLetterLog(tmp_path, DEAD_LETTERS, max_bytes=1_000_000)
    file.write_all([dead_letter(data=b"x" * 15_900_000)] * 8)
    (first, *_) = kept(tmp_path)

    assert first["data_bytes"] == 15_900_000
    assert len(str(first["data_base64"])) < 1.4 * MAX_DATA_BYTES
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3_000_000

"""The journal: what was written is read, in order; damage costs one entry; a torn tail costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.runtime.embedded.persistence.journal import (
    Journal,
    JournalConfig,
    JournalEntry,
    JournalKind,
    ReadTally,
    read_journal,
    remove_before,
    segment_path,
    segments,
    tick_entry,
)
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.reasons import StateLoss

RECORDS = [bytes([65 + number]) * (20 + number) for number in range(8)]


def written(folder: Path, records: list[bytes] = RECORDS) -> Path:
    journal = Journal(folder, 1)
    for record in records:
        journal.append(JournalKind.RECORD, record)
    assert journal.flush()
    journal.close()
    return segment_path(folder, 1)


def read(folder: Path) -> tuple[list[bytes], ReadTally]:
    tally = ReadTally()
    return [entry.payload for entry in read_journal(folder, 1, tally)], tally


def test_entries_come_back_in_order_over_segments(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1)
    journal.append(JournalKind.RECORD, b"one")
    journal.append(JournalKind.TICK, tick_entry(5))
    assert journal.flush()
    assert journal.cut() == 2
    journal.append(JournalKind.RECORD, b"")
    journal.close()
    entries = list(read_journal(tmp_path, 1, ReadTally()))

    assert entries == [
        JournalEntry(JournalKind.RECORD, b"one"),
        JournalEntry(JournalKind.TICK, tick_entry(5)),
        JournalEntry(JournalKind.RECORD, b""),
    ]
    assert entries[1].tick_ns == 5
    assert list(read_journal(tmp_path, 2, ReadTally())) == entries[2:]
    remove_before(tmp_path, 2)
    assert segments(tmp_path) == [2]


def test_what_was_not_flushed_is_not_there_and_what_was_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1)
    journal.append(JournalKind.RECORD, b"flushed")
    assert journal.flush()
    journal.append(JournalKind.RECORD, b"waits")

    assert read(tmp_path)[0] == [b"flushed"]


@given(cut=st.integers(1, 200))
def test_a_torn_tail_is_cut_silently(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = written(tmp_path_factory.mktemp("journal"))
    size = path.stat().st_size
    os.truncate(path, max(12, size - cut))
    found, tally = read(path.parent)

    assert found == RECORDS[: len(found)]
    assert tally.damaged_count == 0
    assert len(found) < len(RECORDS)


@given(byte=st.integers(12, 300), bit=st.integers(0, 7))
def test_a_damaged_bit_costs_one_record(tmp_path_factory: pytest.TempPathFactory, byte: int, bit: int) -> None:
    path = written(tmp_path_factory.mktemp("journal"))
    data = bytearray(path.read_bytes())
    byte = min(byte, len(data) - 1)
    data[byte] ^= 1 << bit
    path.write_bytes(data)
    found, tally = read(path.parent)

    assert len(found) == len(RECORDS) - 1
    assert [record for record in RECORDS if record in found] == found
    assert tally.damaged_count + (tally.torn_bytes > 0) == 1


def test_a_record_that_holds_an_entry_of_another_journal_forges_none(tmp_path: Path) -> None:
    """A stranger's record is bytes as it likes: behind a damaged head it must not be read as a tick."""
    (tmp_path / "other").mkdir()
    forged = written(tmp_path / "other", [b"forged"]).read_bytes()[12:]
    path = written(tmp_path, [b"a" + forged + b"b", b"last"])
    data = bytearray(path.read_bytes())
    data[14] ^= 1
    path.write_bytes(data)

    assert read(tmp_path)[0] == [b"last"]


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1)
    journal.cut()
    journal.cut()
    journal.close()
    segment_path(tmp_path, 2).unlink()

    with pytest.raises(SnapshotError, match="missing"):
        list(read_journal(tmp_path, 1, ReadTally()))


def test_a_full_journal_says_so_and_goes_on_with_the_next_snapshot(tmp_path: Path) -> None:
    lost: list[int] = []
    journal = Journal(tmp_path, 1, JournalConfig(most_bytes=100), lambda: lost.append(1))
    for record in RECORDS:
        journal.append(JournalKind.RECORD, record)

    assert journal.loss is StateLoss.JOURNAL_FULL
    assert lost == [1]
    assert journal.counters["lost_entries"] == len(RECORDS) - 3
    journal.cut()
    assert journal.is_whole


def test_what_the_disk_refuses_waits_and_is_whole_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1)
    real, left = os.write, [30]

    def short(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        count = real(fd, bytes(data[: left[0]]))
        left[0] -= count
        return count

    for record in RECORDS:
        journal.append(JournalKind.RECORD, record)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        assert not journal.flush()
    assert journal.flush()
    assert read(tmp_path)[0] == RECORDS


def test_a_disk_that_refuses_for_long_is_given_up_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1, JournalConfig(most_waiting_bytes=50))

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    for record in RECORDS:
        journal.append(JournalKind.RECORD, record)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        assert journal.flush()  # acknowledgements go on: the judging must not stand still
    assert journal.loss is StateLoss.JOURNAL_UNWRITABLE

from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.collectors.spool import MIN_SEGMENT_BYTES, DiskSpool, MemorySpool, Position, Spool
from tocsin.schemas.errors import SpoolError

LIMIT = 16 * MIN_SEGMENT_BYTES


def read_all(spool: Spool) -> list[bytes]:
    found = []
    while (item := spool.read()) is not None:
        found.append(item[0])
    return found


def number(index: int, size: int) -> bytes:
    return f"{index:08d}".encode().ljust(size, b".")


@pytest.fixture(params=["disk", "memory"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Spool:
    return DiskSpool(str(tmp_path / "spool"), LIMIT) if request.param == "disk" else MemorySpool(LIMIT)


def test_records_come_back_in_order_and_again_until_they_are_committed(spool: Spool) -> None:
    for index in range(5):
        spool.append(number(index, 20))
    first, second = spool.read(), spool.read()
    assert first is not None
    assert second is not None
    spool.commit(first[1])
    spool.rewind()

    assert len(spool) == 4
    assert read_all(spool) == [number(index, 20) for index in range(1, 5)]


def test_the_oldest_go_first_when_there_is_no_room_and_are_counted(spool: Spool) -> None:
    for index in range(400):
        spool.append(number(index, 10_000))

    left = read_all(spool)
    assert left == [number(index, 10_000) for index in range(400 - len(left), 400)]
    assert spool.dropped_count == 400 - len(left) == 400 - len(spool)
    assert 0.8 * LIMIT < len(left) * 10_000 <= LIMIT


def test_a_commit_of_a_dropped_record_is_harmless(spool: Spool) -> None:
    spool.append(b"old")
    old = spool.read()
    assert old is not None
    for index in range(400):
        spool.append(number(index, 10_000))
    before = len(spool)
    spool.commit(old[1])

    assert len(spool) == before


def test_what_was_not_committed_survives_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path)
    spool = DiskSpool(folder, LIMIT)
    for index in range(10):
        spool.append(number(index, 100))
    for _ in range(4):
        item = spool.read()
        assert item is not None
        spool.commit(item[1])
    spool.close()

    again = DiskSpool(folder, LIMIT)
    again.append(b"new")

    assert len(again) == 7
    assert read_all(again) == [*(number(index, 100) for index in range(4, 10)), b"new"]
    again.close()


def test_two_agents_do_not_share_a_spool(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)

    with pytest.raises(SpoolError, match="another agent"):
        DiskSpool(str(tmp_path), LIMIT)
    spool.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SpoolError, match="spool"):
        DiskSpool(str(tmp_path / "file" / "spool"), LIMIT)


def test_all_committed_leaves_no_old_file(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    for index in range(100):
        spool.append(number(index, 10_000))
    last: Position | None = None
    while (item := spool.read()) is not None:
        last = item[1]
    assert last is not None
    spool.commit(last)

    assert len(spool) == 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) == 0
    spool.append(b"x")
    assert read_all(spool) == [b"x"]
    spool.close()


def test_a_record_that_is_damaged_later_costs_its_segment_only(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    for index in range(20):
        spool.append(number(index, 10_000))  # six a segment
    path = sorted(tmp_path.glob("*.spool"))[1]
    data = bytearray(path.read_bytes())
    data[2 * 10_008 + 100] ^= 1
    path.write_bytes(data)

    left = read_all(spool)
    assert left == [number(index, 10_000) for index in (*range(8), *range(12, 20))]
    assert (spool.dropped_count, len(spool)) == (4, 16)
    spool.append(b"after")
    assert read_all(spool) == [b"after"]
    spool.close()


def test_a_spool_whose_folder_vanished_loses_what_was_in_it_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool = DiskSpool(str(folder), LIMIT)
    spool.append(number(0, 60_000))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    spool.append(number(1, 60_000))

    assert read_all(spool) == [number(1, 60_000)]
    assert spool.dropped_count == 1
    spool.close()


def test_room_that_a_crash_left_unwritten_holds_no_records(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    spool.append(b"whole")
    spool.close()
    path = next(tmp_path.glob("*.spool"))
    path.write_bytes(path.read_bytes() + bytes(4096))
    again = DiskSpool(str(tmp_path), LIMIT)

    assert read_all(again) == [b"whole"]
    assert (again.dropped_count, len(again)) == (1, 1)
    again.close()


def test_a_drained_spool_gives_its_room_back(tmp_path: Path) -> None:
    """A file that was deleted but is open keeps its room on the disk."""
    spool = DiskSpool(str(tmp_path), LIMIT)
    for index in range(30):
        spool.append(number(index, 10_000))
    while (item := spool.read()) is not None:
        spool.commit(item[1])
    targets = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]

    assert not [target for target in targets if str(tmp_path) in target and target.endswith("(deleted)")]
    spool.close()


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    cut=st.integers(0, 5000),
    flip=st.none() | st.integers(0, 5000),
)
def test_a_torn_tail_costs_the_tail_only(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cut: int, flip: int | None
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    spool = DiskSpool(str(folder), LIMIT)
    records = [number(index, size + 8) for index, size in enumerate(sizes)]
    for record in records:
        spool.append(record)
    spool.close()
    path = next(iter(folder.glob("*.spool")))
    data = bytearray(path.read_bytes())
    whole = len(data)
    if flip is not None:
        data[flip % whole] ^= 0x55
    torn = bytes(data[: whole - cut % (whole + 1)])
    path.write_bytes(torn)
    edge = min(len(torn), flip % whole if flip is not None else whole)

    again = DiskSpool(str(folder), LIMIT)
    left = read_all(again)
    again.append(b"after")

    ends = [sum(len(r) + 8 for r in records[: n + 1]) for n in range(len(records))]
    assert left == [record for record, end in zip(records, ends, strict=True) if end <= edge]
    kept = sum(len(record) + 8 for record in left)
    assert again.dropped_count == (len(torn) > kept), "what was cut off counts once: how many they were is not known"
    assert read_all(again) == [b"after"]
    again.close()


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["append", "append", "read", "commit", "rewind", "restart"]), max_size=60))
def test_it_is_a_queue(tmp_path_factory: pytest.TempPathFactory, actions: list[str]) -> None:
    folder = str(tmp_path_factory.mktemp("queue"))
    spool = DiskSpool(folder, LIMIT)
    expected: deque[bytes] = deque()
    seen: list[tuple[bytes, Position]] = []
    count = 0
    for action in actions:
        if action == "append":
            expected.append(number(count, 30_000))
            spool.append(expected[-1])
            count += 1
            if len(expected) * 30_000 > LIMIT // 2:
                return
        elif action == "read":
            assert spool.has_unread() == (len(seen) < len(expected))
            item = spool.read()
            assert (item[0] if item else None) == (expected[len(seen)] if len(seen) < len(expected) else None)
            if item:
                seen.append(item)
        elif action == "commit" and seen:
            spool.commit(seen.pop(0)[1])
            expected.popleft()
        elif action == "rewind":
            spool.rewind()
            seen.clear()
        elif action == "restart":
            spool.close()
            spool = DiskSpool(folder, LIMIT)
            seen.clear()
        assert len(spool) == len(expected)
    spool.close()

import os
import struct
import zlib
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.collectors.transport.spool import (
    MIN_SEGMENT_BYTES,
    DiskSpool,
    MemorySpool,
    Position,
    Spool,
)
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


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 9, 13, 17, 100])  # token, number, length, check sum, record
@pytest.mark.parametrize("segment", [1, -1])
def test_a_record_that_is_damaged_later_costs_itself_only(tmp_path: Path, place: int, segment: int) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    for index in range(20):
        spool.append(number(index, 10_000))  # six a segment
    lost = 6 if segment == 1 else 18
    flip(sorted(tmp_path.glob("*.spool"))[segment], place)

    left = read_all(spool)
    assert left == [number(index, 10_000) for index in range(20) if index != lost]
    assert (spool.dropped_count, len(spool)) == (1, 19)
    spool.rewind()
    assert read_all(spool) == left
    assert spool.dropped_count == 1, "counted once"
    spool.append(b"after")
    item = spool.read()
    assert item is not None
    assert item[0] == b"after"
    spool.commit(item[1])
    assert len(spool) == 0
    spool.close()


def test_a_last_record_that_is_damaged_later_is_given_up(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    for index in range(3):
        spool.append(number(index, 100))
    flip(next(tmp_path.glob("*.spool")), 3 * 120 - 1)

    assert read_all(spool) == [number(0, 100), number(1, 100)]
    assert (spool.dropped_count, len(spool)) == (1, 2)
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


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    cut=st.integers(0, 5000),
    flips=st.lists(st.integers(0, 5000), max_size=4),
)
def test_damage_costs_the_records_that_it_touches(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cut: int, flips: list[int]
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
    ends = [sum(len(r) + 20 for r in records[: n + 1]) for n in range(len(records))]
    assert ends[-1] == whole
    torn = whole - cut % (whole + 1)
    places = {flip % whole for flip in flips}
    for place in places:
        data[place] ^= 0x55
    path.write_bytes(bytes(data[:torn]))
    touched = {next(n for n, end in enumerate(ends) if place < end) for place in places if place < torn}
    touched |= {n for n, end in enumerate(ends) if end > torn}
    begun = sum(1 for end, record in zip(ends, records, strict=True) if end - len(record) - 20 < torn)

    again = DiskSpool(str(folder), LIMIT)
    left = read_all(again)

    assert left == [record for n, record in enumerate(records) if n not in touched]
    last = max((n for n in range(len(records)) if n not in touched), default=-1)
    counted = len([n for n in touched if n < last])
    if last + 1 < begun:  # a damaged tail: at least one, at most those that began there
        assert counted + 1 <= again.dropped_count <= counted + begun - last - 1
    else:
        assert again.dropped_count == counted
    again.append(b"after")
    assert read_all(again) == [b"after"]
    again.close()


def test_a_single_flipped_bit_is_counted_as_one_record_wherever_it_is(tmp_path: Path) -> None:
    for offset in range(0, 5 * 50, 3):
        folder = tmp_path / str(offset)
        spool = DiskSpool(str(folder), LIMIT)
        for index in range(5):
            spool.append(number(index, 30))
        spool.close()
        flip(next(folder.glob("*.spool")), offset)
        again = DiskSpool(str(folder), LIMIT)

        assert read_all(again) == [number(index, 30) for index in range(5) if index != offset // 50]
        assert (again.dropped_count, len(again)) == (1, 4)
        again.close()


def test_no_text_in_a_record_is_taken_for_a_record(tmp_path: Path) -> None:
    """What a program prints travels in records: after damage it must not be found as a frame."""
    spool = DiskSpool(str(tmp_path), LIMIT)
    other = DiskSpool(str(tmp_path / "other"), LIMIT)
    other.append(b"TC forged")
    forged = next((tmp_path / "other").glob("*.spool")).read_bytes()
    old = struct.pack("<II", 9, zlib.crc32(b"TC forged")) + b"TC forged"
    spool.append(b"text " + forged + old)
    spool.append(b"next")
    spool.close()
    flip(next(tmp_path.glob("*.spool")), 13)
    again = DiskSpool(str(tmp_path), LIMIT)

    assert read_all(again) == [b"next"]
    other.close()
    again.close()


# --- hostile folders -----------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_spool_is_its_owners_alone(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path / "made" / "spool"), LIMIT)
    spool.append(b"secret")
    spool.close()
    folder = tmp_path / "made" / "spool"

    assert mode_of(folder) == 0o700
    assert {mode_of(path) for path in folder.iterdir()} == {0o600}


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    spool = DiskSpool(str(tmp_path), LIMIT)
    spool.append(b"secret")
    spool.close()

    assert mode_of(tmp_path) == 0o750
    assert all(path.stat().st_mode & 0o007 == 0 for path in tmp_path.iterdir())


def test_odd_names_do_not_keep_the_agent_from_starting(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    spool.append(b"kept")
    spool.close()
    for name in ("7.spool", "00000099-0123456789abcdef.spool"):
        (tmp_path / name).mkdir()
    for name in ("\u00b2\u00b2.spool", "-1.spool", "\u0663-0123456789abcdef.spool", "9" * 200 + ".spool", ".spool"):
        (tmp_path / name).write_bytes(b"x" * 100)
    os.mkfifo(tmp_path / "8.spool")
    os.mkfifo(tmp_path / "00000098-0123456789abcdef.spool")
    again = DiskSpool(str(tmp_path), LIMIT)

    assert read_all(again) == [b"kept"]
    assert (tmp_path / "\u00b2\u00b2.spool").read_bytes() == b"x" * 100, "not ours: left alone"
    again.close()


@pytest.mark.parametrize("text", ["1 -20 -1", "-1 0 0", "1 20 1", "1 999999999999999999999 3", "x", "1 2", "1 ² 1", ""])
def test_a_damaged_cursor_loses_nothing(tmp_path: Path, text: str) -> None:
    spool = DiskSpool(str(tmp_path), LIMIT)
    for index in range(5):
        spool.append(number(index, 30))
    spool.close()
    (tmp_path / "cursor").write_text(text)
    again = DiskSpool(str(tmp_path), LIMIT)

    assert read_all(again) == [number(index, 30) for index in range(5)]
    assert (again.dropped_count, len(again)) == (0, 5)
    again.close()


@pytest.mark.parametrize("name", ["cursor", "cursor.new", "lock", "00000001-0123456789abcdef.spool", "1.spool"])
@pytest.mark.parametrize("hard", [False, True])
def test_links_in_the_folder_reach_no_other_file(tmp_path: Path, name: str, hard: bool) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"v" * 500)
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o777)
    if hard:
        os.link(victim, folder / name)
    else:
        (folder / name).symlink_to(victim)
    try:
        spool = DiskSpool(str(folder), LIMIT)
    except SpoolError:
        assert name == "lock"
    else:
        spool.append(b"record")
        spool.close()

    assert victim.read_bytes() == b"v" * 500


def test_a_strangers_link_in_a_folder_that_is_open_to_all_is_not_followed(tmp_path: Path) -> None:
    target, shared = tmp_path / "target", tmp_path / "shared"
    target.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "spool").symlink_to(target)
    DiskSpool(str(shared / "spool"), LIMIT).close()  # our own link counts
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's link")
    os.chown(shared / "spool", 12345, 12345, follow_symlinks=False)

    with pytest.raises(SpoolError, match="symbolic link of user 12345"):
        DiskSpool(str(shared / "spool"), LIMIT)


def test_a_strangers_folder_that_is_open_to_all_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's folder")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    os.chown(tmp_path / "spool", 12345, 12345)

    with pytest.raises(SpoolError, match="everybody may write"):
        DiskSpool(str(tmp_path / "spool"), LIMIT)


def test_segments_of_the_form_before_are_taken_over(tmp_path: Path) -> None:
    records = [b"one", b"two", b"three"]
    old = b"".join(struct.pack("<II", len(data), zlib.crc32(data)) + data for data in records)
    (tmp_path / "00000003.spool").write_bytes(old[:-1])
    spool = DiskSpool(str(tmp_path), LIMIT)

    assert read_all(spool) == records[:2]
    assert (spool.dropped_count, len(spool)) == (1, 2)
    assert not (tmp_path / "00000003.spool").exists()
    spool.close()


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

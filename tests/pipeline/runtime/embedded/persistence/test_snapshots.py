"""Snapshots on disk: only what changed is written, two generations stay, damage is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.pipeline.core.operator import UNCHANGED
from tocsin.pipeline.runtime.embedded.persistence.snapshots import SnapshotFiles
from tocsin.schemas.errors import SnapshotError


def test_what_was_written_comes_back_and_only_changes_are_written(tmp_path: Path) -> None:
    shelf = SnapshotFiles(tmp_path)
    parts = {"big": b"b" * 5000, "small": b"1"}
    _, first = shelf.write(parts, 1, 10)
    generation, second = shelf.write({**parts, "small": b"2"}, 2, 20)

    assert first - second > 4000
    assert shelf.load(generation) == {**parts, "small": b"2"}
    fresh = SnapshotFiles(tmp_path)
    assert fresh.numbers() == [2, 1]
    found = fresh.manifest(2)
    assert (found.journal_index, found.tick_ns) == (2, 20)
    assert fresh.load(fresh.manifest(1)) == parts


def test_unchanged_parts_stay_over_generations_and_a_start(tmp_path: Path) -> None:
    SnapshotFiles(tmp_path).write({"a": b"a", "b": b"1"}, 1, 1)
    shelf = SnapshotFiles(tmp_path)
    shelf.resume(shelf.manifest(1))
    for number in range(2, 6):
        shelf.write({"a": UNCHANGED, "b": str(number).encode()}, number, number)

    assert shelf.load(shelf.manifest(5)) == {"a": b"a", "b": b"5"}
    assert shelf.numbers() == [5, 4]
    assert shelf.first_journal == 4
    with pytest.raises(SnapshotError, match="never written"):
        shelf.write({"other": UNCHANGED}, 6, 6)


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    """Each generation changes another one of its parts: old packs would hold one living part each."""
    shelf = SnapshotFiles(tmp_path)
    parts = {str(number): bytes([number]) * 100_000 for number in range(20)}
    for number in range(200):
        parts[str(number % 20)] = number.to_bytes(2, "little") * 50_000
        generation, _ = shelf.write(parts, number, number)

    assert shelf.load(generation) == parts
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * 20 * 100_000
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["snapshot-000000000002.json", "parts-000000000002.pack"])
def test_damage_is_seen_and_the_generation_before_is_whole(tmp_path: Path, name: str) -> None:
    shelf = SnapshotFiles(tmp_path)
    shelf.write({"a": b"first"}, 1, 1)
    shelf.write({"a": b"other"}, 2, 2)
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    fresh = SnapshotFiles(tmp_path)

    with pytest.raises(SnapshotError):
        fresh.load(fresh.manifest(2))
    assert fresh.load(fresh.manifest(1)) == {"a": b"first"}


def test_a_write_that_was_cut_short_leaves_the_generation_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = SnapshotFiles(tmp_path)
    shelf.write({"a": b"first"}, 1, 1)

    def killed(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(OSError, match="no space"):
            shelf.write({"a": b"second"}, 2, 2)
    fresh = SnapshotFiles(tmp_path)
    assert fresh.load(fresh.manifest(fresh.numbers()[0])) == {"a": b"first"}
    generation, _ = fresh.write({"a": b"third"}, 3, 3)
    assert fresh.load(generation) == {"a": b"third"}

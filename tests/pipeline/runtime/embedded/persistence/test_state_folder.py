"""The state folder: one engine, the newest readable snapshot, what killed the engine twice."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.pipeline.runtime.embedded.persistence import snapshots
from tocsin.pipeline.runtime.embedded.persistence.journal import JournalKind, tick_entry
from tocsin.pipeline.runtime.embedded.persistence.state_folder import StateFolder
from tocsin.schemas.errors import EngineError, SnapshotError
from tocsin.schemas.reasons import StateLoss
from tocsin.schemas.records import JobKey

JOB = JobKey("c", "j", 0)


def _dies(folder: Path) -> None:
    """A process that ends while it judges."""
    state = StateFolder(folder)
    state.judging(JOB, 7)
    os._exit(9)


def die(folder: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_dies, args=(folder,))
    process.start()
    process.join(60)
    assert process.exitcode == 9


def test_two_engines_on_one_folder_are_refused_and_the_process_is_named(tmp_path: Path) -> None:
    first = StateFolder(tmp_path / "state")
    with pytest.raises(EngineError, match=f"process {os.getpid()}"):
        StateFolder(tmp_path / "state")
    first.close()
    StateFolder(tmp_path / "state").close()


def test_it_goes_on_from_snapshot_and_journal(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    assert state.load().generation is None
    journal = state.begin()
    journal.append(JournalKind.RECORD, b"in the snapshot")
    assert state.write({"a": b"1"}, journal.cut(), 5)
    journal.append(JournalKind.RECORD, b"after it")
    journal.append(JournalKind.TICK, tick_entry(6))
    journal.flush()
    state.close()
    state = StateFolder(tmp_path)
    found = state.load()

    assert found.parts == {"a": b"1"}
    assert [entry.payload for entry in state.entries(found.generation)] == [b"after it", tick_entry(6)]
    assert state.begin().segment == 3


def test_a_damaged_snapshot_gives_way_to_the_one_before_with_all_its_journal(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    journal = state.begin()
    for number in (1, 2, 3):
        assert state.write({"a": b"%d" % number}, journal.cut(), number)
        journal.append(JournalKind.RECORD, b"after %d" % number)
    journal.flush()
    state.close()
    (tmp_path / "snapshot-000000000003.json").write_bytes(b"damaged")
    state = StateFolder(tmp_path)
    found = state.load()

    assert found.parts == {"a": b"2"}
    assert [reason for reason, _ in found.aside] == [StateLoss.UNREADABLE]
    assert [entry.payload for entry in state.entries(found.generation)] == [b"after 2", b"after 3"]


def test_what_cannot_be_read_at_all_is_set_aside_and_kept(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.write({"a": b"1"}, state.begin().cut(), 1)
    state.close()
    (tmp_path / "parts-000000000001.pack").write_bytes(b"x")
    state = StateFolder(tmp_path)
    found = state.load()

    assert (found.generation, found.parts) == (None, {})
    assert [reason for reason, _ in found.aside] == [StateLoss.UNREADABLE]
    kept = tmp_path / "aside" / "000001-state_unreadable"
    assert {path.suffix for path in kept.iterdir()} == {".json", ".pack", ".log"}
    state.begin()
    for _ in range(5):
        state.set_aside(StateLoss.UNREADABLE, "again")
    assert len(list((tmp_path / "aside").iterdir())) == 3


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateFolder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(snapshots.Generation, "__init__", _older(snapshots.Generation.__init__))
        state.write({"a": b"1"}, state.begin().cut(), 1)
    state.close()
    assert [reason for reason, _ in StateFolder(tmp_path).load().aside] == [StateLoss.OTHER_VERSION]


def _older(real: object) -> object:
    def init(self: object, *args: object, **named: object) -> None:
        real(self, *args, **{**named, "state_version": 1})  # type: ignore[operator]  # the dataclass's own

    return init


def test_a_journal_that_lost_something_is_no_basis(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    journal = state.begin()
    state.write({"a": b"1"}, journal.cut(), 1)
    journal._lose(StateLoss.JOURNAL_FULL, "for the test")
    state.close()
    assert [reason for reason, _ in StateFolder(tmp_path).load().aside] == [StateLoss.INCOMPLETE]


def test_a_later_snapshot_makes_it_whole_again(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    journal = state.begin()
    journal._lose(StateLoss.JOURNAL_FULL, "for the test")
    assert state.write({"a": b"1"}, journal.cut(), 1)
    state.close()
    assert StateFolder(tmp_path).load().parts == {"a": b"1"}


def test_a_turn_in_which_the_engine_ended_twice_is_isolated(tmp_path: Path) -> None:
    die(tmp_path)
    state = StateFolder(tmp_path)
    assert state.judging(JOB, 7) == 0
    os.close(state._lock_fd)  # as if it had ended here: the turn stays marked
    state = StateFolder(tmp_path)

    assert state.judging(JOB, 7) == 2
    assert state.judging(JOB, 8) == 0
    assert state.judging(JobKey("c", "other", 0), 7) == 0
    state.judged()
    state.close()
    state = StateFolder(tmp_path)
    assert state.judging(JOB, 7) == 2  # its journal may still hold that turn
    state.judged()
    state.close()


def test_an_end_between_turns_is_nobodys_fault(tmp_path: Path) -> None:
    die(tmp_path)
    state = StateFolder(tmp_path)
    state.judging(JOB, 7)
    state.judged()
    state.close()
    die(tmp_path)
    assert StateFolder(tmp_path).judging(JOB, 7) == 0


def test_a_missing_segment_is_said(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    journal = state.begin()
    generation, _ = state.snapshot_files.write({"a": b"1"}, journal.cut(), 1)
    journal.cut()
    journal.cut()
    (tmp_path / "journal-000000000003.log").unlink()
    with pytest.raises(SnapshotError, match="missing"):
        list(state.entries(generation))


ODD_ISOLATED = {
    "deep": b"[" * 100_000,
    "an object": b'{"abc": 1}',
    "a number": b"3",
    "no text": b"\xff\xfe",
    "a list in a name": b'[[["a", ["b"], 0], 1, 2]]',
    "text as count": b'[[["a", "b", 0], 1, "x"]]',
}


@pytest.mark.parametrize("text", ODD_ISOLATED.values(), ids=ODD_ISOLATED.keys())
def test_an_odd_list_of_isolated_turns_isolates_nothing(
    text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "isolated.json").write_bytes(text)
    state = StateFolder(tmp_path)

    assert state.judging(JobKey("a", "b", 0), 1) == 0
    assert [getattr(record, "reason", "") for record in caplog.records] == [StateLoss.UNREADABLE.value]


def test_entries_beside_an_odd_one_are_kept(tmp_path: Path) -> None:
    (tmp_path / "isolated.json").write_text('[[["c", "j", 0], 7, 2], [["c", "j", 0], 8, null], 5]', encoding="utf-8")
    state = StateFolder(tmp_path)
    assert (state.judging(JOB, 7), state.judging(JOB, 8)) == (2, 0)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_pipe, Path.mkdir])
@pytest.mark.parametrize("name", ["isolated.json", "isolated.new"])
def test_isolated_turns_are_known_where_their_file_is_none(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    die(tmp_path)
    die(tmp_path)
    make(tmp_path / name)
    state = StateFolder(tmp_path)
    assert state.judging(JOB, 7) == 2


@pytest.mark.parametrize("make", [_pipe, Path.mkdir])
def test_a_manifest_that_is_no_file_is_set_aside(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "snapshot-000000000003.json")
    found = StateFolder(tmp_path).load()

    assert [reason for reason, _ in found.aside] == [StateLoss.UNREADABLE]
    assert os.path.lexists(tmp_path / "aside" / "000001-state_unreadable" / "snapshot-000000000003.json")


@pytest.mark.parametrize("make", [_pipe, Path.mkdir])
def test_a_segment_that_is_no_file_is_said(make: Callable[[Path], None], tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    make(tmp_path / "journal-000000000001.log")
    with pytest.raises(OSError, match="journal-000000000001"):
        list(state.entries(None))


def test_a_folder_with_an_old_manifests_name_hinders_no_snapshot(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    (tmp_path / "snapshot-000000000000.json").mkdir()
    assert state.write({"a": b"1"}, state.begin().cut(), 1)


@pytest.mark.parametrize(
    "name", ["\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2-x", "\u0661\u0661\u0661\u0661\u0661\u0661-x", "x", "-"]
)
def test_strange_names_among_what_was_set_aside_are_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "aside" / name).mkdir(parents=True)
    state = StateFolder(tmp_path)
    targets = [state.set_aside(StateLoss.UNREADABLE, "for the test").name for _ in range(5)]

    assert targets == [f"00000{number}-state_unreadable" for number in range(1, 6)]
    assert (tmp_path / "aside" / name).is_dir()


def test_numbers_of_what_was_set_aside_may_get_longer(tmp_path: Path) -> None:
    (tmp_path / "aside" / "999999-x").mkdir(parents=True)
    state = StateFolder(tmp_path)
    targets = [state.set_aside(StateLoss.UNREADABLE, "for the test").name for _ in range(2)]
    assert targets == ["1000000-state_unreadable", "1000001-state_unreadable"]


def test_old_states_with_folders_or_files_hinder_nothing(tmp_path: Path) -> None:
    for number in range(1, 5):
        (tmp_path / "aside" / f"00000{number}-x" / "sub").mkdir(parents=True)
    (tmp_path / "aside" / "000000-x").touch()
    (tmp_path / "aside" / "000001-a-file").touch()
    state = StateFolder(tmp_path)
    state.set_aside(StateLoss.UNREADABLE, "for the test")

    kept = {path.name for path in (tmp_path / "aside").iterdir() if path.is_dir()}
    assert kept == {"000003-x", "000004-x", "000005-state_unreadable"}


@pytest.mark.parametrize("make", [Path.touch, _pipe, lambda path: path.symlink_to("nowhere")])
def test_aside_that_is_no_folder_is_set_aside_itself(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "aside")
    target = StateFolder(tmp_path).set_aside(StateLoss.UNREADABLE, "for the test")
    assert [path.name for path in target.iterdir()] == ["aside.new"]

"""A job that began anew is written whole: names of its old parts may stand for something else now."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tests.pipeline.runtime.embedded.restarts import Life
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.reasons import StateLoss


def test_after_operators_failed_nothing_is_known_until_a_snapshot_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, asked, real = Life(tmp_path), [], EmbeddedEngine._snapshot  # noqa: SLF001  # what it knows

    def watched(self: EmbeddedEngine, known: Collection[str]) -> dict[str, bytes]:
        asked.append(len(known))
        return real(self, known)

    monkeypatch.setattr(EmbeddedEngine, "_snapshot", watched)
    for _ in range(14):
        life.run(1)
        life.written()  # a slow disk would let the second snapshot be skipped
    with monkeypatch.context() as patch:
        patch.setattr(JobPipeline, "on_bundle", lambda *_: 1 / 0)
        life.run(1)
    for _ in range(30):
        life.run(1)
        life.written()
    life.end()

    assert asked[0] == 0, "there was none before"
    assert asked[1] > 0
    assert asked[2] == 0, "the job began anew"
    assert all(asked[3:])


def test_a_snapshot_that_is_being_written_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    recovery = life.service.recovery
    assert recovery is not None
    monkeypatch.setattr(recovery, "_is_writing", True)
    life.run(25)

    assert recovery.counters["snapshots_skipped"] > 0
    assert recovery.figures.get("snapshots", 0) == 0
    monkeypatch.setattr(recovery, "_is_writing", False)
    life.end()
    life.start()
    assert life.service.engine.now_ns == life.job.now_ns
    life.end()


def test_a_journal_that_cannot_be_written_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life, real = Life(tmp_path), os.write
    life.run(3)
    assert life.service.health.ready() == (True, "ok")

    def full(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().name.startswith("journal-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr("tocsin.pipeline.runtime.embedded.persistence.journal.os.write", full)
        life.run(3)
        said = life.service.health.ready()
    assert said == (False, "the journal cannot be written: No space left on device: acknowledgements wait")
    life.run(1)
    assert life.service.health.ready() == (True, "ok")
    life.end()


def test_a_journal_that_was_given_up_is_not_ready_until_a_snapshot_is_written(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run(3)
    recovery = life.service.recovery
    assert recovery is not None
    assert recovery.state.journal is not None
    life.written()  # while one is written no other begins
    recovery.state.journal.lose(StateLoss.JOURNAL_FULL, "for the test")
    is_ready, text = life.service.health.ready()
    assert (is_ready, StateLoss.JOURNAL_FULL.value in text) == (False, True)
    life.run(1)
    life.written()
    assert life.service.health.ready() == (True, "ok")
    life.end()


def _pipe_as_manifest(folder: Path) -> None:
    os.mkfifo(folder / "snapshot-000000000099.json")


def _damaged_and_no_aside(folder: Path) -> None:
    (folder / "snapshot-000000000099.json").write_text("junk", encoding="utf-8")
    (folder / "aside").touch()


def _folder_as_journal(folder: Path) -> None:
    (folder / "journal-000000000099.log").mkdir()


def _deep_list(folder: Path) -> None:
    (folder / "isolated.json").write_text("[" * 100_000, encoding="utf-8")


@pytest.mark.parametrize("spoil", [_pipe_as_manifest, _damaged_and_no_aside, _folder_as_journal, _deep_list])
def test_an_odd_state_folder_does_not_keep_the_engine_from_starting(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").mkdir()
    spoil(tmp_path / "state")
    life = Life(tmp_path)
    life.run(5)

    assert life.service.health.ready() == (True, "ok")
    assert [record for record in caplog.records if record.exc_info and record.exc_info[0]] == []
    assert [record for record in caplog.records if record.levelname == "ERROR"]
    life.end()

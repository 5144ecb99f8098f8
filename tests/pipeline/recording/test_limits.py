"""What is refused before it is read, and that a larger recording can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.recording.hostile import DAY_SECONDS, HOSTILE, many_attempts, many_rows, shared_payload
from tests.pipeline.recording.kit import good_tables, manifest, write_folder
from tocsin.cli.replay import ReplayJob, replay_one
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, limits_of
from tocsin.pipeline.recording.manifest import read_manifest
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.score import score_folder
from tocsin.schemas.errors import ConfigError, RecordingError


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_folder_that_states_too_much_is_refused_by_file(name: str, tmp_path: Path) -> None:
    write, file = HOSTILE[name]
    result = replay_one(ReplayJob(write(tmp_path / name), tmp_path / "verdicts.jsonl", None, 0.0))
    assert file in result.error
    assert len(result.error) < 1_000
    assert not (tmp_path / "verdicts.jsonl").exists()


def test_rows_are_counted_over_all_tables_before_one_is_read(tmp_path: Path) -> None:
    folder = write_folder(many_rows(tmp_path / "r", group_count=1, rows_in_group=1_000), good_tables())
    many_rows(folder, group_count=1, rows_in_group=1_000)
    with pytest.raises(RecordingError, match=r"rows in the tables up to this one: at most 1000 .*--max rows="):
        read_recording(folder, ReadLimits(row_count=1_000))


def test_memory_is_that_of_the_columns_read_and_not_of_the_file(tmp_path: Path) -> None:
    folder = many_rows(tmp_path / "r", group_count=2, rows_in_group=1_000_000)
    size_bytes = (folder / "topology.parquet").stat().st_size
    with pytest.raises(RecordingError, match="gigabytes"):
        read_recording(folder, ReadLimits(memory_bytes=4 * size_bytes))


def test_a_limit_can_be_raised_by_name(tmp_path: Path) -> None:
    write_folder(tmp_path, good_tables(), reported=manifest(61 * DAY_SECONDS))
    with pytest.raises(RecordingError, match="--max days="):
        read_manifest(tmp_path)
    assert read_manifest(tmp_path, limits_of(["days=62"])).job_id == "job"


def test_score_reads_no_more_than_replay(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, good_tables(), reported=manifest(61 * DAY_SECONDS), truth={"faults": []})
    (folder / "verdicts.jsonl").write_text("")
    with pytest.raises(RecordingError, match="days"):
        score_folder(folder)
    assert score_folder(folder, limits_of(["days=62"])) is not None


def test_equal_payloads_are_held_once(tmp_path: Path) -> None:
    folder = shared_payload(tmp_path / "p")
    with pytest.raises(RecordingError, match=r"events.parquet.*payload.*2\d+ bytes in all rows"):
        read_recording(folder)


def test_a_thousand_attempts_are_read_where_asked_for(tmp_path: Path) -> None:
    folder = many_attempts(tmp_path / "a")
    assert read_recording(folder, limits_of(["attempts=5000"])).tables["steps"]


@pytest.mark.parametrize("text", ["rows", "rows=", "rows=-1", "rows=0", "size=3", "rows=nan", "=5", "days=x"])
def test_a_wrong_limit_is_refused_with_the_names(text: str) -> None:
    with pytest.raises(ConfigError, match="rows, gigabytes, days, metrics, attempts"):
        limits_of([text])


def test_nothing_asked_for_is_the_default() -> None:
    assert limits_of([]) == DEFAULT_LIMITS

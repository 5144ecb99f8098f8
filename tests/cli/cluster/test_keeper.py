"""Jobs come back after the JobManager forgot them, and only then."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli.cluster.keeper import JobKeeper
from tocsin.cli.cluster.submit import Submission
from tocsin.pipeline.runtime.flink.options import JobOptions
from tocsin.pipeline.runtime.flink.rest import Checkpoints, FlinkJob
from tocsin.pipeline.runtime.flink.sql import StreamOptions
from tocsin.schemas.errors import EngineError

SHOWN = JobOptions(StreamOptions("a:1"), origin={"client_python": "/old/python", "version": "0"}).to_json()


@dataclass
class FakeRest:
    """What a JobManager would say."""

    url: str = "http://127.0.0.1:1"
    live: list[FlinkJob] = field(default_factory=list)
    restored: str = ""
    shown: str = SHOWN

    def jobs(self) -> list[FlinkJob]:
        return list(self.live)

    def options(self, job_id: str) -> str:
        return self.shown

    def checkpoints(self, job_id: str) -> Checkpoints:
        return Checkpoints(restored_path=self.restored)

    def failures(self, job_id: str) -> list[str]:
        return []


def job(job_id: str, state: str = "RUNNING") -> FlinkJob:
    return FlinkJob(job_id, "tocsin", state, 1.0, 4, 4)


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest(live=[job("j1")])


@pytest.fixture
def taken() -> list[Submission]:
    return []


@pytest.fixture
def keeper(rest: FakeRest, taken: list[Submission], tmp_path: Path) -> JobKeeper:
    def take(submission: Submission) -> str:
        taken.append(submission)
        rest.live.append(job(f"j{len(taken) + 1}"))
        return rest.live[-1].job_id

    found: Any = rest
    return JobKeeper(lambda: found, tmp_path, take)


def checkpoint(folder: Path, number: int, mtime: int) -> str:
    made = folder / "j1" / f"chk-{number}"
    made.mkdir(parents=True)
    (made / "_metadata").write_bytes(b"x")
    os.utime(made / "_metadata", (mtime, mtime))
    return made.as_uri()


def test_a_forgotten_job_begins_at_its_newest_whole_checkpoint(
    keeper: JobKeeper, rest: FakeRest, taken: list[Submission], tmp_path: Path
) -> None:
    newest = checkpoint(tmp_path, 9, 200)
    checkpoint(tmp_path, 10, 100)
    (tmp_path / "j1" / "chk-11").mkdir()  # it was being written
    keeper.look()
    rest.live.clear()
    keeper.look()

    assert [(one.restore, one.is_claimed) for one in taken] == [(newest, True)]
    assert taken[0].origin.client_python == "/old/python"
    assert json.loads(taken[0].options_text) == json.loads(SHOWN)
    keeper.look()
    assert len(taken) == 1


def test_one_without_a_checkpoint_begins_where_it_began(
    keeper: JobKeeper, rest: FakeRest, taken: list[Submission], tmp_path: Path
) -> None:
    rest.restored = (tmp_path.parent).as_uri()
    keeper.look()
    rest.live.clear()
    keeper.look()

    assert taken[0].restore == rest.restored


def test_twice_in_a_row_it_falls_back_on_the_checkpoint_before(
    keeper: JobKeeper, rest: FakeRest, taken: list[Submission], tmp_path: Path
) -> None:
    first = checkpoint(tmp_path, 1, 100)
    keeper.look()
    rest.live.clear()
    keeper.look()
    rest.live.clear()  # and it died again, before it took one of its own
    keeper.look()

    assert [one.restore for one in taken] == [first, first]


@pytest.mark.parametrize("state", ["CANCELED", "FINISHED", "FAILED"])
def test_a_job_that_somebody_ended_stays_away(
    keeper: JobKeeper, rest: FakeRest, taken: list[Submission], state: str
) -> None:
    keeper.look()
    rest.live[0] = replace(rest.live[0], state=state)
    keeper.look()
    rest.live.clear()
    keeper.look()

    assert taken == []
    assert not keeper.kept


def test_jobs_of_others_and_jobs_that_are_back_are_left_alone(
    keeper: JobKeeper, rest: FakeRest, taken: list[Submission]
) -> None:
    rest.shown = ""
    keeper.look()
    assert not keeper.kept
    rest.shown = SHOWN
    keeper.look()
    rest.live[:] = [job("brought back by hand")]
    keeper.look()

    assert taken == []
    assert [kept.job_id for kept in keeper.kept] == ["brought back by hand"]


def test_a_submission_that_fails_is_tried_again(rest: FakeRest, tmp_path: Path) -> None:
    calls: list[Submission] = []

    def refuse(submission: Submission) -> str:
        calls.append(submission)
        raise EngineError("no slots")

    found: Any = rest
    keeper = JobKeeper(lambda: found, tmp_path, refuse)
    keeper.look()
    rest.live.clear()
    for _ in range(2):
        with pytest.raises(EngineError, match="no slots"):
            keeper.look()

    assert len(calls) == 2

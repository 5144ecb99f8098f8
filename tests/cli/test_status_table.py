"""``tocsin status`` and ``tocsin incidents`` from the tables that the distributed engine fills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.test_report_codec import STATE
from tocsin.cli.status import describe
from tocsin.cli.status_table import OLD_STATUS_SECONDS, is_judging, read_status
from tocsin.pipeline.stores.base import JobStatus
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.records import NS_PER_SECOND, JobKey

NOW = time.time_ns() // NS_PER_SECOND * NS_PER_SECOND
HOST = {"last_seen_seconds": 1.0, "clock_offset_seconds": 0.0, "clock_error_seconds": 0.0, "late": 0}
WHOLE = {
    **STATE,
    "cluster": "c1",
    "world_size": 8,
    "groups": 2,
    "step_seconds": 0.5,
    "hook_present": True,
    "hosts": {"n1": HOST, "n2": {**HOST, "last_seen_seconds": 50.0}},
}


def state(job_id: str, age_seconds: float, attempt: int = 0, *, is_known: bool = True, max_step: int = 12) -> JobStatus:
    job = JobKey("c1", job_id, attempt)
    reported = {**WHOLE, "job_id": job_id, "attempt": attempt, "max_step": max_step} if is_known else {}
    return JobStatus(job, NOW - round(age_seconds * NS_PER_SECOND), is_known, reported, [{"detector": "peers"}])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with opened_store("chdb", tmp_path) as opened:
        yield opened


def test_the_newest_state_of_each_attempt_counts(store: SqlStore) -> None:
    store.write_job_status([state("a", 5, max_step=20), state("a", 15, max_step=10), state("b", 3, 1)])
    answer = read_status(store.query, now_ns=NOW)

    assert [(one["job_id"], one["attempt"], one["max_step"]) for one in answer["jobs"]] == [("a", 0, 20), ("b", 1, 12)]
    assert (answer["tick_age_seconds"], answer["is_live"], answer["models"]) == (3.0, True, [{"detector": "peers"}])
    assert answer["connected_hosts"] == ["n1"]
    [first, *more] = describe(answer["jobs"][0], answer["connected_hosts"])
    assert first == "job a (cluster c1, attempt 0)"
    assert "  ranks     8 of 8 known, 7 making steps" in more
    assert any(line.startswith("  abstained 3 x no_model") for line in more)


def test_what_the_engine_forgot_is_not_shown(store: SqlStore) -> None:
    store.write_job_status([state("a", 5), state("b", 20), state("b", 5, is_known=False), state("c", 4_000)])

    assert [one["job_id"] for one in read_status(store.query, now_ns=NOW)["jobs"]] == ["a"]
    assert read_status(store.query, "other", NOW)["jobs"] == []


def test_an_old_state_means_that_nothing_is_judged(store: SqlStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_judging(store.query, "incidents", NOW), "an embedded engine writes no states"
    assert read_status(store.query, now_ns=NOW)["tick_age_seconds"] is None
    store.write_job_status([state("a", OLD_STATUS_SECONDS + 1)])

    assert not is_judging(store.query, "incidents", NOW)
    assert "is 61 s old: nothing is judged now" in capsys.readouterr().err
    assert not read_status(store.query, now_ns=NOW)["is_live"]
    store.write_job_status([state("a", 5)])
    assert is_judging(store.query, "incidents", NOW)

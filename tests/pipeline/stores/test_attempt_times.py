"""Accounts of attempts in the database: the newest of each stays, and a job's attempts are summed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clickhouse_fixtures import opened_store
from tocsin.pipeline.stores.attempt_times import PART_NAMES, AttemptTime, TimePart
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.records import NS_PER_SECOND, JobKey

BEGAN = 1_700_000_000 * NS_PER_SECOND


def account(attempt: int, from_second: int, to_second: int, **parts: int) -> AttemptTime:
    began, until = BEGAN + from_second * NS_PER_SECOND, BEGAN + to_second * NS_PER_SECOND
    told = {TimePart(name): seconds * NS_PER_SECOND for name, seconds in parts.items()}
    return AttemptTime(JobKey("c", "it's", attempt), began, until, until, attempt == 0, told, 10, 2, 11)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with opened_store("chdb", tmp_path) as opened:
        yield opened


def ask(store: SqlStore, query: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.query(query, "JSONEachRow").splitlines()]


def test_the_account_that_was_told_last_stays_and_attempts_are_summed(store: SqlStore) -> None:
    first = account(0, 0, 100, productive=60, start_up=20, scheduling=10)
    store.write_attempt_times([first, account(1, 100, 200, productive=50)])
    store.write_attempt_times([account(1, 100, 300, productive=150, recomputed=30, idle=5)])
    store.write_attempt_times([replace(first, job=JobKey("c", "other"))])

    found = ask(store, ettr_query("it's"))
    assert [(one["attempt"], one["wall_seconds"], one["productive_seconds"]) for one in found] == [
        (0, 100.0, 60.0),
        (1, 200.0, 150.0),
    ]
    for one in found:
        assert sum(one[f"{name}_seconds"] for name in PART_NAMES) == one["wall_seconds"]
    assert [one["job"] for one in ask(store, ettr_query())] == ["it's", "it's", "other"]
    [job] = ask(store, "SELECT * FROM tocsin.ettr_by_job WHERE job = 'it\\'s'")
    assert (job["attempts"], job["wall_seconds"], job["ettr_ratio"], job["is_over"]) == (2, 300.0, 0.7, False)
    assert (job["unattributed_seconds"], job["recomputed_seconds"], job["last_step"]) == (25.0, 30.0, 11)


def test_time_without_an_account_is_unattributed(store: SqlStore) -> None:
    lost, again = account(1, 0, 100, productive=100), account(1, 160, 200, productive=40)
    store.write_attempt_times([lost, again])
    [job] = ask(store, "SELECT * FROM tocsin.ettr_by_job")
    assert (job["attempts"], job["wall_seconds"], job["unattributed_seconds"]) == (1, 200.0, 60.0)

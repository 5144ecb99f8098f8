"""The views for SREs, and the queries of docs/queries.md, against tables with a small fleet's past."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.base import ActionChange, HostHealth
from tocsin.pipeline.stores.rows import Cell
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Advice,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

QUERIES = Path(__file__).parents[3] / "docs" / "queries.md"
SECOND = 1_000_000_000
NOW = time.time_ns() // (60 * SECOND) * 60 * SECOND
DAY = 86_400 * SECOND


def queries() -> dict[str, str]:
    """Return each query of the page by the heading above it; a second one below a heading has ' 2' behind it."""
    found: dict[str, str] = {}
    heading = ""
    for title, sql in re.findall(
        r"^## ([^\n]*)$|^```sql\n(.*?)^```", QUERIES.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        heading = title or heading
        if sql:
            found[f"{heading} 2" if heading in found else heading] = sql
    return found


def told(name: str, ago_days: float, *states: VerdictState, host: str = "n3", **changes: Any) -> list[Verdict]:
    """Return the lines of an incident: the first 10 s after its begin, each next one 20 s later."""
    onset = NOW - int(ago_days * DAY)
    suspects = (Suspect(Component(ComponentKind.HOST, host)),) if host else ()
    base = {"suspects": suspects, "onset_ns": onset, "expires_ns": onset + 600 * SECOND, **changes}
    return [
        verdict(name, update, state=state, detected_ns=onset + (10 + 20 * update) * SECOND, **base)
        for update, state in enumerate(states)
    ]


OPEN, CONFIRMED, CANCELLED, RESOLVED = (
    VerdictState.OPEN,
    VerdictState.CONFIRMED,
    VerdictState.CANCELLED,
    VerdictState.RESOLVED,
)
PEERS = (Evidence("peers", "gpu_power_watts", 2.0, NOW, NOW, "it draws less", model_version="v7"),)
CLOSED = (Evidence("human", "closed", 0.0, NOW, NOW, "closed by ann"), *PEERS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    with opened_store("chdb", tmp_path_factory.mktemp("views")) as opened:
        jobs = [JobKey("c1", f"job-{number}", 0) for number in range(3)]
        lines = [
            *told("stands", 0.01, OPEN, CONFIRMED),
            *told("first", 10, OPEN, CONFIRMED, RESOLVED, job=jobs[1], cause="gpu_card_drop"),
            *told("second", 5, OPEN, CONFIRMED, RESOLVED, job=jobs[2], cause="ecc_error"),
            *told("wrong", 3, OPEN, CONFIRMED, RESOLVED, host="n4", evidence=PEERS),
            *told("freed", 2, OPEN, CONFIRMED, CANCELLED, host="n4", job=jobs[1], evidence=PEERS)[:2],
            told("freed", 2, OPEN, CONFIRMED, CANCELLED, host="n4", job=jobs[1], evidence=CLOSED)[2],
            *told("never", 2, OPEN, CANCELLED, host="n5"),
            *told("mild", 2, CONFIRMED, host="n5", fault=FaultKind.DEGRADED),
            *told("nobody", 1, CONFIRMED, host="", cause="shared_service", fault=FaultKind.FAIL_SLOW),
            *told("long-ago", 120, OPEN, CONFIRMED, RESOLVED, job=jobs[2]),
            *told("canary", 1, OPEN, host="", reason="canary"),
        ]
        for line in lines:
            opened.write_verdicts([line])
        for host in ("n3", "n4"):
            minutes = [HostHealth(jobs[1], host, NOW - DAY - at * 60 * SECOND, 60, 0, 0) for at in range(720)]
            opened.write_host_health(minutes)
        # a minute of two attempts counts once, one without samples not at all
        opened.write_host_health([HostHealth(jobs[2], "n3", NOW - DAY, 60, 0, 0)])
        opened.write_host_health([HostHealth(jobs[2], "n3", NOW - DAY - 9_000 * 60 * SECOND, 0, 0, 12)])
        action = Advice("stands", 1, jobs[1], ActionKind.RESTART, None, "x", "job", NOW, NOW + SECOND, dry_run=True)
        opened.write_actions([ActionChange(action, ActionState.PROPOSED, NOW, "")])
        spent = {TimePart.PRODUCTIVE: 2 * DAY, TimePart.IDLE: DAY}
        opened.write_attempt_times(
            [AttemptTime(jobs[1], NOW - 4 * DAY, NOW, NOW, is_over=False, parts_ns=spent, gpu_count=8)]
        )
        judge(opened, "wrong", is_true=False)
        judge(opened, "second", is_true=True)
        judge(opened, "first", is_true=True)
        yield opened


def judge(store: SqlStore, verdict_id: str, *, is_true: bool) -> None:
    """Write a person's judgement as ``tocsin feedback`` does."""
    row: dict[str, Cell] = {
        "cluster": "c1",
        "verdict_id": verdict_id,
        "is_true": is_true,
        "note": "looked at it",
        "actor": "ann",
        "ts": "2026-01-01 00:00:00",
    }
    store.backend.insert("tocsin.feedback", list(row), [row])


def ask(store: SqlStore, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.query(sql, "JSONEachRow").splitlines()]


@pytest.mark.parametrize("title", queries())
def test_each_documented_query_runs_and_finds_something(store: SqlStore, title: str) -> None:
    assert ask(store, queries()[title])


def test_what_is_wrong_now(store: SqlStore) -> None:
    found = ask(store, queries()["What is wrong now"])
    assert [row["verdict_id"] for row in found] == ["mild", "nobody", "stands"]


def test_effective_training_time_with_what_is_unattributed(store: SqlStore) -> None:
    [row] = ask(store, queries()["Effective training time"])
    assert (row["job"], row["attempts"], row["is_over"], row["ettr"]) == ("job-1", 1, False, 0.5)
    assert (row["idle_seconds"], row["unattributed_seconds"]) == (86_400.0, 86_400.0)


def test_a_host_s_past_ends_after_90_days_and_has_the_end_of_each(store: SqlStore) -> None:
    found = ask(store, queries()["What this host has done in 90 days"])
    assert [row["verdict_id"] for row in found] == ["stands", "second", "first"]
    assert [row["ended"] is None for row in found] == [True, False, False]
    assert [row["judgement"] for row in found] == ["", "right", "right"]


def test_repeat_offenders_are_those_who_were_upheld(store: SqlStore) -> None:
    [row] = ask(store, queries()["Which machines come back again and again"])
    assert (row["host"], int(row["incidents"]), int(row["by_people"]), int(row["jobs"])) == ("n3", 2, 2, 2)
    assert row["causes"] == ["ecc_error", "gpu_card_drop"]


def test_false_accusations_are_those_judged_wrong_and_those_taken_back_once_confirmed(store: SqlStore) -> None:
    found = ask(store, queries()["Who was accused falsely"])
    assert [(row["verdict_id"], row["how_known"], row["judged_by"]) for row in found] == [
        ("freed", "taken back", ""),
        ("wrong", "judged wrong", "ann"),
    ]
    assert found[1]["note"] == "looked at it"
    assert found[0]["detector"] == "peers"


def test_what_nobody_judged_yet(store: SqlStore) -> None:
    found = ask(store, queries()["Who was accused falsely 2"])
    assert [row["verdict_id"] for row in found] == ["stands", "freed"]


def test_times_to_detect_count_from_the_begin_of_the_fault(store: SqlStore) -> None:
    found = {row["cause"]: row for row in ask(store, queries()["How long until a fault is detected"])}
    assert set(found) == {"process_frozen", "ecc_error", "gpu_card_drop", "shared_service"}
    assert found["ecc_error"]["mean_seconds_to_open"] == 10
    assert found["ecc_error"]["mean_seconds_to_confirm"] == 30
    assert found["shared_service"]["mean_seconds_to_confirm"] == 10
    assert int(found["process_frozen"]["incidents"]) == 2, "stands and freed; wrong is no detection"


def test_alarms_are_divided_by_the_days_that_machines_were_watched(store: SqlStore) -> None:
    [days] = ask(store, "SELECT sum(machine_days) AS days FROM tocsin.machine_days")
    assert days["days"] == pytest.approx(1.0, abs=0.01)
    found = {row["detector"]: row for row in ask(store, queries()["How often each detector raises an alarm"])}
    assert int(found["peers"]["alarms"]) == 2
    assert (found["peers"]["model_version"], found["hang"]["model_version"]) == ("v7", "")
    assert int(found["peers"]["false_alarms"]) == 2
    assert int(found["hang"]["alarms"]) == 4, "stands, first, second, never; a degraded one is no alarm"
    assert found["hang"]["alarms_per_machine_day"] == pytest.approx(4.0, rel=0.02)


def test_no_view_has_a_canary(store: SqlStore) -> None:
    assert ask(store, "SELECT * FROM tocsin.incident_times WHERE verdict_id = 'canary'") == []

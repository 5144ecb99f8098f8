"""What every store promises: rows, order of updates, queries. The same tests for chDB and for a server."""

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.samples import JOB, ONSET, SECOND, WAITING, verdict
from tocsin.pipeline.incidents.proposals import changes_of
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth
from tocsin.pipeline.stores.incident_queries import page_queries
from tocsin.pipeline.stores.sql_store import SqlStore, text_literal
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.covers import Cover
from tocsin.schemas.errors import ConfigError, StoreError
from tocsin.schemas.migrations import migrations
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Advice, Component, ComponentKind, Suspect, VerdictState


@pytest.fixture(scope="module", params=["chdb", "server"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    with opened_store(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def ask(store: SqlStore, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.query(sql, "JSONEachRow").splitlines()]


def incident(store: SqlStore, verdict_id: str, view: str = "incidents_all") -> dict[str, Any]:
    found = ask(store, f"SELECT * FROM tocsin.{view} WHERE verdict_id = {text_literal(verdict_id)}")
    assert len(found) == 1, found
    return found[0]


# --- incidents -----------------------------------------------------------------------------------


def test_an_incident_answers_what_since_where_why_and_what_was_done(store: SqlStore) -> None:
    store.write_verdicts([verdict("answers")])
    row = incident(store, "answers", "incidents_current")
    columns = [
        "what",
        "since",
        "machine",
        "ranks",
        "why",
        "action",
        "evidence",
        "confidence",
        "job",
        "verdict_id",
    ]
    assert list(row)[:10] == columns
    assert [row[c] for c in columns] == [
        "hangs",
        "2025-10-31 23:59:50.000",
        "n3",
        "3",
        "process_frozen: a rank's process exists but does not run",
        "restart (proposed)",
        "7 peers wait in all_reduce #41 of group dp0",
        0.5,
        "job-1",
        "answers",
    ]
    assert row["summary"] == (
        "host n3 (rank 3): process frozen since 23:59:50 UTC; 7 peers wait in all_reduce #41 of group dp0"
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0, 1, 2)])
def test_the_latest_update_wins_in_whatever_order_and_however_often(store: SqlStore, order: tuple[int, ...]) -> None:
    name = f"order-{order}"
    for update in order:
        store.write_verdicts([verdict(name, update)])
    assert incident(store, name)["update_number"] == 2
    store.write_verdicts([verdict(name, update) for update in order])  # and in one batch
    assert incident(store, name)["update_number"] == 2


def test_updates_over_a_months_end_stay_one_row_of_one_partition(store: SqlStore) -> None:
    store.write_verdicts([verdict("month")])
    SqlStore(store.backend).write_verdicts([verdict("month", 1)])  # as after a restart
    parts = ask(store, "SELECT DISTINCT toYYYYMM(opened) AS month FROM tocsin.incidents WHERE verdict_id = 'month'")
    assert parts == [{"month": 202510}]


def test_only_open_and_confirmed_are_current(store: SqlStore) -> None:
    for state in VerdictState:
        store.write_verdicts([verdict(f"state-{state}"), verdict(f"state-{state}", 1, state=state, reason="recovered")])
    current = {r["verdict_id"] for r in ask(store, "SELECT verdict_id FROM tocsin.incidents_current")}
    assert {i for i in current if i.startswith("state-")} == {"state-open", "state-confirmed"}
    assert incident(store, "state-resolved")["summary"].endswith("(resolved: recovered)")


NASTY = "it's \"q\" \\n \n\t\0 `b` ☃ \u2028 \x1b[31m'); DROP TABLE tocsin.incidents; --"


def test_any_text_is_stored_as_it_is(store: SqlStore) -> None:
    job = JobKey(NASTY, NASTY, 0)
    host = Component(ComponentKind.HOST, NASTY)
    said = replace(WAITING, text=NASTY, metric=NASTY)
    store.write_verdicts([verdict(NASTY, job=job, suspects=(Suspect(host),), cause=NASTY, evidence=(said,))])
    row = incident(store, NASTY)
    assert (row["job"], row["cause"], row["cluster"]) == (NASTY, NASTY, NASTY)
    raw = ask(store, f"SELECT * FROM tocsin.incidents FINAL WHERE verdict_id = {text_literal(NASTY)}")[0]
    assert raw["suspects"] == [NASTY]
    assert json.loads(raw["evidence_json"])[0]["text"] == NASTY
    assert row["summary"].isprintable(), "it goes to terminals"


def test_half_a_character_becomes_a_question_mark(store: SqlStore) -> None:
    store.write_verdicts([verdict("half", cause="a\udc80b")])
    assert incident(store, "half")["cause"] == "a?b"


def test_numbers_that_are_none_are_kept(store: SqlStore) -> None:
    odd = replace(WAITING, suspect_value=math.nan, peer_value=math.inf, text="")
    store.write_verdicts([verdict("nan", evidence=(odd,))])
    raw = ask(store, "SELECT evidence_json FROM tocsin.incidents WHERE verdict_id = 'nan'")[0]
    assert json.loads(raw["evidence_json"])[0]["suspect_value"] == "nan"


def test_what_nobody_renews_expires_with_its_actions_when_its_time_is_over(store: SqlStore) -> None:
    """What is closed, not over yet or another's stays as it was; twice changes nothing more."""
    left = verdict("left")
    store.write_verdicts([left, verdict("later", expires_ns=left.expires_ns + 2), verdict("others")])
    store.write_verdicts([verdict("done"), verdict("done", 1, state=VerdictState.RESOLVED)])
    for one in ("left", "later", "others"):
        store.write_actions(list(changes_of(verdict(one), ())))
    known = ["left", "later", "done"]

    assert store.expire_overdue(left.expires_ns - 1, known) == ()
    assert store.expire_overdue(left.expires_ns + 1, known) == ("left",)
    assert store.expire_overdue(left.expires_ns + 1, known) == ()
    rows = ask(
        store,
        "SELECT verdict_id, state, reason, action, update_number FROM tocsin.incidents FINAL"
        " WHERE verdict_id IN ('left', 'done', 'later') ORDER BY verdict_id",
    )
    assert [tuple(row.values()) for row in rows] == [
        ("done", "resolved", "process_stopped_peers_wait", "restart", 1),
        ("later", "open", "process_stopped_peers_wait", "restart", 0),
        ("left", "expired", "engine_restarted", "none", 1),
    ]
    states = {one.action.verdict_id: one.state.value for one in store.actions_of(["left", "later", "others"])}
    assert states == {"left": "expired", "later": "proposed", "others": "proposed"}
    assert {"later", "others"} <= set(store.expire_overdue(left.expires_ns + 2))
    assert not ask(store, "SELECT 1 FROM tocsin.incidents_current")


def test_the_newest_update_of_each_verdict(store: SqlStore) -> None:
    store.write_verdicts([verdict("newest"), verdict("newest", 3)])
    detected_ns = verdict("newest").detected_ns

    assert store.newest_updates(detected_ns)["newest"] == 3
    assert "newest" not in store.newest_updates(detected_ns + 10**12)


def test_nothing_to_write_adds_no_row(store: SqlStore) -> None:
    # FINAL: the database merges in the background, and rows that were replaced are gone when it does.
    count = "SELECT count() AS n FROM tocsin.incidents FINAL"
    before = ask(store, count)
    store.write_verdicts([])
    store.write_evidence([])

    assert ask(store, count) == before


# --- the other tables ----------------------------------------------------------------------------


def test_writing_evidence_again_changes_nothing(store: SqlStore) -> None:
    host = Component(ComponentKind.HOST, "n3")
    points = [
        EvidencePoint("ev", "cpu_util_ratio", host, ONSET + n * SECOND, math.nan if n == 1 else 0.1 * n, 0.9, 0.8, 1, 7)
        for n in range(3)
    ]
    for _ in range(2):
        store.write_evidence(points)
    found = ask(
        store,
        "SELECT suspect_value, peer_count FROM tocsin.incident_evidence FINAL WHERE verdict_id = 'ev' ORDER BY ts",
    )
    assert [r["suspect_value"] for r in found] == [0, None, 0.2]  # JSON has no NaN
    assert {r["peer_count"] for r in found} == {7}


def test_what_was_done_shows_in_the_incident(store: SqlStore) -> None:
    asked = Advice(
        "done",
        0,
        JOB,
        ActionKind.RESTART,
        Component(ComponentKind.HOST, "n3"),
        "r",
        "b",
        ONSET,
        ONSET,
        dry_run=True,
    )
    store.write_verdicts([verdict("done")])
    store.write_actions([ActionChange(asked, ActionState.DONE, ONSET + 2)])
    store.write_actions([ActionChange(asked, ActionState.PROPOSED, ONSET + 1)])  # late
    assert incident(store, "done")["action"] == "restart n3 (done, dry run)"


def test_the_fullest_row_of_a_minute_stays(store: SqlStore) -> None:
    minute = HostHealth(JOB, "n3", ONSET, 60, 2, 1, 0.7, "cpu_util_ratio")
    store.write_host_health([minute])
    store.write_host_health([replace(minute, minute_ns=ONSET - 20 * SECOND, sample_count=30)])
    found = ask(store, "SELECT minute, samples, worst_metric FROM tocsin.host_health FINAL")
    assert found == [{"minute": "2025-10-31 23:59:00", "samples": 60, "worst_metric": "cpu_util_ratio"}]


# --- queries -------------------------------------------------------------------------------------


def test_names_without_a_database_are_ours(store: SqlStore) -> None:
    """What a person types."""
    tables = store.query("SHOW TABLES", "TSV").decode().split()

    assert {"incidents", "incidents_current", "incident_evidence", "actions", "host_health"} <= set(tables)
    assert store.query("SELECT count() >= 0 FROM incidents", "TSV") == b"1\n"


def test_a_users_query_may_change_nothing(store: SqlStore) -> None:
    for sql in (
        "DROP TABLE tocsin.incidents",
        "INSERT INTO tocsin.actions (verdict_id) VALUES ('x')",
        "SET readonly = 0",
    ):
        with pytest.raises(StoreError, match="a query is one SELECT"):
            store.query(sql, "CSV")


@pytest.mark.parametrize("sql", ["SELECT * FROM nix", "SELEC 1", "SELECT 1 FORMAT Nix"])
def test_a_wrong_query_is_one_clear_line(store: SqlStore, sql: str) -> None:
    with pytest.raises(StoreError) as caught:
        store.query(sql, "CSV")
    assert "\n" not in str(caught.value)
    assert "DB::Exception" not in str(caught.value)


@pytest.mark.parametrize("fmt", ["DataFrame", "CSV; DROP", "", "arrowtable"])
def test_a_format_that_is_none_is_refused(store: SqlStore, fmt: str) -> None:
    with pytest.raises(ConfigError, match="format"):
        store.query("SELECT 1", fmt)


def test_threads_lose_no_row(store: SqlStore) -> None:
    def write(thread: int) -> None:
        for n in range(10):
            store.write_verdicts([verdict(f"thread-{thread}-{n}")])
            store.query("SELECT count() FROM tocsin.incidents_current", "CSV")

    threads = [threading.Thread(target=write, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        store.query("SELECT uniq(verdict_id) FROM tocsin.incidents WHERE verdict_id LIKE 'thread-%'", "CSV") == b"40\n"
    )


# --- schema --------------------------------------------------------------------------------------


def test_migrating_again_does_nothing(store: SqlStore) -> None:
    assert store.migrate() == store.check() == len(migrations())
    assert ask(store, "SELECT count() AS n FROM tocsin.schema_migrations FINAL") == [{"n": len(migrations())}]


def test_what_was_dropped_is_made_again_and_the_rest_stays(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    store.write_verdicts([verdict("kept")])
    for name in ("VIEW tocsin.incidents_all", "TABLE tocsin.actions", "TABLE tocsin.host_health"):
        store.backend.execute(f"DROP {name}")

    with pytest.raises(StoreError, match="'tocsin migrate' makes what was dropped again"):
        store.query("SELECT * FROM tocsin.incidents_all", "CSV")
    assert store.migrate() == len(migrations())
    [record] = caplog.records
    assert record.__dict__["tables"] == ["actions", "host_health", "incidents_all"]
    assert incident(store, "kept")["verdict_id"] == "kept"
    assert ask(store, "SELECT count() AS n FROM tocsin.host_health") == [{"n": 0}]
    assert store.migrate() == len(migrations())
    assert len(caplog.records) == 1


# --- history -------------------------------------------------------------------------------------


def test_the_history_keeps_each_update_once_and_no_renewal(store: SqlStore) -> None:
    opened, confirmed = verdict("hist"), verdict("hist", 1, state=VerdictState.CONFIRMED)
    renewed = verdict("hist", 2, state=VerdictState.CONFIRMED, reason="still_true")
    store.write_verdicts([opened, confirmed])
    store.write_verdicts([confirmed, renewed])
    query = (
        "SELECT update_number, state, reason FROM tocsin.incident_updates FINAL WHERE verdict_id = 'hist' ORDER BY 1"
    )
    reported = [(row["update_number"], row["state"]) for row in ask(store, query)]
    assert reported == [(0, "open"), (1, "confirmed")]

    assert store.expire_overdue(renewed.expires_ns + 1, ["hist"]) == ("hist",)
    assert list(ask(store, query)[-1].values()) == [3, "expired", "engine_restarted"]


def test_the_latest_word_of_people_is_kept(store: SqlStore) -> None:
    said = Feedback("c", "v1", is_true=False, note="it's the cable", actor="uid:7", ts_ns=5 * NS_PER_SECOND)
    later = replace(said, is_true=True, note="", ts_ns=6 * NS_PER_SECOND)
    host = Component(ComponentKind.HOST, "n1")
    work = Maintenance("m1", "c", host, NS_PER_SECOND, 9 * NS_PER_SECOND, "new cable", "uid:7", NS_PER_SECOND)
    ended = replace(work, end_ns=3 * NS_PER_SECOND, ts_ns=3 * NS_PER_SECOND)
    store.write_notes([later, ended, said, work])
    store.write_notes([said, work])

    assert ask(store, "SELECT * EXCEPT (written, ts) FROM tocsin.feedback FINAL") == [
        {"cluster": "c", "verdict_id": "v1", "is_true": True, "note": "", "actor": "uid:7"}
    ]
    assert ask(store, page_queries("v1")["feedback"])[0]["is_true"] is True
    [row] = ask(store, "SELECT * EXCEPT (written) FROM tocsin.maintenance FINAL")
    assert (row["maintenance_id"], row["target_kind"], row["target"], row["reason"]) == (
        "m1",
        "host",
        "n1",
        "new cable",
    )
    assert (str(row["begins"])[:19], str(row["ends"])[:19]) == ("1970-01-01 00:00:01", "1970-01-01 00:00:03")


def test_the_page_of_a_fleet_incident_names_what_it_stands_for_and_the_latest_word_counts(store: SqlStore) -> None:
    store.write_verdicts([verdict(one) for one in ("fleet", "a", "b", "c")])
    cluster = JOB.cluster
    store.write_covers([Cover(cluster, one, "fleet", SECOND) for one in ("b", "a", "c")])
    store.write_covers([Cover(cluster, "c", "", 2 * SECOND)])

    assert [one["verdict_id"] for one in ask(store, page_queries("fleet")["covers"])] == ["a", "b"]
    assert [one["incident_id"] for one in ask(store, page_queries("a")["covered_by"])] == ["fleet"]
    assert ask(store, page_queries("c")["covered_by"]) == []

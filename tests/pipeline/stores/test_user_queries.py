"""What a user's query may be, and that it harms nobody else; in a folder and on a server."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.hostile import hostile
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.stores import user_queries
from tocsin.pipeline.stores.chdb_store import ChdbBackend
from tocsin.pipeline.stores.incident_queries import incidents_query, is_incidents_query
from tocsin.pipeline.stores.native_blocks import encode_native
from tocsin.pipeline.stores.shown import encoded, encoded_columns
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.pipeline.stores.user_queries import (
    FORBIDDEN_FUNCTIONS,
    HARMLESS_TABLE_FUNCTIONS,
    LIMITS,
    QuerySlots,
)
from tocsin.schemas.errors import StoreAwayError, StoreError

ENDLESS = "SELECT count() FROM numbers(1000000000000000000) WHERE sipHash64(number) = 0 OR 'marker' = ''"


@pytest.fixture(scope="module", params=["chdb", "server"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    with opened_store(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        opened.write_verdicts([verdict("mine")])
        yield opened


def incidents(store: SqlStore) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.query(incidents_query(everything=True), "JSONEachRow").splitlines()]


def test_no_hostile_query_runs_and_nobody_notices_any(store: SqlStore, tmp_path: Path) -> None:
    secret, written = tmp_path / "secret", tmp_path / "written"
    secret.write_text("do not read me\n")
    for sql in hostile(secret, written):
        with pytest.raises(StoreError) as caught:
            store.query(sql, "CSV")
        assert "do not read me" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not written.exists(), sql
    assert [row["verdict_id"] for row in incidents(store)] == ["mine"]
    assert store.query("SELECT 42, currentDatabase()", "TSV") == b"42\ttocsin\n"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT number, throwIf(number = 90000) FROM numbers(100000)",
        "SELECT number FROM numbers(1000000000000000000)",
        "SELECT * FROM generateRandom('a String')",
        "SELECT groupArray(number) FROM numbers(1000000000)",
        "SELECT repeat('a', 1000000) FROM numbers(1000000)",
        "SELECT number FROM numbers(100000) ORDER BY throwIf(number = 5)",
    ],
)
def test_a_query_that_fails_on_its_way_leaves_nothing_behind(store: SqlStore, sql: str) -> None:
    for fmt in ("JSONEachRow", "CSV"):
        with pytest.raises(StoreError):
            store.query(sql, fmt)
        assert [row["verdict_id"] for row in incidents(store)] == ["mine"]
        assert store.query("SELECT 42", "CSV") == b"42\n"


def test_the_engines_own_queries_begin_anew_after_one_that_failed(store: SqlStore) -> None:
    with pytest.raises(StoreError):
        store.backend.select("SELECT number AS x, throwIf(number = 90000) FROM numbers(100000)")
    assert store.backend.select("SELECT 42 AS x") == [{"x": 42}]
    with pytest.raises(StoreError):
        store.backend.execute("SELECT number, throwIf(number = 90000) FROM numbers(100000)")
    store.write_verdicts([verdict("after")])
    assert store.backend.select("SELECT count() AS n FROM tocsin.incidents WHERE verdict_id = 'after'") in (
        [{"n": 1}],
        [{"n": "1"}],
    )
    store.backend.execute("ALTER TABLE tocsin.incidents DELETE WHERE verdict_id = 'after' SETTINGS mutations_sync = 1")


def test_a_query_is_stopped_by_its_time_limit(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**LIMITS, "max_execution_time": 1}
    monkeypatch.setattr("tocsin.pipeline.stores.chdb_store.LIMITS", short)
    monkeypatch.setattr("tocsin.pipeline.stores.clickhouse_store._READ_SETTINGS", {**short, "readonly": 1})
    with pytest.raises(StoreError, match="TIMEOUT_EXCEEDED"):
        store.query(ENDLESS, "CSV")
    assert [row["verdict_id"] for row in incidents(store)] == ["mine"]


def test_slow_queries_hold_up_neither_verdicts_nor_incidents(store: SqlStore) -> None:
    """As many as there are places: one more would have to wait, ``tocsin incidents`` does not."""
    errors: list[str] = []

    def ask() -> None:
        try:
            store.query(ENDLESS, "CSV")
        except StoreError as error:
            errors.append(str(error))

    slow = [threading.Thread(target=ask) for _ in range(user_queries.MAX_QUERIES_COUNT)]
    for thread in slow:
        thread.start()
    store.write_verdicts([verdict("mine", 1)])
    assert [row["update_number"] for row in incidents(store)] in ([1], ["1"])
    assert all(thread.is_alive() for thread in slow)
    while any(thread.is_alive() for thread in slow):
        store.backend.execute("KILL QUERY WHERE query LIKE '%marker%' AND query NOT LIKE 'KILL%' ASYNC")
        for thread in slow:
            thread.join(0.1)
    assert len(errors) == len(slow)


def test_every_table_function_of_the_engine_is_judged(store: SqlStore) -> None:
    """A new chDB may bring new ones: each must be put on one of the two lists."""
    names = set(store.query("SELECT lower(name) FROM system.table_functions", "TSV").decode().split())
    assert names <= FORBIDDEN_FUNCTIONS | HARMLESS_TABLE_FUNCTIONS
    assert not FORBIDDEN_FUNCTIONS & HARMLESS_TABLE_FUNCTIONS
    others = "SELECT lower(name) FROM system.functions WHERE toString(categories) = 'AI' OR name ILIKE '%dns%'"
    assert set(store.query(others, "TSV").decode().split()) <= FORBIDDEN_FUNCTIONS


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("select 'file(1) INTO OUTFILE system.users; SET a = 1'", b"file(1) INTO OUTFILE system.users; SET a = 1\n"),
        ("/* SET */ with 1 as file select file -- url('x')", b"1\n"),
        ("(SELECT 1) UNION ALL (SELECT 1);", b"1\n1\n"),
        ("SELECT $$it's$$ AS x", b"it\\'s\n"),
        ("SELECT count() FROM system.tables WHERE database = 'tocsin' AND name = 'incidents'", b"1\n"),
        ("SELECT sum(number) FROM numbers(3)", b"3\n"),
        ("EXISTS TABLE incidents", b"1\n"),
        ("SELECT 1 AS settings, 2 AS `format` FORMAT JSONEachRow", b'{"settings":1,"format":2}\n'),
        ("SELECT 1 WHERE 0 FORMAT CSVWithNames", b'"1"\n'),
        ("SELECT getSetting('readonly')", b"1\n"),
    ],
)
def test_what_reads_runs(store: SqlStore, sql: str, wanted: bytes) -> None:
    assert store.query(sql, "TSV") == wanted


# --- what is printed -----------------------------------------------------------------------------

EVIL = "a\x1b[2J\x07\r\nnothing is wrong now\x9b1m\u202eb\u2028\u200d\x7f"
SHOWN = r"a\x1b[2J\x07\r\nnothing is wrong now\x9b1m\u202eb\u2028\u200d\x7f"


@pytest.mark.parametrize("fmt", ["Pretty", "PrettyCompact", "PrettySpace", "Vertical", "CSV", "TSVRaw", "XML"])
def test_values_are_shown_in_one_line(store: SqlStore, fmt: str) -> None:
    text = f"unhex('{EVIL.encode().hex()}')"
    answer = store.query(f"SELECT {text} AS one, [{text}] AS many, map({text}, 1) AS named", fmt).decode()
    assert SHOWN in answer
    assert "\nnothing is wrong" not in answer
    assert set(answer) & set(EVIL) <= set("a[2Jnothing is wrong now1mb\n")


def test_a_columns_name_is_shown_in_one_line(store: SqlStore) -> None:
    assert store.query("SELECT 1 AS `a\nb\x1b` FORMAT Vertical", "CSV").endswith(b"\na\\nb\\x1b: 1\n")


@pytest.mark.parametrize("fmt", ["JSON", "JSONEachRow", "JSONCompactEachRow", "JSONStringsEachRow"])
def test_json_is_escaped_and_means_the_same(store: SqlStore, fmt: str) -> None:
    answer = store.query(f"SELECT unhex('{EVIL.encode().hex()}') AS x", fmt).decode()
    assert set(answer) & set(EVIL) <= set("a[2Jnothing is wrong now1mb\n\r")
    found = json.loads(answer)
    assert EVIL in (found["data"][0]["x"] if fmt == "JSON" else found["x"] if "Compact" not in fmt else found[0])


def test_formats_that_are_no_text_are_exact(store: SqlStore) -> None:
    assert store.query("SELECT unhex('ff001b0a')", "RowBinary") == b"\x04\xff\x00\x1b\x0a"


@given(st.lists(st.text(), min_size=1))
def test_cleaning_changes_no_printable_text(texts: list[str]) -> None:
    rows = [text.encode("utf-8", "replace") for text in texts]
    clean = encoded(encode_native([("x", "String")], [rows]))
    assert clean is not None
    if all(text.isprintable() for text in texts):
        assert clean == encode_native([("x", "String")], [rows])
    assert encoded_columns([("x", "String")], [rows], "TSV") == encode_native([("x", "String")], [rows])


# --- places and ends -----------------------------------------------------------------------------


def test_the_query_of_incidents_is_known_whatever_the_job() -> None:
    for job in (None, "j1", "it's", "x') OR 1 --", "\udc80"):
        for everything in (True, False):
            for prefix in (None, "a1", "' OR 1 --"):
                query = incidents_query(everything=everything, job_id=job, id_prefix=prefix)
                assert is_incidents_query(query)
    assert not is_incidents_query(incidents_query() + " OFFSET 1")


def test_a_query_that_finds_no_place_is_told_so() -> None:
    lanes = QuerySlots(queue_seconds=0.0)
    with contextlib.ExitStack() as held:
        for _ in range(user_queries.MAX_QUERIES_COUNT):
            held.enter_context(lanes.slot("SELECT 1"))
        with pytest.raises(StoreAwayError, match="4 queries of users are running"), lanes.slot("SELECT 1"):
            pass
        with lanes.slot(incidents_query()):
            pass
    with lanes.slot("SELECT 1"):
        pass


def test_closing_stops_what_users_ask(tmp_path: Path) -> None:
    from tests.pipeline.stores.test_chdb_store import in_process

    code = f"""
        import threading, time
        from tocsin.pipeline.stores.chdb_store import ChdbStore
        from tocsin.schemas.errors import StoreError
        store = ChdbStore(db); store.migrate()
        def ask():
            try: store.query({ENDLESS!r}, "CSV")
            except StoreError as error: print(error)
        slow = threading.Thread(target=ask); slow.start()
        running = "SELECT query FROM system.processes WHERE query NOT LIKE '%processes%'"
        while "marker" not in str(store.backend.select(running)):
            pass
        store.close(); slow.join()
        try: store.query("SELECT 1", "CSV")
        except StoreError as error: print(error)
    """
    said = in_process(tmp_path, code).splitlines()
    assert "QUERY_WAS_CANCELLED" in said[0]
    assert "was closed" in said[1]


def test_a_type_that_cannot_be_cleaned_is_refused_where_it_would_be_shown(store: SqlStore) -> None:
    if isinstance(store.backend, ChdbBackend):
        with pytest.raises(StoreError, match="a column's type cannot be shown as Pretty"):
            store.query("SELECT 'a\\nb'::Variant(String, Int8)", "Pretty")
        assert store.query("SELECT 'a\\nb'::Variant(String, Int8) AS x", "JSONEachRow") == b'{"x":"a\\nb"}\n'

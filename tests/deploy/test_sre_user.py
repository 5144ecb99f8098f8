"""The read-only user for SREs and Grafana: what it may and may not do, by ClickHouse's own access control in chDB."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.deploy import files
from tests.deploy.grafana_macros import dashboard_queries
from tests.deploy.sre_user import FILE, NAME, users_of
from tests.pipeline.stores.test_views import queries
from tocsin.schemas.migrations import migrations

REFUSED = "ACCESS_DENIED"
READONLY = "READONLY"
FORBIDDEN = {
    "INSERT INTO tocsin.actions (verdict_id) SELECT 'x'": REFUSED,
    "ALTER TABLE tocsin.incidents DELETE WHERE 1": REFUSED,
    "DROP TABLE tocsin.incidents": REFUSED,
    "DROP VIEW tocsin.incidents_all": REFUSED,
    "TRUNCATE TABLE tocsin.incidents": REFUSED,
    "CREATE TABLE tocsin.own (a Int32) ENGINE = Memory": REFUSED,
    "CREATE VIEW tocsin.own AS SELECT 1": REFUSED,
    "CREATE DATABASE own": REFUSED,
    "CREATE USER other": REFUSED,
    "GRANT SELECT ON *.* TO default": REFUSED,
    "SYSTEM FLUSH LOGS": REFUSED,
    "SELECT * FROM private.secrets": REFUSED,
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')": REFUSED,
    "SELECT * FROM file('/etc/passwd', 'LineAsString')": REFUSED,
    "SELECT * FROM remote('127.0.0.1:9000', 'system.one')": REFUSED,
    "SET max_execution_time = 61": "SETTING_CONSTRAINT_VIOLATION",
    "SET max_memory_usage = 0": "SETTING_CONSTRAINT_VIOLATION",
    "SET readonly = 0": READONLY,
    "SELECT 1 SETTINGS max_result_rows = 0": "SETTING_CONSTRAINT_VIOLATION",
}
"""Statement -> ClickHouse's word for why not."""
ALLOWED = [
    *queries().values(),
    *dashboard_queries(),
    *(f"SELECT * FROM tocsin.{name}" for name in sorted(set().union(*(one.makes for one in migrations())))),
    "SET max_execution_time = 30",
    "SHOW TABLES FROM tocsin",
    "SELECT name FROM system.columns WHERE database = 'tocsin'",
]
_FILL = """
import sys
from pathlib import Path
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.stores.chdb_store import ChdbStore
store = ChdbStore(Path(sys.argv[1]) / "db")
store.migrate()
store.write_verdicts([verdict("one")])
store.backend.execute("CREATE DATABASE private")
store.backend.execute("CREATE TABLE private.secrets (a Int32) ENGINE = Memory")
store.close()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each statement with its answer."""
    folder = tmp_path_factory.mktemp("sre")
    subprocess.run([sys.executable, "-c", _FILL, str(folder)], check=True, timeout=60, cwd=files.ROOT)
    statements = [*ALLOWED, *FORBIDDEN, "SELECT verdict_id FROM tocsin.incidents"]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.deploy.sre_user", str(folder)],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=files.ROOT,
    )
    return dict(zip(statements, json.loads(ran.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("statement", ALLOWED)
def test_it_may_ask_all_that_the_docs_ask(answers: dict[str, str], statement: str) -> None:
    assert answers[statement].isdigit(), answers[statement]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_it_may_change_nothing_and_reach_nothing_else(answers: dict[str, str], statement: str) -> None:
    assert not answers[statement].isdigit()
    assert FORBIDDEN[statement] in answers[statement]


def test_it_sees_the_rows(answers: dict[str, str]) -> None:
    assert answers["SELECT verdict_id FROM tocsin.incidents"] == "1"


def test_no_password_fits_before_one_is_set() -> None:
    text = FILE.read_text("utf-8")
    assert f"<{NAME}>" in text
    assert "<password_sha256_hex>" + 64 * "0" in text, "no text is known that has this hash"
    assert "password_sha256_hex" not in users_of(FILE)

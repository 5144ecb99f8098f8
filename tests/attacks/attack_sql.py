"""H4: one user's query and the incidents of everybody."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from tests.attacks.registry import Outcome, attack
from tests.pipeline.stores.hostile import hostile
from tocsin.pipeline.stores.user_queries import QueryRefusedError, check_calls, check_reading

_FAILING = (
    "SELECT number, throwIf(number = 90000) FROM numbers(100000)",
    "SELECT number FROM numbers(1000000000000000000)",
    "SELECT * FROM generateRandom('a String')",
    "SELECT groupArray(number) FROM numbers(1000000000)",
    "SELECT repeat('a', 1000000) FROM numbers(1000000)",
    "SELECT count() FROM numbers(1000000000000000000) WHERE sipHash64(number) = 0",
)
_CHILD = """
import json, sys
from pathlib import Path
from tests.attacks.attack_sql import try_all
print(json.dumps(try_all(Path(sys.argv[1]))))
"""


@attack("H4", "words of what ClickHouse's parser writes")
def judged() -> Outcome:
    """The judgement alone, without an engine: what each statement looks like after the parser."""
    canonical = (
        *("SET offset = 100000", "USE system", "KILL QUERY WHERE 1", "INSERT INTO FUNCTION file('x') SELECT 1"),
        *("SELECT 1 INTO OUTFILE 'x'", "SELECT * FROM url('x')", "SELECT file('/etc/shadow')", "SHOW PROCESSLIST"),
        *("SELECT * FROM `file`('x')", "WITH a AS (SELECT * FROM `FILE`('x')) SELECT * FROM a", "SYSTEM SHUTDOWN"),
        *("SELECT 1 SETTINGS readonly = 0", "SELECT * FROM system.users", "SELECT 1 PARALLEL WITH SELECT 2"),
        *("EXPLAIN SELECT * FROM remote('h', 'a', 'b')", "DESCRIBE TABLE s3('x')", "SELECT {a:Identifier}"),
    )
    passed = []
    for sql in canonical:
        try:
            check_reading(sql)
            check_calls(sql)
        except QueryRefusedError:
            continue
        passed.append(sql)
    return Outcome(len(canonical), f"{len(passed)} pass: {passed}", held=not passed)


@attack("H4", "queries against a real engine", slow=True)
def queries() -> Outcome:
    """Each hostile query, each that fails on its way; after each the incidents are as before."""
    with tempfile.TemporaryDirectory() as name:
        ran = subprocess.run([sys.executable, "-c", _CHILD, name], capture_output=True, text=True, check=True)
    tries, wrong = json.loads(ran.stdout)
    return Outcome(tries, f"{len(wrong)} did harm: {wrong[:3]}", held=not wrong)


def try_all(folder: Path) -> tuple[int, list[str]]:
    """Try them on a database in a folder; return how many, and those that ran, wrote, or changed an answer."""
    from tests.pipeline.stores.samples import verdict
    from tocsin.pipeline.stores.chdb_store import ChdbStore
    from tocsin.pipeline.stores.incident_queries import incidents_query
    from tocsin.pipeline.stores.user_queries import LIMITS
    from tocsin.schemas.errors import StoreError

    secret, written = folder / "secret", folder / "written"
    secret.write_text("do not read me")
    store = ChdbStore(folder / "db")
    store.migrate()
    store.write_verdicts([verdict("mine")])
    wanted, wrong, tries = store.query(incidents_query(everything=True), "JSONEachRow"), [], 0
    with mock.patch("tocsin.pipeline.stores.chdb_store.LIMITS", {**LIMITS, "max_execution_time": 2}):
        for sql in (*hostile(secret, written), *_FAILING):
            tries += 1
            try:
                store.query(sql, "CSV")
            except StoreError:
                if not written.exists() and store.query(incidents_query(everything=True), "JSONEachRow") == wanted:
                    continue
            wrong.append(sql)
    store.close()
    return tries, wrong

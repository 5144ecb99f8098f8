"""Queries that no user may run, and how each could be dressed up."""

import re
from collections.abc import Iterator
from pathlib import Path

STATEMENTS = (
    "SET offset=100000",
    "SET max_memory_usage=1000",
    "SET readonly = 0",
    "USE system",
    "KILL QUERY WHERE 1",
    "SYSTEM FLUSH LOGS",
    "SYSTEM SHUTDOWN",
    "DROP TABLE tocsin.incidents",
    "TRUNCATE TABLE tocsin.incidents",
    "ALTER TABLE tocsin.incidents DELETE WHERE 1",
    "CREATE TABLE tocsin.x (a Int32) ENGINE = Memory",
    "CREATE TEMPORARY TABLE x (a Int32)",
    "CREATE FUNCTION f AS x -> x",
    "CREATE USER bob",
    "GRANT ALL ON *.* TO default",
    "INSERT INTO tocsin.actions (verdict_id) VALUES ('x')",
    "INSERT INTO tocsin.actions (verdict_id) SELECT 'x' SETTINGS readonly = 0",
    "SELECT 1; SELECT 2",
    "SELECT 1; SET offset = 100000",
    "SELECT 1 PARALLEL WITH SELECT 2",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_memory_usage = 0",
    "SELECT * FROM (SELECT 1 SETTINGS max_execution_time = 0)",
    "SELECT * FROM {t:Identifier}",
    "SHOW PROCESSLIST",
    "SHOW ACCESS",
    "SELECT * FROM system.processes",
    "SELECT * FROM system.query_log",
    "SELECT * FROM `system`.`server_settings`",
    "SELECT (SELECT any(name) FROM system.users)",
    "EXPLAIN SELECT * FROM system.named_collections",
    "ATTACH TABLE x FROM '/tmp'",
    "BACKUP TABLE tocsin.incidents TO Disk('default', 'x')",
    "CHECK TABLE tocsin.incidents",
    "OPTIMIZE TABLE tocsin.incidents FINAL",
    "BEGIN TRANSACTION",
    "DELETE FROM tocsin.incidents WHERE 1",
    "SELECT sleep(3)",
    "SELECT sleepEachRow(1) FROM numbers(60)",
    "SELECT addressToLine(1)",
    "SELECT hasColumnInTable('127.0.0.2:9', 'u', 'p', 'd', 't', 'c')",
    "SELECT aiGenerate('x')",
    "SELECT catboostEvaluate('/x', 1)",
    "",
    ";",
    "-- nothing",
)

CALLS = (
    "file('{file}', 'LineAsString')",
    "fileCluster('default', '{file}', 'LineAsString')",
    "url('http://127.0.0.1:9/', 'LineAsString')",
    "urlCluster('default', 'http://127.0.0.1:9/', 'LineAsString')",
    "s3('https://bucket.s3.amazonaws.com/x.csv', 'CSV')",
    "hdfs('hdfs://127.0.0.1:9/x', 'CSV')",
    "azureBlobStorage('a', 'b', 'c')",
    "executable('x.sh', 'TSV', 'a Int32')",
    "remote('127.0.0.1', 'system', 'one')",
    "remoteSecure('127.0.0.1', 'system', 'one')",
    "cluster('default', 'system', 'one')",
    "clusterAllReplicas('default', 'system', 'one')",
    "mysql('127.0.0.1:9', 'a', 'b', 'c', 'd')",
    "postgresql('127.0.0.1:9', 'a', 'b', 'c', 'd')",
    "mongodb('127.0.0.1:9', 'a', 'b', 'c', 'd', 'a Int32')",
    "redis('127.0.0.1:9', 'key', 'key String')",
    "sqlite('{file}', 'x')",
    "jdbc('x', 'y')",
    "odbc('x', 'y')",
    "iceberg('file://{file}')",
    "deltaLake('file://{file}')",
    "merge('system', '.*')",
    "dictionary('x')",
    "loop(system.one)",
    "python('x')",
    "Python(x)",
    "arrowstream('x')",
    "eval('SELECT 1')",
)

_DRESSES = (
    "SELECT * FROM {call}",
    "SELECT * FROM /* {{ */ {call} -- harmless",
    "SELECT * FROM {spaced}",
    "SELECT * FROM {quoted}",
    "SELECT * FROM {shouted}",
    "WITH x AS (SELECT * FROM {call}) SELECT * FROM x",
    "SELECT count() FROM numbers(1), {call} AS t",
    "SELECT 1 IN (SELECT * FROM {call})",
    "SELECT 1 UNION ALL (SELECT * FROM {call})",
    "DESCRIBE TABLE {call}",
    "EXPLAIN PLAN SELECT * FROM {call}",
    "SELECT * FROM view(SELECT * FROM {call})",
    "INSERT INTO FUNCTION {call} SELECT 1",
)

_NAME = re.compile(r"^\w+")


def hostile(file: Path, written: Path) -> Iterator[str]:
    """All of them.

    Args:
        file: one that must not be read.
        written: one that must not be made.
    """
    yield from STATEMENTS
    for one in CALLS:
        call = one.format(file=file)
        forms = {
            "call": call,
            "spaced": _NAME.sub(lambda found: f"{found[0]} /* x */ \n ", call),
            "quoted": _NAME.sub(lambda found: f"`{found[0]}`", call),
            "shouted": _NAME.sub(lambda found: f'"{found[0].upper()}"', call),
        }
        yield from (dress.format(**forms) for dress in _DRESSES)
    yield f"SELECT file('{file}')"
    yield f"SELECT `file`(concat('{file}', ''))"
    yield f"SELECT arrayMap(x -> file(x), ['{file}'])"
    for into in ("INTO OUTFILE", "into/**/outfile", "INTO\n--x\nOUTFILE"):
        yield f"SELECT 1 {into} '{written}'"
        yield f"SELECT 1 {into} '{written}' FORMAT CSV"
        yield f"EXPLAIN AST SELECT 1 {into} '{written}'"
        yield f"(SELECT 1) {into} '{written}' APPEND"

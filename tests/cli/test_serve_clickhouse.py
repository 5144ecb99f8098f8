"""The embedded engine with a server for its incidents: the same rows, and a server that is away at the start."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.collectors.peer import wait_until
from tests.pipeline.stores.samples import verdict
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.cli.main import main
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.wire.codec import encode

MakeEndpoint = Callable[..., ClickHouseEndpoint]
TABLES = {
    "incidents": "EXCEPT updated",
    "incident_evidence": "EXCEPT written",
    "actions": "EXCEPT written",
    "host_health": "EXCEPT written",
}


def tables_of(store: SqlStore, folder: Path) -> dict[str, list[Any]]:
    """What the engine writes of a job with a slow rank that recovers and a dead one."""
    store.migrate()
    job = FakeJob(JobShape())
    service = EngineService(ServiceConfig(f"unix:{folder}/e.sock", folder / "c.sock"), store, lambda: job.now_ns)
    service.start(ticking=False)

    def run(seconds: int) -> None:
        for _ in range(seconds):
            for record in job.second():
                service.engine.take(encode(record))
            service.tick(job.now_ns)

    run(40)
    job.slow(3, "forward", 4.0)
    run(30)
    job.kill(5)
    run(20)
    service.stop()
    found = {}
    for table, columns in TABLES.items():
        answer = store.query(f"SELECT * {columns} FROM tocsin.{table} FINAL ORDER BY ALL", "JSONCompactEachRow")
        found[table] = [json.loads(line) for line in answer.splitlines()]
    store.close()
    return found


def test_the_same_engine_writes_the_same_rows_to_both(private_endpoint: MakeEndpoint, tmp_path: Path) -> None:
    endpoint = private_endpoint()
    endpoint.start()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    on_server = tables_of(ClickHouseStore(parse_address(endpoint.url)), tmp_path / "a")
    in_folder = tables_of(ChdbStore(tmp_path / "db"), tmp_path / "b")
    assert on_server == in_folder
    assert all(in_folder.values()), {table: len(rows) for table, rows in in_folder.items()}


def serve(url: str, data: Path) -> Child:
    listen = f"unix:{data}/e.sock"
    command = [sys.executable, "-m", "tocsin", "serve", "--clickhouse", url, "--data", str(data), "--listen", listen]
    return Child(Program("tocsin serve", command, data / "serve.log"))


def test_an_engine_starts_without_its_server_and_goes_on_when_it_comes(
    private_endpoint: MakeEndpoint, tmp_path: Path, capfd: Any
) -> None:
    port = free_port()
    url = f"clickhouse://127.0.0.1:{port}"
    (tmp_path / "open-verdicts.json").write_text('{"version": 1, "verdict_ids": ["mine"]}')
    endpoint = private_endpoint(port=port)
    endpoint.start()
    store = ClickHouseStore(parse_address(url))
    store.migrate()
    store.write_verdicts([verdict("mine"), verdict("others")])
    endpoint.stop()
    engine = serve(url, tmp_path)
    try:
        engine.start()
        engine.wait_ready(lambda: engine.said("agents on"), 90)
        assert engine.said("does not answer")
        assert engine.said("verdicts wait in memory until it does")
        endpoint.start()
        # whose own time was over long ago; the engine that said it has no state here
        wait_until(lambda: b"expired" in store.query("SELECT state FROM incidents FINAL", "TSV"), 60)
        rows = store.query("SELECT verdict_id, state FROM incidents FINAL ORDER BY verdict_id", "CSV")
        assert rows == b'"mine","expired"\n"others","open"\n'
        store.close()
        assert main(["incidents", "--data", str(tmp_path)]) == 0, "asked through the running engine"
        assert "nothing is wrong now" in capfd.readouterr().out, "what expired is no now"
        assert main(["incidents", "--all", "--data", str(tmp_path)]) == 0
        assert "2 incidents" in capfd.readouterr().out
    finally:
        engine.stop()


def test_an_engine_that_is_refused_says_why_and_ends(private_endpoint: MakeEndpoint, tmp_path: Path) -> None:
    endpoint = private_endpoint()
    endpoint.start()
    url = endpoint.url.replace("//", "//nobody:x@")
    command = [sys.executable, "-m", "tocsin", "serve", "--clickhouse", url, "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("tocsin serve: clickhouse://nobody@127.0.0.1")
    assert "Authentication failed" in done.stderr

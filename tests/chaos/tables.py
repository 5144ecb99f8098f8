"""What stands in the incident tables at last, and what should: rows, and what ``tocsin incidents`` shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.embedded_rows import EmbeddedRows
from tocsin.cli.database import database
from tocsin.cli.incidents import fetch
from tocsin.cli.paths import database_folder
from tocsin.pipeline.incidents.proposals import changes_of, standing_after
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.schemas.verdicts import Advice, Verdict

Rows = Mapping[str, Any]
Tables = Mapping[str, Sequence[Rows]]
"""Table -> rows of one job."""

_QUERIES = {
    "incidents": "SELECT * EXCEPT updated FROM tocsin.incidents FINAL ORDER BY verdict_id",
    "incident_evidence": "SELECT e.* EXCEPT written, i.job_id AS job_id FROM tocsin.incident_evidence AS e FINAL"
    " INNER JOIN (SELECT DISTINCT verdict_id, job_id FROM tocsin.incidents) AS i ON i.verdict_id = e.verdict_id",
    "host_health": "SELECT * EXCEPT (written) FROM tocsin.host_health FINAL ORDER BY host, minute",
    "job_status": "SELECT * EXCEPT (written, status_json), status_json FROM tocsin.job_status FINAL ORDER BY attempt",
    "ettr": "SELECT * EXCEPT (written) FROM tocsin.ettr FINAL ORDER BY attempt, began",
    "ettr_by_job": "SELECT * EXCEPT (job), job AS job_id FROM tocsin.ettr_by_job",
    "startup": "SELECT * EXCEPT (written) FROM tocsin.startup FINAL ORDER BY attempt, began, start_kind, stage",
    "actions": "SELECT * EXCEPT written FROM tocsin.actions FINAL ORDER BY verdict_id, update_number, kind, target",
}
_SHOWN = "tocsin incidents"
_BESIDE = ("incident_evidence", "host_health", "job_status", "ettr", "ettr_by_job", "startup")


def write_embedded(data: Path, verdicts: Sequence[Verdict], rows: Sequence[EmbeddedRows] = ()) -> None:
    """Write verdicts, and what stands beside them, as ``tocsin serve`` does, to a data folder."""
    store = ChdbStore(database_folder(data))
    proposed: dict[str, tuple[Advice, ...]] = {}
    try:
        store.migrate()
        store.write_verdicts(verdicts)
        for verdict in verdicts:
            before = proposed.pop(verdict.verdict_id, ())
            if changes := list(changes_of(verdict, before)):
                store.write_actions(changes)
            if actions := standing_after(verdict, before):
                proposed[verdict.verdict_id] = actions
        for one in rows:
            store.write_evidence(one.write.evidence)
            store.write_host_health(one.write.health)
            store.write_job_status(one.statuses)
            store.write_attempt_times(one.write.attempt_times)
            store.write_attempt_starts(one.write.attempt_starts)
    finally:
        store.close()


def read_tables(data: Path, address: ClickHouseAddress | None = None) -> dict[str, Tables]:
    """Job -> its tables, in a data folder or on a server."""
    found: dict[str, dict[str, list[Rows]]] = {}
    with database(data, address) as ask:
        for table, query in _QUERIES.items():
            for row in map(json.loads, ask(query, "JSONEachRow").splitlines()):
                found.setdefault(row["job_id"], {}).setdefault(table, []).append(row)
    for row in fetch(data, address, everything=True):
        found.setdefault(row["job"], {}).setdefault(_SHOWN, []).append(row)
    return {job: dict(tables) for job, tables in found.items()}


def difference(wanted: Tables, found: Tables) -> str:
    """The first thing that differs, "" = nothing; what stands beside verdicts only where ``wanted`` has any of it."""
    left_out = () if "job_status" in wanted else _BESIDE
    for table in (*(name for name in _QUERIES if name not in left_out), _SHOWN):
        ours, theirs = ({_name_of(row): row for row in one.get(table, ())} for one in (wanted, found))
        for what, names in (("lacks", ours.keys() - theirs.keys()), ("has also", theirs.keys() - ours.keys())):
            if names:
                return f"{table} {what} {len(names)} rows, first {min(names)}"
        for name, row in ours.items():
            fields = [field for field, value in row.items() if theirs[name].get(field) != value]
            if fields:
                field = fields[0]
                return f"{table}, {name}, {field}: {theirs[name].get(field)!r:.200}, must be {row[field]!r:.200}"
        if len(wanted.get(table, ())) != len(found.get(table, ())):
            return f"{table}: {len(found.get(table, ()))} rows, must be {len(wanted.get(table, ()))}"
    return ""


def _name_of(row: Rows) -> str:
    """A verdict's, a point's, a minute's, an attempt's, or an action's.

    Of one verdict there may be several actions to one target, one after the other.
    """
    if "verdict_id" not in row:
        return " ".join(str(row[name]) for name in ("host", "minute", "attempt", "began") if name in row)
    if "metric" in row:
        return " ".join(str(row[name]) for name in ("verdict_id", "metric", "component", "ts"))
    action = f"{row['target']}{row.get('kind', '')}{row.get('update_number', '')}" if "target" in row else ""
    return f"{row['verdict_id']}{action}"

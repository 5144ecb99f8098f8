"""What stands in the incident tables at last, and what should: rows, and what ``tocsin incidents`` shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.cli.database import database
from tocsin.cli.incidents import fetch
from tocsin.cli.paths import database_folder
from tocsin.pipeline.incidents.proposals import changes_of, standing_after
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.schemas.verdicts import Action, Verdict

Rows = Mapping[str, Any]
Tables = Mapping[str, Sequence[Rows]]
"""Table -> rows of one job."""

_QUERIES = {
    "incidents": "SELECT * EXCEPT updated FROM tocsin.incidents FINAL ORDER BY verdict_id",
    "actions": "SELECT * EXCEPT written FROM tocsin.actions FINAL ORDER BY verdict_id, update_number, kind, target",
}
_SHOWN = "tocsin incidents"


def write_embedded(data: Path, verdicts: Sequence[Verdict]) -> None:
    """Write verdicts as ``tocsin serve`` does, to a data folder."""
    store = ChdbStore(database_folder(data))
    proposed: dict[str, tuple[Action, ...]] = {}
    try:
        store.migrate()
        store.write_verdicts(verdicts)
        for verdict in verdicts:
            before = proposed.pop(verdict.verdict_id, ())
            if changes := list(changes_of(verdict, before)):
                store.write_actions(changes)
            if actions := standing_after(verdict, before):
                proposed[verdict.verdict_id] = actions
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
    """The first thing that differs, "" = nothing."""
    for table in (*_QUERIES, _SHOWN):
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
    """A verdict's, or an action's: of one verdict there may be several to one target, one after the other."""
    action = f"{row['target']}{row.get('kind', '')}{row.get('update_number', '')}" if "target" in row else ""
    return f"{row['verdict_id']}{action}"

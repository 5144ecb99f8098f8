"""Writes the verdicts that people judged as JSON lines, from the incident database; ``tocsin backtest`` reads them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import json_text

QUERY: Final = (
    "SELECT f.cluster AS cluster, f.verdict_id AS verdict_id, i.job_id AS job_id, i.attempt AS attempt,"
    " i.fault AS fault, i.cause AS cause, i.suspects AS suspects, i.state AS state,"
    " toUnixTimestamp64Nano(i.onset) AS onset_ns, toUnixTimestamp64Nano(i.detected) AS changed_ns,"
    " toString(f.is_true) AS is_true, f.note AS note, f.actor AS actor, toUnixTimestamp64Nano(f.ts) AS ts_ns"
    " FROM (SELECT * FROM tocsin.feedback FINAL) AS f INNER JOIN (SELECT * FROM tocsin.incidents FINAL) AS i"
    " ON f.cluster = i.cluster AND f.verdict_id = i.verdict_id ORDER BY ts_ns, verdict_id"
)
"""The latest judgement of each verdict whose incident is still in the database."""
_NUMBERS: Final = ("attempt", "onset_ns", "changed_ns", "ts_ns")
STDOUT: Final = "-"


def export(query: Callable[[str, str], bytes], file: str) -> int:
    """Write the judged verdicts to a file, or to the standard output for ``-``; return their number.

    Args:
        query: function (SQL, format) -> answer of the incident database.
        file: path of the file.

    Raises:
        ConfigError: the file cannot be written.
        StoreError: the database cannot be asked.
    """
    lines = [json_text(_object_of(json.loads(line))) for line in query(QUERY, "JSONEachRow").splitlines()]
    text = "".join(f"{line}\n" for line in lines)
    if file == STDOUT:
        sys.stdout.write(text)
        return len(lines)
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--export", file, f"a file that can be written to ({error.strerror or error})") from error
    return len(lines)


def _object_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with numbers as numbers: some versions of the database quote large ones."""
    numbers = {name: int(row[name]) for name in _NUMBERS}
    return {**row, **numbers, "is_true": row["is_true"] == "true"}

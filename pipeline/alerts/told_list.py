"""What the queue's file says to a person: what stands, and what waits to be sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.alerts.notice import AlertSeverity, NoticeKind
from tocsin.pipeline.stores.rows import one_line, summary_of
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.errors import ConfigError, SchemaError

_BUSY_SECONDS: Final = 5.0
_STANDING: Final = (
    "SELECT 'standing', route, receiver, verdict_id, kind, severity, event, note, told_ns, 0 FROM told"
    " WHERE kind NOT IN ('test', 'watchdog') ORDER BY told_ns, route"
)
_WAITING: Final = (
    "SELECT 'waiting', route, receiver, verdict_id, kind, severity, event, note, first_ns, tries FROM waiting"
    " ORDER BY first_ns, route"
)


@dataclass(frozen=True, slots=True)
class ToldRow:
    """One incident on one route.

    Attributes:
        state: ``standing`` (people were told, and it did not end), or ``waiting`` (a notice is to be sent).
        route: name of the route.
        receiver: name of the receiver.
        verdict_id: id of the verdict or the summary.
        kind: what was said, or is to be said.
        severity: how urgent it is.
        summary: one sentence about it.
        since_ns: when it was first told, or since when its notice waits.
        tries_count: how often the waiting notice was tried.
    """

    state: str
    route: str
    receiver: str
    verdict_id: str
    kind: NoticeKind
    severity: AlertSeverity
    summary: str
    since_ns: int
    tries_count: int


def read_told(path: Path) -> list[ToldRow]:
    """Return what stands and then what waits; the file is only read, also while an engine writes it.

    Args:
        path: the queue's file.

    Raises:
        ConfigError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise ConfigError("alert queue", str(path), "there: tocsin serve --alerts FILE makes it")
    try:
        base = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        try:
            rows = [row for query in (_STANDING, _WAITING) for row in base.execute(query)]
        finally:
            base.close()
        return [_row(row) for row in rows]
    except (sqlite3.Error, SchemaError, ValueError) as error:
        raise ConfigError("alert queue", str(path), f"a file that can be read ({error})") from error


def _row(row: Sequence[Any]) -> ToldRow:
    """Return the columns of a query as a row."""
    state, route, receiver, verdict_id, kind, severity, event, note, since_ns, tries = row
    words = note or summary_of(decode_verdict(str(event).encode()))
    return ToldRow(
        state, route, receiver, verdict_id, NoticeKind(kind), AlertSeverity(severity), one_line(words), since_ns, tries
    )

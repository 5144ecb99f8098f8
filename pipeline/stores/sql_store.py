"""The incident store for all databases that speak ClickHouse's SQL.

``SqlStore`` knows the tables, migrations and life cycle of rows. A ``Backend`` knows one way to reach a database: chDB
in this process, or a server over the native protocol.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from tocsin.pipeline.stores import rows
from tocsin.pipeline.stores.action_bus_rows import action_ack_row, action_change_row
from tocsin.pipeline.stores.alert_rows import alert_sent_row
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.attempt_start_rows import attempt_start_rows
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_time_rows import attempt_time_row
from tocsin.pipeline.stores.attempt_times import AttemptTime
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth, JobStatus
from tocsin.pipeline.stores.note_rows import cover_row, feedback_row, maintenance_row
from tocsin.pipeline.stores.opening import VerdictOpening, openings_of
from tocsin.pipeline.stores.rows import Row
from tocsin.schemas.action_events import Ack
from tocsin.schemas.actions import Action
from tocsin.schemas.covers import Cover
from tocsin.schemas.errors import DatabaseNewerError, DatabaseOlderError, StoreError, StoreRefusedError
from tocsin.schemas.migrations import Migration, migrations
from tocsin.schemas.operator_notes import Feedback, Maintenance, OperatorNote
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Verdict

BATCH_ROWS_COUNT = 20_000
"""Maximum number of rows per insert, which bounds the memory for a large job's evidence."""
OPENED_CACHE_SIZE = 20_000
"""Maximum number of verdicts whose opening time is cached; others are queried."""

_LOG = logging.getLogger("tocsin.store")

_TABLES = "SELECT name FROM system.tables WHERE database = 'tocsin'"

# {wanted}: expressions of text_literal only.
_OPENINGS = """
SELECT
    verdict_id,
    toUnixTimestamp64Nano(min(opened)) AS opened_ns,
    argMinIf((detector, model_version), update_number, detector != '').1 AS first_detector,
    argMinIf((detector, model_version), update_number, detector != '').2 AS first_model_version
FROM tocsin.incidents
WHERE verdict_id IN ({wanted})
GROUP BY verdict_id
"""

# {wanted}: expressions of text_literal only.
_ACTIONS = """
SELECT * REPLACE (
    toUnixTimestamp64Nano(issued) AS issued,
    toUnixTimestamp64Nano(deadline) AS deadline,
    toUnixTimestamp64Nano(changed) AS changed
)
FROM tocsin.actions FINAL
WHERE verdict_id IN ({wanted})
ORDER BY verdict_id, update_number, kind, target_kind, target
"""

# {until}: a whole number; {those}: a condition of text_literal only.
_OVERDUE = """
SELECT verdict_id
FROM tocsin.incidents FINAL
WHERE state IN ('open', 'confirmed') AND toUnixTimestamp64Nano(expires) <= {until} {those}
ORDER BY verdict_id
LIMIT 10000
"""

# The conditions stand in subqueries: beside REPLACE, ClickHouse would read ``state`` as the new one.
# {wanted}: expressions of text_literal only.
_EXPIRE = """
INSERT INTO tocsin.incidents
SELECT * REPLACE (
    update_number + 1 AS update_number,
    'expired' AS state,
    'engine_restarted' AS reason,
    'none' AS action,
    now64(9, 'UTC') AS detected,
    now64(9, 'UTC') AS expires,
    now64(3, 'UTC') AS updated,
    concat(summary, ' (expired: engine restarted)') AS summary
)
FROM (SELECT * FROM tocsin.incidents FINAL WHERE verdict_id IN ({wanted}) AND state IN ('open', 'confirmed'))
"""
_EXPIRE_ACTIONS = """
INSERT INTO tocsin.actions
SELECT * REPLACE (
    'expired' AS state,
    now64(9, 'UTC') AS changed,
    'engine_restarted' AS detail,
    now('UTC') AS written
)
FROM (SELECT * FROM tocsin.actions FINAL WHERE verdict_id IN ({wanted}) AND state IN ('proposed', 'waiting'))
"""

# {since}: a whole number.
_NEWEST_UPDATES = """
SELECT verdict_id, max(update_number) AS newest
FROM tocsin.incidents
WHERE toUnixTimestamp64Nano(detected) >= {since}
GROUP BY verdict_id
ORDER BY max(detected) DESC
LIMIT 100000
"""

_EXPIRE_UPDATE = """
INSERT INTO tocsin.incident_updates
    (verdict_id, update_number, cluster, job_id, attempt, state, reason, fault, cause, machine, action, confidence,
    detected)
SELECT verdict_id, update_number + 1, cluster, job_id, attempt, 'expired', 'engine_restarted', fault, cause, machine,
    'none', confidence, now64(9, 'UTC')
FROM tocsin.incidents FINAL WHERE verdict_id IN ({wanted}) AND state IN ('open', 'confirmed')
"""
NO_NEWS: Final = frozenset({Reason.STILL_TRUE.value, Reason.CANARY.value})
"""Reasons of updates that a verdict's history leaves out: renewals, and canaries."""

T = TypeVar("T")


class Backend(Protocol):
    """One way to reach a database; its methods may be called from several threads and raise ``StoreError``."""

    def execute(self, statement: str) -> None:
        """Run one statement that returns nothing."""
        ...

    def select(self, statement: str) -> list[Mapping[str, Any]]:
        """Run one of the store's own queries and return its rows as dicts; integers may come as text."""
        ...

    def insert(self, table: str, columns: Sequence[str], batch: Sequence[Row]) -> None:
        """Insert all rows of a batch or raise; values are sent as data, never as SQL text."""
        ...

    def query(self, sql: str, fmt: str) -> bytes:
        """Run a user's read-only query and return its answer in format ``fmt``."""
        ...

    def close(self) -> None:
        """Close the database; calling it twice is safe."""
        ...


class SqlStore:
    """A ``Store`` on top of a backend.

    Attributes:
        backend: the way to the database; closed with the store.

    Args:
        backend: see above.
        known: the migrations that this program knows.
    """

    def __init__(self, backend: Backend, known: Sequence[Migration] | None = None) -> None:
        self.backend = backend
        self._known = migrations() if known is None else tuple(known)
        self._opened: OrderedDict[str, VerdictOpening] = OrderedDict()
        self._lock = threading.Lock()  # opening times: read, then written with the rows

    def migrate(self) -> int:
        """See ``Store.migrate``."""
        for migration in self._missing():
            self._apply(migration)
        self._make_dropped()
        return len(self._known)

    def check(self) -> int:
        """See ``Store.check``."""
        missing = self._missing()
        if missing:
            found = len(self._known) - len(missing)
            raise DatabaseOlderError(
                f"the database has schema version {found}, this program needs {len(self._known)}: run tocsin migrate"
            )
        return len(self._known)

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """See ``Store.write_verdicts``."""
        with self._lock:
            opened = self._openings(verdicts)
            # Updates first: whoever sees an incident is to see its history.
            self._insert("incident_updates", [rows.update_row(v) for v in verdicts if v.reason not in NO_NEWS])
            self._insert("incidents", [rows.incident_row(v, opened[v.verdict_id]) for v in verdicts])
            for verdict_id, opening in opened.items():
                self._opened[verdict_id] = opening
                self._opened.move_to_end(verdict_id)
            while len(self._opened) > OPENED_CACHE_SIZE:
                self._opened.popitem(last=False)

    def write_evidence(self, points: Sequence[EvidencePoint]) -> None:
        """See ``Store.write_evidence``."""
        self._insert_all("incident_evidence", points, rows.evidence_row)

    def write_actions(self, changes: Sequence[ActionChange]) -> None:
        """See ``Store.write_actions``."""
        self._insert_all("actions", changes, rows.action_row)

    def actions_of(self, verdict_ids: Sequence[str]) -> list[ActionChange]:
        """See ``Store.actions_of``."""
        if not verdict_ids:
            return []
        wanted = ", ".join(map(text_literal, verdict_ids))
        return [rows.action_change(row) for row in self.backend.select(_ACTIONS.format(wanted=wanted))]

    def write_action_changes(self, changes: Sequence[Action]) -> None:
        """See ``Store.write_action_changes``."""
        self._insert_all("action_changes", changes, action_change_row)

    def write_action_acks(self, acks: Sequence[Ack]) -> None:
        """See ``Store.write_action_acks``."""
        self._insert_all("action_acks", acks, action_ack_row)

    def write_alerts_sent(self, alerts: Sequence[AlertSent]) -> None:
        """See ``Store.write_alerts_sent``."""
        self._insert_all("alerts_sent", alerts, alert_sent_row)

    def write_host_health(self, minutes: Sequence[HostHealth]) -> None:
        """See ``Store.write_host_health``."""
        self._insert_all("host_health", minutes, rows.host_health_row)

    def write_job_status(self, states: Sequence[JobStatus]) -> None:
        """See ``Store.write_job_status``."""
        self._insert_all("job_status", states, rows.job_status_row)

    def write_notes(self, notes: Sequence[OperatorNote]) -> None:
        """See ``Store.write_notes``."""
        self._insert_all("feedback", [one for one in notes if isinstance(one, Feedback)], feedback_row)
        self._insert_all("maintenance", [one for one in notes if isinstance(one, Maintenance)], maintenance_row)

    def write_covers(self, covers: Sequence[Cover]) -> None:
        """See ``Store.write_covers``."""
        self._insert_all("fleet_covers", covers, cover_row)

    def write_attempt_times(self, told: Sequence[AttemptTime]) -> None:
        """See ``Store.write_attempt_times``."""
        self._insert_all("ettr", told, attempt_time_row)

    def write_attempt_starts(self, told: Sequence[AttemptStart]) -> None:
        """See ``Store.write_attempt_starts``."""
        self._insert("startup", [row for one in told for row in attempt_start_rows(one)])

    def expire_overdue(self, until_ns: int, verdict_ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """See ``Store.expire_overdue``."""
        those = ""
        if verdict_ids is not None:
            if not verdict_ids:
                return ()
            those = f"AND verdict_id IN ({', '.join(map(text_literal, verdict_ids))})"
        rows_found = self.backend.select(_OVERDUE.format(until=int(until_ns), those=those))
        found = tuple(str(row["verdict_id"]) for row in rows_found)
        if found:
            wanted = ", ".join(map(text_literal, found))
            # Actions first: were it the other way round, nobody would look for them after an end in between.
            self.backend.execute(_EXPIRE_ACTIONS.format(wanted=wanted))
            self.backend.execute(_EXPIRE_UPDATE.format(wanted=wanted))
            self.backend.execute(_EXPIRE.format(wanted=wanted))
        return found

    def newest_updates(self, since_ns: int) -> dict[str, int]:
        """See ``Store.newest_updates``."""
        found = self.backend.select(_NEWEST_UPDATES.format(since=int(since_ns)))
        return {str(row["verdict_id"]): int(row["newest"]) for row in found}

    def query(self, sql: str, fmt: str) -> bytes:
        """See ``Store.query``."""
        try:
            return self.backend.query(sql, fmt)
        except StoreError as error:
            if "UNKNOWN_TABLE" in str(error) and "tocsin." in str(error):
                raise type(error)(f"{error}; 'tocsin migrate' makes what was dropped again") from error
            raise

    def close(self) -> None:
        """See ``Store.close``."""
        self.backend.close()

    def _missing(self) -> list[Migration]:
        """Return the migrations that are not yet applied to the database.

        Raises:
            DatabaseNewerError: the database has migrations that this program does not know.
            StoreError: an applied migration differs from this program's.
        """
        applied = self._applied()
        newest = max(applied, default=0)
        if newest > len(self._known):
            raise DatabaseNewerError(
                f"the database has schema version {newest}, this program knows versions up to"
                f" {len(self._known)}: use a newer tocsin, or another database"
            )
        for migration in self._known:
            checksum = applied.get(migration.number, migration.sha256)
            if checksum != migration.sha256:
                raise StoreError(
                    f"migration {migration.number} ({migration.name}) was applied to this database with"
                    f" checksum {checksum[:12]}, here it has {migration.sha256[:12]}: a released migration"
                    " never changes; use the tocsin that wrote the database, or another database"
                )
        return [migration for migration in self._known if migration.number not in applied]

    def _applied(self) -> dict[int, str]:
        """Number -> checksum of what was applied; {} for a new database."""
        exists = self.backend.select("EXISTS TABLE tocsin.schema_migrations")
        if not int(exists[0]["result"]):
            return {}
        found = self.backend.select("SELECT number, sha256 FROM tocsin.schema_migrations FINAL")
        return {int(row["number"]): str(row["sha256"]) for row in found}

    def _apply(self, migration: Migration) -> None:
        """Run one migration's statements and record it as applied."""
        for statement in migration.statements:
            try:
                self.backend.execute(statement)
            except StoreError as error:  # its class says whether trying again helps: that must not be lost
                hint = (
                    ": run tocsin migrate once as a user who may make tables"
                    if isinstance(error, StoreRefusedError)
                    else ""
                )
                raise type(error)(f"migration {migration.number} ({migration.name}) failed: {error}{hint}") from error
        row: Row = {"number": migration.number, "name": migration.name, "sha256": migration.sha256}
        self._insert("schema_migrations", [row])

    def _make_dropped(self) -> None:
        """Recreate tables that were dropped although their migration is recorded as applied.

        A user without the right to create tables may not see all tables either, so a refusal is only logged.
        """
        there = {str(row["name"]) for row in self.backend.select(_TABLES)}
        dropped = [migration for migration in self._known if migration.makes - there]
        if not dropped:
            return
        names = sorted(frozenset().union(*(migration.makes for migration in dropped)) - there)
        _LOG.warning("tables that were applied are not there: made again", extra={"tables": names})
        try:
            # and what came after the first of them: a view may have been replaced by a later one
            for migration in self._known[dropped[0].number - 1 :]:
                self._apply(migration)
        except StoreRefusedError as error:
            _LOG.warning("tables were not made again", extra={"tables": names, "detail": str(error)})

    def _openings(self, verdicts: Sequence[Verdict]) -> dict[str, VerdictOpening]:
        """Return verdict id -> its opening, as early as is known of each verdict.

        The database is queried only for later updates of verdicts that are not in the cache.
        """
        opened = openings_of(verdicts)
        first = {verdict.verdict_id for verdict in verdicts if verdict.update == 0}
        unseen = [i for i in opened if i not in self._opened and i not in first]
        stored = self._stored_openings(unseen) if unseen else {}
        for verdict_id, opening in opened.items():
            known = self._opened.get(verdict_id, stored.get(verdict_id, opening))
            opened[verdict_id] = known.joined(opening)
        return opened

    def _stored_openings(self, verdict_ids: Sequence[str]) -> dict[str, VerdictOpening]:
        """Return verdict id -> its opening as stored in the database."""
        wanted = ", ".join(map(text_literal, verdict_ids))
        found = self.backend.select(_OPENINGS.format(wanted=wanted))
        return {
            str(row["verdict_id"]): VerdictOpening(
                int(row["opened_ns"]), str(row["first_detector"]), str(row["first_model_version"])
            )
            for row in found
        }

    def _insert_all(self, table: str, items: Sequence[T], to_row: Callable[[T], Row]) -> None:
        """Convert items to rows and insert them into a table."""
        self._insert(table, [to_row(item) for item in items])

    def _insert(self, table: str, batch: Sequence[Row]) -> None:
        """Insert rows into a table in batches."""
        for part in _parts(batch, BATCH_ROWS_COUNT):
            self.backend.insert(f"tocsin.{table}", tuple(part[0]), part)


def text_literal(text: str) -> str:
    """Return an SQL expression for any text; hexadecimal digits make SQL injection impossible.

    >>> text_literal("it's")
    "unhex('69742773')"
    """
    return f"unhex('{text.encode('utf-8', 'replace').hex()}')"


def _parts(batch: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Yield a batch in parts of at most ``size`` rows."""
    for start in range(0, len(batch), size):
        yield batch[start : start + size]

"""Sources of ``tocsin incidents``: a data folder, a database server, or an engine on another machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tocsin.cli.database import database
from tocsin.cli.engine_reader import EngineReader
from tocsin.cli.paths import control_socket
from tocsin.cli.status_table import is_judging
from tocsin.cli.ticks import engine_judges, is_ticking
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError, EngineRefusedError
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.pipeline.stores.incident_queries import IncidentFilter, incidents_query, page_queries

Row = Mapping[str, Any]
MAX_SHOWN_COUNT: Final = 1000
"""Greatest number of incidents shown; the newest ones."""
_JOBS_QUERY: Final = (
    "SELECT job_id FROM tocsin.incidents UNION DISTINCT SELECT job_id FROM tocsin.host_health"
    " UNION DISTINCT SELECT job_id FROM tocsin.job_status ORDER BY 1"
)


@dataclass(frozen=True, slots=True)
class IncidentWish:
    """Selection of the incidents that a command asks for.

    Attributes:
        everything: also those that are over.
        job_id: only this job's; None: all jobs.
        id_prefix: only those whose id begins with it; None: all.
        wanted: further conditions.
    """

    everything: bool = False
    job_id: str | None = None
    id_prefix: str | None = None
    wanted: IncidentFilter = field(default_factory=IncidentFilter)


@dataclass(frozen=True, slots=True)
class IncidentParts:
    """Rows of the database on one incident beside its own; each row as the query of this name returns it.

    Attributes:
        updates: its history, newest first.
        actions: what was asked for and what became of it, newest first.
        told: suspects and evidence as JSON; at most one row.
        others: cancelled incidents of the same job at the same time.
        points: series of suspects and peers.
        covers: the verdicts for which this incident of the fleet stands, by machine.
        covered_by: the fleet incident that stands for this one; at most one row.
        feedback: the latest judgement of a person; at most one row.
    """

    updates: Sequence[Row] = ()
    actions: Sequence[Row] = ()
    told: Sequence[Row] = ()
    others: Sequence[Row] = ()
    points: Sequence[Row] = ()
    covers: Sequence[Row] = ()
    covered_by: Sequence[Row] = ()
    feedback: Sequence[Row] = ()


class IncidentSource(Protocol):
    """Source from which incidents are read."""

    def fetch(self, wish: IncidentWish) -> list[Row]:
        """Return the incidents, newest first, like the function ``fetch``."""
        ...

    def parts(self, verdict_id: str) -> IncidentParts:
        """Return what the page of one incident shows beside its row."""
        ...

    def known_jobs(self) -> list[str]:
        """Return the names of all known jobs."""
        ...

    def is_judged(self) -> bool:
        """Return whether an engine is judging now; if none is, a warning is printed on stderr."""
        ...


class DatabaseSource:
    """Incidents from a data folder or a database server."""

    def __init__(self, data: Path, address: ClickHouseAddress | None) -> None:
        """Name the data folder, and the server to query instead (None: the folder)."""
        self._data, self._address = data, address

    def fetch(self, wish: IncidentWish) -> list[Row]:
        """See ``IncidentSource.fetch``."""
        return fetch_wished(self._data, self._address, wish)

    def parts(self, verdict_id: str) -> IncidentParts:
        """See ``IncidentSource.parts``."""
        with database(self._data, self._address) as ask:
            found = {name: _rows(ask(sql, "JSONEachRow")) for name, sql in page_queries(verdict_id).items()}
        return IncidentParts(**found)

    def known_jobs(self) -> list[str]:
        """See ``IncidentSource.known_jobs``."""
        return known_jobs(self._data, self._address)

    def is_judged(self) -> bool:
        """See ``IncidentSource.is_judged``."""
        if self._address is None:
            return engine_judges(self._data, "incidents")
        with database(self._data, self._address) as ask:
            return is_judging(ask, "incidents")


class RemoteSource:
    """Incidents from an engine on another machine."""

    def __init__(self, reader: EngineReader) -> None:
        """Take the reader of the engine."""
        self._reader = reader

    def fetch(self, wish: IncidentWish) -> list[Row]:
        """See ``IncidentSource.fetch``."""
        more = {name: value for name, value in asdict(wish.wanted).items() if value}
        named = {"everything": wish.everything, "job_id": wish.job_id, "id_prefix": wish.id_prefix}
        return list(self._reader.call("incidents", **named, **more)["rows"])

    def parts(self, verdict_id: str) -> IncidentParts:
        """See ``IncidentSource.parts``."""
        try:
            answer = self._reader.call("incident_page", id=verdict_id)
        except EngineRefusedError as error:
            if error.reason == "unknown_command":  # an engine of an older version: its row is all that it tells
                return IncidentParts()
            raise
        return IncidentParts(**{name: list(answer.get(name, ())) for name in page_queries("")})

    def known_jobs(self) -> list[str]:
        """See ``IncidentSource.known_jobs``."""
        return list(self._reader.call("jobs")["jobs"])

    def is_judged(self) -> bool:
        """See ``IncidentSource.is_judged``."""
        return is_ticking(self._reader.call("health"), "incidents")


def fetch_wished(data: Path, address: ClickHouseAddress | None, wish: IncidentWish) -> list[Row]:
    """Return the incidents, newest first: the columns of ``incidents_all``, and when each expires if it is not renewed.

    Args:
        data: the data folder.
        address: address of the server to query instead, None: the data folder.
        wish: which incidents.

    Raises:
        StoreError: there is no database, or it cannot be read.
        EngineError: an engine runs and does not answer.
    """
    query = incidents_query(
        everything=wish.everything,
        job_id=wish.job_id,
        id_prefix=wish.id_prefix,
        limit=MAX_SHOWN_COUNT,
        wanted=wish.wanted,
    )
    with database(data, address) as ask:
        return _rows(ask(query, "JSONEachRow"))


def known_jobs(data: Path, address: ClickHouseAddress | None) -> list[str]:
    """Return the names of the jobs that the database or a running engine knows, sorted.

    Raises:
        StoreError: the database cannot be read.
        EngineError: an engine runs and does not answer.
    """
    with database(data, address) as ask:
        found = {row["job_id"] for row in _rows(ask(_JOBS_QUERY, "JSONEachRow"))}
    if address is None:
        with contextlib.suppress(EngineAbsentError):  # the folder alone tells
            found |= {job["job_id"] for job in ControlClient(control_socket(data)).call("status")["jobs"]}
    return sorted(found)


def _rows(answer: bytes) -> list[Row]:
    """Parse an answer in format JSONEachRow."""
    return [json.loads(line) for line in answer.splitlines()]

"""What the engine, the consumers and the commands ask of an incident database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Action, Component, Verdict


class ActionState(StrEnum):
    """What became of an action."""

    WAITING = "waiting"
    """Not proposed yet: ``detail`` says by a named reason what it waits for."""
    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class EvidencePoint:
    """The suspect and its peers in one cited metric at one time.

    Attributes:
        verdict_id: whose evidence.
        metric: metric column, step phase, … with its unit in the name.
        component: the suspect that the value belongs to.
        ts_ns: time of the sample.
        suspect_value: in the unit of the metric, NaN = no sample (so for the three below).
        peer_median_value: median of the peers.
        peer_p05_value: 5 % of the peers lie below.
        peer_p95_value: 5 % of the peers lie above.
        peer_count: peers that had a sample.
    """

    verdict_id: str
    metric: str
    component: Component
    ts_ns: int
    suspect_value: float
    peer_median_value: float
    peer_p05_value: float
    peer_p95_value: float
    peer_count: int


@dataclass(frozen=True, slots=True)
class HostHealth:
    """How well a host was watched in one minute, and how far from its peers it was.

    Attributes:
        job: for which job.
        host: machine name.
        minute_ns: any time within the minute; stored as its beginning.
        sample_count: metric samples that arrived in time.
        late_count: records that came after their slice was closed.
        gap_count: metric slices without a frame of this host.
        worst_score: highest score of any detector, 1.0 is the alarm line.
        worst_metric: the metric of that score, "" = none.
    """

    job: JobKey
    host: str
    minute_ns: int
    sample_count: int
    late_count: int
    gap_count: int
    worst_score: float = 0.0
    worst_metric: str = ""


@dataclass(frozen=True, slots=True)
class ActionChange:
    """An action came into a state.

    Attributes:
        action: what the scheduler was asked to do.
        state: what became of it.
        changed_ns: when; of two changes of one action the later stays.
        detail: what the executor says, "" = nothing.
    """

    action: Action
    state: ActionState
    changed_ns: int
    detail: str = ""


class Store(Protocol):
    """An incident database. Safe to use from several threads.

    Every write may be repeated and may come out of order: of one verdict the highest
    update stays, of one action the latest change, of one evidence point or minute one row.
    A write that returns is in the database; one that raises may be repeated as a whole.
    """

    def migrate(self) -> int:
        """Bring the tables to this program's version and return it.

        Raises:
            DatabaseNewerError: a newer program wrote this database.
            StoreError: a migration failed, or one that was applied has changed since.
        """
        ...

    def check(self) -> int:
        """Return the version of the tables, which is this program's; change nothing.

        Raises:
            DatabaseNewerError: a newer program wrote this database.
            DatabaseOlderError: it must be migrated first.
        """
        ...

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Write updates of verdicts."""
        ...

    def write_evidence(self, points: Sequence[EvidencePoint]) -> None:
        """Write the series behind verdicts."""
        ...

    def expire_overdue(self, until_ns: int, verdict_ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """Expire open verdicts that nobody renewed in time, and what they still propose.

        An engine renews its own before they expire. What is left belongs to an engine that lost its state: nobody
        will ever update it, and an action that it proposes must not be executed after the fact.

        Args:
            until_ns: those whose own ``expires`` is not later.
            verdict_ids: among these; None: among all, for an engine that owns the whole database.

        Returns:
            Which ones.
        """
        ...

    def newest_updates(self, since_ns: int) -> dict[str, int]:
        """Verdict id -> its newest update, of the verdicts that were updated since then (at most 100,000)."""
        ...

    def write_actions(self, changes: Sequence[ActionChange]) -> None:
        """Write what was asked of the scheduler, and what became of it."""
        ...

    def actions_of(self, verdict_ids: Sequence[str]) -> list[ActionChange]:
        """The latest change of every action of these verdicts, by verdict and update."""
        ...

    def write_host_health(self, minutes: Sequence[HostHealth]) -> None:
        """Write how well hosts were watched."""
        ...

    def query(self, sql: str, fmt: str) -> bytes:
        """Answer a user's query in one of ClickHouse's formats, without the right to change anything.

        Each runs for itself, with limits on time, memory, threads and its answer (``user_queries.LIMITS``).
        What a terminal would obey (controls, bidi marks) is escaped in every format that is text; JSON
        keeps its values by that, formats such as Parquet and Native are exact.

        Args:
            sql: one SELECT, SHOW, DESCRIBE, EXISTS or EXPLAIN.
            fmt: e.g. ``Pretty``, ``JSON``, ``JSONEachRow``, ``CSV``.

        Raises:
            QueryRefusedError: it does what a query may not do.
            StoreError: the database refuses the query; the message is its own, on one line.
        """
        ...

    def close(self) -> None:
        """Let the database go; safe to call twice."""
        ...

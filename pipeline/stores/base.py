"""The interface of the incident database, and the types of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import AttemptTime
from tocsin.schemas.action_events import Ack
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.covers import Cover
from tocsin.schemas.operator_notes import OperatorNote
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Advice, Component, Verdict


@dataclass(frozen=True, slots=True)
class EvidencePoint:
    """One sample of a cited metric: the suspect's value and the distribution of its peers.

    Attributes:
        verdict_id: the verdict whose evidence it is.
        metric: name of the metric column or step phase, with its unit.
        component: the suspect that the value belongs to.
        ts_ns: time of the sample.
        suspect_value: value of the suspect in the metric's unit, NaN = no sample (the same holds for the next three).
        peer_median_value: median of the peers.
        peer_p05_value: 5th percentile of the peers.
        peer_p95_value: 95th percentile of the peers.
        peer_count: number of peers that had a sample.
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
    """Monitoring quality of one host in one minute, and its highest anomaly score.

    Attributes:
        job: the job that the host runs.
        host: name of the machine.
        minute_ns: any time within the minute; stored as the minute's start.
        sample_count: number of metric samples that arrived in time.
        late_count: number of records that arrived after their slice was closed.
        gap_count: number of metric slices without a frame from this host.
        worst_score: highest score of any detector; 1.0 is the alarm line.
        worst_metric: metric of that score, "" = none.
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
class JobStatus:
    """State of one attempt of a job at one time, for ``tocsin status``.

    Attributes:
        job: the attempt.
        ts_ns: event time of the state; of two states of one attempt the later one is kept.
        is_known: whether the engine still judges the attempt; False: it forgot it, and ``state`` is empty.
        state: the attempt's entry in the engine's answer to ``status``; JSON values.
        models: the models that the engine uses, as in that answer.
    """

    job: JobKey
    ts_ns: int
    is_known: bool
    state: Mapping[str, Any]
    models: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class ActionChange:
    """A change of an action's state.

    Attributes:
        action: the action.
        state: its new state.
        changed_ns: time of the change; of two changes of one action the later one is kept.
        detail: message of the executor or reason for waiting, "" = none.
    """

    action: Advice
    state: ActionState
    changed_ns: int
    detail: str = ""


class Store(Protocol):
    """An incident database; its methods may be called from several threads.

    Writes may be repeated and may arrive out of order. The highest update of each verdict, the latest change of each
    action and one row per evidence point or minute are kept. A write that returns is stored; one that raises may be
    repeated whole.
    """

    def migrate(self) -> int:
        """Apply all missing schema migrations and return the schema version.

        Raises:
            DatabaseNewerError: a newer program wrote this database.
            StoreError: a migration failed, or an applied migration differs from this program's.
        """
        ...

    def check(self) -> int:
        """Return the schema version if it is this program's; change nothing.

        Raises:
            DatabaseNewerError: a newer program wrote this database.
            DatabaseOlderError: the database must be migrated first.
        """
        ...

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Insert updates of verdicts."""
        ...

    def write_evidence(self, points: Sequence[EvidencePoint]) -> None:
        """Insert points of the metric series behind verdicts."""
        ...

    def expire_overdue(self, until_ns: int, verdict_ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """Expire open verdicts that were not renewed in time, together with the actions that they still propose.

        An engine renews its own verdicts before they expire. The rest belong to an engine that lost its state and will
        never be updated. Their actions must not be executed later.

        Args:
            until_ns: expire verdicts whose ``expires`` is not later than this.
            verdict_ids: only these verdicts; None: all, for an engine that owns the whole database.

        Returns:
            The ids of the expired verdicts.
        """
        ...

    def newest_updates(self, since_ns: int) -> dict[str, int]:
        """Return verdict id -> newest update number, for verdicts updated since ``since_ns`` (at most 100,000)."""
        ...

    def write_actions(self, changes: Sequence[ActionChange]) -> None:
        """Insert changes of actions."""
        ...

    def actions_of(self, verdict_ids: Sequence[str]) -> list[ActionChange]:
        """Return the latest change of every action of these verdicts, ordered by verdict and update."""
        ...

    def write_action_changes(self, changes: Sequence[Action]) -> None:
        """Insert published changes of actions."""
        ...

    def write_action_acks(self, acks: Sequence[Ack]) -> None:
        """Insert executors' messages about actions."""
        ...

    def write_alerts_sent(self, alerts: Sequence[AlertSent]) -> None:
        """Insert notices to people whose delivery ended."""
        ...

    def write_host_health(self, minutes: Sequence[HostHealth]) -> None:
        """Insert minutes of host health."""
        ...

    def write_job_status(self, states: Sequence[JobStatus]) -> None:
        """Insert states of jobs; the newest of each attempt is kept."""
        ...

    def write_notes(self, notes: Sequence[OperatorNote]) -> None:
        """Insert judgements of verdicts and planned work; the latest word on each is kept."""
        ...

    def write_covers(self, covers: Sequence[Cover]) -> None:
        """Insert which fleet incident stands for which verdict; the latest word on each verdict is kept."""
        ...

    def write_attempt_times(self, told: Sequence[AttemptTime]) -> None:
        """Insert accounts of attempts; the one that was told last of each attempt is kept."""
        ...

    def write_attempt_starts(self, told: Sequence[AttemptStart]) -> None:
        """Insert starts of attempts; what was told last of each start is kept."""
        ...

    def query(self, sql: str, fmt: str) -> bytes:
        """Run a user's read-only query and return the answer in one of ClickHouse's formats.

        Each query has limits on time, memory, threads and answer size (``user_queries.LIMITS``). Text formats have
        control and bidirectional characters escaped, which a terminal would obey. JSON values stay equal under
        escaping; binary formats such as Parquet and Native are unchanged.

        Args:
            sql: one SELECT, SHOW, DESCRIBE, EXISTS or EXPLAIN.
            fmt: output format, e.g. ``Pretty``, ``JSON``, ``JSONEachRow``, ``CSV``.

        Raises:
            QueryRefusedError: the query does something that is not allowed.
            StoreError: the database rejects the query; the message is the database's, on one line.
        """
        ...

    def close(self) -> None:
        """Close the database; calling it twice is safe."""
        ...

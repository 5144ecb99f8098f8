"""An incident store in memory, which can be made to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import AttemptTime
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth, JobStatus
from tocsin.schemas.action_events import Ack
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.covers import Cover
from tocsin.schemas.errors import StoreError
from tocsin.schemas.operator_notes import OperatorNote
from tocsin.schemas.verdicts import Verdict, VerdictState


class MemoryStore:
    """A ``Store`` that keeps everything in lists.

    Attributes:
        failures_left_count: number of writes of verdicts that raise ``StoreError`` before one succeeds.
    """

    def __init__(self) -> None:
        """Start without any row."""
        self.verdicts: list[Verdict] = []
        self.evidence: list[EvidencePoint] = []
        self.actions: list[ActionChange] = []
        self.action_changes: list[Action] = []
        self.action_acks: list[Ack] = []
        self.alerts_sent: list[AlertSent] = []
        self.covers: list[Cover] = []
        self.health: list[HostHealth] = []
        self.statuses: list[JobStatus] = []
        self.notes: list[OperatorNote] = []
        self.attempt_times: list[AttemptTime] = []
        self.attempt_starts: list[AttemptStart] = []
        self.failures_left_count = 0

    def migrate(self) -> int:
        """Return 0: there is nothing to migrate."""
        return 0

    def check(self) -> int:
        """Return 0: the schema is always this program's."""
        return 0

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Keep verdicts, or fail with ``StoreError`` while set to."""
        if verdicts and self.failures_left_count > 0:
            self.failures_left_count -= 1
            raise StoreError("the database is away")
        self.verdicts.extend(verdicts)

    def write_evidence(self, points: Sequence[EvidencePoint]) -> None:
        """Keep evidence points."""
        self.evidence.extend(points)

    def write_actions(self, changes: Sequence[ActionChange]) -> None:
        """Keep changes of actions."""
        self.actions.extend(changes)

    def actions_of(self, verdict_ids: Sequence[str]) -> list[ActionChange]:
        """Return the latest change of each action of these verdicts."""
        latest: dict[tuple[object, ...], ActionChange] = {}
        for change in self.actions:
            action = change.action
            key = (action.verdict_id, action.verdict_update, action.kind, action.target)
            if action.verdict_id in verdict_ids and (key not in latest or latest[key].changed_ns <= change.changed_ns):
                latest[key] = change
        return list(latest.values())

    def write_action_changes(self, changes: Sequence[Action]) -> None:
        """Keep published changes of actions."""
        self.action_changes.extend(changes)

    def write_action_acks(self, acks: Sequence[Ack]) -> None:
        """Keep executors' messages about actions."""
        self.action_acks.extend(acks)

    def write_covers(self, covers: Sequence[Cover]) -> None:
        """See ``Store.write_covers``."""
        self.covers.extend(covers)

    def write_alerts_sent(self, alerts: Sequence[AlertSent]) -> None:
        """Keep notices whose delivery ended."""
        self.alerts_sent.extend(alerts)

    def write_host_health(self, minutes: Sequence[HostHealth]) -> None:
        """Keep minutes of host health."""
        self.health.extend(minutes)

    def write_job_status(self, states: Sequence[JobStatus]) -> None:
        """Keep states of jobs."""
        self.statuses.extend(states)

    def write_notes(self, notes: Sequence[OperatorNote]) -> None:
        """Keep judgements of verdicts and planned work."""
        self.notes.extend(notes)

    def write_attempt_times(self, told: Sequence[AttemptTime]) -> None:
        """Keep accounts of attempts."""
        self.attempt_times.extend(told)

    def write_attempt_starts(self, told: Sequence[AttemptStart]) -> None:
        """Keep starts of attempts."""
        self.attempt_starts.extend(told)

    def expire_overdue(self, until_ns: int, verdict_ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """Expire overdue verdicts and their open actions; return the verdicts' ids."""
        live = {VerdictState.OPEN, VerdictState.CONFIRMED}
        found = [one for one in self.latest().values() if one.state in live and one.expires_ns <= until_ns]
        found = [one for one in found if verdict_ids is None or one.verdict_id in verdict_ids]
        self.verdicts += [replace(one, update=one.update + 1, state=VerdictState.EXPIRED) for one in found]
        names = tuple(one.verdict_id for one in found)
        standing = [one for one in self.actions_of(names) if one.state in {ActionState.PROPOSED, ActionState.WAITING}]
        self.actions += [replace(one, state=ActionState.EXPIRED, changed_ns=until_ns) for one in standing]
        return names

    def latest(self) -> dict[str, Verdict]:
        """Return verdict id -> its newest update."""
        found: dict[str, Verdict] = {}
        for one in self.verdicts:
            if one.verdict_id not in found or found[one.verdict_id].update <= one.update:
                found[one.verdict_id] = one
        return found

    def newest_updates(self, since_ns: int) -> dict[str, int]:
        """Return verdict id -> number of its newest update, for verdicts detected since this time."""
        return {name: one.update for name, one in self.latest().items() if one.detected_ns >= since_ns}

    def query(self, sql: str, fmt: str) -> bytes:
        """Raise ``StoreError``: there is no SQL in memory."""
        raise StoreError(f"a store in memory has no SQL: {sql} ({fmt})")

    def close(self) -> None:
        """Do nothing."""

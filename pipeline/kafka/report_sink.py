"""Write what is said beside verdicts to the incident database.

That is evidence, host health, states, times and starts of jobs, alerts that were sent, people's notes, which fleet
incident stands for which verdict, and the controller's actions.

The same message gives the same rows, so it may come any number of times. A message that is none, and one that the
database refuses while it takes others, becomes a dead letter.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tocsin.pipeline.kafka.consumer_api import Message, RefusedMessage
from tocsin.pipeline.kafka.topic_sink import TopicSink, TopicSinkConfig
from tocsin.pipeline.runtime.embedded.actions.action_rows import change_of
from tocsin.pipeline.stores.alert_codec import decode_alert
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.attempt_start_codec import decode_account
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import AttemptTime
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth, JobStatus, Store
from tocsin.pipeline.stores.report_codec import decode_evidence, decode_health, decode_status
from tocsin.schemas.action_codec import decode_ack_or_event, decode_action
from tocsin.schemas.action_events import Ack
from tocsin.schemas.actions import Action
from tocsin.schemas.covers import Cover, decode_cover
from tocsin.schemas.errors import IdentityError, RowRefusedError, SchemaError
from tocsin.schemas.kafka.topics import (
    ACTION_ACKS,
    ACTIONS,
    ALERTS_SENT,
    COVERED,
    ETTR,
    EVIDENCE,
    HOST_HEALTH,
    JOB_STATUS,
    NOTES_TAKEN,
)
from tocsin.schemas.operator_notes import OperatorNote
from tocsin.schemas.operator_requests import decode_taken


@dataclass(slots=True)
class _ReportRows:
    """The rows of some messages, by table."""

    evidence: list[EvidencePoint] = field(default_factory=list)
    health: list[HostHealth] = field(default_factory=list)
    statuses: list[JobStatus] = field(default_factory=list)
    times: list[AttemptTime] = field(default_factory=list)
    starts: list[AttemptStart] = field(default_factory=list)
    alerts: list[AlertSent] = field(default_factory=list)
    notes: list[OperatorNote] = field(default_factory=list)
    covers: list[Cover] = field(default_factory=list)
    actions: list[ActionChange] = field(default_factory=list)
    action_changes: list[Action] = field(default_factory=list)
    action_acks: list[Ack] = field(default_factory=list)

    def add(self, other: _ReportRows) -> None:
        """Add the rows of another message."""
        self.evidence += other.evidence
        self.health += other.health
        self.statuses += other.statuses
        self.times += other.times
        self.starts += other.starts
        self.alerts += other.alerts
        self.notes += other.notes
        self.covers += other.covers
        self.actions += other.actions
        self.action_changes += other.action_changes
        self.action_acks += other.action_acks

    def write(self, store: Store) -> None:
        """Insert all rows."""
        store.write_evidence(self.evidence)
        store.write_host_health(self.health)
        store.write_job_status(self.statuses)
        store.write_attempt_times(self.times)
        store.write_attempt_starts(self.starts)
        store.write_alerts_sent(self.alerts)
        store.write_notes(self.notes)
        store.write_covers(self.covers)
        store.write_actions(self.actions)
        store.write_action_changes(self.action_changes)
        store.write_action_acks(self.action_acks)


class ReportSink(TopicSink):
    """Reads the topics of reports from a source and writes them to a store."""

    metric_prefix = "tocsin_report_sink"

    def _write(self, batch: Sequence[Message], stop: threading.Event) -> bool:
        """Bring a batch into the database and the dead letters; False: told to stop before it was done."""
        refused: list[RefusedMessage] = []
        entries: list[tuple[Message, _ReportRows]] = []
        for message in batch:
            rows = _read(message, self._config)
            if isinstance(rows, RefusedMessage):
                refused.append(rows)
            else:
                entries.append((message, rows))
        if not self._persist(lambda: self._insert(entries, refused), stop):
            return False
        if refused and not self._persist(lambda: self._dead_letter_sink.write(refused), stop):
            return False
        self._count_dead_letters(refused)
        return True

    def _insert(self, entries: list[tuple[Message, _ReportRows]], refused: list[RefusedMessage]) -> None:
        """Insert all rows; where a value does not fit its column, the messages one by one."""
        self._check()
        together = _ReportRows()
        for _, rows in entries:
            together.add(rows)
        try:
            together.write(self._store)
        except RowRefusedError:
            for entry in list(entries):
                try:
                    entry[1].write(self._store)
                except RowRefusedError as error:
                    refused.append(RefusedMessage(entry[0], error.reason, str(error)))
                    entries.remove(entry)
        self.counters["written"] += len(entries)


def _read(message: Message, config: TopicSinkConfig) -> _ReportRows | RefusedMessage:
    """Return the rows of a message, or why there are none."""
    if message.value is None:
        return RefusedMessage(message, "no_value", "the message has no value: must be a report of the engine")
    topic = message.topic.rpartition(".")[2]
    if topic == ACTION_ACKS:
        return _ack_rows(message, config)
    check = config.action_check if topic == ACTIONS else config.check
    try:
        if check is not None:
            check(message.value, message.signature, message.timestamp_ns)
        rows = _rows_of(topic, message.value)
    except (SchemaError, IdentityError) as error:
        return RefusedMessage(message, error.reason, str(error))
    return rows or RefusedMessage(message, "unknown_topic", f"the topic {message.topic} holds no reports")


def _rows_of(topic: str, value: bytes) -> _ReportRows | None:
    """Return the rows of a value, None: the topic holds no reports.

    Raises:
        SchemaError: the value cannot be read.
    """
    if topic == EVIDENCE:
        return _ReportRows(evidence=decode_evidence(value))
    if topic == HOST_HEALTH:
        return _ReportRows(health=decode_health(value))
    if topic == JOB_STATUS:
        return _ReportRows(statuses=[decode_status(value)])
    if topic == ETTR:
        told = decode_account(value)
        return _ReportRows(starts=[told]) if isinstance(told, AttemptStart) else _ReportRows(times=[told])
    if topic == ALERTS_SENT:
        return _ReportRows(alerts=[decode_alert(value)])
    if topic == COVERED:
        return _ReportRows(covers=[decode_cover(value)])
    if topic == NOTES_TAKEN:
        return _ReportRows(notes=[decode_taken(value).note])
    if topic == ACTIONS:
        action = decode_action(value)
        return _ReportRows(actions=[change_of(action, is_dry_run=False)], action_changes=[action])
    return None


def _ack_rows(message: Message, config: TopicSinkConfig) -> _ReportRows:
    """Return the row of an executor's message; what is none, or is forged, is the controller's to refuse."""
    value = message.value or b""
    try:
        if config.ack_check is not None:
            config.ack_check(value, message.signature, message.timestamp_ns)
        told = decode_ack_or_event(value)
    except (SchemaError, IdentityError):
        return _ReportRows()
    return _ReportRows(action_acks=[told]) if isinstance(told, Ack) else _ReportRows()

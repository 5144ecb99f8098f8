"""A recording in which a controller tells the job of its actions, as it does where jobs are judged in Flink."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np

from tests.pipeline.recording.kit import START_NS
from tests.pipeline.recording.outside import MOVE_SECONDS, Tables, event_table, joined, moved
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.action_records import ToldChange, told_change
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.events import ACTION_CHANGE, CONTROL_HOST
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.verdicts import ActionKind, Advice

TOLD_AFTER_SECONDS = 2.3
"""How much later than the change its record comes."""
APPROVED_SECOND = MOVE_SECONDS - 11.0
"""When the restart is approved: after the fault of the first attempt was confirmed."""


class _Change(NamedTuple):
    second: float
    kind: ActionKind
    state: ActionState


_CHANGES = (
    _Change(APPROVED_SECOND, ActionKind.RESTART, ActionState.APPROVED),
    _Change(APPROVED_SECOND + 1.2, ActionKind.RESTART, ActionState.CLAIMED),
    _Change(APPROVED_SECOND + 1.9, ActionKind.RESTART, ActionState.STARTED),
    _Change(APPROVED_SECOND - 1, ActionKind.DRAIN, ActionState.APPROVED),
    _Change(APPROVED_SECOND - 0.4, ActionKind.DRAIN, ActionState.CANCELLED),
    _Change(APPROVED_SECOND - 1, ActionKind.PROBE, ActionState.APPROVED),
    _Change(MOVE_SECONDS + 8, ActionKind.RESTART, ActionState.DONE),  # told of the first attempt when the next one runs
)


def tables_with_actions() -> Tables:
    """Two attempts, of which the first ends by a crash, and what the job is told between them."""
    tables = moved("slow", attempt=True, crash=True)
    rows = [
        (_ns(one.second + TOLD_AFTER_SECONDS), CONTROL_HOST, -1, "job", ACTION_CHANGE, "info", _payload(one))
        for one in _CHANGES
    ]
    events = joined(tables["events"], event_table(rows))
    return tables | {"events": events | {"attempt": np.zeros(len(events["host"]), np.int32)}}


def told_changes(recording: Recording) -> list[ActionChange]:
    """The changes that a job is told in a recording, as ``tocsin serve`` hears them of its own controller, by time."""
    names = cast("Iterable[str]", recording.tables.get("events", {}).get("name", ()))
    if ACTION_CHANGE not in set(names):
        return []
    events = [one for one in records_of(recording) if isinstance(one, Event)]
    found = [_heard(told) for told in map(told_change, events) if told is not None]
    return sorted(found, key=lambda one: one.changed_ns)


def _heard(told: ToldChange) -> ActionChange:
    times = (told.changed_ns, told.changed_ns)
    advice = Advice(told.verdict_id, 0, told.job, told.kind, None, "", "", *times, dry_run=False)
    return ActionChange(advice, told.state, told.changed_ns)


def _ns(second: float) -> int:
    return START_NS + round(second * NS_PER_SECOND)


def _payload(change: _Change) -> str:
    ids = {"id": change.kind.value, "verdict_id": "v", "kind": change.kind.value}
    return json.dumps({**ids, "state": change.state.value, "changed_ns": _ns(change.second)})

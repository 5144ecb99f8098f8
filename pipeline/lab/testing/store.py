"""A store that keeps what is written, and can be away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.stores.base import ActionChange, ActionState, EvidencePoint, HostHealth
from tocsin.schemas.errors import StoreError
from tocsin.schemas.verdicts import Verdict, VerdictState


class MemoryStore:
    """A ``Store`` in lists.

    Attributes:
        failures_left_count: so many writes raise ``StoreError`` before one succeeds.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.verdicts: list[Verdict] = []
        self.evidence: list[EvidencePoint] = []
        self.actions: list[ActionChange] = []
        self.health: list[HostHealth] = []
        self.failures_left_count = 0

    def migrate(self) -> int:
        """There is nothing to migrate."""
        return 0

    def check(self) -> int:
        """It is always this program's version."""
        return 0

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Keep, or fail while it is away."""
        if verdicts and self.failures_left_count > 0:
            self.failures_left_count -= 1
            raise StoreError("the database is away")
        self.verdicts.extend(verdicts)

    def write_evidence(self, points: Sequence[EvidencePoint]) -> None:
        """Keep."""
        self.evidence.extend(points)

    def write_actions(self, changes: Sequence[ActionChange]) -> None:
        """Keep."""
        self.actions.extend(changes)

    def actions_of(self, verdict_ids: Sequence[str]) -> list[ActionChange]:
        """The latest change of each action."""
        latest: dict[tuple[object, ...], ActionChange] = {}
        for change in self.actions:
            action = change.action
            key = (action.verdict_id, action.verdict_update, action.kind, action.target)
            if action.verdict_id in verdict_ids and (key not in latest or latest[key].changed_ns <= change.changed_ns):
                latest[key] = change
        return list(latest.values())

    def write_host_health(self, minutes: Sequence[HostHealth]) -> None:
        """Keep."""
        self.health.extend(minutes)

    def expire_overdue(self, until_ns: int, verdict_ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """Expire them in the lists."""
        live = {VerdictState.OPEN, VerdictState.CONFIRMED}
        found = [one for one in self.latest().values() if one.state in live and one.expires_ns <= until_ns]
        found = [one for one in found if verdict_ids is None or one.verdict_id in verdict_ids]
        self.verdicts += [replace(one, update=one.update + 1, state=VerdictState.EXPIRED) for one in found]
        names = tuple(one.verdict_id for one in found)
        standing = [one for one in self.actions_of(names) if one.state in {ActionState.PROPOSED, ActionState.WAITING}]
        self.actions += [replace(one, state=ActionState.EXPIRED, changed_ns=until_ns) for one in standing]
        return names

    def latest(self) -> dict[str, Verdict]:
        """Verdict id -> its newest update."""
        found: dict[str, Verdict] = {}
        for one in self.verdicts:
            if one.verdict_id not in found or found[one.verdict_id].update <= one.update:
                found[one.verdict_id] = one
        return found

    def newest_updates(self, since_ns: int) -> dict[str, int]:
        """Verdict id -> number of its newest update."""
        return {name: one.update for name, one in self.latest().items() if one.detected_ns >= since_ns}

    def query(self, sql: str, fmt: str) -> bytes:
        """No SQL here."""
        raise StoreError(f"a store in memory has no SQL: {sql} ({fmt})")

    def close(self) -> None:
        """Nothing to close."""

"""Floods: how many notices of one kind go out in a minute, and the one notice that stands for the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

_WINDOW_NS: Final = 60 * NS_PER_SECOND


def signature_of(verdict: Verdict) -> str:
    """Return what incidents of one kind have in common: fault, cause and the metric of the strongest evidence."""
    metric = verdict.evidence[0].metric if verdict.evidence else ""
    return f"{verdict.fault.value}/{verdict.cause}/{metric}"


class NoticeBudget:
    """Counts notices by key, and says when a minute's share is used up."""

    def __init__(self, notices_a_minute: int) -> None:
        """Start with nothing used.

        Args:
            notices_a_minute: how many notices of one key go out in a minute.
        """
        self._most = notices_a_minute
        self._used: dict[str, tuple[int, int]] = {}

    def take(self, key: str, now_ns: int) -> bool:
        """Count one notice of a key; return False, and do not count it, where the minute's share is used up."""
        start_ns, count = self._used.get(key, (now_ns, 0))
        if now_ns - start_ns >= _WINDOW_NS:
            start_ns, count = now_ns, 0
        if count >= self._most:
            return False
        self._used[key] = (start_ns, count + 1)
        return True

    def on_time(self, now_ns: int) -> None:
        """Forget the keys whose minute is over."""
        self._used = {key: used for key, used in self._used.items() if now_ns - used[0] < _WINDOW_NS}

    def to_state(self) -> dict[str, list[int]]:
        """Return the state as JSON values."""
        return {key: list(used) for key, used in self._used.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one of ``to_state``."""
        self._used = {key: (int(used[0]), int(used[1])) for key, used in state.items()}


@dataclass(slots=True)
class FloodSummary:
    """The one notice of a route for incidents of one signature that went over the budget.

    Attributes:
        route: name of the route.
        severity: how urgent it is.
        verdict: what is told: the first of the incidents, under an id of its own and without a suspect.
        told_ns: when it was first told, 0 for not yet.
        total: how many incidents it stood for.
        told_total: how many the last notice counted.
        cancelled: how many of them were cancelled.
        members: ids of those that stand.
    """

    route: str
    severity: AlertSeverity
    verdict: Verdict
    told_ns: int = 0
    total: int = 0
    told_total: int = 0
    cancelled: int = 0
    members: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls, route: str, severity: AlertSeverity, verdict: Verdict, now_ns: int) -> FloodSummary:
        """Return a summary that stands for no incident yet."""
        text = f"summary/{route}/{signature_of(verdict)}/{now_ns}"
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        shown = replace(
            verdict, verdict_id=name, suspects=(), witnesses=(), common=None, action=ActionKind.NOTIFY, update=0
        )
        return cls(route, severity, shown)

    def notices(self, now_ns: int) -> Iterator[Notice]:
        """Yield the notice that is due: the first, one when the number has doubled, or the end."""
        if self.told_ns and not self.members:
            is_false = self.cancelled == self.total
            state = VerdictState.CANCELLED if is_false else VerdictState.RESOLVED
            yield self._notice(NoticeKind.TAKEN_BACK if is_false else NoticeKind.RESOLVED, state, now_ns)
        elif self.members and not self.told_ns:
            self.told_ns = now_ns
            yield self._notice(NoticeKind.FIRING, VerdictState.CONFIRMED, now_ns)
        elif self.members and self.total >= 2 * self.told_total:
            yield self._notice(NoticeKind.CHANGED, VerdictState.CONFIRMED, now_ns)

    def _notice(self, kind: NoticeKind, state: VerdictState, now_ns: int) -> Notice:
        """Return a notice of the present number."""
        self.told_total = self.total
        number = self.verdict.update + 1
        self.verdict = replace(self.verdict, state=state, update=number, detected_ns=max(now_ns, 1))
        note = (
            f"This stands for {self.total} more incidents of the same fault, cause and metric, beyond those told one "
            f"by one; {len(self.members)} of them stand. 'tocsin incidents' lists them."
        )
        return Notice(self.route, kind, self.severity, self.verdict, self.told_ns, now_ns, note=note)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "route": self.route,
            "severity": self.severity.value,
            "verdict": encode_verdict(self.verdict).decode(),
            "told_ns": self.told_ns,
            "total": self.total,
            "told_total": self.told_total,
            "cancelled": self.cancelled,
            "members": sorted(self.members),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FloodSummary:
        """Return the summary of a state of ``to_state``."""
        return cls(
            state["route"],
            AlertSeverity(state["severity"]),
            decode_verdict(state["verdict"].encode()),
            state["told_ns"],
            state["total"],
            state["told_total"],
            state["cancelled"],
            set(state["members"]),
        )

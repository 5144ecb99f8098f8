"""Floods: how many incidents a route tells one by one, and the one notice that stands for the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

OTHER: Final = "other"
"""Signature under which a summary counts incidents of too many different signatures."""
_QUIET_NS: Final = 60 * NS_PER_SECOND
"""How long no incident joins a summary before it may end, so that a flapping one is one summary."""


@dataclass(frozen=True, slots=True)
class FloodLimits:
    """How much one route tells one by one; what exceeds it is counted by a summary.

    Attributes:
        signature_count: incidents of one signature in a window.
        route_count: incidents of all signatures in a window, counted for each severity, and apart for those that two
            other hosts saw. The first of a signature may exceed it, up to thrice.
        window_seconds: length of the window.
        calm_seconds: a flood is over when within so long fewer incidents joined its summary than would have been told
            one by one, even where some of them still stand: the summary keeps those, and later incidents are told one
            by one again.
    """

    signature_count: int = 5
    route_count: int = 20
    window_seconds: float = 600.0
    calm_seconds: float = 1800.0

    @property
    def calm_count(self) -> int:
        """How many incidents of one signature are told one by one within the calm time."""
        return max(1, int(self.signature_count * self.calm_seconds / self.window_seconds))


def signature_of(verdict: Verdict) -> str:
    """Return what incidents of one flood have in common: fault, cause, strongest metric, whether others saw it."""
    metric = verdict.evidence[0].metric if verdict.evidence else ""
    return f"{verdict.fault.value}/{verdict.cause}/{metric}/{_seen(verdict)}"


def _seen(verdict: Verdict) -> str:
    """Return whether at least two hosts saw a fault that are not accused themselves."""
    accused = {one.component.name for one in verdict.suspects}
    return "seen_by_others" if sum(one.host not in accused for one in verdict.witnesses) > 1 else "alone"


def _group(route: str, verdict: Verdict, severity: AlertSeverity) -> str:
    """Return under which name a route's limit is counted: what is less urgent, or seen by nobody, uses up no other."""
    return f"{route}/{severity.value}/{_seen(verdict)}"


class NoticeBudget:
    """Counts notices by key within a window that begins with the first of them."""

    def __init__(self, window_seconds: float) -> None:
        """Start with nothing counted.

        Args:
            window_seconds: length of the window.
        """
        self._window_ns = int(window_seconds * NS_PER_SECOND)
        self._used: dict[str, tuple[int, int]] = {}

    def count(self, key: str, now_ns: int) -> int:
        """Return how many notices of a key were counted in the present window."""
        start_ns, count = self._used.get(key, (now_ns, 0))
        return count if now_ns - start_ns < self._window_ns else 0

    def add(self, key: str, now_ns: int) -> None:
        """Count one notice of a key."""
        count = self.count(key, now_ns)
        start_ns = self._used[key][0] if count else now_ns
        self._used[key] = (start_ns, count + 1)

    def on_time(self, now_ns: int) -> None:
        """Forget the keys whose window is over."""
        self._used = {key: used for key, used in self._used.items() if now_ns - used[0] < self._window_ns}

    def to_state(self) -> dict[str, list[int]]:
        """Return the state as JSON values."""
        return {key: list(used) for key, used in self._used.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one of ``to_state``."""
        self._used = {key: (int(used[0]), int(used[1])) for key, used in state.items()}


class FloodGate:
    """Says which incidents a route tells one by one."""

    def __init__(self, limits: FloodLimits) -> None:
        """Start with nothing told.

        Args:
            limits: how much a route tells.
        """
        self._limits = limits
        self._budget = NoticeBudget(limits.window_seconds)

    def admit(self, route: str, verdict: Verdict, severity: AlertSeverity, now_ns: int) -> bool:
        """Count one incident and return True, or return False where it exceeds a limit."""
        key, group = f"{route}/{signature_of(verdict)}", _group(route, verdict, severity)
        of_signature = self._budget.count(key, now_ns)
        if of_signature >= self._limits.signature_count or self.is_crowded(route, verdict, severity, now_ns):
            return False
        if of_signature and self._budget.count(group, now_ns) >= self._limits.route_count:
            return False
        self._budget.add(key, now_ns)
        self._budget.add(group, now_ns)
        return True

    def is_crowded(self, route: str, verdict: Verdict, severity: AlertSeverity, now_ns: int) -> bool:
        """Return whether not even the first incident of a signature is told by itself any more."""
        return self._budget.count(_group(route, verdict, severity), now_ns) >= 3 * self._limits.route_count

    def on_time(self, now_ns: int) -> None:
        """Forget the windows that are over."""
        self._budget.on_time(now_ns)

    def to_state(self) -> dict[str, list[int]]:
        """Return the state as JSON values."""
        return self._budget.to_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one of ``to_state``."""
        self._budget.load_state(state)


@dataclass(slots=True)
class FloodSummary:
    """The one notice of a route for incidents of one signature that went over the budget.

    Attributes:
        route: name of the route.
        severity: how urgent it is.
        verdict: what is told: the first of the incidents, under an id of its own and without a suspect.
        told_ns: when it was first told, 0 for not yet.
        newest_ns: when the last incident joined it.
        total: how many incidents it stood for.
        told_total: how many the last notice counted.
        cancelled: how many of them were cancelled.
        members: ids of those that stand.
        period_ns: begin of the present calm time, in which joining incidents are counted.
        period_count: how many joined in it.
    """

    route: str
    severity: AlertSeverity
    verdict: Verdict
    told_ns: int = 0
    newest_ns: int = 0
    total: int = 0
    told_total: int = 0
    cancelled: int = 0
    members: set[str] = field(default_factory=set)
    period_ns: int = 0
    period_count: int = 0

    @classmethod
    def begin(cls, key: str, route: str, severity: AlertSeverity, verdict: Verdict, now_ns: int) -> FloodSummary:
        """Return a summary that stands for no incident yet.

        Args:
            key: route and signature.
            route: name of the route.
            severity: how urgent it is.
            verdict: the first of its incidents.
            now_ns: the present time.
        """
        text = f"summary/{key}/{now_ns}"
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        shown = replace(
            verdict, verdict_id=name, suspects=(), witnesses=(), common=None, action=ActionKind.NOTIFY, update=0
        )
        return cls(route, severity, shown, period_ns=now_ns)

    def join(self, verdict_id: str, severity: AlertSeverity, now_ns: int) -> None:
        """Stand for one more incident, and be as urgent as the most urgent one."""
        self.members.add(verdict_id)
        self.total += 1
        self.period_count += 1
        self.newest_ns = now_ns
        order = list(AlertSeverity)
        self.severity = min(self.severity, severity, key=order.index)

    def is_over(self, now_ns: int) -> bool:
        """Return whether none of its incidents stands, and none joined it lately."""
        return not self.members and now_ns - self.newest_ns >= _QUIET_NS

    def is_calm(self, now_ns: int, limits: FloodLimits) -> bool:
        """Return whether the flood is over, so that it counts no more incidents; called with each look.

        It is over when nothing joined for a calm time, or when fewer joined within one than would have been told one by
        one: a trickle is no flood.
        """
        calm_ns = int(limits.calm_seconds * NS_PER_SECOND)
        if now_ns - self.newest_ns >= calm_ns:
            return True
        if now_ns - self.period_ns < calm_ns:
            return False
        is_trickle = self.period_count < limits.calm_count
        self.period_ns, self.period_count = now_ns, 0
        return is_trickle

    def notices(self, now_ns: int) -> Iterator[Notice]:
        """Yield the notice that is due: the first, one when the number has doubled, or the end."""
        if self.told_ns and self.is_over(now_ns):
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
            f"This stands for {self.total} more incidents of one kind, beyond those told one by one; "
            f"{len(self.members)} of them stand. 'tocsin incidents' lists them."
        )
        return Notice(self.route, kind, self.severity, self.verdict, self.told_ns, now_ns, note=note)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "route": self.route,
            "severity": self.severity.value,
            "verdict": encode_verdict(self.verdict).decode(),
            "told_ns": self.told_ns,
            "newest_ns": self.newest_ns,
            "total": self.total,
            "told_total": self.told_total,
            "cancelled": self.cancelled,
            "members": sorted(self.members),
            "period": [self.period_ns, self.period_count],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FloodSummary:
        """Return the summary of a state of ``to_state``."""
        return cls(
            state["route"],
            AlertSeverity(state["severity"]),
            decode_verdict(state["verdict"].encode()),
            state["told_ns"],
            state["newest_ns"],
            state["total"],
            state["told_total"],
            state["cancelled"],
            set(state["members"]),
            *state.get("period", (state["newest_ns"], 0)),
        )

"""Standing incidents that nobody is told of, and why."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState

NO_ROUTE: Final = "no_route"
"""Reason for which nobody is told of a confirmed incident that fits no route."""


class UntoldIncidents:
    """Standing incidents that nobody is told of, by named reason; one thread writes, any may read."""

    def __init__(self, max_count: int, lapse_after_ns: int) -> None:
        """Start empty.

        Args:
            max_count: most incidents that are remembered.
            lapse_after_ns: an incident is forgotten so long after its last line expired.
        """
        self._max_count = max_count
        self._lapse_after_ns = lapse_after_ns
        self._incidents: dict[str, tuple[str, int]] = {}

    def reasons(self) -> list[str]:
        """Return one named reason for each incident."""
        return [why for why, _ in list(self._incidents.values())]

    def note(self, verdict: Verdict, why: str) -> None:
        """Note a line of a standing incident, and why nobody is told; "" = somebody is."""
        self._incidents.pop(verdict.verdict_id, None)
        if why:
            self._incidents[verdict.verdict_id] = (why, verdict.expires_ns)

    def note_no_route(self, verdict: Verdict) -> None:
        """Note a line that fits no route; only one that would be told by a route without conditions counts."""
        is_wanted = verdict.state is VerdictState.CONFIRMED and verdict.fault is not FaultKind.DEGRADED
        self.note(verdict, NO_ROUTE if is_wanted and verdict.reason != Reason.CANARY.value else "")

    def forget(self, verdict_id: str) -> None:
        """Note that an incident ended."""
        self._incidents.pop(verdict_id, None)

    def on_time(self, now_ns: int) -> None:
        """Forget the oldest beyond the limit, and those of which nothing was heard for long."""
        before_ns = now_ns - self._lapse_after_ns
        while self._incidents:
            oldest, (_, expires_ns) = next(iter(self._incidents.items()))
            if len(self._incidents) <= self._max_count and expires_ns >= before_ns:
                return
            del self._incidents[oldest]

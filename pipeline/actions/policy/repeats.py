"""Counts how often the same happens to one host, in a bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.records import NS_PER_SECOND

_SAME_NS: Final = 5 * NS_PER_SECOND
"""Distance below which an event and a verdict (or two events) are about the same."""
_MOST_KEYS: Final = 10_000
_MOST_SPANS: Final = 16


@dataclass(slots=True)
class AlertSpan:
    """One alert: it began, and was still seen at its last.

    Attributes:
        first_ns: its begin.
        last_ns: when it was seen last.
        verdict_id: id of its verdict, "" while only events tell of it.
    """

    first_ns: int
    last_ns: int
    verdict_id: str = ""


class Repeats:
    """Alerts by key; the longest unused keys and the oldest alerts of a key are forgotten first."""

    def __init__(self) -> None:
        """Start without alerts."""
        self._spans: dict[str, list[AlertSpan]] = {}

    def note_verdict(self, key: str, verdict_id: str, onset_ns: int, now_ns: int) -> AlertSpan:
        """Note that a verdict stands, and return its alert.

        Updates of one verdict are one alert. An event at about its time is the same alert.
        """
        spans = self._of(key)
        found = next((one for one in spans if one.verdict_id == verdict_id), None)
        if found is None:
            near = (one for one in spans if not one.verdict_id and _is_near(one, onset_ns, now_ns))
            found = next(near, None)
        if found is None:
            found = AlertSpan(onset_ns, onset_ns)
            self._add(spans, found)
        found.verdict_id = verdict_id
        found.first_ns, found.last_ns = min(found.first_ns, onset_ns), max(found.last_ns, now_ns)
        return found

    def note_event(self, key: str, ts_ns: int) -> bool:
        """Note an event; return whether it is an alert of its own: none is known at about its time."""
        spans = self._of(key)
        for one in spans:
            if _is_near(one, ts_ns, ts_ns):
                one.last_ns = max(one.last_ns, ts_ns)
                return False
        self._add(spans, AlertSpan(ts_ns, ts_ns))
        return True

    def take_back(self, verdict_id: str) -> None:
        """Forget the alerts of a verdict that was withdrawn."""
        for spans in self._spans.values():
            spans[:] = [one for one in spans if one.verdict_id != verdict_id]

    def count(self, key: str, within_seconds: float) -> int:
        """Return the number of alerts in the span that ends with the newest one's begin."""
        spans = self._spans.get(key, [])
        if not spans:
            return 0
        since_ns = max(one.first_ns for one in spans) - int(within_seconds * NS_PER_SECOND)
        return sum(one.first_ns >= since_ns for one in spans)

    def to_state(self) -> dict[str, list[list[Any]]]:
        """Return the alerts as JSON values."""
        return {
            key: [[one.first_ns, one.last_ns, one.verdict_id] for one in spans] for key, spans in self._spans.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the alerts by what ``to_state`` returned."""
        self._spans = {key: [AlertSpan(*one) for one in spans] for key, spans in state.items()}

    def _of(self, key: str) -> list[AlertSpan]:
        """Return the alerts of a key, which becomes the newest one."""
        spans = self._spans.pop(key, [])
        self._spans[key] = spans
        if len(self._spans) > _MOST_KEYS:
            del self._spans[next(iter(self._spans))]
        return spans

    @staticmethod
    def _add(spans: list[AlertSpan], span: AlertSpan) -> None:
        """Add an alert; the oldest goes where there are too many."""
        spans.append(span)
        if len(spans) > _MOST_SPANS:
            spans.remove(min(spans, key=lambda one: one.last_ns))


def _is_near(span: AlertSpan, first_ns: int, last_ns: int) -> bool:
    """Return whether a time span meets an alert's, or is at most a few seconds away."""
    return span.first_ns - _SAME_NS <= last_ns and first_ns <= span.last_ns + _SAME_NS

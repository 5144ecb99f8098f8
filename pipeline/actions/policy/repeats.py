"""Counts how often the same happens to one host, in a bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.records import NS_PER_SECOND

_MOST_KEYS: Final = 10_000
_MOST_SPANS: Final = 16


@dataclass(slots=True)
class AlertSpan:
    """One alert: it began, and was still seen at its last.

    Attributes:
        first_ns: its begin.
        last_ns: when it was seen last.
        verdict_id: id of the verdict that told of it last, "" while only events tell of it.
        is_of_port: whether events of network ports tell of it; which of them do is known then.
    """

    first_ns: int
    last_ns: int
    verdict_id: str = ""
    is_of_port: bool = False


class Repeats:
    """Alerts by key; the longest unused keys and the oldest alerts of a key are forgotten first.

    An event and a verdict, or two events, that are at most ``same_seconds`` apart are one alert. So are two verdicts
    whose faults began less than that apart: two jobs share the host, or the verdict was opened again.
    """

    def __init__(self, same_seconds: float) -> None:
        """Start without alerts."""
        self._same_ns = int(same_seconds * NS_PER_SECOND)
        self._spans: dict[str, list[AlertSpan]] = {}

    def note_verdict(self, key: str, verdict_id: str, onset_ns: int, now_ns: int) -> AlertSpan:
        """Note that a verdict stands, and return its alert.

        Updates of one verdict are one alert. An event at about its time, or a verdict of the same onset, is the same
        alert.
        """
        spans = self._of(key)
        found = next((one for one in spans if one.verdict_id == verdict_id), None)
        if found is None:
            found = next((one for one in spans if self._is_same(one, onset_ns, now_ns)), None)
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
            if self._is_near(one, ts_ns, ts_ns):
                one.last_ns = max(one.last_ns, ts_ns)
                return False
        self._add(spans, AlertSpan(ts_ns, ts_ns))
        return True

    def note_port(self, key: str, alert_ns: int, ts_ns: int) -> None:
        """Note that a network port does not work.

        A new alert is one of its own, unless a verdict tells of it at about its time.

        Args:
            key: the key.
            alert_ns: begin of the alert of which this is told.
            ts_ns: when this was told; the same time for a new alert.
        """
        spans = self._of(key)
        is_new = alert_ns == ts_ns
        near = (one for one in spans if one.is_of_port is not is_new and self._is_near(one, alert_ns, alert_ns))
        found = next(near, None)
        if found is not None:
            found.is_of_port, found.last_ns = True, max(found.last_ns, ts_ns)
        elif is_new:
            self._add(spans, AlertSpan(ts_ns, ts_ns, is_of_port=True))

    def take_back(self, key: str, verdict_id: str) -> None:
        """Forget the alert of a verdict that was withdrawn."""
        if spans := self._spans.get(key):
            spans[:] = [one for one in spans if one.verdict_id != verdict_id]

    def count(self, key: str, within_seconds: float, until_ns: int | None = None) -> int:
        """Return the number of alerts that began in a span of time.

        Args:
            key: the key.
            within_seconds: length of the span.
            until_ns: its end; None: the begin of the newest alert.
        """
        spans = self._spans.get(key, [])
        last_ns = max((one.first_ns for one in spans), default=0) if until_ns is None else until_ns
        since_ns = last_ns - int(within_seconds * NS_PER_SECOND)
        return sum(since_ns <= one.first_ns <= last_ns for one in spans)

    def is_told(self, key: str, at_ns: int) -> bool:
        """Return whether a verdict tells of an alert at about a time."""
        return any(one.verdict_id and self._is_near(one, at_ns, at_ns) for one in self._spans.get(key, ()))

    def to_state(self) -> dict[str, list[list[Any]]]:
        """Return the alerts as JSON values."""
        return {
            key: [[one.first_ns, one.last_ns, one.verdict_id, one.is_of_port] for one in spans]
            for key, spans in self._spans.items()
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

    def _is_same(self, span: AlertSpan, onset_ns: int, now_ns: int) -> bool:
        """Return whether a verdict that is not known yet tells of an alert that is."""
        if span.verdict_id:
            return abs(span.first_ns - onset_ns) < self._same_ns
        return self._is_near(span, onset_ns, now_ns)

    def _is_near(self, span: AlertSpan, first_ns: int, last_ns: int) -> bool:
        """Return whether a time span meets an alert's, or is hardly apart from it."""
        return span.first_ns - self._same_ns <= last_ns and first_ns <= span.last_ns + self._same_ns

    @staticmethod
    def _add(spans: list[AlertSpan], span: AlertSpan) -> None:
        """Add an alert; the oldest goes where there are too many."""
        spans.append(span)
        if len(spans) > _MOST_SPANS:
            spans.remove(min(spans, key=lambda one: one.last_ns))

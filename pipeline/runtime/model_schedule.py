"""Decide which announced model each detector uses in each slice.

A slice uses the model with the newest ``effective_ns`` that is not later than the slice's start. Of two with the same
``effective_ns``, the one announced later wins. So the choice does not depend on when or how often a slice is processed.
An announcement that arrives after the tick of its ``effective_ns`` is refused, because slices may already have been
judged without it.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tocsin.models.documents import Model
from tocsin.models.model_formats import accept
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.model_announcement import ModelAnnouncement
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import decode, encode

_LOG = logging.getLogger("tocsin.models")
_PART = "models"
KEEP_NS = 3600 * NS_PER_SECOND
"""Replaced models are forgotten this long after their replacement; no slice is that old."""


class _ScheduledModel(NamedTuple):
    """One accepted announcement with its model; sorts in the order in which models replace each other."""

    effective_ns: int
    ts_ns: int
    content_hash: str
    version: str
    data: bytes
    model: Model


class ModelSchedule:
    """Accepted model announcements of one engine (or of one Flink slot)."""

    def __init__(self) -> None:
        """Start without announcements; all detectors use their default settings."""
        self._entries: dict[str, list[_ScheduledModel]] = {}
        self.counters: Counter[str] = Counter()
        """Number of accepted announcements (``accepted``), and of refused ones by reason."""

    def offer(self, announcement: ModelAnnouncement, newest_tick_ns: int) -> bool:
        """Accept an announcement; return False if it is already known.

        Args:
            announcement: the announcement.
            newest_tick_ns: newest tick before it in its log, 0 = none.

        Raises:
            ModelRefusedError: the model cannot be used. The refusal is logged and counted, and nothing else changes.
        """
        try:
            _check_in_time(announcement, newest_tick_ns)
            is_new = self._add(announcement)
        except ModelRefusedError as error:
            self.counters[error.reason] += 1
            fields = {"model": announcement.name, "version": announcement.version, "reason": error.reason}
            _LOG.warning("model refused", extra={**fields, "detail": str(error)})
            raise
        if is_new:
            self.counters["accepted"] += 1
            fields = {"model": announcement.name, "version": announcement.version}
            _LOG.info("model announced", extra={**fields, "effective_ns": announcement.effective_ns})
        return is_new

    def _add(self, announcement: ModelAnnouncement) -> bool:
        """Add an announcement in order.

        Return False if it is already known, raise ``ModelRefusedError`` if it is unusable.
        """
        model = accept(announcement)
        order = (announcement.effective_ns, announcement.ts_ns, announcement.content_hash, announcement.version)
        entry = _ScheduledModel(*order, encode(announcement), model)
        entries = self._entries.setdefault(announcement.name, [])
        if any(other.data == entry.data for other in entries):
            return False
        entries.append(entry)
        entries.sort(key=lambda one: one[:4])
        return True

    def at(self, name: str, start_ns: int) -> Model | None:
        """Return the model that a detector uses in the slice starting at ``start_ns``; None = its default settings."""
        entry = self._entry_at(name, start_ns)
        return None if entry is None else entry.model

    def since_ns(self, name: str, start_ns: int) -> int:
        """Return the start of use of the model that ``at`` returns, 0 = no model was ever in use."""
        entry = self._entry_at(name, start_ns)
        return 0 if entry is None else entry.effective_ns

    def _entry_at(self, name: str, start_ns: int) -> _ScheduledModel | None:
        """Return the announcement that counts for the slice starting at ``start_ns``."""
        current = None
        for entry in self._entries.get(name, ()):
            if entry.effective_ns > start_ns:
                break
            current = entry
        return current

    def forget(self, before_ns: int) -> None:
        """Drop models that no slice starting after ``before_ns`` can use."""
        for name, entries in self._entries.items():
            past = sum(entry.effective_ns <= before_ns for entry in entries)
            self._entries[name] = entries[max(0, past - 1) :]

    def status(self, now_ns: int) -> list[dict[str, Any]]:
        """Return one dict per announced model with its detector, version, start time and state, for display."""
        return [
            {
                "detector": name,
                "version": entry.version,
                "effective_ns": entry.effective_ns,
                "state": "waiting" if entry.effective_ns > now_ns else "in use" if is_last else "replaced",
            }
            for name, entries in sorted(self._entries.items())
            for entry, is_last in _with_last(entries, now_ns)
        ]

    def records(self) -> list[bytes]:
        """Return the accepted announcements as encoded records, in a fixed order."""
        return [entry.data for name in sorted(self._entries) for entry in self._entries[name]]

    def load(self, records: Iterable[bytes]) -> None:
        """Replace all announcements by the encoded ones from ``records``; unusable ones are logged and skipped."""
        self._entries = {}
        self.join(records)

    def join(self, records: Iterable[bytes]) -> None:
        """Add encoded announcements that are not known yet; unusable ones are logged and skipped."""
        for data in records:
            announcement = decode(data)
            if isinstance(announcement, ModelAnnouncement):
                try:
                    self._add(announcement)
                except ModelRefusedError as error:
                    fields = {"model": announcement.name, "version": announcement.version, "reason": error.reason}
                    _LOG.error("a model of the state cannot be used any more", extra={**fields, "detail": str(error)})

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one named part; {} if no model was announced."""
        records = [base64.b64encode(data).decode() for data in self.records()]
        return {_PART: pack_state({"records": records})} if records else {}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned."""
        records = unpack_state(parts, _PART)["records"] if _PART in parts else []
        self.load(base64.b64decode(text) for text in records)


def _check_in_time(announcement: ModelAnnouncement, newest_tick_ns: int) -> None:
    """Raise ``ModelRefusedError`` if the newest tick has already reached the announcement's ``effective_ns``."""
    if newest_tick_ns >= announcement.effective_ns:
        behind = (newest_tick_ns - announcement.effective_ns) / NS_PER_SECOND
        text = f"effective_ns = {announcement.effective_ns}: must be ahead of the stream, which is {behind:g} s beyond"
        raise ModelRefusedError(ModelRefusal.TOO_LATE.value, text)


def _with_last(entries: list[_ScheduledModel], now_ns: int) -> list[tuple[_ScheduledModel, bool]]:
    """Pair each entry with whether it is the newest one in effect at ``now_ns``."""
    past = [entry for entry in entries if entry.effective_ns <= now_ns]
    return [(entry, bool(past) and entry is past[-1]) for entry in entries]

"""Which model each detector uses in which slice: in use, waiting, refused.

A slice's model follows from the announcements alone: the one with the newest ``effective_ns`` that is
not later than the slice's begin (of two with the same, the one that was announced later). So it does
not matter when a slice is worked off, or how often: an announcement is known before any slice that it
is for, because it stands in its log before the tick of its ``effective_ns``. One that comes later is
refused: nobody could say which slices were judged with what.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tocsin.models.documents import Model, accept
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.model_announcement import ModelAnnouncement
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import decode, encode

_LOG = logging.getLogger("tocsin.models")
_PART = "models"
KEEP_NS = 3600 * NS_PER_SECOND
"""Models that others replaced so long ago are forgotten: no slice is as old."""


class _ScheduledModel(NamedTuple):
    """One accepted announcement; compares as the models take turns."""

    effective_ns: int
    ts_ns: int
    content_hash: str
    version: str
    data: bytes
    model: Model


class ModelSchedule:
    """The announcements of one engine (or of one Flink slot)."""

    def __init__(self) -> None:
        """Know of none: every detector has its own settings."""
        self._entries: dict[str, list[_ScheduledModel]] = {}
        self.counters: Counter[str] = Counter()
        """``accepted``, and what was refused by reason."""

    def offer(self, announcement: ModelAnnouncement, newest_tick_ns: int) -> bool:
        """Take an announcement; whether it is new.

        Args:
            announcement: what came.
            newest_tick_ns: of the ticks that stood before it in its log, 0: none.

        Raises:
            ModelRefusedError: it cannot be used; all goes on as before. Logged and counted here.
        """
        try:
            _check_in_time(announcement, newest_tick_ns)
            is_new = self._add(announcement)
        except ModelRefusedError as error:
            self.counters[error.reason] += 1
            told = {"model": announcement.name, "version": announcement.version, "reason": error.reason}
            _LOG.warning("model refused", extra={**told, "detail": str(error)})
            raise
        if is_new:
            self.counters["accepted"] += 1
            told = {"model": announcement.name, "version": announcement.version}
            _LOG.info("model announced", extra={**told, "effective_ns": announcement.effective_ns})
        return is_new

    def _add(self, announcement: ModelAnnouncement) -> bool:
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
        """The model of a detector in the slice that begins there, None: its own settings."""
        current = None
        for entry in self._entries.get(name, ()):
            if entry.effective_ns > start_ns:
                break
            current = entry.model
        return current

    def forget(self, before_ns: int) -> None:
        """Drop what no slice that ends after this time can use."""
        for name, entries in self._entries.items():
            past = sum(entry.effective_ns <= before_ns for entry in entries)
            self._entries[name] = entries[max(0, past - 1) :]

    def status(self, now_ns: int) -> list[dict[str, Any]]:
        """What is in use and what waits, for people."""
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
        """The accepted announcements, encoded, in a fixed order."""
        return [entry.data for name in sorted(self._entries) for entry in self._entries[name]]

    def load(self, records: Iterable[bytes]) -> None:
        """Take back what ``records`` gave; what this program cannot use any more is refused aloud."""
        self._entries = {}
        self.join(records)

    def join(self, records: Iterable[bytes]) -> None:
        """Add what is not there yet."""
        for data in records:
            announcement = decode(data)
            if isinstance(announcement, ModelAnnouncement):
                try:
                    self._add(announcement)
                except ModelRefusedError as error:
                    told = {"model": announcement.name, "version": announcement.version, "reason": error.reason}
                    _LOG.error("a model of the state cannot be used any more", extra={**told, "detail": str(error)})

    def snapshot(self) -> dict[str, bytes]:
        """State in one part, none where nothing was ever announced."""
        records = [base64.b64encode(data).decode() for data in self.records()]
        return {_PART: pack_state({"records": records})} if records else {}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        records = unpack_state(parts, _PART)["records"] if _PART in parts else []
        self.load(base64.b64decode(text) for text in records)


def _check_in_time(announcement: ModelAnnouncement, newest_tick_ns: int) -> None:
    if newest_tick_ns >= announcement.effective_ns:
        behind = (newest_tick_ns - announcement.effective_ns) / NS_PER_SECOND
        text = f"effective_ns = {announcement.effective_ns}: must be ahead of the stream, which is {behind:g} s beyond"
        raise ModelRefusedError(ModelRefusal.TOO_LATE.value, text)


def _with_last(entries: list[_ScheduledModel], now_ns: int) -> list[tuple[_ScheduledModel, bool]]:
    past = [entry for entry in entries if entry.effective_ns <= now_ns]
    return [(entry, bool(past) and entry is past[-1]) for entry in entries]

"""Parser of MLPerf's training logs: lines that contain ``:::MLLOG`` and a JSON object.

Everything else in such a log (foreign lines, lines that were cut or mixed) is skipped, counted and named by its
reason. A launcher's label before the line gives the process: see ``task_labels``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tocsin.schemas.formats.task_labels import task_of

MARKER: Final = ":::MLLOG"
MAX_LINE_CHARACTERS: Final = 1 << 16
"""Maximum length of a line that is read; loggers write some hundred characters."""
_NS_PER_MS: Final = 1_000_000
_LATEST_MS: Final = 1 << 43
"""Latest time that is believed: the year 2248."""
_DECODER: Final = json.JSONDecoder()


class SkipReason(StrEnum):
    """Why a line, or a part of it, was skipped."""

    FOREIGN = "foreign_line"
    """Without the marker: another program's output."""
    TORN = "torn_line"
    """The text after the marker is no whole JSON object."""
    BAD_FIELD = "bad_field"
    """The object lacks its key or event type."""
    NO_TIME = "no_time"
    """The time is missing, zero or no number: the line was added by hand."""
    TOO_LONG = "too_long"
    """Longer than ``MAX_LINE_CHARACTERS``."""


class StampKind(StrEnum):
    """Event types of the log's format."""

    BEGIN = "INTERVAL_START"
    END = "INTERVAL_END"
    POINT = "POINT_IN_TIME"


@dataclass(frozen=True, slots=True)
class Stamp:
    """One entry of the log.

    Attributes:
        ts_ns: its time, Unix nanoseconds.
        kind: begin or end of an interval, or a point.
        key: what happens, e.g. ``init_start``.
        process: the process that wrote it, as the launcher or the logger's namespace names it; "" if unknown.
        value: its value, where that is a text; "" otherwise.
    """

    ts_ns: int
    kind: StampKind
    key: str
    process: str = ""
    value: str = ""


@dataclass
class Skipped:
    """What was left out of one file.

    Attributes:
        counts: reason -> number of lines.
        first_lines: reason -> number of the first such line, from 1.
    """

    counts: dict[SkipReason, int] = field(default_factory=dict)
    first_lines: dict[SkipReason, int] = field(default_factory=dict)

    def add(self, reason: SkipReason, line_index: int) -> None:
        """Count a line, numbered from 1."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first_lines.setdefault(reason, line_index)


def stamps_of(lines: Iterable[str], skipped: Skipped) -> Iterator[Stamp]:
    """Yield the entries of a log in the order of its lines.

    Args:
        lines: the log's lines, with or without line ends.
        skipped: takes what is left out.
    """
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARACTERS:
            skipped.add(SkipReason.TOO_LONG, number)
        elif MARKER not in line:
            if line.strip():
                skipped.add(SkipReason.FOREIGN, number)
        else:
            prefix, *parts = line.split(MARKER)
            process = task_of(prefix)
            for part in parts:  # several, where two processes wrote into one line
                found = _stamp(part.strip(), process)
                if isinstance(found, Stamp):
                    yield found
                else:
                    skipped.add(found, number)


def _stamp(text: str, process: str) -> Stamp | SkipReason:
    """Return the entry in the text after a marker, or the reason to skip it."""
    try:
        entry, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return SkipReason.TORN
    if not isinstance(entry, Mapping):
        return SkipReason.TORN
    key, kind, time_ms = entry.get("key"), entry.get("event_type"), entry.get("time_ms")
    if not isinstance(key, str) or kind not in tuple(StampKind):
        return SkipReason.BAD_FIELD
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float) or not 0 < time_ms < _LATEST_MS:
        return SkipReason.NO_TIME
    namespace, value = entry.get("namespace"), entry.get("value")
    name = process or (namespace if isinstance(namespace, str) else "")
    return Stamp(round(time_ms * _NS_PER_MS), StampKind(kind), key, name, value if isinstance(value, str) else "")

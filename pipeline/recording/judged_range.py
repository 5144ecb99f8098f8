"""Define which time span of a recording is judged, so that replays and backtests read the same records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tocsin.pipeline.recording.tables import Manifest
from tocsin.schemas.records import NS_PER_SECOND, JobRecord

_Record = TypeVar("_Record", bound=JobRecord)
BEFORE_START_NS = 60 * NS_PER_SECOND
"""Records earlier than this before the start are left out; a single one would create hours of empty slices."""


def has_no_length(manifest: Manifest) -> bool:
    """Return whether a recording ends at its start, so that nothing of it is judged."""
    return manifest.end_ns <= manifest.start_ns


def judged_span_ns(manifest: Manifest) -> tuple[int, int]:
    """Return the judged span [first, end) in event time: from a minute before the start to the end of the last second.

    It is empty for a recording of no length.
    """
    if has_no_length(manifest):
        return manifest.start_ns, manifest.start_ns
    return manifest.start_ns - BEFORE_START_NS, -(-manifest.end_ns // NS_PER_SECOND) * NS_PER_SECOND


def in_span(records: Iterable[_Record], manifest: Manifest) -> Iterator[_Record]:
    """Yield the records within the judged span.

    Args:
        records: records in order of event time; reading stops at the end of the span.
        manifest: manifest of their recording.
    """
    first_ns, end_ns = judged_span_ns(manifest)
    for record in records:
        if record.ts_ns >= end_ns:
            return
        if record.ts_ns >= first_ns:
            yield record

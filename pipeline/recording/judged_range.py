"""Which span of a recording is judged: a replay and every detector set of a backtest read the same records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tocsin.pipeline.recording.tables import Manifest
from tocsin.schemas.records import NS_PER_SECOND, JobRecord

_Record = TypeVar("_Record", bound=JobRecord)
BEFORE_START_NS = 60 * NS_PER_SECOND
"""What lies longer before the recording is left out: one such time would make hours of empty slices."""


def has_no_length(manifest: Manifest) -> bool:
    """Whether a recording ends where it begins: nothing of it is judged."""
    return manifest.end_ns <= manifest.start_ns


def judged_span_ns(manifest: Manifest) -> tuple[int, int]:
    """Event times that count, first and end: up to a minute before the start, and all of the last second.

    A recording of no length has an empty span.
    """
    if has_no_length(manifest):
        return manifest.start_ns, manifest.start_ns
    return manifest.start_ns - BEFORE_START_NS, -(-manifest.end_ns // NS_PER_SECOND) * NS_PER_SECOND


def in_span(records: Iterable[_Record], manifest: Manifest) -> Iterator[_Record]:
    """The records that count. Their time says whether their slice ends within the recording.

    Args:
        records: by event time; what follows the span is not read.
        manifest: of their recording.
    """
    first_ns, end_ns = judged_span_ns(manifest)
    for record in records:
        if record.ts_ns >= end_ns:
            return
        if record.ts_ns >= first_ns:
            yield record

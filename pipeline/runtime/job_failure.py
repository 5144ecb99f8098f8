"""What is kept of a job's turn that raised: the job begins anew, and says why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import JobKey, JobRecord
from tocsin.schemas.wire.codec import encode

MAX_KEPT_RECORDS: Final = 16
MAX_KEPT_BYTES: Final = 64_000
"""Of the records that a turn held: one of them is what raised, and a person has to find out which."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """An operator raised in one job's turn.

    Attributes:
        job: whose turn.
        end_ns: the turn's second.
        text: what was raised, and what became of the job.
        records: the first records of the turn, encoded, at most ``MAX_KEPT_BYTES``.
    """

    job: JobKey
    end_ns: int
    text: str
    records: tuple[bytes, ...] = ()


def failure_of(job: JobKey, end_ns: int, error: Exception, turn: SliceBundle | None = None) -> JobFailure:
    """Return what is kept of it.

    Args:
        job: whose turn.
        end_ns: the turn's second.
        error: what was raised.
        turn: what the turn held, None: it was not made.
    """
    try:
        said = str(error)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        said = "(cannot be shown)"
    text = f"{type(error).__name__}: {said}"[:400] + "; the job's state begins anew"
    records: list[bytes] = []
    if turn is not None:
        room = MAX_KEPT_BYTES
        for data in _encoded([*turn.fast.records, *(one for part in turn.metrics for one in part.records)]):
            if len(data) <= room:
                room -= len(data)
                records.append(data)
            if len(records) == MAX_KEPT_RECORDS:
                break
    return JobFailure(job, end_ns, text, tuple(records))


def _encoded(records: Iterable[JobRecord]) -> Iterable[bytes]:
    for record in records:
        with contextlib.suppress(SchemaError, ValueError, OverflowError):  # what cannot be written is no evidence
            yield encode(record)

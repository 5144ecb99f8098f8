"""Diagnostic data kept when an operator raises an error in a job's slice; the job's state then starts anew."""

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
"""Maximum number of the slice's records that are kept; one of them probably caused the error."""
MAX_KEPT_BYTES: Final = 64_000
"""Maximum size of the kept records together."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """An error that an operator raised while it processed one job's slice bundle.

    Attributes:
        job: the job.
        end_ns: end of the bundle's second.
        text: the error, and what happens to the job.
        records: the first records of the bundle, encoded, at most ``MAX_KEPT_BYTES`` together.
    """

    job: JobKey
    end_ns: int
    text: str
    records: tuple[bytes, ...] = ()


def failure_of(job: JobKey, end_ns: int, error: Exception, bundle: SliceBundle | None = None) -> JobFailure:
    """Return the diagnostic data of a failed slice bundle.

    Args:
        job: the job.
        end_ns: end of the bundle's second.
        error: the raised error.
        bundle: the bundle, None = it could not be built.
    """
    try:
        message = str(error)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        message = "(cannot be shown)"
    text = f"{type(error).__name__}: {message}"[:400] + "; the job's state begins anew"
    records: list[bytes] = []
    if bundle is not None:
        room = MAX_KEPT_BYTES
        for data in _encoded([*bundle.fast.records, *(one for part in bundle.metrics for one in part.records)]):
            if len(data) <= room:
                room -= len(data)
                records.append(data)
            if len(records) == MAX_KEPT_RECORDS:
                break
    return JobFailure(job, end_ns, text, tuple(records))


def _encoded(records: Iterable[JobRecord]) -> Iterable[bytes]:
    """Yield the records' bytes; records that cannot be encoded are skipped."""
    for record in records:
        with contextlib.suppress(SchemaError, ValueError, OverflowError):  # what cannot be written is no evidence
            yield encode(record)

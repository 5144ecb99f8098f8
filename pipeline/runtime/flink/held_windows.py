"""Windows of one job that wait for their second to be processed, and the decoding of their records."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from tocsin.pipeline.core.frame_blocks import MAGIC
from tocsin.pipeline.runtime.flink.batch_decode import decode_many
from tocsin.pipeline.runtime.flink.packing import unpack
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.flink")


class WindowRow(NamedTuple):
    """One record of a window.

    Attributes:
        origin: where it stood in Kafka; "" for what ``reduce_and_pack`` made.
        data: its bytes.
        record: the decoded record; None for a frame block, and for bytes that cannot be decoded.
    """

    origin: str
    data: bytes
    record: Record | None

    @property
    def is_block(self) -> bool:
        """Whether it is a frame block, made of frames by ``reduce_and_pack``: what came from Kafka has an origin."""
        return _is_block(self.origin, self.data)


class HeldWindow(NamedTuple):
    """A window that waits for its second.

    Attributes:
        end_ns: the second's end.
        data: the packed records.
        decoded: the rows, None where they are not decoded yet.
    """

    end_ns: int
    data: bytes
    decoded: list[WindowRow] | None = None

    def rows(self) -> list[WindowRow]:
        """Return the window's rows, decoded together where that is possible."""
        return _rows_of(self.data) if self.decoded is None else self.decoded


class HeldWindows:
    """The windows of one job that wait, ordered by their ends; those of one second in order of arrival."""

    def __init__(self) -> None:
        """Start with no window."""
        self._held: list[HeldWindow] = []

    def __iter__(self) -> Iterator[HeldWindow]:
        """Iterate over the windows, the earliest first."""
        return iter(self._held)

    def __len__(self) -> int:
        """Return the number of windows that wait."""
        return len(self._held)

    @property
    def first_ns(self) -> int | None:
        """End of the earliest window, None where no window waits."""
        return self._held[0].end_ns if self._held else None

    def add(self, end_ns: int, data: bytes) -> None:
        """Add a window behind those that end at the same time."""
        bisect.insort(self._held, HeldWindow(end_ns, data), key=itemgetter(0))

    def decode_newest(self, end_ns: int) -> None:
        """Decode the window that was added last for this second, ahead of its turn."""
        index = bisect.bisect(self._held, end_ns, key=itemgetter(0)) - 1
        held = self._held[index]
        self._held[index] = held._replace(decoded=held.rows())

    def pop_until(self, end_ns: int) -> Iterator[HeldWindow]:
        """Remove and yield the windows that end by this time, the earliest first."""
        while self._held and self._held[0].end_ns <= end_ns:
            yield self._held.pop(0)


def _rows_of(data: bytes) -> list[WindowRow]:
    """Return the rows of a window's packed records; what breaks the decoder has no record."""
    packed = list(unpack(data))
    try:
        together = decode_many([record for _, record in packed])
    except Exception:  # noqa: BLE001  # supervising: records that break it are decoded one by one
        _LOG.exception("records could not be decoded together")
        together = [None] * len(packed)
    return [
        WindowRow(origin, record, _alone(origin, record) if found is None else found)
        for (origin, record), found in zip(packed, together, strict=True)
    ]


def _is_block(origin: str, data: bytes) -> bool:
    """Return whether a row is a frame block."""
    return not origin and data.startswith(MAGIC)


def _alone(origin: str, data: bytes) -> Record | None:
    """Return a row's record, None for a frame block and for bytes that cannot be decoded."""
    try:
        return None if _is_block(origin, data) else decode(data)
    except Exception:  # noqa: BLE001  # supervising: it is decoded once more where it becomes a dead letter
        return None

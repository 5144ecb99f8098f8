"""Process the topic of models: announcements and ticks, in its order, in every slot.

It does not use Flink; ``announced.py`` passes rows in and stores the state. All slots process the same rows in the same
order, so all have the same schedule. Refusals are published by one slot.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tocsin.pipeline.identity.signed import SignedRecords
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.model_schedule import KEEP_NS, ModelSchedule
from tocsin.schemas.errors import DecodeError, IdentityError, ModelRefusedError, SchemaError
from tocsin.schemas.kafka.topics import (
    DEAD_LETTER,
    KIND_MODEL,
    KIND_TICK,
    TICK_KEY,
)
from tocsin.schemas.model_announcement import ModelAnnouncement, content_hash, withdrawal
from tocsin.schemas.records import NS_PER_SECOND, Tick
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.models")
_TICK, _MODEL = "tick/", "model/"


class ModelRow(NamedTuple):
    """One record of the topic of models.

    Attributes:
        kind: its ``kind`` header, None = it has none.
        key: its key, the name of a detector.
        value: its bytes, None = a tombstone.
        second: its timestamp in Unix seconds, rounded down.
        origin: its position ``topic:partition:offset``.
    """

    kind: bytes | None
    key: bytes | None
    value: bytes | None
    second: int
    origin: str


class ModelLog:
    """The models and ticks received so far from the topic of models."""

    def __init__(self, journal_seconds: int, guard: SignedRecords | None = None) -> None:
        """Start without models.

        Args:
            journal_seconds: event time that a restart may replay.
            guard: checks the announcements' signatures; None: everyone who can write to the topic may announce.
        """
        self._guard = guard
        self.book = ModelSchedule()
        self._keep_ns = KEEP_NS + journal_seconds * NS_PER_SECOND
        self._newest_ns: dict[str, int] = {}
        """Partition -> its newest tick."""

    @property
    def counters(self) -> Counter[str]:
        """Number of accepted announcements (``accepted``), and of refused ones by reason, since the process started."""
        return self.book.counters

    def take(self, row: ModelRow) -> Output | None:
        """Process the next record; return a dead letter if it is unusable, else None."""
        partition = row.origin.split(":")[1]
        try:
            if row.kind == KIND_TICK:
                self._tick(partition, row.value)
            else:
                announcement = _announcement(row)
                if self._guard is not None:
                    self._guard.check(announcement, row.value or b"")
                self.book.offer(announcement, self._newest_ns.get(partition, 0))
        except ModelRefusedError as error:  # the book has counted it
            return _dead_letter(row, error.reason, str(error))
        except (SchemaError, IdentityError) as error:
            self.counters[error.reason] += 1
            _LOG.warning("model refused", extra={"origin": row.origin, "reason": error.reason, "detail": str(error)})
            return _dead_letter(row, error.reason, str(error))
        return None

    def _tick(self, partition: str, value: bytes | None) -> None:
        """Record a tick of a partition."""
        record = decode(value or b"")
        if not isinstance(record, Tick):
            raise DecodeError(f"a {type(record).__name__} that says it is a tick")
        self._newest_ns[partition] = max(record.ts_ns, self._newest_ns.get(partition, 0))

    def forget(self, watermark_ns: int) -> None:
        """Drop models that no slice after this watermark can use, including slices that a restart replays."""
        self.book.forget(watermark_ns - self._keep_ns)

    def state(self) -> dict[str, bytes]:
        """Return the state that a restart needs, as named values."""
        ticks = {f"{_TICK}{partition}": b"%d" % ns for partition, ns in self._newest_ns.items()}
        return {**ticks, **{f"{_MODEL}{content_hash(data)}": data for data in self.book.records()}}

    def load(self, state: Mapping[str, bytes]) -> None:
        """Replace the state by what ``state`` returned."""
        self._newest_ns = {n.removeprefix(_TICK): int(v) for n, v in state.items() if n.startswith(_TICK)}
        self.book.load(data for name, data in sorted(state.items()) if name.startswith(_MODEL))


def _announcement(row: ModelRow) -> ModelAnnouncement:
    """Parse a row as a model announcement; a tombstone withdraws the detector's model.

    Raises:
        SchemaError: the row is not an announcement.
    """
    name = (row.key or b"").decode("utf-8", "replace")
    if row.value is None and name and row.key != TICK_KEY:
        return withdrawal(name, (row.second + 1) * NS_PER_SECOND)
    if row.kind != KIND_MODEL or row.value is None:
        raise DecodeError(f"kind {row.kind!r}, key {name!r}: neither an announcement nor a tick")
    record = decode(row.value)
    if not isinstance(record, ModelAnnouncement):
        raise DecodeError(f"a {type(record).__name__} that says it is a model announcement")
    if record.name != name:
        raise DecodeError(f"an announcement for {record.name!r} with the key {name!r}: no later one would replace it")
    return record


def _dead_letter(row: ModelRow, reason: str, detail: str) -> Output:
    """Return the dead letter of a row."""
    topic, partition, offset = row.origin.split(":")
    headers = {"reason": reason, "topic": topic, "partition": partition, "offset": offset, "detail": detail}
    return Output(
        DEAD_LETTER, row.key or b"", row.value or b"", {name: text.encode() for name, text in headers.items()}
    )

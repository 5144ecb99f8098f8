"""The topic of models as every slot of the job takes it: in its order, announcements and ticks.

Knows nothing of Flink: ``announced.py`` hands in rows and writes the state. Each slot takes the same
rows in the same order, so each comes to the same book; what is refused, one of them says.
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
    """One record of the topic.

    Attributes:
        kind: its header, None: it has none.
        key: which detector.
        value: its bytes, None: a tombstone.
        second: its own time, Unix seconds, rounded down.
        origin: where it stood: ``topic:partition:offset``.
    """

    kind: bytes | None
    key: bytes | None
    value: bytes | None
    second: int
    origin: str


class ModelLog:
    """What the topic of models has said so far."""

    def __init__(self, journal_seconds: int, guard: SignedRecords | None = None) -> None:
        """Nothing yet.

        Args:
            journal_seconds: what a restart works off again.
            guard: checks who announces; None: everybody may who can write to the topic.
        """
        self._guard = guard
        self.book = ModelSchedule()
        self._keep_ns = KEEP_NS + journal_seconds * NS_PER_SECOND
        self._newest_ns: dict[str, int] = {}
        """Partition -> its newest tick."""

    @property
    def counters(self) -> Counter[str]:
        """``accepted``, and what was refused by reason, since the process began."""
        return self.book.counters

    def take(self, row: ModelRow) -> Output | None:
        """Take the next record; what cannot be used comes back as a dead letter."""
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
        record = decode(value or b"")
        if not isinstance(record, Tick):
            raise DecodeError(f"a {type(record).__name__} that says it is a tick")
        self._newest_ns[partition] = max(record.ts_ns, self._newest_ns.get(partition, 0))

    def forget(self, watermark_ns: int) -> None:
        """Drop what no slice can use that is worked off from this watermark on, or again after a restart."""
        self.book.forget(watermark_ns - self._keep_ns)

    def state(self) -> dict[str, bytes]:
        """What a restart needs, by name."""
        ticks = {f"{_TICK}{partition}": b"%d" % ns for partition, ns in self._newest_ns.items()}
        return {**ticks, **{f"{_MODEL}{content_hash(data)}": data for data in self.book.records()}}

    def load(self, state: Mapping[str, bytes]) -> None:
        """Take back what ``state`` gave."""
        self._newest_ns = {n.removeprefix(_TICK): int(v) for n, v in state.items() if n.startswith(_TICK)}
        self.book.load(data for name, data in sorted(state.items()) if name.startswith(_MODEL))


def _announcement(row: ModelRow) -> ModelAnnouncement:
    """The announcement that a row is.

    Raises:
        SchemaError: it is none.
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
    topic, partition, offset = row.origin.split(":")
    told = {"reason": reason, "topic": topic, "partition": partition, "offset": offset, "detail": detail}
    return Output(DEAD_LETTER, row.key or b"", row.value or b"", {name: text.encode() for name, text in told.items()})

"""One Kafka topic: its name, its key and its settings by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALL_RECORD_BYTES: Final = 1024 * 1024
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Topic:
    """A Kafka topic's name, key and settings.

    Attributes:
        name: full name, prefix included.
        key: what a record's key consists of, for people.
        partition_count: least number of partitions.
        retention_seconds: how long records are kept by their own timestamps, None = for good.
        is_compacted: whether only the newest record of each key is kept, and that no longer than ``retention_seconds``.
        max_record_bytes: the broker refuses larger records.
        timestamp_ahead_seconds: the broker refuses stamps further ahead of its clock, None = no limit.
        is_stamped_by_broker: whether the broker's clock stamps the records, not the sender's.
        compact_after_seconds: longest time until older records of a key are removed, None = the broker's default.
        segment_bytes: size of a file of the log, None = the broker's default; the newest file is never compacted.
    """

    name: str
    key: str
    partition_count: int
    retention_seconds: float | None
    is_compacted: bool = False
    max_record_bytes: int = SMALL_RECORD_BYTES
    timestamp_ahead_seconds: float | None = None
    is_stamped_by_broker: bool = False
    compact_after_seconds: float | None = None
    segment_bytes: int | None = None

    def config(self) -> dict[str, str]:
        """Return the topic's settings by Kafka's names; all others keep the broker's defaults."""
        retention_ms = -1 if self.retention_seconds is None else round(self.retention_seconds * 1000)
        values = {
            "cleanup.policy": _policy(is_compacted=self.is_compacted, is_deleted=self.retention_seconds is not None),
            "retention.ms": str(retention_ms),
            "max.message.bytes": str(self.max_record_bytes),
            "message.timestamp.type": "LogAppendTime" if self.is_stamped_by_broker else "CreateTime",
        }
        if self.timestamp_ahead_seconds is not None:
            limit_ms = min(_INT64_MAX, self.timestamp_ahead_seconds * 1000)
            values["message.timestamp.after.max.ms"] = str(round(limit_ms))
        if self.compact_after_seconds is not None:
            values["max.compaction.lag.ms"] = str(round(self.compact_after_seconds * 1000))
        if self.segment_bytes is not None:
            values["segment.bytes"] = str(self.segment_bytes)
        return values


def _policy(*, is_compacted: bool, is_deleted: bool) -> str:
    """Return Kafka's cleanup policy of a topic."""
    if is_compacted:
        return "compact,delete" if is_deleted else "compact"
    return "delete"

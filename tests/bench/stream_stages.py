"""Where a canary's time goes: from its slice's end to Kafka, and from there to the row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

_READ_SECONDS = 2.0


class Arrival(NamedTuple):
    """One canary.

    Attributes:
        verdict_id: its id.
        end_seconds: its slice's end.
        row_seconds: from there until its row was in the table.
    """

    verdict_id: str
    end_seconds: float
    row_seconds: float


def arrivals(store: ClickHouseStore, since_seconds: float) -> list[Arrival]:
    """Canaries of slices after this time, in order."""
    sql = (
        "SELECT verdict_id, toFloat64(detected) AS detected, toFloat64(updated) - toFloat64(detected) AS seconds "
        "FROM tocsin.incidents FINAL WHERE reason = 'canary' ORDER BY detected, verdict_id"
    )
    rows = map(json.loads, store.query(sql, "JSONEachRow").splitlines())
    found = (Arrival(row["verdict_id"], row["detected"], row["seconds"]) for row in rows)
    return [one for one in found if one.end_seconds > since_seconds]


def said_seconds(servers: str, topic: str) -> dict[str, float]:
    """Verdict id -> when its first line stood in Kafka, by the clock of who wrote it."""
    client = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="earliest")
    found: dict[str, float] = {}
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(client.partitions_for_topic(topic) or ())]
        client.assign(partitions)
        ends = client.end_offsets(partitions)
        while any(client.position(one) < ends[one] for one in partitions):
            for records in client.poll(timeout_ms=int(_READ_SECONDS * 1000)).values():
                for record in records:
                    own = dict(record.headers).get("id", b"").decode()
                    found[own] = min(found.get(own, np.inf), record.timestamp / 1000)
    finally:
        client.close()
    return found


def stage_lines(rows: Sequence[Arrival], said: dict[str, float]) -> list[str]:
    """The two ways apart: Flink's, and the consumer's with the database."""
    known = [one for one in rows if one.verdict_id in said]
    if not known:
        return ["stages: no canary was found in Kafka"]
    first = np.array([said[one.verdict_id] - one.end_seconds for one in known])
    second = np.array([one.row_seconds for one in known]) - first
    reported = []
    for name, values in (("slice end -> Kafka", first), ("Kafka -> row in ClickHouse", second)):
        p50, p99 = np.percentile(values, (50, 99))
        reported.append(f"{name}: p50 {p50:.2f} s, p99 {p99:.2f} s, max {values.max():.2f} s")
    return reported

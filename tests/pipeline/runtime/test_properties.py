"""What may not change a verdict: the numbers of the ranks, and when a record arrives within the lateness."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.runtime.embedded.test_engine import EXPECTED, FAULTS, RECORDINGS
from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.records import (
    CollectiveBatch,
    Event,
    Groups,
    HostStatus,
    Record,
    StepBatch,
    Tick,
    Topology,
)
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import decode, encode

RANK_COUNT = 8
LATENESS_NS = EngineConfig().slices.lateness_ns


def reported(verdicts: Sequence[Verdict]) -> list[tuple[Any, ...]]:
    """All of a verdict that does not name ranks."""
    return [
        (v.fault, v.cause, v.detected_ns, v.onset_ns, v.state, v.action, v.reason, {s.component for s in v.suspects})
        for v in verdicts
    ]


def relabelled(record: Record, new: Sequence[int]) -> Record:
    """The same record with other numbers for the ranks."""

    def rank(old: int) -> int:
        return new[old] if old >= 0 else old

    if isinstance(record, StepBatch):
        return replace(record, rows=tuple(row._replace(rank=rank(row.rank)) for row in record.rows))
    if isinstance(record, CollectiveBatch):
        rows = (row._replace(rank=rank(row.rank), peer=rank(row.peer)) for row in record.rows)
        return replace(record, rows=tuple(rows))
    if isinstance(record, Event):
        return replace(record, rank=rank(record.rank))
    if isinstance(record, Topology):
        return replace(record, places=tuple(replace(place, rank=rank(place.rank)) for place in record.places))
    if isinstance(record, Groups):
        groups = (replace(group, ranks=tuple(map(rank, group.ranks))) for group in record.groups)
        return replace(record, groups=tuple(groups))
    if isinstance(record, HostStatus):
        return replace(record, ranks_seen=tuple(map(rank, record.ranks_seen)))
    return record


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=4)
@given(new=st.permutations(range(RANK_COUNT)))
def test_relabelled_ranks_change_nothing_else(fault: str, new: list[int]) -> None:
    engine = EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    for tick_ns, data in RECORDINGS[fault]:
        for record in data:
            engine.take(encode(relabelled(decode(record), new)))
        verdicts += engine.tick(tick_ns).verdicts
    assert reported(verdicts) == reported(EXPECTED[fault])


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_records_may_arrive_up_to_the_lateness_later_across_ticks(fault: str, seed: int) -> None:
    order = random.Random(seed)
    arrivals = []
    for _, data in RECORDINGS[fault]:
        for record in data:
            decoded = decode(record)
            assert not isinstance(decoded, Tick)
            arrivals.append((decoded.ts_ns + order.randrange(LATENESS_NS), record))
    arrivals.sort()
    engine = EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    at = 0
    for tick_ns, _ in RECORDINGS[fault]:
        while at < len(arrivals) and arrivals[at][0] < tick_ns:
            assert engine.take(arrivals[at][1]) is not RecordOutcome.LATE
            at += 1
        verdicts += engine.tick(tick_ns).verdicts
    # The last second's records are still on their way.
    assert reported(verdicts) == reported(EXPECTED[fault])[: len(verdicts)]
    assert len(EXPECTED[fault]) - len(verdicts) <= 1

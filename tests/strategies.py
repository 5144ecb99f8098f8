"""Hypothesis strategies for whatever crosses a process boundary: valid values only.

``records()`` gives any record, ``records_of(kind)`` those of one kind. Times lie within the
hour after ``BASE_NS`` unless said otherwise, so that a test may set its clock there.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tocsin.schemas.metrics import BUILTIN_TABLE, FIRST_CUSTOM_TABLE_ID, Metric, MetricTable
from tocsin.schemas.records import (
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    EventSource,
    Frame,
    GroupKind,
    Groups,
    HostStatus,
    JobKey,
    ModelAnnouncement,
    ProbeAnswer,
    RankPlace,
    Record,
    Severity,
    StepBatch,
    StepRecord,
    TableAnnouncement,
    Tick,
    Topology,
)
from tocsin.schemas.verdicts import (
    MAX_WITNESSES,
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)
from tocsin.schemas.wire.codec import Kind
from tocsin.schemas.wire.event_payloads import RULES, Rule
from tocsin.schemas.wire.validate import (
    MAX_ATTEMPT,
    MAX_COORDINATE,
    MAX_GPUS,
    MAX_RANKS,
    MAX_SECONDS,
    MAX_STEP,
    MAX_TICK_NS,
    MIN_TICK_NS,
)

BASE_NS = 1_800_000_000_000_000_000
HOUR_NS = 3_600 * 1_000_000_000
INT32 = 2**31 - 1
INT64 = 2**63 - 1

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
names = texts.filter(bool)
times = st.integers(BASE_NS, BASE_NS + HOUR_NS)
ranks = st.integers(0, MAX_RANKS - 1)
maybe_ranks = st.integers(-1, MAX_RANKS - 1)
coordinates = st.integers(-1, MAX_COORDINATE)
durations = st.floats(0.0, MAX_SECONDS)
scores = st.floats(0.0, allow_infinity=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-INT64, INT64) | finite | texts
payloads: SearchStrategy[dict[str, Any]] = st.dictionaries(
    texts,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)),
    max_size=4,
)
jobs = st.builds(JobKey, names, names, st.integers(0, MAX_ATTEMPT))


def _head() -> dict[str, SearchStrategy[Any]]:
    return {"job": jobs, "host": names, "ts_ns": times}


def _floats(count: int) -> SearchStrategy[bytes]:
    return st.binary(min_size=4 * count, max_size=4 * count)


@st.composite
def frames(draw: st.DrawFn, *, max_gpus: int = 3, max_ticks: int = 4) -> Frame:
    """A frame of the built-in table or of a user's; matrices hold any bits."""
    uuids = tuple(draw(st.lists(names, max_size=max_gpus, unique=True)))
    ticks = draw(st.integers(1, max_ticks))
    custom = draw(st.booleans())
    gpu_metrics = draw(st.integers(0, 3)) if custom else len(BUILTIN_TABLE.gpu)
    host_metrics = draw(st.integers(0, 3)) if custom else len(BUILTIN_TABLE.host)
    return Frame(
        job=draw(jobs),
        host=draw(names),
        ts_ns=draw(times),
        table_id=FIRST_CUSTOM_TABLE_ID if custom else BUILTIN_TABLE.table_id,
        first_tick_ns=draw(times),
        tick_ns=draw(st.integers(MIN_TICK_NS, MAX_TICK_NS)),
        tick_count=ticks,
        gpu_uuids=uuids,
        gpu_matrix=draw(_floats(len(uuids) * gpu_metrics * ticks)),
        host_matrix=draw(_floats(host_metrics * ticks)),
    )


_steps = st.builds(
    StepRecord,
    ts_ns=times,
    rank=ranks,
    step=st.integers(0, MAX_STEP),
    duration_seconds=durations,
    data_seconds=st.none() | durations,
    forward_seconds=st.none() | durations,
    backward_seconds=st.none() | durations,
    optimizer_seconds=st.none() | durations,
    communication_seconds=st.none() | durations,
    loss=st.none() | st.floats(),
    grad_norm=st.none() | st.floats(),
)


def _step_order(row: StepRecord) -> tuple[int, int, int]:
    return row.ts_ns, row.rank, row.step


step_rows = st.lists(_steps, max_size=20).map(lambda rows: tuple(sorted(rows, key=_step_order)))
step_batches = st.builds(StepBatch, **_head(), rows=step_rows)

_counts = st.integers(-1, INT32)


@st.composite
def _collectives(draw: st.DrawFn) -> CollectiveRecord:
    start_ns = draw(st.just(0) | times)
    return CollectiveRecord(
        ts_ns=draw(times),
        record=draw(st.sampled_from(("completion", "state"))),
        rank=draw(ranks),
        comm_id=draw(names),
        op_name=draw(texts),
        op_seq=draw(st.integers(-1, INT64)),
        msg_bytes=draw(st.integers(-1, INT64)),
        start_ns=start_ns,
        end_ns=draw(st.just(0) | st.integers(start_ns, BASE_NS + HOUR_NS)),
        channel=draw(coordinates),
        total_chunks=draw(_counts),
        gpu_ready=draw(_counts),
        rdma_transmitted=draw(_counts),
        rdma_done=draw(_counts),
        dtype=draw(texts),
        peer=draw(maybe_ranks),
    )


def _collective_order(row: CollectiveRecord) -> tuple[int, int, str, int]:
    return row.ts_ns, row.rank, row.comm_id, row.op_seq


collective_rows = st.lists(_collectives(), max_size=10).map(lambda rows: tuple(sorted(rows, key=_collective_order)))
collective_batches = st.builds(CollectiveBatch, **_head(), rows=collective_rows)

events = st.builds(
    Event,
    **_head(),
    rank=maybe_ranks,
    source=st.sampled_from(EventSource),
    name=names,
    severity=st.sampled_from(Severity),
    payload=payloads,
)

_places = st.builds(
    RankPlace,
    rank=ranks,
    host=names,
    gpu=st.integers(-1, MAX_GPUS - 1),
    gpu_uuid=texts,
    dp=coordinates,
    pp=coordinates,
    tp=coordinates,
    leaf=texts,
    minipod=texts,
    world_size=st.integers(0, MAX_RANKS),
    pid=st.integers(0, INT64),
)
topologies = st.builds(
    Topology, **_head(), places=st.lists(_places, max_size=4, unique_by=lambda place: place.rank).map(tuple)
)

_groups = st.builds(
    CommGroup,
    comm_id=names,
    kind=st.sampled_from(GroupKind),
    ranks=st.lists(ranks, max_size=8, unique=True).map(tuple),
)
groups = st.builds(Groups, **_head(), groups=st.lists(_groups, max_size=4).map(tuple))


def _metrics(scope: str) -> SearchStrategy[tuple[Metric, ...]]:
    metric = st.builds(
        Metric,
        name=names,
        scope=st.just(scope),
        low=st.none() | finite,
        high=st.none() | finite,
        bad=st.sampled_from(("high", "low", "both")),
    )
    return st.lists(metric, max_size=4, unique_by=lambda m: m.name).map(tuple)


tables = st.builds(
    MetricTable,
    table_id=st.integers(FIRST_CUSTOM_TABLE_ID, 2**32 - 1),
    gpu=_metrics("gpu"),
    host=_metrics("host"),
)
table_announcements = st.builds(TableAnnouncement, **_head(), table=tables)

_collectors = st.fixed_dictionaries({"ok": st.booleans(), "seconds": durations, "reason": texts})
host_statuses = st.builds(
    HostStatus,
    **_head(),
    clock_offset_ns=st.integers(-INT64, INT64),
    clock_error_ns=st.integers(0, INT64),
    ranks_seen=st.lists(ranks, max_size=8).map(tuple),
    hook_present=st.booleans(),
    dropped_count=st.integers(0, INT64),
    spooled_count=st.integers(0, INT64),
    collectors=st.dictionaries(names, _collectors, max_size=4),
)

probe_answers = st.builds(
    ProbeAnswer,
    **_head(),
    rank=maybe_ranks,
    request_id=names,
    probe=st.sampled_from(("stacks", "flight_recorder", "ring", "fast_metrics")),
    payload=st.binary(max_size=64),
)

ticks = st.builds(Tick, ts_ns=times)

models = st.builds(
    ModelAnnouncement,
    ts_ns=times,
    name=names,
    version=names,
    format=names,
    content_hash=st.text("0123456789abcdef", min_size=64, max_size=64),
    payload=st.binary(max_size=64),
    effective_ns=st.integers(0, INT64),
)

_BY_KIND: dict[Kind, SearchStrategy[Any]] = {
    Kind.TABLE: table_announcements,
    Kind.TOPOLOGY: topologies,
    Kind.GROUPS: groups,
    Kind.EVENT: events,
    Kind.HOST_STATUS: host_statuses,
    Kind.COLLECTIVES: collective_batches,
    Kind.STEPS: step_batches,
    Kind.PROBE_ANSWER: probe_answers,
    Kind.FRAME: frames(),
    Kind.TICK: ticks,
    Kind.MODEL: models,
}


def records_of(kind: Kind) -> SearchStrategy[Record]:
    """Records of one kind."""
    return _BY_KIND[kind]


_end_ranks = st.sampled_from([0, 1, 2, 3, MAX_RANKS - 1])
_end_times = st.sampled_from([BASE_NS, BASE_NS + 1, BASE_NS + HOUR_NS])
_end_seconds = st.sampled_from([0.0, 5e-324, 1e-9, 1.0, MAX_SECONDS])
_any_floats = st.sampled_from([None, math.nan, math.inf, -math.inf, 0.0, -1.7e308, 1.7e308, 2.5])
_end_counts = st.sampled_from([-1, 0, 1, INT32])
_end_ints = st.sampled_from([-INT64, -1, 0, 1, 2**31, INT64])


_end_values: SearchStrategy[Any] = st.one_of(
    st.none(),
    _end_ints,
    st.booleans(),
    st.sampled_from([1e300, -1e18, 5e-324, MAX_SECONDS, -MAX_SECONDS, float(MAX_STEP), MAX_RANKS]),
    st.sampled_from(["", "begin", "end", "checkpoint", "down", "nan", "x" * 1_000, "\x00\x1b"]),
    st.lists(st.sampled_from(["hw_thermal", ""]), max_size=2),
)


def _held_by(rule: Rule) -> SearchStrategy[Any]:
    return _end_values.filter(lambda value: value is None or rule.holds(value))


def _end_payload(name: str) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key: _held_by(rule) for key, rule in RULES[name].items()})


@st.composite
def _end_events(draw: st.DrawFn) -> Event:
    name = draw(st.sampled_from(sorted(RULES)))
    return Event(
        draw(jobs), draw(names), draw(_end_times), draw(st.just(-1) | _end_ranks), draw(st.sampled_from(EventSource)),
        name, draw(st.sampled_from(Severity)), draw(_end_payload(name)),
    )  # fmt: skip


_end_steps = st.builds(
    StepRecord,
    ts_ns=_end_times,
    rank=_end_ranks,
    step=st.sampled_from([0, 1, 2, MAX_STEP]),
    duration_seconds=_end_seconds,
    data_seconds=st.none() | _end_seconds,
    forward_seconds=st.none() | _end_seconds,
    backward_seconds=st.none() | _end_seconds,
    optimizer_seconds=st.none() | _end_seconds,
    communication_seconds=st.none() | _end_seconds,
    loss=_any_floats,
    grad_norm=_any_floats,
)


@st.composite
def _end_collectives(draw: st.DrawFn) -> CollectiveRecord:
    start_ns = draw(st.sampled_from([0, 1, BASE_NS, INT64 - 1]))
    return CollectiveRecord(
        ts_ns=draw(_end_times), record=draw(st.sampled_from(("completion", "state"))), rank=draw(_end_ranks),
        comm_id=draw(st.sampled_from(["w", "v"])), op_name=draw(st.sampled_from(["", "all_reduce", "send", "reduce"])),
        op_seq=draw(st.sampled_from([-1, 0, 1, INT64])), msg_bytes=draw(st.sampled_from([-1, 0, INT64])),
        start_ns=start_ns, end_ns=draw(st.sampled_from([0, max(1, start_ns), INT64])),
        channel=draw(st.sampled_from([-1, 0, MAX_COORDINATE])), total_chunks=draw(_end_counts),
        gpu_ready=draw(_end_counts), rdma_transmitted=draw(_end_counts), rdma_done=draw(_end_counts),
        dtype=draw(st.sampled_from(["", "bf16"])), peer=draw(st.just(-1) | _end_ranks),
    )  # fmt: skip


_end_places = st.builds(
    RankPlace,
    rank=_end_ranks,
    host=st.sampled_from(["n0", "n1", "evil"]),
    gpu=st.sampled_from([-1, 0, MAX_GPUS - 1]),
    dp=st.sampled_from([-1, 0, MAX_COORDINATE]),
    pp=st.sampled_from([-1, 0, MAX_COORDINATE]),
    tp=st.sampled_from([-1, 0, MAX_COORDINATE]),
    leaf=st.sampled_from(["", "leaf"]),
    world_size=st.sampled_from([0, 1, MAX_RANKS]),
    pid=st.sampled_from([0, INT64]),
)
_end_groups = st.builds(
    CommGroup,
    comm_id=st.sampled_from(["w", "v"]),
    kind=st.sampled_from(GroupKind),
    ranks=st.lists(_end_ranks, max_size=5, unique=True).map(tuple),
)
_end_statuses = st.builds(
    HostStatus,
    **_head(),
    clock_offset_ns=st.sampled_from([-INT64, -1, 0, INT64]),
    clock_error_ns=st.sampled_from([0, INT64]),
    ranks_seen=st.lists(_end_ranks, max_size=4).map(tuple),
    hook_present=st.booleans(),
    dropped_count=st.sampled_from([0, INT64]),
    spooled_count=st.sampled_from([0, INT64]),
    collectors=st.dictionaries(names, _collectors, max_size=2),
)


@st.composite
def _end_frames(draw: st.DrawFn) -> Frame:
    frame: Frame = draw(frames(max_gpus=2, max_ticks=3))
    values = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 1.0])

    def matrix(size: int) -> bytes:
        return struct.pack(f"<{size // 4}f", *[draw(values) for _ in range(size // 4)])

    tick_ns = draw(st.sampled_from([MIN_TICK_NS, 10**9, MAX_TICK_NS]))
    return dataclasses.replace(
        frame, tick_ns=tick_ns, gpu_matrix=matrix(len(frame.gpu_matrix)), host_matrix=matrix(len(frame.host_matrix))
    )


_EXTREME: dict[Kind, SearchStrategy[Any]] = {
    Kind.EVENT: _end_events(),
    Kind.STEPS: st.builds(
        StepBatch,
        **_head(),
        rows=st.lists(_end_steps, max_size=8).map(lambda rows: tuple(sorted(rows, key=_step_order))),
    ),
    Kind.COLLECTIVES: st.builds(
        CollectiveBatch,
        **_head(),
        rows=st.lists(_end_collectives(), max_size=8).map(lambda rows: tuple(sorted(rows, key=_collective_order))),
    ),
    Kind.TOPOLOGY: st.builds(
        Topology, **_head(), places=st.lists(_end_places, max_size=4, unique_by=lambda place: place.rank).map(tuple)
    ),
    Kind.GROUPS: st.builds(Groups, **_head(), groups=st.lists(_end_groups, max_size=3).map(tuple)),
    Kind.HOST_STATUS: _end_statuses,
    Kind.FRAME: _end_frames(),
}


def extreme_records_of(kind: Kind) -> SearchStrategy[Record]:
    """Records of one kind whose numbers lie at the ends of what the codec takes, and fixed events with any payload."""
    return _EXTREME.get(kind, _BY_KIND[kind])


def records() -> SearchStrategy[Record]:
    """Records of any kind."""
    return st.one_of(list(_BY_KIND.values()))


components = st.builds(Component, st.sampled_from(ComponentKind), names)
_suspects = st.builds(Suspect, components, st.lists(ranks, max_size=3).map(tuple))


@st.composite
def _evidence(draw: st.DrawFn) -> Evidence:
    start_ns = draw(times)
    return Evidence(
        detector=draw(names),
        metric=draw(texts),
        score=draw(scores),
        start_ns=start_ns,
        end_ns=draw(st.integers(start_ns, BASE_NS + HOUR_NS)),
        text=draw(texts),
        suspect_value=draw(st.none() | finite),
        peer_value=draw(st.none() | finite),
    )


verdicts = st.builds(
    Verdict,
    verdict_id=names,
    job=jobs,
    fault=st.sampled_from(FaultKind),
    cause=names,
    suspects=st.lists(_suspects, max_size=3).map(tuple),
    onset_ns=times,
    detected_ns=times,
    confidence=st.floats(0.0, 1.0),
    action=st.sampled_from(ActionKind),
    reason=names,
    evidence=st.lists(_evidence(), max_size=3).map(tuple),
    state=st.sampled_from(VerdictState),
    update=st.integers(0, INT32),
    expires_ns=times,
    common=st.none() | components,
    witnesses=st.lists(st.builds(Witness, names, st.sampled_from(WitnessKind)), max_size=MAX_WITNESSES).map(tuple),
    costs_ratio=st.none() | st.floats(0.0, 1.0),
)


def same(left: object, right: object) -> bool:
    """Whether two values are equal, NaN equal to NaN and every number to its own type."""
    return _frozen(left) == _frozen(right)


def _frozen(value: object) -> object:
    """A value that compares NaN by what it says; -0.0 and 0.0 stay equal, 1 and 1.0 do not."""
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else ("float", struct.pack("<d", value + 0.0))
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_frozen(inner) for inner in value]
    if hasattr(value, "__dataclass_fields__"):
        return type(value), [_frozen(getattr(value, name)) for name in value.__dataclass_fields__]
    return type(value), value

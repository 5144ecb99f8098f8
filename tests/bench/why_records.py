"""What a monitor sees of a synthetic job: a recording of step records, or a trace of operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.why_cases import WhyCase
from tests.bench.why_causes import host_numbers, loading_ranks
from tests.bench.why_job import Layout, Played, Seconds, Work, play
from tocsin.pipeline.recording.tables import Columns, Manifest, Recording, Text
from tocsin.schemas.records import NS_PER_SECOND

START_NS = 1_790_000_000 * NS_PER_SECOND
LEAF_HOSTS = 4
TOKENS = 8_192
"""Of a microbatch."""
_UNMEASURED = 0.005
"""Part of a step that no phase covers."""


def host_name(number: int) -> str:
    """A host's name."""
    return f"n{number:03d}"


def _flat(values: Seconds) -> Seconds:
    """[S, P, D, T] as rows, in order of step and rank."""
    return values.reshape(-1)


def _ns(seconds: Seconds) -> npt.NDArray[np.int64]:
    """Times of the job as times of the clock."""
    return np.asarray(START_NS + np.round(seconds * NS_PER_SECOND).astype(np.int64))


def _begins(played: Played) -> Seconds:
    """When each step began, [S]."""
    return np.concatenate([[0.0], np.cumsum(played.step_seconds)])[:-1]


def _ends(case: WhyCase, played: Played) -> Seconds:
    """When each rank ended each step, [S, P, D, T]."""
    ends = _begins(played)[:, None, None] + played.optimizer[1]
    return np.repeat(ends[..., None], case.layout.tp, axis=3)


def recording_of(case: WhyCase) -> Recording:
    """The recording of a case: topology, groups, steps, collectives of the replicas, loaders where they tell."""
    played = play(case.work)
    ends = _ends(case, played)
    end_ns = int(_ns(ends.max())) + NS_PER_SECOND
    tables: dict[str, Columns] = {
        "topology": topology_of(case),
        "groups": _groups(case.layout),
        "steps": _steps(case, ends),
        "collectives": _collectives(case.layout, played),
    }
    if case.with_lengths:
        tables["events"] = _loader_events(case, played)
    return Recording(Manifest("why", 0, START_NS, end_ns), tables)


def topology_of(case: WhyCase) -> Columns:
    """Where each rank is."""
    layout = case.layout
    hosts = host_numbers(layout).reshape(-1).tolist()
    stage, dp, tp = (part.reshape(-1).astype(np.int16) for part in np.indices((layout.pp, layout.dp, layout.tp)))
    pods = [case.minipods[host] for host in hosts]
    return {
        "rank": np.arange(layout.ranks, dtype=np.int32),
        "host": Text.of([host_name(host) for host in hosts]),
        "gpu": (np.arange(layout.ranks) % layout.gpus_per_host).astype(np.int8),
        "dp": dp,
        "pp": stage,
        "tp": tp,
        "leaf": Text.of([f"leaf{pod}-{host // LEAF_HOSTS}" for host, pod in zip(hosts, pods, strict=True)]),
        "minipod": Text.of([f"pod{pod}" for pod in pods]),
    }


def _groups(layout: Layout) -> Columns:
    """Members of all communication groups."""
    ranks = np.arange(layout.ranks).reshape(layout.pp, layout.dp, layout.tp)
    rows = [("world", "world", int(rank)) for rank in ranks.reshape(-1)]
    rows += [
        (_dp_group(p, t), "dp", int(rank))
        for p in range(layout.pp)
        for t in range(layout.tp)
        for rank in ranks[p, :, t]
    ]
    if layout.pp > 1:
        rows += [
            (f"pp-{d}-{t}", "pp", int(rank))
            for d in range(layout.dp)
            for t in range(layout.tp)
            for rank in ranks[:, d, t]
        ]
    if layout.tp > 1:
        rows += [
            (f"tp-{p}-{d}", "tp", int(rank)) for p in range(layout.pp) for d in range(layout.dp) for rank in ranks[p, d]
        ]
    return {
        "comm_id": Text.of([row[0] for row in rows]),
        "kind": Text.of([row[1] for row in rows]),
        "rank": np.array([row[2] for row in rows], np.int32),
    }


def _dp_group(stage: int, tp: int) -> str:
    """The name of a group of replicas."""
    return f"dp-{stage}-{tp}"


def _steps(case: WhyCase, ends: Seconds) -> Columns:
    """Each rank's step records. What a rank does not spend itself it waits for others."""
    layout, work = case.layout, case.work
    jitter = np.random.default_rng(case.seed).uniform(0, 0.004, ends.shape)
    ends = ends + jitter
    durations = np.diff(ends, axis=0, prepend=np.zeros((1, *ends.shape[1:])))
    worker_pause = work.rank_pause.max(axis=3)
    forward = (work.forward.sum(axis=1) - worker_pause)[..., None] * work.rank_ratio + work.rank_pause
    backward = work.backward.sum(axis=1)[..., None] * work.rank_ratio
    optimizer = np.broadcast_to(work.optimizer[..., None], ends.shape)
    own = work.rank_loading + forward + backward + optimizer
    waiting = np.maximum(durations * (1 - _UNMEASURED) - own, 1e-4)
    step, rank = (part.reshape(-1) for part in np.indices((layout.steps, layout.ranks)))
    order = np.argsort(_flat(ends), kind="stable")
    loss = 2.0 + 8.0 * np.exp(-np.arange(layout.steps) / 60.0)
    values = {
        "duration_seconds": durations,
        "data_seconds": work.rank_loading,
        "forward_seconds": forward,
        "backward_seconds": backward,
        "optimizer_seconds": optimizer,
        "communication_seconds": waiting,
    }
    return {
        "ts_ns": _ns(_flat(ends))[order],
        "rank": rank[order].astype(np.int32),
        "step": (step[order] + 1_000).astype(np.int64),
        **{name: _flat(value)[order] for name, value in values.items()},
        "loss": loss[step[order]],
        "grad_norm": np.full(order.size, 0.8),
    }


def _collectives(layout: Layout, played: Played) -> Columns:
    """Completions of the replicas' collectives: the all-gather and the reduce-scatter of each step and stage."""
    begins = _begins(played)[:, None, None]
    shape = (layout.steps, layout.pp, layout.dp)
    step, stage, dp = (part.reshape(-1) for part in np.indices(shape))
    parts = []
    for at, (name, spans) in enumerate((("all_gather", played.gather), ("reduce_scatter", played.scatter))):
        start, end = ((begins + edge).reshape(-1) for edge in spans)
        parts.append((start, end, step * 2 + at + 1, [name] * step.size))
    start, end = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    order = np.argsort(end, kind="stable")
    names = [name for part in parts for name in part[3]]
    groups = [_dp_group(int(one), 0) for one in stage] * 2
    ranks = np.tile((stage * layout.dp + dp) * layout.tp, 2)
    return {
        "ts_ns": _ns(end)[order],
        "record": Text.of(["completion"] * order.size),
        "rank": ranks[order].astype(np.int32),
        "comm_id": Text.of([groups[row] for row in order.tolist()]),
        "op_name": Text.of([names[row] for row in order.tolist()]),
        "op_seq": np.concatenate([part[2] for part in parts])[order].astype(np.int64),
        "msg_bytes": np.full(order.size, 1 << 28, np.int64),
        "start_ns": _ns(start)[order],
        "end_ns": _ns(end)[order],
    }


def _loader_events(case: WhyCase, played: Played) -> Columns:
    """What the loaders tell of each step's batch: how long the fetch took, and its lengths."""
    layout, begins = case.layout, _begins(played)
    loads = np.flatnonzero(loading_ranks(layout, case.every_rank_loads).reshape(-1))
    waits = case.work.rank_loading.reshape(layout.steps, -1)[:, loads]
    squares = case.work.cost.sum(axis=1)[:, loads // layout.tp % layout.dp] * TOKENS**2 / 4
    longest = np.sqrt(case.work.cost.max(axis=1))[:, loads // layout.tp % layout.dp] * TOKENS / 2
    times = _ns(begins[:, None] + waits)
    order = np.argsort(times.reshape(-1), kind="stable")
    ranks = np.tile(loads, layout.steps)[order]
    payloads = []
    for row in order.tolist():
        step, column = divmod(row, loads.size)
        wait = float(waits[step, column])
        told = {
            "source": "corpus",
            "queue_depth": 0 if wait > 0.05 else 4,
            "fetch_seconds": round(wait + 0.02, 6),
            "rows": layout.microbatches,
            "tokens": layout.microbatches * TOKENS,
            "max_length": min(TOKENS, int(longest[step, column])),
            "sum_squared_lengths": int(squares[step, column]),
        }
        payloads.append(json.dumps(told))
    return {
        "ts_ns": times.reshape(-1)[order],
        "host": Text.of([host_name(int(rank) // layout.gpus_per_host) for rank in ranks]),
        "rank": ranks.astype(np.int32),
        "source": Text.of(["loader"] * order.size),
        "name": Text.of(["loader"] * order.size),
        "severity": Text.of(["info"] * order.size),
        "payload": Text.of(payloads),
    }


def write_trace(case: WhyCase, folder: Path) -> tuple[Path, Path]:
    """Write a case's operations and their description in the form of the public traces."""
    layout, played = case.layout, play(case.work)
    parts = [_rows(layout, *one) for one in _operations(layout, played, case.work)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    kinds = {
        "dp_rank": np.int16,
        "stage": np.int8,
        "rank": np.int32,
        "step": np.int64,
        "seq_id": np.int32,
        "mc": np.int8,
        "mb_id": np.int8,
        "gmc": np.int16,
    }
    table = pa.table(
        {
            name: pa.array(values if values.dtype.kind == "U" else values.astype(kinds.get(name, np.float32)))
            for name, values in columns.items()
        }
    )
    trace, meta = folder / "trace.parquet", folder / "meta.yaml"
    pq.write_table(table, trace)
    sizes = (
        f"dp_size: {layout.dp}\npp_size: {layout.pp}\ntp_size: {layout.tp}\nvpp_size: 1\nworld_size: {layout.ranks}\n"
    )
    meta.write_text(f"trial_name: why-{case.seed}\nrun_id: 0\ndsp_size: 1\n{sizes}", encoding="utf-8")
    return trace, meta


def _operations(layout: Layout, played: Played, work: Work) -> Iterator[tuple[str, Seconds, int, bool]]:
    """Operation type, its starts and ends [2, S, M, P, D], its first stage, whether it belongs to a microbatch."""
    tails: Callable[[Seconds], Seconds] = lambda spans: spans[:, :, None]  # noqa: E731
    yield "forward-compute", played.forward, 0, True
    yield "backward-compute", played.backward, 0, True
    if layout.pp > 1:
        yield "forward-send", played.forward_send, 0, False
        yield "forward-recv", played.forward_recv, 1, False
        yield "backward-send", played.backward_send, 1, False
        yield "backward-recv", played.backward_recv, 0, False
        yield "embedding-grads-all-reduce", tails(played.embedding)[..., :1, :], 0, False
        yield "embedding-grads-all-reduce", tails(played.embedding)[..., -1:, :], layout.pp - 1, False
    ended = played.backward[1].max(axis=1)
    yield "gc", tails(np.stack([ended, ended])), 0, False
    yield "layernorm-grads-all-reduce", tails(np.stack([ended, ended])), 0, False
    yield "params-all-gather", tails(played.gather), 0, False
    yield "grads-reduce-scatter", tails(played.scatter), 0, False
    yield "optimizer-clip-main-grad", tails(played.clip), 0, False
    yield "optimizer", tails(played.optimizer), 0, False


def _rows(
    layout: Layout, name: str, spans: Seconds, first_stage: int, per_microbatch: bool
) -> dict[str, npt.NDArray[np.generic]]:
    """One operation type's rows."""
    step, index, edge, dp = (part.reshape(-1) for part in np.indices(spans.shape[1:]))
    stage = edge + first_stage
    start, end = (edges.reshape(-1) for edges in spans)
    none = np.full(step.size, -1)
    is_chunk = per_microbatch or name in ("params-all-gather", "grads-reduce-scatter")
    return {
        "dp_rank": dp,
        "stage": stage,
        "rank": (stage * layout.dp + dp) * layout.tp,
        "step": step + 1_000,
        "optype": np.full(step.size, name),
        "start_ts": start,
        "duration": end - start,
        "seq_id": index,
        "mc": np.zeros_like(none) if is_chunk else none,
        "mb_id": index if per_microbatch else np.zeros_like(none) if name == "gc" else none,
        "gmc": stage if per_microbatch else none,
    }

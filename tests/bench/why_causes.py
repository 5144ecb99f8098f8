"""What can make a synthetic job slow: each cause as a change of its work, with one magnitude.

A cause draws once where and when it strikes; how hard is a number from 0 (not at all) upwards, so that a search can
find the magnitude that costs a wanted share of the job's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tests.bench.why_job import Layout, Seconds, Work

Change = Callable[[Work, float], Work]
STAGE, DATA, JITTER, MACHINE = "stage_imbalance", "data_imbalance", "software_jitter", "machine"
SERVICE, LOADER, COMMUNICATION, PLACEMENT = "shared_service", "loader", "communication", "placement"
PAUSE_SECONDS = 0.8
"""A collector's pause, at magnitude 1 (hundreds of milliseconds in the study)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason to be slow.

    Attributes:
        reason: its word.
        change: work and magnitude -> changed work.
        most: the largest magnitude that still happens.
        most_share: the largest share of the time that it is drawn for.
        since: first step.
        culprits: host numbers at fault, where a machine or its loader is.
        first: whether it changes times before causes that add to them.
    """

    reason: str
    change: Change
    most: float
    most_share: float = 0.6
    since: int = 0
    culprits: frozenset[int] = frozenset()
    first: bool = True


def host_numbers(layout: Layout) -> npt.NDArray[np.int64]:
    """The host of each rank, [P, D, T]."""
    shape = (layout.pp, layout.dp, layout.tp)
    return np.arange(layout.ranks).reshape(shape) // layout.gpus_per_host


def _from(since: int, steps: int) -> Seconds:
    """1 from a step on, 0 before, [S]."""
    return (np.arange(steps) >= since).astype(np.float64)


def _onset(draw: np.random.Generator, layout: Layout, since_begin: float) -> int:
    """0 in this part of the cases, else a step after a third of the job."""
    late = int(draw.integers(layout.steps // 3, layout.steps // 2))
    return 0 if draw.random() < since_begin else late


def long_stage(draw: np.random.Generator, layout: Layout) -> Cause:
    """One stage has more of a given work than its part; mostly the last, which also computes the loss."""
    stage = layout.pp - 1 if draw.random() < 0.7 else int(draw.integers(layout.pp))
    forward_only = float(draw.uniform(0.8, 1.25))

    def change(work: Work, magnitude: float) -> Work:
        def weights(size: float) -> Seconds:
            found = np.full(layout.pp, 1 - size / (layout.pp - 1))
            found[stage] = 1 + size
            return found[None, None, :, None]

        most = layout.pp - 1.05
        forward, backward = min(most, magnitude * forward_only), min(most, magnitude)
        return replace(work, forward=work.forward * weights(forward), backward=work.backward * weights(backward))

    return Cause(STAGE, change, (layout.pp - 1) * 0.9)


def uneven_sequences(draw: np.random.Generator, layout: Layout, *, whole_trace: bool = False) -> Cause:
    """Documents of many lengths: attention's part of a microbatch's cost goes with the sum of squares."""
    normal = draw.normal(size=(layout.steps, layout.microbatches, layout.dp))
    quadratic, since = float(draw.uniform(0.35, 0.9)), 0 if whole_trace else _onset(draw, layout, 0.7)
    active = _from(since, layout.steps)[:, None, None]

    def change(work: Work, magnitude: float) -> Work:
        squares = np.exp(magnitude * normal)
        squares /= squares.mean()
        cost = np.where(active > 0, 1 - quadratic + quadratic * squares, 1.0)
        part = cost[:, :, None, :]
        return replace(work, forward=work.forward * part, backward=work.backward * part, cost=work.cost * cost)

    return Cause(DATA, change, 1.8, since=since)


def collector_pauses(draw: np.random.Generator, layout: Layout, *, whole_trace: bool = False) -> Cause:
    """Changing ranks stand still in a forward pass, each every so many steps (backward is not launched by Python)."""
    shape = (layout.steps, layout.pp, layout.dp, layout.tp)
    every, since = float(draw.uniform(4, 25)), 0 if whole_trace else _onset(draw, layout, 0.5)
    struck = (draw.random(shape) < 1 / every) * _from(since, layout.steps)[:, None, None, None]
    lengths = struck * draw.gamma(8.0, 1 / 8, shape) * PAUSE_SECONDS
    where = draw.integers(layout.microbatches, size=shape[:3])
    at = (np.arange(layout.microbatches)[None, :, None, None] == where[:, None]).astype(np.float64)

    def change(work: Work, magnitude: float) -> Work:
        pauses = lengths * magnitude
        return replace(
            work,
            forward=work.forward + at * pauses.max(axis=3)[:, None],
            rank_pause=work.rank_pause + pauses,
        )

    return Cause(JITTER, change, 2.0, 0.35, since, first=False)


def slow_machine(draw: np.random.Generator, layout: Layout, *, whole_trace: bool = False) -> Cause | None:
    """One host, or one GPU of it, computes longer.

    None where nothing could tell it from a long stage or from fast neighbours: there must be three hosts (or three
    replicas beside one GPU) in a stage, or a time before, and no stage that lies on this host alone.
    """
    hosts = host_numbers(layout)
    culprit = int(draw.integers(layout.hosts))
    one_gpu = draw.random() < 0.5 or layout.dp * layout.tp <= layout.gpus_per_host
    since = 0 if whole_trace else _onset(draw, layout, 0.5)
    hosts_of_stage = layout.dp * layout.tp / layout.gpus_per_host
    if layout.dp < 3 or (not one_gpu and since == 0 and hosts_of_stage < 3):
        return None
    mine = hosts == culprit
    if one_gpu:
        mine = np.zeros_like(mine)
        mine.reshape(-1)[int(draw.choice(np.flatnonzero((hosts == culprit).reshape(-1))))] = True
    active = _from(since, layout.steps)

    def change(work: Work, magnitude: float) -> Work:
        ranks = 1 + magnitude * mine[None] * active[:, None, None, None]
        workers = ranks.max(axis=3)
        ratio = work.rank_ratio * ranks / workers[..., None]
        part = workers[:, None]
        return replace(work, forward=work.forward * part, backward=work.backward * part, rank_ratio=ratio)

    return Cause(MACHINE, change, 3.0, 0.6, since, frozenset({culprit}))


def loading_ranks(layout: Layout, every_rank: bool) -> Seconds:
    """1 for the ranks that read batches, [P, D, T]."""
    loading = np.zeros((layout.pp, layout.dp, layout.tp))
    loading[list(layout.loading_stages())] = 1
    if not every_rank:
        loading[:, :, 1:] = 0
    return loading


def _waiting(reason: str, waits: Seconds, since: int, culprits: frozenset[int]) -> Cause:
    """A cause by which ranks wait this long for data at magnitude 1, [S, P, D, T]."""

    def change(work: Work, magnitude: float) -> Work:
        own = waits * magnitude
        return replace(work, loading=work.loading + own.max(axis=3), rank_loading=work.rank_loading + own)

    return Cause(reason, change, 12.0, 0.6, since, culprits, first=False)


def slow_service(draw: np.random.Generator, layout: Layout, every_rank: bool) -> Cause:
    """All loaders wait for the same storage."""
    since = _onset(draw, layout, 0.0)
    common = draw.lognormal(0, 0.3, layout.steps) * _from(since, layout.steps)
    own = draw.lognormal(0, 0.1, (layout.steps, layout.pp, layout.dp, layout.tp))
    return _waiting(SERVICE, common[:, None, None, None] * own * loading_ranks(layout, every_rank), since, frozenset())


def slow_loader(draw: np.random.Generator, layout: Layout, every_rank: bool) -> Cause:
    """The loaders of one host, or of one of its ranks, do not keep up."""
    since = _onset(draw, layout, 0.3)
    loading, hosts = loading_ranks(layout, every_rank), host_numbers(layout)
    rank = int(draw.choice(np.flatnonzero(loading.reshape(-1))))
    culprit = rank // layout.gpus_per_host
    mine = loading * (hosts == culprit)
    if draw.random() < 0.5:
        mine = np.zeros_like(loading)
        mine.reshape(-1)[rank] = 1
    shape = (layout.steps, layout.pp, layout.dp, layout.tp)
    late = draw.lognormal(0, 0.3, shape) * (draw.random(layout.steps) < draw.uniform(0.5, 1.2))[:, None, None, None]
    waits = late * mine[None] * _from(since, layout.steps)[:, None, None, None]
    return _waiting(LOADER, waits, since, frozenset({culprit}))


def slow_network(draw: np.random.Generator, layout: Layout, *, whole_trace: bool = False) -> Cause:
    """All transfers are slower since some time, or changing ones are much slower now and then."""
    flaps = whole_trace or draw.random() < 0.5
    since = 0 if whole_trace else _onset(draw, layout, 0.5 if flaps else 0.0)
    often = float(draw.uniform(0.1, 0.35)) if flaps else 1.0
    stages = (layout.steps, layout.pp)
    pairs = (layout.steps, layout.microbatches, layout.pp - 1, layout.dp)
    active = _from(since, layout.steps)
    struck = [(draw.random(stages) < often) * active[:, None] for _ in range(2)]
    in_pairs = [(draw.random(pairs) < often * (0.2 if flaps else 1)) * active[:, None, None, None] for _ in range(2)]

    def change(work: Work, magnitude: float) -> Work:
        return replace(
            work,
            gather=work.gather * (1 + magnitude * struck[0]),
            scatter=work.scatter * (1 + magnitude * struck[1]),
            forward_p2p=work.forward_p2p * (1 + magnitude * in_pairs[0]),
            backward_p2p=work.backward_p2p * (1 + magnitude * in_pairs[1]),
        )

    return Cause(COMMUNICATION, change, 40.0, 0.6, since)


def crossing(layout: Layout, minipods: list[int]) -> tuple[Seconds, Seconds]:
    """1 where a stage's replicas lie in several minipods, [P], and where neighbours do, [P-1, D]."""
    pods = np.array(minipods)[host_numbers(layout)]
    stages = np.array([float(len(np.unique(stage)) > 1) for stage in pods])
    pairs = (pods[1:, :, 0] != pods[:-1, :, 0]).astype(np.float64)
    return stages, pairs


def spread_groups(draw: np.random.Generator, layout: Layout, minipods: list[int]) -> Cause | None:
    """Groups that cross minipods are slower; None where no stage crosses, or all do."""
    stages, pairs = crossing(layout, minipods)
    if stages.all() or not stages.any():
        return None
    since = _onset(draw, layout, 0.6)
    active = _from(since, layout.steps)

    def change(work: Work, magnitude: float) -> Work:
        groups = 1 + magnitude * stages[None] * active[:, None]
        edges = 1 + 2 * magnitude * pairs[None, None] * active[:, None, None, None]
        return replace(
            work,
            gather=work.gather * groups,
            scatter=work.scatter * groups,
            forward_p2p=work.forward_p2p * edges,
            backward_p2p=work.backward_p2p * edges,
        )

    return Cause(PLACEMENT, change, 30.0, 0.5, since)

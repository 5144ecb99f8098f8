"""Cases of ``make bench ARGS=why``: jobs of 2 to 64 hosts that are slow for a known reason by a known share.

A seed draws a job, its causes, and a wanted share of the time; a search finds how hard each cause must strike. A
cause's true share is the job's time with it minus the time without it, over the time with it, all else the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench import why_causes as causes
from tests.bench.why_causes import (
    COMMUNICATION,
    DATA,
    JITTER,
    LOADER,
    MACHINE,
    PLACEMENT,
    SERVICE,
    STAGE,
    Cause,
)
from tests.bench.why_job import Layout, Seconds, Work, seconds_of

FIRST_SEED = 33_000_000
"""The case with seed ``FIRST_SEED + i`` is the i-th; its reason follows from i."""
NONE, TWO = "none", "two"
ONLINE_REASONS = (STAGE, DATA, JITTER, MACHINE, SERVICE, LOADER, COMMUNICATION, PLACEMENT, TWO, NONE)
TRACE_REASONS = (STAGE, DATA, JITTER, MACHINE, COMMUNICATION, TWO, NONE)
ORDERS = tuple(("online", one) for one in ONLINE_REASONS) + tuple(("trace", one) for one in TRACE_REASONS)
ONLINE_PAIRS = (
    (STAGE, MACHINE),
    (STAGE, DATA),
    (STAGE, JITTER),
    (DATA, MACHINE),
    (DATA, SERVICE),
    (JITTER, MACHINE),
    (STAGE, LOADER),
    (STAGE, SERVICE),
)
TRACE_PAIRS = ((STAGE, MACHINE), (STAGE, DATA), (STAGE, JITTER), (DATA, MACHINE), (STAGE, COMMUNICATION))
LOWEST_SHARE = 0.05
HOSTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_RANKS = 128
"""Large jobs have fewer GPUs in a host, so that a case takes seconds."""


@dataclass(frozen=True, slots=True)
class WhyCase:
    """A job and the truth about it.

    Attributes:
        seed: what it was drawn from.
        way: ``online`` (step records) or ``trace`` (operations).
        reason: what is asked; ``two`` = two causes, ``none`` = a healthy job.
        layout: sizes.
        work: how long everything takes.
        shares: cause -> true share of the job's time since the last of them began.
        culprits: names of the hosts at fault.
        since: step at which the last cause began.
        minipods: minipod of each host.
        every_rank_loads: whether all ranks of a loading stage read batches, or the first of each worker.
        with_lengths: whether loaders tell the lengths of their batches.
    """

    seed: int
    way: str
    reason: str
    layout: Layout
    work: Work
    shares: dict[str, float]
    culprits: frozenset[int]
    since: int
    minipods: tuple[int, ...]
    every_rank_loads: bool
    with_lengths: bool


def draw_case(seed: int, hosts: Sequence[int] = HOSTS) -> WhyCase:
    """The case of a seed with one of these numbers of hosts.

    Draws that nothing could tell apart, or that cost less than 5 %, are drawn again.
    """
    way, reason = ORDERS[(seed - FIRST_SEED) % len(ORDERS)]
    for trial in range(1_000):
        found = _drawn(np.random.default_rng([seed, trial]), seed, way, reason, hosts)
        if found is not None:
            return found
    raise AssertionError(f"seed {seed}: no case of {way} {reason} in 1,000 draws")


def _drawn(draw: np.random.Generator, seed: int, way: str, reason: str, sizes: Sequence[int]) -> WhyCase | None:
    """One draw, None if it is of no use."""
    pairs = ONLINE_PAIRS if way == "online" else TRACE_PAIRS
    alone = () if reason == NONE else (reason,)
    words: tuple[str, ...] = pairs[(seed - FIRST_SEED) // len(ORDERS) % len(pairs)] if reason == TWO else alone
    layout = _layout(draw, way, words, sizes)
    if layout is None:
        return None
    minipods = _minipods(draw, layout)
    every_rank = bool(draw.random() < 0.5)
    found = [_cause(word, draw, layout, minipods, every_rank, way) for word in words]
    struck = [cause for cause in found if cause is not None]
    if len(struck) < len(words):
        return None
    healthy = healthy_work(draw, layout, every_rank=every_rank)
    since = max((cause.since for cause in struck), default=0)
    high = 0.6 if len(words) == 1 else 0.35
    magnitudes = [_magnitude(healthy, cause, since, _wanted(draw, min(high, cause.most_share))) for cause in struck]
    work = _struck(healthy, struck, magnitudes)
    shares = _shares(healthy, struck, magnitudes, since)
    if any(share < LOWEST_SHARE for share in shares.values()):
        return None
    culprits = frozenset[int]().union(*(cause.culprits for cause in struck))
    with_lengths = bool(draw.random() < 0.5) and layout.ranks <= 64
    return WhyCase(seed, way, reason, layout, work, shares, culprits, since, minipods, every_rank, with_lengths)


def _wanted(draw: np.random.Generator, high: float) -> float:
    """A share of the time, small ones more often than large ones."""
    return math.exp(draw.uniform(math.log(LOWEST_SHARE * 1.1), math.log(high)))


def _layout(draw: np.random.Generator, way: str, words: Sequence[str], sizes: Sequence[int]) -> Layout | None:
    """Sizes of a job in which these causes can be."""
    hosts = int(draw.choice(sizes))
    gpus = min(int(draw.choice((8, 8, 8, 4))), MOST_RANKS // hosts)
    tp = int(draw.choice([size for size in (1, 2, 4, 8) if size <= gpus]))
    pp = int(draw.choice((1, 2, 4, 8)))
    ranks = hosts * gpus
    if ranks % (tp * pp) or ranks // (tp * pp) < 2:
        return None
    microbatches = int(draw.choice((4, 8, 12, 16))) if pp > 1 else int(draw.choice((1, 2, 4, 8)))
    steps = int(draw.integers(24, 41)) if way == "trace" else int(draw.integers(60, 91))
    layout = Layout(ranks // (tp * pp), pp, tp, gpus, max(microbatches, pp), steps)
    spread_stage = layout.dp * layout.tp > layout.gpus_per_host
    if STAGE in words and (pp == 1 or not spread_stage):
        return None
    if PLACEMENT in words and (pp == 1 or not spread_stage):
        return None
    return layout


def _minipods(draw: np.random.Generator, layout: Layout) -> tuple[int, ...]:
    """The minipod of each host: one to four blocks, cut anywhere."""
    count = min(layout.hosts, int(draw.integers(1, 5)))
    cuts = sorted(draw.choice(np.arange(1, layout.hosts), count - 1, replace=False).tolist())
    return tuple(int(np.searchsorted(cuts, host, side="right")) for host in range(layout.hosts))


def _cause(
    word: str, draw: np.random.Generator, layout: Layout, minipods: Sequence[int], every_rank: bool, way: str
) -> Cause | None:
    """One cause with its place and time."""
    whole_trace = way == "trace"
    if word == STAGE:
        return causes.long_stage(draw, layout)
    if word == MACHINE:
        return causes.slow_machine(draw, layout, whole_trace=whole_trace)
    if word == COMMUNICATION:
        return causes.slow_network(draw, layout, whole_trace=whole_trace)
    if word == PLACEMENT:
        return causes.spread_groups(draw, layout, list(minipods))
    if word in (SERVICE, LOADER):
        return (causes.slow_service if word == SERVICE else causes.slow_loader)(draw, layout, every_rank)
    changing = causes.uneven_sequences if word == DATA else causes.collector_pauses
    return changing(draw, layout, whole_trace=whole_trace)


def healthy_work(draw: np.random.Generator, layout: Layout, *, every_rank: bool) -> Work:
    """A job with ordinary noise: kernels, hosts, stages and links that differ by a percent or two, short pauses."""
    steps, microbatches, pp, dp, tp = layout.steps, layout.microbatches, layout.pp, layout.dp, layout.tp
    step_seconds, traffic = float(draw.uniform(1.0, 3.0)), float(draw.uniform(0.06, 0.25))
    compute = step_seconds * (1 - traffic) / (microbatches + pp - 1)
    forward_part, noise = float(draw.uniform(0.28, 0.38)), float(draw.uniform(0.004, 0.015))
    stage = 1 + draw.uniform(-0.01, 0.01, (1, 1, pp, 1))
    host = (1 + draw.normal(0, 0.004, layout.hosts))[causes.host_numbers(layout)].max(axis=2)[None, None]
    shape, pairs = (steps, microbatches, pp, dp), (steps, microbatches, pp - 1, dp)
    short = (draw.random((steps, 1, pp, dp)) < 0.01) * draw.uniform(0.0, 0.02, (steps, 1, pp, dp)) * step_seconds

    def computes(part: float) -> Seconds:
        return np.asarray(compute * part * stage * host * (1 + draw.normal(0, noise, shape)))

    def transfers(part: float) -> Seconds:
        return step_seconds * traffic * part * draw.lognormal(0, 0.08, (steps, pp))

    loading = draw.lognormal(math.log(0.002), 0.4, (steps, pp, dp, tp)) * causes.loading_ranks(layout, every_rank)
    return Work(
        computes(forward_part) + short / microbatches,
        computes(1 - forward_part),
        compute * 0.01 * draw.lognormal(0, 0.2, pairs),
        compute * 0.01 * draw.lognormal(0, 0.2, pairs),
        transfers(0.35),
        transfers(0.65),
        step_seconds * 0.02 * (1 + draw.normal(0, 0.01, (steps, pp, dp))),
        loading.max(axis=3),
        np.ones((steps, pp, dp, tp)) * (1 + draw.normal(0, 0.002, (1, pp, dp, tp))),
        np.zeros((steps, pp, dp, tp)),
        loading,
        np.ones((steps, microbatches, dp)),
    )


def _struck(healthy: Work, struck: Sequence[Cause], magnitudes: Sequence[float]) -> Work:
    """The job with all causes: those that multiply before those that add."""
    work = healthy
    for cause, magnitude in sorted(zip(struck, magnitudes, strict=True), key=lambda pair: not pair[0].first):
        work = cause.change(work, magnitude)
    return work


def _share(work: Work, without: Work, since: int) -> float:
    """The part of the time that is saved without."""
    seconds = seconds_of(work, since)
    return (seconds - seconds_of(without, since)) / seconds


def _magnitude(healthy: Work, cause: Cause, since: int, wanted: float) -> float:
    """How hard a cause must strike to cost the wanted share by itself; at most as hard as it can."""
    low, high = 0.0, cause.most
    if _share(cause.change(healthy, high), healthy, since) <= wanted:
        return high
    for _ in range(10):
        middle = (low + high) / 2
        if _share(cause.change(healthy, middle), healthy, since) < wanted:
            low = middle
        else:
            high = middle
    return high


def _shares(healthy: Work, struck: Sequence[Cause], magnitudes: Sequence[float], since: int) -> dict[str, float]:
    """Cause -> its share in the job with all of them."""
    whole = _struck(healthy, struck, magnitudes)
    found = {}
    for index, cause in enumerate(struck):
        without = [0.0 if at == index else size for at, size in enumerate(magnitudes)]
        found[cause.reason] = _share(whole, _struck(healthy, struck, without), since)
    return found

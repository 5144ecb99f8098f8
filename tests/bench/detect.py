"""How fast live detection is: ``make bench-detect``. One run, one data set for all figures.

10,000 machines of one job, seven metrics once a second; then with eight GPU rows a machine; then from 1,250 to 20,000
machines; then exact pairwise distances (``models/similarity.py``) beside the robust centre of ``models/peers.py``.
CPU seconds are of one core: nothing here uses a second one.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.bench import detect_learned
from tests.bench.detect_cost import Cost, cost_of, middle
from tests.bench.detect_load import JOB, LEVELS, SLICE_SECONDS, START_NS, Fleet, Planted
from tocsin.models.peer_scales import scale_of, transform
from tocsin.models.peers import PeerConfig, PeerState, compare
from tocsin.models.robust import median
from tocsin.models.similarity import pairwise_sums
from tocsin.pipeline.core.frame_blocks import FrameBlock, MetricSlice
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import NS_PER_SECOND, Slice

_Data = TypeVar("_Data")
Numbers = NDArray[Any]
_WARMUP_COUNT = 14
"""Slices before the measured ones: the detector judges after twelve."""
_DOUBLINGS = (1250, 2500, 5000, 10_000, 20_000)
_PLANTED_FACTORS = (1.05, 1.1, 1.2, 0.95, 0.9, 0.8)


def by_arrays(fleet: Fleet, count: int) -> Cost:
    """The job's operators (peers, diagnose, decide, health), fed with means."""
    pipeline = JobPipeline(JobConfig(), JOB)

    def turns(index: int) -> list[SliceBundle]:
        span = fleet.span(index)
        means = fleet.means(index)
        block = FrameBlock(JOB, BUILTIN_TABLE.table_id, span.start_ns, span.end_ns, span.end_ns - 1_000_000, means)
        metrics = MetricSlice(JOB, span.start_ns, span.end_ns, (), (block,))
        seconds = range(span.start_ns, span.end_ns, NS_PER_SECOND)
        found = [SliceBundle(JOB, at + NS_PER_SECOND, Slice(JOB, at, at + NS_PER_SECOND, ()), ()) for at in seconds]
        return [*found[:-1], SliceBundle(JOB, span.end_ns, found[-1].fast, (metrics,))]

    def work(of_slice: Sequence[SliceBundle]) -> None:
        for turn in of_slice:
            pipeline.on_bundle(turn)

    cost = _after_warmup(turns, work, count)
    if pipeline.abstentions():
        raise RuntimeError(f"not everything was judged: {pipeline.abstentions()}")
    return cost


def by_frames(fleet: Fleet, count: int) -> Cost:
    """The embedded engine, fed with the bytes of frames: checked, decoded, cut, reduced, judged."""
    engine = EmbeddedEngine(EngineConfig(history=None))

    def work(frames: tuple[int, Sequence[bytes]]) -> None:
        index, datas = frames
        start_ns = START_NS + index * SLICE_SECONDS * NS_PER_SECOND
        for second in range(2, SLICE_SECONDS + 1):  # the watermark is one second behind
            engine.tick(start_ns + second * NS_PER_SECOND)
        for data in datas:
            engine.take(data)
        engine.tick(start_ns + (SLICE_SECONDS + 1) * NS_PER_SECOND)

    cost = _after_warmup(lambda index: (index, fleet.frames(index)), work, count)
    slices = _WARMUP_COUNT + count
    wanted = {"records_ok": slices * fleet.host_count, "metric_slices": slices}
    if any(engine.counters[name] != value for name, value in wanted.items()):
        raise RuntimeError(f"not everything was judged: {dict(engine.counters)}, wanted {wanted}")
    return cost


def _after_warmup(made: Callable[[int], _Data], work: Callable[[_Data], None], count: int) -> Cost:
    """Learn first; then the median of single slices, each made before its time is taken."""
    for index in range(_WARMUP_COUNT):
        work(made(index))
    costs = []
    for index in range(_WARMUP_COUNT, _WARMUP_COUNT + count):
        data = made(index)
        gc.collect()
        costs.append(cost_of(work, data))
    return middle(costs)


# -- exact pairwise beside the centre ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ranking:
    """Whom each way of comparing names first, over windows with one planted machine each.

    Attributes:
        right: way -> share of the windows in which it names the planted machine.
        same_ratio: share in which pairs and centre, given the same numbers, name the same machine.
        costs: way -> cost of a window.
    """

    right: dict[str, float]
    same_ratio: float
    costs: dict[str, Cost]


def planted_at(index: int, host_count: int) -> Planted:
    """The machine that is different in a window: all metrics and strengths in turn."""
    metric = tuple(LEVELS)[index % len(LEVELS)]
    factor = _PLANTED_FACTORS[index // len(LEVELS) % len(_PLANTED_FACTORS)]
    return Planted((index * 7919) % host_count, metric, factor)


def rank(fleet: Fleet, count: int, planted: Callable[[int], Planted] | None = None) -> Ranking:
    """Compare windows by all pairs, by the distance to the centre, and as the detector does (own levels learned).

    Args:
        fleet: the machines.
        count: windows.
        planted: who is different in each; None: all metrics and strengths in turn.
    """
    planted = planted or (lambda index: planted_at(index, fleet.host_count))
    metrics = {metric.name: metric for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu)}
    scales = [scale_of(metrics[name]) for name in LEVELS]
    state = PeerState.empty(fleet.host_count, len(LEVELS))
    groups = np.zeros(fleet.host_count, np.intp)
    learned = [transform(fleet.matrix(index), scales) for index in range(_WARMUP_COUNT)]
    for values in learned:
        compare(values, groups, state, scales, PeerConfig())
    width = np.maximum(np.ptp(np.concatenate(learned), axis=0), 1e-9)
    ways = ("pairs", "centre", "detector")
    hits, same, costs = dict.fromkeys(ways, 0), 0, {way: list[Cost]() for way in ways}
    for index in range(count):
        odd = planted(index)
        values = transform(fleet.matrix(_WARMUP_COUNT + index, odd), scales)
        named: dict[str, int] = {}

        def pairs(values: Numbers, named: dict[str, int] = named) -> None:
            named["pairs"] = int(pairwise_sums((values / width)[None])[0].argmax())

        def centre(values: Numbers, named: dict[str, int] = named) -> None:
            scaled = values / width
            named["centre"] = int(np.square(scaled - median(scaled, 0)).sum(axis=1).argmax())

        def detector(values: Numbers, named: dict[str, int] = named) -> None:
            sigmas = np.abs(np.nan_to_num(compare(values, groups, state, scales, PeerConfig()).sigmas))
            named["detector"] = int(sigmas.max(axis=1).argmax())

        for way, work in zip(ways, (pairs, centre, detector), strict=True):
            costs[way].append(cost_of(work, values))
            hits[way] += named[way] == odd.host
        same += named["pairs"] == named["centre"]
    return Ranking({way: hits[way] / count for way in ways}, same / count, {w: middle(c) for w, c in costs.items()})


# -- the report ----------------------------------------------------------------------------


def peak_bytes() -> int:
    """Largest memory of this process until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def doublings(costs: Sequence[float]) -> list[float]:
    """How many times the cost of the one before, one after the other."""
    return [after / before for before, after in itertools.pairwise(costs)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="how fast is live detection?")
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--slices", type=int, default=12, help="measured slices of each figure")
    parser.add_argument("--sizes", type=int, nargs="+", default=_DOUBLINGS)
    parser.add_argument("--windows", type=int, default=42, help="windows of the comparison with exact pairs")
    parser.add_argument("--turns", type=int, default=6, help="measured turns of ten seconds of each learned detector")
    parser.add_argument("--only-learned", action="store_true", help="only what the learned detectors cost")
    parser.add_argument("--pairs", type=int, nargs="+", default=(64, 256, 1024, 4096), help="its machines")
    args = parser.parse_args(arguments)
    gc.set_threshold(*GC_THRESHOLDS)  # as the engine does
    print(f"{len(LEVELS)} metrics once a second, slices of {SLICE_SECONDS} s, one job, one process; cost of one slice")
    print(f"{'':>44} {'CPU s':>8} {'wall s':>8} {'x real time':>11} {'MB':>6}")
    print_learned(Fleet(args.hosts, 1), args.turns)
    if args.only_learned:
        return 0
    for gpu_count in (1, 8):
        fleet = Fleet(args.hosts, gpu_count)
        for name, way in (("arrays", by_arrays), ("encoded frames", by_frames)):
            cost = way(fleet, args.slices)
            print(_line(f"{args.hosts:,} machines, {gpu_count} GPU rows each, {name}", cost), flush=True)
    print("\ncost by machines (1 GPU row each; CPU s of a slice)")
    for name, way in (("arrays", by_arrays), ("encoded frames", by_frames)):
        costs = [way(Fleet(size, 1), args.slices).cpu_seconds for size in args.sizes]
        shown = ", ".join(f"{size:,}: {cost:.3f}" for size, cost in zip(args.sizes, costs, strict=True))
        factors = doublings(costs)
        print(
            f"  {name}: {shown}; a doubling costs {', '.join(f'{f:.2f}' for f in factors)}"
            f" (mean {statistics.geometric_mean(factors):.2f}) times",
            flush=True,
        )
    print("\nexact pairs beside the robust centre: who is named first, one planted machine a window")
    for size in args.pairs:
        print(_ranking_line(size, rank(Fleet(size, 1), args.windows)), flush=True)
    return 0


def print_learned(fleet: Fleet, count: int) -> None:
    """Print what a slice of metrics and steps costs without the learned detectors, with each, and with all."""
    without = detect_learned.cost_of_slice(fleet, count)
    print(_line(f"{fleet.host_count:,} machines, a step a second, none learned", without), flush=True)
    for names in (*((name,) for name in LEARNED), tuple(LEARNED)):
        with_them = detect_learned.cost_of_slice(fleet, count, [f"{name}=evidence" for name in names])
        more = with_them.cpu_seconds / without.cpu_seconds - 1
        print(f"{_line('with ' + ' and '.join(names), with_them)}  ({more:+.0%} CPU)", flush=True)


def _line(name: str, cost: Cost) -> str:
    return (
        f"{name:>44} {cost.cpu_seconds:>8.3f} {cost.wall_seconds:>8.3f} {cost.times_real:>11.1f}"
        f" {peak_bytes() / 1e6:>6.0f}"
    )


def _ranking_line(size: int, found: Ranking) -> str:
    shown = ", ".join(
        f"{way} {1000 * found.costs[way].cpu_seconds:.1f} ms right {share:.0%}" for way, share in found.right.items()
    )
    return f"  {size:,} machines: {shown}; pairs and centre name the same in {found.same_ratio:.0%}"


if __name__ == "__main__":
    sys.exit(main())

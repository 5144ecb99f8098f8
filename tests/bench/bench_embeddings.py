"""Do Minder's embeddings help tocsin's own mode? The peer detector, fed with means or with LSTM-VAE embeddings.

Cases of the simulator's ``fit`` half (other seeds taught the LSTM-VAEs), 4 to 64 hosts, half of them healthy. What
is measured is the detector alone, before ``diagnose``: per host the first time at which what adds up about a
telling metric crosses a line. All lines come from one run, so ways of feeding are compared **at the line at
which each accuses as few machines of the healthy cases as the others**.

- ``mean``: the slice's mean, as the engine does.
- ``eight``: the mean of the last eight samples, three of them from the slice before: what memory alone does.
- ``denoised``: the slice's part of the reconstruction of these eight, every row, the seven metrics.
- ``candidates``: the same, only for hosts at which the cheap distance stands out (a fifth of an alarm).
- ``distance``: the means, and seven more metrics of a host: distance of its embedding to its role's median.

The same once more on spoiled samples: twice the noise, 5 % lost, 1 % fallen to a tenth. At the end: how often
the distance to the median and the exact sum of pairwise distances put the same machine on top.
``TOCSIN_BENCH_CASES`` (120) cases; ``TOCSIN_BENCH_FIT`` (16) recordings teach the models.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import Grid, stack_frames
from tocsin.models.lstm_vae import WINDOW_TICKS, FloatArray
from tocsin.models.metric_means import MetricMeans, mean_over_ticks, means_of
from tocsin.models.minder import PRIORITY, MinderModel, fill_nearest
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.models.robust import median
from tocsin.models.similarity import pairwise_sums
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.cusum import SumConfig
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.peers.rows import mean_by_host
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.simulation.case import HEALTHY, draw_case
from tocsin.pipeline.lab.training.minder_training import train_minder, training_recording
from tocsin.pipeline.rca.rules.deviations import FAMILIES, SILENT_FAMILIES
from tocsin.pipeline.recording.frames import frames_of, metric_table_of
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.tables import Recording, Text
from tocsin.schemas.metrics import FIRST_CUSTOM_TABLE_ID, Metric, MetricTable
from tocsin.schemas.records import NS_PER_SECOND, Frame, Slice
from tocsin.schemas.verdicts import Anomaly

FIRST_SEED, FIRST_LESSON_SEED = 6_000_000, 6_500_000
HOSTS = (4, 64)
SECONDS = 720.0
KINDS = ("pcie_downgrade", "aoc_error", "nvlink_error", "power_cap", "thermal_throttle", "cpu_contention")
WAYS = ("mean", "eight", "denoised", "candidates", "distance")
LEAST_SUM = 2.0
LINES = tuple(round(10 ** (place / 20), 3) for place in range(8, 46))
"""What adds up is looked at from ``LEAST_SUM`` on; lines from 2.5 to 178 are tried, the engine's is 10."""
BUDGET_LINES = (10.0, 17.783, 31.623, 56.234)
"""Alarm budgets: as many healthy machines as ``mean`` names at these lines."""
AFTER_NS = 120 * NS_PER_SECOND
EMBEDDING = "embedding_of_"
WATCHING = PeersConfig(sums=replace(SumConfig(), alarm_sum=LEAST_SUM, limit_ratio=1e6))
Crossings = dict[str, list[int]]
"""Host -> for each of ``LINES`` when it was crossed first, 0: never."""


@dataclass(frozen=True)
class Samples:
    """One slice of a job: its means as the engine has them, and the last eight samples of each row and metric."""

    means: MetricMeans
    host_windows: FloatArray
    gpu_windows: FloatArray
    slice_ticks: int


@dataclass
class Result:
    """What became of one case.

    Attributes:
        suspects: who is at fault, and from when to when; none in a healthy case.
        agreement: per window of a fault and metric: (hosts, same machine on top, both name the faulty one).
    """

    seen: dict[str, Crossings]
    suspects: dict[str, tuple[int, int]]
    machine_days: float
    agreement: list[tuple[int, bool, bool]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def spoiled(frame: Frame, draw: np.random.Generator, noise: Mapping[str, float]) -> Frame:
    """A frame of worse samples: more noise, some lost, some for a moment nearly nothing."""

    def worse(matrix: bytes, scope: str) -> bytes:
        values = np.frombuffer(matrix, "<f4").astype(np.float64)
        values = values * (1 + noise[scope] * draw.standard_normal(values.size))
        values = np.where(draw.random(values.size) < 0.01, 0.1 * values, values)
        return np.where(draw.random(values.size) < 0.05, np.nan, values).astype("<f4").tobytes()

    return replace(frame, host_matrix=worse(frame.host_matrix, "host"), gpu_matrix=worse(frame.gpu_matrix, "gpu"))


def slices_of(recording: Recording, places: Places, seed: int | None) -> Iterator[tuple[Slice, Samples]]:
    """The metric slices of a recording; ``seed``: spoil the samples with it."""
    table, draw = metric_table_of(recording), np.random.default_rng(seed or 0)
    past: dict[object, FloatArray] = {}
    for end_ns, members in groupby(frames_of(recording, places), key=lambda frame: frame.ts_ns):
        frames = list(members)
        if seed is not None:
            frames = [spoiled(frame, draw, {"host": 0.08, "gpu": 0.08}) for frame in frames]
        tick_ns = frames[0].tick_ns
        ticks = max(frame.tick_count for frame in frames)
        stop_ns = end_ns + NS_PER_SECOND // 1000
        data = Slice(frames[0].job, stop_ns - ticks * tick_ns, stop_ns, ())
        stack = stack_frames(frames, table, Grid(data.start_ns, tick_ns, ticks))
        means = means_of(frames, table, data.start_ns, data.end_ns)
        hosts = _with_past(past, stack.hosts, stack.host_values)
        gpus = _with_past(past, stack.gpu_rows, stack.gpu_values)
        yield data, Samples(means, hosts, gpus, min(ticks, WINDOW_TICKS))


def _with_past(past: dict[object, FloatArray], names: Sequence[object], values: FloatArray) -> FloatArray:
    """The last eight samples of each row: what a row had before its slice comes first."""
    found = []
    for name, own in zip(names, values, strict=True):
        before = past.get(name, np.full((own.shape[0], WINDOW_TICKS), np.nan, np.float32))
        past[name] = np.concatenate([before, own], axis=1)[:, -WINDOW_TICKS:]
        found.append(past[name])
    return np.stack(found) if found else np.zeros((0, values.shape[1], WINDOW_TICKS), np.float32)


def embedded(windows: FloatArray, metric: str, model: MinderModel) -> FloatArray:
    """Reconstructions in the metric's share of its limits, shape (rows, ticks); NaN where a row has no sample."""
    scaled = model.limits[metric].normalise(fill_nearest(windows))
    found: FloatArray = model.single[metric].reconstruct(scaled[:, :, None])[:, :, 0]
    return found


def of_eight(samples: Samples) -> MetricMeans:
    """Means of the last eight samples of each row and metric."""
    means = samples.means
    hosts, gpus = (mean_over_ticks(windows)[0] for windows in (samples.host_windows, samples.gpu_windows))
    return replace(
        means,
        host_values=np.where(np.isfinite(means.host_values), hosts, means.host_values),
        gpu_values=np.where(np.isfinite(means.gpu_values), gpus, means.gpu_values),
    )


def denoised(samples: Samples, table: MetricTable, model: MinderModel, hosts: set[str], way: str) -> MetricMeans:
    """Means of the reconstruction instead of means; of ``candidates`` only for these hosts."""
    means = samples.means
    chosen = np.array([way != "candidates" or host in hosts for host in means.hosts], bool)
    host_rows = {host: row for row, host in enumerate(means.hosts)}
    of_host = np.array([host_rows[host] for host, _ in means.gpu_rows], np.intp)
    parts = []
    for metrics, windows, values, rows in (
        (table.host, samples.host_windows, means.host_values, np.arange(len(means.hosts))),
        (table.gpu, samples.gpu_windows, means.gpu_values, of_host),
    ):
        out = values.copy()
        wanted = chosen[rows]
        for column, metric in enumerate(metrics):
            if metric.name in model.single and wanted.any():
                limits = model.limits[metric.name]
                found = embedded(windows[wanted, column], metric.name, model)[:, -samples.slice_ticks :].mean(axis=1)
                out[wanted, column] = limits.low + found * (limits.high - limits.low)
        parts.append(np.where(np.isfinite(values), out, values).astype(np.float32))
    return replace(means, host_values=parts[0], gpu_values=parts[1])


def by_host(samples: Samples, table: MetricTable, model: MinderModel) -> dict[str, FloatArray]:
    """Metric -> each host's embedding as Minder has it (the mean of its GPUs), shape (hosts, ticks)."""
    means = samples.means
    host_rows = {host: row for row, host in enumerate(means.hosts)}
    of_host = np.array([host_rows[host] for host, _ in means.gpu_rows], np.intp)
    found = {}
    for scope, windows in ((table.host, samples.host_windows), (table.gpu, samples.gpu_windows)):
        for column, metric in enumerate(scope):
            if metric.name in model.single:
                rows = windows[:, column]
                rows = rows if scope is table.host else mean_by_host(rows, of_host, len(means.hosts))
                found[metric.name] = embedded(rows, metric.name, model)
    return found


def distances(embeddings: FloatArray, groups: NDArray[np.intp]) -> FloatArray:
    """Each host's distance to the median of its role, per sample."""
    found = np.full(len(embeddings), np.nan, np.float32)
    for group in np.unique(groups):
        rows = groups == group
        rest = embeddings[rows] - median(embeddings[rows], 0)
        found[rows] = np.sqrt((rest**2).mean(axis=1))
    return found


def with_distances(means: MetricMeans, own: Mapping[str, FloatArray], graph: JobGraph) -> MetricMeans:
    """The means, and the distances of the hosts' embeddings as metrics of the host."""
    roles = graph.placement.roles_of_hosts()
    keys = [roles.get(host, ()) for host in means.hosts]
    groups = np.array([sorted(set(keys)).index(key) for key in keys], np.intp)
    nothing = np.full(len(means.hosts), np.nan, np.float32)
    extra = np.stack([distances(own[name], groups) if name in own else nothing for name in PRIORITY], axis=1)
    counts = np.isfinite(extra).astype(np.uint16)
    return replace(
        means,
        host_values=np.concatenate([means.host_values, extra], axis=1).astype(np.float32),
        host_counts=np.concatenate([means.host_counts, counts], axis=1),
    )


class Watch:
    """One detector, and when its hosts crossed which line."""

    def __init__(self, graph: JobGraph, table: MetricTable) -> None:
        """Nobody has crossed any."""
        self._detector = PeerDetector(WATCHING, graph)
        self._detector.take_table(table)
        self.crossings: Crossings = {}

    def take(self, data: Slice, means: MetricMeans) -> list[Anomaly]:
        """Take one slice."""
        found = [
            anomaly
            for anomaly in self._detector.on_means(data, means)
            if not anomaly.detail.keys() & {"standing", "leaning", "odd"}
        ]
        for anomaly in found:
            total = LEAST_SUM * max((m["score"] for m in anomaly.detail["metrics"] if _tells(m["metric"])), default=0)
            when = self.crossings.setdefault(anomaly.component.name, [0] * len(LINES))
            for place, line in enumerate(LINES):
                if total >= line and not when[place]:
                    when[place] = data.end_ns
        return found


def _tells(metric: str) -> bool:
    """Whether ``diagnose`` would listen to it."""
    return FAMILIES.get(metric.removeprefix(EMBEDDING), "activity") not in SILENT_FAMILIES


def one(seed: int, kind: str, model_bytes: bytes) -> tuple[Result, Result]:
    """Draw a case and feed its slices in all ways: as drawn, and spoiled."""
    case = draw_case(seed, HOSTS, kind, "fit", duration_seconds=SECONDS)
    recording, model = case.recording(), decode_minder(model_bytes)
    return judged(recording, model, None), judged(recording, model, seed)


def judged(recording: Recording, model: MinderModel, seed: int | None) -> Result:
    """What all ways see of a recording; ``seed``: after its samples were spoiled with it."""
    places, graph, table = Places(recording), JobGraph(), metric_table_of(recording)
    graph.take(places.topologies())
    extra = tuple(Metric(EMBEDDING + name, "host", 0.0, 1.0, "high") for name in PRIORITY)
    wider = MetricTable(FIRST_CUSTOM_TABLE_ID, table.gpu, (*table.host, *extra))
    watches = {way: Watch(graph, wider if way == "distance" else table) for way in WAYS}
    faults = (recording.truth or {"faults": []})["faults"]
    suspects = {fault["suspects"][0]["name"]: (fault["onset_ns"], fault["end_ns"]) for fault in faults}
    days = SECONDS / 86_400 * len(cast(Text, recording.tables["host_metrics"]["host"]).words)
    result = Result({way: watch.crossings for way, watch in watches.items()}, suspects, days)
    clock = dict.fromkeys(WAYS, 0.0)
    for data, samples in slices_of(recording, places, seed):
        standing_out: set[str] = set()
        own: dict[str, FloatArray] = {}
        for way in WAYS:
            begin = time.process_time()
            if way == "distance":
                own = by_host(samples, table, model)
                means = with_distances(samples.means, own, graph)
            elif way == "eight":
                means = of_eight(samples)
            else:
                means = samples.means if way == "mean" else denoised(samples, table, model, standing_out, way)
            reported = watches[way].take(data, means)
            clock[way] += time.process_time() - begin
            if way == "mean":
                standing_out = {anomaly.component.name for anomaly in reported}
        for host, (onset_ns, end_ns) in suspects.items():
            if seed is None and onset_ns <= data.start_ns and data.end_ns <= end_ns:
                result.agreement += agreement(own, samples.means.hosts, host)
    result.seconds = clock
    return result


def agreement(own: Mapping[str, FloatArray], hosts: Sequence[str], faulty: str) -> list[tuple[int, bool, bool]]:
    """Whether the distance to the median and the sum of pairwise distances put the same machine on top."""
    found = []
    for embeddings in own.values():
        there = np.isfinite(embeddings).all(axis=1)
        if there.sum() < 3:
            continue
        kept, names = embeddings[there], [host for host, is_there in zip(hosts, there, strict=True) if is_there]
        central = int(distances(kept, np.zeros(len(kept), np.intp)).argmax())
        exact = int(pairwise_sums(kept[None])[0].argmax())
        found.append((len(kept), central == exact, names[central] == names[exact] == faulty))
    return found


@dataclass(frozen=True)
class Row:
    """How good a way is at one line."""

    line: float
    healthy_false: int
    false: int
    hits: int
    faults: int
    delays: list[float]

    @property
    def f1_ratio(self) -> float:
        """Over faults and accusations."""
        return 2 * self.hits / max(1, self.hits + self.false + self.faults)


def row_of(results: Sequence[Result], way: str, place: int) -> Row:
    """Score one way at one line: a host is named once a case."""
    healthy_false = false = hits = faults = 0
    delays = []
    for result in results:
        faults += len(result.suspects)
        for host, when in result.seen[way].items():
            onset_ns, end_ns = result.suspects.get(host, (0, -1))
            if not when[place]:
                continue
            if onset_ns <= when[place] <= end_ns + AFTER_NS:
                hits += 1
                delays.append((when[place] - onset_ns) / NS_PER_SECOND)
            else:
                false += 1
                healthy_false += not result.suspects
    return Row(LINES[place], healthy_false, false, hits, faults, delays)


def taught_model(count: int) -> MinderModel:
    """LSTM-VAEs of other cases of the same half, most of their time healthy."""
    cases = (draw_case(FIRST_LESSON_SEED + n, (4, 16), HEALTHY if n % 2 else None, "fit", duration_seconds=900.0)
             for n in range(count))  # fmt: skip
    return train_minder([one for case in cases if (one := training_recording(case.recording(), PRIORITY))])


def show(results: Sequence[Result], title: str) -> None:
    """Print the tables of one kind of samples."""
    days = sum(result.machine_days for result in results)
    tables = {way: [row_of(results, way, place) for place in range(len(LINES))] for way in WAYS}
    print(f"\n{title}: {len(results)} cases, {days:.1f} machine-days (before diagnose, which asks for slower steps)")
    print("healthy named  way          line  false in all  recall     F1  median s")
    for line in BUDGET_LINES:
        budget = tables["mean"][LINES.index(line)].healthy_false
        for way in WAYS:
            fair = next((row for row in tables[way] if row.healthy_false <= budget), tables[way][-1])
            delay = f"{statistics.median(fair.delays):.0f}" if fair.delays else "-"
            print(
                f"{fair.healthy_false:4} of {budget:<5}  {way:10} {fair.line:6.1f}  {fair.false:12}"
                f"  {fair.hits / max(1, fair.faults):6.3f}  {fair.f1_ratio:5.3f}  {delay:>8}"
            )
    for way in WAYS:
        best = max(tables[way], key=lambda row: row.f1_ratio)
        seconds = sum(result.seconds[way] for result in results)
        print(f"{way:10} best F1 {best.f1_ratio:.3f} at line {best.line:.0f}; {seconds:.0f} s of CPU")


def show_agreement(results: Sequence[Result]) -> None:
    """Print how often both distances name the same machine."""
    reported = [one for result in results for one in result.agreement]
    print("\nmachine on top, distance to the median against the sum of all pairwise distances, windows within faults")
    for low, high in ((3, 7), (8, 15), (16, 31), (32, 64)):
        mine = [one for one in reported if low <= one[0] <= high]
        if mine:
            same = sum(one[1] for one in mine) / len(mine)
            faulty = [one for one in mine if one[2]]
            print(f"{low:3} to {high:2} hosts: {len(mine):6} windows, the same {same:.3f}, the faulty {len(faulty)}")


def main() -> None:
    """Print the tables."""
    count = int(os.environ.get("TOCSIN_BENCH_CASES", "120"))
    taught = int(os.environ.get("TOCSIN_BENCH_FIT", "16"))
    start = time.perf_counter()
    model = encode_minder(taught_model(taught))
    print(
        f"seven LSTM-VAEs of {taught} recordings: {len(model)} bytes, {time.perf_counter() - start:.0f} s", flush=True
    )
    cases = [(FIRST_SEED + n, KINDS[n // 2 % len(KINDS)] if n % 2 else HEALTHY) for n in range(count)]
    # spawn: numpy's threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        reported = pool.starmap(one, [(seed, kind, model) for seed, kind in cases], chunksize=2)
    show([drawn for drawn, _ in reported], "samples as drawn")
    show_agreement([drawn for drawn, _ in reported])
    show([worse for _, worse in reported], "spoiled samples")
    print(f"{time.perf_counter() - start:.0f} s")

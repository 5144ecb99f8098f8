"""What each learned detector costs: one job's operators without and with it, on metrics and on a step a second.

The trace detectors judge windows of ten seconds, so a turn is ten seconds: two metric slices. Each turn costs the same.
Steps come as agents send them: a batch of each host at the end of a metric slice. The networks of ``bilstm`` have the
size that training gives them, where none ships their weights are drawn: what they cost does not hang on them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np

from tests.bench.detect_cost import Cost, cost_of, middle
from tests.bench.detect_load import JOB, SLICE_SECONDS, Fleet
from tocsin.models.bilstm_file import decode_bilstm
from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.models.documents import Model
from tocsin.models.op_features import PHASES, Vocabulary, feature_count
from tocsin.pipeline.core.frame_blocks import FrameBlock, MetricSlice
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.detect.learned.registry import learned_config
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    JobRecord,
    RankPlace,
    Slice,
    StepBatch,
    StepRecord,
    Topology,
)

TURN_SLICES = 2
"""Metric slices of a turn: a window of the trace detectors."""
WARMUP_TURNS = 14
"""Turns before the measured ones: the Bi-LSTM judges after six windows, and six more that teach it what is usual."""
HIDDEN_SIZE, SEQUENCE_COUNT = 16, 6
"""Sizes of a network as ``tocsin train`` makes it."""
_PHASE_SECONDS = (0.02, 0.3, 0.4, 0.1)
_NOISE_RATIO = 0.01


def network(seed: int = 0) -> OcnnModel:
    """A network of the phases with weights that nobody trained, of the size that training gives it."""
    draw, vocabulary = np.random.default_rng(seed), Vocabulary(PHASES)
    width = feature_count(vocabulary.class_count)
    lstm = {"input": (4 * HIDDEN_SIZE, width), "state": (4 * HIDDEN_SIZE, HIDDEN_SIZE), "bias": (4 * HIDDEN_SIZE,)}
    shapes = {f"{way}_{part}": shape for way in ("forward", "backward") for part, shape in lstm.items()}
    shapes |= {"V": (HIDDEN_SIZE, 2 * HIDDEN_SIZE), "w": (HIDDEN_SIZE,), "mean": (width,)}
    weights = {name: (0.3 * draw.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    weights["deviation"] = np.ones(width, np.float32)
    return OcnnModel(vocabulary, SEQUENCE_COUNT, weights, 0.4, 0.6, 1.25, 0.05)


def model_of(detector: str) -> Model | None:
    """The model that a detector is given; None: it judges with what ships."""
    payload = shipped_model(detector)
    if detector != "bilstm":
        return None
    return Model("bench", None, {"phases": network()} if payload is None else dict(decode_bilstm(payload)), "bench")


def steps_of(fleet: Fleet, index: int) -> Iterator[StepBatch]:
    """Yield each host's steps of one metric slice, one a second; a rank a host, who is done waits for the slowest."""
    span = fleet.span(index)
    draw = np.random.default_rng([index, fleet.host_count])
    shape = (SLICE_SECONDS, fleet.host_count, len(_PHASE_SECONDS))
    own = np.array(_PHASE_SECONDS) * (1 + _NOISE_RATIO * draw.standard_normal(shape))
    busy = own.sum(axis=2)
    longest = busy.max(axis=1) + 0.02
    waits = (longest[:, None] - busy).tolist()
    table, lasted = own.tolist(), longest.tolist()
    for rank, host in enumerate(fleet.hosts):
        rows = []
        for second in range(SLICE_SECONDS):
            ts_ns = span.start_ns + (second + 1) * NS_PER_SECOND - 2_000_000
            data, forward, backward, optimizer = table[second][rank]
            step, wait = index * SLICE_SECONDS + second, waits[second][rank]
            rows.append(StepRecord(ts_ns, rank, step, lasted[second], data, forward, backward, optimizer, wait))
        yield StepBatch(JOB, host, span.end_ns - 1_000_000, tuple(rows))


def turn(fleet: Fleet, number: int) -> list[SliceBundle]:
    """Ten seconds of the job: a bundle a second, with steps and means at the end of each metric slice."""
    found = []
    for index in range(number * TURN_SLICES, (number + 1) * TURN_SLICES):
        span, means = fleet.span(index), fleet.means(index)
        block = FrameBlock(JOB, BUILTIN_TABLE.table_id, span.start_ns, span.end_ns, span.end_ns - 1_000_000, means)
        metrics = MetricSlice(JOB, span.start_ns, span.end_ns, (), (block,))
        records: list[JobRecord] = [*steps_of(fleet, index)]
        if index == 0:
            places = (
                Topology(JOB, host, span.end_ns - 1_000_000, (RankPlace(rank, host, pp=0),))
                for rank, host in enumerate(fleet.hosts)
            )
            records = [*places, *records]
        for end_ns in range(span.start_ns + NS_PER_SECOND, span.end_ns + 1, NS_PER_SECOND):
            is_last = end_ns == span.end_ns
            fast = Slice(JOB, end_ns - NS_PER_SECOND, end_ns, tuple(records) if is_last else ())
            found.append(SliceBundle(JOB, end_ns, fast, (metrics,) if is_last else ()))
    return found


def cost_of_slice(fleet: Fleet, count: int, learned: Sequence[str] = ()) -> Cost:
    """Return what one metric slice costs, the median over the measured turns.

    Args:
        fleet: the machines.
        count: measured turns.
        learned: ``NAME=MODE`` of the learned detectors.

    Raises:
        RuntimeError: a learned detector did not judge in a measured turn.
    """
    pipeline = JobPipeline(JobConfig(learned=learned_config(learned)), JOB)
    for name, operator in pipeline.learned.operators.items():
        if (model := model_of(name)) is not None:
            operator.on_model(model)

    def work(bundles: Sequence[SliceBundle]) -> None:
        for one in bundles:
            pipeline.on_bundle(one)

    costs = []
    for number in range(WARMUP_TURNS + count):
        bundles = turn(fleet, number)
        before = _unjudged(pipeline)
        gc.collect()
        cost = cost_of(work, bundles)
        if number < WARMUP_TURNS:
            continue
        if (after := _unjudged(pipeline)) != before:
            raise RuntimeError(f"not everything was judged: {after}, before {before}")
        costs.append(Cost(cost.cpu_seconds / TURN_SLICES, cost.wall_seconds / TURN_SLICES))
    return middle(costs)


def _unjudged(pipeline: JobPipeline) -> dict[str, dict[str, int]]:
    """Detector -> how often it judged nothing, but for single machines that deviate too shortly."""
    return {
        name: {reason: count for reason, count in one.abstained.items() if reason != Reason.NOT_CONTINUOUS}
        for name, one in pipeline.learned.operators.items()
    }

"""What-if scenarios: steps with some operations as they were and all others ideal, and the slowdowns that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.whatif import optypes
from tocsin.models.whatif.dependencies import DependencyPlan, build_plan
from tocsin.models.whatif.simulate import StepSeconds, moving_seconds, simulate
from tocsin.models.whatif.trace import FloatArray, OpTrace, TraceArrays, arrange

BoolArray = npt.NDArray[np.bool_]

_CHUNK_VALUES = 4_000_000
"""Most values that one simulation holds (32 MB): more scenarios and steps are simulated one part after the other."""
_SLOWEST_SHARE_PERCENT = 3
"""Share of the workers whose replacement M_W tries (``seed-systems-a.md`` 4.6)."""


@dataclass(frozen=True, slots=True)
class WhatIfModel:
    """A trace that is ready for scenarios.

    Attributes:
        arrays: the trace.
        plan: its dependency model.
        real_seconds: time that each operation took once it could move, shape (ops, steps, dp).
        ideal_seconds: the same if nobody were slow, shape (ops,): mean or median over all operations of the type.
    """

    arrays: TraceArrays
    plan: DependencyPlan
    real_seconds: FloatArray
    ideal_seconds: FloatArray


@dataclass(frozen=True, slots=True)
class Explained:
    """How much of the slowdown some workers explain.

    Attributes:
        removed_seconds: mean step time with these workers ideal and all others real.
        added_seconds: mean step time with these workers real and all others ideal.
        removed_ratio: share of the slowdown that vanishes with them (M_W, M_S).
        added_ratio: share of the slowdown that comes with them.
    """

    removed_seconds: float
    added_seconds: float
    removed_ratio: float
    added_ratio: float


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """The figures of the what-if study (``seed-systems-a.md`` 4.6). Ratios are step time over ideal step time.

    Attributes:
        traced_seconds: traced step times, shape (steps,).
        real_seconds: simulated step times without launch delays (T), same shape.
        real_to_optimizer_seconds: the same until the last optimizer ends.
        ideal_seconds: ideal step times (T_ideal), same shape.
        by_optype: type -> slowdown with only this type real, shape (steps,), the two ends of transfers merged.
        optype_ratios: type -> the same over all steps (S_t).
        by_dp_rank: slowdown with only one data-parallel rank real, shape (dp, steps).
        dp_rank_ratios: the same over all steps, shape (dp,).
        by_stage: slowdown with only one stage real, shape (stages, steps).
        stage_ratios: the same over all steps, shape (stages,).
        worker_ratios: the smaller one of stage and data-parallel rank (S_w), shape (dp, stages).
        slowest_workers: (data-parallel index, stage) of the slowest 3 %, slowest first.
        workers: what the slowest workers explain; ``removed_ratio`` is M_W.
        last_stage: what the last stage explains; ``removed_ratio`` is M_S. None without a pipeline.
    """

    traced_seconds: FloatArray
    real_seconds: FloatArray
    real_to_optimizer_seconds: FloatArray
    ideal_seconds: FloatArray
    by_optype: Mapping[str, FloatArray]
    optype_ratios: Mapping[str, float]
    by_dp_rank: FloatArray
    dp_rank_ratios: FloatArray
    by_stage: FloatArray
    stage_ratios: FloatArray
    worker_ratios: FloatArray
    slowest_workers: tuple[tuple[int, int], ...]
    workers: Explained
    last_stage: Explained | None

    @property
    def slowdown_ratio(self) -> float:
        """S: mean simulated step time over mean ideal step time."""
        return float(self.real_seconds.mean() / self.ideal_seconds.mean())

    @property
    def step_ratios(self) -> FloatArray:
        """Slowdown of each step, shape (steps,)."""
        return self.real_seconds / self.ideal_seconds

    @property
    def step_discrepancies(self) -> FloatArray:
        """Traced over simulated step time of each step, shape (steps,)."""
        return self.traced_seconds / self.real_to_optimizer_seconds

    @property
    def discrepancy_ratio(self) -> float:
        """Mean traced step time over mean simulated one: what the model does not explain."""
        return float(self.traced_seconds.mean() / self.real_to_optimizer_seconds.mean())


def model_of(trace: OpTrace) -> WhatIfModel:
    """Return the model of a trace.

    Raises:
        FieldError: the trace is no whole trace of one job, or its operations do not fit each other.
    """
    arrays = arrange(trace)
    plan = build_plan(arrays.ops)
    real = moving_seconds(plan, arrays)
    return WhatIfModel(arrays, plan, real, _ideal(arrays, real))


def slowdowns(model: WhatIfModel) -> Slowdowns:
    """Return how much slower the job is than its ideal, in all and by type, rank, stage and worker."""
    arrays = model.arrays
    kinds = np.array([optypes.MERGED.get(op.optype, op.optype) for op in arrays.ops])
    names = list(dict.fromkeys(kinds.tolist()))
    stages = np.arange(arrays.stage_count)
    everything = np.ones((1, len(arrays.ops)), bool)
    masks = [everything, ~everything, kinds == np.array(names)[:, None], arrays.stages == stages[:, None]]
    steps = run_masks(model, np.concatenate(masks))
    ideal, parts = steps.to_optimizer[1], steps.to_optimizer[2:]
    by_part = parts / ideal
    part_ratios = parts.mean(axis=1) / ideal.mean()
    alone = _ranks_alone(model)
    dp_ratios, stage_ratios = alone.mean(axis=1) / ideal.mean(), part_ratios[len(names) :]
    workers = np.minimum(dp_ratios[:, None], stage_ratios[None, :])
    slowest = _slowest(workers, arrays)
    worker_mask = np.zeros((len(arrays.ops), arrays.dp_ranks.size), bool)
    for dp, stage in slowest:
        worker_mask[arrays.stages == stage, dp] = True
    last_mask = np.broadcast_to((arrays.stages == stages[-1])[:, None], worker_mask.shape)
    bounds = (float(steps.to_last[0].mean()), float(ideal.mean()))
    return Slowdowns(
        traced_seconds=arrays.end_seconds.max(axis=(0, 2)),
        real_seconds=steps.to_last[0],
        real_to_optimizer_seconds=steps.to_optimizer[0],
        ideal_seconds=ideal,
        by_optype=dict(zip(names, by_part, strict=False)),
        optype_ratios=dict(zip(names, part_ratios.tolist(), strict=False)),
        by_dp_rank=alone / ideal,
        dp_rank_ratios=dp_ratios,
        by_stage=by_part[len(names) :],
        stage_ratios=stage_ratios,
        worker_ratios=workers,
        slowest_workers=slowest,
        workers=explain(model, worker_mask, bounds),
        last_stage=explain(model, last_mask, bounds) if stages.size > 1 else None,
    )


def explain(model: WhatIfModel, mask: BoolArray, bounds: tuple[float, float]) -> Explained:
    """Return how much of the slowdown some operations explain.

    Args:
        model: the trace.
        mask: the operations, shape (ops, dp).
        bounds: mean real and mean ideal step time.
    """
    removed, added = (float(run_seconds(model, keep).to_last.mean()) for keep in (~mask, mask))
    real, ideal = bounds
    lost = real - ideal
    if lost == 0:
        return Explained(removed, added, 0.0, 0.0)
    return Explained(removed, added, (real - removed) / lost, (added - ideal) / lost)


def run_masks(model: WhatIfModel, masks: BoolArray) -> StepSeconds:
    """Simulate scenarios in which some operations are real on all ranks and all others are ideal.

    Args:
        model: the trace.
        masks: which operations are real, shape (scenarios, ops).
    """
    op_count, step_count, dp_count = model.real_seconds.shape
    parts: list[list[StepSeconds]] = []
    for some in _parts(masks.shape[0], op_count * dp_count):
        chosen = masks[some].T[:, :, None, None]
        row = []
        for steps in _parts(step_count, op_count * dp_count * chosen.shape[1]):
            real = model.real_seconds[:, None, steps]
            row.append(simulate(model.plan, np.where(chosen, real, model.ideal_seconds[:, None, None, None])))
        parts.append(row)
    return StepSeconds(*(np.block([[part[field] for part in row] for row in parts]) for field in (0, 1)))


def run_seconds(model: WhatIfModel, mask: BoolArray, seconds: FloatArray | None = None) -> StepSeconds:
    """Simulate one scenario.

    Args:
        model: the trace.
        mask: which operations take ``seconds``, shape (ops, dp); all others are ideal.
        seconds: shape (ops, steps, dp); by default as they were.
    """
    given = model.real_seconds if seconds is None else seconds
    op_count, step_count, dp_count = given.shape
    parts = []
    for steps in _parts(step_count, op_count * dp_count):
        chosen = np.where(mask[:, None, :], given[:, steps], model.ideal_seconds[:, None, None])
        parts.append(simulate(model.plan, chosen[:, None]))
    return StepSeconds(*(np.concatenate([part[field] for part in parts], axis=1) for field in (0, 1)))


def _ranks_alone(model: WhatIfModel) -> FloatArray:
    """Return step times with one data-parallel rank real and all others ideal, shape (dp, steps).

    All ideal ranks are alike, so one of them stands for all, and the work is that of two ranks a scenario.
    """
    op_count, step_count, dp_count = model.real_seconds.shape
    found = np.empty((dp_count, step_count))
    for ranks in _parts(dp_count, op_count * 2):
        real = model.real_seconds[:, :, ranks]
        for steps in _parts(step_count, op_count * 2 * real.shape[2]):
            alone = real[:, steps].transpose(0, 2, 1)[..., None]
            ideal = np.broadcast_to(model.ideal_seconds[:, None, None, None], alone.shape)
            times = np.concatenate([alone, ideal] if dp_count > 1 else [alone], axis=-1)
            found[ranks, steps] = simulate(model.plan, times).to_optimizer
    return found


def _parts(count: int, values: int) -> Iterator[slice]:
    """Yield slices of ``count`` items of ``values`` values each, none much above the limit."""
    size = max(1, _CHUNK_VALUES // max(1, values))
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))


def _ideal(arrays: TraceArrays, real: FloatArray) -> FloatArray:
    """Return the ideal time of each operation, shape (ops,)."""
    kinds = np.array([op.optype for op in arrays.ops])
    ideal = np.empty(kinds.size)
    for kind in np.unique(kinds):
        values = real[kinds == kind]
        ideal[kinds == kind] = np.median(values) if kind in optypes.MEDIAN else values.mean()
    return ideal


def _slowest(workers: FloatArray, arrays: TraceArrays) -> tuple[tuple[int, int], ...]:
    """Return the slowest 3 % of the workers, at least one, slowest first; of equally slow ones the lowest rank."""
    count = -(-workers.size * _SLOWEST_SHARE_PERCENT // 100)
    order = np.lexsort((arrays.ranks.ravel(), -workers.ravel()))[:count]
    return tuple((int(at) // workers.shape[1], int(at) % workers.shape[1]) for at in order)

"""Causes of a synchronous job's slowness from some steps of all ranks, each with its share of the job's time.

A step is as long as its slowest rank computes, and the transfers after that. In the ideal step all ranks compute as
long as the mean rank, and the job is as much slower than that as its slowdown S says. What a rank computes longer than
the mean is cut into parts by their form: a long pipeline stage, slow machines, uneven data, pauses. A part is added to
the ideal steps and removed from the real ones; the mean of the two differences is its cost. Uneven data cost a pipeline
more, because its stages wait for each long microbatch: how long, tells a simulation (``pipeline_stalls.py``). After the
causes of the straggler study (What-if, OSDI'25, sections 4.3 and 4.8), for step records instead of traced operations.
Numbers that are missing (``known_steps.py``) are in no part and in no median.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.known_steps import LEAST_PEER_COUNT, LEAST_STEP_COUNT, KnownSteps, known_steps, longest_seconds
from tocsin.models.pipeline_stalls import expected_stalls
from tocsin.models.robust import median, median_of, spread, without_gaps
from tocsin.models.step_waits import StepWaits, UsualWaits, find_waits
from tocsin.models.steps import StepWindow

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

STAGE, DATA, JITTER, MACHINE = "stage_imbalance", "data_imbalance", "software_jitter", "machine"
COMMUNICATION = "communication"
"""Transfers that take longer than usual once all members have come."""
SERVICE, LOADER = "shared_service", "loader_stall"
"""Waiting for data: what all loading ranks wait alike, and what single ones wait beyond that."""
_DATA_CORRELATION = 0.9
"""Least correlation of a rank's forward and backward times over its steps from which on its data differ: the study's
line. Sequences lengthen both passes, whereas noise and pauses of a program lengthen one of them."""
_DATA_VARIATION_RATIO = 0.05
"""Least variation of forward times for uneven data, as a share of their median: drifts of clocks correlate as well."""
_PAUSE_SPREADS = 5.0
"""Distance of a pause from a rank's other forward times in robust spreads, as in ``SlowConfig.spread_factor``."""
_PAUSE_RATIO = 0.05
"""Least length of a pause as a share of a rank's own time: shorter ones in each step make no cause that is told."""
_MACHINE_RATIO, _MACHINE_STEPS_RATIO = 0.1, 0.9
"""Least excess of a slow rank over its peers, as a share of their time, and share of steps in which it has it."""
_MOST_OF_ONE_RATIO = 0.5
"""Largest share of a moving cause that one rank has: above it the cause does not move, and belongs to that rank."""


@dataclass(frozen=True, slots=True)
class StepCauses:
    """Why some steps were longer than ideal ones.

    Attributes:
        slowdown_ratio: S, step time over ideal step time; at least 1.
        step_seconds: mean step time.
        costs: cause -> share of the step time that would be won without it, 0 to 1; machines included. A cause that
            cannot be told from the input is missing.
        long_stage: the pipeline stage that computes longest, -1 = no stage is longer on every replica.
        stage_ratio: how much longer than the mean stage it computes on its fastest replica, 0 without one.
        late_column: the rank with most of the waiting that is its loader's, -1 = none has more than half.
        usual: what the steps' waits usually are; None where they are not told.
    """

    slowdown_ratio: float
    step_seconds: float
    costs: Mapping[str, float]
    long_stage: int = -1
    stage_ratio: float = 0.0
    late_column: int = -1
    usual: UsualWaits | None = None


def find_step_causes(
    window: StepWindow, replicas: npt.NDArray[np.int64] | None = None, before: UsualWaits | None = None
) -> StepCauses | None:
    """Return why the steps of a window are longer than ideal ones.

    Args:
        window: the newest steps of all ranks; numbers may be missing.
        replicas: data-parallel rank of each rank, shape (ranks,), -1 = unknown; without it pipelines are not told.
        before: what was usual in the job's earlier steps, for waits that all ranks have alike.

    Returns:
        The causes; None with too few known steps or ranks, or without forward and backward times (``known_steps``).
    """
    steps = known_steps(window)
    if steps is None:
        return None
    compute, roles = steps.compute, steps.roles
    stage, long_stage, stage_ratio = _stage_part(steps)
    data, pauses, lengths = _moving_parts(steps)
    parts = {MACHINE: _machine_part(compute, roles), DATA: data, JITTER: pauses}
    if stage is not None:
        parts[STAGE] = stage
    ideal_seconds = float(np.nanmean(compute, axis=0).mean())
    ideal = np.full_like(compute, ideal_seconds)
    seconds = {name: _cost(compute, ideal, part) for name, part in parts.items()}
    found = find_waits(steps, before)
    stall_seconds = 0.0
    if replicas is not None and data.any() and steps.idle.size:
        stall_seconds = _stall_seconds(steps, lengths, replicas[steps.columns])
    seconds[DATA] += stall_seconds
    if found.transfer_seconds is not None:
        # waits for long microbatches are longer in some steps, as slow transfers are
        seconds[COMMUNICATION] = 0.0 if stall_seconds > 0.0 else found.transfer_seconds
    seconds |= {SERVICE: found.shared_seconds, LOADER: found.loader_seconds}
    step_seconds = max(_step_seconds(steps, found), 1e-6)
    of_waits = stall_seconds + sum(seconds.get(name, 0.0) for name in (COMMUNICATION, SERVICE, LOADER))
    lost_seconds = steps.longest_seconds - ideal_seconds + of_waits
    return StepCauses(
        max(1.0, step_seconds / max(step_seconds - lost_seconds, ideal_seconds, 1e-6)),
        step_seconds,
        {name: min(1.0, cost / step_seconds) for name, cost in seconds.items()},
        long_stage,
        stage_ratio,
        int(steps.columns[found.late_column]) if found.late_column >= 0 else -1,
        found.usual,
    )


def _step_seconds(steps: KnownSteps, found: StepWaits) -> float:
    """Return the mean step time: of what its parts are, or where transfers are not told, as the ranks tell it."""
    if not steps.idle.size:
        return steps.duration_seconds
    waits = found.base_seconds + found.shared_seconds + found.loader_seconds
    return steps.longest_seconds + float(steps.idle.mean()) + waits


def _cost(compute: FloatArray, ideal: FloatArray, part: FloatArray) -> float:
    """Return what a part costs a step: the mean of what it adds to ideal steps and takes from real ones, seconds."""
    added = longest_seconds(ideal + part) - longest_seconds(ideal)
    removed = longest_seconds(compute) - longest_seconds(compute - part)
    return max(0.0, (added + removed) / 2)


def _stall_seconds(steps: KnownSteps, lengths: FloatArray, replicas: npt.NDArray[np.int64]) -> float:
    """Return what the stages of a pipeline wait for long microbatches in a step, seconds; 0 without a pipeline.

    How much the microbatches of a step differ is estimated from how much the replicas differ within a step, which
    leaves out what all have alike. It is too much where a rank's microbatches are long together; then the stages wait
    less, and waits vary less from step to step. So no more of the expected waits is told than the share of their
    scatter that is measured, and no more than the ranks wait at all.

    Args:
        steps: steps whose ranks tell what they communicate.
        lengths: how long each rank's data are, as a share of its usual ones, shape (steps, ranks).
        replicas: data-parallel rank of each rank.
    """
    names = np.unique(replicas)
    stage_count = np.unique(steps.roles).size
    if min(stage_count, names.size) < 2 or min(int(steps.roles.min()), int(names[0])) < 0:
        return 0.0
    parts = np.stack([_known_mean(lengths[:, replicas == name]) for name in names], axis=1)
    parts = parts[np.isfinite(parts).all(axis=1)]
    if not parts.size:
        return 0.0
    variation_ratio = float(np.sqrt(parts.var(axis=1, ddof=1).mean())) / max(float(parts.mean()), 1e-6)
    stalls = expected_stalls(stage_count, int(names.size), variation_ratio)
    compute_seconds, idle = float(np.nanmean(steps.forward + steps.backward)), steps.idle
    seen_ratio = float(idle.std()) / max(stalls.spread_ratio * compute_seconds, 1e-6)
    return min(stalls.mean_ratio * compute_seconds * min(1.0, seen_ratio), float(idle.mean()))


def _known_mean(table: FloatArray) -> FloatArray:
    """Return the mean of the known ranks in each step; NaN without one."""
    counts = np.isfinite(table).sum(axis=1)
    found: FloatArray = np.nansum(table, axis=1) / np.where(counts, counts, np.nan)
    return found


def _stage_part(steps: KnownSteps) -> tuple[FloatArray | None, int, float]:
    """Return what each stage takes longer than the mean one, shape (1, ranks), with the longest and by how much.

    A stage's time is that of its fastest replica, so that one slow replica makes no long stage. Without two stages of
    two replicas the part is 0. None: too many of a stage's ranks are left out, so that the longest one is not known.
    """
    nothing = np.zeros((1, steps.roles.size))
    stages, counts = np.unique(np.concatenate([steps.roles, steps.left_out_roles]), return_counts=True)
    if stages.size < 2 or int(counts.min()) < 2 or int(stages[0]) < 0:
        return nothing, -1, 0.0
    if not all(steps.has_most_of(int(stage)) for stage in stages):
        return None, -1, 0.0
    usual = median(steps.compute, 0)
    levels = np.array([float(usual[steps.roles == stage].min()) for stage in stages])
    above, longest = levels - levels.mean(), int(levels.argmax())
    ratio = float(above[longest] / levels.mean())
    return above[np.searchsorted(stages, steps.roles)][None, :], int(stages[longest]), ratio


def _machine_part(compute: FloatArray, roles: npt.NDArray[np.int64]) -> FloatArray:
    """Return what slow ranks take longer than their peers of the stage, shape (1, ranks); 0 for the others.

    Args:
        compute: seconds, shape (steps, ranks).
        roles: stage of each rank.
    """
    part = np.zeros((1, compute.shape[1]))
    for role in np.unique(roles):
        members = np.flatnonzero(roles == role)
        times = compute[:, members]
        times = times[np.isfinite(times).sum(axis=1) >= LEAST_PEER_COUNT]
        if not times.size:
            continue
        above = times - median(times, 1)[:, None]
        line = _MACHINE_RATIO * median_of(times[np.isfinite(times)])
        excess, counts = median(above, 0), np.isfinite(above).sum(axis=0)
        is_slow = (excess >= line) & ((above >= line / 2).sum(axis=0) >= _MACHINE_STEPS_RATIO * counts)
        part[0, members[is_slow]] = excess[is_slow]
    return part


def _moving_parts(steps: KnownSteps) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what data and pauses add to each rank's steps, in seconds, and how long its data are beside the usual.

    Each array has the shape (steps, ranks); where passes are not known, nothing is added and the length is NaN.

    What a rank's forward and backward time share of a deviation from their medians is data, at the speed of the usual
    rank of its stage: what a slow machine makes of long sequences is the machine's. A rest of the forward time beyond
    the rank's own spread is a pause, because garbage collection holds up the forward pass only. What the ranks have
    alike in a step makes none of them late, and is neither.
    """
    passes = steps.forward, steps.backward
    usual = [np.maximum(median(times, 0), 1e-6) for times in passes]
    ratios = [times / middle - 1.0 for times, middle in zip(passes, usual, strict=True)]
    shared = np.where(ratios[0] * ratios[1] > 0, np.sign(ratios[0]) * np.minimum(*np.abs(ratios)), 0.0)
    shared = np.where(np.isfinite(ratios[0]), shared, np.nan)
    rest = (ratios[0] - ratios[1]) * usual[0]
    line = np.maximum(_PAUSE_SPREADS * spread(rest, 0), _PAUSE_RATIO * median(steps.compute, 0))
    is_pause = rest > line
    pauses = np.maximum(_beyond_peers(np.where(is_pause, rest, 0.0 * rest)), 0.0)
    data = _beyond_peers(shared * _of_usual_rank(usual[0] + usual[1], steps.roles))
    if not _varies_together(ratios[0], ratios[1], is_pause) or not _moves(data):
        data = np.zeros_like(data)
    return data, pauses if _moves(pauses) else np.zeros_like(pauses), 1.0 + shared


def _of_usual_rank(seconds: FloatArray, roles: npt.NDArray[np.int64]) -> FloatArray:
    """Return the median of each rank's stage, shape (ranks,).

    Args:
        seconds: of each rank, NaN = unknown.
        roles: stage of each rank.
    """
    stages, place = np.unique(roles, return_inverse=True)
    found: FloatArray = np.array([float(median(seconds[roles == stage], 0)) for stage in stages])[place]
    return found


def _beyond_peers(part: FloatArray) -> FloatArray:
    """Return a part without what the median rank has of it in the same step, shape (steps, ranks); 0 where unknown."""
    return without_gaps(part - median(part, 1)[:, None])


def _varies_together(forward: FloatArray, backward: FloatArray, is_pause: BoolArray) -> bool:
    """Return whether the ranks' forward and backward times vary from step to step, and do so together.

    Args:
        forward: deviations from each rank's median as shares of it, shape (steps, ranks), NaN = unknown.
        backward: the same.
        is_pause: steps in which a rank paused; they are left out.
    """
    known = np.isfinite(forward) & ~is_pause
    counts = known.sum(axis=0)
    one, other = (np.where(known, table, 0.0) for table in (forward, backward))
    one, other = (np.where(known, table - table.sum(axis=0) / np.maximum(counts, 1), 0.0) for table in (one, other))
    squares = (one**2).sum(axis=0), (other**2).sum(axis=0)
    scale = np.sqrt(squares[0] * squares[1])
    correlation = (one * other).sum(axis=0) / np.where(scale > 0.0, scale, 1.0)
    variation = np.sqrt(squares[0] / np.maximum(counts, 1))
    told = counts >= LEAST_STEP_COUNT // 2
    if not told.any():
        return False
    is_together = float(np.median(correlation[told])) >= _DATA_CORRELATION
    return is_together and float(np.median(variation[told])) >= _DATA_VARIATION_RATIO


def _moves(part: FloatArray) -> bool:
    """Return whether a part belongs to changing ranks: none has more than half of the steps that it makes longest."""
    longest = part.max(axis=1)
    hit = longest > 0.0
    if not hit.any():
        return False
    counts = np.bincount(part.argmax(axis=1)[hit], weights=longest[hit], minlength=part.shape[1])
    return float(counts.max()) <= _MOST_OF_ONE_RATIO * float(counts.sum())

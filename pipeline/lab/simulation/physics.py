"""The dynamics of a synchronous job, common to all faults and disturbances.

A rank's step is its own work (data, forward and backward, optimizer) and the transfers that all do together. No rank
passes a step before the slowest has arrived. So one slow rank lengthens everybody's step, leaves the others' self
time unchanged, and shows in *their* communication time. When a rank stops for good, its tensor-parallel
peers stall at once, its pipeline within microbatches, the other replicas at the step's end. They spin there until
their processes end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.simulation.levels import (
    CHECKPOINT,
    COMPUTE,
    DATA,
    EVALUATION,
    GONE,
    IDLE,
    OPTIMIZER,
    TRANSFER,
    WAIT,
)
from tocsin.pipeline.lab.simulation.plan import (
    Break,
    Corruption,
    DataWait,
    Happening,
    Plan,
    PlannedSlowdown,
    PlannedSlowLink,
    Stall,
    Stop,
)
from tocsin.pipeline.lab.simulation.shape import SimulatedShape

Floats = NDArray[np.float64]

STEP_CODES = (IDLE, DATA, COMPUTE, WAIT, TRANSFER, OPTIMIZER, WAIT, IDLE, GONE)
"""The phases of a rank within a span, in order; segments may be empty."""
_STALL, _DATA, _COMPUTE, _WAIT, _TRANSFER, _OPTIMIZER, _FINAL_WAIT, _IDLE, _GONE = range(len(STEP_CODES))
FAR_SECONDS = 1e12
"""End of a span that does not end."""
_PROBES = np.linspace(0.05, 0.95, 7)
_GRID = np.linspace(0.0, 1.0, 65)


@dataclass(frozen=True, slots=True)
class Span:
    """The activity of all ranks between two synchronisation points.

    Attributes:
        bounds: ends of the segments, seconds, shape (segments + 1, ranks).
        codes: phase of each segment.
        busy_ratio: share of the compute segment that is own work and not waiting, shape (ranks,).
    """

    bounds: Floats
    codes: tuple[int, ...]
    busy_ratio: Floats


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """The records of one finished step, by rank.

    Attributes:
        step: number of the step.
        end_seconds: true time of its end.
        duration_seconds: duration of the step, the same for all ranks.
        phase_seconds: shape (5, ranks): data, forward, backward, optimizer, communication.
        loss: loss of each rank, shape (ranks,).
        grad_norm: gradient norm of each rank, shape (ranks,).
    """

    step: int
    end_seconds: float
    duration_seconds: float
    phase_seconds: Floats
    loss: Floats
    grad_norm: Floats


def stretch_of(slow: PlannedSlowdown, start_seconds: float, work_seconds: float) -> float:
    """Return the factor by which a slowdown lengthens a step that begins at this time.

    The work is done at the speed of each moment: work before the onset takes its usual time, and a step that ends
    before the onset is unchanged.

    Args:
        slow: the slowdown.
        start_seconds: begin of the step.
        work_seconds: duration of the step without the slowdown.
    """
    edges = work_seconds * max(1.0, slow.factor) * _GRID
    if not slow.envelope.touches(start_seconds, start_seconds + float(edges[-1])):
        return 1.0
    strength = slow.envelope.at(start_seconds + (edges[1:] + edges[:-1]) / 2)
    done = np.cumsum(np.diff(edges) / (1.0 + (slow.factor - 1.0) * strength))
    return float(np.interp(work_seconds, np.concatenate([[0.0], done]), edges)) / work_seconds


class Timeline:
    """Simulates a plan step by step.

    Args:
        shape: the job.
        plan: what happens.
        seed: of this part.

    Attributes:
        plan: faults and disturbances.
        seed: seed of this part of the simulation.
    """

    def __init__(self, shape: SimulatedShape, plan: Plan, seed: np.random.SeedSequence) -> None:
        self._shape, self._pace = shape, shape.pace
        self._rng = np.random.Generator(np.random.SFC64(seed))
        self.now_seconds = -2.0 - 2.0 * shape.tick_seconds - float(self._rng.random()) * shape.pace.step_seconds
        self._step = int(self._rng.integers(1, 100_000))
        self._first_step = self._step if self._rng.random() < 0.5 else -(10**9)
        self._slowdowns: list[PlannedSlowdown] = plan.of(PlannedSlowdown)
        self._links: list[PlannedSlowLink] = plan.of(PlannedSlowLink)
        self._data_waits: list[DataWait] = plan.of(DataWait)
        self._stalls: list[Stall] = sorted(plan.of(Stall), key=lambda part: part.at_seconds)
        self._breaks: list[Break] = sorted(plan.of(Break), key=lambda part: part.at_seconds)
        self._stops: list[Stop] = sorted(plan.of(Stop), key=lambda part: part.at_seconds)
        self._corruptions: list[Corruption] = plan.of(Corruption)
        self._corrupt_step: dict[int, int] = {}
        stage = shape.stage_of_rank
        pipeline = shape.stage_load[stage] * shape.rank_load
        self._own_compute = shape.pace.compute_ratio * shape.pace.step_seconds * pipeline
        self.happenings: list[Happening] = []
        self.ended = False

    def advance(self, until_seconds: float) -> tuple[list[Span], list[SimulatedSteps]]:
        """Simulate on, and return the spans and finished steps that begin before this time."""
        spans: list[Span] = []
        rows: list[SimulatedSteps] = []
        while self.now_seconds < until_seconds and not self.ended:
            if self._breaks and self._breaks[0].at_seconds <= self.now_seconds:
                spans.append(self._break(self._breaks.pop(0)))
                continue
            span, row = self._one_step()
            spans.append(span)
            if row is not None:
                rows.append(row)
        return spans, rows

    # -- one step ------------------------------------------------------------------

    def _one_step(self) -> tuple[Span, SimulatedSteps | None]:
        """Simulate one step; return its span and its records, None for the records if the job stops in it."""
        start, ranks = self.now_seconds, self._shape.rank_count
        stall, data, compute, optimizer = self._own_seconds(start)
        own = stall + data + compute
        meet = float(own.max())
        link = self._link_factor(start, meet)
        transfer = self._pace.transfer_ratio * self._pace.step_seconds * link
        transfer *= max(0.5, 1.0 + 0.05 * float(self._rng.standard_normal()))
        total = meet + transfer + float(optimizer.max())
        wait = meet - own
        spread = self._pace.interleave_ratio * wait
        bounds = np.empty((len(STEP_CODES) + 1, ranks))
        bounds[0] = start
        bounds[1] = start + stall
        bounds[2] = bounds[1] + data
        bounds[3] = bounds[2] + compute + spread
        bounds[4] = start + meet
        bounds[5] = start + meet + transfer
        bounds[6] = bounds[5] + optimizer
        bounds[7:] = start + total
        busy = compute / np.maximum(compute + spread, 1e-9)
        if self._stops and self._stops[0].at_seconds < start + total:
            return self._last_span(self._stops[0], bounds, busy), None
        self.now_seconds = start + total
        self._step += 1
        forward = self._pace.forward_ratio * compute
        communication = total - own - optimizer
        phases = np.stack([data + stall, forward, compute - forward, optimizer, communication])
        loss, grad_norm = self._numbers(start, total)
        return Span(bounds, STEP_CODES, busy), SimulatedSteps(self._step, start + total, total, phases, loss, grad_norm)

    def _own_seconds(self, start: float) -> tuple[Floats, Floats, Floats, Floats]:
        """Return stall, data, compute and optimizer time of each rank in the step that starts now, seconds."""
        pace, rng, ranks = self._pace, self._rng, self._shape.rank_count
        jitter = 1.0 + pace.jitter_ratio * rng.standard_normal(ranks)
        compute = self._own_compute * np.maximum(jitter, 0.5) * self._skew()
        data = pace.data_ratio * pace.step_seconds * rng.gamma(4.0, 0.25, ranks)
        optimizer = np.full(ranks, pace.optimizer_ratio * pace.step_seconds)
        if self._step - self._first_step < pace.warmup_steps:
            compute = compute * 2.0
        expected = pace.step_seconds
        for wait in self._data_waits:
            strength = self._strength(wait, start, expected)
            if strength > 0.0:
                index = np.arange(ranks) if not wait.ranks else np.array(wait.ranks)
                scatter = np.maximum(0.0, 1.0 + wait.spread_ratio * rng.standard_normal(len(index)))
                data[index] += strength * wait.wait_seconds * scatter
        for slow in self._slowdowns:
            factor = stretch_of(slow, start, expected)
            if factor != 1.0:
                self._stretch(slow, factor, (data, compute, optimizer))
        return self._stalled(start, expected), data, compute, optimizer

    @staticmethod
    def _strength(part: DataWait | PlannedSlowLink, start: float, expected: float) -> float:
        """Return an effect's mean strength over a step, so that an onset within the step counts for its share."""
        if not part.envelope.touches(start, start + expected):
            return 0.0
        return float(part.envelope.at(start + expected * _PROBES).mean())

    @staticmethod
    def _stretch(slow: PlannedSlowdown, factor: float, phases: tuple[Floats, Floats, Floats]) -> None:
        """Multiply the affected phases of the affected ranks by a factor, in place."""
        index = np.array(slow.ranks)
        for name, values in zip(("data", "compute", "optimizer"), phases, strict=True):
            if name in slow.phases:
                values[index] *= factor

    def _stalled(self, start: float, expected: float) -> Floats:
        """Return the stall time of each rank in a step, seconds."""
        stall = np.zeros(self._shape.rank_count)
        while self._stalls and self._stalls[0].at_seconds < start + expected:
            part = self._stalls.pop(0)
            stall[np.array(part.ranks)] += part.stall_seconds
        return stall

    def _skew(self) -> Floats | float:
        """Return each rank's work relative to the mean, by the content of its batch.

        Equal for all ranks of a replica.
        """
        pace, shape = self._pace, self._shape
        if pace.skew_ratio <= 0.0:
            return 1.0
        if pace.skew_family == "lognormal":
            load = self._rng.lognormal(0.0, pace.skew_ratio, shape.dp)
        elif pace.skew_family == "pareto":
            load = 1.0 + pace.skew_ratio * 0.4 * np.minimum(self._rng.pareto(2.5, shape.dp), 8.0)
        else:
            load = 1.0 + 2.0 * pace.skew_ratio * (self._rng.random(shape.dp) < 0.15)
        replica = (np.arange(shape.rank_count) // shape.tp) % shape.dp
        return np.asarray(load[replica], dtype=np.float64)

    def _link_factor(self, start: float, expected: float) -> float:
        """Return the factor by which transfers take longer."""
        factor = 1.0
        for link in self._links:
            strength = self._strength(link, start, expected)
            factor = max(factor, 1.0 + (link.factor - 1.0) * strength)
        return factor

    def _numbers(self, start: float, total: float) -> tuple[Floats, Floats]:
        """Return loss and gradient norm of each rank."""
        ranks = self._shape.rank_count
        level = 1.7 + 6.0 / (1.0 + self._step / 400.0)
        loss = level + 0.03 * self._rng.standard_normal(ranks)
        norm = np.full(ranks, 0.4 + 0.05 * abs(float(self._rng.standard_normal())))
        for index, part in enumerate(self._corruptions):
            if part.at_seconds >= start + total:
                continue
            first = self._corrupt_step.setdefault(index, self._step)
            loss[part.rank] = norm[part.rank] = part.value
            if self._step >= first + part.lag_steps:
                loss[:] = norm[:] = part.value
        return loss, norm

    # -- breaks and the end ------------------------------------------------------------

    def _break(self, part: Break) -> Span:
        """Simulate a checkpoint or an evaluation and return its span."""
        start, shape = self.now_seconds, self._shape
        own = part.break_seconds * (1.0 + 0.03 * self._rng.standard_normal(shape.rank_count))
        if part.writers:
            own[np.array(part.writers)] = part.writer_seconds
        own = np.maximum(own, 0.05)
        if self._stops:  # who stops in a break is missed when the next step begins: at once
            own = np.minimum(own, max(self._stops[0].at_seconds - start, 0.01))
        end = start + float(own.max())
        code = CHECKPOINT if part.phase == "checkpoint" else EVALUATION
        bounds = np.stack([np.full(shape.rank_count, start), start + own, np.full(shape.rank_count, end)])
        if part.announced:
            for rank in range(shape.rank_count):
                host = rank // shape.gpus_per_host_count
                for at, edge in ((start, "begin"), (end, "end")):
                    payload = {"phase": part.phase, "edge": edge}
                    self.happenings.append(Happening(at, host, rank, "job", "phase", "info", payload))
        self.now_seconds = end
        return Span(bounds, (code, WAIT), np.ones(shape.rank_count))

    def _last_span(self, stop: Stop, bounds: Floats, busy: Floats) -> Span:
        """Return the job's last span: stop, stall of the others, and exit of each rank."""
        self.ended = True
        shape, rng = self._shape, self._rng
        ranks = np.arange(shape.rank_count)
        culprits = np.isin(ranks, stop.ranks)
        halt = np.where(culprits, stop.at_seconds, self._halt_seconds(stop, bounds))
        bounds = np.minimum(bounds, np.maximum(halt, bounds[0]))
        leave = stop.at_seconds + stop.peers_lag_seconds + stop.peers_spread_seconds * rng.random(len(ranks))
        same_host = np.isin(ranks // shape.gpus_per_host_count, np.array(stop.ranks) // shape.gpus_per_host_count)
        leave = np.where(same_host, np.minimum(leave, stop.at_seconds + stop.host_lag_seconds), leave)
        leave = np.maximum(leave, bounds[6])
        leave[culprits] = stop.at_seconds if stop.manner == "exit" else leave[culprits]
        wait_end = np.where(culprits & (stop.manner == "idle"), bounds[6], leave)
        bounds[7] = np.maximum(wait_end, bounds[6])
        bounds[8] = np.maximum(leave, bounds[7])
        bounds[9] = FAR_SECONDS
        self.now_seconds = FAR_SECONDS
        return Span(np.minimum(bounds, FAR_SECONDS), STEP_CODES, busy)

    def _halt_seconds(self, stop: Stop, bounds: Floats) -> Floats:
        """Return when each rank reaches the point where it cannot continue without the stopped ranks."""
        shape = self._shape
        ranks = np.arange(shape.rank_count)
        first = stop.ranks[0]
        replica = (ranks // shape.tp) % shape.dp == (first // shape.tp) % shape.dp
        stage = shape.stage_of_rank == shape.stage_of_rank[first]
        remaining = np.maximum(bounds[4] - stop.at_seconds, 0.0)
        microbatch = remaining * 0.1 * np.abs(shape.stage_of_rank - shape.stage_of_rank[first])
        loose = remaining * (1.0 - self._pace.interleave_ratio)
        lag = np.where(replica & stage, 0.0, np.where(replica, np.minimum(microbatch, remaining), loose))
        return np.asarray(stop.at_seconds + lag, dtype=np.float64)

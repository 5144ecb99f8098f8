"""Simulated cases: a random job and what happens to it, as a recording or as a stream of slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tocsin.pipeline.lab.simulation.benign_disturbances import BENIGN_DISTURBANCES, draw_benign_disturbances
from tocsin.pipeline.lab.simulation.draw import Draw, Half
from tocsin.pipeline.lab.simulation.faults import FAULTS, SHARES, draw_fault
from tocsin.pipeline.lab.simulation.levels import USER_METRIC
from tocsin.pipeline.lab.simulation.physics import Span, Timeline
from tocsin.pipeline.lab.simulation.plan import (
    Happening,
    Plan,
    Stop,
    Truth,
    merged,
)
from tocsin.pipeline.lab.simulation.rows import (
    EventTable,
    MetricRows,
    StepTable,
    concatenated,
    groups,
    topology,
)
from tocsin.pipeline.lab.simulation.shape import SimulatedShape, draw_shape
from tocsin.pipeline.lab.simulation.telemetry import Matrices, Telemetry
from tocsin.pipeline.recording.tables import Columns, Manifest, Recording
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import GPU_METRICS
from tocsin.schemas.records import NS_PER_SECOND

HEALTHY = "healthy"
KINDS = (HEALTHY, *FAULTS, *BENIGN_DISTURBANCES)
"""Kinds of a case: no fault; a named fault; or no fault and a named disturbance for certain."""

_BLOCK_CELLS = 400_000
"""Samples generated at once: many slices of a small job, one of a large one."""
_AHEAD_SECONDS = 1.0
"""Lead of the simulated steps over the samples, because hosts' clocks differ by less."""


@dataclass(frozen=True, slots=True)
class Case:
    """One simulated case; iterating it twice gives the same bytes.

    Attributes:
        seed: seed from which it was drawn.
        half: half of the parameter ranges.
        kind: fault kind, or ``healthy``.
        shape: the job.
        plan: faults and disturbances.
        slice_count: its length in slices.
    """

    seed: int
    half: Half
    kind: str
    shape: SimulatedShape
    plan: Plan
    slice_count: int

    @property
    def end_ns(self) -> int:
        """First instant after the case, Unix nanoseconds."""
        return self.shape.start_ns + self.slice_count * self.shape.slice_ns

    def truth(self) -> Mapping[str, Any]:
        """Return the content of ``truth.json``."""
        return {"faults": [self._fault(truth) for truth in self.plan.truths]}

    def _fault(self, truth: Truth) -> Mapping[str, Any]:
        """Return one fault as an object of ``truth.json``."""
        start = self.shape.start_ns
        end_ns = self.end_ns
        if not np.isinf(truth.end_seconds):
            end_ns = min(end_ns, start + round(truth.end_seconds * NS_PER_SECOND))
        return {
            "kind": truth.kind,
            "cause": truth.cause,
            "suspects": [{"kind": "host", "name": self.shape.host_names[truth.host_index]}],
            "onset_ns": start + round(truth.onset_seconds * NS_PER_SECOND),
            "end_ns": end_ns,
        }

    def manifest(self) -> Manifest:
        """Return the manifest of the recording."""
        notes = {
            "simulated": {
                "seed": self.seed,
                "ranges": self.half,
                "kind": self.kind,
                "innocents": list(self.plan.benign_disturbances),
            }
        }
        shape = self.shape
        return Manifest(shape.job_id, 0, shape.start_ns, self.end_ns, shape.tick_seconds, notes)

    def user_metrics(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the content of ``metrics.json``: the user metric, if the recording has it."""
        if USER_METRIC.name not in self.shape.metrics:
            return {}
        metric = USER_METRIC
        description = {
            "unit": "seconds",
            "min": metric.low,
            "max": metric.high,
            "bad": metric.bad,
            "scope": metric.scope,
        }
        return {metric.name: description}

    def chunks(self) -> Iterator[Recording]:
        """Yield the recording slice by slice; topology and groups are in the first one only.

        Memory depends on the job's size and not on the case's length.
        """
        return _CaseRun(self).chunks()

    def parts(self) -> Iterator[CasePart]:
        """Yield the slices with metrics as matrices instead of rows, for users who need only means."""
        return _CaseRun(self).parts()

    def recording(self) -> Recording:
        """Return the whole recording: all chunks joined."""
        tables: dict[str, list[Columns]] = {}
        for chunk in self.chunks():
            for name, columns in chunk.tables.items():
                tables.setdefault(name, []).append(columns)
        joined = {name: concatenated(parts) for name, parts in tables.items()}
        return Recording(self.manifest(), joined, self.user_metrics(), self.truth())


@dataclass(frozen=True, slots=True)
class CasePart:
    """One metric slice of a case, with metrics as matrices.

    Attributes:
        start_ns: begin of the slice.
        matrices: samples of this slice and its neighbours.
        first_index: index of the slice's first tick in the matrices.
        tables: all tables of the slice except ``host_metrics``.
    """

    start_ns: int
    matrices: Matrices
    first_index: int
    tables: Mapping[str, Columns]


class _CaseRun:
    """One iteration over a case."""

    def __init__(self, case: Case) -> None:
        self._case, shape = case, case.shape
        physics, telemetry = np.random.SeedSequence([case.seed, 2]).spawn(2)
        self._timeline = Timeline(shape, case.plan, physics)
        self._telemetry = Telemetry(shape, case.plan, telemetry)
        self._metric_rows = MetricRows(shape)
        self._steps = StepTable(shape)
        self._events = EventTable(shape, case.plan.of(Happening))
        self._spans: list[Span] = []

    def chunks(self) -> Iterator[Recording]:
        """Yield the recording slice by slice."""
        case, shape = self._case, self._case.shape
        for part in self.parts():
            tables = dict(part.tables)
            tables["host_metrics"] = self._metric_rows.table(part.matrices, part.first_index, shape.slice_ticks)
            end_ns = part.start_ns + shape.slice_ns
            manifest = Manifest(shape.job_id, 0, part.start_ns, end_ns, shape.tick_seconds)
            yield Recording(manifest, tables, case.user_metrics(), case.truth())

    def parts(self) -> Iterator[CasePart]:
        """Yield the slices with metrics as matrices."""
        case, shape = self._case, self._case.shape
        ticks = shape.slice_ticks
        at_once = max(1, min(24, _BLOCK_CELLS // (shape.rank_count * len(GPU_METRICS) * ticks)))
        for first in range(0, case.slice_count, at_once):
            count = min(at_once, case.slice_count - first)
            yield from self._block(first, count)

    def _block(self, first: int, count: int) -> Iterator[CasePart]:
        """Yield ``count`` slices from the ``first`` on, generated together."""
        shape = self._case.shape
        ticks, tick = shape.slice_ticks, shape.tick_seconds
        end_seconds = (first + count) * ticks * tick
        spans, steps = self._timeline.advance(end_seconds + _AHEAD_SECONDS)
        self._spans += spans
        matrices = self._telemetry.sample(first * ticks, count * ticks, self._spans)
        seen = end_seconds - 2.0 * tick - _AHEAD_SECONDS
        self._spans = [span for span in self._spans if float(span.bounds[-1].max()) > seen]
        self._steps.add(steps)
        self._events.add(self._timeline.happenings)
        self._timeline.happenings = []
        for index in range(count):
            start_ns = shape.start_ns + (first + index) * shape.slice_ns
            tables: dict[str, Columns] = {}
            if first + index == 0 and shape.has_topology:
                tables["topology"] = topology(shape)
                tables["groups"] = groups(shape)
            if shape.step_detail != "none":
                tables["steps"] = self._steps.take(start_ns, start_ns + shape.slice_ns)
            tables["events"] = self._events.take(start_ns, start_ns + shape.slice_ns)
            yield CasePart(start_ns, matrices, index * ticks, tables)


def case_seed(seed: int, index: int) -> int:
    """Return the seed of the case with this index in a set; sets of different seeds share no case."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def draw_case(
    seed: int,
    hosts: int | tuple[int, int] = (4, 64),
    kind: str | None = None,
    ranges: Half = "fit",
    *,
    duration_seconds: float | None = None,
) -> Case:
    """Draw one random case.

    Args:
        seed: the same seed and arguments give the same bytes.
        hosts: number of machines, or the range from which it is drawn.
        kind: one of ``KINDS``; None: a random fault, by ``SHARES``.
        ranges: half of the parameter ranges.
        duration_seconds: length, rounded up to whole slices; None: random, 10 to 25 minutes.

    Raises:
        ConfigError: the kind is unknown, or there are fewer than two hosts.
    """
    low, high = _checked(hosts, kind, duration_seconds)
    draw = Draw(np.random.SeedSequence([seed, 1, ranges == "held"]), ranges)
    fault = draw.weighted(SHARES) if kind is None else kind
    host_count = _host_count(draw, low, high)
    shape = draw_shape(draw, host_count, fault)
    wanted = draw.uniform(600.0, 1500.0) if duration_seconds is None else duration_seconds
    slice_seconds = shape.slice_ns / NS_PER_SECOND
    slice_count = max(1, int(np.ceil(wanted / slice_seconds - 1e-9)))
    length = slice_count * slice_seconds
    plans = [draw_benign_disturbances(draw, shape, length, must=fault if fault in BENIGN_DISTURBANCES else None)]
    if fault in FAULTS:
        plans.append(draw_fault(draw, shape, fault, length))
    plan = merged(plans)
    if duration_seconds is None:  # nobody records a job for long after it has ended
        slice_count = min(slice_count, int(np.ceil(_over_seconds(draw, plan) / slice_seconds)))
    return Case(seed, ranges, fault if fault in FAULTS else HEALTHY, shape, plan, slice_count)


def _checked(hosts: int | tuple[int, int], kind: str | None, duration_seconds: float | None) -> tuple[int, int]:
    """Return the range of hosts after checking the arguments of ``draw_case``."""
    if kind is not None and kind not in KINDS:
        raise ConfigError("kind", kind, f"one of {', '.join(KINDS)}")
    low, high = (hosts, hosts) if isinstance(hosts, int) else hosts
    if low < 2 or high < low:
        raise ConfigError("hosts", hosts, "a number from 2 up, or a range of such numbers")
    if duration_seconds is not None and not 0.0 < duration_seconds < float("inf"):
        raise ConfigError("duration_seconds", duration_seconds, "above 0 and finite")
    return low, high


def _host_count(draw: Draw, low: int, high: int) -> int:
    """Draw the number of machines: small jobs as often as large ones, mostly a multiple of four."""
    count = round(draw.log_uniform(low, high))
    whole = count // 4 * 4
    return whole if draw.chance(0.6) and whole >= low else count


def _over_seconds(draw: Draw, plan: Plan) -> float:
    """Draw when the recorder notices the job's end, seconds; at least 1e9 if the job does not end."""
    ends: list[float] = [stop.at_seconds + stop.peers_lag_seconds + stop.peers_spread_seconds for stop in plan.of(Stop)]
    return min([1e9, *ends]) + draw.uniform(5.0, 150.0)

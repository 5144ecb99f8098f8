"""Why the traced steps of a recording are slow, in windows of steps, as a replayed engine is told it.

The trace is cut into windows of twelve steps, and each is simulated as ``tocsin whatif`` does with a whole trace.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from tocsin.models.known_steps import LEAST_STEP_COUNT
from tocsin.models.step_causes import COMMUNICATION, DATA, JITTER, MACHINE, STAGE, StepCauses
from tocsin.models.whatif.causes import SlowdownCause, reasons_of
from tocsin.models.whatif.scenarios import model_of, slowdowns
from tocsin.models.whatif.trace import OpTrace
from tocsin.pipeline.detect.whatif.window import CauseWindow
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_sizes
from tocsin.pipeline.recording.manifest import is_there
from tocsin.pipeline.recording.op_trace import trace_of
from tocsin.pipeline.recording.ops import OPS, TABLE, read_ops, step_clock
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.schemas.errors import FieldError, RecordingError

_LOG = logging.getLogger("tocsin.replay")
_WORDS = {
    STAGE: SlowdownCause.STAGE,
    DATA: SlowdownCause.DATA,
    JITTER: SlowdownCause.JITTER,
    COMMUNICATION: SlowdownCause.COMMUNICATION,
    MACHINE: SlowdownCause.MACHINE,
}


def read_with_traces(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Recording:
    """Read a recording, with its traced operations if it has some that can be read.

    Operations are an extra of a recording: where their file does not match the format, the rest is judged without them,
    and a note says so.

    Args:
        folder: the recording.
        limits: limits on the operations and on the rest.

    Raises:
        RecordingError: as ``read_recording``.
    """
    recording, path = read_recording(folder, limits), folder / f"{TABLE}.parquet"
    if not is_there(path):
        return recording
    try:
        check_sizes([(path, OPS)], limits, 0)
        columns = read_ops(path)
        trace_of(columns, path.name)
    except RecordingError as error:
        return replace(recording, notes=(*recording.notes, f"{error}: traced operations are left out"))
    return replace(recording, tables={**recording.tables, TABLE: columns})


def with_traces(config: EngineConfig, recording: Recording) -> EngineConfig:
    """Return the settings of an engine that is told what the recording's traced operations show.

    Args:
        config: settings.
        recording: a recording; without operations the settings stay as they are.

    Raises:
        RecordingError: a start of an operation is no number.
    """
    traced = traced_causes(recording)
    if not traced:
        return config
    by_steps = config.job.by_steps
    told = replace(by_steps, whatif=replace(by_steps.whatif, traced=traced))
    return replace(config, job=replace(config.job, by_steps=told))


def traced_causes(recording: Recording) -> tuple[CauseWindow, ...]:
    """Return why the traced steps are slow, in windows of twelve steps in order of time.

    A window that is no trace of one job (too few whole steps, transfers that do not fit) is left out and logged.

    Args:
        recording: a recording from ``read_with_traces``; without operations there are no windows.

    Raises:
        RecordingError: a start of an operation is no number.
    """
    if TABLE not in recording.tables or not len(recording.tables[TABLE]["step"]):
        return ()
    trace, clock = trace_of(recording.tables[TABLE], f"{TABLE}.parquet"), step_clock(recording)
    steps = np.unique(trace.step)
    found: list[CauseWindow] = []
    for begin, end in pairwise(range(0, steps.size + 1, LEAST_STEP_COUNT)):
        first, last = int(steps[begin]), int(steps[end - 1])
        try:
            causes = _causes_of(_between(trace, first, last))
        except FieldError as error:
            _LOG.warning("traced steps are left out", extra={"error": str(error), "first_step": first})
            continue
        found.append(CauseWindow(clock(first - 1), clock(first), clock(last), causes))
    return tuple(found)


def _between(trace: OpTrace, first: int, last: int) -> OpTrace:
    """Return the operations of the steps from ``first`` to ``last``."""
    rows = (trace.step >= first) & (trace.step <= last)
    columns = {field.name: getattr(trace, field.name) for field in fields(trace)}
    return OpTrace(**{name: value[rows] if name != "words" else value for name, value in columns.items()})


def _causes_of(trace: OpTrace) -> StepCauses:
    """Return why the steps of a trace are slow; raise ``FieldError`` if it is no trace of one job."""
    model = model_of(trace)
    found = slowdowns(model)
    reasons = reasons_of(model, found)
    stage, ratio = reasons.long_stage
    costs = {word: max(0.0, float(reasons.costs[cause])) for word, cause in _WORDS.items()}
    is_long = costs[STAGE] > 0.0
    return StepCauses(
        slowdown_ratio=max(1.0, float(found.slowdown_ratio)),
        step_seconds=float(found.real_seconds.mean()),
        costs=costs,
        long_stage=stage if is_long else -1,
        stage_ratio=ratio if is_long else 0.0,
    )

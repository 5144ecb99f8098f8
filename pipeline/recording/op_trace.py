"""Read a trace of operations and its description, in the form of the public what-if traces.

The trace is a Parquet file with the columns of ``ops.parquet``, the description a YAML file with the job's sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tocsin.models.whatif import optypes
from tocsin.models.whatif.trace import OpTrace, TemplateOp, TraceArrays
from tocsin.pipeline.core.marked_file import Schema, check_schema, read_marked
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_sizes
from tocsin.pipeline.recording.ops import OPS, read_ops
from tocsin.pipeline.recording.tables import Columns, Text
from tocsin.schemas.errors import ConfigError, ManySettingsError, RecordingError

_SIZES: Final = ("dp_size", "dsp_size", "pp_size", "tp_size", "vpp_size", "world_size")
_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["dp_size", "pp_size"],
    "properties": {
        "trial_name": {"type": ["string", "integer", "number"]},
        "run_id": {"type": "integer", "minimum": 0},
        **{name: {"type": "integer", "minimum": 1} for name in (*_SIZES, "num_microbatches")},
    },
}


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """What the description of a trace says of the job.

    Attributes:
        name: the job's name, "" if not given.
        dp_size: data-parallel ranks.
        dsp_size: ranks that share one sequence.
        pp_size: pipeline stages.
        tp_size: tensor-parallel ranks.
        vpp_size: model chunks of each stage.
        world_size: ranks in all: the product of the first four sizes.
        microbatch_count: microbatches of a step on each data-parallel rank, None if not given.
        places: size -> file, line and key, of the sizes that the description gives.
    """

    name: str
    dp_size: int
    dsp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    world_size: int
    microbatch_count: int | None = None
    places: Mapping[str, str] = field(default_factory=dict)


def read_trace_meta(path: Path) -> TraceMeta:
    """Read the description of a trace.

    Raises:
        ConfigError: names file, line and key of what is wrong.
    """
    file = read_marked(path, "description of the trace")
    check_schema(file, _SCHEMA)
    assert isinstance(file.value, dict)  # noqa: S101  # by its schema
    sizes = {name: int(file.value.get(name, 1)) for name in _SIZES}
    product = sizes["dp_size"] * sizes["dsp_size"] * sizes["pp_size"] * sizes["tp_size"]
    if "world_size" not in file.value:
        sizes["world_size"] = product
    if sizes["world_size"] != product:
        must = f"dp_size x dsp_size x pp_size x tp_size ({product})"
        raise ConfigError(file.where(("world_size",)), sizes["world_size"], must)
    places = {name: file.where((name,)) for name in (*_SIZES, "num_microbatches") if name in file.value}
    microbatches = file.value.get("num_microbatches")
    return TraceMeta(str(file.value.get("trial_name", "")), **sizes, microbatch_count=microbatches, places=places)


def check_fits(meta: TraceMeta, arrays: TraceArrays, name: str) -> tuple[str, ...]:
    """Check that a trace is one of the job that the description tells of.

    Sizes that the description does not give are not checked. A trace holds all stages, chunks and microbatches. It may
    hold a part of the data-parallel ranks, if the numbers of its ranks show that the job has more.

    Args:
        meta: the description.
        arrays: the trace.
        name: the trace's file name.

    Returns:
        What must be known beside the figures, a sentence each.

    Raises:
        ConfigError: names the description's file, line and key, the value, and what the trace says.
    """
    errors = [
        ConfigError(meta.places[key], value, f"{must}, by {name}")
        for key, value, must in _contradictions(meta, arrays)
        if key in meta.places
    ]
    if len(errors) > 1:
        raise ManySettingsError(errors)
    if errors:
        raise errors[0]
    traced = arrays.dp_ranks.size
    if traced == meta.dp_size:
        return ()
    return (f"{name} holds {traced} of {meta.dp_size} data-parallel ranks: how slow the others are is not known",)


def _contradictions(meta: TraceMeta, arrays: TraceArrays) -> Iterator[tuple[str, int, str]]:
    """Yield key, stated value and what it must be, for each size that the trace contradicts."""
    traced, highest, largest = arrays.dp_ranks.size, int(arrays.dp_ranks.max()), int(arrays.ranks.max())
    if highest >= meta.dp_size:
        yield "dp_size", meta.dp_size, f"at least {highest + 1} (there is a data-parallel rank {highest})"
    elif traced == highest + 1 < meta.dp_size and largest < traced * meta.dsp_size * meta.pp_size * meta.tp_size:
        yield "dp_size", meta.dp_size, f"{traced}, the number of data-parallel ranks"
    if arrays.stage_count != meta.pp_size:
        yield "pp_size", meta.pp_size, f"{arrays.stage_count}, the number of stages"
    forward = [op for op in arrays.ops if op.optype == optypes.FORWARD]
    chunks = 1 + max(_chunk(op, arrays.stage_count) for op in forward)
    if chunks != meta.vpp_size:
        yield "vpp_size", meta.vpp_size, f"{chunks}, the number of model chunks of a stage"
    first = [op for op in forward if op.stage == 0]
    microbatches = len({op.mb_id for op in first}) if min(op.mb_id for op in first) >= 0 else len(first) // chunks
    if meta.microbatch_count not in (None, microbatches):
        yield "num_microbatches", meta.microbatch_count, f"{microbatches}, the number of microbatches of a step"
    if largest >= meta.world_size:
        yield "world_size", meta.world_size, f"more than {largest}, the largest rank"


def _chunk(op: TemplateOp, stage_count: int) -> int:
    """Return the number of a computation's model chunk within its stage."""
    return op.mc if op.mc >= 0 else max(op.gmc, 0) // stage_count


def read_op_trace(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> OpTrace:
    """Read a trace of operations.

    Columns that are missing are made up for: ``seq_id`` by the order of the starts, ``mc`` by one chunk, ``gmc`` from
    chunk and stage.

    Args:
        path: the Parquet file.
        limits: how much of it is read.

    Raises:
        RecordingError: it does not match the format; names file, column and row.
    """
    if not path.is_file():
        raise RecordingError(str(path), "there is no such file")
    check_sizes([(path, OPS)], limits, 0)
    return trace_of(read_ops(path), path.name)


def trace_of(columns: Columns, name: str) -> OpTrace:
    """Return the operations of a table, with what is missing made up for as in ``read_op_trace``.

    Args:
        columns: the table, from ``read_ops``.
        name: its file's name, for errors.

    Raises:
        RecordingError: a start is no number.
    """
    optype = columns["optype"]
    assert isinstance(optype, Text)  # noqa: S101  # by its specification
    dp_rank, stage, rank, step = (_integers(columns, name) for name in ("dp_rank", "stage", "rank", "step"))
    codes = optype.codes.astype(np.int64)
    start, duration = (np.asarray(columns[name], np.float64) for name in ("start_ts", "duration"))
    bad = np.flatnonzero(~np.isfinite(start))
    if bad.size:
        row = int(bad[0])
        raise RecordingError(name, f"{start[row]}: must be a number", column="start_ts", row=row)
    sequence = _integers(columns, "seq_id") if "seq_id" in columns else _sequence(dp_rank, stage, step, codes, start)
    mc, mb_id, gmc = (
        _integers(columns, name) if name in columns else np.full(step.size, -1) for name in ("mc", "mb_id", "gmc")
    )
    return OpTrace(
        dp_rank, stage, rank, step, codes, optype.words, start, duration, sequence, mc=mc, mb_id=mb_id, gmc=gmc
    )


def _integers(columns: Columns, name: str) -> npt.NDArray[np.int64]:
    """Return an integer column."""
    return np.asarray(columns[name], np.int64)


def _sequence(
    dp_rank: npt.NDArray[np.int64],
    stage: npt.NDArray[np.int64],
    step: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int64],
    start: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """Return the order of each operation among those of its type on its worker in its step, by start."""
    order = np.lexsort((start, codes, stage, dp_rank, step))
    keys = np.stack([codes, stage, dp_rank, step])[:, order]
    is_first = np.concatenate([[True], (np.diff(keys, axis=1) != 0).any(axis=0)])
    at = np.arange(order.size)
    begin = np.maximum.accumulate(np.where(is_first, at, 0))
    found = np.empty(order.size, np.int64)
    found[order] = at - begin
    return found

"""Read a trace of operations and its description, in the form of the public what-if traces.

The trace is a Parquet file with the columns of ``ops.parquet``, the description a YAML file with the job's sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tocsin.models.whatif.trace import OpTrace
from tocsin.pipeline.core.marked_file import Schema, check_schema, read_marked
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_sizes
from tocsin.pipeline.recording.ops import OPS, read_ops
from tocsin.pipeline.recording.tables import Columns, Text
from tocsin.schemas.errors import ConfigError, RecordingError

_SIZES: Final = ("dp_size", "dsp_size", "pp_size", "tp_size", "vpp_size", "world_size")
_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["dp_size", "pp_size"],
    "properties": {
        "trial_name": {"type": ["string", "integer", "number"]},
        "run_id": {"type": "integer", "minimum": 0},
        **{name: {"type": "integer", "minimum": 1} for name in _SIZES},
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
    """

    name: str
    dp_size: int
    dsp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    world_size: int


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
    return TraceMeta(str(file.value.get("trial_name", "")), **sizes)


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

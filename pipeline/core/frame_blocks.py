"""Frame blocks: the metric frames of many hosts reduced to arrays of means, the input of the metric operators.

All frames of one job, metric table, slice, **second of their timestamps** and sampling period form one block. The Flink
job builds blocks where a window of frames arrives (``flink/functions.py``); the embedded engine builds them at the end
of the slice. A block takes a fifth of its frames' bytes. In Flink a large job's metric groups are reduced in parallel.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import fits
from tocsin.models.metric_means import Columns, MetricMeans, join_means, means_of
from tocsin.schemas.errors import DecodeError
from tocsin.schemas.metric_groups import GROUP_OF_TABLE
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND, Frame, JobKey, Slice, metric_slice_ns

MAGIC: Final = b"TCFB\x01"
_LENGTH: Final = struct.Struct("<I")
_ARRAYS: Final = ("seen_ns", "tick_ns", "sample_counts", "host_values", "host_counts", "gpu_values", "gpu_counts")

BUILTIN_TABLES: Final[Mapping[int, MetricTable]] = {
    BUILTIN_TABLE.table_id: BUILTIN_TABLE,
    **{table_id: group.table for table_id, group in GROUP_OF_TABLE.items()},
}
"""Metric tables known without an announcement, by table id."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameBlock:
    """Means of the frames of one job, metric table, slice and second.

    Attributes:
        job: the job the frames belong to.
        table_id: id of the metric table that names the columns.
        start_ns: start of the slice.
        end_ns: end of the slice.
        ts_ns: newest timestamp among the frames.
        means: the means of the frames' values, per host and per GPU.
    """

    job: JobKey
    table_id: int
    start_ns: int
    end_ns: int
    ts_ns: int
    means: MetricMeans

    @property
    def host(self) -> str:
        """Name of the block's first host, used only to sort records."""
        return self.means.hosts[0]


@dataclass(frozen=True, slots=True)
class MetricSlice(Slice):
    """A slice of metric records; may hold frame blocks that the runtime has already built.

    Attributes:
        blocks: frame blocks sorted by (ts_ns, first host, bytes), without exact duplicates.
    """

    blocks: tuple[FrameBlock, ...] = ()


def blocks_of(
    frames: Iterable[Frame], tables: Mapping[int, MetricTable], slice_ns: int = METRIC_SLICE_NS
) -> list[FrameBlock]:
    """Reduce frames to frame blocks, sorted by job, table, slice and second.

    Frames whose metric table is unknown, or whose size does not match their table, are skipped.

    Args:
        frames: frames of any jobs in any order, without duplicates.
        tables: the known metric tables, by id.
        slice_ns: minimum length of a metric slice.
    """
    groups: dict[tuple[JobKey, int, int, int, int, int], list[Frame]] = {}
    for frame in frames:
        table = tables.get(frame.table_id)
        if table is None or not fits(frame, table):
            continue
        length = metric_slice_ns(frame.tick_ns, slice_ns)
        end_ns = (frame.ts_ns // length + 1) * length
        # One grid for all frames of a block: one that samples each millisecond must not make it for all.
        key = (frame.job, frame.table_id, end_ns - length, end_ns, frame.ts_ns // NS_PER_SECOND, frame.tick_ns)
        groups.setdefault(key, []).append(frame)
    found = []
    for (job, table_id, start_ns, end_ns, *_), members in sorted(groups.items(), key=lambda item: item[0]):
        members.sort(key=lambda frame: (frame.ts_ns, frame.host, frame.gpu_matrix, frame.host_matrix))
        means = means_of(members, tables[table_id], start_ns, end_ns)
        found.append(FrameBlock(job, table_id, start_ns, end_ns, int(means.seen_ns.max()), means))
    return found


def slice_blocks(data: Slice, tables: Mapping[int, MetricTable]) -> list[FrameBlock]:
    """Return all frame blocks of a metric slice: those it already holds, then those built from its frames."""
    frames = (record for record in data.records if isinstance(record, Frame))
    came = data.blocks if isinstance(data, MetricSlice) else ()
    return [*came, *blocks_of(frames, tables, data.end_ns - data.start_ns)]


def misfit_count(data: Slice, tables: Mapping[int, MetricTable]) -> int:
    """Return how many frames of a slice have a size that does not match their (known) metric table."""
    frames = (record for record in data.records if isinstance(record, Frame) and record.table_id in tables)
    return sum(not fits(frame, tables[frame.table_id]) for frame in frames)


def join_blocks(blocks: Sequence[FrameBlock], table: MetricTable) -> MetricMeans | None:
    """Join a slice's blocks of one metric table, or of its metric groups, into one set of means.

    None if there are no blocks.
    """
    parts = []
    for block in sorted(blocks, key=lambda block: (block.ts_ns, block.table_id)):
        group = GROUP_OF_TABLE.get(block.table_id)
        if block.table_id == table.table_id:
            parts.append((block.means, Columns()))
        elif group is not None and table == BUILTIN_TABLE:
            parts.append((block.means, Columns(group.gpu_column, group.host_column)))
    return join_means(parts, table) if parts else None


def encode_block(block: FrameBlock) -> bytes:
    """Serialize a frame block: magic bytes, header length, JSON header, then the arrays' bytes."""
    means, arrays, bodies = block.means, [], []
    for name in _ARRAYS:
        values = getattr(means, name)
        arrays.append([values.dtype.str, list(values.shape)])
        if values.size and (values == values.flat[0]).all():
            arrays[-1].append(values.flat[0].item())  # nearly always so: counts, distances of samples
        else:
            bodies.append(values.tobytes())
    gpu_counts = dict.fromkeys(means.hosts, 0)
    for host, _ in means.gpu_rows:
        gpu_counts[host] += 1
    head = json.dumps(
        {
            "job": [block.job.cluster, block.job.job_id, block.job.attempt],
            "table_id": block.table_id,
            "start_ns": block.start_ns,
            "end_ns": block.end_ns,
            "ts_ns": block.ts_ns,
            "hosts": means.hosts,
            "gpu_counts": list(gpu_counts.values()),
            "gpus": [uuid for _, uuid in means.gpu_rows],
            "arrays": arrays,
        },
        separators=(",", ":"),
    ).encode()
    return b"".join((MAGIC, _LENGTH.pack(len(head)), head, *bodies))


def decode_block(data: bytes) -> FrameBlock:
    """Return the frame block that ``encode_block`` serialized.

    Raises:
        DecodeError: the bytes are damaged.
    """
    try:
        begin = len(MAGIC) + _LENGTH.size
        (length,) = _LENGTH.unpack_from(data, len(MAGIC))
        head = json.loads(data[begin : begin + length])
        arrays = dict(zip(_ARRAYS, _arrays(data, begin + length, head["arrays"]), strict=True))
        uuids = iter(head["gpus"])
        counts = zip(head["hosts"], head["gpu_counts"], strict=True)
        rows = [(host, next(uuids)) for host, count in counts for _ in range(count)]
        means = MetricMeans(hosts=tuple(head["hosts"]), gpu_rows=tuple(rows), **arrays)
        return FrameBlock(
            JobKey(*head["job"]), head["table_id"], head["start_ns"], head["end_ns"], head["ts_ns"], means
        )
    except (ValueError, KeyError, TypeError, struct.error, RuntimeError) as error:
        raise DecodeError(f"frame block: {error}") from error


def _arrays(data: bytes, place: int, described: Sequence[Sequence[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the arrays that lie in ``data`` from byte ``place`` on.

    ``described`` holds dtype, shape and any constant value.
    """
    for kind, shape, *same in described:
        if same:
            yield np.full(shape, same[0], np.dtype(kind))
            continue
        count = int(np.prod(shape))
        values = np.frombuffer(data, np.dtype(kind), count, place)
        place += values.nbytes
        yield values.reshape(shape)

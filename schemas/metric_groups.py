"""Metric groups: frames of a very large job are split by metrics so that they spread over partitions.

All hosts' values of one metric must meet, so a frame is never split by host. A part refers to its group's own
table (2, 3, 4), so its content is known without an announcement or decoding. ``join_frames`` restores
the original frame byte for byte.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.metrics import BUILTIN_TABLE, BUILTIN_TABLE_ID, MetricTable
from tocsin.schemas.records import Frame

ALL_GROUPS: Final = "all"
"""Group name of a frame that was not split."""

_FLOAT32_BYTES: Final = 4
_NAN: Final = struct.pack("<f", math.nan)


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """A run of consecutive columns of table 1.

    Attributes:
        name: name of the group, part of the key of its frames.
        table: table of its columns, with an id of its own.
        gpu_column: index of its first column among the GPU columns of table 1.
        host_column: index of its first column among the host columns of table 1.
    """

    name: str
    table: MetricTable
    gpu_column: int
    host_column: int


def _group(name: str, table_id: int, gpu: tuple[int, int], host: tuple[int, int]) -> MetricGroup:
    """Build a group from its name, table id and ranges of GPU and host columns (end excluded)."""
    table = MetricTable(table_id, BUILTIN_TABLE.gpu[slice(*gpu)], BUILTIN_TABLE.host[slice(*host)])
    return MetricGroup(name, table, gpu[0], host[0])


METRIC_GROUPS: Final = (
    _group("compute", 2, (0, 6), (0, 0)),  # how busy the GPUs are
    _group("device", 3, (6, 11), (0, 3)),  # power, heat, clocks, memory; the host's processors and disk
    _group("network", 4, (11, 13), (3, 8)),
)
"""All groups; together they hold each column of table 1 once, in its order."""

GROUP_OF_TABLE: Mapping[int, MetricGroup] = MappingProxyType({group.table.table_id: group for group in METRIC_GROUPS})
"""Table id -> its group."""


def group_of(frame: Frame) -> str:
    """Return the name of the group in a frame, ``ALL_GROUPS`` for a frame that was not split."""
    group = GROUP_OF_TABLE.get(frame.table_id)
    return group.name if group else ALL_GROUPS


def split_frame(frame: Frame) -> tuple[Frame, ...]:
    """Split a frame of table 1 into one frame per metric group.

    Groups without any value are left out. A frame of another table is returned as it is.
    """
    if frame.table_id != BUILTIN_TABLE_ID:
        return (frame,)
    row_bytes = _FLOAT32_BYTES * frame.tick_count
    gpu_bytes = row_bytes * len(BUILTIN_TABLE.gpu)
    parts = []
    for group in METRIC_GROUPS:
        start, end = group.gpu_column * row_bytes, (group.gpu_column + len(group.table.gpu)) * row_bytes
        rows = (
            frame.gpu_matrix[gpu * gpu_bytes + start : gpu * gpu_bytes + end] for gpu in range(len(frame.gpu_uuids))
        )
        host = frame.host_matrix[group.host_column * row_bytes :][: len(group.table.host) * row_bytes]
        gpu = b"".join(rows)
        if gpu or host:
            parts.append(replace(frame, table_id=group.table.table_id, gpu_matrix=gpu, host_matrix=host))
    return tuple(parts)


def join_frames(frames: Iterable[Frame]) -> Frame:
    """Join the parts of one host's frame; a missing group becomes NaN.

    Raises:
        FieldError: the frames are no parts of one frame.
    """
    parts = {frame.table_id: frame for frame in frames}
    if not parts or not parts.keys() <= GROUP_OF_TABLE.keys():
        raise FieldError("frame.table_id", sorted(parts), f"of {sorted(GROUP_OF_TABLE)}, at least one")
    whole = replace(next(iter(parts.values())), table_id=BUILTIN_TABLE_ID, gpu_matrix=b"", host_matrix=b"")
    for part in parts.values():
        if replace(part, table_id=BUILTIN_TABLE_ID, gpu_matrix=b"", host_matrix=b"") != whole:
            raise FieldError(
                "frame", f"{part.host} at {part.ts_ns}", f"cut from the frame of {whole.host}, {whole.ts_ns}"
            )
    row_bytes = _FLOAT32_BYTES * whole.tick_count
    gpu = []
    for index in range(len(whole.gpu_uuids)):
        for group in METRIC_GROUPS:
            size = len(group.table.gpu) * row_bytes
            gpu.append(_rows(parts.get(group.table.table_id), "gpu_matrix", index * size, size))
    host = [
        _rows(parts.get(group.table.table_id), "host_matrix", 0, len(group.table.host) * row_bytes)
        for group in METRIC_GROUPS
    ]
    return replace(whole, gpu_matrix=b"".join(gpu), host_matrix=b"".join(host))


def _rows(part: Frame | None, name: str, start: int, size: int) -> bytes:
    """Return a range of bytes of a part's matrix; NaN values for a missing part."""
    if part is None:
        return _NAN * (size // _FLOAT32_BYTES)
    rows: bytes = getattr(part, name)[start : start + size]
    if len(rows) != size:
        raise FieldError(f"frame.{name}", f"{len(rows)} bytes", f"{size} bytes by table {part.table_id}")
    return rows

"""The protocol of operators (the stages of a job's pipeline), and the format of their snapshots.

An operator is a plain class built from a frozen config. Both runtimes (embedded and Flink) drive it the same way:

- ``on_slice(slice)`` receives all records of one job in one span of event time, exactly once, in canonical order and
  ascending ``end_ns``. Duplicates have been dropped.
- ``snapshot()`` returns named parts; a runtime may write only the parts that changed. An operator with immutable parts
  is given the names of those that the runtime already holds, and returns ``UNCHANGED`` for them. ``finished_parts``
  returns such parts ahead of a snapshot.
- ``restore(parts)`` is the exact inverse: after it, the same slices give the same outputs.

No operator reads a clock: the end of the slice is the current time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from tocsin.pipeline.core.arrays import (
    array_from,
    array_state,
    dump_state,
    load_state,
)
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.records import JobKey, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

STATE_VERSION = 33
"""Version of the snapshot format; a snapshot of another version is refused.

Changes by version. 2: sparse arrays, dataclasses as one table. 3: judged time, first failures, settling causes. 4:
arrays as raw bytes, dataclasses by column, one part for each step of a large job. 5: half-minute means. 6: first ends,
network flows, start of work. 7: group sums of half minutes, pauses between steps. 10: earlier NaNs. 11: congested leaf
switches. 12: higher workloads and their start, recurring spells of one fault. 13: outliers during a standstill,
machines unwell during a slowdown, past gradient norms and self times. 15: whether an event reported a NaN, the end of
the time in which the engine did not listen to a host. 16: the host that announced each communication group.
19: signs of the whole job. 20: what attempts spent their wall time on, and what was told of it. 21: the steps of loss
and gradient norm, and the levels that the loss held. 22: what is known of each incident that a person closed. 23: the
stages of starts. 24: causes of a job's slowness that name no machine. 25: MFU of jobs. 26: ends of stages.
27: reports of data loaders. 30: forward passes of ranks. 31: what
waits are usual in a job. 32: the confidence of
verdicts without learned detectors. 33: what ranks compute in the steps that loaders tell of,
transfers with their bytes and what the placement costs.
"""
UNCHANGED: Final = b""
"""Value of a snapshot part that the runtime already holds in its current form."""
Out_co = TypeVar("Out_co", covariant=True)
T = TypeVar("T")
_INT64_END: Final = 1 << 63


class Operator(Protocol[Out_co]):
    """One stage of a job's pipeline."""

    def on_slice(self, data: Slice) -> Sequence[Out_co]:
        """Process the records of one slice and return the outputs that follow from them."""
        ...

    def snapshot(self) -> dict[str, bytes]:
        """Return the operator's state as named parts."""
        ...

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the operator's state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        ...


def shallow(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as a dict without copying their values.

    ``dataclasses.asdict`` copies deeply, which takes a second for 10,000 hosts.
    """
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def columns_of(kind: Any, values: Iterable[object], without: str = "") -> list[Any]:
    """Return dataclasses or named tuples of one type as ``[count, {field name: column}]``.

    Columns are quick to serialize; as 80,000 dicts the same values take a second.

    Args:
        kind: the dataclass or named tuple type of all values.
        values: the objects.
        without: name of a field to leave out.
    """
    fields = kind._fields if hasattr(kind, "_fields") else kind.__dataclass_fields__
    names = [name for name in fields if name != without]
    rows = list(map(attrgetter(*names), values))
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return [len(rows), dict(zip(names, map(_column, columns), strict=True))]


def _column(values: tuple[Any, ...]) -> dict[str, Any]:
    """Encode a column under a key that names its form.

    An array (numbers), one value (all equal), or the tuple itself.
    """
    kinds = set(map(type, values))
    if len(kinds) == 1 and (kind := kinds.pop()) in (bool, int, float, str, type(None)):
        if kind is float:
            return {"array": array_state(np.array(values, "<f8"))}
        if values.count(values[0]) == len(values):
            return {"all": values[0]}
        if kind is int and max(values) < _INT64_END and min(values) >= -_INT64_END:
            return {"array": array_state(np.array(values, "<i8"))}
    return {"each": values}


def from_columns(kind: type[T], state: Sequence[Any]) -> Iterator[T]:
    """Yield the objects that ``columns_of`` turned into columns."""
    count, columns = state
    rows = zip(*(_values(column, count) for column in columns.values()), strict=True)
    for row in rows:
        yield kind(**dict(zip(columns, row, strict=True)))


def _values(column: Mapping[str, Any], count: int) -> list[Any]:
    """Return the ``count`` values of one column that ``_column`` encoded."""
    if "all" in column:
        return [column["all"]] * count
    found: list[Any] = array_from(column["array"]).tolist() if "array" in column else column["each"]
    return found


def pack_state(state: object) -> bytes:
    """Serialize a state (JSON with string keys, arrays allowed) with ``STATE_VERSION``.

    Equal states give equal bytes.
    """
    return dump_state({"version": STATE_VERSION, "state": state})


def unpack_state(parts: Mapping[str, bytes], name: str) -> Any:
    """Return the state in one snapshot part that ``pack_state`` serialized.

    Raises:
        SnapshotError: the part is missing, damaged or of another version.
    """
    if name not in parts:
        msg = f"snapshot has no part {name!r} (has: {', '.join(sorted(parts)) or 'nothing'})"
        raise SnapshotError(msg)
    try:
        outer = load_state(parts[name])
        version = outer["version"]
        state = outer["state"]
    except (ValueError, KeyError, TypeError) as error:
        msg = f"snapshot part {name!r} is damaged: {error}"
        raise SnapshotError(msg) from error
    if version != STATE_VERSION:
        msg = f"snapshot part {name!r} has version {version}, this program reads version {STATE_VERSION}"
        raise SnapshotError(msg)
    return state


def anomaly_from(fields: Mapping[str, Any]) -> Anomaly:
    """Rebuild an anomaly from the dict that ``dataclasses.asdict`` made of it."""
    component = fields["component"]
    return Anomaly(
        **{
            **fields,
            "job": JobKey(**fields["job"]),
            "component": Component(ComponentKind(component["kind"]), component["name"]),
        }
    )

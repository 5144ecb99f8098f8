"""What an operator is, and how its state is written.

An operator is a plain class built from a frozen config. Both runtimes (embedded,
Flink) drive it the same way:

- ``on_slice(slice)``: all records of one job in one span of event time, once, in
  canonical order, in order of ``end_ns``. Duplicates were dropped before.
- ``snapshot()``: named parts; a runtime may write only the parts that changed. An operator with
  parts that never change any more takes the names of those that the runtime holds already, and
  gives ``UNCHANGED`` for them; ``finished_parts`` gives such parts ahead of a snapshot.
- ``restore(parts)``: the exact inverse; after it, the same slices give the same outputs.

No operator reads a clock: the slice's end is the time.
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

STATE_VERSION = 16
"""2: arrays without their zeros, dataclasses as one table. 3: judged time, who fell first, causes that settle.
4: arrays as bytes, dataclasses column by column, a large job's steps in a part each. 5: half minutes.
6: who ended first, flows, when work began. 7: crowds of half minutes, pauses between steps. 10: earlier NaNs.
11: jammed leaves. 12: who does more work and since when, spells of what comes again.
13: who is odd while the job stands, who ailed while it was slow, own gradient norms and own time of the past.
15: whether an event told of a NaN, until when nobody listened to a host.
16: which host announced which groups."""
UNCHANGED: Final = b""
"""In a snapshot: a part that the runtime holds already, as it is."""
Out_co = TypeVar("Out_co", covariant=True)
T = TypeVar("T")
_INT64_END: Final = 1 << 63


class Operator(Protocol[Out_co]):
    """One stage of a job's pipeline."""

    def on_slice(self, data: Slice) -> Sequence[Out_co]:
        """Take the records of one span and say what follows from them."""
        ...

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts."""
        ...

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        ...


def shallow(value: Any) -> dict[str, Any]:
    """A dataclass as a dict of its own values: ``asdict`` copies them deeply, a second for 10,000 hosts."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def columns_of(kind: Any, values: Iterable[object], without: str = "") -> list[Any]:
    """Dataclasses, or named tuples, of one kind as [their number, field name -> column]: 80,000 dicts take a second."""
    fields = kind._fields if hasattr(kind, "_fields") else kind.__dataclass_fields__
    names = [name for name in fields if name != without]
    rows = list(map(attrgetter(*names), values))
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return [len(rows), dict(zip(names, map(_column, columns), strict=True))]


def _column(values: tuple[Any, ...]) -> dict[str, Any]:
    """Numbers as an array, what is the same for all once, else as it is."""
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
    """Take back what ``columns_of`` gave."""
    count, columns = state
    rows = zip(*(_values(column, count) for column in columns.values()), strict=True)
    for row in rows:
        yield kind(**dict(zip(columns, row, strict=True)))


def _values(column: Mapping[str, Any], count: int) -> list[Any]:
    if "all" in column:
        return [column["all"]] * count
    found: list[Any] = array_from(column["array"]).tolist() if "array" in column else column["each"]
    return found


def pack_state(state: object) -> bytes:
    """Write JSON-able state (string keys only; arrays may stand in it) canonically, with a version."""
    return dump_state({"version": STATE_VERSION, "state": state})


def unpack_state(parts: Mapping[str, bytes], name: str) -> Any:
    """Read one part that ``pack_state`` wrote.

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
    """Take back what ``dataclasses.asdict`` made of an anomaly."""
    component = fields["component"]
    return Anomaly(
        **{
            **fields,
            "job": JobKey(**fields["job"]),
            "component": Component(ComponentKind(component["kind"]), component["name"]),
        }
    )

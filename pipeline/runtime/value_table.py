"""Keep recent values by second and component in little memory, with a state that grows page by page."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.core.operator import UNCHANGED, pack_state, unpack_state

_PAGE_SECONDS: Final = 60
_OPEN_COUNT: Final = 8
"""Number of the newest seconds that are kept as dicts; older ones are kept as arrays."""
_SAMPLED_ONE_IN: Final = 8
"""Above the bound, one in this many components is kept, chosen by hash."""
_INFINITE: Final = math.inf


@dataclass(frozen=True, slots=True)
class _PackedSecond:
    """The values of one second.

    Attributes:
        names: names of the components.
        values: one row per component, one column per metric.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]


class ValueTable:
    """Rows of numbers by second and component name, with bounded numbers of seconds and components."""

    def __init__(self, column_count: int, kept_seconds: int, max_component_count: int) -> None:
        """Start without values.

        Args:
            column_count: number of values of a row.
            kept_seconds: number of seconds that are kept, the newest ones.
            max_component_count: number of components of a second that are all kept. As many again are kept as a
                sample by hash.
        """
        self._column_count = column_count
        self._kept_seconds = kept_seconds
        self._max_component_count = max_component_count
        self._open: dict[int, dict[str, tuple[float, ...]]] = {}
        self._packed: dict[int, _PackedSecond] = {}
        self._newest_names: tuple[str, ...] = ()
        self._changed_pages: set[int] = set()

    def keep(self, second: int, name: str, values: tuple[float, ...]) -> None:
        """Keep a component's values of one second, of several rows the highest values.

        Args:
            second: Unix time in seconds.
            name: name of the component.
            values: one value per column; those that are not finite count as missing.
        """
        at = self._open.get(second)
        if at is None:
            at = self._begin(second)
        old = at.get(name)
        if old is None and not self._has_room(at, name):
            return
        row = tuple(value if -_INFINITE < value < _INFINITE else math.nan for value in values)
        at[name] = row if old is None else tuple(map(_higher, old, row))
        self._changed_pages.add(second // _PAGE_SECONDS)

    def _has_room(self, at: Mapping[str, object], name: str) -> bool:
        """Return whether another component is kept in a second that has these."""
        if len(at) < self._max_component_count:
            return True
        return len(at) < 2 * self._max_component_count and not zlib.crc32(name.encode()) % _SAMPLED_ONE_IN

    def _begin(self, second: int) -> dict[str, tuple[float, ...]]:
        """Return the dict of a second; pack and drop older seconds."""
        packed = self._packed.pop(second, None)
        at = {} if packed is None else dict(zip(packed.names, map(tuple, packed.values.tolist()), strict=True))
        self._open[second] = at
        if len(self._open) > _OPEN_COUNT:
            self._pack(min(one for one in self._open if one != second))
        self._drop_old()
        return at

    def _pack(self, second: int) -> None:
        """Turn the dict of a second into an array; seconds with the same components share the names."""
        at = self._open.pop(second)
        names = tuple(at)
        if names == self._newest_names:
            names = self._newest_names
        self._newest_names = names
        self._packed[second] = _PackedSecond(names, np.array(list(at.values()), np.float64))

    def _drop_old(self) -> None:
        """Drop the oldest seconds beyond the bound."""
        while len(self._open) + len(self._packed) > self._kept_seconds:
            oldest = min(min(self._open, default=1 << 62), min(self._packed, default=1 << 62))
            self._open.pop(oldest, None)
            self._packed.pop(oldest, None)

    def seconds(self, first: int, last: int) -> list[int]:
        """Return the seconds with values from ``first`` to ``last``, ascending."""
        return sorted(second for second in (*self._open, *self._packed) if first <= second <= last)

    def column(self, second: int, index: int) -> dict[str, float]:
        """Return the values of one column in one second by component name; missing ones are left out."""
        packed = self._packed.get(second)
        if packed is not None:
            values = packed.values[:, index].tolist()
            return {name: value for name, value in zip(packed.names, values, strict=True) if not math.isnan(value)}
        return {name: row[index] for name, row in self._open.get(second, {}).items() if not math.isnan(row[index])}

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """Return the state as named parts, one per minute; unchanged ones named in ``known`` are ``UNCHANGED``."""
        pages: dict[int, list[int]] = {}
        for second in self.seconds(0, 1 << 62):
            pages.setdefault(second // _PAGE_SECONDS, []).append(second)
        parts = {}
        for page, seconds in pages.items():
            name = str(page)
            is_known = name in known and page not in self._changed_pages
            parts[name] = UNCHANGED if is_known else pack_state(self._page(seconds))
        self._changed_pages.clear()
        return parts

    def _page(self, seconds: list[int]) -> dict[str, Any]:
        """Return the JSON-able state of some seconds."""
        names: dict[tuple[str, ...], int] = {}
        rows, arrays = [], [np.empty((0, self._column_count))]
        for second in seconds:
            packed = self._packed.get(second)
            if packed is None:
                at = self._open[second]
                packed = _PackedSecond(tuple(at), np.array(list(at.values()), np.float64))
            rows.append([second, names.setdefault(packed.names, len(names))])
            arrays.append(packed.values.reshape(-1, self._column_count))
        return {"seconds": rows, "names": [list(one) for one in names], "values": np.concatenate(arrays).reshape(-1)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: a part is damaged or of another version.
        """
        self._open, self._packed = {}, {}
        for name in parts:
            for second, packed in self._seconds_of(unpack_state(parts, name)):
                self._packed[second] = packed
        self._drop_old()
        for second in self.seconds(0, 1 << 62)[-_OPEN_COUNT:]:
            packed = self._packed.pop(second)
            self._open[second] = dict(zip(packed.names, map(tuple, packed.values.tolist()), strict=True))
        self._changed_pages.clear()

    def _seconds_of(self, state: Mapping[str, Any]) -> Iterator[tuple[int, _PackedSecond]]:
        """Yield the seconds of a page with their values."""
        names = [tuple(one) for one in state["names"]]
        values = np.array(state["values"], np.float64).reshape(-1, self._column_count)
        begin = 0
        for second, index in state["seconds"]:
            end = begin + len(names[index])
            yield second, _PackedSecond(names[index], values[begin:end])
            begin = end


def _higher(old: float, new: float) -> float:
    """Return the higher of two values; a missing one (NaN) does not count."""
    return new if new > old or math.isnan(old) else old

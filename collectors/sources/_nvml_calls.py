"""Calls to NVML: an unsupported value is no sample, a lost GPU or driver raises, other errors are counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any, Final

ALL_LINKS: Final = 0xFFFF_FFFF
"""Scope of a field value: the sum over all NVLinks."""
_NOT_AVAILABLE: Final = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
"""NVML's "not available" in unsigned values."""
RETRY_NS: Final = 300_000_000_000

_UNINITIALIZED, _NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND = 1, 3, 4, 13
_ABSENT: Final = frozenset({2, _NOT_SUPPORTED, _NO_PERMISSION, 6, _FUNCTION_NOT_FOUND, 21, 25, 26, 27})
"""Error codes of a value that the card lacks: invalid argument (a missing link or sensor), not supported, not found, no
data, not ready."""
_LASTING: Final = frozenset({_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND, 2, 25, 26})
_LOST: Final = frozenset({15, 28})  # GPU is lost, GPU not found
_DRIVER_GONE: Final = frozenset({_UNINITIALIZED, 9, 18})  # uninitialised, driver not loaded, version mismatch
_WIDE_TYPES: Final = frozenset({0, 2, 3, 4})
"""NVML's value types of 64 bits."""
_VALUE_FIELDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class GpuLostError(Exception):
    """NVML reports that this GPU no longer answers."""


class DriverGoneError(Exception):
    """NVML must be opened again, because the driver was unloaded or replaced."""


def number(value: object) -> float | None:
    """Return an NVML value as a float, None for "not available".

    >>> number(300), number(0xFFFFFFFF), number(float("nan"))
    (300.0, None, None)
    """
    if not isinstance(value, int | float) or value in _NOT_AVAILABLE or not math.isfinite(value):
        return None
    return float(value)


def _key(name: str, arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return the key of a call in the cache of unsupported ones."""
    return (name, *(item for item in arguments if isinstance(item, int | tuple)))  # ctypes has no hash


class Asker:
    """NVML calls for one GPU; remembers for five minutes what the card does not support."""

    def __init__(self, library: Any, handle: Any, skipped: Counter[str]) -> None:
        """Create a caller of ``library`` (pynvml, or a fake) for the GPU ``handle``.

        Odd errors are counted in ``skipped``.
        """
        self.library = library
        self.handle = handle
        self._skipped = skipped
        self._cannot: dict[tuple[object, ...], int] = {}
        self.now_ns = 0

    def ask(self, name: str, *arguments: object) -> Any:
        """Call an NVML function of the GPU; return None if the card does not support it.

        Args:
            name: name of the function.
            *arguments: arguments after the handle.

        Raises:
            GpuLostError: the GPU is lost.
            DriverGoneError: the driver is gone.
        """
        if self._cannot and self._cannot.get(_key(name, arguments), 0) > self.now_ns:
            return None
        function = getattr(self.library, name, None)
        if function is None:  # an older nvidia-ml-py
            self._cannot[_key(name, arguments)] = self.now_ns + RETRY_NS
            return None
        try:
            return function(self.handle, *arguments)
        except self.library.NVMLError as error:
            self.note(error, _key(name, arguments))
            return None

    def note(self, error: Any, key: tuple[object, ...] = ()) -> None:
        """Process an NVML error: raise for a lost GPU or driver, remember lasting ones, count unexpected ones."""
        code = getattr(error, "value", -1)
        if code in _LOST:
            raise GpuLostError(str(error)) from error
        if code in _DRIVER_GONE:
            raise DriverGoneError(str(error)) from error
        if code in _LASTING and key:
            self._cannot[key] = self.now_ns + RETRY_NS
        if code not in _ABSENT:
            self._skipped[f"nvml_error_{code}"] += 1

    def fields(
        self, wanted: Sequence[tuple[int, int]], *, only_wide: Container[tuple[int, int]] = ()
    ) -> dict[tuple[int, int], float]:
        """Return (field, scope) -> value for those of the wanted fields that the card has.

        Args:
            wanted: the fields.
            only_wide: those that are left out where the card has them with 32 bits: a counter of bytes that wraps
                several times between two samples shows a rate that is too low.
        """
        if not wanted:
            return {}
        values = self.ask("nvmlDeviceGetFieldValues", wanted)
        found: dict[tuple[int, int], float] = {}
        for asked, item in zip(wanted, values or (), strict=False):
            if item.nvmlReturn in _LOST:
                raise GpuLostError("GPU is lost")
            if item.nvmlReturn or not 0 <= item.valueType < len(_VALUE_FIELDS):
                continue
            if asked in only_wide and item.valueType not in _WIDE_TYPES:
                continue
            value = number(getattr(item.value, _VALUE_FIELDS[item.valueType]))
            if value is not None:
                found[asked] = value
        return found

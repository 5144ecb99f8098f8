"""Clocks of processors and GPUs: throttling under load, and settings before and after."""

from __future__ import annotations

import glob
import os
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tocsin.collectors.sources._nvml_calls import Asker, DriverGoneError, GpuLostError, number
from tocsin.schemas.errors import NothingHere
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, PreflightResult, failed, skipped

_CPU_SETTINGS: Final = ("scaling_governor", "scaling_max_freq")
_GPU_SETTINGS: Final = {
    "nvmlDeviceGetPowerManagementLimit": "power limit (mW)",
    "nvmlDeviceGetPersistenceMode": "persistence mode",
    "nvmlDeviceGetComputeMode": "compute mode",
}
_BAD_REASONS: Final = {0x08: "hw_slowdown", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x20: "sw_thermal"}
"""Bits of NVML's mask that mean heat or a power supply; a power cap under load is how a sound GPU works."""
_SHARE_OF_SAMPLES: Final = 0.1
"""Share of samples with a bad reason from which on a GPU counts as throttled: the mask flaps for single samples."""
_BUSY_PERCENT: Final = 50
"""Utilisation from which on a sample counts as one under load; the start of a check leaves the GPU idle for seconds."""
_SM_CLOCK: Final = 1
_HERTZ_PER_MEGAHERTZ: Final = 1e6
_HERTZ_PER_KILOHERTZ: Final = 1e3


class CpuClocks:
    """Watches the processors' clocks; made before the load, sampled under it, judged after it."""

    def __init__(self, sys_root: str = "/sys") -> None:
        """Read the settings and the throttle counters."""
        self._root = f"{sys_root}/devices/system/cpu"
        self._settings = self._read_settings()
        self._throttled = self._read_throttled()
        self._samples: list[float] = []

    def sample(self) -> None:
        """Read the mean clock of all processors now."""
        found = [float(text) for text in self._texts("cpufreq/scaling_cur_freq").values() if text.isdecimal()]
        if found:
            self._samples.append(statistics.fmean(found) * _HERTZ_PER_KILOHERTZ)

    def result(self) -> PreflightResult:
        """Return what the load did to the clocks."""
        name = CheckName.CPU_CLOCKS
        throttled = self._read_throttled()
        if not (self._settings or self._throttled or self._samples):
            return skipped(name, CheckReason.UNREADABLE, "no cpufreq and no throttle counters below /sys")
        figure = statistics.median(self._samples) if self._samples else None
        unit = "hertz" if self._samples else ""
        grown = {place: count - self._throttled.get(place, 0) for place, count in throttled.items()}
        hot = {place: count for place, count in grown.items() if count > 0}
        changed = differing(self._settings, self._read_settings())
        if hot:
            text = f"{sum(hot.values())} throttle events, first at {min(hot)}"
            return PreflightResult(name, CheckOutcome.FAILED, CheckReason.THROTTLED, figure, unit, detail=text)
        if changed:
            return PreflightResult(
                name, CheckOutcome.FAILED, CheckReason.SETTINGS_CHANGED, figure, unit, detail=changed
            )
        return PreflightResult(name, CheckOutcome.PASSED, CheckReason.STEADY, figure, unit)

    def _read_settings(self) -> dict[str, str]:
        """Return place -> setting of every processor."""
        return {place: text for name in _CPU_SETTINGS for place, text in self._texts(f"cpufreq/{name}").items()}

    def _read_throttled(self) -> dict[str, int]:
        """Return place -> throttle events since the start of every processor."""
        return {
            place: int(text)
            for place, text in self._texts("thermal_throttle/*_throttle_count").items()
            if text.isdecimal()
        }

    def _texts(self, pattern: str) -> dict[str, str]:
        """Return place -> content of each processor's file of this name."""
        found = {}
        for path in sorted(glob.glob(f"{self._root}/cpu[0-9]*/{pattern}")):
            try:
                with open(path, encoding="ascii", errors="replace") as file:
                    found[os.path.relpath(path, self._root)] = file.read().strip()
            except OSError:  # a processor that is off
                continue
        return found


class GpuClocks:
    """Watches the GPUs' clocks through NVML.

    Attributes:
        count: number of GPUs that answer.
    """

    def __init__(self, library: Callable[[], Any]) -> None:
        """Open the driver's library and read the settings.

        Args:
            library: gives pynvml or a fake.

        Raises:
            NothingHere: there is no NVIDIA driver here, or a GPU does not answer.
        """
        self._library = library()
        try:
            self._library.nvmlInit()
            self._askers = [self._asker(index) for index in range(self._library.nvmlDeviceGetCount())]
        except self._library.NVMLError as error:
            raise NothingHere(f"NVML: {error}") from error
        self.count = len(self._askers)
        self._settings = self._read_settings()
        self._masks: list[list[int]] = [[] for _ in self._askers]
        self._clocks: list[list[float]] = [[] for _ in self._askers]
        self._lost: set[int] = set()

    def _asker(self, index: int) -> Asker:
        """Return the caller for one GPU."""
        return Asker(self._library, self._library.nvmlDeviceGetHandleByIndex(index), Counter())

    def sample(self) -> None:
        """Read clocks and throttle reasons now, of the GPUs that work: an idle one has a low clock and no reasons."""
        for index, asker in enumerate(self._askers):
            try:
                busy_percent = number(getattr(asker.ask("nvmlDeviceGetUtilizationRates"), "gpu", None))
                if busy_percent is not None and busy_percent < _BUSY_PERCENT:
                    continue
                mask = asker.ask("nvmlDeviceGetCurrentClocksEventReasons")
                if mask is None:
                    mask = asker.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
                clock = number(asker.ask("nvmlDeviceGetClockInfo", _SM_CLOCK))
            except (GpuLostError, DriverGoneError):
                self._lost.add(index)
                continue
            if number(mask) is not None:
                self._masks[index].append(int(mask))
            if clock is not None:
                self._clocks[index].append(clock * _HERTZ_PER_MEGAHERTZ)

    def result(self) -> PreflightResult:
        """Return what the load did to the clocks; the figure is the slowest GPU's median clock."""
        name = CheckName.GPU_CLOCKS
        medians = [statistics.median(clocks) for clocks in self._clocks if clocks]
        figure = min(medians) if medians else None
        unit = "hertz" if medians else ""
        if self._lost:
            return failed(name, CheckReason.CHECK_DIED, f"GPU {min(self._lost)} was lost under load")
        for index, masks in enumerate(self._masks):
            reasons = _reasons(masks)
            if reasons:
                text = f"GPU {index}: {', '.join(reasons)}"
                return PreflightResult(name, CheckOutcome.FAILED, CheckReason.THROTTLED, figure, unit, detail=text)
        changed = differing(self._settings, self._read_settings())
        if changed:
            return PreflightResult(
                name, CheckOutcome.FAILED, CheckReason.SETTINGS_CHANGED, figure, unit, detail=changed
            )
        if not medians and not any(self._masks):
            return skipped(name, CheckReason.UNREADABLE, "no clock and no reason was read under load")
        return PreflightResult(name, CheckOutcome.PASSED, CheckReason.STEADY, figure, unit, kind=self._kind())

    def _kind(self) -> str:
        """Return number and name of the GPUs; clocks of other ones are no measure."""
        return f"{self.count} x {self._askers[0].ask('nvmlDeviceGetName') or 'GPU'}"

    def close(self) -> None:
        """Free what the driver holds for this process."""
        self._library.nvmlShutdown()

    def _read_settings(self) -> dict[str, str]:
        """Return place -> setting of every GPU; what a card lacks is left out."""
        found = {}
        for index, asker in enumerate(self._askers):
            try:
                for function, meaning in _GPU_SETTINGS.items():
                    value = asker.ask(function)
                    if value is not None:
                        found[f"GPU {index}, {meaning}"] = str(value)
            except (GpuLostError, DriverGoneError):
                continue
        return found


def _reasons(masks: list[int]) -> list[str]:
    """Return the bad clock reasons that a share of the samples have."""
    return [
        name
        for bit, name in _BAD_REASONS.items()
        if sum(bool(mask & bit) for mask in masks) > _SHARE_OF_SAMPLES * len(masks)
    ]


def differing(before: dict[str, str], after: dict[str, str]) -> str:
    """Return the first setting that differs, as a text; "" where all are equal.

    >>> differing({"a": "1"}, {"a": "2"})
    'a: 1 before, 2 after'
    """
    for place in sorted(before.keys() | after.keys()):
        one, other = before.get(place, "nothing"), after.get(place, "nothing")
        if one != other:
            return f"{place}: {one} before, {other} after"
    return ""

"""Metric samples of one GPU, in base units."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from tocsin.collectors.sources._nvml_calls import ALL_LINKS, Asker, number
from tocsin.collectors.sources.rates import Rates

MEBI: Final = 1 << 20
KIBI: Final = 1 << 10
PERCENT: Final = 100.0
SLOW_PCIE_TICKS: Final = 5
"""Samples between two calls of ``nvmlDeviceGetPcieThroughput``, which blocks for 20 ms in the driver and is the last
resort."""
_PCIE_TX, _PCIE_RX, _LINK_TX, _LINK_RX = (197, 0), (198, 0), (138, ALL_LINKS), (139, ALL_LINKS)
_PCIE: Final = (_PCIE_TX, _PCIE_RX)
"""A driver of 2026 has these counters with 32 bits: at 20 GB/s they wrap five times a second."""
_LANE_BYTES_PER_SECOND: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9, 7: 15.125e9}
"""PCIe generation -> payload bytes a second of one lane in one direction, encoding subtracted."""

# GPM's numbers (nvml.h): percentages, then MiB a second
_GRAPHICS, _SM, _TENSOR, _DRAM, _FP64, _FP32, _FP16 = 1, 2, 5, 10, 11, 12, 13
_GPM_PCIE_TX, _GPM_PCIE_RX, _GPM_LINK_RX, _GPM_LINK_TX = 20, 21, 60, 61
_GPM_METRICS: Final = (
    _GRAPHICS, _SM, _TENSOR, _DRAM, _FP64, _FP32, _FP16, _GPM_PCIE_TX, _GPM_PCIE_RX, _GPM_LINK_RX, _GPM_LINK_TX,
)  # fmt: skip


class Gpm:
    """GPU performance monitoring (Hopper and later): activities between two samples."""

    def __init__(self, asker: Asker) -> None:
        """Prepare the samples if the card supports it."""
        self._asker = asker
        self._samples: list[Any] = []
        self._has_first = False
        support = asker.ask("nvmlGpmQueryDeviceSupport")
        if not getattr(support, "isSupportedDevice", 0):
            return
        library = asker.library
        try:
            self._samples = [library.nvmlGpmSampleAlloc(), library.nvmlGpmSampleAlloc()]
        except library.NVMLError as error:
            asker.note(error)
            self._samples = []
            return
        request = library.c_nvmlGpmMetricsGet_t()
        request.version = library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        # Held: through ctypes each request.metrics[index] is a new object, which costs more than the driver's answer.
        self._metrics = {metric: request.metrics[index] for index, metric in enumerate(_GPM_METRICS)}
        for metric, place in self._metrics.items():
            place.metricId = metric
        self._request = request

    def read(self) -> dict[int, float]:
        """Return metric id -> value since the last call; empty for the first call and without GPM."""
        if not self._samples:
            return {}
        if self._asker.ask("nvmlGpmSampleGet", self._samples[1]) is None:
            self._has_first = False
            return {}
        found = self._difference() if self._has_first else {}
        self._samples.reverse()
        self._has_first = True
        return found

    def _difference(self) -> dict[int, float]:
        """Return metric id -> value between the two newest samples."""
        request, library = self._request, self._asker.library
        request.sample1, request.sample2 = self._samples
        try:
            library.nvmlGpmMetricsGet(request)
        except library.NVMLError as error:
            self._asker.note(error)
            return {}
        found: dict[int, float] = {}
        for metric, place in self._metrics.items():
            value = number(place.value)
            if not place.nvmlReturn and value is not None:
                found[metric] = value
        return found

    def close(self) -> None:
        """Free the driver's samples."""
        library = self._asker.library
        for sample in self._samples:
            try:
                library.nvmlGpmSampleFree(sample)
            except library.NVMLError:
                break  # the driver went: it freed them
        self._samples = []


class GpuSampler:
    """Reads the metrics of one GPU (``recording.md``); a value that the card lacks is left out."""

    def __init__(self, asker: Asker, skipped: Counter[str]) -> None:
        """Check what the card supports."""
        self._asker = asker
        self._skipped = skipped
        self._rates = Rates()
        self._gpm = Gpm(asker)
        self._tick = 0
        self.is_idle = False
        self.pcie_gen = 0
        self.pcie_width = 0

    def read(self, now_ns: int) -> dict[str, float]:
        """Return metric name -> value now."""
        self._tick += 1
        gpm = self._gpm.read()
        values: dict[str, float] = {}
        self._levels(values)
        self._activities(values, gpm)
        self._links(values, gpm, now_ns)
        return values

    def close(self) -> None:
        """Free what the driver holds for this sampler."""
        self._gpm.close()

    def _levels(self, values: dict[str, float]) -> None:
        """Add power, temperature, clock and memory to the values."""
        ask, library = self._asker.ask, self._asker.library
        memory = ask("nvmlDeviceGetMemoryInfo", library.nvmlMemory_v2) or ask("nvmlDeviceGetMemoryInfo")
        levels = (
            ("gpu_power_watts", ask("nvmlDeviceGetPowerUsage"), 1e-3),
            ("gpu_temperature_celsius", ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU), 1.0),
            ("gpu_sm_clock_hertz", ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM), 1e6),
            ("gpu_memory_used_bytes", getattr(memory, "used", None), 1.0),
        )
        for name, raw, factor in levels:
            value = number(raw)
            if value is not None:
                values[name] = value * factor

    def _activities(self, values: dict[str, float], gpm: dict[int, float]) -> None:
        """Add utilisation and activity ratios to the values."""
        rates = self._asker.ask("nvmlDeviceGetUtilizationRates")
        gpu, memory = number(getattr(rates, "gpu", None)), number(getattr(rates, "memory", None))
        self.is_idle = gpu == 0
        self._ratio(values, "gpu_util_ratio", gpu)
        self._ratio(values, "gpu_sm_active_ratio", gpm.get(_SM))
        self._ratio(values, "gpu_tensor_active_ratio", gpm.get(_TENSOR))
        # Without GPM: the same things, seen more coarsely.
        self._ratio(values, "gpu_graphics_active_ratio", gpm.get(_GRAPHICS, gpu))
        self._ratio(values, "gpu_dram_active_ratio", gpm.get(_DRAM, memory))
        pipes = [gpm[metric] for metric in (_FP64, _FP32, _FP16) if metric in gpm]
        if pipes:
            self._ratio(values, "gpu_fp_active_ratio", min(PERCENT, sum(pipes)))

    def _ratio(self, values: dict[str, float], name: str, percent: float | None) -> None:
        """Add a percentage as a ratio; one out of range is counted and skipped."""
        if percent is None:
            return
        if not 0 <= percent <= PERCENT + 1:  # GPM rounds a little above
            self._skipped["out_of_range"] += 1
            return
        values[name] = min(1.0, percent / PERCENT)

    def _links(self, values: dict[str, float], gpm: dict[int, float], now_ns: int) -> None:
        """Add PCIe and NVLink rates to the values.

        They come from GPM, else from counters, else (PCIe) from the driver's short sample.
        """
        pcie = _sum(gpm, _GPM_PCIE_TX, _GPM_PCIE_RX, MEBI)
        link = _sum(gpm, _GPM_LINK_TX, _GPM_LINK_RX, MEBI)
        wanted = [*((_PCIE_TX, _PCIE_RX) if pcie is None else ()), *((_LINK_TX, _LINK_RX) if link is None else ())]
        counters = self._asker.fields(tuple(wanted), only_wide=_PCIE)
        if pcie is None:
            pcie = self._rate(counters, _PCIE_TX, _PCIE_RX, now_ns)
            if pcie is None and _PCIE_TX not in counters and self._tick % SLOW_PCIE_TICKS == 0:
                pcie = self._short_sample()
        if link is None:
            found = self._rate(counters, _LINK_TX, _LINK_RX, now_ns)
            link = None if found is None else found * KIBI
        if link is not None and link >= 0:
            values["nvlink_bytes_per_second"] = link
        if pcie is not None and pcie >= 0:
            values["pcie_bytes_per_second"] = pcie
            lane = _LANE_BYTES_PER_SECOND.get(self.pcie_gen, 0.0)
            capacity = 2 * lane * self.pcie_width
            if capacity:
                values["pcie_usage_ratio"] = min(1.0, pcie / capacity)

    def _rate(
        self, counters: dict[tuple[int, int], float], one: tuple[int, int], other: tuple[int, int], now_ns: int
    ) -> float | None:
        """Return the summed rate of two counters, None unless both have one."""
        if one not in counters or other not in counters:
            return None
        rates = [self._rates.per_second(key, int(counters[key]), now_ns) for key in (one, other)]
        return None if None in rates else math.fsum(rate for rate in rates if rate is not None)

    def _short_sample(self) -> float | None:
        """Return the PCIe bytes a second in both directions from the driver's 20 ms sample, None without one."""
        library = self._asker.library
        kinds = (library.NVML_PCIE_UTIL_TX_BYTES, library.NVML_PCIE_UTIL_RX_BYTES)
        found = [number(self._asker.ask("nvmlDeviceGetPcieThroughput", kind)) for kind in kinds]
        return None if None in found else 1_000 * math.fsum(value for value in found if value is not None)


def _sum(gpm: dict[int, float], one: int, other: int, factor: int) -> float | None:
    """Return the sum of two GPM metrics times a factor, None if one is missing."""
    return (gpm[one] + gpm[other]) * factor if one in gpm and other in gpm else None

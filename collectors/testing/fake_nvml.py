"""A fake NVML without GPUs that behaves as documented.

Where pynvml raises, this raises an ``NVMLError`` with the same code. An unsupported value is an error and not
a zero; each field value carries a code; GPM needs two samples. Names and numbers are pynvml's own
(``tests/collectors/sources/test_nvml.py`` compares them).
"""

# ruff: noqa: N802, N815  # the names are NVML's
from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

UNAVAILABLE_U32 = 0xFFFF_FFFF
ALL_LINKS = 0xFFFF_FFFF


class NVMLError(Exception):
    """Error of the fake NVML; ``value`` is its code."""

    def __init__(self, value: int) -> None:
        """Create the error with this code."""
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass(slots=True)
class FakeGpu:
    """One fake GPU; a test sets what it answers.

    Attributes:
        uuid: UUID of the GPU.
        pci: bus address as NVML writes it (eight digits of domain, upper case).
        power_milliwatts: answers of the getters, in NVML's own units; likewise the following fields.
        fields: (field, scope) -> value, or an ``NVMLError`` for the code of that field.
        narrow_fields: those of the fields that are counters of 32 bits.
        gpm: GPM metric -> value; empty for a card without GPM.
        unsupported: names of functions that fail with "not supported".
        lost: whether every call fails with "GPU is lost".
        errors: function name -> error code with which it fails.
    """

    uuid: str
    pci: str
    index: int = 0
    architecture: int = 9
    vbios: str = "96.00.74.00.01"
    power_milliwatts: int = 650_000
    power_limit_milliwatts: int = 700_000
    temperature_celsius: int = 61
    sm_clock_megahertz: int = 1_755
    memory_used_bytes: int = 60 << 30
    util_percent: int = 97
    memory_util_percent: int = 40
    reasons_mask: int = 0
    gen: int = 5
    width: int = 16
    max_gen: int = 5
    max_width: int = 16
    ecc_corrected_count: int = 0
    ecc_uncorrected_count: int = 0
    remapped_rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    nvlinks: list[int] = field(default_factory=lambda: [1] * 18)
    fields: dict[tuple[int, int], float | NVMLError] = field(default_factory=dict)
    narrow_fields: set[tuple[int, int]] = field(default_factory=set)
    gpm: dict[int, float] = field(default_factory=dict)
    pcie_kilobytes_per_second: int = 1_000
    pids: tuple[int, ...] = ()
    unsupported: set[str] = field(default_factory=set)
    errors: dict[str, int] = field(default_factory=dict)
    lost: bool = False


class _Unhashable:
    """An object without a hash, like those of ctypes."""

    __hash__ = None  # type: ignore[assignment]  # as ctypes does


class FakeSample(_Unhashable):
    """A GPM sample: its values, and whether it was given back."""

    def __init__(self) -> None:
        self.values: dict[int, float] | None = None
        self.freed = False


class _GpmMetricsGet:
    """The request structure of ``nvmlGpmMetricsGet``."""

    def __init__(self) -> None:
        self.version = 0
        self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(64)]


class FakeNvml:
    """Replacement of the module pynvml."""

    NVMLError: ClassVar[type[NVMLError]] = NVMLError
    c_nvmlGpmMetricsGet_t: ClassVar[type[_GpmMetricsGet]] = _GpmMetricsGet
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    nvmlMemory_v2 = 0x02000028
    nvmlEventTypeXidCriticalError = 0x8
    _VALUE_TYPE_DOUBLE, _VALUE_TYPE_U32, _VALUE_TYPE_U64 = 0, 1, 3

    def __init__(self, gpus: list[FakeGpu], init_error: int = 0) -> None:
        """Create an NVML with these GPUs; with ``init_error``, ``nvmlInit`` fails with that code."""
        self.gpus = gpus
        self.init_error = init_error
        self.is_open = False
        self.driver = "570.86.15"
        self.calls = 0
        self.samples: list[FakeSample] = []
        self._events: deque[tuple[FakeGpu, int]] = deque()
        self._registered: set[str] = set()

    def raise_xid(self, index: int, code: int) -> None:
        """Make a GPU raise an XID; it is delivered if the GPU was registered for events."""
        if self.gpus[index].uuid in self._registered:
            self._events.append((self.gpus[index], code))

    # --- library ---------------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        """Open NVML, or fail with the set code."""
        if self.init_error:
            raise NVMLError(self.init_error)
        self.is_open = True

    def nvmlShutdown(self) -> None:
        """Close NVML."""
        self._check_open()
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of GPUs."""
        self._check_open()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        """Return the GPU with this index as its handle; a lost one has none."""
        self._check_open()
        if not 0 <= index < len(self.gpus):
            raise NVMLError(2)
        return self._gpu(self.gpus[index], "nvmlDeviceGetHandleByIndex")

    def _check_open(self) -> None:
        """Count the call; fail with "uninitialized" if NVML is not open."""
        self.calls += 1
        if not self.is_open:
            raise NVMLError(1)

    def _gpu(self, gpu: FakeGpu, name: str) -> FakeGpu:
        """Return the GPU, or fail as it is set to for this function."""
        self._check_open()
        if gpu.lost:
            raise NVMLError(15)
        if name in gpu.unsupported:
            raise NVMLError(3)
        if name in gpu.errors:
            raise NVMLError(gpu.errors[name])
        return gpu

    # --- identity --------------------------------------------------------------------------------

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        """Return the UUID."""
        return self._gpu(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> Any:
        """Return the bus address."""
        return SimpleNamespace(busId=self._gpu(handle, "nvmlDeviceGetPciInfo").pci)

    def nvmlDeviceGetArchitecture(self, handle: FakeGpu) -> int:
        """Return the architecture's number."""
        return self._gpu(handle, "nvmlDeviceGetArchitecture").architecture

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        """Return the processes that compute on the GPU."""
        gpu = self._gpu(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in gpu.pids]

    def nvmlSystemGetDriverVersion(self) -> str:
        """Return the version of the driver."""
        self._check_open()
        return self.driver

    def nvmlDeviceGetVbiosVersion(self, handle: FakeGpu) -> str:
        """Return the version of the GPU's VBIOS."""
        return self._gpu(handle, "nvmlDeviceGetVbiosVersion").vbios

    def nvmlDeviceGetGspFirmwareVersion(self, handle: FakeGpu, version: object = None) -> bytes:
        """Return the version of the firmware of the processor on the GPU, in bytes as pynvml does."""
        del version
        self._gpu(handle, "nvmlDeviceGetGspFirmwareVersion")
        return self.driver.encode()

    # --- levels ----------------------------------------------------------------------------------

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        """Return the power in milliwatts."""
        return self._gpu(handle, "nvmlDeviceGetPowerUsage").power_milliwatts

    def nvmlDeviceGetPowerManagementLimit(self, handle: FakeGpu) -> int:
        """Return the power limit in milliwatts."""
        return self._gpu(handle, "nvmlDeviceGetPowerManagementLimit").power_limit_milliwatts

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        """Return the temperature in degrees Celsius."""
        gpu = self._gpu(handle, "nvmlDeviceGetTemperature")
        if sensor != self.NVML_TEMPERATURE_GPU:
            raise NVMLError(2)
        return gpu.temperature_celsius

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, kind: int) -> int:
        """Return the SM clock in megahertz."""
        del kind
        return self._gpu(handle, "nvmlDeviceGetClockInfo").sm_clock_megahertz

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> Any:
        """Return used and total memory in bytes."""
        name = "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo"
        gpu = self._gpu(handle, name)
        return SimpleNamespace(used=gpu.memory_used_bytes, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        """Return the utilisation of GPU and memory in percent."""
        gpu = self._gpu(handle, "nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=gpu.util_percent, memory=gpu.memory_util_percent)

    def nvmlDeviceGetPcieThroughput(self, handle: FakeGpu, counter: int) -> int:
        """Return the PCIe throughput in kilobytes a second."""
        del counter
        return self._gpu(handle, "nvmlDeviceGetPcieThroughput").pcie_kilobytes_per_second

    def nvmlDeviceGetFieldValues(self, handle: FakeGpu, wanted: Any) -> list[Any]:
        """Return one value per wanted field, each with its own code."""
        gpu = self._gpu(handle, "nvmlDeviceGetFieldValues")
        found = []
        for item in wanted:
            key = item if isinstance(item, tuple) else (item, 0)
            value = gpu.fields.get(key, NVMLError(3))
            code = value.value if isinstance(value, NVMLError) else 0
            plain = 0 if isinstance(value, NVMLError) else value
            kind = self._VALUE_TYPE_DOUBLE if isinstance(plain, float) else self._VALUE_TYPE_U64
            union = SimpleNamespace(dVal=plain, ullVal=plain, uiVal=int(plain) % 2**32)
            if key in gpu.narrow_fields:
                kind = self._VALUE_TYPE_U32
            found.append(SimpleNamespace(fieldId=key[0], scopeId=key[1], nvmlReturn=code, valueType=kind, value=union))
        return found

    # --- GPM -------------------------------------------------------------------------------------

    def nvmlGpmQueryDeviceSupport(self, handle: FakeGpu) -> Any:
        """Return whether the card supports GPM."""
        return SimpleNamespace(isSupportedDevice=int(bool(self._gpu(handle, "nvmlGpmQueryDeviceSupport").gpm)))

    def nvmlGpmSampleAlloc(self) -> FakeSample:
        """Make room for a sample."""
        self._check_open()
        self.samples.append(FakeSample())
        return self.samples[-1]

    def nvmlGpmSampleFree(self, sample: FakeSample) -> None:
        """Give it back."""
        self._check_open()
        sample.freed = True

    def nvmlGpmSampleGet(self, handle: FakeGpu, sample: FakeSample) -> FakeSample:
        """Take a sample."""
        gpu = self._gpu(handle, "nvmlGpmSampleGet")
        if not gpu.gpm:
            raise NVMLError(3)
        sample.values = dict(gpu.gpm)
        return sample

    def nvmlGpmMetricsGet(self, request: _GpmMetricsGet) -> _GpmMetricsGet:
        """Compute the metrics between two samples."""
        self._check_open()
        first, second = request.sample1.values, request.sample2.values
        if request.version != self.NVML_GPM_METRICS_GET_VERSION or first is None or second is None:
            raise NVMLError(2)
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in second else 3
            metric.value = second.get(metric.metricId, 0.0)
        return request

    # --- states ----------------------------------------------------------------------------------

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:
        """Return the mask of clock reasons."""
        return self._gpu(handle, "nvmlDeviceGetCurrentClocksEventReasons").reasons_mask

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeGpu) -> int:
        """Return the mask of clock reasons (older name of the function)."""
        return self._gpu(handle, "nvmlDeviceGetCurrentClocksThrottleReasons").reasons_mask

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: FakeGpu) -> int:
        """Return the current PCIe generation."""
        return self._gpu(handle, "nvmlDeviceGetCurrPcieLinkGeneration").gen

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeGpu) -> int:
        """Return the current number of PCIe lanes."""
        return self._gpu(handle, "nvmlDeviceGetCurrPcieLinkWidth").width

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: FakeGpu) -> int:
        """Return the highest PCIe generation of card and slot."""
        return self._gpu(handle, "nvmlDeviceGetMaxPcieLinkGeneration").max_gen

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: FakeGpu) -> int:
        """Return the highest number of PCIe lanes of card and slot."""
        return self._gpu(handle, "nvmlDeviceGetMaxPcieLinkWidth").max_width

    def nvmlDeviceGetRemappedRows(self, handle: FakeGpu) -> tuple[int, int, int, int]:
        """Return (corrected, uncorrected, pending, failure)."""
        return self._gpu(handle, "nvmlDeviceGetRemappedRows").remapped_rows

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, kind: int, counter: int) -> int:
        """Return the count of corrected or uncorrected ECC errors."""
        del counter
        gpu = self._gpu(handle, "nvmlDeviceGetTotalEccErrors")
        corrected = kind == self.NVML_MEMORY_ERROR_TYPE_CORRECTED
        return gpu.ecc_corrected_count if corrected else gpu.ecc_uncorrected_count

    def nvmlDeviceGetNvLinkState(self, handle: FakeGpu, link: int) -> int:
        """Return 1 if the link is active, else 0."""
        gpu = self._gpu(handle, "nvmlDeviceGetNvLinkState")
        if link >= len(gpu.nvlinks):
            raise NVMLError(2 if gpu.nvlinks else 3)
        return gpu.nvlinks[link]

    # --- events ----------------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> object:
        """Create an event set."""
        self._check_open()
        return _Unhashable()

    def nvmlEventSetFree(self, event_set: object) -> None:
        """Free an event set."""
        del event_set
        self._check_open()
        self._registered.clear()

    def nvmlDeviceGetSupportedEventTypes(self, handle: FakeGpu) -> int:
        """Return the mask of supported event types."""
        self._gpu(handle, "nvmlDeviceGetSupportedEventTypes")
        return self.nvmlEventTypeXidCriticalError

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, types: int, event_set: object) -> None:
        """Register a GPU for events."""
        del types, event_set
        self._registered.add(self._gpu(handle, "nvmlDeviceRegisterEvents").uuid)

    def nvmlEventSetWait_v2(self, event_set: object, timeout_milliseconds: int) -> Any:
        """Return one event; without one, fail with "timeout" at once."""
        del event_set, timeout_milliseconds
        self._check_open()
        if not self._events:
            raise NVMLError(10)
        gpu, code = self._events.popleft()
        return SimpleNamespace(device=gpu, eventType=self.nvmlEventTypeXidCriticalError, eventData=code)


def hopper(index: int) -> FakeGpu:
    """Return a fake H100 under load: GPM, 18 NVLinks, ECC."""
    gpm = {1: 96.0, 2: 88.0, 5: 45.0, 10: 38.0, 11: 0.0, 12: 6.0, 13: 2.0, 20: 900.0, 21: 1100.0, 60: 9e4, 61: 9e4}
    uuid = f"GPU-{index:08x}-fa4e-4a4e-8a4e-00000000fa4e"
    errors: dict[tuple[int, int], float | NVMLError] = {(number, 0): 0 for number in (38, 45, 52, 59, 230)}
    return FakeGpu(uuid, f"00000000:{0x19 + 0x11 * index:02X}:00.0", index, gpm=gpm, fields=errors)


def ampere(index: int) -> FakeGpu:
    """Return a fake A100: no GPM, counters for its links."""
    gpu = hopper(index)
    gpu.architecture, gpu.gen, gpu.max_gen, gpu.gpm, gpu.nvlinks = 7, 4, 4, {}, [1] * 12
    gpu.fields.update({(138, ALL_LINKS): 0, (139, ALL_LINKS): 0, (197, 0): 0, (198, 0): 0})
    return gpu


def fake_host(count: int = 8) -> FakeNvml:
    """Return a fake NVML with this number of H100s."""
    return FakeNvml([hopper(index) for index in range(count)])

"""Collector of NVIDIA GPUs, from the driver's management library (nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tocsin.collectors.api import Collector, CollectorError, GpuPlace, HostEvent, NothingHere, Reading
from tocsin.collectors.sources._nvml_calls import Asker, DriverGoneError, GpuLostError
from tocsin.collectors.sources._nvml_samples import GpuSampler
from tocsin.collectors.sources._nvml_states import GpuStates
from tocsin.collectors.sources.settings import SourceSettings
from tocsin.schemas import events
from tocsin.schemas.formats.pci import normal_pci
from tocsin.schemas.formats.xid import meaning_of_xid, severity_of
from tocsin.schemas.records import NS_PER_SECOND, EventSource, Severity

log = logging.getLogger(__name__)

STATE_TICKS: Final = 5
"""Samples between two checks of a GPU's states; the GPUs' checks are spread over the samples."""
PROCESS_TICKS: Final = 10
OPEN_AGAIN_NS: Final = 60 * NS_PER_SECOND
MAX_EVENTS: Final = 64
_TIMEOUT: Final = 10
_NO_DRIVER: Final = {12: "no NVML library", 9: "no NVIDIA driver is loaded", 4: "this user may not ask the driver"}
_ARCHITECTURES: Final = {7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin"}


@dataclass(frozen=True, slots=True)
class NvmlConfig:
    """Settings of the NVML collector.

    Attributes:
        period_seconds: time between samples.
        library: fake to use in place of pynvml; None: pynvml, imported when needed.
    """

    period_seconds: float = 1.0
    library: Any = None


@dataclass(slots=True)
class _Gpu:
    """One GPU that answered at least once."""

    index: int
    uuid: str
    pci: str
    architecture: str
    asker: Asker
    sampler: GpuSampler
    states: GpuStates
    pids: tuple[int, ...] = ()
    lost_ns: int = 0
    seen: bool = False


class NvmlCollector:
    """Reports the metrics of every GPU, its states on change, and XIDs as they occur.

    A lost GPU is reported once and skipped for a minute at a time; the others continue.

    Attributes:
        skipped: skipped answers by reason: ``nvml_error_N``, ``out_of_range``.
    """

    name = "nvml"

    def __init__(self, config: NvmlConfig) -> None:
        """Create the collector; nothing is opened yet."""
        self.period_seconds = config.period_seconds
        self.skipped: Counter[str] = Counter()
        self._config = config
        self._library: Any = None
        self._gpus: list[_Gpu] = []
        self._event_set: Any = None
        self._absent: tuple[int, str] = (0, "")
        self._tick = 0
        self._lost_indices: set[int] = set()

    def collect(self, now_ns: int) -> Reading:
        """Return the GPUs' metrics, events and positions now.

        Raises:
            NothingHere: this host has no NVIDIA driver or GPU; checked again every minute.
            CollectorError: the driver is gone; it is opened again by the next call.
        """
        host_events = [] if self._gpus else self._open(now_ns)
        self._tick += 1
        values: dict[str, dict[str, float]] = {}
        try:
            for gpu in self._gpus:
                read = self._read(gpu, now_ns, host_events)
                if read:
                    values[gpu.uuid] = read
            host_events.extend(self._xids())
        except DriverGoneError as error:
            self.close()
            raise CollectorError(f"the NVIDIA driver went away: {error}; opened again at the next sample") from error
        places = {gpu.uuid: GpuPlace(gpu.index, gpu.pci, gpu.pids) for gpu in self._gpus}
        return Reading(gpus=values, events=tuple(host_events), places=places)

    def close(self) -> None:
        """Free what the driver holds for this collector."""
        library, gpus, event_set = self._library, self._gpus, self._event_set
        self._library, self._gpus, self._event_set = None, [], None
        if library is None:
            return
        try:
            for gpu in gpus:
                gpu.sampler.close()
            if event_set is not None:
                library.nvmlEventSetFree(event_set)
            library.nvmlShutdown()
        except library.NVMLError as error:
            log.debug("NVML was closed already", extra={"error": str(error)})

    # --- opening ---------------------------------------------------------------------------------

    def _open(self, now_ns: int) -> list[HostEvent]:
        """Open NVML and find the GPUs; return events about those that do not answer."""
        until_ns, why = self._absent
        if why and now_ns < until_ns:
            raise NothingHere(why)
        try:
            library, count = self._loaded()
        except NothingHere as error:
            self._absent = (now_ns + OPEN_AGAIN_NS, str(error))
            raise
        self._absent, self._library = (0, ""), library
        host_events: list[HostEvent] = []
        for index in range(count):
            try:
                self._gpus.append(self._found(index, now_ns))
            except GpuLostError as error:
                if index not in self._lost_indices:
                    self._lost_indices.add(index)
                    host_events.append(_lost({"gpu": index}, str(error)))
            except library.NVMLError as error:
                self.skipped[f"nvml_error_{error.value}"] += 1
                log.warning("GPU skipped", extra={"collector": self.name, "gpu": index, "error": str(error)})
        if self._gpus:
            self._register()
            return host_events
        self.close()
        self._absent = (now_ns + OPEN_AGAIN_NS, f"none of {count} GPUs answers")
        if not host_events:
            raise NothingHere(self._absent[1])
        return host_events

    def _loaded(self) -> tuple[Any, int]:
        """Return the opened library and the number of its GPUs."""
        library = self._config.library or nvml_library()
        try:
            library.nvmlInit()
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            reason = _NO_DRIVER.get(error.value)
            if reason is None:
                raise CollectorError(f"NVML cannot be opened: {error} (code {error.value})") from error
            raise NothingHere(f"{reason}: {error}") from error
        if not count:
            raise NothingHere("the NVIDIA driver knows no GPU")
        return library, int(count)

    def _found(self, index: int, now_ns: int) -> _Gpu:
        """Return the GPU with this index."""
        library = self._library
        asker = Asker(library, None, self.skipped)
        asker.now_ns = now_ns
        try:
            asker.handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(library.nvmlDeviceGetUUID(asker.handle))
        except library.NVMLError as error:
            asker.note(error)
            raise
        info = asker.ask("nvmlDeviceGetPciInfo")
        pci = normal_pci(_text(getattr(info, "busId", "")))
        architecture = _ARCHITECTURES.get(asker.ask("nvmlDeviceGetArchitecture"), "")
        sampler = GpuSampler(asker, self.skipped)
        states = GpuStates(asker, sampler, {"uuid": uuid, "pci": pci})
        return _Gpu(index, uuid, pci, architecture, asker, sampler, states)

    def _register(self) -> None:
        """Register for XID events; if the driver cannot (a container without rights), only kernel_log reports them."""
        library = self._library
        try:
            self._event_set = library.nvmlEventSetCreate()
        except library.NVMLError as error:
            self.skipped[f"nvml_error_{error.value}"] += 1
            return
        for gpu in self._gpus:
            try:
                supported = gpu.asker.ask("nvmlDeviceGetSupportedEventTypes") or 0
                wanted = supported & library.nvmlEventTypeXidCriticalError
                if wanted:
                    gpu.asker.ask("nvmlDeviceRegisterEvents", wanted, self._event_set)
            except GpuLostError:
                continue  # said with its first sample

    # --- reading ---------------------------------------------------------------------------------

    def _read(self, gpu: _Gpu, now_ns: int, host_events: list[HostEvent]) -> dict[str, float]:
        """Return a GPU's metrics and add its events to the list; empty for a lost GPU."""
        if gpu.lost_ns and 0 <= now_ns - gpu.lost_ns < OPEN_AGAIN_NS:
            return {}
        gpu.asker.now_ns = now_ns
        try:
            first = not gpu.seen or gpu.lost_ns
            if gpu.lost_ns:
                self._library.nvmlDeviceGetUUID(gpu.asker.handle)
            values = gpu.sampler.read(now_ns)
            found = gpu.states.clocks()
            if first or (self._tick + gpu.index) % STATE_TICKS == 0:
                found.extend(gpu.states.look(now_ns))
            if first or (self._tick + gpu.index) % PROCESS_TICKS == 0:
                running = gpu.asker.ask("nvmlDeviceGetComputeRunningProcesses") or ()
                gpu.pids = tuple(sorted({int(process.pid) for process in running}))
        except (GpuLostError, self._library.NVMLError) as error:
            if not gpu.lost_ns:
                host_events.append(_lost({"uuid": gpu.uuid, "pci": gpu.pci, "gpu": gpu.index}, str(error)))
            gpu.lost_ns = now_ns
            return {}
        gpu.lost_ns, gpu.seen = 0, True
        host_events.extend(found)
        return values

    def _xids(self) -> list[HostEvent]:
        """Return events for the XIDs since the last call, without waiting for one."""
        library, out = self._library, []
        for _ in range(MAX_EVENTS if self._event_set is not None else 0):
            try:
                data = library.nvmlEventSetWait_v2(self._event_set, 0)
            except library.NVMLError as error:
                if error.value == _TIMEOUT:
                    break
                with contextlib.suppress(GpuLostError):  # one of them; each says so itself
                    Asker(library, None, self.skipped).note(error)
                break
            if data.eventType & library.nvmlEventTypeXidCriticalError:
                out.append(self._xid(int(data.eventData), self._gpu_of(data.device)))
        return out

    def _gpu_of(self, handle: Any) -> _Gpu | None:
        """Return the GPU of a handle, None if unknown."""
        try:
            uuid = _text(self._library.nvmlDeviceGetUUID(handle))
        except self._library.NVMLError:  # lost: its address is all that is left
            return next((gpu for gpu in self._gpus if _address(gpu.asker.handle) == _address(handle)), None)
        return next((gpu for gpu in self._gpus if gpu.uuid == uuid), None)

    def _xid(self, code: int, gpu: _Gpu | None) -> HostEvent:
        """Build the event of an XID."""
        payload: dict[str, Any] = {"code": code, "pci": gpu.pci if gpu else "", "via": "nvml"}
        if gpu is not None:
            payload.update(uuid=gpu.uuid, gpu=gpu.index, architecture=gpu.architecture)
        meaning = meaning_of_xid(code, architecture=gpu.architecture if gpu else "")
        return HostEvent(events.XID, EventSource.KERNEL, severity_of(meaning), payload)


def _lost(payload: dict[str, Any], why: str) -> HostEvent:
    """Build the event of a lost GPU."""
    return HostEvent(events.GPU_LOST, EventSource.KERNEL, Severity.FATAL, {**payload, "text": f"NVML: {why}"[:300]})


def _address(handle: Any) -> int | None:
    """Return the address that identifies a device handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value if hasattr(handle, "contents") else id(handle)


def _text(value: object) -> str:
    """Return an NVML string, which may be bytes, as text."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def nvml_library(load: Callable[[str], object] = ctypes.CDLL) -> Any:
    """Import pynvml, which costs 18 MB, only if the driver's library is there; raise ``NothingHere`` otherwise."""
    try:
        load("libnvidia-ml.so.1")
    except OSError as error:
        raise NothingHere(f"no NVML library: {error}") from error
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise NothingHere("no nvidia-ml-py in this environment: pip install nvidia-ml-py") from error


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of the GPUs; with ``fake:N``, of N simulated GPUs."""
    library = None
    if settings.nvml.startswith("fake:"):
        from tocsin.collectors.testing.fake_nvml import fake_host

        library = fake_host(int(settings.nvml.removeprefix("fake:")))
    return [NvmlCollector(NvmlConfig(settings.period_seconds, library))]

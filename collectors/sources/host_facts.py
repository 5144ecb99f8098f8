"""Facts about the host that change only with a boot or an update: boot id, kernel, GPU driver and firmware."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.collectors.api import Collector, HostEvent, NothingHere, Reading
from tocsin.collectors.sources.procfs import Roots, read_text
from tocsin.collectors.sources.settings import SourceSettings
from tocsin.schemas import events
from tocsin.schemas.errors import CollectorError
from tocsin.schemas.records import NS_PER_SECOND, EventSource, Severity

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 5.0
LOOK_NS: Final = 60 * NS_PER_SECOND
"""Distance of two looks at the driver, which may be replaced while the host runs."""
AGAIN_NS: Final = 300 * NS_PER_SECOND
"""Distance of two reports of facts that did not change, for engines that began meanwhile."""
_MAX_CHARACTERS: Final = 200
_BOOT_ID: Final = "sys/kernel/random/boot_id"
_KERNEL: Final = "sys/kernel/osrelease"


@dataclass(frozen=True, slots=True)
class HostFactsConfig:
    """Settings of the collector.

    Attributes:
        roots: mount points of /proc and /sys.
        library: returns the NVML module, and raises ``NothingHere`` without a driver; None: GPUs are not asked.
    """

    roots: Roots = field(default_factory=Roots)
    library: Callable[[], Any] | None = None


class HostFactsCollector:
    """Reports the facts as one event: at start, when one of them changes, and every five minutes."""

    name = "host_facts"
    period_seconds = PERIOD_SECONDS

    def __init__(self, config: HostFactsConfig) -> None:
        """Create the collector; nothing is read yet."""
        self._config = config
        self._looked_ns = self._said_ns = 0
        self._said: dict[str, str] = {}

    def collect(self, now_ns: int) -> Reading:
        """Return the event if it is due.

        Raises:
            NothingHere: no fact can be read here.
        """
        if 0 <= now_ns - self._looked_ns < LOOK_NS:
            return Reading()
        self._looked_ns = now_ns
        facts = {**self._kernel(), **self._gpu()}
        if not facts:
            raise NothingHere("neither a boot id nor a kernel release nor a GPU driver can be read")
        if facts == self._said and 0 <= now_ns - self._said_ns < AGAIN_NS:
            return Reading()
        self._said, self._said_ns = facts, now_ns
        payload = {**facts, **self._booted(now_ns)}
        return Reading(events=(HostEvent(events.HOST_FACTS, EventSource.KERNEL, Severity.INFO, payload),))

    def _kernel(self) -> dict[str, str]:
        """Return boot id and kernel release, as far as they can be read."""
        found = {"boot_id": self._read(_BOOT_ID), "kernel": self._read(_KERNEL)}
        return {key: value for key, value in found.items() if value}

    def _booted(self, now_ns: int) -> dict[str, int]:
        """Return when the host booted, if the kernel says for how long it is up."""
        words = self._read("uptime").split()
        try:
            return {"booted_ns": max(0, now_ns - round(float(words[0]) * NS_PER_SECOND))} if words else {}
        except (ValueError, OverflowError):
            return {}

    def _read(self, path: str) -> str:
        """Return a file of /proc in one line, "" if it cannot be read."""
        try:
            return read_text(f"{self._config.roots.proc}/{path}").strip()[:_MAX_CHARACTERS]
        except (OSError, CollectorError) as error:
            log.debug("not read", extra={"collector": self.name, "path": path, "error": str(error)})
            return ""

    def _gpu(self) -> dict[str, str]:
        """Return versions of the GPU driver and of its firmware; what NVML does not know is left out."""
        if self._config.library is None:
            return {}
        try:
            library = self._config.library()
        except NothingHere:
            return {}
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            log.debug("NVML cannot be opened", extra={"collector": self.name, "error": str(error)})
            return {}
        try:
            found = {"driver": _text(library, "nvmlSystemGetDriverVersion"), "firmware": _firmware(library)}
        finally:
            _shut(library)
        return {key: value[:_MAX_CHARACTERS] for key, value in found.items() if value}


def _firmware(library: Any) -> str:
    """Return the versions of all GPUs' firmware as one text: ``vbios A,B gsp C``, each version once."""
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    except library.NVMLError:
        return ""  # a lost GPU: said again once all of them answer
    parts = []
    for name, call in (("vbios", "nvmlDeviceGetVbiosVersion"), ("gsp", "nvmlDeviceGetGspFirmwareVersion")):
        versions = sorted({_text(library, call, handle) for handle in handles} - {""})
        parts += [f"{name} {','.join(versions)}"] if versions else []
    return " ".join(parts)


def _text(library: Any, call: str, *args: Any) -> str:
    """Return the text that a call of NVML gives, "" if it is not supported."""
    function = getattr(library, call, None)
    if function is None:
        return ""
    try:
        value = function(*args)
    except library.NVMLError:
        return ""
    text = (value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)).strip()
    return "" if text == "N/A" else text


def _shut(library: Any) -> None:
    """Give NVML back; the collector of GPU metrics may still hold it."""
    try:
        library.nvmlShutdown()
    except library.NVMLError as error:
        log.debug("NVML was closed already", extra={"error": str(error)})


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of host facts; GPUs are asked if the collector of their metrics asks them."""
    library: Callable[[], Any] | None = None
    if settings.nvml.startswith("fake:"):
        from tocsin.collectors.testing.fake_nvml import fake_host

        fake = fake_host(int(settings.nvml.removeprefix("fake:")))
        library = lambda: fake  # noqa: E731  # a factory, as ``nvml_library`` is
    elif settings.nvml == "auto":
        from tocsin.collectors.sources.nvml import nvml_library

        library = nvml_library
    return [HostFactsCollector(HostFactsConfig(settings.roots, library))]

"""Collector of InfiniBand and RoCE ports, from /sys/class/infiniband."""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.collectors.api import Collector, HostEvent, NothingHere, Reading
from tocsin.collectors.sources.procfs import KeptFiles, Roots
from tocsin.collectors.sources.rates import Rates
from tocsin.collectors.sources.settings import SourceSettings
from tocsin.schemas import events
from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.infiniband import parse_counter, parse_rate_gbps, parse_state
from tocsin.schemas.records import NS_PER_SECOND, EventSource, Severity

log = logging.getLogger(__name__)

WORD_BYTES: Final = 4
"""Bytes in a unit of ``port_rcv_data`` and ``port_xmit_data``, on RoCE ports too."""
SCAN_NS: Final = 10 * NS_PER_SECOND
DETAIL_TICKS: Final = 5
"""Samples between two reads of rate and ``link_downed``, which ask the card's firmware; also read when the state
changed."""
MAX_PORTS: Final = 256
MAX_LOGGED_PATHS: Final = 64
ACTIVE: Final = "active"
GONE: Final = "gone"

# metric -> the counters that make it, each with its factor. Of several lists the first that the port has counts.
_SOURCES: Final = {
    "rdma_bytes_per_second": (
        (("counters/port_rcv_data", WORD_BYTES), ("counters/port_xmit_data", WORD_BYTES)),
        (("hw_counters/rx_bytes", 1), ("hw_counters/tx_bytes", 1)),  # EFA, and others without counters/
    ),
    "ecn_packets_per_second": ((("hw_counters/np_ecn_marked_roce_packets", 1),),),
    "cnp_packets_per_second": ((("hw_counters/np_cnp_sent", 1), ("hw_counters/rp_cnp_handled", 1)),),
}


@dataclass(frozen=True, slots=True)
class RdmaConfig:
    """Settings of the RDMA collector.

    Attributes:
        roots: mount point of /sys.
        period_seconds: time between samples.
    """

    roots: Roots = field(default_factory=Roots)
    period_seconds: float = 1.0


@dataclass(slots=True)
class _Port:
    """One port: its counter files, and its last known state."""

    name: str
    path: str
    counters: dict[str, tuple[tuple[str, int], ...]]
    has_link_downed: bool
    state: str = ""
    phys_state: str = ""
    rate_gbps: float = 0.0
    max_rate_gbps: float = 0.0
    link_downed: int = 0
    flaps: int = 0
    seen: bool = False


class RdmaCollector:
    """Reports the ports' summed traffic, and an event for each port whose state, rate or ``link_downed`` changed.

    PFC frames are counted by the Ethernet driver only and shown by ethtool, not by sysfs, so
    ``pfc_tx_packets_per_second`` has no sample from here.

    Attributes:
        skipped: skipped files by reason: ``unreadable``, ``malformed``.
    """

    name = "rdma"

    def __init__(self, config: RdmaConfig) -> None:
        """Create the collector; nothing is read yet."""
        self.period_seconds = config.period_seconds
        self.skipped: Counter[str] = Counter()
        self._folder = f"{config.roots.sys}/class/infiniband"
        self._ports: dict[str, _Port] = {}
        self._scanned_ns = 0
        self._tick = 0
        self._rates = Rates()
        self._files = KeptFiles()
        self._logged_paths: set[str] = set()

    def collect(self, now_ns: int) -> Reading:
        """Return traffic and changed ports now.

        Raises:
            NothingHere: this host has no RDMA device.
        """
        if not self._ports or not 0 <= now_ns - self._scanned_ns < SCAN_NS:
            self._scan(now_ns)
        values: dict[str, float] = {}
        for metric in _SOURCES:
            total = self._total(metric, now_ns)
            if total is not None:
                values[metric] = total
        self._tick += 1
        host_events: list[HostEvent] = []
        for index, port in enumerate(self._ports.values()):
            found = self._change(port, in_detail=(self._tick + index) % DETAIL_TICKS == 0)
            if found is not None:
                host_events.append(found)
        return Reading(host=values, events=tuple(host_events))

    @property
    def port_names(self) -> tuple[str, ...]:
        """The ports that were found, as ``device/port``."""
        return tuple(self._ports)

    def _scan(self, now_ns: int) -> None:
        """Find new ports; known ones that vanished are kept with the state "gone"."""
        try:
            devices = sorted(os.listdir(self._folder))
        except FileNotFoundError as error:
            if not self._ports:
                raise NothingHere(f"{self._folder} does not exist: no RDMA device") from error
            devices = []
        except OSError as error:
            raise NothingHere(f"{self._folder} cannot be listed: {error.strerror}") from error
        self._scanned_ns = now_ns
        for device in devices:
            for port in self._listed(f"{self._folder}/{device}/ports"):
                name, path = f"{device}/{port}", f"{self._folder}/{device}/ports/{port}"
                if name not in self._ports and len(self._ports) < MAX_PORTS:
                    self._ports[name] = _Port(
                        name, path, _counters_of(path), os.path.exists(f"{path}/counters/link_downed")
                    )
        if not self._ports:
            raise NothingHere(f"{self._folder} lists no port")

    def _listed(self, folder: str) -> list[str]:
        """Return the sorted entries of a folder; empty if it cannot be listed."""
        try:
            return sorted(os.listdir(folder))
        except OSError as error:
            self._skip("unreadable", folder, error.strerror or str(error))
            return []

    # --- traffic ---------------------------------------------------------------------------------

    def _total(self, metric: str, now_ns: int) -> float | None:
        """Return a metric's sum over all ports; None if a port that has the counter gives no rate this time.

        A sum without that port would look like a drop of traffic.
        """
        total, found = 0.0, False
        for port in self._ports.values():
            if port.state == GONE:
                continue
            for name, factor in port.counters.get(metric, ()):
                value = self._counter(f"{port.path}/{name}")
                if value is None:
                    self._rates.forget((port.name, name))
                    continue
                rate = self._rates.per_second((port.name, name), value, now_ns)
                if rate is None:
                    found, total = True, float("nan")
                    continue
                found, total = True, total + rate * factor
        return total if found and total == total else None  # noqa: PLR0124  # NaN: a first value, or a counter that went back

    def _counter(self, path: str) -> int | None:
        """Return the value of a counter file, None if it cannot be read."""
        text = self._text(path)
        if text is None:
            return None
        try:
            return parse_counter(path, text)
        except FieldError as error:
            self._skip("malformed", path, str(error))
            return None

    def _text(self, path: str) -> str | None:
        """Return the text of a file, None if it cannot be read."""
        try:
            return self._files.read(path)
        except OSError as error:
            self._skip("unreadable", path, error.strerror or str(error))
            return None

    def _skip(self, reason: str, path: str, why: str) -> None:
        """Count a file that cannot be read; each file is logged once."""
        self.skipped[reason] += 1
        if path not in self._logged_paths and len(self._logged_paths) < MAX_LOGGED_PATHS:
            self._logged_paths.add(path)
            log.warning("file skipped", extra={"collector": self.name, "reason": reason, "path": path, "error": why})

    # --- states ----------------------------------------------------------------------------------

    def _change(self, port: _Port, *, in_detail: bool) -> HostEvent | None:
        """Return an event if the port changed, or at the start if it is not active."""
        before = (port.state, port.rate_gbps, port.link_downed)
        first, port.seen = not port.seen, True
        if not self._look(port, in_detail=in_detail or first):
            return None
        after = (port.state, port.rate_gbps, port.link_downed)
        if after == before or (first and port.state == ACTIVE):
            return None
        severity = Severity.INFO if port.state == ACTIVE else Severity.WARNING if first else Severity.ERROR
        payload: dict[str, Any] = {
            "port": port.name,
            "state": port.state,
            "rate_gbps": port.rate_gbps,
            "link_downed": port.link_downed,
            "max_rate_gbps": port.max_rate_gbps,
            "phys_state": port.phys_state,
            "flaps": port.flaps,
            "at_start": first,
        }
        return HostEvent(events.IB_PORT, EventSource.KERNEL, severity, payload)

    def _look(self, port: _Port, *, in_detail: bool) -> bool:
        """Update a port's state, and in detail its rate and ``link_downed``.

        Return False if the state cannot be read.
        """
        try:
            state = parse_state("state", self._files.read(f"{port.path}/state"))
        except (FileNotFoundError, NotADirectoryError):
            port.state, port.phys_state = GONE, ""
            return True
        except (OSError, FieldError) as error:
            self._skip("malformed" if isinstance(error, FieldError) else "unreadable", f"{port.path}/state", str(error))
            return False
        if port.state == GONE:
            port.counters = _counters_of(port.path)
        in_detail |= state != port.state
        port.state, port.flaps = state, 0
        if not in_detail:
            return True
        for name in ("rate", "phys_state"):
            self._look_at(port, name)
        downed = self._counter(f"{port.path}/counters/link_downed") if port.has_link_downed else None
        if downed is not None:
            port.flaps = self._rates.increase((port.name, "link_downed"), downed)
            port.link_downed = downed
        return True

    def _look_at(self, port: _Port, name: str) -> None:
        """Update a port's physical state or rate from its file."""
        path = f"{port.path}/{name}"
        text = self._text(path)
        if text is None:
            return
        try:
            if name == "phys_state":
                port.phys_state = parse_state(path, text)
            elif port.state == ACTIVE:  # a port that is down shows the rate of a link that it has not
                port.rate_gbps = parse_rate_gbps(path, text)
                port.max_rate_gbps = max(port.max_rate_gbps, port.rate_gbps)
        except FieldError as error:
            self._skip("malformed", path, str(error))


def _counters_of(path: str) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return metric -> counters of this port for it, as (file, factor)."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for metric, lists in _SOURCES.items():
        for names in lists:
            present = tuple((name, factor) for name, factor in names if os.path.exists(f"{path}/{name}"))
            if present:
                found[metric] = present
                break
    return found


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of the InfiniBand and RoCE ports."""
    return [RdmaCollector(RdmaConfig(settings.roots, settings.period_seconds))]

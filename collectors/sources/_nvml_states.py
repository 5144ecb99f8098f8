"""States of one GPU, reported when they change, and at the start if they are not healthy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tocsin.collectors.api import HostEvent
from tocsin.collectors.sources._nvml_calls import Asker, number
from tocsin.collectors.sources._nvml_samples import GpuSampler
from tocsin.collectors.sources.rates import Rates
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, EventSource, Severity

CLOCK_REASONS: Final = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Bit of NVML's mask -> clock reason that is reported; idle, set clocks and display clocks are not."""
ON_SAMPLES: Final = 2
OFF_SAMPLES: Final = 5
"""Samples without a clock reason after which it counts as off; seen twice in a row it counts as on. Clock reasons flap
many times a second."""
REPORT_AGAIN_NS: Final = 60 * NS_PER_SECOND
_RECOVERY: Final = (230, 0)
_TOTALS: Final = {(38, 0): "crc", (45, 0): "crc", (52, 0): "replay", (59, 0): "recovery"}
"""NVLink error counters over all links, up to Hopper: (field, scope) -> kind of error."""
_PER_LINK: Final = {206: "malformed", 207: "overrun", 208: "receive", 211: "integrity", 214: "recovery_failed"}
"""NVLink 5 error counters per link: field -> kind of error."""
MAX_LINKS: Final = 18


class GpuStates:
    """Watches one GPU's states and reports changes as events."""

    def __init__(self, asker: Asker, sampler: GpuSampler, identity: Mapping[str, Any]) -> None:
        """Start without known states; ``identity`` (uuid, pci) is added to every payload."""
        self._asker = asker
        self._sampler = sampler
        self._identity = dict(identity)
        self._first = True
        self._link = (0, 0, 0, 0)
        self._remap = (False, False)
        self._recovery = 0
        self._reasons: frozenset[str] = frozenset()
        self._streak: dict[str, int] = {}
        self._rates = Rates()
        self._pending: dict[tuple[str, int], int] = {}
        self._reported_ns: dict[tuple[str, int], int] = {}
        self._nvlink_fields: tuple[tuple[int, int], ...] | None = None
        self._links: dict[int, bool] = {}

    def clocks(self) -> list[HostEvent]:
        """Check the clock reasons and return the events; called with every sample."""
        mask = self._asker.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._asker.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if number(mask) is None:
            return []
        now_on = set(self._reasons)
        for bit, name in CLOCK_REASONS.items():
            if mask & bit:
                self._streak[name] = max(0, self._streak.get(name, 0)) + 1
                if self._streak[name] >= ON_SAMPLES:
                    now_on.add(name)
            else:
                self._streak[name] = min(0, self._streak.get(name, 0)) - 1
                if self._streak[name] <= -OFF_SAMPLES:
                    now_on.discard(name)
        if now_on == self._reasons:
            return []
        self._reasons = frozenset(now_on)
        bad = now_on - {"sw_power_cap", "sync_boost"}
        severity = Severity.WARNING if bad else Severity.INFO
        return [self._gpu_event(events.CLOCKS_EVENT, severity, {"reasons": sorted(now_on)})]

    def look(self, now_ns: int) -> list[HostEvent]:
        """Check all slowly changing states and return the events."""
        out = [*self._pcie(), *self._row_remap(), *self._recovery_action(), *self._ecc(now_ns), *self._nvlink(now_ns)]
        self._first = False
        return out

    def _gpu_event(self, name: str, severity: Severity, payload: Mapping[str, Any]) -> HostEvent:
        """Build an event with the GPU's identity in its payload."""
        return HostEvent(name, EventSource.KERNEL, severity, {**payload, **self._identity, "at_start": self._first})

    def _pcie(self) -> list[HostEvent]:
        """Return an event if the PCIe link's generation or width changed."""
        ask = self._asker.ask
        found = [
            number(ask(f"nvmlDeviceGet{name}"))
            for name in ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth")
        ]
        gen, width, max_gen, max_width = (int(value or 0) for value in found)
        if not (gen and width and max_gen and max_width):
            return []
        self._sampler.pcie_gen, self._sampler.pcie_width = gen, width
        if self._sampler.is_idle and gen < max_gen:
            gen = self._link[0] or max_gen  # an idle card saves power on its link: no fault
        link, before = (gen, width, max_gen, max_width), self._link
        self._link = link
        if link == before or (self._first and link[:2] == link[2:]):
            return []
        severity = Severity.INFO if link[:2] == link[2:] else Severity.WARNING
        names = ("gen", "width", "max_gen", "max_width")
        return [self._gpu_event(events.PCIE_LINK, severity, dict(zip(names, link, strict=True)))]

    def _row_remap(self) -> list[HostEvent]:
        """Return an event if the state of memory row remapping changed."""
        found = self._asker.ask("nvmlDeviceGetRemappedRows")
        if found is None or len(found) != 4:
            return []
        remap, before = (bool(found[2]), bool(found[3])), self._remap
        self._remap = remap
        if remap == before:
            return []
        severity = Severity.ERROR if remap[1] else Severity.WARNING if remap[0] else Severity.INFO
        return [self._gpu_event(events.ROW_REMAP, severity, {"pending": remap[0], "failure": remap[1]})]

    def _recovery_action(self) -> list[HostEvent]:
        """Return an event if the driver's requested recovery action changed."""
        found = self._asker.fields((_RECOVERY,))
        action = int(found.get(_RECOVERY, self._recovery))
        before, self._recovery = self._recovery, action
        if action == before:
            return []
        return [self._gpu_event(events.GPU_RECOVERY, Severity.ERROR if action else Severity.INFO, {"action": action})]

    def _ecc(self, now_ns: int) -> list[HostEvent]:
        """Return events for ECC errors that were added since the last report."""
        library, out = self._asker.library, []
        kinds = (
            ("uncorrected", library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, Severity.ERROR),
            ("corrected", library.NVML_MEMORY_ERROR_TYPE_CORRECTED, Severity.WARNING),
        )
        for kind, number_of_kind, severity in kinds:
            raw = self._asker.ask("nvmlDeviceGetTotalEccErrors", number_of_kind, library.NVML_VOLATILE_ECC)
            value = number(raw)
            if value is None:
                continue
            count = self._grown((kind, -1), int(value), now_ns, at_once=kind == "uncorrected")
            if self._first and kind == "uncorrected":
                count = int(value)
            if count:
                out.append(self._gpu_event(events.ECC, severity, {"kind": kind, "count": count}))
        return out

    def _nvlink(self, now_ns: int) -> list[HostEvent]:
        """Return events for changed links and added NVLink errors."""
        out = self._link_states()
        if self._nvlink_fields is None:  # what this card has, found out once
            wanted = (*_TOTALS, *((field, link) for link in sorted(self._links) for field in _PER_LINK))
            self._nvlink_fields = tuple(self._asker.fields(wanted))
        for key, value in self._asker.fields(self._nvlink_fields).items():
            field, scope = key
            kind, link = (_TOTALS[key], -1) if key in _TOTALS else (_PER_LINK[field], scope)
            count = self._grown((f"nvlink_{field}", link), int(value), now_ns, at_once=False)
            if count:
                severity = Severity.WARNING if kind in {"crc", "replay"} else Severity.ERROR
                payload = {"kind": kind, "count": count, **({"link": link} if link >= 0 else {})}
                out.append(self._gpu_event(events.NVLINK_ERROR, severity, payload))
        return out

    def _link_states(self) -> list[HostEvent]:
        """Return events for links that went down or came up; links that are down at the start may have no cable."""
        out = []
        for link in range(MAX_LINKS) if self._first else sorted(self._links):
            state = self._asker.ask("nvmlDeviceGetNvLinkState", link)
            if state is None:
                if self._first:
                    break  # the card has no more
                continue
            before, self._links[link] = self._links.get(link), bool(state)
            if before is not None and before != bool(state):
                severity = Severity.INFO if state else Severity.ERROR
                payload = {"link": link, "state": "up" if state else "down"}
                out.append(self._gpu_event(events.NVLINK_ERROR, severity, payload))
        return out

    def _grown(self, key: tuple[str, int], value: int, now_ns: int, *, at_once: bool) -> int:
        """Return the growth of an error counter since it was last reported.

        At most once a minute unless ``at_once``.
        """
        pending = self._pending.get(key, 0) + self._rates.increase(key, value)
        reported_ns = self._reported_ns.get(key)
        if pending and (at_once or reported_ns is None or now_ns - reported_ns >= REPORT_AGAIN_NS):
            self._pending[key], self._reported_ns[key] = 0, now_ns
            return pending
        self._pending[key] = pending
        return 0

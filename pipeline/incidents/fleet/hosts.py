"""Facts of the fleet view on each host: last word, job or none, leaf switch, planned work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.schemas.action_events import MachineFacts
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND, Event
from tocsin.schemas.verdicts import Component, ComponentKind

_BUSY_NS = 60 * NS_PER_SECOND
"""A host that was heard of in a job within this time runs it."""
_AWAY_NS = 60 * NS_PER_SECOND
"""A gap between two ticks from which the engine was away, and heard nobody."""
_MAX_WORKS = 1000
_MAX_COLLECTORS = 32


@dataclass(slots=True)
class _FleetHost:
    """One host: when it was heard last, since and until when it ran a job, its leaf, whether its agent stopped."""

    heard_ns: int = 0
    busy_since_ns: int = 0
    busy_ns: int = 0
    leaf: str = ""
    has_left: bool = False
    worked: list[str] = field(default_factory=list)
    """Collectors that worked at least once."""
    told_ns: int = 0
    """Time of the newest facts, 0: none were told."""
    boot_id: str = ""
    booted_ns: int = 0
    driver: str = ""
    firmware: str = ""
    kernel: str = ""
    minipod: str = ""


class FleetHosts:
    """All hosts of a cluster; the one that was first seen longest ago is forgotten first."""

    def __init__(self, config: FleetConfig) -> None:
        """Start without hosts."""
        self._config = config
        self._all: dict[str, _FleetHost] = {}
        self._works: dict[str, Maintenance] = {}
        self._index()
        self._tick_ns = 0
        self._listening_ns = 0

    @property
    def count(self) -> int:
        """Number of known hosts."""
        return len(self._all)

    def heard(self, host: str, job_id: str, ts_ns: int) -> None:
        """Note that a host was heard of, in a job or in ``idle``."""
        known = self._all.get(host)
        if known is None:
            known = self._all[host] = _FleetHost()
            while len(self._all) > self._config.max_hosts_count:
                del self._all[next(iter(self._all))]
        known.heard_ns, known.has_left = max(known.heard_ns, ts_ns), False
        if job_id != IDLE_JOB_ID:
            if ts_ns - known.busy_ns > _BUSY_NS:
                known.busy_since_ns = ts_ns
            known.busy_ns = max(known.busy_ns, ts_ns)

    def collectors(self, host: str, reported: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return which collectors of a host worked before and fail now, and which work.

        Args:
            host: a host that was heard.
            reported: ``HostStatus.collectors``.
        """
        known = self._all[host]
        well = [name for name, state in reported.items() if isinstance(state, Mapping) and state.get("ok") is True]
        failed = [name for name in reported if name in known.worked and name not in well]
        known.worked = sorted({*known.worked, *well})[:_MAX_COLLECTORS]
        return failed, well

    def left(self, host: str) -> None:
        """Note that a host's agent stopped in order: its silence means nothing."""
        if host in self._all:
            self._all[host].has_left = True

    def place(self, host: str, leaf: str) -> None:
        """Note the leaf switch of a host."""
        if leaf and host in self._all:
            self._all[host].leaf = leaf

    def told(self, event: Event) -> bool:
        """Take a host's facts from its event; what it leaves out stays known. Return whether the host is known.

        The time of a boot stays as first told, because a clock that is corrected moves it a little.
        """
        known = self._all.get(event.host)
        if known is None or event.ts_ns < known.told_ns:
            return False
        said = event.payload
        boot_id, booted_ns = said.get("boot_id") or "", said.get("booted_ns")
        if boot_id and boot_id != known.boot_id:
            known.boot_id, known.booted_ns = boot_id, int(booted_ns or 0)
        known.told_ns = event.ts_ns
        known.driver, known.firmware = said.get("driver") or known.driver, said.get("firmware") or known.firmware
        known.kernel = said.get("kernel") or known.kernel
        known.minipod = said.get("minipod") or known.minipod
        return True

    def versions_of(self, host: str) -> tuple[str, str]:
        """Return the versions of a host's GPU driver and firmware, each "" if it is not known."""
        known = self._all.get(host)
        return ("", "") if known is None else (known.driver, known.firmware)

    def machines(self, cluster: str) -> Iterator[MachineFacts]:
        """Yield what is known of each machine, with time 0; any thread may ask.

        Args:
            cluster: cluster of the hosts.
        """
        for host, known in list(self._all.items()):
            if known.leaf or known.told_ns:
                yield MachineFacts(
                    cluster,
                    host,
                    0,
                    boot_id=known.boot_id,
                    driver=known.driver,
                    firmware=known.firmware,
                    leaf=known.leaf,
                    minipod=known.minipod,
                    booted_ns=known.booted_ns,
                )

    def leaves(self) -> dict[str, str]:
        """Return host -> its leaf switch, "": not known; any thread may ask."""
        return {host: known.leaf for host, known in list(self._all.items())}

    def leaf_of(self, host: str) -> str:
        """Return the leaf switch of a host, "": not known."""
        known = self._all.get(host)
        return "" if known is None else known.leaf

    def behind(self, leaf: str) -> int:
        """Return the number of hosts behind a leaf switch."""
        return sum(one.leaf == leaf for one in self._all.values())

    def is_busy(self, host: str, now_ns: int) -> bool:
        """Return whether a host runs a job."""
        known = self._all.get(host)
        return known is not None and now_ns - known.busy_ns <= _BUSY_NS

    def idle_count(self, now_ns: int) -> int:
        """Return the number of hosts that were heard lately and run no job."""
        fresh = (host for host, one in list(self._all.items()) if now_ns - one.heard_ns <= _BUSY_NS)
        return sum(not self.is_busy(host, now_ns) for host in fresh)

    def worked_ns(self, host: str, since_ns: int, now_ns: int) -> int:
        """Return for how long a host has run its present job, counted from ``since_ns`` at the earliest."""
        known = self._all.get(host)
        if known is None or not self.is_busy(host, now_ns):
            return 0
        return max(0, known.busy_ns - max(known.busy_since_ns, since_ns))

    def on_time(self, now_ns: int) -> None:
        """Note a tick; after a gap nobody's silence counts until the engine has listened for a while."""
        if not self._tick_ns or now_ns - self._tick_ns > _AWAY_NS:
            self._listening_ns = now_ns
        self._tick_ns = now_ns

    def silent(self, now_ns: int) -> list[str]:
        """Return the hosts that were heard within the last hour or so and are silent now, sorted."""
        if now_ns - self._listening_ns < self._config.silent_ns:
            return []
        shortest, longest = self._config.silent_ns, self._config.windows_ns[0]
        return sorted(
            host
            for host, one in self._all.items()
            if not one.has_left and shortest < now_ns - one.heard_ns <= longest and self.work_on(host, now_ns) is None
        )

    def is_heard(self, host: str, now_ns: int) -> bool:
        """Return whether a host was heard lately."""
        known = self._all.get(host)
        return known is not None and now_ns - known.heard_ns <= self._config.silent_ns

    def plan(self, work: Maintenance) -> None:
        """Keep planned work; the one that ends first makes room."""
        self._works[work.maintenance_id] = work
        while len(self._works) > _MAX_WORKS:
            del self._works[min(self._works, key=lambda key: self._works[key].end_ns)]
        self._index()

    def _index(self) -> None:
        """Order the planned work by its target."""
        self._by_target: dict[Component, list[Maintenance]] = {}
        for one in self._works.values():
            self._by_target.setdefault(one.target, []).append(one)

    @property
    def now_ns(self) -> int:
        """Time of the last tick."""
        return self._tick_ns

    @property
    def has_works(self) -> bool:
        """Whether any planned work is remembered, gone on or over."""
        return bool(self._works)

    def work_on(self, host: str, now_ns: int) -> Maintenance | None:
        """Return planned work that goes on now on a host or its leaf; None: there is none."""
        if not self._works:
            return None
        targets = Component(ComponentKind.HOST, host), Component(ComponentKind.LEAF, self.leaf_of(host))
        works = (one for target in targets for one in self._by_target.get(target, ()))
        return next((one for one in works if one.is_on(now_ns)), None)

    def is_planned(self, job_id: str, host: str, at_ns: int) -> bool:
        """Return whether work was planned at a time on a host, its leaf switch, or the job that it ran."""
        if self.work_on(host, at_ns) is not None:
            return True
        job = Component(ComponentKind.JOB, job_id)
        return any(one.target == job and one.is_on(at_ns) for one in self._works.values())

    def to_state(self) -> dict[str, Any]:
        """Return the state as a JSON-able object."""
        return {
            "hosts": [[host, asdict(one)] for host, one in self._all.items()],
            "works": [asdict(one) for one in self._works.values()],
            "tick_ns": self._tick_ns,
            "listening_ns": self._listening_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``to_state`` returned."""
        self._all = {host: _FleetHost(**fields) for host, fields in state["hosts"]}
        self._works = {}
        for fields in state["works"]:
            target = Component(ComponentKind(fields["target"]["kind"]), fields["target"]["name"])
            work = Maintenance(**{**fields, "target": target})
            self._works[work.maintenance_id] = work
        self._index()
        self._tick_ns, self._listening_ns = state["tick_ns"], state["listening_ns"]

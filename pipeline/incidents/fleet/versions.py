"""Whether the hosts that give one signal have a version in common that the rest of the fleet has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.incidents.fleet.coincidence import exceeding_window
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.hosts import FleetHosts

_KINDS: Final = ("driver", "firmware")
_CHANCE_RATIO: Final = 1e-3
"""A version that all hosts with a signal share by chance with less probability than this is named."""


@dataclass(frozen=True, slots=True)
class CommonVersion:
    """A version that hosts have in common.

    Attributes:
        kind: ``driver`` or ``firmware``.
        version: the version.
        host_count: hosts of the fleet that have it.
        known_count: hosts of the fleet whose version of this kind is known.
    """

    kind: str
    version: str
    host_count: int
    known_count: int

    @property
    def text(self) -> str:
        """One sentence for people."""
        return f"all of them run {self.kind} {self.version}, as {self.host_count} of {self.known_count} hosts do"


def version_of(hosts: FleetHosts, kind: str, host: str) -> str:
    """Return a host's version of driver or firmware, "" if it is not known."""
    return hosts.versions_of(host)[_KINDS.index(kind)]


def common_version(config: FleetConfig, hosts: FleetHosts, struck: Iterable[str]) -> CommonVersion | None:
    """Return what all hosts with a signal share and by chance would not, None: nothing.

    Hosts that are drawn from the fleet at random have one version with the probability p^n: p is its share of the
    fleet. A version that the whole fleet has explains nothing.

    Args:
        config: settings.
        hosts: all hosts.
        struck: those that gave the signal; at least half of their versions must be known.
    """
    names = list(struck)
    for kind in _KINDS:
        own = [version for host in names if (version := version_of(hosts, kind, host))]
        if len(set(own)) != 1 or len(own) < config.min_hosts_count or 2 * len(own) < len(names):
            continue
        counts = _counts(hosts, kind)
        known_count = sum(counts.values())
        if (counts[own[0]] / known_count) ** len(own) < _CHANCE_RATIO:
            return CommonVersion(kind, own[0], counts[own[0]], known_count)
    return None


def exceeding_version(
    config: FleetConfig, hosts: FleetHosts, struck: Mapping[str, int], cause: str
) -> tuple[CommonVersion | None, int]:
    """Return a version whose hosts give a signal more often than independent faults explain, with the window in ns.

    Few hosts of a large fleet may be many of those that have a new driver.

    Args:
        config: settings.
        hosts: all hosts.
        struck: host -> when it gave the signal last.
        cause: the signal's cause.
    """
    for kind in _KINDS:
        own: dict[str, dict[str, int]] = {}
        for host, ts_ns in struck.items():
            if version := version_of(hosts, kind, host):
                own.setdefault(version, {})[host] = ts_ns
        for version, by_host in sorted(own.items()):
            if len(by_host) < config.min_hosts_count:
                continue
            counts = _counts(hosts, kind)
            window_ns, _ = exceeding_window(config, list(by_host.values()), counts[version], hosts.now_ns, cause)
            if window_ns and common_version(config, hosts, by_host) is not None:
                return CommonVersion(kind, version, counts[version], sum(counts.values())), window_ns
    return None, 0


def _counts(hosts: FleetHosts, kind: str) -> Counter[str]:
    """Return version -> number of hosts that have it, of all whose version is known."""
    return Counter(version for host in hosts.leaves() if (version := version_of(hosts, kind, host)))

"""Detection of congested switches: all hosts behind one leaf, or of one minipod, send pause frames, and no others do.

Peer comparison misses this, as such hosts do not differ from their neighbours. A leaf switch itself is at fault if
hosts behind other switches of the same minipod are not congested. If all leaves of a minipod are alike, the job is
placed where its traffic meets a bottleneck above them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

SWITCHES = "switches"
"""Detector name in the anomalies."""
PAUSES = "pfc_tx_packets_per_second"
"""Metric of PFC pause frames, sent by ports that cannot get rid of packets. ECN and CNP marks reach far beyond the slow
switch."""
FloatArray = NDArray[np.float32]
_MINIPOD_KEY = "minipod:"
"""Begin of the keys of minipods among those of leaves, which are plain names."""
Place = tuple[str, str]
"""Leaf and minipod of a host; "" where unknown."""


@dataclass(frozen=True, slots=True)
class SwitchesConfig:
    """Settings.

    Attributes:
        least_packets_per_second: pause frames per second below which a host is not congested.
        factor: least ratio to the other hosts; hosts of one congested network differ by less than ten.
        alike_ratio: least ratio of the median host behind the switch to the worst; next to a single bad port it is
            below a third.
        most_outside_ratio: greatest share of other hosts that may be congested: one of a thousand ports always bursts.
        least_host_count: fewest hosts behind a switch; fewer may be faulty machines.
        others_factor: least ratio of other hosts to those behind the switch; of two leaves either may be normal.
        quiet_ns: how long the switch must have been normal before ...
        quiet_window_count: ... and for how many windows.
        lasting_ns: total duration of congested windows from which on it is reported ...
        window_count: ... and their least number.
        present_ratio: least share of congested windows since the start; long steps leave some out.
        gone_ns: duration without congestion after which it has ended ...
        gone_window_count: ... and number of windows without it.
    """

    least_packets_per_second: float = 100.0
    factor: float = 10.0
    alike_ratio: float = 0.25
    most_outside_ratio: float = 0.02
    least_host_count: int = 3
    others_factor: float = 2.0
    quiet_ns: int = 60 * NS_PER_SECOND
    quiet_window_count: int = 4
    lasting_ns: int = 15 * NS_PER_SECOND
    window_count: int = 2
    present_ratio: float = 0.5
    gone_ns: int = 30 * NS_PER_SECOND
    gone_window_count: int = 2


@dataclass(slots=True)
class _Spell:
    """Congestion of one leaf or minipod.

    Attributes:
        since_ns: start.
        first_window: number of the first congested window.
        last_ns: end of the last congested window.
        last_window: number of the last congested window.
        count: number of congested windows.
        quiet_ns: normal time before the start.
        quiet_window_count: normal windows before the start.
        shown_ns: total duration of congested windows.
        value: median pause frames per second behind the switch, in the last such window.
        expected: the same of all other hosts.
    """

    since_ns: int
    first_window: int
    last_ns: int
    last_window: int
    count: int
    quiet_ns: int
    quiet_window_count: int
    shown_ns: int = 0
    value: float = 0.0
    expected: float = 0.0


@dataclass(frozen=True, slots=True)
class _Where:
    """Lookup of hosts' switches as arrays; rebuilt when hosts or places change.

    Attributes:
        hosts: host names, in order.
        places: the places that it was built from.
        names: names of the leaves.
        pod_names: names of the minipods.
        leaves: index of each host's leaf, shape (hosts,), -1 = unknown.
        pods: index of each host's minipod, shape (hosts,), -1 = unknown.
    """

    hosts: Sequence[str]
    places: Mapping[str, Place]
    names: Sequence[str]
    pod_names: Sequence[str]
    leaves: NDArray[np.intp]
    pods: NDArray[np.intp]

    @classmethod
    def of(cls, hosts: Sequence[str], places: Mapping[str, Place]) -> _Where:
        """Return the lookup for these hosts and places."""
        names = sorted({leaf for leaf, _ in places.values()})
        pod_names = sorted({pod for _, pod in places.values()})
        pods = {pod: number for number, pod in enumerate(pod_names)}
        number_of = {leaf: number for number, leaf in enumerate(names)}
        found = [places.get(host) for host in hosts]
        leaves = np.array([-1 if place is None else number_of[place[0]] for place in found], np.intp)
        pod_of = np.array([-1 if place is None else pods[place[1]] for place in found], np.intp)
        return cls(hosts, places, names, pod_names, leaves, pod_of)


class SwitchTracker:
    """Congestion of one job's leaf switches over time."""

    def __init__(self, config: SwitchesConfig) -> None:
        """Start without congestion."""
        self._config = config
        self._window, self._first_ns = 0, 0
        """Number of the current window, and start of the first one in nanoseconds."""
        self._spells: dict[str, _Spell] = {}
        """Leaf, or ``_MINIPOD_KEY`` and minipod -> its current or recent congestion."""
        self._known: _Where | None = None

    def take(
        self, data: Slice, hosts: Sequence[str], packets: FloatArray, places: Mapping[str, Place]
    ) -> list[Anomaly]:
        """Take one window and return an anomaly for each congested leaf and minipod.

        Args:
            data: slice of the window, for its time span.
            hosts: host names.
            packets: pause frames per second, shape (hosts,), NaN = unknown.
            places: host -> (leaf, minipod).
        """
        self._window += 1
        self._first_ns = self._first_ns or data.start_ns
        if not places:
            return []
        known = np.isfinite(packets)
        congested = known & (packets >= self._config.least_packets_per_second)
        where = self._where(hosts, places)
        if congested.any() and 2 * int(congested.sum()) <= int(known.sum()):
            for leaf in np.unique(where.leaves[congested & (where.leaves >= 0)]):
                behind = known & (where.leaves == leaf)
                same_pod = known & (where.pods == where.pods[np.argmax(where.leaves == leaf)]) & ~behind
                self._judge_leaf(data, where.names[leaf], packets[behind], packets[same_pod], packets[known & ~behind])
            for pod in np.unique(where.pods[congested & (where.pods >= 0)]):
                inside = known & (where.pods == pod)
                if where.pod_names[pod] and np.unique(where.leaves[inside]).size > 1:
                    self._judge_pod(data, where.pod_names[pod], packets[inside], packets[known & ~inside])
        self._spells = {
            leaf: spell for leaf, spell in self._spells.items() if not self._is_forgotten(spell, data.end_ns)
        }
        return [
            self._anomaly(data, leaf, hosts, places)
            for leaf in sorted(self._spells)
            if self._is_confirmed(leaf, data.end_ns)
        ]

    def _where(self, hosts: Sequence[str], places: Mapping[str, Place]) -> _Where:
        """Return the lookup for these hosts and places, rebuilt only if they changed."""
        known = self._known
        if known is None or known.places is not places or known.hosts is not hosts:
            known = self._known = _Where.of(hosts, places)
        return known

    def _judge_leaf(self, data: Slice, leaf: str, behind: FloatArray, same_pod: FloatArray, others: FloatArray) -> None:
        """Judge one switch in one window, and start or extend its congestion.

        Args:
            data: slice of the window.
            leaf: name of the switch.
            behind: pause frames per second of the hosts behind it, shape (hosts,).
            same_pod: of hosts of the same minipod behind other switches.
            others: of all other hosts.
        """
        outside = self._outside_count(behind, others)
        if outside is not None and same_pod.size and 2 * outside <= same_pod.size:
            self._extend(data, leaf, behind, others)

    def _judge_pod(self, data: Slice, pod: str, inside: FloatArray, others: FloatArray) -> None:
        """Judge one minipod of at least two leaves in one window, and start or extend its congestion.

        Args:
            data: slice of the window.
            pod: name of the minipod.
            inside: pause frames per second of its hosts, shape (hosts,).
            others: of all other hosts.
        """
        if self._outside_count(inside, others) is not None:
            self._extend(data, _MINIPOD_KEY + pod, inside, others)

    def _outside_count(self, behind: FloatArray, others: FloatArray) -> int | None:
        """Return how many other hosts are congested as well; None where the hosts are not, or too many others are.

        Args:
            behind: pause frames per second of the hosts of one switch or minipod, shape (hosts,).
            others: of all other hosts.
        """
        config = self._config
        if behind.size < config.least_host_count or others.size < config.others_factor * behind.size:
            return None
        low = float(np.quantile(behind, 0.25))
        if low < config.least_packets_per_second or np.median(behind) < config.alike_ratio * behind.max():
            return None
        outside = int((others * config.factor >= low).sum())
        return outside if outside <= max(1.0, config.most_outside_ratio * others.size) else None

    def _extend(self, data: Slice, key: str, behind: FloatArray, others: FloatArray) -> None:
        """Start or extend the congestion of one switch or minipod by a window.

        Args:
            data: slice of the window.
            key: its key among the spells.
            behind: pause frames per second of its hosts, shape (hosts,).
            others: of all other hosts.
        """
        spell = self._spells.get(key)
        if spell is None or self._is_over(spell, data.start_ns):
            last_ns, last_window = (self._first_ns, 0) if spell is None else (spell.last_ns, spell.last_window)
            quiet_ns, quiet_count = data.start_ns - last_ns, self._window - 1 - last_window
            spell = _Spell(data.start_ns, self._window, data.end_ns, self._window, 0, quiet_ns, quiet_count)
            self._spells[key] = spell
        spell.last_ns, spell.last_window = data.end_ns, self._window
        spell.count += 1
        spell.shown_ns += data.end_ns - data.start_ns
        spell.value, spell.expected = float(np.median(behind)), float(np.median(others))

    def _is_over(self, spell: _Spell, now_ns: int) -> bool:
        """Return whether the congestion has ended."""
        config = self._config
        return now_ns - spell.last_ns > config.gone_ns and self._window - spell.last_window > config.gone_window_count

    def _is_forgotten(self, spell: _Spell, now_ns: int) -> bool:
        """Return whether the congestion ended so long ago that the next one is unrelated."""
        config = self._config
        quiet_ns, count = now_ns - spell.last_ns, self._window - spell.last_window
        return (
            quiet_ns > config.gone_ns + config.quiet_ns and count > config.gone_window_count + config.quiet_window_count
        )

    def _is_confirmed(self, leaf: str, now_ns: int) -> bool:
        """Return whether the switch was normal before, and is congested long and steadily enough to be reported."""
        config, spell = self._config, self._spells[leaf]
        was_quiet = spell.quiet_ns >= config.quiet_ns and spell.quiet_window_count >= config.quiet_window_count
        is_shown = spell.shown_ns >= config.lasting_ns and spell.count >= config.window_count
        lasted = self._window - spell.first_window + 1
        is_present = spell.count >= config.present_ratio * lasted
        return was_quiet and is_shown and is_present and not self._is_over(spell, now_ns)

    def _anomaly(self, data: Slice, leaf: str, hosts: Sequence[str], places: Mapping[str, Place]) -> Anomaly:
        """Return the anomaly of a congested leaf or minipod; ``detail`` lists its hosts, and their pause frames."""
        spell, is_pod = self._spells[leaf], leaf.startswith(_MINIPOD_KEY)
        name = leaf.removeprefix(_MINIPOD_KEY)
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.MINIPOD if is_pod else ComponentKind.LEAF, name),
            metric=PAUSES,
            start_ns=spell.since_ns,
            end_ns=spell.last_ns,
            score=1.0 + min(9.0, spell.shown_ns / self._config.lasting_ns),
            detector=SWITCHES,
            model_version="",
            detail={
                "hosts": sorted(host for host in hosts if host in places and places[host][is_pod] == name),
                "value": spell.value,
                "expected": spell.expected,
            },
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        spells = {
            leaf: [
                spell.since_ns,
                spell.first_window,
                spell.last_ns,
                spell.last_window,
                spell.count,
                spell.quiet_ns,
                spell.quiet_window_count,
                spell.shown_ns,
                spell.value,
                spell.expected,
            ]
            for leaf, spell in sorted(self._spells.items())
        }
        return {"window": self._window, "first_ns": self._first_ns, "spells": spells}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._window, self._first_ns = state["window"], state["first_ns"]
        self._spells = {leaf: _Spell(*fields) for leaf, fields in state["spells"].items()}

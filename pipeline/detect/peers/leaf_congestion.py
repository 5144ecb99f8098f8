"""All hosts behind one leaf switch are jammed, and nobody else is: the switch, or its way up, carries less.

Such hosts do not differ from their neighbours, and many that differ from the rest of a job are congestion. It is the
switch's own where the hosts behind the next switch of the same minipod are not jammed.
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
"""The detector's name in its anomalies."""
PAUSES = "pfc_tx_packets_per_second"
"""A port that cannot get rid of its packets says so; marked packets (ECN, CNP) go far beyond the slow switch."""
FloatArray = NDArray[np.float32]
Place = tuple[str, str]
"""Leaf and minipod of a host, "" where nobody said it."""


@dataclass(frozen=True, slots=True)
class SwitchesConfig:
    """Settings.

    Attributes:
        least_packets_per_second: pause frames per second; below that nobody is jammed.
        factor: those behind the switch have so many times what the others have: hosts of one congested network lie
            within one order of magnitude of each other.
        alike_ratio: half of the hosts behind it have at least so much of what the worst one has: where one port jams
            alone, its neighbours have a twentieth to a third.
        most_outside_ratio: so many of the others may be jammed, too: one of a thousand ports always bursts.
        least_host_count: fewer hosts behind a switch may be two machines as well.
        others_factor: the rest of the job must be so many times the hosts behind the switch: of two leaves that are
            unlike nobody knows which one is as it should be.
        quiet_ns: before it the switch was like the others for so long ...
        quiet_window_count: ... and so many windows.
        lasting_ns: it is told when windows of so long together showed it ...
        window_count: ... and so many.
        present_ratio: in so much of the windows since it began: steps that are longer than a window leave some out.
        gone_ns: it is over when it was not seen for so long ...
        gone_window_count: ... and so many windows.
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
    """One switch's jam: since when, in which windows, how many of them show it; and for how long none did before."""

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
    """Numbers instead of names, made again where hosts or places are others.

    Attributes:
        hosts: whose, in this order.
        places: that it was made from.
        names: of the leaves.
        leaves: number of each host's leaf, shape (hosts,), -1 = not known.
        pods: of its minipod.
    """

    hosts: Sequence[str]
    places: Mapping[str, Place]
    names: Sequence[str]
    leaves: NDArray[np.intp]
    pods: NDArray[np.intp]

    @classmethod
    def of(cls, hosts: Sequence[str], places: Mapping[str, Place]) -> _Where:
        """Look all of them up."""
        names = sorted({leaf for leaf, _ in places.values()})
        pods = {pod: number for number, pod in enumerate(sorted({pod for _, pod in places.values()}))}
        number_of = {leaf: number for number, leaf in enumerate(names)}
        found = [places.get(host) for host in hosts]
        leaves = np.array([-1 if place is None else number_of[place[0]] for place in found], np.intp)
        return cls(hosts, places, names, leaves, np.array([-1 if p is None else pods[p[1]] for p in found], np.intp))


class SwitchTracker:
    """Follows which switches of one job are jammed."""

    def __init__(self, config: SwitchesConfig) -> None:
        """None is."""
        self._config = config
        self._window, self._first_ns = 0, 0
        self._spells: dict[str, _Spell] = {}
        self._known: _Where | None = None

    def take(
        self, data: Slice, hosts: Sequence[str], packets: FloatArray, places: Mapping[str, Place]
    ) -> list[Anomaly]:
        """Take one window; return the switches that are jammed.

        Args:
            data: the window's slice: its span.
            hosts: names.
            packets: pause frames per second, shape (hosts,), NaN = not known.
            places: host -> its switches.
        """
        self._window += 1
        self._first_ns = self._first_ns or data.start_ns
        if not places:
            return []
        told = np.isfinite(packets)
        jammed = told & (packets >= self._config.least_packets_per_second)
        where = self._where(hosts, places)
        if jammed.any() and 2 * int(jammed.sum()) <= int(told.sum()):
            for leaf in np.unique(where.leaves[jammed & (where.leaves >= 0)]):
                behind = told & (where.leaves == leaf)
                beside = told & (where.pods == where.pods[np.argmax(where.leaves == leaf)]) & ~behind
                self._hear(data, where.names[leaf], packets[behind], packets[beside], packets[told & ~behind])
        self._spells = {
            leaf: spell for leaf, spell in self._spells.items() if not self._is_forgotten(spell, data.end_ns)
        }
        return [
            self._anomaly(data, leaf, hosts, places) for leaf in sorted(self._spells) if self._tells(leaf, data.end_ns)
        ]

    def _where(self, hosts: Sequence[str], places: Mapping[str, Place]) -> _Where:
        known = self._known
        if known is None or known.places is not places or known.hosts is not hosts:
            known = self._known = _Where.of(hosts, places)
        return known

    def _hear(self, data: Slice, leaf: str, behind: FloatArray, beside: FloatArray, others: FloatArray) -> None:
        """Take one switch in one window.

        Args:
            data: the window's slice.
            leaf: the switch.
            behind: pause frames of the hosts behind it, shape (hosts,).
            beside: of those of the same minipod behind other switches.
            others: of all others.
        """
        config = self._config
        least_others = config.others_factor * behind.size
        if behind.size < config.least_host_count or others.size < least_others or not beside.size:
            return
        low = float(np.quantile(behind, 0.25))
        if low < config.least_packets_per_second or np.median(behind) < config.alike_ratio * behind.max():
            return
        outside = int((others * config.factor >= low).sum())
        if outside > max(1.0, config.most_outside_ratio * others.size) or 2 * outside > beside.size:
            return
        spell = self._spells.get(leaf)
        if spell is None or self._is_over(spell, data.start_ns):
            last_ns, last_window = (self._first_ns, 0) if spell is None else (spell.last_ns, spell.last_window)
            quiet_ns, quiet_count = data.start_ns - last_ns, self._window - 1 - last_window
            spell = _Spell(data.start_ns, self._window, data.end_ns, self._window, 0, quiet_ns, quiet_count)
            self._spells[leaf] = spell
        spell.last_ns, spell.last_window = data.end_ns, self._window
        spell.count += 1
        spell.shown_ns += data.end_ns - data.start_ns
        spell.value, spell.expected = float(np.median(behind)), float(np.median(others))

    def _is_over(self, spell: _Spell, now_ns: int) -> bool:
        config = self._config
        return now_ns - spell.last_ns > config.gone_ns and self._window - spell.last_window > config.gone_window_count

    def _is_forgotten(self, spell: _Spell, now_ns: int) -> bool:
        """Whether it is over for so long that the next one would be another."""
        config = self._config
        quiet_ns, count = now_ns - spell.last_ns, self._window - spell.last_window
        return (
            quiet_ns > config.gone_ns + config.quiet_ns and count > config.gone_window_count + config.quiet_window_count
        )

    def _tells(self, leaf: str, now_ns: int) -> bool:
        config, spell = self._config, self._spells[leaf]
        was_quiet = spell.quiet_ns >= config.quiet_ns and spell.quiet_window_count >= config.quiet_window_count
        is_shown = spell.shown_ns >= config.lasting_ns and spell.count >= config.window_count
        lasted = self._window - spell.first_window + 1
        is_present = spell.count >= config.present_ratio * lasted
        return was_quiet and is_shown and is_present and not self._is_over(spell, now_ns)

    def _anomaly(self, data: Slice, leaf: str, hosts: Sequence[str], places: Mapping[str, Place]) -> Anomaly:
        spell = self._spells[leaf]
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.LEAF, leaf),
            metric=PAUSES,
            start_ns=spell.since_ns,
            end_ns=spell.last_ns,
            score=1.0 + min(9.0, spell.shown_ns / self._config.lasting_ns),
            detector=SWITCHES,
            model_version="",
            detail={
                "hosts": sorted(host for host in hosts if host in places and places[host][0] == leaf),
                "value": spell.value,
                "expected": spell.expected,
            },
        )

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
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
        """Take back what ``to_state`` gave."""
        self._window, self._first_ns = state["window"], state["first_ns"]
        self._spells = {leaf: _Spell(*fields) for leaf, fields in state["spells"].items()}

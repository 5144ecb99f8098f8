"""Detect flapping: a machine that is slow for short spells again and again, such as 20 seconds of throttling a minute.

A single short spell is not believed, because a daemon, a stall or a few large batches look the same. The third spell
within a quarter of an hour is. The rule applies to throttling only (``incidents.throttles``): a healthy host that saves
or evaluates alone is also slow for seconds every few minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, Suspect, Verdict

_KEPT_COUNT = 8
"""Maximum number of remembered spells of one fault."""
_KEPT_MACHINES_COUNT = 256
"""Maximum number of remembered combinations of fault and suspects."""


@dataclass(frozen=True, slots=True)
class FlappingConfig:
    """Settings of flapping detection.

    Attributes:
        within_ns: spells that ended longer ago are ignored.
        spell_count: number of earlier spells after which a fault counts as flapping.
        gap_factor: a flapping fault is over after this many times the longest gap between two spells ...
        most_gone_ns: ... but at the latest after this time.
    """

    within_ns: int = 900 * NS_PER_SECOND
    spell_count: int = 2
    gap_factor: float = 2.0
    most_gone_ns: int = 300 * NS_PER_SECOND


class FlappingTracker:
    """Past spells of one job's faults, by fault and suspects."""

    def __init__(self, config: FlappingConfig) -> None:
        """Start without spells."""
        self._config = config
        self._spells: dict[str, list[list[int]]] = {}
        """Fault and component names -> [begin, end] of each spell, newest last."""

    def end(self, verdict: Verdict, begin_ns: int, end_ns: int) -> None:
        """Record a finished spell of a verdict's fault."""
        key = _key(verdict.fault, verdict.suspects)
        self._spells[key] = [*self._spells.pop(key, []), [begin_ns, end_ns]][-_KEPT_COUNT:]
        while len(self._spells) > _KEPT_MACHINES_COUNT:
            del self._spells[next(iter(self._spells))]

    def is_flapping(self, fault: FaultKind, suspects: Sequence[Suspect], now_ns: int) -> bool:
        """Return whether the fault of these suspects is flapping: it had enough spells recently."""
        return len(self._recent(fault, suspects, now_ns)) >= self._config.spell_count

    def gone_ns(self, verdict: Verdict, begin_ns: int) -> int:
        """Return how long a flapping fault must be absent to count as over, in ns; 0: the fault is not flapping.

        Args:
            verdict: the verdict of the fault.
            begin_ns: begin of its current spell.
        """
        spells = self._recent(verdict.fault, verdict.suspects, begin_ns)
        if len(spells) < self._config.spell_count:
            return 0
        begins = [begin for begin, _ in spells[1:]] + [begin_ns]
        longest_ns = max(begin - end for begin, (_, end) in zip(begins, spells, strict=True))
        return min(self._config.most_gone_ns, round(self._config.gap_factor * longest_ns))

    def _recent(self, fault: FaultKind, suspects: Sequence[Suspect], now_ns: int) -> list[list[int]]:
        """Return the remembered spells of this fault and these suspects that ended recently."""
        known = self._spells.get(_key(fault, suspects), [])
        return [spell for spell in known if now_ns - spell[1] <= self._config.within_ns]

    def to_state(self) -> list[tuple[str, list[list[int]]]]:
        """Return the state as JSON-able values."""
        return list(self._spells.items())

    def load_state(self, state: Iterable[tuple[str, list[list[int]]]]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._spells = {str(key): [list(spell) for spell in spells] for key, spells in state}


def _key(fault: FaultKind, suspects: Sequence[Suspect]) -> str:
    """Return the text key of a fault and its suspects' components."""
    names = (f"{suspect.component.kind.value}:{suspect.component.name}" for suspect in suspects)
    return " ".join((fault.value, *sorted(names)))

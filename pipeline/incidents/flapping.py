"""Who was slow, was well, and is slow again: a part that throttles for twenty seconds of every minute.

Each spell by itself is too short to be believed (a daemon, a stall, a few heavy batches); a third one of the same
machine within a quarter of an hour is not. It holds for throttling only (``incidents.throttles``): whoever saves or
evaluates alone is slow for seconds every few minutes as well, and healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, Suspect, Verdict

_KEPT_COUNT = 8
_KEPT_MACHINES_COUNT = 256


@dataclass(frozen=True, slots=True)
class RelapseConfig:
    """Settings.

    Attributes:
        within_ns: a spell that ended longer ago is another story.
        spell_count: so many before make one that follows a relapse.
        gap_factor: whoever relapsed is well after so many times the longest time between two spells ...
        most_gone_ns: ... and not later than after so long.
    """

    within_ns: int = 900 * NS_PER_SECOND
    spell_count: int = 2
    gap_factor: float = 2.0
    most_gone_ns: int = 300 * NS_PER_SECOND


class Relapses:
    """Spells of one job's machines, by what they had."""

    def __init__(self, config: RelapseConfig) -> None:
        """Know of none."""
        self._config = config
        self._spells: dict[str, list[list[int]]] = {}
        """Fault and names -> [begin, end] of each spell, the newest last."""

    def end(self, verdict: Verdict, begin_ns: int, end_ns: int) -> None:
        """What a verdict told is over."""
        key = _key(verdict.fault, verdict.suspects)
        self._spells[key] = [*self._spells.pop(key, []), [begin_ns, end_ns]][-_KEPT_COUNT:]
        while len(self._spells) > _KEPT_MACHINES_COUNT:
            del self._spells[next(iter(self._spells))]

    def comes_again(self, fault: FaultKind, suspects: Sequence[Suspect], now_ns: int) -> bool:
        """Whether they had it so often of late that a spell is one of many."""
        return len(self._recent(fault, suspects, now_ns)) >= self._config.spell_count

    def gone_ns(self, verdict: Verdict, begin_ns: int) -> int:
        """For how long whoever has had it since ``begin_ns`` must be well to be so; 0: it does not come again."""
        spells = self._recent(verdict.fault, verdict.suspects, begin_ns)
        if len(spells) < self._config.spell_count:
            return 0
        begins = [begin for begin, _ in spells[1:]] + [begin_ns]
        longest_ns = max(begin - end for begin, (_, end) in zip(begins, spells, strict=True))
        return min(self._config.most_gone_ns, round(self._config.gap_factor * longest_ns))

    def _recent(self, fault: FaultKind, suspects: Sequence[Suspect], now_ns: int) -> list[list[int]]:
        known = self._spells.get(_key(fault, suspects), [])
        return [spell for spell in known if now_ns - spell[1] <= self._config.within_ns]

    def to_state(self) -> list[tuple[str, list[list[int]]]]:
        """JSON-able state."""
        return list(self._spells.items())

    def load_state(self, state: Iterable[tuple[str, list[list[int]]]]) -> None:
        """Take back what ``to_state`` gave."""
        self._spells = {str(key): [list(spell) for spell in spells] for key, spells in state}


def _key(fault: FaultKind, suspects: Sequence[Suspect]) -> str:
    names = (f"{suspect.component.kind.value}:{suspect.component.name}" for suspect in suspects)
    return " ".join((fault.value, *sorted(names)))

"""What jumps again and again: whether it is always on the same machine, more often than chance lets it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class JumpConfig:
    """Settings.

    Attributes:
        chance_ratio: the same one has all jumps by chance as seldom as this, if each falls on any: that says how many
            are needed (of 0.005: three in a job of 15 hosts, five in one of four).
        least_count: fewer of them are never enough.
        seldom_count: jumps count where one of so many steps has one, and the same rank has part in all; 0: wherever.
        began_factor: and so many times as often as before the first.
        forget_ns: jumps that are older than this count no more.
        lasting_ns: what is found holds for so long after the last one.
        kept_count: jumps that are remembered.
    """

    chance_ratio: float = 0.005
    least_count: int = 3
    seldom_count: int = 0
    began_factor: float = 5.0
    forget_ns: int = 3600 * NS_PER_SECOND
    lasting_ns: int = 600 * NS_PER_SECOND
    kept_count: int = 256


class Spike(NamedTuple):
    """One number of one step.

    Attributes:
        step: the training step.
        ts_ns: when.
        host: whose ranks they are, None: of several.
        ranks: whose number jumped, ascending; of several hosts none is kept.
        value: to what.
        usual_value: what the others had.
        field_count: on how many hosts, or ranks, it could have fallen.
        looked_count: steps that were looked at till then.
        before_ratio: how many of them, lately, had one of this rank.
    """

    step: int
    ts_ns: int
    host: str | None
    ranks: tuple[int, ...]
    value: float
    usual_value: float
    field_count: int
    looked_count: int = 0
    before_ratio: float = 0.0


@dataclass(slots=True)
class Jumps:
    """The jumps of one kind of number.

    Attributes:
        config: settings.
        past: those that count, the oldest first.
        before_ratio: how many steps had one before they began.
    """

    config: JumpConfig
    past: list[Spike] = field(default_factory=list)
    before_ratio: float = 0.0

    def add(self, jump: Spike) -> None:
        """Remember one more."""
        if not self.past:
            self.before_ratio = jump.before_ratio
        self.past = [*self.past, jump][-self.config.kept_count :]

    def found(self, now_ns: int) -> Sequence[Spike]:
        """All jumps, where one machine has them again and again; none, where nobody can say."""
        self.past = [jump for jump in self.past if now_ns - jump.ts_ns <= self.config.forget_ns]
        if not self.past or now_ns - self.past[-1].ts_ns > self.config.lasting_ns:
            return ()
        is_one = len({jump.host for jump in self.past}) == 1 and self.past[0].host is not None
        return self.past if is_one and len(self.past) >= self._least_count() and self._often() else ()

    def _least_count(self) -> int:
        """So many jumps of one are no chance: the first falls on any, each other one on the same."""
        fewest = max(2, self.past[-1].field_count)
        chances = math.ceil(math.log(1 / self.config.chance_ratio) / math.log(fewest))
        return max(self.config.least_count, 1 + chances)

    def _often(self) -> bool:
        """Whether they come soon after each other, did not before, and the same rank has part in all."""
        if not self.config.seldom_count:
            return True
        between_count = (self.past[-1].looked_count - self.past[0].looked_count) / (len(self.past) - 1)
        began = between_count * self.before_ratio * self.config.began_factor <= 1
        is_same = bool(set.intersection(*(set(jump.ranks) for jump in self.past)))
        return is_same and began and between_count <= self.config.seldom_count

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"past": [list(jump) for jump in self.past], "before_ratio": self.before_ratio}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.past = [Spike(step, ts_ns, host, tuple(ranks), *rest) for step, ts_ns, host, ranks, *rest in state["past"]]
        self.before_ratio = state["before_ratio"]

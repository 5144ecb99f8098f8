"""Repeated spikes of a training number: whether one host has them more often than chance explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class SpikeConfig:
    """Settings.

    Attributes:
        chance_ratio: probability below which spikes that all fall on one host are not chance. It sets how many are
            needed: at 0.005, three in a job of 15 hosts, five in one of four.
        least_count: fewest spikes in any case.
        seldom_count: if above 0, at least one of so many steps must spike, and one rank must take part in all spikes.
        began_factor: then spikes must also be so many times as frequent as before the first.
        forget_ns: age at which spikes are forgotten.
        lasting_ns: how long after its last spike a result holds.
        kept_count: most spikes remembered.
    """

    chance_ratio: float = 0.005
    least_count: int = 3
    seldom_count: int = 0
    began_factor: float = 5.0
    forget_ns: int = 3600 * NS_PER_SECOND
    lasting_ns: int = 600 * NS_PER_SECOND
    kept_count: int = 256


class Spike(NamedTuple):
    """Spike of one number in one step.

    Attributes:
        step: training step.
        ts_ns: time of the step.
        host: host of all ranks that spiked; None if they are of several.
        ranks: ranks that spiked, ascending; empty if they are of several hosts.
        value: value of the spike.
        usual_value: value of the others.
        field_count: number of hosts, or ranks, that could have spiked.
        looked_count: number of steps examined so far.
        before_ratio: share of recent steps in which this rank spiked before.
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
class Spikes:
    """Recent spikes of one kind of number.

    Attributes:
        config: settings.
        past: spikes that are not forgotten, oldest first.
        before_ratio: share of steps with a spike before the first of these.
    """

    config: SpikeConfig
    past: list[Spike] = field(default_factory=list)
    before_ratio: float = 0.0

    def add(self, spike: Spike) -> None:
        """Add one spike."""
        if not self.past:
            self.before_ratio = spike.before_ratio
        self.past = [*self.past, spike][-self.config.kept_count :]

    def found(self, now_ns: int) -> Sequence[Spike]:
        """Return all remembered spikes if they are all of one host and beyond chance; else an empty sequence."""
        self.past = [spike for spike in self.past if now_ns - spike.ts_ns <= self.config.forget_ns]
        if not self.past or now_ns - self.past[-1].ts_ns > self.config.lasting_ns:
            return ()
        is_one = len({spike.host for spike in self.past}) == 1 and self.past[0].host is not None
        return self.past if is_one and len(self.past) >= self._least_count() and self._are_frequent() else ()

    def _least_count(self) -> int:
        """Return how many spikes on one host rule out chance; the first may fall anywhere, the others must match it."""
        fewest = max(2, self.past[-1].field_count)
        chances = math.ceil(math.log(1 / self.config.chance_ratio) / math.log(fewest))
        return max(self.config.least_count, 1 + chances)

    def _are_frequent(self) -> bool:
        """Return whether spikes are frequent, newly so, and share a rank; always true if ``seldom_count`` is 0."""
        if not self.config.seldom_count:
            return True
        between_count = (self.past[-1].looked_count - self.past[0].looked_count) / (len(self.past) - 1)
        is_new = between_count * self.before_ratio * self.config.began_factor <= 1
        is_same = bool(set.intersection(*(set(spike.ranks) for spike in self.past)))
        return is_same and is_new and between_count <= self.config.seldom_count

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {"past": [list(spike) for spike in self.past], "before_ratio": self.before_ratio}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.past = [Spike(step, ts_ns, host, tuple(ranks), *rest) for step, ts_ns, host, ranks, *rest in state["past"]]
        self.before_ratio = state["before_ratio"]

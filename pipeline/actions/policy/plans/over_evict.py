"""Over-eviction: the smallest parallel group that holds all outliers goes as a whole (ByteRobust, section on hangs).

It isolates fast and does not localise precisely: healthy machines of the group go, too, and the plan says how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.actions.policy.plans.layout import Layout
from tocsin.schemas.errors import ConfigError

MOST_EVICTED: Final = 16
"""Largest group that goes as a whole, where nothing else is said."""
_ORDER: Final = ("pp", "dp", "tp", "cp", "ep")
"""Which dimension is preferred of groups of one size."""


@dataclass(frozen=True, slots=True)
class OverEviction:
    """Machines that go together.

    Attributes:
        dimension: dimension of their group, such as ``pp``.
        machines: the machines of the group.
        outliers: those of them that stood out.
    """

    dimension: str
    machines: tuple[int, ...]
    outliers: tuple[int, ...]

    @property
    def healthy_count(self) -> int:
        """Number of machines that go although they did not stand out."""
        return len(self.machines) - len(self.outliers)


def over_evict(layout: Layout, outliers: Collection[int], most_machines: int = MOST_EVICTED) -> OverEviction | None:
    """Return the smallest group that holds all outliers.

    Args:
        layout: the ranks and machines of the job.
        outliers: the machines whose stacks (or speeds) are unlike those of the others.
        most_machines: the largest group that may go.

    Returns:
        The group; None: no group of at most this size holds all outliers, and stop-time checks are the way.

    Raises:
        ConfigError: there are no outliers, or one is no machine of the job.
    """
    found = _checked(layout, outliers)
    fitting = [
        (len(group), _ORDER.index(name), tuple(sorted(group)), name)
        for name in layout.sizes
        if layout.sizes[name] > 1
        for group in layout.machine_groups(name)
        if found <= group and len(group) <= most_machines
    ]
    if not fitting:
        return None
    _, _, machines, name = min(fitting)
    return OverEviction(name, machines, tuple(sorted(found)))


def vote_of_rounds(
    layout: Layout, rounds: Sequence[Collection[int]], most_machines: int = MOST_EVICTED
) -> OverEviction | None:
    """Return the group that held most outliers, added up over rounds of looking (ByteRobust: five, 10 s apart).

    In each round the groups with most outliers get as many votes as each has outliers. Of groups with equally many
    votes the smallest goes.

    Args:
        layout: the ranks and machines of the job.
        rounds: the outliers of each round; a round may have none.
        most_machines: the largest group that may go.

    Returns:
        The group, with the outliers of all rounds that lie in it; None: no group of at most this size holds any.

    Raises:
        ConfigError: an outlier is no machine of the job, or no round has one.
    """
    everybody = _checked(layout, {one for outliers in rounds for one in outliers})
    groups = [
        (name, group)
        for name in sorted(layout.sizes, key=_ORDER.index)
        if layout.sizes[name] > 1
        for group in layout.machine_groups(name)
        if len(group) <= most_machines
    ]
    votes: Counter[int] = Counter()
    for outliers in rounds:
        held = [len(group & {*outliers}) for _, group in groups]
        most = max(held, default=0)
        votes.update({index: count for index, count in enumerate(held) if count == most > 0})
    if not votes:
        return None
    name, group = groups[min(votes, key=lambda index: (-votes[index], len(groups[index][1]), index))]
    return OverEviction(name, tuple(sorted(group)), tuple(sorted(group & everybody)))


def _checked(layout: Layout, outliers: Collection[int]) -> frozenset[int]:
    """Return the outliers after checking that there are some and that all are machines of the job."""
    if not outliers:
        raise ConfigError("outliers", (), "one machine or more")
    for one in outliers:
        if not 0 <= one < layout.machine_count:
            raise ConfigError("outliers", one, f"machines from 0 to {layout.machine_count - 1}")
    return frozenset(outliers)

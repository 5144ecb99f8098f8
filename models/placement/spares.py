"""Which spare should take the place of a host: the one after which the groups are spread least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.models.placement.groups import HostGroups, IntArray
from tocsin.models.placement.spread import JobSpread, job_spread
from tocsin.schemas.kinds import GroupKind


@dataclass(frozen=True, slots=True)
class RankedSpare:
    """A spare in the place of the evicted host.

    Attributes:
        spare_index: index of the spare.
        spread: the job's spread with it.
        change_count: weighted spread with it, less that of now; above 0 is worse.
    """

    spare_index: int
    spread: JobSpread
    change_count: float


def rank_spares(
    groups: Mapping[GroupKind, HostGroups], pod: IntArray, evicted: int, spare_pod: IntArray, alpha: float
) -> list[RankedSpare]:
    """Return the spares, the best first: by weighted spread (Arnold's D), then by minipods touched, then as given.

    Args:
        groups: the job's groups.
        pod: index of each host's minipod, shape (hosts,).
        evicted: index of the host that goes.
        spare_pod: index of each spare's minipod, shape (spares,).
        alpha: see ``JobSpread``.
    """
    now = job_spread(groups, pod, alpha).weighted_spread
    after: dict[int, JobSpread] = {}
    for where in set(spare_pod.tolist()):
        changed = pod.copy()
        changed[evicted] = where
        after[where] = job_spread(groups, changed, alpha)
    ranked = [
        RankedSpare(at, after[where], after[where].weighted_spread - now) for at, where in enumerate(spare_pod.tolist())
    ]
    return sorted(ranked, key=lambda one: (one.spread.weighted_spread, one.spread.weighted_pods, _mean(one.spread)))


def _mean(spread: JobSpread) -> float:
    """Return the minipods that a group touches in the mean, weighted as the largest numbers are."""
    weights = {GroupKind.DP: spread.alpha_ratio, GroupKind.PP: 1 - spread.alpha_ratio}
    return sum(weights.get(kind, 0.0) * of.mean_pods for kind, of in spread.kinds.items())

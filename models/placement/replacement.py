"""Another placement of a running job on its hosts and spares, compared with the one it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tocsin.models.placement.groups import HostGroups, IntArray
from tocsin.models.placement.mip import GroupPlan, solve
from tocsin.models.placement.problem import PlacementProblem, greedy
from tocsin.models.placement.spread import JobSpread, job_spread
from tocsin.schemas.kinds import GroupKind


class AdviceReason(StrEnum):
    """What a comparison of placements came to."""

    LESS_SPREAD = "less_spread"
    """Another placement is spread less."""
    NO_BETTER = "no_better_placement"
    """None was found that is spread less."""
    UNEQUAL_GROUPS = "unequal_groups"
    """Neither the pipeline nor the data-parallel groups are disjoint and of one size, so that no plan can be made."""


@dataclass(frozen=True, slots=True)
class CandidatePlacement:
    """A placement that was looked at.

    Attributes:
        unit: the groups that were placed as a whole.
        method: ``mip`` or ``greedy``.
        plan: numbers of hosts, with objective and bound.
        new_host: index of the host that takes the place of each host, shape (hosts,); spares come after the hosts.
        spread: the job's spread on them.
    """

    unit: GroupKind
    method: str
    plan: GroupPlan
    new_host: IntArray
    spread: JobSpread

    @property
    def moved(self) -> int:
        """Number of places that another host takes."""
        return int((self.new_host != np.arange(self.new_host.size)).sum())


@dataclass(frozen=True, slots=True)
class PlacementAdvice:
    """What re-placing a job would gain.

    Attributes:
        reason: what the comparison came to.
        now: spread of the job as it is.
        candidates: placements that were looked at, the best first.
    """

    reason: AdviceReason
    now: JobSpread
    candidates: tuple[CandidatePlacement, ...]

    @property
    def best(self) -> CandidatePlacement | None:
        """The placement to take, None where the present one is as good."""
        return self.candidates[0] if self.reason is AdviceReason.LESS_SPREAD else None


def advise(
    groups: Mapping[GroupKind, HostGroups], pod: IntArray, spare_pod: IntArray, alpha: float, limit_seconds: float
) -> PlacementAdvice:
    """Compare the placement of a job with what the optimisation and a greedy rule make of its hosts and spares.

    Both units are tried: pipeline groups, then data-parallel groups. Placements are compared by ``weighted_pods``,
    measured on the job's groups; a plan's own objective counts all minipods used for the other kind of group.

    Args:
        groups: the job's groups.
        pod: index of each host's minipod, shape (hosts,), none negative.
        spare_pod: index of each spare's minipod, shape (spares,).
        alpha: see ``JobSpread``.
        limit_seconds: time for the solver, for both units together.
    """
    now = job_spread(groups, pod, alpha)
    pods = np.concatenate([pod, spare_pod])
    free = np.bincount(pods).astype(np.int64)
    rows_of = {kind: groups[kind].matrix() for kind in (GroupKind.PP, GroupKind.DP) if kind in groups}
    units = {kind: rows for kind, rows in rows_of.items() if rows is not None and rows.size == pod.size}
    weights = {GroupKind.PP: (alpha, 1 - alpha), GroupKind.DP: (1 - alpha, alpha)}
    found = []
    for kind, rows in units.items():
        problem = PlacementProblem(rows.shape[0], rows.shape[1], free, *weights[kind])
        quick = greedy(problem)
        value = problem.objective(quick)
        plans = {
            "mip": solve(problem, limit_seconds / len(units)),
            "greedy": GroupPlan(quick, value, problem.plain_bound, is_solved=False),
        }
        for method, plan in plans.items():
            new_host = assign(rows, pods, plan.counts)
            found.append(CandidatePlacement(kind, method, plan, new_host, job_spread(groups, pods[new_host], alpha)))
    found.sort(key=lambda one: (one.spread.weighted_pods, one.moved))
    if not found:
        return PlacementAdvice(AdviceReason.UNEQUAL_GROUPS, now, ())
    is_better = found[0].spread.weighted_pods < now.weighted_pods - 1e-9
    return PlacementAdvice(AdviceReason.LESS_SPREAD if is_better else AdviceReason.NO_BETTER, now, tuple(found))


def assign(rows: IntArray, pods: IntArray, counts: IntArray) -> IntArray:
    """Return the host that takes each host's place so that groups stand as planned and few hosts move.

    Args:
        rows: hosts of each group, shape (groups, hosts of a group); together 0 to their number - 1.
        pods: index of the minipod of each host, and after them of each spare, shape (hosts + spares,).
        counts: hosts of each group in each minipod, shape (groups, minipods); which group is which does not matter.

    Returns:
        Indices into ``pods``, all different, shape (hosts,).
    """
    wanted = _matched(rows, pods, counts)
    new_host = np.full(rows.size, -1, np.int64)
    open_places: list[tuple[int, int]] = []  # (place, minipod)
    for group, hosts in enumerate(rows.tolist()):
        missing = wanted[group].copy()
        moving = []
        for host in hosts:
            if missing[pods[host]] > 0:
                missing[pods[host]] -= 1
                new_host[host] = host
            else:
                moving.append(host)
        open_places.extend(zip(moving, np.repeat(np.arange(missing.size), missing).tolist(), strict=True))
    kept = np.zeros(pods.size, np.bool_)
    kept[new_host[new_host >= 0]] = True
    pool: dict[int, list[int]] = {}
    for host in np.flatnonzero(~kept)[::-1].tolist():  # the job's own hosts are taken before spares
        pool.setdefault(int(pods[host]), []).append(host)
    for place, pod in open_places:
        new_host[place] = pool[pod].pop()
    return new_host


def _matched(rows: IntArray, pods: IntArray, counts: IntArray) -> IntArray:
    """Return the planned numbers of each group, given to the groups that have most of them already."""
    width = counts.shape[1]
    keys = np.arange(rows.shape[0])[:, None] * width + pods[rows]
    present = np.bincount(keys.ravel(), minlength=rows.shape[0] * width).reshape(-1, width)
    kinds, left = np.unique(counts, axis=0, return_counts=True)
    overlap = np.stack([np.minimum(present, kind).sum(axis=1) for kind in kinds], axis=1)
    wanted = np.full_like(present, -1)
    for pair in np.argsort(-overlap, axis=None, kind="stable").tolist():
        group, kind = divmod(pair, kinds.shape[0])
        if left[kind] and wanted[group, 0] < 0:
            wanted[group] = kinds[kind]
            left[kind] -= 1
    return wanted

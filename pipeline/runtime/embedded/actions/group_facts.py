"""The communication groups of running jobs as sets of hosts, made anew only where ranks moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from tocsin.models.placement.groups import RankCoordinates, groups_of_coordinates, indexed
from tocsin.pipeline.job.placement import Placement
from tocsin.schemas.action_events import GroupHosts
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import RankPlace

MOST_HOSTS: Final = 2_000
"""Of larger jobs no groups are told: the lists would fill the controller's state."""


class GroupFacts:
    """Data- and pipeline-parallel groups of jobs."""

    def __init__(self) -> None:
        """Start without jobs."""
        self._made: dict[tuple[str, str], tuple[Mapping[str, tuple[int, ...]], tuple[GroupHosts, ...]]] = {}
        """(cluster, job) -> the placement's roles that they were made with, and the groups."""

    def of(self, job: JobKey, placement: Placement) -> tuple[GroupHosts, ...]:
        """Return the groups of a job, () where coordinates are not known or the job is too large."""
        roles, key = placement.roles_of_hosts(), (job.cluster, job.job_id)
        known = self._made.get(key)
        if known is None or known[0] is not roles:
            known = self._made[key] = (roles, groups_of(placement.places))
        return known[1]


def groups_of(told: Mapping[int, RankPlace]) -> tuple[GroupHosts, ...]:
    """Return the groups that the coordinates of ranks mean.

    Args:
        told: rank -> its place.

    Returns:
        () where a coordinate is not known, or the job is too large.
    """
    places = [told[rank] for rank in sorted(told)]
    if not places or any(min(place.dp, place.pp, place.tp) < 0 for place in places):
        return ()
    hosts, host = indexed([place.host for place in places])
    if len(hosts) > MOST_HOSTS:
        return ()
    dp, pp, tp = (np.array([getattr(place, axis) for place in places], np.int64) for axis in ("dp", "pp", "tp"))
    made = groups_of_coordinates(RankCoordinates(host, dp, pp, tp))
    return tuple(
        GroupHosts(kind, tuple(hosts[at] for at in made[kind].hosts_of(index)))
        for kind in (GroupKind.DP, GroupKind.PP)
        for index in range(len(made[kind].names))
    )

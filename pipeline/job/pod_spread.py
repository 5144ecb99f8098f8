"""How far the groups of a running job are spread over minipods, as Arnold measures it: ``max_pods_dp, max_pods_pp``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from tocsin.models.placement.groups import IntArray, indexed
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import RankPlace

UNKNOWN: Final[Mapping[GroupKind, int]] = MappingProxyType({})
"""The answer where coordinates or minipods are not known."""


def most_pods(told: Mapping[int, RankPlace]) -> Mapping[GroupKind, int]:
    """Return the most minipods that a data- or a pipeline-parallel group of a job touches.

    A group is made of the ranks that differ in its own coordinate only. Ranks whose minipod is not known are left out.

    Args:
        told: rank -> its place.

    Returns:
        ``UNKNOWN`` where a coordinate of a rank is not known, or no rank's minipod.
    """
    places = list(told.values())
    if not places or any(min(place.dp, place.pp, place.tp) < 0 for place in places):
        return UNKNOWN
    names, pod = indexed([place.minipod for place in places])
    if not names:
        return UNKNOWN
    dp, pp, tp = (np.array([getattr(place, axis) for place in places], np.int64) for axis in ("dp", "pp", "tp"))
    known = pod >= 0
    return {
        GroupKind.DP: _most(pp[known], tp[known], pod[known]),
        GroupKind.PP: _most(dp[known], tp[known], pod[known]),
    }


def _most(first: IntArray, second: IntArray, pod: IntArray) -> int:
    """Return the most minipods of the ranks with the same two coordinates."""
    touched = np.unique(np.stack([first, second, pod]), axis=1)[:2]
    return int(np.unique(touched, axis=1, return_counts=True)[1].max())

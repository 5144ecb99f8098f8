"""Which free machines could take the place of evicted ones: those after which the job's groups are spread least."""

from __future__ import annotations

from typing import Final

import numpy as np

from tocsin.models.placement.groups import host_groups, indexed
from tocsin.models.placement.spares import rank_spares
from tocsin.pipeline.actions.facts import FactBook
from tocsin.schemas.actions import ActionTarget
from tocsin.schemas.kinds import GroupKind

ALPHA_RATIO: Final = 0.3
"""Weight of the data-parallel groups, as ``tocsin placement`` has it by default: Arnold's mixture of experts."""
MOST_SPARES: Final = 100
"""Longest list of spares in an action."""


def ranked_spares(facts: FactBook, target: ActionTarget, since_ns: int) -> tuple[str, ...]:
    """Return the spares for the machines of a target, the best first (Arnold's weighted spread, see ``rank_spares``).

    Of several machines the first gets the best spare, the next the best of the others with that one in place, and so
    on; the rest follow as they suit the last machine.

    Args:
        facts: what is known of machines and jobs.
        target: the machines to be replaced.
        since_ns: what a job controller said of spares before does not count.

    Returns:
        Names; empty where no spare is named, or the job's groups or a machine's minipod are not known.
    """
    cluster, job = target.job.cluster, target.job
    told, capacity = facts.job(cluster, job.job_id), facts.capacity(cluster, job.job_id, since_ns)
    if told is None or told.job.attempt != job.attempt or capacity is None or not told.groups:
        return ()
    hosts = tuple(dict.fromkeys(host for group in told.groups for host in group.hosts))
    spares = [host for host in dict.fromkeys(capacity.spare_hosts) if host not in hosts and host not in target.hosts]
    spares = [host for host in spares if facts.minipod_of(cluster, host)]
    _, pods = indexed([facts.minipod_of(cluster, host) for host in (*hosts, *spares)])
    going = [hosts.index(host) for host in target.hosts if host in hosts]
    if not spares or not going or (pods < 0).any():
        return ()
    number = {host: at for at, host in enumerate(hosts)}
    groups = {
        kind: host_groups((kind, [number[host] for host in one.hosts]) for one in told.groups if one.kind is kind)
        for kind in (GroupKind.DP, GroupKind.PP)
    }
    pod, free, chosen = pods[: len(hosts)].copy(), list(range(len(spares))), list[int]()
    for left, host in enumerate(going, start=1):
        found = rank_spares(groups, pod, host, np.array([pods[len(hosts) + at] for at in free], np.int64), ALPHA_RATIO)
        order = [free[one.spare_index] for one in found]
        taken = order if left == len(going) else order[:1]
        chosen += taken
        free = [at for at in free if at not in taken]
        if not free:
            break
        pod[host] = pods[len(hosts) + taken[0]]
    return tuple(spares[at] for at in chosen[:MOST_SPARES])

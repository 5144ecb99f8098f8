"""The key of a job, and the substitute names for a missing job or host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """One attempt of one job in one cluster.

    Attributes:
        cluster: name of the cluster.
        job_id: the scheduler's (or the user's) name of the job; ``idle`` for records of a host without a job.
        attempt: restart counter, from 0.
    """

    cluster: str
    job_id: str
    attempt: int = 0


IDLE_JOB_ID = "idle"
"""Job id of a host that runs no job; its records are stored and not judged."""

FLEET_JOB_ID = "fleet"
"""Job id on verdicts about many hosts of a cluster; no record carries it."""

OWN_CLUSTER = "tocsin"
"""Cluster of the jobs that tocsin makes up."""

CANARY_JOB_ID = "tocsin-canary"
"""Job id of the alerts' canary, in ``OWN_CLUSTER``."""

_RESERVED = {
    IDLE_JOB_ID: "tocsin's own name for hosts without a job, whose records are never judged",
    FLEET_JOB_ID: "tocsin's own name for incidents of many hosts",
}
_RESERVED_THERE = {
    CANARY_JOB_ID: "tocsin's own job that proves that alerts work",
    "watchdog": "tocsin's own alert that always fires",
    "test": "tocsin's own alert of a test",
}


def why_reserved(cluster: str, job_id: str) -> str:
    """Return what a job's name stands for in tocsin itself, "": it may be the name of a job.

    Args:
        cluster: name of the cluster.
        job_id: name of the job.
    """
    return _RESERVED.get(job_id) or (_RESERVED_THERE.get(job_id, "") if cluster == OWN_CLUSTER else "")


LONE_RANK_PREFIX = "rank:"
"""Beginning of the substitute host name of a rank whose host is unknown."""


def lone_host(rank: int) -> str:
    """Return the substitute host name of a rank whose host is unknown; each such rank has its own."""
    return f"{LONE_RANK_PREFIX}{rank}"


def is_lone(host: str) -> bool:
    """Return whether a host name is a substitute for the unknown host of a rank."""
    return host.startswith(LONE_RANK_PREFIX)

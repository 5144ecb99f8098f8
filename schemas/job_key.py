"""Whose a record is: the job, and the names that stand in where there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """One attempt of one job in one cluster.

    Attributes:
        cluster: name of the cluster.
        job_id: the scheduler's (or the user's) name of the job; ``idle`` for
            records of a host without a job.
        attempt: restart count, from 0.
    """

    cluster: str
    job_id: str
    attempt: int = 0


IDLE_JOB_ID = "idle"
"""Job id of a host that runs no job: stored, never judged."""

LONE_RANK_PREFIX = "rank:"


def lone_host(rank: int) -> str:
    """The name that stands for a host where nobody knows the rank's: each such rank is one of its own."""
    return f"{LONE_RANK_PREFIX}{rank}"


def is_lone(host: str) -> bool:
    """Whether a host's name only stands for that of a rank's host, which nobody knows."""
    return host.startswith(LONE_RANK_PREFIX)

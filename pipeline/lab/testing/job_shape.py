"""Settings of a fake job; ``fake_job`` runs it."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class JobShape:
    """The size, layout and timing of a fake job.

    Attributes:
        rank_count: number of ranks; even.
        host_ranks_count: ranks per host.
        stage_count: number of pipeline stages (ranks are compared within one).
        leaf_hosts_count: hosts behind one leaf switch, 0 if switches are unknown.
        minipod_leaves_count: leaf switches of one minipod, 0 if minipods are unknown.
        step_seconds: self time of a rank in a healthy step.
        transfer_seconds: time of one collective once all members are there.
        jitter_ratio: relative standard deviation of a rank's self time.
        start_ns: first instant, Unix nanoseconds.
        seed: seed of the jitter.
    """

    rank_count: int = 8
    host_ranks_count: int = 1
    stage_count: int = 1
    leaf_hosts_count: int = 0
    minipod_leaves_count: int = 0
    step_seconds: float = 0.2
    transfer_seconds: float = 0.002
    jitter_ratio: float = 0.05
    start_ns: int = 1_700_000_000 * NS_PER_SECOND
    seed: int = 0

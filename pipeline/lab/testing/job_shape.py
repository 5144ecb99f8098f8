"""How a made-up job looks; ``fake_job`` runs it."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class JobShape:
    """How the job looks.

    Attributes:
        rank_count: ranks; even.
        host_ranks_count: ranks of each host.
        stage_count: pipeline stages (ranks are compared within one).
        leaf_hosts_count: hosts behind one leaf switch, 0: nobody knows the switches.
        minipod_leaves_count: leaf switches of one minipod, 0: nobody knows the minipods.
        step_seconds: own time of a rank in a healthy step.
        transfer_seconds: time of one collective once everybody is there.
        jitter_ratio: standard deviation of a rank's own time.
        start_ns: first instant.
        seed: of the jitter.
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

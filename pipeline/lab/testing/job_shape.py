"""Shape of a fake job: its size, its times, and which ranks, groups and switches it has."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.records import NS_PER_SECOND, CommGroup, GroupKind, RankPlace

FIRST_PID = 100
"""Process number of rank 0; rank n has the n-th after it."""


@dataclass(frozen=True, slots=True)
class JobShape:
    """Size and times of a fake job.

    Attributes:
        rank_count: number of ranks, even.
        host_ranks_count: ranks of each host.
        stage_count: pipeline stages (ranks are compared within one).
        leaf_hosts_count: hosts behind one leaf switch, 0 = the switches are unknown.
        minipod_leaves_count: leaf switches of one minipod, 0 = the minipods are unknown.
        step_seconds: a rank's own time in a healthy step.
        transfer_seconds: time of one collective once all members are in it.
        jitter_ratio: standard deviation of a rank's own time, as a share of it.
        start_ns: the job's first instant, Unix nanoseconds.
        seed: seed of the jitter.
        tells_replicas: whether ranks tell their replica: the i-th of each stage is of the i-th replica.
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
    tells_replicas: bool = False

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's first host."""
        return f"n{rank // self.host_ranks_count:02d}"

    def groups(self) -> list[CommGroup]:
        """Return the communication groups: the world, two ``dp`` groups and a ``tp`` group for each pair of ranks."""
        everyone = tuple(range(self.rank_count))
        groups = [CommGroup("0/world", GroupKind.WORLD, everyone)]
        groups += [CommGroup(f"dp{i}/x", GroupKind.DP, everyone[i::2]) for i in range(2)]
        pairs = range(self.rank_count // 2)
        groups += [CommGroup(f"tp{i}/x", GroupKind.TP, everyone[2 * i : 2 * i + 2]) for i in pairs]
        return groups

    def place_of(self, rank: int, host: str) -> RankPlace:
        """Return the place that the agent of ``host`` announces for a rank: GPU, stage, switches and process."""
        leaf, minipod = self._switches_of(rank)
        return RankPlace(
            rank,
            host,
            rank % self.host_ranks_count if self.host_ranks_count > 1 else -1,
            dp=rank % (self.rank_count // self.stage_count) if self.tells_replicas else -1,
            pp=rank * self.stage_count // self.rank_count,
            leaf=leaf,
            minipod=minipod,
            world_size=self.rank_count,
            pid=FIRST_PID + rank,
        )

    def _switches_of(self, rank: int) -> tuple[str, str]:
        """Return the leaf switch and the minipod of a rank's host, "" = unknown."""
        hosts, leaves = self.leaf_hosts_count, self.minipod_leaves_count
        leaf = rank // max(1, hosts)
        return f"leaf{leaf}" if hosts else "", f"minipod{leaf // leaves}" if hosts and leaves else ""

"""A rank whose traffic is slow: all of its groups move data slower, the others do not.

The steps are longer, nobody's own time is, communication is: then the transfers of
each group (time after its last member has entered) tell who.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.models.transfers import GroupSpeed, SlowLink, find_slow_link
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Settings.

    Attributes:
        recent_count: transfers that are "now".
        chunk_count: transfers behind one number of a communicator's past.
        past_count: numbers of its past that are kept: a slow spell becomes normal only after half of them.
        min_ratio: a group is slow from this growth, when it lasts ...
        lasting_ns: ... so long: a process that got no CPU for a second looks the same ...
        strong_ratio: ... but for growth as large as this.
        min_excess_seconds: and from this growth in seconds (beyond the clocks' error).
        min_communication_ratio: share of the job's slowdown that must be communication.
        open_keep_count: unfinished operations kept per communicator until all members spoke.
    """

    recent_count: int = 6
    chunk_count: int = 12
    past_count: int = 128
    min_ratio: float = 2.0
    lasting_ns: int = 5 * NS_PER_SECOND
    strong_ratio: float = 4.0
    min_excess_seconds: float = 0.004
    min_communication_ratio: float = 0.5
    open_keep_count: int = 256


class NetworkTracker:
    """Transfers per communicator of one job."""

    def __init__(self, config: NetworkConfig, graph: JobGraph) -> None:
        """Know no transfer."""
        self._config = config
        self._graph = graph
        self._open: dict[str, dict[int, dict[int, list[int]]]] = {}
        self._recent: dict[str, list[float]] = {}
        self._past: dict[str, list[float]] = {}
        self._rank, self._since_ns = -1, 0
        """Whose groups are slow, and since when they were seen to be."""

    def take(self, rows: Sequence[CollectiveRecord]) -> None:
        """Learn completions; an operation counts when all members have reported it."""
        for row in rows:
            if row.record != "completion" or row.start_ns <= 0 or row.peer >= 0:
                continue
            group = self._graph.groups.get(row.comm_id)
            if group is None or len(group.ranks) < 2:  # a group of one moves nothing
                continue
            operations = self._open.setdefault(row.comm_id, {})
            members = operations.setdefault(row.op_seq, {})
            members[row.rank] = [
                self._graph.corrected_ns(row.rank, row.start_ns),
                self._graph.corrected_ns(row.rank, row.end_ns),
            ]
            if len(members) == len(group.ranks):
                self._close(row.comm_id, row.op_seq)
            for seq in sorted(operations)[: -self._config.open_keep_count]:
                del operations[seq]

    def _close(self, comm_id: str, seq: int) -> None:
        members = self._open[comm_id].pop(seq)
        moved_ns = max(end for _, end in members.values()) - max(start for start, _ in members.values())
        recent = self._recent.setdefault(comm_id, [])
        recent.append(max(0, moved_ns) / NS_PER_SECOND)
        if len(recent) >= self._config.recent_count + self._config.chunk_count:
            past = self._past.setdefault(comm_id, [])
            past.append(statistics.median(recent[: self._config.chunk_count]))
            del recent[: self._config.chunk_count]
            del past[: -self._config.past_count]

    def find(self, now_ns: int, anomalies: Sequence[Anomaly]) -> Finding | None:
        """Who slows the communication of a job that became slower, None where that is not it."""
        job = next((a for a in anomalies if a.metric == "step_seconds"), None)
        link = None if job is None else self._link(job, anomalies)
        if job is None or link is None:
            self._rank, self._since_ns = -1, 0
            return None
        if link.rank != self._rank:
            self._rank, self._since_ns = link.rank, now_ns
        if link.ratio < self._config.strong_ratio and now_ns - self._since_ns < self._config.lasting_ns:
            return None
        return self._finding(link, job, now_ns)

    def _link(self, job: Anomaly, anomalies: Sequence[Anomaly]) -> SlowLink | None:
        if job.detail["communication_ratio"] < self._config.min_communication_ratio:
            return None
        if any(a.metric == "own_seconds" for a in anomalies):
            return None
        return find_slow_link(self._speeds(), self._config.min_ratio, self._excess_seconds())

    def _excess_seconds(self) -> float:
        """The least growth that the clocks of this job's hosts can show."""
        return max(self._config.min_excess_seconds, 2 * self._graph.clock_error_ns(self._graph.ranks) / NS_PER_SECOND)

    def _speeds(self) -> list[GroupSpeed]:
        speeds = []
        for comm_id, past in sorted(self._past.items()):
            group = self._graph.groups.get(comm_id)
            if group is None or len(group.ranks) == self._graph.world_size:
                continue
            now = statistics.median(self._recent[comm_id][-self._config.recent_count :])
            # 40 %: a slow spell shorter than half of the past does not become normal.
            before = sorted(past)[int(0.4 * (len(past) - 1))]
            speeds.append(GroupSpeed(group.ranks, group.kind.value, now, before))
        return speeds

    def _finding(self, link: SlowLink, job: Anomaly, now_ns: int) -> Finding:
        evidence = Evidence(
            "transfers",
            "communication_seconds",
            link.ratio / self._config.min_ratio,
            job.start_ns,
            now_ns,
            f"{names_of(self._graph, [link.rank])}: once everybody is there, all of its groups take "
            f"{link.now_seconds * 1e3:.1f} ms to move data ({link.ratio:.1f}x their past), "
            f"the other groups {link.peer_seconds * 1e3:.1f} ms",
            suspect_value=link.now_seconds,
            peer_value=link.peer_seconds,
        )
        return Finding(
            FaultKind.FAIL_SLOW,
            "network_slow",
            suspects_of(self._graph, [link.rank]),
            job.start_ns,
            0.85,
            Reason.GROUPS_OF_RANK_SLOW,
            (evidence,),
        )

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "open": [
                [comm_id, [[seq, pairs_state(members)] for seq, members in sorted(operations.items())]]
                for comm_id, operations in sorted(self._open.items())
            ],
            "recent": pairs_state(self._recent),
            "past": pairs_state(self._past),
            "slow": [self._rank, self._since_ns],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._open = {
            comm_id: {seq: pairs_from(members) for seq, members in operations} for comm_id, operations in state["open"]
        }
        self._recent = pairs_from(state["recent"])
        self._past = pairs_from(state["past"])
        self._rank, self._since_ns = state["slow"]

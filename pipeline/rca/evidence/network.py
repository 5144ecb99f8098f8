"""Tracker of transfer times: finds a rank whose network traffic is slow.

All communicators of such a rank move data slower, and no others do. It applies where steps are longer because of
communication, not of self time. A transfer is the time of a collective after its last member has entered.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tocsin.models.groups_across import GroupsAcross, OperationSpeed, PlacedGroup, find_groups_across
from tocsin.models.transfers import GroupSpeed, SlowerGroups, SlowLink, find_slow_link, find_slower_groups
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Settings of the tracker.

    Attributes:
        recent_count: number of transfers that describe the present.
        chunk_count: transfers that are reduced to one median of a communicator's past.
        past_count: medians of the past that are kept; a slow spell becomes normal only after half of them.
        min_ratio: least growth of a slow communicator's transfers, if it lasts ...
        lasting_ns: ... this long, as a process without CPU for a second looks the same ...
        strong_ratio: ... or growth that needs no duration.
        min_excess_seconds: least growth in seconds, beyond clock errors.
        min_communication_ratio: least share of communication in the job's slowdown.
        open_keep_count: unfinished operations kept per communicator.
        compared_count: newest transfers of a communicator that are compared with those of other groups at the time ...
        least_compared_count: ... and least number of them that have the same name and bytes.
        stale_ns: a communicator without a transfer for so long, and as long as the compared ones took, is left out.
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
    compared_count: int = 24
    least_compared_count: int = 3
    stale_ns: int = 60 * NS_PER_SECOND


class Transfer(NamedTuple):
    """One transfer of a communicator, a tuple because many are made.

    Attributes:
        name: name of the collective.
        size_bytes: bytes that it moved.
        transfer_seconds: shortest time that a member was in it. The last one to enter waits for nobody, and its own
            clock measures that, so groups over hosts whose clocks differ are not taken for slow.
        end_ns: the last end, in nanoseconds.
    """

    name: str
    size_bytes: int
    transfer_seconds: float
    end_ns: int


class NetworkTracker:
    """Transfer times per communicator of one job."""

    def __init__(self, config: NetworkConfig, graph: JobGraph) -> None:
        """Start without transfers."""
        self._config = config
        self._graph = graph
        self._open: dict[str, dict[int, dict[int, list[int]]]] = {}
        """Communicator -> operation number -> rank -> [start, end] in nanoseconds, for operations some members have not
        reported."""
        self._recent: dict[str, list[float]] = {}
        """Communicator -> transfer times in seconds, oldest first."""
        self._past: dict[str, list[float]] = {}
        """Communicator -> medians of earlier transfer times in seconds, oldest first."""
        self._newest: dict[str, list[Transfer]] = {}
        """Communicator -> its newest transfers whose bytes are known, oldest first."""
        self._rank, self._since_ns = -1, 0
        """Rank whose communicators are slow (-1: none), and since when, in nanoseconds."""

    def take(self, rows: Sequence[CollectiveRecord]) -> None:
        """Record completions; a transfer is measured once all members have reported the operation."""
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
                self._close(row)
            for seq in sorted(operations)[: -self._config.open_keep_count]:
                del operations[seq]

    def _close(self, row: CollectiveRecord) -> None:
        """Remove a complete operation from the open ones and add its transfer time to the communicator's recent ones.

        The transfer time is from the last start to the last end. Once there are enough, the oldest chunk of recent
        times moves to the past as its median.

        Args:
            row: the last record of the operation.
        """
        comm_id = row.comm_id
        members = self._open[comm_id].pop(row.op_seq)
        end_ns = max(end for _, end in members.values())
        recent = self._recent.setdefault(comm_id, [])
        recent.append(max(0, end_ns - max(start for start, _ in members.values())) / NS_PER_SECOND)
        if row.msg_bytes > 0:
            newest = self._newest.setdefault(comm_id, [])
            shortest_ns = min(end - start for start, end in members.values())
            newest.append(Transfer(row.op_name, row.msg_bytes, max(0, shortest_ns) / NS_PER_SECOND, end_ns))
            del newest[: -self._config.compared_count]
        if len(recent) >= self._config.recent_count + self._config.chunk_count:
            past = self._past.setdefault(comm_id, [])
            past.append(statistics.median(recent[: self._config.chunk_count]))
            del recent[: self._config.chunk_count]
            del past[: -self._config.past_count]

    def find(self, now_ns: int, anomalies: Sequence[Anomaly]) -> Finding | None:
        """Return a fail-slow finding about the rank that slows communication.

        None where the job is not slower, where self time explains it, or where no rank stands out.

        Args:
            now_ns: end of the slice.
            anomalies: anomalies of step times.
        """
        of_job = [anomaly for anomaly in anomalies if anomaly.metric == "step_seconds"]
        job = max(of_job, key=lambda anomaly: anomaly.start_ns, default=None)
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
        """Return the rank whose communicators are all slow; None if self time, not communication, slows the job."""
        if not self.slows(job):
            return None
        if any(a.metric == "own_seconds" for a in anomalies):
            return None
        return find_slow_link(self._speeds(), self._config.min_ratio, self._excess_seconds())

    def slower(self, is_meant: Callable[[GroupSpeed], bool]) -> SlowerGroups | None:
        """Return how much slower some communicators have become; None unless all of them have, and no other.

        Growth accuses nobody, and what hosts' clocks differ by is the same before and after, so it need not be longer
        than the clocks' error.

        Args:
            is_meant: which of those that are smaller than the whole job are to be slower.
        """
        return find_slower_groups(self._speeds(), is_meant, self._config.min_ratio, self._config.min_excess_seconds)

    def across(self, now_ns: int) -> GroupsAcross | None:
        """Return what groups that cross minipods take longer than equal ones within one; None where they do not.

        Args:
            now_ns: end of the slice.
        """
        groups = [group for group in map(self._placed, sorted(self._newest)) if group is not None]
        stale_ns = self._config.stale_ns
        fresh = [group for group in groups if now_ns - group.last_ns <= stale_ns + group.last_ns - group.since_ns]
        return find_groups_across(fresh, self._config.min_ratio, self._config.min_excess_seconds)

    def _placed(self, comm_id: str) -> PlacedGroup | None:
        """Return a communicator with its transfers since ranks last moved.

        None where it is the whole job, lies on one machine, too few of its transfers are known, or it is not known in
        which minipods its members lie.
        """
        group, placement = self._graph.groups.get(comm_id), self._graph.placement
        if group is None or len(group.ranks) == self._graph.world_size:
            return None
        places = [placement.places.get(rank) for rank in group.ranks]
        hosts = {place.host for place in places if place is not None}
        pods = {place.minipod if place is not None else "" for place in places}
        if len(hosts) < 2 or "" in pods:
            return None
        moved_ns = placement.moved_ns
        newest = [one for one in self._newest[comm_id] if one.end_ns > moved_ns]
        speeds = self._operation_speeds(newest)
        if not speeds:
            return None
        ends = newest[0].end_ns, newest[-1].end_ns
        return PlacedGroup(group.kind.value, len(group.ranks), len(pods) > 1, speeds, *ends)

    def _operation_speeds(self, transfers: Sequence[Transfer]) -> tuple[OperationSpeed, ...]:
        """Return how long the operations take of which enough transfers are known, and how often they run."""
        by_name: dict[tuple[str, int], list[Transfer]] = {}
        for one in transfers:
            by_name.setdefault((one.name, one.size_bytes), []).append(one)
        speeds = []
        for (name, size_bytes), own in sorted(by_name.items()):
            span_seconds = (own[-1].end_ns - own[0].end_ns) / NS_PER_SECOND
            if len(own) >= self._config.least_compared_count and span_seconds > 0:
                middle_seconds = statistics.median(one.transfer_seconds for one in own)
                speeds.append(OperationSpeed(name, size_bytes, middle_seconds, (len(own) - 1) / span_seconds))
        return tuple(speeds)

    def slows(self, job: Anomaly) -> bool:
        """Return whether a slowdown of the whole job is for its larger part communication."""
        return float(job.detail["communication_ratio"]) >= self._config.min_communication_ratio

    def _excess_seconds(self) -> float:
        """Return the least growth in seconds that the clocks of the job's hosts can resolve."""
        return max(self._config.min_excess_seconds, 2 * self._graph.clock_error_ns(self._graph.ranks) / NS_PER_SECOND)

    def _speeds(self) -> list[GroupSpeed]:
        """Return present and past transfer times of each communicator that is smaller than the whole job."""
        speeds = []
        for comm_id, past in sorted(self._past.items()):
            group = self._graph.groups.get(comm_id)
            if group is None or len(group.ranks) == self._graph.world_size:
                continue
            now = statistics.median(self._recent[comm_id][-self._config.recent_count :])
            # 40 %: a slow spell shorter than half of the past does not become normal.
            before = sorted(past)[int(0.4 * (len(past) - 1))]
            pods = frozenset(self._graph.placement.minipods_of(group.ranks))
            speeds.append(GroupSpeed(group.ranks, group.kind.value, now, before, pods))
        return speeds

    def _finding(self, link: SlowLink, job: Anomaly, now_ns: int) -> Finding:
        """Return the fail-slow finding that accuses the host of the slow rank."""
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
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "open": [
                [comm_id, [[seq, pairs_state(members)] for seq, members in sorted(operations.items())]]
                for comm_id, operations in sorted(self._open.items())
            ],
            "recent": pairs_state(self._recent),
            "past": pairs_state(self._past),
            "newest": pairs_state(self._newest),
            "slow": [self._rank, self._since_ns],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._open = {
            comm_id: {seq: pairs_from(members) for seq, members in operations} for comm_id, operations in state["open"]
        }
        self._recent = pairs_from(state["recent"])
        self._past = pairs_from(state["past"])
        self._newest = {comm_id: [Transfer(*one) for one in transfers] for comm_id, transfers in state["newest"]}
        self._rank, self._since_ns = state["slow"]

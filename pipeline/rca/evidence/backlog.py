"""Tracker of network backlog in a running job: finds hosts whose sent chunks stay unacknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.models.flows import find_backlogged
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state, rows_from, rows_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component, few_hosts
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect

DETECTOR = "flows"


@dataclass(frozen=True, slots=True)
class BacklogRules:
    """Thresholds of the tracker.

    Attributes:
        bin_ns: length of one accumulation bin.
        bin_count: number of recent bins that are evaluated.
        least_row_count: fewest observed flow states in these bins for a host to be judged.
        least_chunk_count: least mean number of unacknowledged chunks. A sender's window holds eight (NCCL), so a full
            one has seven more than an empty one. Flows that share a NIC, or early observations, show less.
        least_ratio: least ratio of a host's unacknowledged chunks to those of the others.
        lasting_ns: least duration of the backlog.
        slower_ratio: least growth of collective durations where the job's pace shows none; operations may overlap with
            computation.
        before_bin_count: number of earlier bins to compare durations with.
        kept_bin_count: number of bins for which durations are kept: a quarter of an hour.
        before_ns: how long before its detection the job may have slowed.
        max_host_ratio: largest share of hosts at fault, unless they share a leaf switch.
    """

    bin_ns: int = 10 * NS_PER_SECOND
    bin_count: int = 6
    least_row_count: int = 6
    least_chunk_count: float = 2.0
    least_ratio: float = 3.0
    lasting_ns: int = 30 * NS_PER_SECOND
    slower_ratio: float = 1.15
    before_bin_count: int = 12
    kept_bin_count: int = 90
    before_ns: int = 20 * NS_PER_SECOND
    max_host_ratio: float = 0.125


class BacklogTracker:
    """Unacknowledged chunks of open transfers, by host of one job."""

    def __init__(self, rules: BacklogRules, graph: JobGraph) -> None:
        """Start without observations."""
        self._rules = rules
        self._graph = graph
        self._bins: dict[str, dict[int, list[int]]] = {}
        """Host -> bin number -> [unacknowledged chunks, observed flow states]."""
        self._since_ns: dict[str, int] = {}
        """Host -> time in nanoseconds since when it has a backlog; only hosts that have one."""
        self._reported_ns = 0
        """Start of the reported backlog in nanoseconds; 0 if none is reported."""
        self._durations: dict[int, list[int]] = {}
        """Bin number -> [total nanoseconds, number of operations] of collectives observed to end in it."""
        self._forgot_bin = 0
        """Bin number of the last clean-up; not part of the snapshot, as repeating it is harmless."""

    def take(self, rows: Sequence[CollectiveRecord]) -> None:
        """Accumulate the unacknowledged chunks of open flows, and the durations of finished collectives."""
        if rows:
            self._forget(max(row.ts_ns for row in rows))
        for row in rows:
            if row.record == "completion":
                self._add_duration(row)
                continue
            if row.rdma_transmitted <= 0 or row.peer >= 0:
                continue
            if not 0 <= row.rdma_done < max(row.total_chunks, row.rdma_transmitted + 1):
                continue
            cell = self._bins.setdefault(self._graph.host_of(row.rank), {}).setdefault(
                row.ts_ns // self._rules.bin_ns, [0, 0]
            )
            cell[0] += row.rdma_transmitted - row.rdma_done
            cell[1] += 1

    def _add_duration(self, row: CollectiveRecord) -> None:
        """Add a finished collective's duration to the bin in which it was observed."""
        if row.peer >= 0 or not 0 < row.start_ns < row.end_ns:
            return
        # By when it was seen: nobody has checked what the machine says of its end.
        cell = self._durations.setdefault(row.ts_ns // self._rules.bin_ns, [0, 0])
        cell[0] += row.end_ns - row.start_ns
        cell[1] += 1

    def find(self, now_ns: int, pace: JobProgress) -> Finding | None:
        """Return a fail-slow finding about hosts with a lasting backlog in a job that slowed with it; else None.

        Args:
            now_ns: end of the slice.
            pace: the job's step times.
        """
        if not self._bins:
            return None
        means = self._means(now_ns)
        late = find_backlogged(means, self._rules.least_chunk_count, self._rules.least_ratio)
        begin_ns = (now_ns // self._rules.bin_ns - 1) * self._rules.bin_ns
        self._since_ns = {host: self._since_ns.get(host, begin_ns) for host in late}
        onset_ns = min(self._since_ns.values(), default=0)
        # Others may be late because of the same switch: they are waited for.
        lasts = bool(late) and now_ns - max(self._since_ns.values()) >= self._rules.lasting_ns
        hurts = lasts and (onset_ns == self._reported_ns or self._slowed_since(onset_ns, now_ns, pace))
        if not hurts or not self._can_be_at_fault(late) or self._graph.in_announced_phase(onset_ns, now_ns):
            if not late:
                self._reported_ns = 0
            return None
        self._reported_ns = onset_ns
        return self._finding(late, means, onset_ns, now_ns)

    def _slowed_since(self, onset_ns: int, now_ns: int, pace: JobProgress) -> bool:
        """Return whether the job slowed since the onset, by its steps or by the duration of its collectives."""
        slowdown = pace.slowdown_since(onset_ns - self._rules.before_ns, now_ns)
        if slowdown is not None and slowdown.is_certain:
            return True
        first = (onset_ns - self._rules.before_ns) // self._rules.bin_ns
        before = self._mean_duration(first - self._rules.before_bin_count, first)
        now = self._mean_duration(now_ns // self._rules.bin_ns - self._rules.bin_count, now_ns // self._rules.bin_ns)
        return 0 < before * self._rules.slower_ratio <= now

    def _mean_duration(self, first: int, behind: int) -> float:
        """Return the mean duration of collectives in bins ``first`` to ``behind - 1``, in nanoseconds; 0.0 if none."""
        cells = [self._durations[number] for number in range(first, behind) if number in self._durations]
        return sum(spent for spent, _ in cells) / max(1, sum(count for _, count in cells))

    def _means(self, now_ns: int) -> dict[str, float]:
        """Return host -> mean number of unacknowledged chunks, for hosts with enough recent observations."""
        self._forget(now_ns)
        found = {}
        for host, bins in self._bins.items():
            count = sum(states for _, states in bins.values())
            if count >= self._rules.least_row_count:
                found[host] = sum(chunks for chunks, _ in bins.values()) / count
        return found

    def _forget(self, now_ns: int) -> None:
        """Drop bins that are too old, at most once per bin.

        It runs on input as well, since a stalled job may ask for no findings for days.
        """
        number = now_ns // self._rules.bin_ns
        if number <= self._forgot_bin:  # every machine's batch comes by here
            return
        self._forgot_bin = number
        self._durations = _drop_older(self._durations, number - self._rules.kept_bin_count)
        kept = {host: _drop_older(bins, number - self._rules.bin_count) for host, bins in self._bins.items()}
        self._bins = {host: bins for host, bins in kept.items() if bins}

    def _can_be_at_fault(self, hosts: Sequence[str]) -> bool:
        """Return whether these hosts may be at fault: they are few, or at most half of all and share a leaf switch.

        Hosts of several minipods are those of a ring that send from one minipod to the next: the way between these is
        narrow, and no host is at fault.
        """
        ranks = [rank for host in hosts for rank in self._graph.ranks_of_host(host)]
        if len(self._graph.placement.minipods_of(ranks)) > 1:
            return False
        if len(hosts) <= few_hosts(self._graph, self._rules.max_host_ratio):
            return True
        common = common_component(self._graph, set(hosts))
        return common is not None and common.kind is ComponentKind.LEAF and 2 * len(hosts) <= len(self._graph.hosts)

    def _finding(self, hosts: Sequence[str], means: dict[str, float], onset_ns: int, now_ns: int) -> Finding:
        """Return the fail-slow finding that accuses these hosts.

        Args:
            hosts: hosts with a backlog.
            means: host -> mean number of unacknowledged chunks.
            onset_ns: start of the backlog.
            now_ns: end of the slice.
        """
        others = [mean for host, mean in means.items() if host not in hosts]
        usual = sum(others) / max(1, len(others))
        evidence = tuple(
            Evidence(
                DETECTOR,
                "rdma_done",
                1.5,
                onset_ns,
                now_ns,
                f"{host}: {means[host]:.1f} chunks of its open transfers are posted to the network and not "
                f"acknowledged, {usual:.1f} of the others': all wait for its network, or its receiver's",
                suspect_value=means[host],
                peer_value=usual,
            )
            for host in hosts[:5]
        )
        return Finding(
            FaultKind.FAIL_SLOW,
            "network_slow",
            tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts),
            onset_ns,
            0.85,
            Reason.CHUNKS_PILE_UP,
            evidence,
            common=common_component(self._graph, set(hosts)) if len(hosts) > 1 else None,
            seen_ns=now_ns,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "bins": [[host, rows_state(own)] for host, own in sorted(self._bins.items())],
            "since": pairs_state(self._since_ns),
            "told_ns": self._reported_ns,
            "durations": rows_state(self._durations),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._bins = {host: rows_from(own) for host, own in state["bins"]}
        self._since_ns = pairs_from(state["since"])
        self._reported_ns = state["told_ns"]
        self._durations = rows_from(state["durations"])


def _drop_older(cells: dict[int, list[int]], oldest: int) -> dict[int, list[int]]:
    """Return the bins numbered ``oldest`` or higher; the same dictionary if none is older."""
    return cells if min(cells, default=oldest) >= oldest else {n: cell for n, cell in cells.items() if n >= oldest}

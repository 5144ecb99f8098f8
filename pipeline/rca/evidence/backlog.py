"""A slow transfer in a job that goes on: at whose senders do the chunks lie?"""

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
    """Settings.

    Attributes:
        bin_ns: what open flows showed is added up over so long.
        bin_count: and looked at over so many of those.
        least_row_count: a host of which fewer states were seen meanwhile tells nothing.
        least_chunk_count: a sender's window holds eight steps (NCCL): a full one is seven more than an empty one; where
            several of a host's flows share its NIC, or states were taken before the window was full, less.
        least_ratio: as many times what others have on their way.
        lasting_ns: it is so since so long ago.
        slower_ratio: or operations take so many times as long as before, where the job's pace shows nothing: they may
            lie beside the computation, mostly.
        before_bin_count: over so many bins before.
        kept_bin_count: what operations took is kept for so many bins: a quarter of an hour.
        before_ns: the job may have become slower so long before that was seen.
        max_host_ratio: more hosts than this share of the job are no machine's fault, unless they share a switch.
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
    """What the open flows of one job's hosts had posted and not seen acknowledged."""

    def __init__(self, rules: BacklogRules, graph: JobGraph) -> None:
        """Know no flow."""
        self._rules = rules
        self._graph = graph
        self._bins: dict[str, dict[int, list[int]]] = {}
        """host -> number of the bin -> [chunks, states]"""
        self._since_ns: dict[str, int] = {}
        """host -> since when its chunks lie, of those whose do"""
        self._told_ns = 0
        """Since when the chunks lie of those that were told, 0: nobody was, or it is over."""
        self._durations: dict[int, list[int]] = {}
        """number of the bin -> [nanoseconds, operations] of what was seen to end in it"""
        self._forgot_bin = 0
        """When old bins were last dropped: no state, as that may be done again."""

    def take(self, rows: Sequence[CollectiveRecord]) -> None:
        """Add up what open flows show, and what operations took."""
        if rows:
            self._forget(max(row.ts_ns for row in rows))
        for row in rows:
            if row.record == "completion":
                self._time(row)
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

    def _time(self, row: CollectiveRecord) -> None:
        if row.peer >= 0 or not 0 < row.start_ns < row.end_ns:
            return
        # By when it was seen: nobody has checked what the machine says of its end.
        cell = self._durations.setdefault(row.ts_ns // self._rules.bin_ns, [0, 0])
        cell[0] += row.end_ns - row.start_ns
        cell[1] += 1

    def find(self, now_ns: int, pace: JobProgress) -> Finding | None:
        """At whose senders the chunks of a job lie that became slower with it; None: at nobody's, or it did not."""
        if not self._bins:
            return None
        means = self._means(now_ns)
        late = find_backlogged(means, self._rules.least_chunk_count, self._rules.least_ratio)
        begin_ns = (now_ns // self._rules.bin_ns - 1) * self._rules.bin_ns
        self._since_ns = {host: self._since_ns.get(host, begin_ns) for host in late}
        onset_ns = min(self._since_ns.values(), default=0)
        # Others may be late because of the same switch: they are waited for.
        lasts = bool(late) and now_ns - max(self._since_ns.values()) >= self._rules.lasting_ns
        hurts = lasts and (onset_ns == self._told_ns or self._is_slower(onset_ns, now_ns, pace))
        if not hurts or not self._can_be_at_fault(late) or self._graph.in_announced_phase(onset_ns, now_ns):
            if not late:
                self._told_ns = 0
            return None
        self._told_ns = onset_ns
        return self._finding(late, means, onset_ns, now_ns)

    def _is_slower(self, onset_ns: int, now_ns: int, pace: JobProgress) -> bool:
        """Whether the job became slower with it: by its pace, or by what its operations take."""
        slowdown = pace.slowdown_since(onset_ns - self._rules.before_ns, now_ns)
        if slowdown is not None and slowdown.is_certain:
            return True
        first = (onset_ns - self._rules.before_ns) // self._rules.bin_ns
        before = self._mean_duration(first - self._rules.before_bin_count, first)
        now = self._mean_duration(now_ns // self._rules.bin_ns - self._rules.bin_count, now_ns // self._rules.bin_ns)
        return 0 < before * self._rules.slower_ratio <= now

    def _mean_duration(self, first: int, behind: int) -> float:
        """Nanoseconds that an operation took, of the bins from the first on and before ``behind``; 0: none ended."""
        cells = [self._durations[number] for number in range(first, behind) if number in self._durations]
        return sum(spent for spent, _ in cells) / max(1, sum(count for _, count in cells))

    def _means(self, now_ns: int) -> dict[str, float]:
        """Host -> chunks on their way, of those of which enough was seen lately."""
        self._forget(now_ns)
        found = {}
        for host, bins in self._bins.items():
            count = sum(states for _, states in bins.values())
            if count >= self._rules.least_row_count:
                found[host] = sum(chunks for chunks, _ in bins.values()) / count
        return found

    def _forget(self, now_ns: int) -> None:
        """Drop what is too old, whether anybody asks or not: a job may stand, or count no chunks, for days."""
        number = now_ns // self._rules.bin_ns
        if number <= self._forgot_bin:  # every machine's batch comes by here
            return
        self._forgot_bin = number
        self._durations = _since(self._durations, number - self._rules.kept_bin_count)
        kept = {host: _since(bins, number - self._rules.bin_count) for host, bins in self._bins.items()}
        self._bins = {host: bins for host, bins in kept.items() if bins}

    def _can_be_at_fault(self, hosts: Sequence[str]) -> bool:
        if len(hosts) <= few_hosts(self._graph, self._rules.max_host_ratio):
            return True
        common = common_component(self._graph, set(hosts))
        return common is not None and common.kind is ComponentKind.LEAF and 2 * len(hosts) <= len(self._graph.hosts)

    def _finding(self, hosts: Sequence[str], means: dict[str, float], onset_ns: int, now_ns: int) -> Finding:
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
        """JSON-able state."""
        return {
            "bins": [[host, rows_state(own)] for host, own in sorted(self._bins.items())],
            "since": pairs_state(self._since_ns),
            "told_ns": self._told_ns,
            "durations": rows_state(self._durations),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._bins = {host: rows_from(own) for host, own in state["bins"]}
        self._since_ns = pairs_from(state["since"])
        self._told_ns = state["told_ns"]
        self._durations = rows_from(state["durations"])


def _since(cells: dict[int, list[int]], oldest: int) -> dict[int, list[int]]:
    return cells if min(cells, default=oldest) >= oldest else {n: cell for n, cell in cells.items() if n >= oldest}

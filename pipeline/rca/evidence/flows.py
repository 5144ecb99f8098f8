"""Tracker of stalled transfers: finds the machine that holds up a collective which all members have entered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.models.flows import Flow, StuckFlow, find_stuck_flow
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind

DETECTOR = "flows"
_CAUSES = {"not_transmitted": "nic_dropout", "not_delivered": "nic_dropout", "gpu_not_ready": "gpu_execution_error"}
"""State of a stuck flow -> cause of the hang; other states have an unknown cause."""


@dataclass(frozen=True, slots=True)
class FlowRules:
    """Thresholds of the tracker.

    Attributes:
        stalled_after_ns: time without progress after which a collective's flows count as stalled; a chunk takes
            milliseconds at most.
        fresh_ns: age from which on an observation no longer shows that a flow is stalled.
    """

    stalled_after_ns: int = 15 * NS_PER_SECOND
    fresh_ns: int = 60 * NS_PER_SECOND


@dataclass(slots=True)
class _Seen:
    """Last state of one flow.

    Attributes:
        seq: number of the collective operation.
        start_ns: start of the operation.
        counters: chunks copied by the GPU, posted to the network, acknowledged.
        since_ns: time since when the counters have not changed.
        seen_ns: time of the last observation.
    """

    seq: int
    start_ns: int
    counters: tuple[int, int, int]
    since_ns: int
    seen_ns: int


class FlowTracker:
    """Chunk counters of one job's unfinished collectives."""

    def __init__(self, rules: FlowRules, graph: JobGraph) -> None:
        """Start without flows."""
        self._rules = rules
        self._graph = graph
        self._flows: dict[int, dict[tuple[str, int], _Seen]] = {}
        """Rank -> (communicator, channel) -> last state; a rank with an empty entry has reported other operations."""

    def take_collectives(self, rows: Sequence[CollectiveRecord]) -> None:
        """Update flow states from progress records, and drop flows of finished operations."""
        for row in rows:
            known = self._flows.setdefault(row.rank, {})
            if row.record == "completion":
                for key in [k for k, seen in known.items() if k[0] == row.comm_id and seen.seq <= row.op_seq]:
                    del known[key]
            elif row.rdma_done >= 0 and row.peer < 0:
                self._see(row)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Drop flows that were last observed before a step of their rank ended, as they are finished."""
        for row in rows:
            known = self._flows.get(row.rank)
            if known:
                kept = {key: seen for key, seen in known.items() if max(seen.start_ns, seen.seen_ns) >= row.ts_ns}
                self._flows[row.rank] = kept

    def _see(self, row: CollectiveRecord) -> None:
        """Store the counters of one progress record, and when they last changed."""
        known = self._flows[row.rank]
        counters = (row.gpu_ready, row.rdma_transmitted, row.rdma_done)
        seen = known.get((row.comm_id, row.channel))
        if seen is not None and (seen.seq, seen.counters) == (row.op_seq, counters):
            seen.seen_ns = max(seen.seen_ns, row.ts_ns)
        elif seen is None or row.ts_ns >= seen.seen_ns:
            known[row.comm_id, row.channel] = _Seen(row.op_seq, row.start_ns, counters, row.ts_ns, row.ts_ns)

    def find(self, now_ns: int, elsewhere: Collection[str] = ()) -> Finding | None:
        """Return a hang finding about the machine that holds up stalled transfers; None if there is none, or several.

        Args:
            now_ns: end of the slice.
            elsewhere: hosts whose metrics show that they do something other than the rest of the job.
        """
        found = []
        for flows, since_ns in self._stalled(now_ns).values():
            stuck = find_stuck_flow(flows, elsewhere)
            if stuck is not None:
                found.append((since_ns, stuck))
        if len({stuck.flow.host for _, stuck in found}) != 1:
            return None
        since_ns, stuck = min(found, key=lambda one: one[0])
        return None if self._graph.in_announced_phase(since_ns, now_ns) else self._finding(stuck, since_ns, now_ns)

    def _stalled(self, now_ns: int) -> dict[tuple[str, int], tuple[list[Flow], int]]:
        """Return (communicator, operation number) -> (flows, time of the last progress), for stalled collectives."""
        operations: dict[tuple[str, int], list[tuple[Flow, _Seen]]] = {}
        for rank, known in self._flows.items():
            for (comm_id, channel), seen in known.items():
                flow = Flow(rank, self._graph.host_of(rank), channel, *seen.counters)
                operations.setdefault((comm_id, seen.seq), []).append((flow, seen))
        found = {}
        for operation, flows in operations.items():
            is_stalled = min(seen.seen_ns - seen.since_ns for _, seen in flows) >= self._rules.stalled_after_ns
            is_fresh = min(seen.seen_ns for _, seen in flows) >= now_ns - self._rules.fresh_ns
            if is_stalled and is_fresh and self._all_entered(operation[0], {flow.rank for flow, _ in flows}):
                found[operation] = ([flow for flow, _ in flows], max(seen.since_ns for _, seen in flows))
        return found

    def _all_entered(self, comm_id: str, ranks: Collection[int]) -> bool:
        """Return whether every reporting member of a communicator has entered the operation.

        Else the operation waits for the missing member, and its transfers show nothing.
        """
        group = self._graph.groups.get(comm_id)
        return group is None or not any(rank in self._flows and rank not in ranks for rank in group.ranks)

    def _finding(self, stuck: StuckFlow, since_ns: int, now_ns: int) -> Finding:
        """Return the hang finding that accuses the host of the flow with the least progress."""
        flow, peers = stuck.flow, stuck.peer_done_count
        text = (
            f"{names_of(self._graph, [flow.rank])}, channel {flow.channel}: {flow.ready_count} chunks copied by the "
            f"GPU, {flow.transmitted_count} posted, {flow.done_count} acknowledged, its peers up to {peers}; "
            f"no flow has moved for {(now_ns - since_ns) / 1e9:.0f} s ({stuck.state})"
        )
        evidence = Evidence(DETECTOR, "rdma_done", 2.0, since_ns, now_ns, text, float(flow.done_count), float(peers))
        return Finding(
            FaultKind.HANG,
            _CAUSES.get(stuck.state, "unknown"),
            suspects_of(self._graph, [flow.rank]),
            since_ns,
            0.85,
            Reason.TRANSFER_STALLED,
            (evidence,),
        )

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [
            [rank, comm_id, channel, seen.seq, seen.start_ns, *seen.counters, seen.since_ns, seen.seen_ns]
            for rank, known in sorted(self._flows.items())
            for (comm_id, channel), seen in sorted(known.items())
        ] + [[rank] for rank, known in sorted(self._flows.items()) if not known]

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._flows = {}
        for rank, *fields in state:
            known = self._flows.setdefault(rank, {})
            if fields:
                comm_id, channel, seq, start_ns, ready, transmitted, done, since_ns, seen_ns = fields
                known[comm_id, channel] = _Seen(seq, start_ns, (ready, transmitted, done), since_ns, seen_ns)

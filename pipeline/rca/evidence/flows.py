"""Transfers that stand: at which machine do the chunks of a collective lie that everybody has entered?"""

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


@dataclass(frozen=True, slots=True)
class FlowRules:
    """Settings.

    Attributes:
        stands_ns: no flow of a collective has moved for so long (a chunk takes microseconds to milliseconds).
        fresh_ns: what was seen longer ago is not known to stand still.
    """

    stands_ns: int = 15 * NS_PER_SECOND
    fresh_ns: int = 60 * NS_PER_SECOND


@dataclass(slots=True)
class _Seen:
    """One flow: the operation's number and begin, the counters, since when they are so, and until when seen."""

    seq: int
    start_ns: int
    counters: tuple[int, int, int]
    since_ns: int
    seen_ns: int


class FlowTracker:
    """The chunk counters of one job's unfinished collectives."""

    def __init__(self, rules: FlowRules, graph: JobGraph) -> None:
        """Know no flow."""
        self._rules = rules
        self._graph = graph
        self._flows: dict[int, dict[tuple[str, int], _Seen]] = {}
        """rank -> (communicator, channel) -> what was seen; a rank without any has told of other operations."""

    def take_collectives(self, rows: Sequence[CollectiveRecord]) -> None:
        """Learn where flows are; what finished is no matter any more."""
        for row in rows:
            known = self._flows.setdefault(row.rank, {})
            if row.record == "completion":
                for key in [k for k, seen in known.items() if k[0] == row.comm_id and seen.seq <= row.op_seq]:
                    del known[key]
            elif row.rdma_done >= 0 and row.peer < 0:
                self._see(row)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """A finished step finished what was begun in it."""
        for row in rows:
            known = self._flows.get(row.rank)
            if known:
                kept = {key: seen for key, seen in known.items() if max(seen.start_ns, seen.seen_ns) >= row.ts_ns}
                self._flows[row.rank] = kept

    def _see(self, row: CollectiveRecord) -> None:
        known = self._flows[row.rank]
        counters = (row.gpu_ready, row.rdma_transmitted, row.rdma_done)
        seen = known.get((row.comm_id, row.channel))
        if seen is not None and (seen.seq, seen.counters) == (row.op_seq, counters):
            seen.seen_ns = max(seen.seen_ns, row.ts_ns)
        elif seen is None or row.ts_ns >= seen.seen_ns:
            known[row.comm_id, row.channel] = _Seen(row.op_seq, row.start_ns, counters, row.ts_ns, row.ts_ns)

    def find(self, now_ns: int, elsewhere: Collection[str] = ()) -> Finding | None:
        """At which machine a transfer stands; None: none does, or nobody stands out.

        Args:
            now_ns: the present.
            elsewhere: machines whose metrics show that they are not where the others are.
        """
        found = []
        for flows, since_ns in self._standing(now_ns).values():
            stuck = find_stuck_flow(flows, elsewhere)
            if stuck is not None:
                found.append((since_ns, stuck))
        if len({stuck.flow.host for _, stuck in found}) != 1:
            return None
        since_ns, stuck = min(found, key=lambda one: one[0])
        return None if self._graph.in_announced_phase(since_ns, now_ns) else self._finding(stuck, since_ns, now_ns)

    def _standing(self, now_ns: int) -> dict[tuple[str, int], tuple[list[Flow], int]]:
        """(communicator, number) -> its flows and when the last of them moved, where none has moved for a while."""
        operations: dict[tuple[str, int], list[tuple[Flow, _Seen]]] = {}
        for rank, known in self._flows.items():
            for (comm_id, channel), seen in known.items():
                flow = Flow(rank, self._graph.host_of(rank), channel, *seen.counters)
                operations.setdefault((comm_id, seen.seq), []).append((flow, seen))
        found = {}
        for operation, flows in operations.items():
            stands = min(seen.seen_ns - seen.since_ns for _, seen in flows) >= self._rules.stands_ns
            fresh = min(seen.seen_ns for _, seen in flows) >= now_ns - self._rules.fresh_ns
            if stands and fresh and self._all_entered(operation[0], {flow.rank for flow, _ in flows}):
                found[operation] = ([flow for flow, _ in flows], max(seen.since_ns for _, seen in flows))
        return found

    def _all_entered(self, comm_id: str, ranks: Collection[int]) -> bool:
        """Whether nobody who tells of operations is missing in this one: else all of it waits for him."""
        group = self._graph.groups.get(comm_id)
        return group is None or not any(rank in self._flows and rank not in ranks for rank in group.ranks)

    def _finding(self, stuck: StuckFlow, since_ns: int, now_ns: int) -> Finding:
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
        """JSON-able state."""
        return [
            [rank, comm_id, channel, seen.seq, seen.start_ns, *seen.counters, seen.since_ns, seen.seen_ns]
            for rank, known in sorted(self._flows.items())
            for (comm_id, channel), seen in sorted(known.items())
        ] + [[rank] for rank, known in sorted(self._flows.items()) if not known]

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Take back what ``to_state`` gave."""
        self._flows = {}
        for rank, *told in state:
            known = self._flows.setdefault(rank, {})
            if told:
                comm_id, channel, seq, start_ns, ready, transmitted, done, since_ns, seen_ns = told
                known[comm_id, channel] = _Seen(seq, start_ns, (ready, transmitted, done), since_ns, seen_ns)

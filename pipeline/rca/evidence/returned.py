"""Exoneration of hosts that were accused for silence and report again while the job is still stalled.

An agent that was merely unreachable is no fault of its machine. If the machine was restarted instead, its agent reports
again but its ranks do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tocsin.pipeline.core.state_maps import pairs_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind

_STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)


@dataclass(slots=True)
class ReturnedHosts:
    """Hosts that were accused for silence.

    Attributes:
        accused_ns: host -> time in nanoseconds of its last accusation.
    """

    accused_ns: dict[str, int] = field(default_factory=dict)

    def free(
        self,
        findings: Sequence[Finding],
        graph: JobGraph,
        silent: Collection[str],
        reported_ns: Callable[[int], int],
        now_ns: int,
    ) -> list[Finding]:
        """Remember hosts accused for silence, and clear those whose ranks have all reported since.

        Args:
            findings: findings of this slice.
            graph: the job's ranks and hosts.
            silent: hosts that have sent nothing for too long.
            reported_ns: rank -> when it last reported its position itself; 0 if never.
            now_ns: end of the slice.

        Returns:
            The findings; the first stop or hang among them carries the cleared hosts.
        """
        for finding in findings:
            if finding.reason is Reason.SILENT_AND_PEERS_STALLED:
                self.accused_ns.update((name, now_ns) for name in finding.accused if name in silent)
        if not self.accused_ns:
            return list(findings)
        back = [
            host for host in sorted(self.accused_ns.keys() - set(silent)) if self._is_back(host, graph, reported_ns)
        ]
        at_index = next((at for at, finding in enumerate(findings) if finding.fault in _STANDSTILL), None)
        if at_index is None or findings[at_index].reason is Reason.SILENT_AND_PEERS_STALLED:
            return list(findings)
        for host in back:
            del self.accused_ns[host]
        freed = tuple(Component(ComponentKind.HOST, host) for host in back)
        named = replace(findings[at_index], clears=(*findings[at_index].clears, *freed))
        return [*findings[:at_index], named, *findings[at_index + 1 :]] if freed else list(findings)

    def _is_back(self, host: str, graph: JobGraph, reported_ns: Callable[[int], int]) -> bool:
        """Return whether all ranks of a host have reported since its accusation, and none has exited."""
        ranks = graph.ranks_of_host(host)
        since_ns = self.accused_ns[host]
        return bool(ranks) and all(
            max(reported_ns(rank), graph.ranks[rank].last_step_ns) > since_ns and graph.ranks[rank].exit is None
            for rank in ranks
        )

    def to_state(self) -> list[tuple[str, int]]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return pairs_state(self.accused_ns)

    def load_state(self, state: Sequence[Sequence[object]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.accused_ns = {str(host): int(str(ns)) for host, ns in state}

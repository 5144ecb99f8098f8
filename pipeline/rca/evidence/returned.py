"""Machines that were accused because nothing was heard of them, and speak again while the job still stands.

That its agent was away is no fault of a machine whose processes are there. One that was started anew is another matter:
its agent speaks, its ranks do not.
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
    """Who was accused for its silence.

    Attributes:
        accused_ns: host -> when that was found last.
    """

    accused_ns: dict[str, int] = field(default_factory=dict)

    def free(
        self,
        findings: Sequence[Finding],
        graph: JobGraph,
        silent: Collection[str],
        told_ns: Callable[[int], int],
        now_ns: int,
    ) -> list[Finding]:
        """Remember whom a silence accuses, and free whose ranks all told since then where they stand.

        Args:
            findings: what is found in this slice.
            graph: the job.
            silent: hosts that have said nothing for too long.
            told_ns: when a rank last told itself where it stands, 0: never.
            now_ns: the slice's end.

        Returns:
            The findings; the first one that tells of a standstill exonerates those that are back.
        """
        for finding in findings:
            if finding.reason is Reason.SILENT_AND_PEERS_STALLED:
                self.accused_ns.update((name, now_ns) for name in finding.accused if name in silent)
        if not self.accused_ns:
            return list(findings)
        back = [host for host in sorted(self.accused_ns.keys() - set(silent)) if self._is_back(host, graph, told_ns)]
        stands = next((at for at, finding in enumerate(findings) if finding.fault in _STANDSTILL), None)
        if stands is None or findings[stands].reason is Reason.SILENT_AND_PEERS_STALLED:
            return list(findings)
        for host in back:
            del self.accused_ns[host]
        freed = tuple(Component(ComponentKind.HOST, host) for host in back)
        named = replace(findings[stands], exonerates=(*findings[stands].exonerates, *freed))
        return [*findings[:stands], named, *findings[stands + 1 :]] if freed else list(findings)

    def _is_back(self, host: str, graph: JobGraph, told_ns: Callable[[int], int]) -> bool:
        """Whether all ranks of a host told where they stand after it was accused."""
        ranks = graph.ranks_of_host(host)
        since_ns = self.accused_ns[host]
        return bool(ranks) and all(
            max(told_ns(rank), graph.ranks[rank].last_step_ns) > since_ns and graph.ranks[rank].exit is None
            for rank in ranks
        )

    def to_state(self) -> list[tuple[str, int]]:
        """JSON-able state."""
        return pairs_state(self.accused_ns)

    def load_state(self, state: Sequence[Sequence[object]]) -> None:
        """Take back what ``to_state`` gave."""
        self.accused_ns = {str(host): int(str(ns)) for host, ns in state}

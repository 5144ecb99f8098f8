"""Who saw what a finding says: the accused machines' own drivers, and the other hosts that were harmed.

Each host's records are its own word. A host is harmed by another one where its own ranks wait for exactly the other's
ranks, lost their connection, or make longer steps since then; without a hook, where its own machine does less work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.job.witnesses import ordered_witnesses
from tocsin.pipeline.rca.evidence.hardware import HardwareTracker
from tocsin.pipeline.rca.evidence.stop import who_lost_peers
from tocsin.pipeline.rca.evidence.waits import WaitTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, Witness, WitnessKind

_STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
_CLOCKS_NS = 2 * NS_PER_SECOND
"""Who died of a lost connection did so after the one that it lost, by other clocks."""
_STEPS_LATE_NS = 8 * NS_PER_SECOND
"""Steps reach the engine up to a metric slice after they end."""
_STEP_COUNT = 3
"""Steps that have not ended for so many usual ones end no more."""
_FOLLOWING_COUNT = 2
"""Usual steps that others may end after one is gone: the one in which they were, and one that was begun."""


@dataclass(frozen=True, slots=True)
class Testimony:
    """What is known at the end of one slice.

    Attributes:
        graph: the job.
        now_ns: the slice's end.
        waits: who waits for whom.
        hardware: what the machines report of themselves.
        pace: the job's pace.
        silent: hosts that have said nothing for too long.
    """

    graph: JobGraph
    now_ns: int
    waits: WaitTracker
    hardware: HardwareTracker
    pace: JobProgress
    silent: Sequence[str]

    def of(self, findings: Sequence[Finding]) -> list[Finding]:
        """The findings, each with who saw it."""
        if not any(finding.suspects for finding in findings):
            return list(findings)
        count = len(self._machines())
        return [
            replace(
                finding, witnesses=self._listed(finding), machine_count=count, is_lone=self._is_lone(finding, count)
            )
            if finding.suspects and not finding.only_holds
            else finding
            for finding in findings
        ]

    def _machines(self) -> set[str]:
        """The machines that carry ranks; where nobody tells of ranks, all that are not spare."""
        carrying = {self.graph.host_of(rank) for rank in self.graph.ranks} - {""}
        return carrying or self.graph.hosts.keys() - self.graph.spare_hosts()

    def _listed(self, finding: Finding) -> tuple[Witness, ...]:
        accused = frozenset(finding.accused)
        own = dict.fromkeys(accused.intersection(self.silent), WitnessKind.CONNECTION_LOST)
        cause = finding.cause if finding.is_by_words else ""
        told = self.hardware.accusing_hosts(accused, finding.onset_ns, cause)
        own.update(dict.fromkeys(told, WitnessKind.HARDWARE_EVENT))
        without = accused | self.graph.spare_hosts() | set(self.silent)
        others = self._others(finding, accused)
        return ordered_witnesses(own, {host: kind for host, kind in others.items() if host and host not in without})

    def _others(self, finding: Finding, accused: Collection[str]) -> dict[str, WitnessKind]:
        """The other hosts that were harmed."""
        if finding.fault is FaultKind.FAIL_SLOW:
            return dict(self.pace.harmed_since(finding.onset_ns, self.now_ns))
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            return dict.fromkeys(self._ended_steps(finding.onset_ns), WitnessKind.STEPS)
        if finding.fault not in _STANDSTILL:
            return {}
        return self._stopped(finding, accused) | who_lost_peers(self.graph, accused, finding.onset_ns - _CLOCKS_NS)

    def _stopped(self, finding: Finding, accused: Collection[str]) -> dict[str, WitnessKind]:
        """Who waits for exactly the accused ranks; where nobody tells of waiting, whose steps or work ended."""
        if self.waits.tells:
            ranks = [rank for host in sorted(accused) for rank in self.graph.ranks_of_host(host)]
            waiting = self.waits.waiting_for(ranks, self.now_ns, self.pace.median_step_ns, self.silent)
            return dict.fromkeys((self.graph.host_of(rank) for rank in waiting), WitnessKind.PEERS_WAIT)
        if self.graph.max_step >= 0:
            return dict.fromkeys(self._ended_steps(finding.onset_ns), WitnessKind.STEPS)
        return dict(self.pace.harmed_since(finding.onset_ns, self.now_ns))

    def _ended_steps(self, onset_ns: int) -> list[str]:
        """Hosts whose ranks made steps until about an onset, and make none now."""
        late_ns = _STEPS_LATE_NS + _STEP_COUNT * self.pace.median_step_ns
        first_ns, last_ns = onset_ns - late_ns, min(onset_ns + late_ns, self.now_ns - late_ns)
        return [host for host, at_ns in self._newest_steps().items() if first_ns <= at_ns < last_ns]

    def _newest_steps(self) -> dict[str, int]:
        """Host -> end of the newest step of any of its ranks."""
        newest: dict[str, int] = {}
        for rank, facts in self.graph.ranks.items():
            if facts.last_step_ns:
                host = self.graph.host_of(rank)
                newest[host] = max(newest.get(host, 0), facts.last_step_ns)
        return newest

    def _is_lone(self, finding: Finding, count: int) -> bool:
        """Whether nobody else followed or stopped.

        Of numbers that one lost: the others keep theirs, and are not known to stand. Of a process that ended: most of
        the others end steps that they began after it.
        """
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            ended = set(self._ended_steps(finding.onset_ns)) - set(finding.accused)
            return finding.is_lone and count > 1 and not ended
        if finding.fault is not FaultKind.FAIL_STOP or not self.pace.median_step_ns:
            return False
        others = [at_ns for host, at_ns in self._newest_steps().items() if host not in finding.accused]
        after_ns = finding.onset_ns + _CLOCKS_NS + _FOLLOWING_COUNT * self.pace.median_step_ns
        return 2 * sum(at_ns > after_ns for at_ns in others) > len(others)

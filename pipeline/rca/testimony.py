"""Witnesses of findings: the accused machines' own drivers, and other hosts that were harmed.

Each host's records are its own word. A host is harmed by another one where its own ranks wait for exactly the other's
ranks. So it is where they lost their connection, or make longer steps since then. Without a hook, a machine that does
less work counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.job.witnesses import ordered_witnesses
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog
from tocsin.pipeline.rca.evidence.stop import who_lost_peers
from tocsin.pipeline.rca.evidence.waits import WaitTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, Witness, WitnessKind

_STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
_CLOCKS_NS = 2 * NS_PER_SECOND
"""By other clocks, an exit by a lost connection may seem this much earlier than the exit that caused it."""
_STEPS_LATE_NS = 8 * NS_PER_SECOND
"""Longest time until a step's record reaches the engine, a metric slice after its end."""
_STEP_COUNT = 3
"""A rank whose step has not ended for this many usual steps stands."""
_FOLLOWING_COUNT = 2
"""Steps that others may end after a rank is gone: the one that they were in, and one that was begun."""


@dataclass(frozen=True, slots=True)
class Testimony:
    """Finds the witnesses of findings at the end of one slice.

    Attributes:
        graph: the job.
        now_ns: the slice's end.
        waits: the operations that ranks wait in.
        hardware: hardware events of the machines.
        pace: the job's progress.
        silent: hosts that have sent nothing for too long.
    """

    graph: JobGraph
    now_ns: int
    waits: WaitTracker
    hardware: HardwareLog
    pace: JobProgress
    silent: Sequence[str]

    def of(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings, each with its witnesses."""
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
        """Return the machines that carry ranks; where no ranks are known, all that are not spare."""
        carrying = {self.graph.host_of(rank) for rank in self.graph.ranks} - {""}
        return carrying or self.graph.hosts.keys() - self.graph.spare_hosts()

    def _listed(self, finding: Finding) -> tuple[Witness, ...]:
        """Return the witnesses of one finding."""
        accused = frozenset(finding.accused)
        own = dict.fromkeys(accused.intersection(self.silent), WitnessKind.CONNECTION_LOST)
        cause = finding.cause if finding.is_by_words else ""
        reporting = self.hardware.accusing_hosts(accused, finding.onset_ns, cause)
        own.update(dict.fromkeys(reporting, WitnessKind.HARDWARE_EVENT))
        without = accused | self.graph.spare_hosts() | set(self.silent)
        others = self._others(finding, accused)
        return ordered_witnesses(own, {host: kind for host, kind in others.items() if host and host not in without})

    def _others(self, finding: Finding, accused: Collection[str]) -> dict[str, WitnessKind]:
        """Return the other hosts that were harmed, each with how it was."""
        if finding.fault is FaultKind.FAIL_SLOW:
            return dict(self.pace.harmed_since(finding.onset_ns, self.now_ns))
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            return dict.fromkeys(self._ended_steps(finding.onset_ns), WitnessKind.STEPS)
        if finding.fault not in _STANDSTILL:
            return {}
        return self._stopped(finding, accused) | who_lost_peers(self.graph, accused, finding.onset_ns - _CLOCKS_NS)

    def _stopped(self, finding: Finding, accused: Collection[str]) -> dict[str, WitnessKind]:
        """Return the hosts that wait for exactly the accused, or whose steps or work ended where no waits are known."""
        if self.waits.tells:
            ranks = [rank for host in sorted(accused) for rank in self.graph.ranks_of_host(host)]
            waiting = self.waits.waiting_for(ranks, self.now_ns, self.pace.median_step_ns, self.silent)
            return dict.fromkeys((self.graph.host_of(rank) for rank in waiting), WitnessKind.PEERS_WAIT)
        if self.graph.max_step >= 0:
            return dict.fromkeys(self._ended_steps(finding.onset_ns), WitnessKind.STEPS)
        return dict(self.pace.harmed_since(finding.onset_ns, self.now_ns))

    def _ended_steps(self, onset_ns: int) -> list[str]:
        """Return the hosts whose ranks made steps until about an onset, and make none now."""
        late_ns = _STEPS_LATE_NS + _STEP_COUNT * self.pace.median_step_ns
        first_ns, last_ns = onset_ns - late_ns, min(onset_ns + late_ns, self.now_ns - late_ns)
        return [host for host, at_ns in self._newest_steps().items() if first_ns <= at_ns < last_ns]

    def _newest_steps(self) -> dict[str, int]:
        """Return host -> end of the newest step of any of its ranks, ns."""
        newest: dict[str, int] = {}
        for rank, facts in self.graph.ranks.items():
            if facts.last_step_ns:
                host = self.graph.host_of(rank)
                newest[host] = max(newest.get(host, 0), facts.last_step_ns)
        return newest

    def _is_lone(self, finding: Finding, count: int) -> bool:
        """Return whether the fault stays with its suspects, and no other host followed or stopped.

        For lost numbers, the others keep theirs and are not known to stand. For an exit, most of the others end steps
        that they began after it.
        """
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            ended = set(self._ended_steps(finding.onset_ns)) - set(finding.accused)
            return finding.is_lone and count > 1 and not ended
        if finding.fault is not FaultKind.FAIL_STOP or not self.pace.median_step_ns:
            return False
        others = [at_ns for host, at_ns in self._newest_steps().items() if host not in finding.accused]
        after_ns = finding.onset_ns + _CLOCKS_NS + _FOLLOWING_COUNT * self.pace.median_step_ns
        return 2 * sum(at_ns > after_ns for at_ns in others) > len(others)

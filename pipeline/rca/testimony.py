"""Witnesses of each finding: drivers of the accused machines, and other hosts that the fault harmed.

A host is harmed where its ranks wait for exactly the accused ranks, lost a connection to them, or take longer steps
since the onset. Without a training hook, a host is harmed where its machine does less work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.job.witnesses import listed
from tocsin.pipeline.rca.evidence.hardware import HardwareTracker
from tocsin.pipeline.rca.evidence.stop import who_lost_peers
from tocsin.pipeline.rca.evidence.waits import WaitTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, Witness, WitnessKind

_STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
_CLOCKS_NS = 2 * NS_PER_SECOND
"""Tolerance for clock differences between hosts, in nanoseconds. A rank that dies of a lost connection may seem to die
this much before the rank that it lost."""
_STEPS_LATE_NS = 8 * NS_PER_SECOND
"""Longest delay, in nanoseconds, between a step's end and its record's arrival: about a metric slice."""
_STEP_COUNT = 3
"""Number of usual step times without a finished step after which a rank counts as stopped."""
_FOLLOWING_COUNT = 2
"""Number of steps that healthy ranks may still finish after one rank died: the running one and one already begun."""


@dataclass(frozen=True, slots=True)
class Testimony:
    """Inputs for finding witnesses at the end of one slice.

    Attributes:
        graph: the job's ranks and hosts.
        now_ns: end of the slice.
        waits: record of which rank waits for which.
        hardware: hardware events that machines report.
        pace: the job's step times and work.
        silent: hosts that have sent nothing for too long.
    """

    graph: JobGraph
    now_ns: int
    waits: WaitTracker
    hardware: HardwareTracker
    pace: JobProgress
    silent: Sequence[str]

    def of(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings with ``witnesses``, ``machine_count`` and ``is_lone`` filled in.

        Findings without suspects, or that only keep an open verdict (``only_holds``), are returned unchanged.
        """
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
        """Return the names of machines that carry ranks; all machines except spares where no rank's host is known."""
        carrying = {self.graph.host_of(rank) for rank in self.graph.ranks} - {""}
        return carrying or self.graph.hosts.keys() - self.graph.spare_hosts()

    def _listed(self, finding: Finding) -> tuple[Witness, ...]:
        """Return the witnesses of one finding.

        They are accused machines that report a fault of their own, and other hosts that were harmed.

        Spare hosts and silent hosts are no witnesses against others.
        """
        accused = frozenset(finding.accused)
        own = dict.fromkeys(accused.intersection(self.silent), WitnessKind.CONNECTION_LOST)
        cause = finding.cause if finding.is_by_words else ""
        reporting = self.hardware.accusing_hosts(accused, finding.onset_ns, cause)
        own.update(dict.fromkeys(reporting, WitnessKind.HARDWARE_EVENT))
        without = accused | self.graph.spare_hosts() | set(self.silent)
        others = self._others(finding, accused)
        return listed(own, {host: kind for host, kind in others.items() if host and host not in without})

    def _others(self, finding: Finding, accused: Collection[str]) -> dict[str, WitnessKind]:
        """Return host -> kind of testimony, for all hosts that the fault harmed; accused ones may be among them."""
        if finding.fault is FaultKind.FAIL_SLOW:
            return dict(self.pace.harmed_since(finding.onset_ns, self.now_ns))
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            return dict.fromkeys(self._ended_steps(finding.onset_ns), WitnessKind.STEPS)
        if finding.fault not in _STANDSTILL:
            return {}
        return self._stopped(finding, accused) | who_lost_peers(self.graph, accused, finding.onset_ns - _CLOCKS_NS)

    def _stopped(self, finding: Finding, accused: Collection[str]) -> dict[str, WitnessKind]:
        """Return host -> kind of testimony, for hosts that stopped with the accused machines.

        Where ranks report what they wait for, these are hosts that wait for exactly the accused ranks. Elsewhere they
        are hosts whose steps ended at about the onset, or, without steps, whose machines do less work.
        """
        if self.waits.tells:
            ranks = [rank for host in sorted(accused) for rank in self.graph.ranks_of_host(host)]
            waiting = self.waits.waiting_for(ranks, self.now_ns, self.pace.median_step_ns, self.silent)
            return dict.fromkeys((self.graph.host_of(rank) for rank in waiting), WitnessKind.PEERS_WAIT)
        if self.graph.max_step >= 0:
            return dict.fromkeys(self._ended_steps(finding.onset_ns), WitnessKind.STEPS)
        return dict(self.pace.harmed_since(finding.onset_ns, self.now_ns))

    def _ended_steps(self, onset_ns: int) -> list[str]:
        """Return the hosts whose ranks finished steps until about the onset, and none since."""
        late_ns = _STEPS_LATE_NS + _STEP_COUNT * self.pace.median_step_ns
        first_ns, last_ns = onset_ns - late_ns, min(onset_ns + late_ns, self.now_ns - late_ns)
        return [host for host, at_ns in self._newest_steps().items() if first_ns <= at_ns < last_ns]

    def _newest_steps(self) -> dict[str, int]:
        """Return host -> end time in nanoseconds of the newest step of any of its ranks."""
        newest: dict[str, int] = {}
        for rank, facts in self.graph.ranks.items():
            if facts.last_step_ns:
                host = self.graph.host_of(rank)
                newest[host] = max(newest.get(host, 0), facts.last_step_ns)
        return newest

    def _is_lone(self, finding: Finding, count: int) -> bool:
        """Return whether the fault stayed on the accused machines while the rest of the job went on.

        For corrupted numbers: no other host stopped making steps. For a dead process: most other hosts finished steps
        that they began after its death. False for all other faults.
        """
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            ended = set(self._ended_steps(finding.onset_ns)) - set(finding.accused)
            return finding.is_lone and count > 1 and not ended
        if finding.fault is not FaultKind.FAIL_STOP or not self.pace.median_step_ns:
            return False
        others = [at_ns for host, at_ns in self._newest_steps().items() if host not in finding.accused]
        after_ns = finding.onset_ns + _CLOCKS_NS + _FOLLOWING_COUNT * self.pace.median_step_ns
        return 2 * sum(at_ns > after_ns for at_ns in others) > len(others)

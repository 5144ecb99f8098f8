"""Findings about what slows a job down: a link, a machine, a data loader, a switch, or nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.diagnose_config import DiagnoseConfig
from tocsin.pipeline.rca.evidence.stop import stalled_before_deaths_ns
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.join import join
from tocsin.pipeline.rca.rules.deviations import annotate_reported
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.leaf_congestion import find_minipod, find_switch, merge_leaf
from tocsin.pipeline.rca.rules.machine import find_machine
from tocsin.pipeline.rca.rules.slow import can_be_at_fault, filter_shared_data, find_slow_findings
from tocsin.pipeline.rca.rules.standstill import idle_since
from tocsin.pipeline.rca.rules.timing import began_later
from tocsin.pipeline.rca.rules.workload_skew import WorkloadSkew
from tocsin.pipeline.rca.slice_evidence import SliceEvidence
from tocsin.pipeline.rca.told_lengths import split_long_data
from tocsin.pipeline.rca.trackers import EvidenceTrackers
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind, FaultKind

_SETTLED_NS = 180 * NS_PER_SECOND
"""Age from which on a slowdown of the whole job is the level that a later slowdown adds to, and no explanation of it.
A machine is named only where the job is slower than in the minutes before the machine began to differ."""


def _is_level_of(slow: Finding, machine: Sequence[Finding]) -> bool:
    """Return whether machines that slow the job down began long after a slowdown that names nobody."""
    later = [one for one in machine if one.suspects and one.fault is FaultKind.FAIL_SLOW and not one.only_holds]
    return any(one.onset_ns >= slow.onset_ns + _SETTLED_NS for one in later)


class SlowJob:
    """Explains why one job is slow, by its steps and its machines' metrics."""

    def __init__(self, config: DiagnoseConfig, graph: JobGraph, trackers: EvidenceTrackers) -> None:
        """Start without memory of earlier deviations.

        Args:
            config: settings.
            graph: the job.
            trackers: the job's evidence.
        """
        self._config = config
        self._graph = graph
        self._trackers = trackers
        self._harmless = HarmlessDeviations()
        self._skew = WorkloadSkew()

    def add_slowness(
        self, findings: list[Finding], evidence: SliceEvidence, exit_reason: Reason | None
    ) -> list[Finding]:
        """Return what stops a job, with what slows it down where nothing stops it.

        Lost numbers slow nobody down, and hide nobody who is slow. Call it once a slice, because link faults count for
        how many slices they last.

        Args:
            findings: what stops the job or its numbers.
            evidence: the end of the slice.
            exit_reason: why no exit is an explanation; None: no process ended.
        """
        link = self._find_link(evidence)
        if any(finding.fault is not FaultKind.SILENT_CORRUPTION for finding in findings):
            return findings
        if exit_reason is None:
            asked = evidence.now_ns, evidence.switches, evidence.pace, self._config.switches
            switch = find_switch(*asked) or find_minipod(*asked)
            return [*findings, *merge_leaf(self._find_slow(evidence, link), switch)]
        if exit_reason is Reason.VICTIM:
            return [*findings, *self._find_before_deaths(evidence)]
        return findings

    def find_elsewhere(self, findings: Sequence[Finding], evidence: SliceEvidence) -> list[Finding]:
        """Return findings that name the machine of an unexplained hang by its metrics.

        Such a machine does not wait where the others wait. Its metrics deviate from theirs since the hang began.

        Args:
            findings: what was found so far.
            evidence: the end of the slice.

        Returns:
            The findings; [] where no hang is unexplained, a finding names a suspect already, or no machine deviates.
        """
        hangs = [finding for finding in findings if finding.reason is Reason.JOB_STALLED_UNEXPLAINED]
        if not hangs or any(finding.suspects for finding in findings):
            return []
        if evidence.pace.stalled_since_ns:
            found, _ = self._find_machine(evidence, evidence.peers)
            return [finding for finding in found if finding.fault is FaultKind.HANG and finding.suspects]
        idle = idle_since(hangs[0], evidence.peers, evidence.now_ns, self._config.machine)
        return [] if idle is None else [idle]

    def _find_link(self, evidence: SliceEvidence) -> Finding | None:
        """Return a finding about slow traffic; both trackers count for how many slices it lasts."""
        network = self._trackers.network.find(evidence.now_ns, evidence.steps)
        backlog = self._trackers.backlog.find(evidence.now_ns, evidence.pace)
        return network or backlog

    def _find_machine(self, evidence: SliceEvidence, peers: Sequence[Anomaly]) -> tuple[list[Finding], list[Reason]]:
        """Return findings about machines that deviate, and the reasons why one is no finding."""
        rules, harmless = self._config.machine, self._harmless
        return find_machine(self._graph, evidence.now_ns, peers, evidence.pace, rules, harmless)

    def _find_slow(self, evidence: SliceEvidence, link: Finding | None) -> list[Finding]:
        """Return findings about what slows the job down; a link fault explains it alone."""
        if link is not None:
            return [link]
        graph, now_ns, pace, rules = self._graph, evidence.now_ns, evidence.pace, self._config.slow
        steps = evidence.steps
        broken = self._trackers.hardware.hosts_with_reports(now_ns)
        peers = annotate_reported(filter_shared_data(steps, evidence.peers, rules), broken)
        more, left = self._skew.judge(graph, now_ns, steps, peers, pace, broken)
        self._harmless.free(peers, self._skew.since_ns)
        machine, machine_reasons = self._find_machine(evidence, peers)
        evidence.reasons.extend(machine_reasons)
        long, left = split_long_data(graph, self._trackers.loading, left)
        found = [*more, *self._join(evidence, left, machine, long)]
        few = [finding for finding in found if can_be_at_fault(graph, finding, rules)]
        if len(few) < len(found):
            evidence.note(Reason.AMBIGUOUS)
        if few or not found:
            return few
        whole = [anomaly for anomaly in steps if anomaly.component.kind is not ComponentKind.HOST]
        return self._join(evidence, whole, machine, long)

    def _join(
        self, evidence: SliceEvidence, steps: Sequence[Anomaly], machine: Sequence[Finding], long: Sequence[Finding]
    ) -> list[Finding]:
        """Return findings of steps and of machines, joined.

        Args:
            evidence: the end of the slice.
            steps: anomalies of steps.
            machine: findings about machines.
            long: findings about longer data, which explain a slowdown that would name nobody.
        """
        pace = evidence.pace
        slow, slow_reasons = find_slow_findings(self._graph, evidence.now_ns, steps, pace, self._config.slow)
        evidence.reasons.extend(slow_reasons)
        slow = [finding for finding in slow if finding.suspects or not _is_level_of(finding, machine)]
        slow = [*long, *(one for one in slow if one.suspects or not long)]
        joined = join(slow, began_later(self._graph, slow, machine, pace))
        return [*joined, *(one for one in long if one not in joined)]

    def _find_before_deaths(self, evidence: SliceEvidence) -> list[Finding]:
        """Return findings about machines that stood apart before a watchdog ended the job."""
        died_ns = stalled_before_deaths_ns(self._graph, evidence.pace.stalled_since_ns, self._config.stop)
        early = [anomaly for anomaly in evidence.peers if anomaly.start_ns < died_ns]
        if not early:
            return []
        found, found_reasons = self._find_machine(evidence, early)
        evidence.reasons.extend(found_reasons)
        return found

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts; the trackers' state is not part of it."""
        return {
            "cleared": pack_state(sorted(self._harmless.since_ns.items())),
            "exonerated": pack_state(self._skew.to_state()),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned; other parts are left out."""
        self._harmless = HarmlessDeviations(dict(map(tuple, unpack_state(parts, "cleared"))))
        self._skew.load_state(unpack_state(parts, "exonerated"))

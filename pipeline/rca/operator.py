"""``diagnose``: joins what was seen on the job's dependency graph, excludes what cannot be, then names the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.steps.anomalies import DETECTOR as STEPS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.costs import with_costs
from tocsin.pipeline.rca.diagnose_config import DiagnoseConfig
from tocsin.pipeline.rca.evidence.hardware import BrokenHosts
from tocsin.pipeline.rca.evidence.hardware_causes import HardwareCauses
from tocsin.pipeline.rca.evidence.hardware_reports import add_broken, filter_contradicted, filter_explained_by_steps
from tocsin.pipeline.rca.evidence.returned import ReturnedHosts
from tocsin.pipeline.rca.evidence.silence import silent_hosts
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.groups_across import PlacementCost
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.job_signs import JobSigns
from tocsin.pipeline.rca.loading_causes import add_lengths, explain_by_sources
from tocsin.pipeline.rca.mfu_decline import MfuDecline, split_declines
from tocsin.pipeline.rca.rules.learned import NOTHING_LEARNED, LearnedEvidence, accused_alone, supported
from tocsin.pipeline.rca.rules.machine import explain_by_metrics
from tocsin.pipeline.rca.rules.slow import tells_later
from tocsin.pipeline.rca.rules.standstill import reported_as_unexplained, still_stalled
from tocsin.pipeline.rca.rules.standstill_outlier import find_standstill_outlier
from tocsin.pipeline.rca.slice_evidence import SliceEvidence, sort_evidence
from tocsin.pipeline.rca.slow_forward import add_slow_forward, split_forward
from tocsin.pipeline.rca.slow_job import SlowJob
from tocsin.pipeline.rca.slower_groups import explain_by_groups
from tocsin.pipeline.rca.stopped_job import StopFindings, StoppedJob
from tocsin.pipeline.rca.testimony import Testimony
from tocsin.pipeline.rca.told_lengths import without_long_data
from tocsin.pipeline.rca.trackers import EvidenceTrackers
from tocsin.pipeline.rca.why_slow import add_causes, split_causes
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly, FaultKind


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one slice.

    Attributes:
        findings: explanations that hold at the slice's end, the most direct first.
        abstained: reasons why something that looked wrong is no finding.
    """

    findings: tuple[Finding, ...]
    abstained: tuple[Reason, ...]


class Diagnose:
    """Root cause analysis of one job.

    The graph is the job's own; whoever drives this operator feeds the graph with a slice first.
    """

    def __init__(self, config: DiagnoseConfig, graph: JobGraph) -> None:
        """Start without evidence.

        Args:
            config: settings.
            graph: the job.
        """
        self._config = config
        self._graph = graph
        self._trackers = EvidenceTrackers(config, graph)
        self._stopped_job = StoppedJob(config, graph, self._trackers)
        self._slow_job = SlowJob(config, graph, self._trackers)
        self._broken_hosts = BrokenHosts(config.hardware, self._trackers.hardware)
        self._hardware_causes = HardwareCauses(config.hardware, self._trackers.hardware)
        self._returned = ReturnedHosts()
        self._signs = JobSigns(config.signs, graph)
        self._mfu_decline = MfuDecline()
        self._placement_cost = PlacementCost(config.across)

    def follow(self, older: Diagnose) -> None:
        """Take over what the attempt before this one knows and this attempt may meet again.

        Args:
            older: the operator of that attempt.
        """
        self._trackers.follow(older._trackers)
        self._signs.follow(older._signs)

    def on_slice(
        self,
        data: Slice,
        anomalies: Sequence[Anomaly],
        pace: JobProgress,
        learned: LearnedEvidence = NOTHING_LEARNED,
    ) -> Diagnosis:
        """Explain what is wrong at the end of a slice.

        Args:
            data: one second of the job's records.
            anomalies: the detectors' anomalies of slices that end with this one.
            pace: the job's progress.
            learned: anomalies of learned detectors.
        """
        (causes, declines, forward), anomalies = _split(anomalies)
        self._trackers.take(data)
        silent = silent_hosts(self._graph, data.end_ns, self._config.silence)
        self._stopped_job.analyse_waits(data.end_ns, pace, silent)
        signs = self._signs.on_slice(data, [one for one in anomalies if one.detector == STEPS])
        if self._graph.ended():
            return Diagnosis((), ())
        evidence = sort_evidence(data.end_ns, pace, anomalies, silent)
        dumped, dump_reason = self._trackers.dumps.find(data.end_ns, pace.median_step_ns, self._trackers.waits)
        exit_found, exit_reason = self._stopped_job.find_exit(evidence)
        evidence.note(exit_reason)
        broken, broken_reasons = self._broken_hosts.find(self._graph, data.end_ns, pace)
        evidence.reasons.extend(broken_reasons)
        stop = self._stopped_job.find(evidence, (exit_found, exit_reason))
        findings = stop.findings
        if stop.exit_reason is not Reason.WITHIN_PATIENCE:
            findings = _merge_dump(findings, dumped)
        evidence.note(dump_reason)
        findings = self._slow_job.add_slowness(findings, evidence, stop.exit_reason)
        findings = self._add_standstill(findings, evidence, stop.exit_reason)
        findings = self._join_broken(findings, broken, evidence, stop)
        findings = self._explain_waits(findings, evidence)
        findings = [*findings, *self._find_recurring(data.end_ns, findings, has_nan=stop.has_nan)]
        findings = self._weigh_learned(findings, learned, evidence)
        contradicted = [] if any(finding.suspects for finding in findings) else stop.contradicted
        restarted = self._trackers.loading.find(data.end_ns)
        found = (*self._with_witnesses([*contradicted, *findings], evidence), *signs, *restarted)
        explained = self._with_causes(found, causes, evidence)
        forward = without_long_data(self._graph, self._trackers.loading, forward)
        explained = add_slow_forward(self._graph, explained, forward, (causes, evidence.steps))
        return Diagnosis(self._mfu_decline.add(explained, declines, evidence.steps), tuple(evidence.reasons))

    def _explain_waits(self, findings: Sequence[Finding], evidence: SliceEvidence) -> list[Finding]:
        """Return the findings with the loader, the source of data or the transfers that are waited for."""
        trackers = self._trackers
        explained = trackers.loaders.explain(findings, evidence.now_ns)
        explained = explain_by_sources(self._graph, explained, evidence, trackers.loading)
        return explain_by_groups(explained, evidence.steps, trackers.network)

    def _with_causes(
        self, findings: Sequence[Finding], causes: Sequence[Anomaly], evidence: SliceEvidence
    ) -> list[Finding]:
        """Return the findings with what slowness costs, and the causes of the job's slowness that name no machine.

        Args:
            findings: what was found so far.
            causes: anomalies of the detector of causes.
            evidence: the end of the slice.
        """
        now_ns, pace, steps, trackers = evidence.now_ns, evidence.pace, evidence.steps, self._trackers
        explained = add_causes(with_costs(self._graph, findings, pace, now_ns), causes, steps, pace)
        explained = self._placement_cost.add(explained, trackers.network, steps, pace, now_ns)
        return add_lengths(explained, trackers.loading, now_ns)

    def _add_standstill(
        self, findings: list[Finding], evidence: SliceEvidence, exit_reason: Reason | None
    ) -> list[Finding]:
        """Return the findings with those about machines that stand, and with suspects where none was named.

        Args:
            findings: what was found so far.
            evidence: the end of the slice.
            exit_reason: why no exit is an explanation; None: no process ended.
        """
        findings = [*self._slow_job.find_elsewhere(findings, evidence), *findings]
        findings.extend(self._find_standstill(findings, evidence, all_live=exit_reason is None))
        if not any(finding.suspects for finding in findings):
            findings = self._hardware_causes.accuse_reporting_hosts(self._graph, findings, evidence.now_ns)
        if exit_reason in (None, Reason.VICTIM) and not any(finding.suspects for finding in findings):
            findings = self._merge_outlier(findings, evidence)
        return findings

    def _find_standstill(
        self, findings: Sequence[Finding], evidence: SliceEvidence, *, all_live: bool
    ) -> list[Finding]:
        """Return a finding that keeps open verdicts while the machines stand.

        Where nothing else was found, a second one says after some time that the job stands without explanation.

        Args:
            findings: what was found so far.
            evidence: the end of the slice.
            all_live: whether all processes live.
        """
        now_ns, pace = evidence.now_ns, evidence.pace
        if not pace.stalled_since_ns:
            return []
        stalled = still_stalled(pace, now_ns)
        unexplained = all_live and all(finding.only_holds for finding in findings)
        if unexplained and reported_as_unexplained(self._graph, now_ns, pace, self._config.machine):
            return [replace(stalled, only_holds=False), stalled]
        return [stalled]

    def _merge_outlier(self, findings: list[Finding], evidence: SliceEvidence) -> list[Finding]:
        """Return the findings with the one machine that deviates in a standstill, instead of an unexplained one."""
        found = find_standstill_outlier(
            self._graph, evidence.now_ns, evidence.outliers, evidence.peers, evidence.pace, self._config.machine
        )
        if found is None:
            return findings
        return [found, *(f for f in findings if f.only_holds or f.reason is not Reason.JOB_STALLED_UNEXPLAINED)]

    def _join_broken(
        self, findings: list[Finding], broken: list[Finding], evidence: SliceEvidence, stop: StopFindings
    ) -> list[Finding]:
        """Return the findings explained by events and metrics, joined with what the machines report of themselves.

        Args:
            findings: what the job shows.
            broken: what the machines report.
            evidence: the end of the slice.
            stop: what stops the job.
        """
        anomalies, median_step_ns = evidence.anomalies, evidence.pace.median_step_ns
        findings = self._hardware_causes.explain(explain_by_metrics(findings, anomalies))
        doubted = self._stopped_job.doubted_hosts(stop.contradicted)
        broken = filter_contradicted(self._graph, findings, broken, median_step_ns, doubted)
        later = tells_later(anomalies, self._config.slow)
        hardware = self._trackers.hardware
        return add_broken(*filter_explained_by_steps(hardware, findings, broken, steps_will_tell=later))

    def _find_recurring(self, now_ns: int, findings: Sequence[Finding], *, has_nan: bool) -> list[Finding]:
        """Return findings that no single moment shows: loss spikes, and phases that one machine holds up.

        Args:
            now_ns: the slice's end.
            findings: what was found so far.
            has_nan: whether numbers were lost.
        """
        spikes, held_up = self._trackers.losses.find(now_ns), self._trackers.phases.find(now_ns)
        accuses = any(finding.suspects and finding.fault is not FaultKind.DEGRADED for finding in findings)
        found = [spikes] if spikes is not None and not has_nan else []  # the first lost number says more
        return [*found, held_up] if held_up is not None and not accuses else found

    def _weigh_learned(
        self, findings: list[Finding], learned: LearnedEvidence, evidence: SliceEvidence
    ) -> list[Finding]:
        """Return the findings with what learned detectors add to them.

        Args:
            findings: what was found so far.
            learned: anomalies of learned detectors.
            evidence: the end of the slice.
        """
        if not learned.anomalies:
            return findings
        about = evidence.pace, self._config.machine
        alone, reason = accused_alone(self._graph, evidence.now_ns, findings, learned, about)
        evidence.note(reason)
        return [*supported(findings, learned), *alone]

    def _with_witnesses(self, findings: Sequence[Finding], evidence: SliceEvidence) -> tuple[Finding, ...]:
        """Return the findings with the hosts that they clear and their witnesses."""
        now_ns, waits, hardware = evidence.now_ns, self._trackers.waits, self._trackers.hardware
        silent = evidence.silent
        findings = self._returned.free(findings, self._graph, silent, waits.reported_ns, now_ns)
        return tuple(Testimony(self._graph, now_ns, waits, hardware, evidence.pace, silent).of(findings))

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts."""
        return {
            **self._trackers.snapshot(),
            **self._slow_job.snapshot(),
            **self._signs.snapshot(),
            "belied": pack_state(self._stopped_job.belied.to_state()),
            "returned": pack_state(self._returned.to_state()),
            "mfu_decline": pack_state(self._mfu_decline.to_state()),
            "placement_cost": pack_state(self._placement_cost.to_state()),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned."""
        self._trackers.restore(parts)
        self._slow_job.restore(parts)
        self._signs.restore(parts)
        self._stopped_job.belied.load_state(unpack_state(parts, "belied"))
        self._returned.load_state(unpack_state(parts, "returned"))
        self._mfu_decline.load_state(unpack_state(parts, "mfu_decline"))
        self._placement_cost.load_state(unpack_state(parts, "placement_cost"))


def _merge_dump(findings: list[Finding], dumped: Finding | None) -> list[Finding]:
    """Return the findings with what dumps show, where nothing else names suspects: it explains why the job stands."""
    if dumped is None or any(finding.suspects for finding in findings) or (findings and not dumped.suspects):
        return findings
    standstill = (FaultKind.HANG, FaultKind.FAIL_STOP)
    return [dumped, *(finding for finding in findings if finding.fault not in standstill)]


def _split(
    anomalies: Sequence[Anomaly],
) -> tuple[tuple[Sequence[Anomaly], Sequence[Anomaly], Sequence[Anomaly]], Sequence[Anomaly]]:
    """Return causes that name no machine, declines of the FLOPs utilization and long forward passes; and the rest."""
    causes, anomalies = split_causes(anomalies)
    declines, anomalies = split_declines(anomalies)
    forward, anomalies = split_forward(anomalies)
    return (causes, declines, forward), anomalies

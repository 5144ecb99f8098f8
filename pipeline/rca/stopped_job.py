"""Findings about what stops a job: exits, lost numbers, ranks that the others wait for, hosts that fell silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.detect.peers.exits import EXITS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.diagnose_config import DiagnoseConfig
from tocsin.pipeline.rca.evidence.contradicted import Belied, came_late
from tocsin.pipeline.rca.evidence.silence import find_silence
from tocsin.pipeline.rca.evidence.stop import dies_in_vain, find_gone_first, find_stop, first_death_ns
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.standstill import elsewhere
from tocsin.pipeline.rca.slice_evidence import SliceEvidence
from tocsin.pipeline.rca.trackers import EvidenceTrackers
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind

_DEATH_MARGIN_NS = 2 * NS_PER_SECOND
"""Clocks of different hosts differ by less."""


@dataclass(frozen=True, slots=True)
class StopFindings:
    """Findings about what stops a job or its numbers, at the end of one slice.

    Attributes:
        findings: the explanations.
        contradicted: explanations that the job contradicts, to be used where there is no other.
        exit_reason: why no exit is an explanation; None: no process ended, or the exits explain nothing.
        has_nan: whether numbers were lost.
    """

    findings: list[Finding]
    contradicted: list[Finding]
    exit_reason: Reason | None
    has_nan: bool


class StoppedJob:
    """Explains why one job stands.

    Attributes:
        belied: ranks whose exits the job contradicted by going on.
    """

    def __init__(self, config: DiagnoseConfig, graph: JobGraph, trackers: EvidenceTrackers) -> None:
        """Start without a finding.

        Args:
            config: settings.
            graph: the job.
            trackers: the job's evidence.
        """
        self._config = config
        self._graph = graph
        self._trackers = trackers
        self.belied = Belied()
        self._dies_in_vain = False
        self._hang: tuple[list[Finding], list[Reason]] = [], []

    def analyse_waits(self, now_ns: int, pace: JobProgress, silent: Sequence[str]) -> None:
        """Find the ranks that the others wait for; call it once a slice, because it counts for how many it is so.

        Args:
            now_ns: the slice's end.
            pace: the job's progress.
            silent: hosts that have sent nothing for too long.
        """
        gone = [*silent, *self._graph.moved_ns]  # who is in a later attempt keeps nobody waiting in this one
        self._hang = self._trackers.waits.find(now_ns, pace.median_step_ns, gone)

    def find_exit(self, evidence: SliceEvidence) -> tuple[Finding | None, Reason | None]:
        """Return a finding about the first exit, or the reason why no exit is an explanation.

        Where all reported exits are victims', freed GPU memory tells which processes ended first.
        """
        graph, waits, stop_config = self._graph, self._trackers.waits, self._config.stop
        stood_since_ns = self._stood_since_ns(evidence.pace)
        belied = self.belied.deaths(graph, evidence.pace.median_step_ns)
        graph.disbelieved = belied
        self._dies_in_vain = dies_in_vain(graph, belied)
        stop, reason = find_stop(graph, evidence.now_ns, stop_config, stood_since_ns, belied, waits.reported_ns)
        if stop is None and reason is Reason.VICTIM and evidence.exits:
            stop = find_gone_first(graph, evidence.exits[0], stop_config, stood_since_ns)
        return stop, reason

    def find(self, evidence: SliceEvidence, died: tuple[Finding | None, Reason | None]) -> StopFindings:
        """Return what stops the job or its numbers.

        Args:
            evidence: the end of the slice.
            died: what ``find_exit`` returned for this slice.
        """
        (stop, stop_reason), aside = died, []
        if self._dies_in_vain:
            aside, stop, stop_reason = _of(stop), None, None
        nan = self._trackers.nan.find(evidence.now_ns)
        has_nan = nan is not None
        if nan is not None and self._trackers.nan.stays_alone:
            aside, nan = [*aside, nan], None
        stalled: list[Finding] = []
        if stop is None:
            stalled = self._stalled(evidence, all_live=stop_reason is None)
        elif self._came_late(stop, evidence.pace):
            stalled = _elsewhere_than(stop, self._stalled(evidence, all_live=True))
            if stalled:
                aside, stop, stop_reason = [*aside, stop], None, None
        return StopFindings([*_of(stop), *_of(nan), *stalled], aside, stop_reason, has_nan)

    def doubted_hosts(self, contradicted: Sequence[Finding]) -> frozenset[str]:
        """Return the hosts whose reports the job contradicts.

        Args:
            contradicted: findings that the job contradicts in this slice.
        """
        hosts = {self._graph.host_of(rank) for rank in self._graph.disbelieved}
        return frozenset(
            hosts.union(suspect.component.name for finding in contradicted for suspect in finding.suspects)
        )

    def _came_late(self, stop: Finding, pace: JobProgress) -> bool:
        """Return whether a process ended when the job stood already."""
        return came_late(self._graph, stop.onset_ns, self._stood_since_ns(pace), pace.median_step_ns)

    def _stalled(self, evidence: SliceEvidence, *, all_live: bool) -> list[Finding]:
        """Return findings about a standstill that exits do not explain: waits first, then silence.

        Args:
            evidence: the end of the slice.
            all_live: whether all processes live, or the exits explain nothing.
        """
        graph, now_ns, waits = self._graph, evidence.now_ns, self._trackers.waits
        anomalies = [*evidence.exits, *evidence.anomalies]
        silent = evidence.silent
        hang, hang_reasons = self._hang if all_live else (self._before_first_death(), [])
        if all_live and not any(finding.suspects for finding in hang):
            stuck = self._trackers.flows.find(now_ns, elsewhere(anomalies))
            hang = hang if stuck is None else [stuck]
        evidence.reasons.extend(hang_reasons)
        emptied = [anomaly.component.name for anomaly in anomalies if anomaly.detector == EXITS]
        lost, lost_reasons = find_silence(graph, now_ns, evidence.pace, self._config.silence, silent, emptied)
        if all_live and not waits.agrees(lost):
            # The peers stand, but it is not these hosts that they wait for.
            lost, lost_reasons = [], lost_reasons | dict.fromkeys(silent, Reason.MONITORING_LOST)
        evidence.reasons.extend(lost_reasons.values())
        return [*hang, *lost]

    def _before_first_death(self) -> list[Finding]:
        """Return findings about frozen processes that the job waited for before any process ended.

        Suspects whose processes ended since then are left out.
        """
        died_ns = first_death_ns(self._graph)
        gone = [rank for rank in self._graph.leaving if self._graph.ranks[rank].exit is not None]
        left = {Component(ComponentKind.HOST, self._graph.host_of(rank)) for rank in gone}
        found = []
        for finding in self._hang[0]:
            rest = tuple(suspect for suspect in finding.suspects if suspect.component not in left)
            if rest and finding.cause == "process_frozen" and finding.onset_ns < died_ns - _DEATH_MARGIN_NS:
                found.append(replace(finding, suspects=rest))
        return found

    def _stood_since_ns(self, pace: JobProgress) -> int:
        """Return since when the job makes no progress, by its steps, else by its machines' work; 0: not known."""
        if pace.median_step_ns:
            return self._graph.progress_ns + 2 * pace.median_step_ns
        return pace.stalled_since_ns or self._trackers.dumps.stalled_since_ns


def _of(finding: Finding | None) -> list[Finding]:
    """Return a list of the finding, if there is one."""
    return [] if finding is None else [finding]


def _elsewhere_than(stop: Finding, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that name other hosts than an exit does, with only these hosts as suspects."""
    dead = {suspect.component for suspect in stop.suspects}
    others = [tuple(suspect for suspect in f.suspects if suspect.component not in dead) for f in findings]
    return [replace(f, suspects=rest) for f, rest in zip(findings, others, strict=True) if rest]

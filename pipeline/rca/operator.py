"""``diagnose``: join what was seen on the dependency graph, exclude, then name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.peers.anomalies import DETECTOR as PEERS
from tocsin.pipeline.detect.peers.exits import EXITS
from tocsin.pipeline.detect.peers.leaf_congestion import SWITCHES
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.backlog import BacklogRules, BacklogTracker
from tocsin.pipeline.rca.evidence.contradicted import Belied, came_late
from tocsin.pipeline.rca.evidence.dumps import DumpConfig, DumpTracker
from tocsin.pipeline.rca.evidence.flows import FlowRules, FlowTracker
from tocsin.pipeline.rca.evidence.hardware import BrokenHosts
from tocsin.pipeline.rca.evidence.hardware_causes import HardwareCauses
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog, HardwareRules
from tocsin.pipeline.rca.evidence.hardware_reports import add_broken, filter_contradicted, filter_explained_by_steps
from tocsin.pipeline.rca.evidence.loaders import LoaderConfig, LoaderTracker
from tocsin.pipeline.rca.evidence.loss_spikes import LossConfig, LossSpikes
from tocsin.pipeline.rca.evidence.nan import NanConfig, NanTracker
from tocsin.pipeline.rca.evidence.network import NetworkConfig, NetworkTracker
from tocsin.pipeline.rca.evidence.phases import PhaseConfig, PhaseTracker
from tocsin.pipeline.rca.evidence.returned import ReturnedHosts
from tocsin.pipeline.rca.evidence.silence import SilenceConfig, find_silence, silent_hosts
from tocsin.pipeline.rca.evidence.stop import (
    StopConfig,
    dies_in_vain,
    find_gone_first,
    find_stop,
    first_death_ns,
    stalled_before_deaths_ns,
)
from tocsin.pipeline.rca.evidence.waits import WaitConfig, WaitTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.join import join
from tocsin.pipeline.rca.rules.deviations import MachineRules, annotate_reported
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.leaf_congestion import SwitchRules, find_switch, merge_leaf
from tocsin.pipeline.rca.rules.machine import explain_by_metrics, find_machine
from tocsin.pipeline.rca.rules.slow import (
    SlowRules,
    can_be_at_fault,
    filter_shared_data,
    find_slow_findings,
    tells_later,
)
from tocsin.pipeline.rca.rules.standstill import (
    elsewhere,
    idle_since,
    still_stalled,
    told_as_unexplained,
)
from tocsin.pipeline.rca.rules.standstill_outlier import ODD, find_standstill_outlier
from tocsin.pipeline.rca.rules.timing import began_later
from tocsin.pipeline.rca.rules.workload_skew import WorkloadSkew
from tocsin.pipeline.rca.testimony import Testimony
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, Event, ProbeAnswer, Slice, StepBatch
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, FaultKind

_DEATH_MARGIN_NS = 2 * NS_PER_SECOND
"""Clocks differ by less."""


@dataclass(frozen=True, slots=True)
class DiagnoseConfig:
    """Settings of each explanation."""

    stop: StopConfig = field(default_factory=StopConfig)
    nan: NanConfig = field(default_factory=NanConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    loaders: LoaderConfig = field(default_factory=LoaderConfig)
    phases: PhaseConfig = field(default_factory=PhaseConfig)
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    slow: SlowRules = field(default_factory=SlowRules)
    waits: WaitConfig = field(default_factory=WaitConfig)
    flows: FlowRules = field(default_factory=FlowRules)
    dumps: DumpConfig = field(default_factory=DumpConfig)
    hardware: HardwareRules = field(default_factory=HardwareRules)
    machine: MachineRules = field(default_factory=MachineRules)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    backlog: BacklogRules = field(default_factory=BacklogRules)
    switches: SwitchRules = field(default_factory=SwitchRules)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one slice led to.

    Attributes:
        findings: explanations that hold at the slice's end, the most direct first.
        abstained: reasons why something that looked wrong is no finding.
    """

    findings: tuple[Finding, ...]
    abstained: tuple[Reason, ...]


class Diagnose:
    """Root cause of one job.

    The graph is the job's own; whoever drives this feeds it first with the same slice.
    """

    def __init__(self, config: DiagnoseConfig, graph: JobGraph) -> None:
        """Know nothing but the graph."""
        self._config = config
        self._graph = graph
        self._nan = NanTracker(config.nan, graph)
        self._losses = LossSpikes(config.losses, graph)
        self._loaders = LoaderTracker(config.loaders, graph)
        self._phases = PhaseTracker(config.phases, graph)
        self._waits = WaitTracker(config.waits, graph)
        self._flows = FlowTracker(config.flows, graph)
        self._dumps = DumpTracker(config.dumps, graph, config.waits.mute_after_seconds)
        self._hardware = HardwareLog(config.hardware)
        self._broken = BrokenHosts(config.hardware, self._hardware)
        self._hardware_causes = HardwareCauses(config.hardware, self._hardware)
        self._cleared = HarmlessDeviations()
        self._exonerated = WorkloadSkew()
        self._network = NetworkTracker(config.network, graph)
        self._backlog = BacklogTracker(config.backlog, graph)
        self._belied = Belied()
        self._returned = ReturnedHosts()
        self._dies_in_vain = False
        self._hang: tuple[list[Finding], list[Reason]] = [], []
        """Whom the waiting leads to in this slice: asked in each one, as it counts for how long it is so."""

    def follow(self, older: Diagnose) -> None:
        """Know of the attempt before this one what this one may meet again."""
        self._nan.follow(older._nan)

    def on_slice(self, data: Slice, anomalies: Sequence[Anomaly], pace: JobProgress) -> Diagnosis:
        """Explain what is wrong at the end of this slice.

        Args:
            data: one second of the job's records.
            anomalies: what the detectors said of slices that end with this one.
            pace: the job's pace.
        """
        self._take(data)
        now_ns = data.end_ns
        silent = silent_hosts(self._graph, now_ns, self._config.silence)
        gone = [*silent, *self._graph.moved_ns]  # who is in a later attempt keeps nobody waiting in this one
        self._hang = self._waits.find(now_ns, pace.median_step_ns, gone)
        if self._graph.ended():
            return Diagnosis((), ())
        reasons: list[Reason] = []
        dumped, dump_reason = self._dumps.find(now_ns, pace.median_step_ns, self._waits)
        exits = [anomaly for anomaly in anomalies if anomaly.detector == EXITS]
        stop, stop_reason = self._stopped(now_ns, pace, exits)
        jammed = [anomaly for anomaly in anomalies if anomaly.detector == SWITCHES]
        odd = [anomaly for anomaly in anomalies if anomaly.detail.get(ODD)]
        anomalies = [a for a in anomalies if a.detector not in (EXITS, SWITCHES) and not a.detail.get(ODD)]
        if stop_reason is not None:
            reasons.append(stop_reason)
        broken, broken_reasons = self._broken.find(self._graph, now_ns, pace)
        reasons.extend(broken_reasons)
        told = [*exits, *anomalies]
        findings, aside, stop_reason, has_nan = self._stops(now_ns, pace, reasons, told, (stop, stop_reason))
        if stop_reason is not Reason.WITHIN_PATIENCE:
            findings = _merge_dump(findings, dumped)
        if dump_reason is not None:
            reasons.append(dump_reason)
        findings = self._merge_number_findings(findings, now_ns, anomalies, (stop_reason, jammed), pace, reasons)
        findings = [*self._not_where_others_are(findings, now_ns, anomalies, pace), *findings]
        findings.extend(self._is_stalled(now_ns, pace, findings, all_live=stop_reason is None))
        if not any(finding.suspects for finding in findings):
            findings = self._hardware_causes.accuse_who_told(self._graph, findings, now_ns)
        if stop_reason in (None, Reason.VICTIM) and not any(finding.suspects for finding in findings):
            findings = self._merge_outlier(now_ns, findings, odd, anomalies, pace)
        findings = self._hardware_causes.explain(explain_by_metrics(findings, anomalies))
        broken = filter_contradicted(self._graph, findings, broken, pace.median_step_ns, self._doubted(aside))
        later = tells_later(anomalies, self._config.slow)
        findings = add_broken(*filter_explained_by_steps(self._hardware, findings, broken, steps_will_tell=later))
        findings = self._loaders.explain(findings, now_ns)
        findings = [*findings, *self._again_and_again(now_ns, findings, has_nan=has_nan)]
        told_aside = [] if any(finding.suspects for finding in findings) else aside
        findings = [*told_aside, *findings]
        return Diagnosis(self._with_witnesses(findings, now_ns, pace), tuple(reasons))

    def _merge_number_findings(
        self,
        findings: list[Finding],
        now_ns: int,
        anomalies: Sequence[Anomaly],
        stops: tuple[Reason | None, Sequence[Anomaly]],
        pace: JobProgress,
        reasons: list[Reason],
    ) -> list[Finding]:
        """What is found, and who is slow: numbers that break slow nobody, and hide nobody who is.

        Args:
            findings: what stops the job or its numbers.
            now_ns: the slice's end.
            anomalies: of machines and steps.
            stops: why no death counts, and what switches show.
            pace: the job's pace.
            reasons: why something is no finding; more are added.
        """
        stop_reason, jammed = stops
        link = self._link(now_ns, anomalies, pace)
        if any(finding.fault is not FaultKind.SILENT_CORRUPTION for finding in findings):
            return findings
        if stop_reason is None:
            switch = find_switch(now_ns, jammed, pace, self._config.switches)
            return [*findings, *merge_leaf(self._slow(now_ns, anomalies, pace, reasons, link), switch)]
        if stop_reason is Reason.VICTIM:
            return [*findings, *self._before_deaths(now_ns, anomalies, pace, reasons)]
        return findings

    def _with_witnesses(self, findings: Sequence[Finding], now_ns: int, pace: JobProgress) -> tuple[Finding, ...]:
        """What is found, with whom it frees and who saw it."""
        silent = silent_hosts(self._graph, now_ns, self._config.silence)
        findings = self._returned.free(findings, self._graph, silent, self._waits.told_ns, now_ns)
        return tuple(Testimony(self._graph, now_ns, self._waits, self._hardware, pace, silent).of(findings))

    def _stops(
        self,
        now_ns: int,
        pace: JobProgress,
        reasons: list[Reason],
        anomalies: Sequence[Anomaly],
        died: tuple[Finding | None, Reason | None],
    ) -> tuple[list[Finding], list[Finding], Reason | None, bool]:
        """What stops the job or its numbers.

        Args:
            now_ns: the slice's end.
            pace: the job's pace.
            reasons: why something is no finding; more are added.
            anomalies: of machines.
            died: who died first, or why nobody is named.

        Returns:
            Findings; those that the job belies, to be told where nothing else is; the reason why no death counts; and
            whether numbers were lost.
        """
        (stop, stop_reason), aside = died, []
        if self._dies_in_vain:
            aside, stop, stop_reason = _of(stop), None, None
        nan = self._nan.find(now_ns)
        has_nan = nan is not None
        if nan is not None and self._nan.stays_alone:
            aside, nan = [*aside, nan], None
        standing: list[Finding] = []
        if stop is None:
            standing = self._standing(now_ns, pace, reasons, anomalies, all_live=stop_reason is None)
        elif came_late(self._graph, stop.onset_ns, self._stood_since_ns(pace), pace.median_step_ns):
            standing = _elsewhere_than(stop, self._standing(now_ns, pace, reasons, anomalies, all_live=True))
            if standing:
                aside, stop, stop_reason = [*aside, stop], None, None
        return [*_of(stop), *_of(nan), *standing], aside, stop_reason, has_nan

    def _doubted(self, aside: Sequence[Finding]) -> frozenset[str]:
        """Hosts of which words were belied."""
        hosts = {self._graph.host_of(rank) for rank in self._graph.disbelieved}
        return frozenset(hosts.union(suspect.component.name for finding in aside for suspect in finding.suspects))

    def _again_and_again(self, now_ns: int, findings: Sequence[Finding], *, has_nan: bool) -> list[Finding]:
        """What no single moment shows, beside the others: losses that jump, phases that one machine holds up."""
        jumps, held_up = self._losses.find(now_ns), self._phases.find(now_ns)
        accuses = any(finding.suspects and finding.fault is not FaultKind.DEGRADED for finding in findings)
        found = [jumps] if jumps is not None and not has_nan else []  # the first number that is none says more
        return [*found, held_up] if held_up is not None and not accuses else found

    def _is_stalled(
        self, now_ns: int, pace: JobProgress, findings: Sequence[Finding], *, all_live: bool
    ) -> list[Finding]:
        """That the machines stand: it holds what was said; where nothing was, it is told in the end."""
        if not pace.stalled_since_ns:
            return []
        stands = still_stalled(pace, now_ns)
        unexplained = all_live and all(finding.only_holds for finding in findings)
        if unexplained and told_as_unexplained(self._graph, now_ns, pace, self._config.machine):
            return [replace(stands, only_holds=False), stands]
        return [stands]

    def _merge_outlier(
        self,
        now_ns: int,
        findings: list[Finding],
        odd: Sequence[Anomaly],
        anomalies: Sequence[Anomaly],
        pace: JobProgress,
    ) -> list[Finding]:
        """What is found, and the one machine that differs in a job that stands, instead of that nobody knows why."""
        peers = [anomaly for anomaly in anomalies if anomaly.detector == PEERS]
        found = find_standstill_outlier(self._graph, now_ns, odd, peers, pace, self._config.machine)
        if found is None:
            return findings
        return [found, *(f for f in findings if f.only_holds or f.reason is not Reason.JOB_STALLED_UNEXPLAINED)]

    def _stopped(
        self, now_ns: int, pace: JobProgress, exits: Sequence[Anomaly]
    ) -> tuple[Finding | None, Reason | None]:
        """Who died first: by what is reported, or else by whose memory was free first."""
        stood_since_ns = self._stood_since_ns(pace)
        belied = self._belied.deaths(self._graph, pace.median_step_ns)
        self._graph.disbelieved = belied
        self._dies_in_vain = dies_in_vain(self._graph, belied)
        stop, reason = find_stop(self._graph, now_ns, self._config.stop, stood_since_ns, belied, self._waits.told_ns)
        if stop is None and reason is Reason.VICTIM and exits:
            stop = find_gone_first(self._graph, exits[0], self._config.stop, stood_since_ns)
        return stop, reason

    def _standing(
        self, now_ns: int, pace: JobProgress, reasons: list[Reason], anomalies: Sequence[Anomaly], *, all_live: bool
    ) -> list[Finding]:
        """Who holds up a job whose processes live, or whose deaths explain nothing: waits, then silence."""
        silent = silent_hosts(self._graph, now_ns, self._config.silence)
        hang, hang_reasons = self._hang if all_live else (self._before_first_death(), [])
        if all_live and not any(finding.suspects for finding in hang):
            stuck = self._flows.find(now_ns, elsewhere(anomalies))
            hang = hang if stuck is None else [stuck]
        reasons.extend(hang_reasons)
        emptied = [anomaly.component.name for anomaly in anomalies if anomaly.detector == EXITS]
        lost, lost_reasons = find_silence(self._graph, now_ns, pace, self._config.silence, silent, emptied)
        if all_live and not self._waits.agrees(lost):
            # The peers stand, but it is not these hosts that they wait for.
            lost, lost_reasons = [], lost_reasons | dict.fromkeys(silent, Reason.MONITORING_LOST)
        reasons.extend(lost_reasons.values())
        return [*hang, *lost]

    def _before_first_death(self) -> list[Finding]:
        """Whom the job waited for before anybody died, of those that live: who died since does not explain that."""
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
        """Since when the job makes no progress: by its steps, else by its machines' work; 0: nobody knows."""
        if pace.median_step_ns:
            return self._graph.progress_ns + 2 * pace.median_step_ns
        return pace.stalled_since_ns or self._dumps.stalled_since_ns

    def _link(self, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress) -> Finding | None:
        """Whose traffic is slow; asked in each slice, as both count for how long it is so."""
        steps = [anomaly for anomaly in anomalies if anomaly.detector != PEERS]
        network, backlog = self._network.find(now_ns, steps), self._backlog.find(now_ns, pace)
        return network or backlog

    def _slow(
        self, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, reasons: list[Reason], link: Finding | None
    ) -> list[Finding]:
        if link is not None:
            return [link]
        steps = [anomaly for anomaly in anomalies if anomaly.detector != PEERS]
        peers = [anomaly for anomaly in anomalies if anomaly.detector == PEERS]
        broken = self._hardware.hosts_with_reports(now_ns)
        peers = annotate_reported(filter_shared_data(steps, peers, self._config.slow), broken)
        more, left = self._exonerated.judge(self._graph, now_ns, steps, peers, pace, broken)
        self._cleared.free(peers, self._exonerated.since_ns)
        machine, machine_reasons = find_machine(self._graph, now_ns, peers, pace, self._config.machine, self._cleared)
        reasons.extend(machine_reasons)
        found = [*more, *self._join(now_ns, left, machine, pace, reasons)]
        few = [finding for finding in found if can_be_at_fault(self._graph, finding, self._config.slow)]
        if len(few) < len(found):
            reasons.append(Reason.AMBIGUOUS)
        if few or not found:
            return few
        whole = [anomaly for anomaly in steps if anomaly.component.kind is not ComponentKind.HOST]
        return self._join(now_ns, whole, machine, pace, reasons)

    def _join(
        self,
        now_ns: int,
        steps: Sequence[Anomaly],
        machine: Sequence[Finding],
        pace: JobProgress,
        reasons: list[Reason],
    ) -> list[Finding]:
        slow, slow_reasons = find_slow_findings(self._graph, now_ns, steps, pace, self._config.slow)
        reasons.extend(slow_reasons)
        return join(slow, began_later(self._graph, slow, machine, pace))

    def _not_where_others_are(
        self, findings: Sequence[Finding], now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress
    ) -> list[Finding]:
        """Of a job that stands, and its collectives do not tell why: whose metrics show that it is elsewhere."""
        hangs = [finding for finding in findings if finding.reason is Reason.JOB_STALLED_UNEXPLAINED]
        if not hangs or any(finding.suspects for finding in findings):
            return []
        peers = [anomaly for anomaly in anomalies if anomaly.detector == PEERS]
        if pace.stalled_since_ns:
            found, _ = find_machine(self._graph, now_ns, peers, pace, self._config.machine, self._cleared)
            return [finding for finding in found if finding.fault is FaultKind.HANG and finding.suspects]
        idle = idle_since(hangs[0], peers, now_ns, self._config.machine)
        return [] if idle is None else [idle]

    def _before_deaths(
        self, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, reasons: list[Reason]
    ) -> list[Finding]:
        """All who died were victims (a watchdog ended them): who was not where the others stood before that?"""
        died_ns = stalled_before_deaths_ns(self._graph, pace.stalled_since_ns, self._config.stop)
        early = [anomaly for anomaly in anomalies if anomaly.detector == PEERS and anomaly.start_ns < died_ns]
        if not early:
            return []
        found, found_reasons = find_machine(self._graph, now_ns, early, pace, self._config.machine, self._cleared)
        reasons.extend(found_reasons)
        return found

    def _take(self, data: Slice) -> None:
        for record in data.records:
            if isinstance(record, CollectiveBatch):
                self._waits.take_collectives(record.rows)
                self._flows.take_collectives(record.rows)
                self._dumps.take_collectives(record.rows)
                self._network.take(record.rows)
                self._backlog.take(record.rows)
            elif isinstance(record, StepBatch):
                self._waits.take_steps(record.rows)
                self._flows.take_steps(record.rows)
                self._nan.take_steps(record.rows)
                self._losses.take_steps(record.rows)
                self._phases.take_steps(record.rows)
            elif isinstance(record, ProbeAnswer):
                if record.probe == "flight_recorder":
                    self._dumps.take(record)
            elif isinstance(record, Event):
                self._hardware.take(record)
                if record.name == events.PHASE:
                    self._phases.take(record)
                elif record.name == events.LOADER:
                    self._loaders.take(record)
                if record.name == events.NAN and record.rank >= 0:
                    self._nan.take(record)

    def snapshot(self) -> dict[str, bytes]:
        """State as named parts."""
        return {
            "hardware": pack_state(self._hardware.to_state()),
            "cleared": pack_state(sorted(self._cleared.since_ns.items())),
            "exonerated": pack_state(self._exonerated.to_state()),
            "nan": pack_state(self._nan.to_state()),
            "losses": pack_state(self._losses.to_state()),
            "loaders": pack_state(self._loaders.to_state()),
            "phases": pack_state(self._phases.to_state()),
            "waits": pack_state(self._waits.to_state()),
            "flows": pack_state(self._flows.to_state()),
            "dumps": pack_state(self._dumps.to_state()),
            "network": pack_state(self._network.to_state()),
            "belied": pack_state(self._belied.to_state()),
            "returned": pack_state(self._returned.to_state()),
            "backlog": pack_state(self._backlog.to_state()),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        self._belied.load_state(unpack_state(parts, "belied"))
        self._returned.load_state(unpack_state(parts, "returned"))
        self._cleared = HarmlessDeviations(dict(map(tuple, unpack_state(parts, "cleared"))))
        self._exonerated.load_state(unpack_state(parts, "exonerated"))
        self._hardware.load_state(unpack_state(parts, "hardware"))
        self._nan.load_state(unpack_state(parts, "nan"))
        self._losses.load_state(unpack_state(parts, "losses"))
        self._loaders.load_state(unpack_state(parts, "loaders"))
        self._phases.load_state(unpack_state(parts, "phases"))
        self._waits.load_state(unpack_state(parts, "waits"))
        self._flows.load_state(unpack_state(parts, "flows"))
        self._dumps.load_state(unpack_state(parts, "dumps"))
        self._network.load_state(unpack_state(parts, "network"))
        self._backlog.load_state(unpack_state(parts, "backlog"))


def _of(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding]


def _elsewhere_than(stop: Finding, findings: Sequence[Finding]) -> list[Finding]:
    """What names other hosts than a death does: of several only these."""
    dead = {suspect.component for suspect in stop.suspects}
    others = [tuple(suspect for suspect in f.suspects if suspect.component not in dead) for f in findings]
    return [replace(f, suspects=rest) for f, rest in zip(findings, others, strict=True) if rest]


def _merge_dump(findings: list[Finding], dumped: Finding | None) -> list[Finding]:
    """What dumps show, where nothing else names anybody: then it explains why the job stands."""
    if dumped is None or any(finding.suspects for finding in findings) or (findings and not dumped.suspects):
        return findings
    standstill = (FaultKind.HANG, FaultKind.FAIL_STOP)
    return [dumped, *(finding for finding in findings if finding.fault not in standstill)]

"""What hardware events say: who broke, and why somebody who is slow or gone is so.

An event is one machine's word about itself. A fatal one may open a verdict at once, but while
the job's steps go on it stays tentative: a machine that works is not evicted for a line in its log.
An event that only explains (a corrected error, a power limit) names the cause of what other
evidence shows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import (
    common_component,
    few_hosts,
    is_whole,
    may_fail_together,
)
from tocsin.pipeline.rca.evidence.contradicted import went_on
from tocsin.pipeline.rca.evidence.hardware_facts import (
    WEAK_CAUSES,
    HardwareFact,
    is_of,
    is_usual,
    outage_of,
    part_of,
    rate_of,
    slows,
)
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.events import IB_PORT
from tocsin.schemas.hardware import HardwareMeaning, cause_of_event
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect

_KEPT_PER_HOST = 32
_SHOWN_FACTS = 4


_BY_PATTERN = frozenset(
    {
        Reason.METRICS_DIFFER,
        Reason.METRICS_DIFFER_STEPS_SLOWER,
        Reason.NO_IMPACT,
        Reason.SLOWDOWN_PRECEDES_ANOMALY,
        Reason.SLOWDOWN_FOLLOWS_ANOMALY,
    }
)
VAGUE_CAUSES = frozenset({"cuda_execution_error", "gpu_execution_error"})
"""What a program sees of a part that broke: the part itself knows better."""


_LINK_CAUSES = frozenset({"nic_dropout", "aoc_error"})
"""What a switch that fell looks like to all that hang on it."""


_NOBODYS = frozenset({"shared_service", "workload_change", "data_imbalance", "software_jitter"})
"""What steps say of a job that is slow, and of no machine. Of slow groups (``placement``) and of a slow stage a part
that reports itself slow may be why."""


@dataclass(frozen=True, slots=True)
class HardwareRules:
    """Settings.

    Attributes:
        keep_ns: an event explains what happens within this.
        open_ns: a fatal event opens a verdict within this; later only together with other evidence.
        impact_ns: the job must be seen to suffer within this after an event, or it did not.
        steps_late_ns: steps reach the engine this long after they ended (a metric slice).
        stall_before_ns: a job stands because of what one machine logged so long before that ...
        stall_after_ns: ... to so long after, and nothing else has explained it by then.
        before_ns: what an event explains may have shown this long before it was logged.
        max_host_ratio: more hosts that report the same within ``together_ns`` share a cause outside.
        together_ns: see there.
        flap_count: a port that came back so often within ``keep_ns`` is broken; once it does so in many fabrics.
        flap_ns: a port that went down is mostly up again within this.
        flap_share_ratio: a port that comes and goes costs its job something where it was down so much of the time ...
        flap_cost_ratio: ... and the steps are longer by so much of that, in the mean.
        ailing_count: who tells so often within ``keep_ns`` of many corrected errors, or of a row to be remapped, has a
            memory that ails: that does not accuse it, but what it shows is no more work.
    """

    keep_ns: int = 600 * NS_PER_SECOND
    open_ns: int = 120 * NS_PER_SECOND
    impact_ns: int = 60 * NS_PER_SECOND
    steps_late_ns: int = 7 * NS_PER_SECOND
    stall_before_ns: int = 10 * NS_PER_SECOND
    stall_after_ns: int = 30 * NS_PER_SECOND
    before_ns: int = 60 * NS_PER_SECOND
    max_host_ratio: float = 0.125
    together_ns: int = 10 * NS_PER_SECOND
    flap_count: int = 3
    flap_ns: int = 10 * NS_PER_SECOND
    flap_share_ratio: float = 0.03
    flap_cost_ratio: float = 0.5
    ailing_count: int = 3


@dataclass(slots=True)
class HardwareTracker:
    """The hardware events of one job's machines."""

    config: HardwareRules
    facts: dict[str, list[HardwareFact]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Keep what an event says; a part that is well again takes back what it said before."""
        meaning, part = cause_of_event(event), part_of(event)
        known = self.facts.get(event.host, [])
        if meaning is None:
            if known:
                self.facts[event.host] = [fact for fact in known if not is_of(fact, event.name, part)]
            return
        best = max([rate_of(event), *(f.best_gbits_per_second for f in known if is_of(f, event.name, part))])
        outage = (0, 0, 0)
        if event.name == IB_PORT and meaning.fault != "fail_stop":
            outage = outage_of(event, [fact for fact in known if is_of(fact, event.name, part)], self.config.keep_ns)
            meaning, known = self._came_back(event, meaning, part, best)
        fact = HardwareFact(
            event.ts_ns,
            event.host,
            event.name,
            meaning.cause,
            meaning.fault,
            meaning.accuses,
            meaning.text,
            event.rank,
            part,
            best,
            *outage,
            is_of_driver=event.source is EventSource.KERNEL,
        )
        oldest_ns = event.ts_ns - self.config.keep_ns
        self.facts[event.host] = [*(f for f in known if f.ts_ns >= oldest_ns), fact][-_KEPT_PER_HOST:]

    def _came_back(
        self, event: Event, meaning: HardwareMeaning, part: str, best: float
    ) -> tuple[HardwareMeaning, list[HardwareFact]]:
        """A port is up: it is not down any more. Slower than before, or again and again: its cable is bad."""
        known = self.facts.get(event.host, [])
        of_port = [fact for fact in known if is_of(fact, event.name, part)]
        kept = [fact for fact in known if fact not in of_port or not fact.accuses]
        oldest_ns = event.ts_ns - self.config.keep_ns
        count = 1 + sum(not fact.accuses and fact.ts_ns >= oldest_ns for fact in of_port)
        text = ""
        if meaning.fault == "degraded" and 0.0 < rate_of(event) < best:
            text = f"{part or 'a port'} runs at {rate_of(event):g} Gb/s, it had {best:g}"
        elif meaning.fault == "degraded" and count >= self.config.flap_count:
            text = f"the link of {part or 'a port'} came back {count} times: its cable"
        return HardwareMeaning("aoc_error", "fail_slow", accuses=True, text=text) if text else meaning, kept

    def find(self, graph: JobGraph, now_ns: int, pace: JobProgress) -> tuple[list[Finding], list[Reason]]:
        """Who says of itself that it broke, as far as the job suffers from it."""
        accusing = [
            fact
            for facts in self.facts.values()
            for fact in facts
            if fact.accuses and fact.cause and now_ns - fact.ts_ns <= self.config.open_ns
        ]
        if accusing:
            # What was carried away from a broken machine does not suffer from it any more.
            spare = graph.spare_hosts()
            accusing = [fact for fact in accusing if fact.host not in spare]
        accusing = self._believed(graph, accusing, pace) or accusing
        if not accusing:
            return [], []
        first = min(accusing, key=lambda fact: (fact.ts_ns, fact.fault != "fail_stop", fact.host))
        same = {
            fact.host
            for fact in accusing
            if fact.cause == first.cause and abs(fact.ts_ns - first.ts_ns) <= self.config.together_ns
        }
        switch = first.cause in _LINK_CAUSES
        one_cause = is_whole(graph, same) if switch else slows(first) and may_fail_together(graph, same)
        if len(same) > few_hosts(graph, self.config.max_host_ratio) and not one_cause:
            return [], [Reason.AMBIGUOUS]
        found, reasons = self._judge(graph, now_ns, first, pace)
        if switch:
            return [_of_all(graph, finding, same) for finding in found], reasons
        return [self._with_twin(graph, finding) for finding in found], reasons

    @staticmethod
    def _believed(graph: JobGraph, accusing: Sequence[HardwareFact], pace: JobProgress) -> list[HardwareFact]:
        """Those after which the job did not go on as ever; what a host tells again and again is as old as the first."""
        first_ns: dict[str, int] = {}
        for fact in accusing:
            first_ns[fact.host] = min(fact.ts_ns, first_ns.get(fact.host, fact.ts_ns))
        belied = {host for host, ts_ns in first_ns.items() if went_on(graph, {host}, ts_ns, pace.median_step_ns)}
        return [fact for fact in accusing if fact.host not in belied]

    def _judge(
        self, graph: JobGraph, now_ns: int, fact: HardwareFact, pace: JobProgress
    ) -> tuple[list[Finding], list[Reason]]:
        slowdown = pace.slowdown_since(fact.ts_ns, now_ns)
        if 0 < pace.stalled_since_ns < fact.ts_ns - self.config.stall_after_ns:
            return [], [Reason.NO_IMPACT]  # the job stood long before that
        died = any(
            facts.exit is not None and (facts.exit.code or facts.exit.signal)
            for rank, facts in graph.ranks.items()
            if graph.host_of(rank) == fact.host
        )
        hurts = died or (slowdown is not None and slowdown.is_certain) or self._flaps_hurt(fact, now_ns, pace)
        if hurts:
            return [self._finding(fact, FaultKind(fact.fault), tentative=False)], []
        known = pace.median_step_ns > 0
        waits_ns = 3 * pace.median_step_ns + self.config.steps_late_ns
        if fact.fault == "fail_stop" and (not known or now_ns - fact.ts_ns <= waits_ns):
            # Nobody can say yet (or ever) whether the job suffers: said at once, confirmed only when it does.
            may_flap = fact.name == IB_PORT and now_ns - fact.ts_ns <= self.config.flap_ns
            return [self._finding(fact, FaultKind.FAIL_STOP, tentative=known or may_flap)], []
        if now_ns - fact.ts_ns > self.config.impact_ns:
            return [], [Reason.NO_IMPACT]
        harmless = slowdown is not None and slowdown.is_gone
        degraded = replace(self._finding(fact, FaultKind.DEGRADED, tentative=False), is_harmless=harmless)
        return [degraded], [Reason.NO_IMPACT]

    def _flaps_hurt(self, fact: HardwareFact, now_ns: int, pace: JobProgress) -> bool:
        """Whether a port that comes and goes costs its job much, though most steps are as ever: some are long."""
        is_much = fact.lost_ns >= self.config.flap_share_ratio * (now_ns - fact.flaps_since_ns)
        if not fact.lost_ns or not is_much:
            return False
        last = pace.slowdown_since(fact.down_ns, fact.ts_ns + pace.median_step_ns + self.config.steps_late_ns)
        if last is not None and last.is_certain:
            return True
        # Of four steps one was long: their mean since the first time tells.
        share_ratio = fact.lost_ns / max(1, now_ns - fact.flaps_since_ns)
        growth_seconds = pace.most_growth_seconds(fact.flaps_since_ns, now_ns)
        expected_seconds = share_ratio * pace.median_step_ns / NS_PER_SECOND
        return growth_seconds is not None and growth_seconds >= self.config.flap_cost_ratio * expected_seconds > 0

    @staticmethod
    def _finding(fact: HardwareFact, fault: FaultKind, *, tentative: bool) -> Finding:
        return Finding(
            fault,
            fact.cause,
            (Suspect(Component(ComponentKind.HOST, fact.host)),),
            fact.ts_ns,
            0.6 if tentative or fault is FaultKind.DEGRADED else 0.92,
            Reason.HARDWARE_EVENT,
            (fact.evidence(),),
            tentative=tentative,
        )

    def _with_twin(self, graph: JobGraph, finding: Finding) -> Finding:
        """Two machines that report the same slow part since the same time, in turn: both are meant."""
        if finding.fault is not FaultKind.FAIL_SLOW:
            return finding
        first_ns = {
            host: min(fact.ts_ns for fact in of_cause)
            for host, facts in self.facts.items()
            if (of_cause := [fact for fact in facts if slows(fact) and fact.cause == finding.cause])
        }
        own_ns = first_ns.get(finding.suspects[0].component.name, finding.onset_ns)
        near = {host for host, ts_ns in first_ns.items() if abs(ts_ns - own_ns) <= self.config.open_ns}
        return _naming(finding, near) if may_fail_together(graph, near - graph.spare_hosts()) else finding

    def filter_explained_by_steps(
        self, findings: Sequence[Finding], broken: Sequence[Finding], *, steps_will_tell: bool
    ) -> tuple[list[Finding], list[Finding]]:
        """Slow parts beside a slow job, of which steps tell why (all wait for data, all compute longer): they are odd.

        What these parts reported so far accuses nobody later either. Until steps have told, it is said, not confirmed.

        Args:
            findings: what the job shows.
            broken: what the machines report.
            steps_will_tell: the job's steps are longer, for too short to say why.
        """
        slow = [report for report in broken if report.fault is FaultKind.FAIL_SLOW]
        others = [report for report in broken if report.fault is not FaultKind.FAIL_SLOW]
        why = [f for f in findings if f.fault is FaultKind.FAIL_SLOW and not f.suspects and f.cause in _NOBODYS]
        if not slow or not why:
            return list(findings), [*others, *(replace(r, tentative=r.tentative or steps_will_tell) for r in slow)]
        freed = tuple(suspect.component for report in slow for suspect in report.suspects)
        for component in freed:
            self.facts[component.name] = [
                replace(fact, fault=FaultKind.DEGRADED.value) if slows(fact) else fact
                for fact in self.facts.get(component.name, [])
            ]
        told = [replace(f, exonerates=(*f.exonerates, *freed)) if f in why else f for f in findings]
        odd = [replace(report, fault=FaultKind.DEGRADED, confidence=0.6, tentative=False) for report in slow]
        return told, [*others, *odd]

    def accuse_who_told(self, graph: JobGraph, findings: Sequence[Finding], now_ns: int) -> list[Finding]:
        """The job stands, or is slow, and nobody knows whose fault it is: one machine logged something as it began.

        An event that accuses nobody by itself (a page fault of a GPU, a corrected error) does so together with a
        job that stands since then; in one that is slow only who says of itself that a part is slow.
        """
        return [
            self._slowed(graph, finding)
            if finding.reason is Reason.JOB_WIDE_SLOWDOWN and finding.cause == "unknown"
            else self._accused(finding, now_ns)
            for finding in findings
        ]

    def _slowed(self, graph: JobGraph, finding: Finding) -> Finding:
        begin_ns, end_ns = finding.onset_ns - self.config.before_ns, finding.onset_ns + self.config.impact_ns
        near = [
            fact
            for host, facts in sorted(self.facts.items())
            for fact in facts
            if slows(fact) and begin_ns <= fact.ts_ns <= end_ns and host not in graph.spare_hosts()
        ]
        hosts = {fact.host for fact in near}
        alone = len(hosts) == 1 or may_fail_together(graph, hosts)
        if finding.suspects or not alone or len({fact.cause for fact in near}) != 1:
            return finding
        told = replace(
            finding,
            cause=near[0].cause,
            confidence=0.75,
            reason=Reason.HARDWARE_EVENT,
            evidence=(*(fact.evidence() for fact in near[:_SHOWN_FACTS]), *finding.evidence),
        )
        return _naming(told, hosts)

    def _accused(self, finding: Finding, now_ns: int) -> Finding:
        if finding.fault is not FaultKind.HANG or finding.suspects:
            return finding
        stands_ns = now_ns - finding.onset_ns
        begin_ns, end_ns = finding.onset_ns - self.config.stall_before_ns, finding.onset_ns + self.config.stall_after_ns
        near = [
            fact
            for facts in self.facts.values()
            for fact in facts
            if fact.cause and fact.cause not in WEAK_CAUSES and begin_ns <= fact.ts_ns <= end_ns
            if fact.accuses or not is_usual(fact, facts, begin_ns)
        ]
        if stands_ns < self.config.stall_after_ns or len({fact.host for fact in near}) != 1:
            return finding
        first = min(near, key=lambda fact: (not fact.accuses, fact.ts_ns))
        return replace(
            finding,
            cause=first.cause,
            suspects=(Suspect(Component(ComponentKind.HOST, first.host)),),
            confidence=0.75,
            reason=Reason.HARDWARE_EVENT,
            evidence=(first.evidence(), *finding.evidence),
            tentative=stands_ns < 2 * self.config.stall_after_ns,
            only_holds=False,
        )

    def hosts_with_reports(self, now_ns: int) -> frozenset[str]:
        """Who said of itself lately that a part of it is broken, or again and again that its memory ails."""
        oldest_ns = now_ns - self.config.keep_ns
        recent = {
            host: [fact for fact in facts if fact.cause not in ("", *WEAK_CAUSES) and fact.ts_ns >= oldest_ns]
            for host, facts in self.facts.items()
        }
        return frozenset(
            host
            for host, facts in recent.items()
            if any(fact.accuses for fact in facts)
            or sum(fact.cause == "ecc_error" for fact in facts) >= self.config.ailing_count
        )

    def accusing_hosts(self, hosts: Collection[str], onset_ns: int, cause: str = "") -> frozenset[str]:
        """Of these, whose own driver or kernel said that a part of it is broken, as something began or since.

        Args:
            hosts: who is asked.
            onset_ns: when it began.
            cause: only events that tell this cause count; "": all do.
        """
        oldest_ns = onset_ns - self.config.before_ns
        return frozenset(
            host
            for host in hosts
            if any(
                fact.accuses and fact.is_of_driver and fact.ts_ns >= oldest_ns and cause in ("", fact.cause)
                for fact in self.facts.get(host, ())
            )
        )

    def explain(self, findings: Sequence[Finding]) -> list[Finding]:
        """Name the cause where an event on the same machine tells it."""
        return [self._explained(finding) for finding in findings]

    def _explained(self, finding: Finding) -> Finding:
        # What a part says of itself counts more than a pattern of metrics.
        is_guess = finding.reason in _BY_PATTERN or finding.cause in VAGUE_CAUSES
        if len(finding.suspects) != 1 or (finding.cause not in WEAK_CAUSES and not is_guess):
            return finding
        earliest_ns = finding.onset_ns - self.config.before_ns
        facts = [
            fact
            for fact in self._of(finding.suspects[0])
            if fact.cause and fact.cause not in WEAK_CAUSES and fact.ts_ns >= earliest_ns
            if fact.accuses
            or finding.cause in WEAK_CAUSES
            or abs(fact.ts_ns - finding.onset_ns) <= self.config.stall_after_ns
        ]
        if not facts:
            return finding
        best = max(facts, key=lambda fact: (fact.accuses, -abs(fact.ts_ns - finding.onset_ns), fact.name))
        return replace(
            finding,
            cause=best.cause,
            is_by_words=False,
            confidence=min(0.98, finding.confidence + 0.1),
            evidence=(best.evidence(), *finding.evidence),
            # Metrics alone let a hang wait for its restart; a part that says itself that it is broken does not.
            is_soft=finding.is_soft and not (best.accuses and finding.fault is FaultKind.HANG),
        )

    def _of(self, suspect: Suspect) -> list[HardwareFact]:
        """What was said of a machine; of a rank where nobody knows its machine."""
        if suspect.component.kind is not ComponentKind.RANK:
            return self.facts.get(suspect.component.name, [])
        return [fact for _, facts in sorted(self.facts.items()) for fact in facts if fact.rank in suspect.ranks]

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return [[host, [asdict(fact) for fact in facts]] for host, facts in sorted(self.facts.items())]

    def load_state(self, state: list[Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.facts = {host: [HardwareFact(**fact) for fact in facts] for host, facts in state}


def filter_contradicted(
    graph: JobGraph,
    findings: Sequence[Finding],
    broken: Sequence[Finding],
    median_step_ns: int,
    doubted: Collection[str] = (),
) -> list[Finding]:
    """What machines report, less what the job belies, where it shows that another one is at fault.

    Args:
        graph: what is known of the job.
        findings: what the job shows.
        broken: what machines report of themselves.
        median_step_ns: the job's step time, 0: not known.
        doubted: machines of which other words were belied.
    """
    named = {s.component.name for f in findings if f.fault is not FaultKind.DEGRADED for s in f.suspects}

    def is_belied(report: Finding) -> bool:
        hosts = {suspect.component.name for suspect in report.suspects}
        return hosts <= set(doubted) or went_on(graph, hosts, report.onset_ns, median_step_ns)

    return [
        report
        for report in broken
        if report.fault is FaultKind.DEGRADED
        or not named - {suspect.component.name for suspect in report.suspects}
        or not is_belied(report)
    ]


def add_broken(findings: Sequence[Finding], broken: Sequence[Finding]) -> list[Finding]:
    """Join what the machines report of themselves with what the job shows.

    The same machine: the job's view stays, with the cause explained. Another machine: the first death
    is a victim where the report of the broken part is older, or as old as clocks can tell; a slow rank is
    not, where the report only says "degraded".
    """
    found = list(findings)
    for report in broken:
        named = [f for f in found if f.suspects]
        same = [f for f in named if report.suspects[0].component in {suspect.component for suspect in f.suspects}]
        if any(f.fault is not FaultKind.DEGRADED for f in same):
            continue
        if same and report.fault is not FaultKind.DEGRADED:
            # Its metrics differ, nobody can say yet whether it hurts; the part that broke says more.
            found = [f for f in found if f not in same]
        elif same:
            continue
        if report.fault is FaultKind.DEGRADED:
            found.append(report)
            continue
        others = [f for f in named if f.fault is not FaultKind.DEGRADED]
        if all(report.onset_ns <= f.onset_ns + 2 * NS_PER_SECOND for f in others):
            found = [report, *(f for f in found if f.fault is FaultKind.DEGRADED)]
    return found


def _naming(finding: Finding, hosts: Collection[str]) -> Finding:
    return replace(finding, suspects=tuple(Suspect(Component(ComponentKind.HOST, host)) for host in sorted(hosts)))


def _of_all(graph: JobGraph, finding: Finding, hosts: Collection[str]) -> Finding:
    """Machines behind one switch that reported the same at once are named together."""
    common = common_component(graph, hosts)
    if common is None:
        return finding
    return replace(_naming(finding, hosts), common=common)

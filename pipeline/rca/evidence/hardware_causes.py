"""Causes and suspects that hardware events add to what the job shows.

An event that only explains (a corrected error, a power limit) accuses nobody by itself. It names the cause of what
other evidence shows, or the machine where a standstill or slowdown names none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import may_fail_together
from tocsin.pipeline.rca.evidence.hardware_facts import WEAK_CAUSES, HardwareFact, host_suspects, is_usual, slows
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog, HardwareRules
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect

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
"""Reasons whose cause was guessed from metrics."""
VAGUE_CAUSES = frozenset({"cuda_execution_error", "gpu_execution_error"})
"""Causes that a program sees when a part breaks; the part's own event tells more."""


class HardwareCauses:
    """Explains findings of one job by its machines' hardware events."""

    def __init__(self, rules: HardwareRules, log: HardwareLog) -> None:
        """Explain by what a log holds.

        Args:
            rules: settings.
            log: the job's hardware events.
        """
        self._rules = rules
        self._log = log

    def accuse_reporting_hosts(self, graph: JobGraph, findings: Sequence[Finding], now_ns: int) -> list[Finding]:
        """Return the findings, with suspects where one machine logged an event as the job came to stand or slow down.

        An event that accuses nobody by itself (a GPU's page fault, a corrected error) does so together with a job that
        stands since then. In a slow job only a report of a slow part does.

        Args:
            graph: the job.
            findings: findings, of which none names suspects.
            now_ns: the slice's end.
        """
        return [
            self._slowed(graph, finding)
            if finding.reason is Reason.JOB_WIDE_SLOWDOWN and finding.cause == "unknown"
            else self._accused(finding, now_ns)
            for finding in findings
        ]

    def _slowed(self, graph: JobGraph, finding: Finding) -> Finding:
        """Return a finding about a slow job with the machines that reported a slow part around its onset, if any."""
        begin_ns, end_ns = finding.onset_ns - self._rules.before_ns, finding.onset_ns + self._rules.impact_ns
        near = [
            fact
            for host, facts in sorted(self._log.facts.items())
            for fact in facts
            if slows(fact) and begin_ns <= fact.ts_ns <= end_ns and host not in graph.spare_hosts()
        ]
        hosts = {fact.host for fact in near}
        alone = len(hosts) == 1 or may_fail_together(graph, hosts)
        if finding.suspects or not alone or len({fact.cause for fact in near}) != 1:
            return finding
        reported = replace(
            finding,
            cause=near[0].cause,
            confidence=0.75,
            reason=Reason.HARDWARE_EVENT,
            evidence=(*(fact.evidence() for fact in near[:_SHOWN_FACTS]), *finding.evidence),
        )
        return replace(reported, suspects=host_suspects(hosts))

    def _accused(self, finding: Finding, now_ns: int) -> Finding:
        """Return a finding about a job that stands with the one machine that logged an event around its onset."""
        if finding.fault is not FaultKind.HANG or finding.suspects:
            return finding
        stalled_ns = now_ns - finding.onset_ns
        begin_ns, end_ns = finding.onset_ns - self._rules.stall_before_ns, finding.onset_ns + self._rules.stall_after_ns
        near = [
            fact
            for facts in self._log.facts.values()
            for fact in facts
            if fact.cause and fact.cause not in WEAK_CAUSES and begin_ns <= fact.ts_ns <= end_ns
            if fact.accuses or not is_usual(fact, facts, begin_ns)
        ]
        if stalled_ns < self._rules.stall_after_ns or len({fact.host for fact in near}) != 1:
            return finding
        first = min(near, key=lambda fact: (not fact.accuses, fact.ts_ns))
        return replace(
            finding,
            cause=first.cause,
            suspects=(Suspect(Component(ComponentKind.HOST, first.host)),),
            confidence=0.75,
            reason=Reason.HARDWARE_EVENT,
            evidence=(first.evidence(), *finding.evidence),
            tentative=stalled_ns < 2 * self._rules.stall_after_ns,
            only_holds=False,
        )

    def explain(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings, with another cause where an event of the same machine tells it."""
        return [self._explained(finding) for finding in findings]

    def _explained(self, finding: Finding) -> Finding:
        """Return a finding with the cause of its machine's most telling event; as it is where no event tells one."""
        # What a part says of itself counts more than a pattern of metrics.
        is_guess = finding.reason in _BY_PATTERN or finding.cause in VAGUE_CAUSES
        if len(finding.suspects) != 1 or (finding.cause not in WEAK_CAUSES and not is_guess):
            return finding
        earliest_ns = finding.onset_ns - self._rules.before_ns
        facts = [
            fact
            for fact in self._log.said_of(finding.suspects[0])
            if fact.cause and fact.cause not in WEAK_CAUSES and fact.ts_ns >= earliest_ns
            if fact.accuses
            or finding.cause in WEAK_CAUSES
            or abs(fact.ts_ns - finding.onset_ns) <= self._rules.stall_after_ns
        ]
        if finding.cause in VAGUE_CAUSES:
            # A program's error is the machine's only where the very GPU of that rank reports more than the error.
            facts = [fact for fact in facts if fact.accuses and _is_of(fact, finding.suspects[0])]
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
            is_by_part=self._rules.broke_with(best, finding.onset_ns),
        )


def _is_of(fact: HardwareFact, suspect: Suspect) -> bool:
    """Return whether a fact is about a GPU of the suspect's ranks, as far as both name ranks."""
    return fact.rank < 0 or not suspect.ranks or fact.rank in suspect.ranks

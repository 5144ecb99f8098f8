"""Hosts that report a broken part of their own, and whether the job suffers from it.

An event is one machine's word about itself. A fatal one may open a verdict at once. While the job's steps go on, the
finding stays tentative: a machine that works is not evicted for a line in its log.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import (
    common_component,
    few_hosts,
    is_whole,
    may_fail_together,
)
from tocsin.pipeline.rca.evidence.contradicted import went_on
from tocsin.pipeline.rca.evidence.hardware_facts import HardwareFact, host_suspects, slows
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog, HardwareRules
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.events import IB_PORT
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect

_LINK_CAUSES = frozenset({"nic_dropout", "aoc_error"})
"""Causes that all hosts of a switch report when the switch fails."""


class BrokenHosts:
    """Judges the hardware events of one job by the job's steps."""

    def __init__(self, rules: HardwareRules, log: HardwareLog) -> None:
        """Judge what a log holds.

        Args:
            rules: settings.
            log: the job's hardware events.
        """
        self._rules = rules
        self._log = log

    def find(self, graph: JobGraph, now_ns: int, pace: JobProgress) -> tuple[list[Finding], list[Reason]]:
        """Return findings about the host that first reported a broken part, and hosts that failed together with it.

        Args:
            graph: the job.
            now_ns: the slice's end.
            pace: the job's progress.

        Returns:
            Findings, by the job's impact; and the reasons why a report is no fault with impact.
        """
        accusing = [
            fact
            for facts in self._log.facts.values()
            for fact in facts
            if fact.accuses and fact.cause and now_ns - fact.ts_ns <= self._rules.open_ns
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
            if fact.cause == first.cause and abs(fact.ts_ns - first.ts_ns) <= self._rules.together_ns
        }
        switch = first.cause in _LINK_CAUSES
        one_cause = is_whole(graph, same) if switch else slows(first) and may_fail_together(graph, same)
        if len(same) > few_hosts(graph, self._rules.max_host_ratio) and not one_cause:
            return [], [Reason.AMBIGUOUS]
        found, reasons = self._judge(graph, now_ns, first, pace)
        if switch:
            return [_of_all(graph, finding, same) for finding in found], reasons
        return [self._with_concurrent_failure(graph, finding) for finding in found], reasons

    @staticmethod
    def _believed(graph: JobGraph, accusing: Sequence[HardwareFact], pace: JobProgress) -> list[HardwareFact]:
        """Return the facts of hosts without which the job did not go on as before.

        What a host reports several times counts from its first report.
        """
        first_ns: dict[str, int] = {}
        for fact in accusing:
            first_ns[fact.host] = min(fact.ts_ns, first_ns.get(fact.host, fact.ts_ns))
        belied = {host for host, ts_ns in first_ns.items() if went_on(graph, {host}, ts_ns, pace.median_step_ns)}
        return [fact for fact in accusing if fact.host not in belied]

    def _judge(
        self, graph: JobGraph, now_ns: int, fact: HardwareFact, pace: JobProgress
    ) -> tuple[list[Finding], list[Reason]]:
        """Return a finding for one fact by its impact on the job, and the reason where it has none."""
        slowdown = pace.slowdown_since(fact.ts_ns, now_ns)
        if 0 < pace.stalled_since_ns < fact.ts_ns - self._rules.stall_after_ns:
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
        waits_ns = 3 * pace.median_step_ns + self._rules.steps_late_ns
        if fact.fault == "fail_stop" and (not known or now_ns - fact.ts_ns <= waits_ns):
            # Nobody can say yet (or ever) whether the job suffers: said at once, confirmed only when it does.
            may_flap = fact.name == IB_PORT and now_ns - fact.ts_ns <= self._rules.flap_ns
            return [self._finding(fact, FaultKind.FAIL_STOP, tentative=known or may_flap)], []
        if now_ns - fact.ts_ns > self._rules.impact_ns:
            return [], [Reason.NO_IMPACT]
        harmless = slowdown is not None and slowdown.is_gone
        degraded = replace(self._finding(fact, FaultKind.DEGRADED, tentative=False), is_harmless=harmless)
        return [degraded], [Reason.NO_IMPACT]

    def _flaps_hurt(self, fact: HardwareFact, now_ns: int, pace: JobProgress) -> bool:
        """Return whether a flapping port lengthens steps noticeably in the mean, though most steps are as before."""
        is_much = fact.lost_ns >= self._rules.flap_share_ratio * (now_ns - fact.flaps_since_ns)
        if not fact.lost_ns or not is_much:
            return False
        last = pace.slowdown_since(fact.down_ns, fact.ts_ns + pace.median_step_ns + self._rules.steps_late_ns)
        if last is not None and last.is_certain:
            return True
        # Of four steps one was long: their mean since the first time tells.
        share_ratio = fact.lost_ns / max(1, now_ns - fact.flaps_since_ns)
        growth_seconds = pace.most_growth_seconds(fact.flaps_since_ns, now_ns)
        expected_seconds = share_ratio * pace.median_step_ns / NS_PER_SECOND
        return growth_seconds is not None and growth_seconds >= self._rules.flap_cost_ratio * expected_seconds > 0

    @staticmethod
    def _finding(fact: HardwareFact, fault: FaultKind, *, tentative: bool) -> Finding:
        """Return a finding that accuses a fact's host."""
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

    def _with_concurrent_failure(self, graph: JobGraph, finding: Finding) -> Finding:
        """Return a finding about a slow part with the other host that reports the same since the same time, if any."""
        if finding.fault is not FaultKind.FAIL_SLOW:
            return finding
        first_ns = {
            host: min(fact.ts_ns for fact in of_cause)
            for host, facts in self._log.facts.items()
            if (of_cause := [fact for fact in facts if slows(fact) and fact.cause == finding.cause])
        }
        own_ns = first_ns.get(finding.suspects[0].component.name, finding.onset_ns)
        near = {host for host, ts_ns in first_ns.items() if abs(ts_ns - own_ns) <= self._rules.open_ns}
        return (
            replace(finding, suspects=host_suspects(near))
            if may_fail_together(graph, near - graph.spare_hosts())
            else finding
        )


def _of_all(graph: JobGraph, finding: Finding, hosts: Collection[str]) -> Finding:
    """Return a finding with all hosts of one switch that reported the same; as it is where they share none."""
    common = common_component(graph, hosts)
    if common is None:
        return finding
    return replace(finding, suspects=host_suspects(hosts), common=common)

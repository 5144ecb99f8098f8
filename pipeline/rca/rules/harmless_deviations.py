"""Memory of deviations that did not slow the job when they began: they do not explain a later slowdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tocsin.models.pace import Slowdown, overdue_seconds
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import MachineRules, begin_ns, differs_now
from tocsin.pipeline.rca.rules.impact import is_cleared_by_steps
from tocsin.pipeline.rca.rules.self_time import computes_longer
from tocsin.pipeline.rca.rules.timing import began_with_non_training_phase
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly

_SEEN_WITHIN_NS = 30 * NS_PER_SECOND
"""Longest delay in nanoseconds from the start of a deviation until it is detected."""


@dataclass(slots=True)
class HarmlessDeviations:
    """Deviations, by host, that are known not to explain a slowdown.

    Attributes:
        since_ns: host -> start of the harmless deviation in nanoseconds; negative where it began with non-training work
            and counts as harmless only until the job trains again.
    """

    since_ns: dict[str, int] = field(default_factory=dict)

    def judge(self, anomalies: Sequence[Anomaly], now_ns: int, pace: JobProgress, rules: MachineRules) -> list[Anomaly]:
        """Return the anomalies that may still explain a slowdown, and update the memory.

        A deviation becomes harmless once it has lasted a minute (or three steps, if longer) and the job is as fast as
        before. It is forgotten when it ends. One that began with non-training work is judged again once the job trains
        and is slower.
        """
        begins = {anomaly.component.name: begin_ns(anomaly) for anomaly in anomalies}
        self.since_ns = {
            host: since_ns for host, since_ns in self.since_ns.items() if abs(since_ns) == begins.get(host, 0)
        }
        after_ns = max(rules.cleared_after_ns, rules.cleared_step_count * pace.median_step_ns)
        for anomaly in anomalies:
            since_ns, known_ns = begin_ns(anomaly), self.since_ns.get(anomaly.component.name)
            if now_ns - since_ns < after_ns or known_ns == since_ns:
                continue
            slowdown = pace.slowdown_since(since_ns - rules.before_onset_ns, now_ns)
            if slowdown is None:
                continue
            if known_ns is not None and _trains_again(slowdown, pace, rules) and differs_now(anomaly):
                del self.since_ns[anomaly.component.name]
            elif _is_harmless(slowdown) and not computes_longer(anomaly, slowdown, pace):  # a ramp begins harmless
                self.since_ns[anomaly.component.name] = since_ns
        return [anomaly for anomaly in anomalies if anomaly.component.name not in self.since_ns]

    def learn(  # what was decided, and of whom
        self,
        graph: JobGraph,
        anomalies: Sequence[Anomaly],
        chosen: Sequence[Anomaly],
        reason: Reason | None,
        now_ns: int,
        pace: JobProgress,
    ) -> None:
        """Remember deviations as harmless, depending on the reason for which the chosen hosts were not accused.

        With ``NON_TRAINING_PHASE`` that is every deviation which began with the other work. With
        ``SLOWDOWN_FOLLOWS_ANOMALY`` or ``HIGHER_WORKLOAD`` it is those of the chosen hosts; other reasons change
        nothing.
        """
        if reason is Reason.NON_TRAINING_PHASE:
            self._forgive(graph, anomalies, now_ns, pace)
        elif reason in (Reason.SLOWDOWN_FOLLOWS_ANOMALY, Reason.HIGHER_WORKLOAD):
            self.since_ns.update({anomaly.component.name: begin_ns(anomaly) for anomaly in chosen})

    def hear_steps(self, chosen: Sequence[Anomaly], slowdown: Slowdown | None, pace: JobProgress) -> bool:
        """Return whether measured steps show that the chosen hosts do not slow the job.

        If so, their deviations are remembered as harmless.
        """
        if not is_cleared_by_steps(chosen, slowdown, pace):
            return False
        self.free(chosen, {anomaly.component.name for anomaly in chosen})
        return True

    def free(self, anomalies: Sequence[Anomaly], hosts: Collection[str]) -> None:
        """Remember the present deviations of these hosts as harmless."""
        for anomaly in anomalies:
            if anomaly.component.name in hosts:
                self.since_ns[anomaly.component.name] = begin_ns(anomaly)

    def _forgive(self, graph: JobGraph, anomalies: Sequence[Anomaly], now_ns: int, pace: JobProgress) -> None:
        """Remember as provisionally harmless each deviation that began when the job changed over to non-training work.

        It does not explain why steps stopped. ``judge`` revokes this once the job trains again, slower than before.
        """
        overdue_ns = round(overdue_seconds(pace.median_step_ns / NS_PER_SECOND) * NS_PER_SECOND)
        for anomaly in anomalies:
            since_ns = begin_ns(anomaly)
            if since_ns >= now_ns - overdue_ns - _SEEN_WITHIN_NS or began_with_non_training_phase(
                graph, [anomaly], since_ns, pace
            ):
                self.since_ns.setdefault(anomaly.component.name, -since_ns)


def _is_harmless(slowdown: Slowdown) -> bool:
    """Return whether the steps show, precisely enough, that the job is not slower."""
    return slowdown.is_gone and slowdown.is_known and not slowdown.is_likely


def _trains_again(slowdown: Slowdown, pace: JobProgress, rules: MachineRules) -> bool:
    """Return whether the job makes steps that are certainly slower; where steps are recorded, at least three.

    The first steps after a pause do not count, as all machines start up then.
    """
    enough = not pace.median_step_ns or slowdown.step_count >= rules.cleared_step_count
    return enough and slowdown.is_certain and slowdown.ratio != float("inf")

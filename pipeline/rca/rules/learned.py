"""What anomalies of learned detectors do to findings: support them, and where a person allows it, accuse alone.

A learned detector says that a machine is unlike its peers, or unlike what it learned, and not why. So its anomalies
support what others found about the same machine: they stand in the evidence and raise the confidence that is told.
Explanations are weighed against each other without them, so they change neither who is named nor what is proposed; a
rule of the policy or a route of alerts that asks for a least confidence may hold sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component, few_hosts
from tocsin.pipeline.rca.finding import Finding, machine_of
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind, Suspect

SUPPORT_CONFIDENCE = 0.05
"""What a learned detector that names the same machine adds to a finding's confidence: half of what ``peers`` and
``steps`` add to each other."""
MAX_CONFIDENCE = 0.98
_ALONE_CONFIDENCE = 0.5


@dataclass(frozen=True, slots=True)
class LearnedEvidence:
    """Anomalies of learned detectors at the end of a slice.

    Attributes:
        anomalies: those that stand.
        accusers: detectors whose anomalies may open a verdict alone.
    """

    anomalies: tuple[Anomaly, ...] = ()
    accusers: frozenset[str] = frozenset()

    def of(self, components: Sequence[Component]) -> list[Anomaly]:
        """Return the anomalies of these components: the strongest of each detector, by detector."""
        names = {machine_of(Suspect(one)) for one in components}
        found: dict[str, Anomaly] = {}
        for anomaly in sorted(self.anomalies, key=lambda one: (-one.score, one.metric)):
            if anomaly.component in components or machine_of(Suspect(anomaly.component)) in names:
                found.setdefault(anomaly.detector, anomaly)
        return [found[name] for name in sorted(found)]

    def accusing(self) -> list[Anomaly]:
        """Return the anomalies of hosts that may open a verdict alone."""
        return [
            anomaly
            for anomaly in self.anomalies
            if anomaly.detector in self.accusers
            and anomaly.score >= 1.0
            and anomaly.component.kind is ComponentKind.HOST
        ]


NOTHING_LEARNED = LearnedEvidence()


def supported(findings: Sequence[Finding], learned: LearnedEvidence) -> list[Finding]:
    """Return the findings; those whose suspects a learned detector names, too, carry its evidence and more confidence.

    Args:
        findings: findings of a slice.
        learned: what the learned detectors say.
    """
    return [_supported(finding, learned) for finding in findings] if learned.anomalies else list(findings)


def _supported(finding: Finding, learned: LearnedEvidence) -> Finding:
    """Return one finding with the evidence of learned detectors about its suspects."""
    if not finding.suspects or finding.only_holds or finding.is_harmless or finding.clears:
        return finding
    found = learned.of([suspect.component for suspect in finding.suspects])
    if not found:
        return finding
    confidence = finding.confidence + SUPPORT_CONFIDENCE * len(found)
    return replace(
        finding,
        evidence=(*finding.evidence, *map(evidence_of_learned, found)),
        told_confidence=max(finding.confidence, min(MAX_CONFIDENCE, confidence)),
    )


def evidence_of_learned(anomaly: Anomaly) -> Evidence:
    """Return an anomaly of a learned detector as evidence.

    Its numbers stand in the sentence alone: rules read the values of ``peers`` and ``steps``, and learned evidence must
    not change what they conclude.
    """
    detail = anomaly.detail
    text = str(detail.get("text") or f"{anomaly.component.name}: {anomaly.metric} is unlike what its model expects")
    if "value" in detail and "expected" in detail:
        text += f" ({detail['value']:.4g}, its peers {detail['expected']:.4g})"
    return Evidence(
        anomaly.detector,
        anomaly.metric,
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        text,
        model_version=anomaly.model_version,
    )


def accused_alone(
    graph: JobGraph,
    now_ns: int,
    findings: Sequence[Finding],
    learned: LearnedEvidence,
    job: tuple[JobProgress, MachineRules],
) -> tuple[list[Finding], Reason | None]:
    """Return a finding about the machine that learned detectors alone name, and why there is none.

    Only detectors that may accuse alone count, and only where nothing else names a machine.

    Args:
        graph: the job.
        now_ns: the slice's end.
        findings: what was found otherwise.
        learned: what the learned detectors say.
        job: the job's progress, and the rules about machines.
    """
    pace, rules = job
    own = learned.accusing()
    if not own or any(one.suspects and one.fault is not FaultKind.DEGRADED for one in findings):
        return [], None
    hosts = sorted({anomaly.component.name for anomaly in own})
    if len(hosts) > few_hosts(graph, rules.max_host_ratio):
        return [], Reason.AMBIGUOUS
    onset_ns = min(anomaly.start_ns for anomaly in own)
    lasted_ns = max(anomaly.end_ns for anomaly in own) - onset_ns
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    if slowdown is None and lasted_ns < rules.undecided_ns:
        return [], Reason.NOT_CONTINUOUS
    # Steps that do not reach back to before the onset show no harm; it is assumed only where nobody tells steps.
    is_unknown = not pace.median_step_ns or bool(pace.stalled_since_ns)
    hurts = is_unknown if slowdown is None else slowdown.is_likely
    stalled = FaultKind.HANG if pace.stalled_since_ns else FaultKind.FAIL_SLOW
    is_brief = lasted_ns < rules.sure_ns
    finding = Finding(
        stalled if hurts else FaultKind.DEGRADED,
        "unknown",
        tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts),
        onset_ns,
        _ALONE_CONFIDENCE,
        Reason.LEARNED_DETECTOR_DIFFERS,
        tuple(map(evidence_of_learned, own)),
        tentative=is_brief,
        is_brief=is_brief,
        common=common_component(graph, set(hosts)),
        seen_ns=max(anomaly.end_ns for anomaly in own),
        is_harmless=slowdown is not None and slowdown.is_gone,
    )
    return [finding], None

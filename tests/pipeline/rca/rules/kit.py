"""What the tests of several rules share."""

from __future__ import annotations

from dataclasses import replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import at_second, build_deviation, build_finding, build_graph
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.machine import find_machine
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly


def find_by_metrics(
    second: float,
    progress: JobProgress,
    *anomalies: Anomaly,
    graph: JobGraph | None = None,
    cleared: HarmlessDeviations | None = None,
) -> tuple[list[Finding], list[Reason]]:
    """What metrics tell of eight machines at a second, by the rules' defaults."""
    known = HarmlessDeviations() if cleared is None else cleared
    return find_machine(graph or build_graph(), at_second(second), anomalies, progress, MachineRules(), known)


def ill(span: tuple[float, float]) -> Anomaly:
    """Several metrics of a machine are low."""
    parts = [build_deviation("n4", span, name, "low", 0.0) for name in ("gpu_util_ratio", "cpu_util_ratio")]
    metrics = [metric for part in parts for metric in part.detail["metrics"]]
    return replace(parts[0], detail={"metrics": metrics})


def told_of(
    progress: FakeProgress, until: float, cleared: HarmlessDeviations, metric: str = "cpu_util_ratio"
) -> list[tuple[str, Reason]]:
    busy = build_deviation("n3", (0, until), metric, "high")
    busy.detail["metrics"][0].update(value=4.0)
    found, _ = find_by_metrics(until, progress, busy, cleared=cleared)
    return [(finding.fault.value, finding.reason) for finding in found]


def unseen(anomaly: Anomaly) -> Anomaly:
    """There was no sample in the last window."""
    for name in ("sigmas", "value", "expected"):
        del anomaly.detail["metrics"][0][name]
    return anomaly


def slower_since(second: float) -> Finding:
    return build_finding(second=second, reason=Reason.JOB_WIDE_SLOWDOWN)

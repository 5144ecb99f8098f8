"""Builders of a small job's records, graph, anomalies and findings: what the tests of single rules begin with."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    Frame,
    JobKey,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, FaultKind, Suspect

JOB = JobKey("c", "j")
"""The job of everything that is built here."""
START_NS = 1_800_000_000 * NS_PER_SECOND
"""Second 0 of that job, in Unix nanoseconds."""


def at_second(second: float) -> int:
    """Return the instant of a second of the job, in Unix nanoseconds."""
    return START_NS + int(second * NS_PER_SECOND)


def rank_places(host_count: int = 8, *, leaf_hosts_count: int = 0) -> list[RankPlace]:
    """Return the places of a job with one rank on each of the hosts ``n0``, ``n1``, ...

    Args:
        host_count: how many hosts.
        leaf_hosts_count: hosts behind each leaf switch; 0: the switches are not known.
    """
    leaves = [f"leaf{row // leaf_hosts_count}" if leaf_hosts_count else "" for row in range(host_count)]
    return [RankPlace(row, f"n{row}", leaf=leaf) for row, leaf in enumerate(leaves)]


def announce_places(places: Iterable[RankPlace], second: float = 0.0) -> list[Topology]:
    """Return one topology message for each place, sent by the place's own host."""
    return [Topology(JOB, place.host, at_second(second), (place,)) for place in places]


def build_graph(places: Iterable[RankPlace] | None = None) -> JobGraph:
    """Return a graph that knows where the ranks are.

    Args:
        places: where they are; None: eight ranks, one on each of the hosts ``n0`` to ``n7``.
    """
    graph = JobGraph()
    graph.take(announce_places(rank_places() if places is None else places))
    return graph


def build_event(  # every field of an event has its own default
    second: float,
    host: str,
    name: str,
    rank: int = -1,
    source: EventSource = EventSource.PROCESS,
    severity: Severity = Severity.ERROR,
    **payload: object,
) -> Event:
    """Return an event of a host (rank -1) or of one of its ranks; its payload is given by name."""
    return Event(JOB, host, at_second(second), rank, source, name, severity, payload)


def build_steps(second: float, host: str, *ranks: int, step: int | None = None, own_seconds: float = 1.0) -> StepBatch:
    """Return a batch with one step of each rank, which ended at a second.

    Args:
        second: when the step ended.
        host: the host that reports it.
        ranks: whose step it is.
        step: its number; None: as the second.
        own_seconds: how long each rank took.
    """
    ts_ns, number = at_second(second), int(second) if step is None else step
    return StepBatch(JOB, host, ts_ns, tuple(StepRecord(ts_ns, rank, number, own_seconds) for rank in ranks))


def build_empty_frame(host: str, ts_ns: int, tick_ns: int = NS_PER_SECOND) -> Frame:
    """Return a frame without metrics: it shows no more than that the host's agent reports."""
    return Frame(JOB, host, ts_ns, 1, ts_ns, tick_ns, 0, (), b"", b"")


def build_deviation(  # a metric, when and how it differs
    host: str, span: tuple[float, float], metric: str, direction: str, sigmas: float = 9.0, **detail: object
) -> Anomaly:
    """Return a host's deviation from its peers in one metric.

    Args:
        host: the host that differs.
        span: the first and the last second in which it differs.
        metric: the metric, e.g. ``gpu_util_ratio``.
        direction: ``low`` or ``high``.
        sigmas: how far it differs in the last window.
        detail: more keys of the anomaly's detail, beside ``metrics``.
    """
    shown = {
        "metric": metric,
        "direction": direction,
        "score": 1.4,
        "since_ns": at_second(span[0]),
        "present_ratio": 1.0,
        "sigmas": sigmas,
        "value": 0.4,
        "expected": 0.1,
    }
    component, start_ns, end_ns = Component(ComponentKind.HOST, host), at_second(span[0]), at_second(span[1])
    held = {"metrics": [shown], **detail}
    return Anomaly(JOB, end_ns, component, metric, start_ns, end_ns, 1.4, "peers", "", held)


def build_finding(*hosts: str, second: float = 0.0, reason: Reason = Reason.SAME_RANK_SLOWEST) -> Finding:
    """Return a finding that hosts are slow, for no known cause, since a second; without hosts: that the job is."""
    suspects = tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts)
    return Finding(FaultKind.FAIL_SLOW, "unknown", suspects, at_second(second), 0.8, reason, ())

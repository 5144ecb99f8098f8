"""Rule for machines that do more work than their peers, rather than being slow."""

from __future__ import annotations

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import has_higher_workload, may_have_higher_workload
from tocsin.pipeline.rca.rules.timing import window_ns
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly

_WINDOW_NS = 5 * NS_PER_SECOND
"""Length of a metric slice in nanoseconds, assumed where the sampling interval is unknown."""


def shows_more_work(graph: JobGraph, anomaly: Anomaly, pace: JobProgress) -> bool:
    """Return whether a machine does more work than its peers, and does not merely waste power.

    False where windows are too short to cover a whole step, as its phases would then look like more work.
    """
    host = anomaly.component.name
    sees_steps = pace.median_step_ns <= max(_WINDOW_NS, window_ns(graph, [anomaly]))
    load = pace.more_work(host)
    draws_more = load is not None and may_have_higher_workload(anomaly, load.since_ns)
    if pace.wastes_power(host) or pace.moves_no_more(host):
        return False
    return sees_steps and (has_higher_workload(anomaly) or draws_more)

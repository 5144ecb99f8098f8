"""Rules about timing: a deviation and a slowdown that did not begin together do not explain each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tocsin.models.pace import Slowdown
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import other_program
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly

_LATE_NS, _LATE_STEP_COUNT = 15 * NS_PER_SECOND, 2.5
"""Longest delay between a slowdown and its deviation, in nanoseconds and in steps; windows and sums take that long."""
_SPAN_STEP_COUNT = 4.5
"""Length of a comparison span in steps. Three whole steps fit in, wherever it begins, and one long step does not move
the median of three."""
_STRONG_LATE_FACTOR = 1.5
"""Factor on the longest delay for deviations other than another program's CPU use; a data loader showed after 21 s."""
_EARLY_SHARE_RATIO = 0.2
"""Share of the present slowdown up to which the job counts as not slower yet."""
_BEFORE_SHARE_RATIO = 0.6
"""Share of the present slowdown from which on the job counts as already slow."""

TELLING_WINDOWS = 2
"""Number of windows after which it is known whether a machine merely has more work, where windows are long (samples of
10 s or more)."""
SELF_TIME_SHARE_RATIO = 0.3
"""Share of the steps' growth from which on a machine's self time explains it."""


def self_time_excess_of(chosen: Sequence[Anomaly], pace: JobProgress) -> float | None:
    """Return the largest excess self time of these hosts over their peers, in seconds a step; None if not measured."""
    excesses = [pace.self_time_excess_seconds(anomaly.component.name) for anomaly in chosen]
    return max((excess for excess in excesses if excess is not None), default=None)


def window_ns(graph: JobGraph, chosen: Sequence[Anomaly]) -> int:
    """Return the longest metric window of these anomalies' hosts in nanoseconds.

    A single window never accuses a host: with windows of 25 s and thousands of machines, some lie far out in one
    window.
    """
    return longest_window_ns(graph, [anomaly.component.name for anomaly in chosen])


def why_not(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown | None, pace: JobProgress
) -> Reason | None:
    """Return the reason why these hosts cannot explain the slowdown.

    The reasons are a non-training phase, a slowdown that preceded the anomaly, or one that followed it much later. None
    where they can explain it, or where the job is not certainly slower.
    """
    if slowdown is None or not slowdown.is_certain:
        return None
    if slowdown.ratio == float("inf") and pace.work_goes_on:
        return Reason.NON_TRAINING_PHASE  # own levels were learned while it trained: they say nothing of this
    if began_with_non_training_phase(graph, chosen, onset_ns, pace):
        return Reason.NON_TRAINING_PHASE
    growth_seconds = slowdown.step_seconds - slowdown.before_seconds
    if (self_time_excess_of(chosen, pace) or 0.0) > max(0.0, SELF_TIME_SHARE_RATIO * growth_seconds):
        return None
    if _slowed_before(graph, chosen, onset_ns, slowdown, pace):
        return Reason.SLOWDOWN_PRECEDES_ANOMALY
    # Other programs use a CPU for minutes and hurt nobody; what else ails may take minutes until it hurts.
    later = other_program(chosen) and _slowed_later(graph, chosen, onset_ns, slowdown, pace)
    return Reason.SLOWDOWN_FOLLOWS_ANOMALY if later else None


def began_with_non_training_phase(graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, pace: JobProgress) -> bool:
    """Return whether these hosts deviate since about when the job changed to non-training work.

    False where the job records steps, as those measure its pace.
    """
    since_ns = pace.non_training_since_ns
    if pace.median_step_ns or not since_ns:
        return False
    return onset_ns >= since_ns - _LATE_NS - 2 * window_ns(graph, chosen)


def _slowed_later(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown, pace: JobProgress
) -> bool:
    """Return whether the job was still fast after these hosts had deviated for a while."""
    late_ns = _late_ns(graph, [anomaly.component.name for anomaly in chosen], pace)
    if max(anomaly.end_ns for anomaly in chosen) - onset_ns < 3 * late_ns:
        return False
    early = pace.slowdown_since(onset_ns + late_ns // 2, onset_ns + 2 * late_ns)
    return early is not None and early.is_known and early.ratio < _EARLY_SHARE_RATIO * min(1.0, slowdown.ratio)


def _slowed_before(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown, pace: JobProgress
) -> bool:
    """Return whether the job was about as slow as now for some time before these hosts began to deviate."""
    hosts = [anomaly.component.name for anomaly in chosen]
    late_ns = _late_ns(graph, hosts, pace)
    if not other_program(chosen):
        late_ns = round(_STRONG_LATE_FACTOR * late_ns)  # what else differs seldom does for no reason
    # Several steps tell of each of the two spans, or several windows where there are no steps.
    unit_ns = pace.median_step_ns or longest_window_ns(graph, hosts)
    span_ns = max(late_ns // 2, round(_SPAN_STEP_COUNT * unit_ns))
    then = pace.slowdown_since(onset_ns - 3 * span_ns, onset_ns - span_ns)
    since = pace.slowdown_since(onset_ns - span_ns, onset_ns)
    return all(_is_as_slow(before, slowdown) for before in (then, since))


def _is_as_slow(before: Slowdown | None, slowdown: Slowdown) -> bool:
    """Return whether an earlier span was certainly slow, by at least 0.6 of the present slowdown.

    A span with one or two steps does not count: a checkpoint makes a single step long.
    """
    if before is None or not before.is_certain or before.ratio == float("inf"):
        return False
    return before.step_count not in (1, 2) and before.ratio >= _BEFORE_SHARE_RATIO * slowdown.ratio


def began_later(
    graph: JobGraph, slow: Sequence[Finding], machine: Sequence[Finding], pace: JobProgress
) -> list[Finding]:
    """Return the metric findings without those that began well after the job had become slower.

    Only findings with the reason ``METRICS_DIFFER_STEPS_SLOWER`` are dropped. All are kept where steps name a suspect.
    In a job with long steps and a hundred machines, one of them always deviates for half a minute.
    """
    if not slow or any(finding.suspects for finding in slow):
        return list(machine)
    slower_ns = min(finding.onset_ns for finding in slow)
    found = []
    for finding in machine:
        late_ns = _late_ns(graph, [suspect.component.name for suspect in finding.suspects], pace)
        is_late = finding.onset_ns > slower_ns + late_ns
        if not is_late or finding.reason is not Reason.METRICS_DIFFER_STEPS_SLOWER:
            found.append(finding)
    return found


def _late_ns(graph: JobGraph, hosts: Sequence[str], pace: JobProgress) -> int:
    """Return the longest distance in nanoseconds between a slowdown and a deviation that are related."""
    return max(_LATE_NS, round(_LATE_STEP_COUNT * pace.median_step_ns), 2 * longest_window_ns(graph, hosts))


def longest_window_ns(graph: JobGraph, hosts: Iterable[str]) -> int:
    """Return the longest metric window of these hosts in nanoseconds; 0 if they send none."""
    return max((graph.hosts[host].report_interval_ns for host in hosts if host in graph.hosts), default=0)

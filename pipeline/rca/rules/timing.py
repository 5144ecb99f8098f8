"""Whether what a machine shows and what the job suffers from began together: else the one is not why of the other."""

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
"""Whatever makes a job slower shows on its machine by then; windows and sums take a while."""
_TOLD_COUNT = 4.5
"""Three steps begin and end in a span of so many, wherever it begins; of three the median is not the one long one's."""
_STRONG_LATE_FACTOR = 1.5
"""What is more than another program's CPU may begin to show so much later: of a loader it was 21 s."""
_EARLY_SHARE_RATIO = 0.2
"""A job that was slower by no more than this share of how much it is now was not slower yet."""
_BEFORE_SHARE_RATIO = 0.6
"""And one that was slower by this share of it already was."""

TELLING_WINDOWS = 2
"""Of windows that are long (samples of 10 s and more) so many must have told whether a machine only has more to do."""
OWN_SHARE_RATIO = 0.3
"""From this share of the steps' growth on, a machine's own time explains it."""


def own_excess_of(chosen: Sequence[Anomaly], pace: JobProgress) -> float | None:
    """How much longer than its peers the slowest of these computes in a step, in seconds; None: not measured."""
    excesses = [pace.own_excess_seconds(anomaly.component.name) for anomaly in chosen]
    return max((excess for excess in excesses if excess is not None), default=None)


def window_ns(graph: JobGraph, chosen: Sequence[Anomaly]) -> int:
    """The length of a metric window of theirs: one alone accuses nobody, however long it is.

    Of thousands of machines whose steps end at other places in a window of 25 s some lie far out in one of them.
    """
    return longest_window_ns(graph, [anomaly.component.name for anomaly in chosen])


def why_not(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown | None, pace: JobProgress
) -> Reason | None:
    """Why these cannot be the cause of that slowdown; None: they can, or there is none."""
    if slowdown is None or not slowdown.is_certain:
        return None
    if slowdown.ratio == float("inf") and pace.work_goes_on:
        return Reason.NON_TRAINING_PHASE  # own levels were learned while it trained: they say nothing of this
    if began_with_other_work(graph, chosen, onset_ns, pace):
        return Reason.NON_TRAINING_PHASE
    growth_seconds = slowdown.step_seconds - slowdown.before_seconds
    if (own_excess_of(chosen, pace) or 0.0) > max(0.0, OWN_SHARE_RATIO * growth_seconds):
        return None
    if _came_before(graph, chosen, onset_ns, slowdown, pace):
        return Reason.SLOWDOWN_PRECEDES_ANOMALY
    # Other programs use a CPU for minutes and hurt nobody; what else ails may take minutes until it hurts.
    later = other_program(chosen) and _came_later(graph, chosen, onset_ns, slowdown, pace)
    return Reason.SLOWDOWN_FOLLOWS_ANOMALY if later else None


def began_with_other_work(graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, pace: JobProgress) -> bool:
    """Whether no steps tell the pace, and these differ since the job went over to other work, or later."""
    since_ns = pace.other_work_since_ns
    if pace.median_step_ns or not since_ns:
        return False
    return onset_ns >= since_ns - _LATE_NS - 2 * window_ns(graph, chosen)


def _came_later(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown, pace: JobProgress
) -> bool:
    """Whether the job was as fast as ever when these had differed for a while: they are not why it is slow now."""
    late_ns = _late_ns(graph, [anomaly.component.name for anomaly in chosen], pace)
    if max(anomaly.end_ns for anomaly in chosen) - onset_ns < 3 * late_ns:
        return False
    early = pace.slowdown_since(onset_ns + late_ns // 2, onset_ns + 2 * late_ns)
    return early is not None and early.is_known and early.ratio < _EARLY_SHARE_RATIO * min(1.0, slowdown.ratio)


def _came_before(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown, pace: JobProgress
) -> bool:
    """Whether the job was about as slow as now for a while when these began to differ."""
    hosts = [anomaly.component.name for anomaly in chosen]
    late_ns = _late_ns(graph, hosts, pace)
    if not other_program(chosen):
        late_ns = round(_STRONG_LATE_FACTOR * late_ns)  # what else differs seldom does for no reason
    # Several steps tell of each of the two spans, or several windows where there are no steps.
    unit_ns = pace.median_step_ns or longest_window_ns(graph, hosts)
    span_ns = max(late_ns // 2, round(_TOLD_COUNT * unit_ns))
    then = pace.slowdown_since(onset_ns - 3 * span_ns, onset_ns - span_ns)
    since = pace.slowdown_since(onset_ns - span_ns, onset_ns)
    return all(_is_as_slow(before, slowdown) for before in (then, since))


def _is_as_slow(before: Slowdown | None, slowdown: Slowdown) -> bool:
    """Whether so many steps were about as slow, or the work as little: a checkpoint makes one step long."""
    if before is None or not before.is_certain or before.ratio == float("inf"):
        return False
    return before.step_count not in (1, 2) and before.ratio >= _BEFORE_SHARE_RATIO * slowdown.ratio


def began_later(
    graph: JobGraph, slow: Sequence[Finding], machine: Sequence[Finding], pace: JobProgress
) -> list[Finding]:
    """What the metrics name, less whoever began to differ when the job had been slower for a while: that is not why.

    Of a hundred machines one or the other always differs for half a minute in a job with long steps.
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
    """How much later than what makes the job slower, or earlier than that, something is that has not to do with it."""
    return max(_LATE_NS, round(_LATE_STEP_COUNT * pace.median_step_ns), 2 * longest_window_ns(graph, hosts))


def longest_window_ns(graph: JobGraph, hosts: Iterable[str]) -> int:
    """The longest metric window of these, 0: they send none."""
    return max((graph.hosts[host].report_interval_ns for host in hosts if host in graph.hosts), default=0)

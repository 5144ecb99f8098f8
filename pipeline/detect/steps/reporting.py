"""When a candidate of the step detector has lasted long enough to be reported, and whether it took slowness over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.models.robust import median
from tocsin.pipeline.detect.steps.candidates import Candidate, Turns
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.rows import COLUMNS, StepRows, table_of
from tocsin.pipeline.detect.steps.slower_hosts import stages_unknown
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason


def too_early(
    candidate: Candidate, config: StepsConfig, graph: JobGraph, turns: Turns, *, is_whole_job: bool
) -> Reason | None:
    """Return why a candidate is not reported yet, None = it is reported.

    Args:
        candidate: the candidate.
        config: settings.
        graph: the job.
        turns: other hosts' turns of slowness before it.
        is_whole_job: whether it is the job, and no host.
    """
    if is_whole_job and candidate.is_reported:
        return None  # it lasts, if by less
    need = config.need_seconds(candidate.detail["strength_ratio"])
    if candidate.from_start:
        need = max(config.from_start_seconds, config.from_start_factor * need)
        if stages_unknown(graph, candidate.detail.get("ranks", ())):
            return Reason.STAGES_UNKNOWN
    if candidate.lasted_seconds < need:
        return Reason.NOT_CONTINUOUS
    if "ranks" not in candidate.detail or candidate.is_reported:
        return None
    most_luck_ratio = config.turn_luck_ratio if turns.passed_on else config.max_luck_ratio
    return Reason.MAY_BE_LUCK if candidate.luck_ratio > most_luck_ratio else None


def was_slow_before(candidate: Candidate, ended_ns: int, steps: Sequence[StepRows]) -> bool:
    """Return whether a host computed about as long as now before another one's turn ended, or nobody knows.

    Then two machines were slow together, and the slowness of one did not pass on to the other.

    Args:
        candidate: the host.
        ended_ns: when the other host's turn ended.
        steps: the newest steps.
    """
    before = [step for step in steps if step.end_ns <= ended_ns]
    ranks, table = table_of(before) if before else ((), np.empty((len(COLUMNS), 0, 0)))
    columns = [column for column, rank in enumerate(ranks) if rank in candidate.detail["ranks"]]
    if not columns:
        return True
    own = table[COLUMNS.index("duration")] - table[COLUMNS.index("communication")]
    line_seconds = (float(candidate.detail["own_seconds"]) + float(candidate.detail["peer_seconds"])) / 2
    return not float(np.max(median(own[:, columns], 0))) < line_seconds

"""Evidence that states how much slower the job became."""

from __future__ import annotations

import math

from tocsin.models.pace import Slowdown
from tocsin.schemas.verdicts import Evidence


def pace_evidence(slowdown: Slowdown, onset_ns: int, end_ns: int) -> Evidence:
    """Return evidence of the job's slowdown between two times.

    It quotes step times; where the job records no steps, the machines' work per second.

    The score is at least 1.0 where the slowdown is certain, and below 1.0 where it is not.
    """
    score = 1.0 + max(0.0, slowdown.ratio) if slowdown.is_certain else max(0.0, min(0.99, slowdown.ratio))
    now, before = slowdown.step_seconds, slowdown.before_seconds
    if slowdown.is_of_work:
        score, text = min(2.0, score), _work_text(slowdown.ratio)
        return Evidence("peers", "work_ratio", score, onset_ns, end_ns, text, 1 / (1 + slowdown.ratio), 1.0)
    if math.isinf(slowdown.ratio):
        text = f"no step has ended in time since (usually {before:.3g} s each)"
        return Evidence("steps", "step_seconds", 2.0, onset_ns, end_ns, text, peer_value=before)
    text = f"the job's steps take {now:.3g} s since then, before {before:.3g} s"
    return Evidence("steps", "step_seconds", score, onset_ns, end_ns, text, now, before)


def _work_text(ratio: float) -> str:
    """Return the evidence sentence for a slowdown that is measured in work per second.

    Args:
        ratio: growth of the time per unit of work; 1.0 means half of the work per second.
    """
    work_ratio = 1 / (1 + ratio)
    if work_ratio <= 0.0:
        return "the job's machines do no work since then"
    if work_ratio >= 1.0:
        return "the job's machines do as much work a second as before (it records no steps)"
    return f"the job's machines do {work_ratio:.3g} times the work a second that they did before (it records no steps)"

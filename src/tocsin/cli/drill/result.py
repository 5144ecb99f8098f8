"""What is left of a drill when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.cli.drill.judge import Answer, Heard
from tocsin.cli.drill.plan import DrillPlan


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank's process ended.

    Attributes:
        rank: which.
        code: exit status; minus the signal's number after a signal.
        at_ns: when the supervisor saw it.
        stderr_tail: the end of its stderr.
    """

    rank: int
    code: int
    at_ns: int
    stderr_tail: str


@dataclass(frozen=True, slots=True)
class DrillResult:
    """A drill that was carried out.

    Attributes:
        plan: what was done.
        job_id: the job's name.
        onset_ns: when the fault struck.
        answer: right or wrong.
        heard: every verdict line of the job.
        exits: how ranks ended, in order.
        step_seconds: mean time of a step before the onset.
        cpu_cores: cores that all processes of the drill used in that time.
    """

    plan: DrillPlan
    job_id: str
    onset_ns: int
    answer: Answer
    heard: tuple[Heard, ...]
    exits: tuple[RankExit, ...]
    step_seconds: float
    cpu_cores: float

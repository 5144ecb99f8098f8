"""The result of a drill."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.cli.drill.judge import Answer, Heard
from tocsin.cli.drill.plan import DrillPlan


@dataclass(frozen=True, slots=True)
class RankExit:
    """End of a rank's process.

    Attributes:
        rank: number of the rank.
        code: exit status; after a signal, minus the signal's number.
        at_ns: when the supervisor thread noticed it.
        stderr_tail: end of its stderr.
    """

    rank: int
    code: int
    at_ns: int
    stderr_tail: str


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Result of a drill that was carried out.

    Attributes:
        plan: the drill's plan.
        job_id: name of the job.
        onset_ns: when the fault was injected.
        answer: whether the engine was right.
        heard: every verdict line of the job.
        exits: how ranks ended, in order.
        step_seconds: mean duration of a step before the onset.
        cpu_cores: CPU cores that all processes of the drill used in that time.
    """

    plan: DrillPlan
    job_id: str
    onset_ns: int
    answer: Answer
    heard: tuple[Heard, ...]
    exits: tuple[RankExit, ...]
    step_seconds: float
    cpu_cores: float

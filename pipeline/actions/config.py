"""Settings of the controller of actions: frozen, with defaults that are safe on a fresh installation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tocsin.pipeline.incidents.decide_config import DecideConfig
from tocsin.pipeline.incidents.proposed_action import STANDSTILL
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

HOUR_SECONDS: Final = 3600
DAY_SECONDS: Final = 24 * HOUR_SECONDS
WEEK_SECONDS: Final = 7 * DAY_SECONDS
TICK_SECONDS: Final = 1.0
"""Distance of an engine's judgements."""
EVIDENCE_SECONDS: Final = TICK_SECONDS + max(DecideConfig().confirm_ns[one] for one in STANDSTILL) / NS_PER_SECOND
"""Longest time until an engine confirms what stops a job, and one tick more: 6 s."""


class BudgetScope(StrEnum):
    """What a budget is counted for."""

    JOB = "job"
    LEAF = "leaf"
    MINIPOD = "minipod"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """Most machines (or restarts) of one scope within one window; at least 1 is always allowed.

    Attributes:
        scope: for what it is counted.
        window_seconds: length of the sliding window; 0: how many are out at the same time.
        most_count: absolute limit.
        share_ratio: limit as a share of the scope's machines, where their number is known.
    """

    scope: BudgetScope
    window_seconds: int
    most_count: int
    share_ratio: float = 1.0

    def allowed_count(self, size: int) -> int:
        """Return how many are allowed in a scope of ``size`` machines, 0 = its size is not known."""
        by_share = int(self.share_ratio * size) if size else self.most_count
        return max(1, min(self.most_count, by_share))


def _windows(scope: BudgetScope, counts: tuple[int, int, int], shares: tuple[float, float, float]) -> list[BudgetLimit]:
    lengths = (HOUR_SECONDS, DAY_SECONDS, WEEK_SECONDS)
    return [BudgetLimit(scope, *one) for one in zip(lengths, counts, shares, strict=True)]


MACHINE_BUDGETS: Final = (
    *_windows(BudgetScope.JOB, (8, 16, 32), (0.1, 0.25, 0.5)),
    *_windows(BudgetScope.LEAF, (2, 4, 8), (0.25, 0.5, 0.5)),
    *_windows(BudgetScope.MINIPOD, (4, 8, 16), (0.1, 0.25, 0.5)),
    *_windows(BudgetScope.FLEET, (12, 40, 100), (0.1, 0.25, 0.5)),
    BudgetLimit(BudgetScope.JOB, 0, 12, 0.25),
    BudgetLimit(BudgetScope.LEAF, 0, 4, 0.5),
    BudgetLimit(BudgetScope.MINIPOD, 0, 12, 0.25),
    BudgetLimit(BudgetScope.FLEET, 0, 64, 0.25),
)
"""Default budgets of machines that are taken away.

Of a job the share counts up to some eighty machines. In larger ones a flood of one class, which takes two machines,
leaves places for real faults of other classes.
"""
RESTART_BUDGETS: Final = (
    BudgetLimit(BudgetScope.JOB, HOUR_SECONDS, 3),
    BudgetLimit(BudgetScope.JOB, DAY_SECONDS, 10),
    BudgetLimit(BudgetScope.JOB, WEEK_SECONDS, 30),
    BudgetLimit(BudgetScope.FLEET, HOUR_SECONDS, 60),
    BudgetLimit(BudgetScope.FLEET, DAY_SECONDS, 400),
    BudgetLimit(BudgetScope.FLEET, WEEK_SECONDS, 1500),
)
"""Default budgets of restarts and rollbacks that leave no machine out."""


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When the breaker of a class opens and how it closes.

    Attributes:
        host_count: it opens when more hosts than this show the class within the window.
        window_seconds: the window.
        half_open_seconds: after this time it lets one action through, and one more after each further such time.
        class_count: most classes that are remembered.
    """

    host_count: int = 4
    window_seconds: int = HOUR_SECONDS
    half_open_seconds: int = HOUR_SECONDS
    class_count: int = 4096


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Settings of the controller.

    Attributes:
        is_dry_run: True: actions are shown and never executed; pages go out all the same.
        machine_budgets: limits for kinds that take machines away.
        restart_budgets: limits for restarts and rollbacks.
        breaker: when a class of evidence is taken for a false alarm.
        unproven_count: from this many unproven actions of a class on, a person approves further ones.
        approval_kinds: kinds that a person approves.
        approval_seconds: for how long an approval can be given.
        spare_count: machines that can take the place of another, where no job controller says so.
        may_shrink: whether jobs can go on with fewer machines, where no job controller says so.
        evidence_seconds: longest time for which a restart waits for its verdict to be confirmed, or for more witnesses.
        after_change_seconds: how long hard actions wait after a machine's ranks were moved, or the job's detectors got
            another model; 0: they do not.
        job_silence_seconds: what a job controller said of spares and shrinking counts for this long.
        embedded_silence_seconds: greatest age of an embedded engine's heartbeat.
        flink_silence_seconds: greatest age of a Flink engine's heartbeat, without its checkpoint interval.
        executor_silence_seconds: an executor that said nothing for this long is taken for dead.
        lease_seconds: longest lease that is granted.
        blocked_seconds: what is held up for this long becomes blocked and pages.
        veto_seconds: for how long a person's word keeps a machine from being taken for the same cause.
        wrong_count: from this many wrong verdicts on, a detector proposes nothing more for the attempt.
        return_check_seconds: how long after it was taken away a machine is checked, and doubled by each check of it
            within a week; 0: no check is proposed before a machine returns.
        quiet_step_count: steps without a sign of a fault after which a machine comes back.
        command_age_seconds: a person's command that is older when it comes has no effect.
        lapsed_kept_seconds: how long actions are remembered that ended with their verdict, and that nobody ever had.
        final_kept_seconds: how long other finished actions are remembered; longer than the longest budget window.
        open_count: most actions that are open at a time.
        fact_count: most machines, jobs and other facts that are remembered, of each.
    """

    is_dry_run: bool = True
    machine_budgets: tuple[BudgetLimit, ...] = MACHINE_BUDGETS
    restart_budgets: tuple[BudgetLimit, ...] = RESTART_BUDGETS
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    unproven_count: int = 2
    approval_kinds: frozenset[ActionKind] = frozenset({ActionKind.REBOOT, ActionKind.RESET_GPU})
    approval_seconds: int = 1800
    spare_count: int = 0
    may_shrink: bool = False
    evidence_seconds: float = EVIDENCE_SECONDS
    after_change_seconds: float = 600.0
    job_silence_seconds: float = 60.0
    embedded_silence_seconds: float = 5.0
    flink_silence_seconds: float = 15.0
    executor_silence_seconds: float = 60.0
    lease_seconds: float = 60.0
    blocked_seconds: float = 900.0
    veto_seconds: int = 12 * HOUR_SECONDS
    wrong_count: int = 2
    return_check_seconds: float = 600.0
    quiet_step_count: int = 500
    command_age_seconds: float = 300.0
    lapsed_kept_seconds: int = HOUR_SECONDS
    final_kept_seconds: int = WEEK_SECONDS + DAY_SECONDS
    open_count: int = 10_000
    fact_count: int = 100_000

    def __post_init__(self) -> None:
        """Check what the settings say of one another.

        Raises:
            ConfigError: a limit is below 1, or finished actions are forgotten within a budget's window.
        """
        limits = (*self.machine_budgets, *self.restart_budgets)
        for one in limits:
            if one.most_count < 1 or not 0.0 <= one.share_ratio <= 1.0:
                raise ConfigError("budget", one, "at least 1, with a share from 0 to 1")
        longest_seconds = max((one.window_seconds for one in limits), default=0)
        if self.final_kept_seconds < longest_seconds:
            raise ConfigError("final_kept_seconds", self.final_kept_seconds, f"at least {longest_seconds}")


def ns(seconds: float) -> int:
    """Return seconds as nanoseconds."""
    return int(seconds * NS_PER_SECOND)

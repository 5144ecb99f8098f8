"""The policy as frozen values: rules in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tocsin.pipeline.actions.policy.limits import PolicyLimits
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.verdicts import ActionKind

TAKING: Final = HARD_KINDS - {ActionKind.REPLAY}
"""Kinds that take a machine from its users."""


class ProposalTarget(StrEnum):
    """What a rule acts on."""

    SUSPECTS = "suspects"
    """Each component that the verdict names."""
    COMMON = "common"
    """The one component that the suspects share, such as a leaf switch."""
    JOB = "job"
    """The whole job."""


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A condition on verdicts; a field with its default matches all.

    Attributes:
        job: patterns of the job's id.
        fault: values of ``FaultKind``.
        cause: causes.
        blames: what the cause blames: ``machine``, ``program``, ``nobody``.
        action: actions that the verdict proposes.
        code: what NVIDIA's tables ask for after the codes on which the verdict rests (``RESTART_APP``, ``UNKNOWN``).
        error: names of exceptions in the last words of the program.
        witness: kinds of witnesses, of which one must be listed.
        is_named: whether the verdict names suspects; None: either.
        is_words_only: whether only words of a user's program tell it; None: either.
        has_common: whether the suspects share a component; None: either.
        min_confidence: least confidence, 0 to 1.
        after_evict_seconds: the job lost a machine by an eviction at most this long before the fault; 0: not asked.
    """

    job: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    blames: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    witness: tuple[str, ...] = ()
    is_named: bool | None = None
    is_words_only: bool | None = None
    has_common: bool | None = None
    min_confidence: float = 0.0
    after_evict_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How long a rule only tells people.

    Attributes:
        count: number of alerts of one host with which the rule acts.
        within_seconds: span in which they must fall.
        stands_seconds: one alert that stands for so long makes the rule act, too.
    """

    count: int
    within_seconds: float
    stands_seconds: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """What a rule does instead where the same happens again.

    Attributes:
        count: number of times on one host with which this holds.
        within_seconds: span in which they must fall.
        kind: what to do then.
    """

    count: int
    within_seconds: float
    kind: ActionKind


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rung of the ladder.

    Attributes:
        name: its name, the reason of its decisions.
        match: which verdicts it takes.
        kinds: what to do; several: one after the other, as often as the job fails again.
        target: what to act on.
        needs_approval: whether a person must approve first.
        tolerate: None: it acts at once.
        again: None: repetitions change nothing.
        meaning: one sentence for people, "" for none.
    """

    name: str
    match: RuleMatch
    kinds: tuple[ActionKind, ...]
    target: ProposalTarget = ProposalTarget.SUSPECTS
    needs_approval: bool = False
    tolerate: Tolerance | None = None
    again: Repetition | None = None
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy file.

    Attributes:
        rules: in the order in which they are tried; the first that fits counts.
        forget_seconds: a job that did not fail for so long begins at the first step again.
        places: name of a rule -> its place in the file, for people.
        limits: spares and budgets.
        warnings: what may be a mistake, as lines that name file, line and key.
    """

    rules: tuple[PolicyRule, ...]
    forget_seconds: float = 21_600.0
    places: Mapping[str, str] = field(default_factory=dict)
    limits: PolicyLimits = field(default_factory=PolicyLimits)
    warnings: tuple[str, ...] = ()

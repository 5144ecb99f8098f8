"""Result of root-cause analysis for one slice, as it is handed to the incident stage."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.pipeline.job.witnesses import may_take_away
from tocsin.schemas.job_key import lone_host
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect, Witness


@dataclass(frozen=True, slots=True)
class Finding:
    """One explanation of what is wrong with the job at the end of a slice.

    Attributes:
        fault: class of the fault, such as hang or fail-slow.
        cause: a word of ``tocsin.schemas.causes``.
        suspects: components that the evidence singles out; empty if none.
        onset_ns: time at which the fault began.
        confidence: between 0 and 1, without what learned detectors add.
        reason: named reason for the finding.
        evidence: observations that support it, strongest first.
        certain: whether the evidence cannot disappear (a process is dead), so that no second look is needed before an
            action is proposed.
        tentative: whether it may be shown but not confirmed yet.
        hard_ns: shortest duration in nanoseconds before a machine may be taken out for it.
        is_brief: whether it is tentative only because it has not lasted long enough.
        is_harmless: whether the job does not suffer (any more); such a finding ends an open incident.
        only_holds: whether it opens no verdict, but keeps an open one open.
        is_soft: whether it never leads to a drain or a restart, however long it lasts.
        clears: components that were accused earlier and are taken back by this finding.
        passed_on: machines whose slowness passed on to others: accused by step times alone, they are taken back, too.
        common: component that several suspects share.
        witnesses: hosts and drivers that observed the fault.
        machine_count: number of machines of the job.
        is_by_words: whether the cause rests only on the last log lines of a program.
        is_wordless: whether a process ended without a signal, and only the job's history hints at the cause.
        costs_ratio: share of the job's step time that the slowness costs now, 0 to 1; None: not slowness, or unknown.
        ends: reason why an incident without suspects that the finding belongs to is over; None: it goes on. A finding
            that ends incidents opens none.
        is_by_part: whether the driver of the accused machine told that a part of it broke as the job came to stand.
        is_lone: whether the rest of the job goes on undisturbed; nobody is restarted or rolled back then.
    """

    fault: FaultKind
    cause: str
    suspects: tuple[Suspect, ...]
    onset_ns: int
    confidence: float
    reason: Reason
    evidence: tuple[Evidence, ...]
    certain: bool = False
    common: Component | None = None
    clears: tuple[Component, ...] = ()
    is_soft: bool = False
    tentative: bool = False
    is_brief: bool = False
    hard_ns: int = 0
    is_harmless: bool = False
    only_holds: bool = False
    seen_ns: int = 0
    """Time of the newest input that shows the fault; 0 means the slice in which it was found. After that time the
    finding still holds, but is not confirmed."""
    witnesses: tuple[Witness, ...] = ()
    machine_count: int = 1
    is_by_words: bool = False
    is_wordless: bool = False
    is_lone: bool = False
    is_by_part: bool = False
    ends: Reason | None = None
    passed_on: tuple[Component, ...] = ()
    costs_ratio: float | None = None
    told_confidence: float = 0.0
    """The confidence that the verdict tells: with what learned detectors add. 0: they add nothing."""

    @property
    def accused(self) -> tuple[str, ...]:
        """Names of the suspected machines; for a rank with unknown host, its placeholder host name."""
        return tuple(machine_of(suspect) for suspect in self.suspects)

    @property
    def has_witnesses(self) -> bool:
        """Whether enough witnesses support the finding for its machines to be taken out of the job."""
        return may_take_away(
            self.accused,
            self.witnesses,
            self.machine_count,
            is_by_words=self.is_by_words,
            is_slowness=self.fault is FaultKind.FAIL_SLOW,
        )


def machine_of(suspect: Suspect) -> str:
    """Return the host name of a suspect; for a suspected rank, the placeholder host name of that rank."""
    component = suspect.component
    is_rank = component.kind is ComponentKind.RANK and component.name.isdecimal()
    return lone_host(int(component.name)) if is_rank else component.name

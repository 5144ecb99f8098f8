"""What ``diagnose`` hands to ``decide``: an explanation that holds now."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.pipeline.job.witnesses import may_take_away
from tocsin.schemas.job_key import lone_host
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect, Witness


@dataclass(frozen=True, slots=True)
class Finding:
    """One explanation of what is wrong, true at the end of a slice.

    Attributes:
        fault: what is wrong.
        cause: a word of ``tocsin.schemas.causes``.
        suspects: whom the evidence singles out; () = nobody.
        onset_ns: when it began.
        confidence: 0 to 1.
        reason: the named reason.
        evidence: strongest first.
        certain: the evidence cannot go away by waiting (a process is dead): no second look is
            needed before an action is proposed.
        tentative: it may be said, and is never confirmed as long as it is so.
        hard_ns: no machine is taken away for it before it has lasted for so long.
        is_brief: it is tentative for nothing else than that it has not lasted yet.
        is_harmless: what it says hurts nobody (any more): it ends an incident that did.
        only_holds: it opens no verdict, but one that is open stands.
        is_soft: nobody is drained or restarted for it, however long it lasts.
        exonerates: whoever was said to be slow, or dead as it was silent, and is not: what named these is taken back.
        common: the component that several suspects share.
        witnesses: who saw it.
        machine_count: machines of the job.
        is_by_words: only the last words of a program tell the cause.
        is_wordless: a process ended, by no signal, and nothing tells why but what its job went through before.
        is_lone: the others go on as if nothing had happened: nobody is restarted or rolled back for it.
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
    exonerates: tuple[Component, ...] = ()
    is_soft: bool = False
    tentative: bool = False
    is_brief: bool = False
    hard_ns: int = 0
    is_harmless: bool = False
    only_holds: bool = False
    seen_ns: int = 0
    """The newest input that shows it, 0: the slice that it is found in. It holds, but is not confirmed, beyond."""
    witnesses: tuple[Witness, ...] = ()
    machine_count: int = 1
    is_by_words: bool = False
    is_wordless: bool = False
    is_lone: bool = False

    @property
    def accused(self) -> tuple[str, ...]:
        """Names of the machines that it singles out; of a rank whose machine nobody knows the name that stands in."""
        return tuple(machine_of(suspect) for suspect in self.suspects)

    @property
    def has_witnesses(self) -> bool:
        """Whether enough saw it to take the machines away."""
        return may_take_away(
            self.accused,
            self.witnesses,
            self.machine_count,
            is_by_words=self.is_by_words,
            is_slowness=self.fault is FaultKind.FAIL_SLOW,
        )


def machine_of(suspect: Suspect) -> str:
    """The machine of a suspect, as witnesses are named."""
    component = suspect.component
    is_rank = component.kind is ComponentKind.RANK and component.name.isdecimal()
    return lone_host(int(component.name)) if is_rank else component.name

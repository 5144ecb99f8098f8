"""What ``diagnose`` hands to ``decide``: an explanation that holds now."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, Evidence, FaultKind, Suspect


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
        exonerates: whoever was said to be slow and is not: what named these is taken back.
        common: the component that several suspects share.
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

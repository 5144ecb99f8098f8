"""The strongest proven reason against a machine: a hardware code of its driver beside a process that stands or died.

A frozen or dead process is restarted on its machine. Where the driver of that machine told at about the same time of a
part that works no more until it is reset or replaced, and enough others were harmed, the part is the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tocsin.pipeline.actions.policy.codes import CODE_ACTIONS, HARDWARE_RANK, FoundCode, codes_in, is_words
from tocsin.pipeline.job.witnesses import FEW_MACHINES, may_take_away
from tocsin.pipeline.rca.evidence.hardware_log import HardwareRules
from tocsin.schemas import events
from tocsin.schemas.formats.xid import meaning_of_xid
from tocsin.schemas.verdicts import ActionKind, ComponentKind, FaultKind, Verdict

_RULES: Final = HardwareRules()
BY_PROCESS: Final = frozenset({"process_frozen", "process_exit", "unknown"})
"""Causes that say what became of a process, and not why."""
_STANDSTILL: Final = frozenset({FaultKind.FAIL_STOP, FaultKind.HANG})
_STOPS_JOB: Final = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK})
_NUMBER: Final = re.compile(r"XID (\d+)")
TimedCode = tuple[int, FoundCode]
"""When a host reported a code, in ns, and the code."""


def proven_fault(verdict: Verdict, heard: Sequence[TimedCode]) -> Verdict | None:
    """Return a verdict with the cause of its machine's broken part, and with an eviction as the action.

    Args:
        verdict: the update of a verdict.
        heard: codes in events of the verdict's machine.

    Returns:
        None where the verdict does not name exactly one machine for a process that stands or died, where the engine
        would not stop the job, where no code of the hardware was told within the time in which it can explain the
        standstill, or where too few witnesses saw the fault.
    """
    if verdict.fault not in _STANDSTILL or verdict.cause not in BY_PROCESS or verdict.action not in _STOPS_JOB:
        return None
    if len(verdict.suspects) != 1 or verdict.suspects[0].component.kind is not ComponentKind.HOST:
        return None
    begin_ns, end_ns = verdict.onset_ns - _RULES.stall_before_ns, verdict.onset_ns + _RULES.stall_after_ns
    codes = [code for at_ns, code in (*_told_by(verdict), *heard) if begin_ns <= at_ns <= end_ns]
    causes = [cause for cause in map(_cause_of, codes) if cause]
    # Harm to two others, which is enough without an event, means that the job has more than two machines.
    is_seen = may_take_away((verdict.suspects[0].component.name,), verdict.witnesses, FEW_MACHINES)
    return replace(verdict, cause=causes[0], action=ActionKind.EVICT) if causes and is_seen else None


def _told_by(verdict: Verdict) -> list[TimedCode]:
    """Return the XIDs that a verdict's evidence of the hardware names."""
    return [
        (one.start_ns, code)
        for one in verdict.evidence
        if one.metric == events.XID and not is_words(one)
        for code in codes_in(f"{one.metric} {one.text}")
    ]


def _cause_of(code: FoundCode) -> str:
    """Return the cause of a code after which a part works no more; "" for any other code."""
    number = _NUMBER.fullmatch(code.name)
    if number is None or CODE_ACTIONS[code.action] < HARDWARE_RANK:
        return ""
    found = meaning_of_xid(int(number[1]))
    return found.cause if found.accuses and found.is_fatal else ""

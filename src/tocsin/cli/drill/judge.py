"""Compares the verdict lines of a drill with what its kind expects. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.cli.drill.faults import ExpectedVerdict
from tocsin.cli.drill.plan import DrillPlan

VerdictLine = Mapping[str, Any]
"""An object of ``verdicts.jsonl`` (``Verdict.to_line``)."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A verdict line as the drill received it.

    Attributes:
        at_ns: wall-clock time of its arrival, in nanoseconds.
        line: the verdict line.
        summary: the engine's sentence for humans.
    """

    at_ns: int
    line: VerdictLine
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a drill.

    Attributes:
        right: whether the engine's verdict was right.
        why: one sentence that says what was wrong, or what was right.
        seconds: time from the onset to the first right line, None: none came or none is expected.
        verdict: the line that decided (the last update of the first verdict that counts), None: none came.
    """

    right: bool
    why: str
    seconds: float | None = None
    verdict: VerdictLine | None = None


def host_name(rank: int) -> str:
    """Return the name of the simulated host of a rank."""
    return f"n{rank}"


def is_live(line: VerdictLine) -> bool:
    """Return whether a verdict line is in force, that is, not cancelled."""
    return str(line["state"]) != "cancelled"


def accused(line: VerdictLine) -> frozenset[str]:
    """Return the names of the suspects that a line accuses; ``degraded`` and cancelled lines accuse nobody."""
    if not is_live(line) or line["fault"] == "degraded":
        return frozenset()
    return frozenset(str(suspect["name"]) for suspect in line["suspects"])


def judge(plan: DrillPlan, onset_ns: int, heard: Sequence[Heard]) -> Answer:
    """Judge a drill from every verdict line that arrived.

    It is strict on purpose: an accusation of an innocent host is wrong even if a later line cancels it, because
    somebody may have acted on it.

    Args:
        plan: the drill's plan.
        onset_ns: when the fault was injected.
        heard: all lines of this job, in order of arrival.

    Returns:
        Whether the engine was right, and why.
    """
    if plan.kind.wanted is ExpectedVerdict.SILENCE:
        live = [item for item in heard if is_live(item.line)]
        if live:
            return Answer(False, f"a verdict on a healthy job: {describe(live[0].line)}", verdict=live[0].line)
        return Answer(True, "no verdict, as it should be")
    false_accusation = _first_false_accusation(plan, onset_ns, heard)
    if false_accusation is not None:
        return false_accusation
    if plan.kind.wanted is ExpectedVerdict.NO_ACCUSATION:
        return Answer(True, "nobody accused, as it should be", verdict=heard[0].line if heard else None)
    return _judge_wanted(plan, onset_ns, heard)


def ever_wrong(plan: DrillPlan, heard: Sequence[Heard]) -> frozenset[str]:
    """Return all names that any line accused wrongly, even if it was cancelled later."""
    guilty = frozenset({host_name(plan.rank)}) if plan.kind.wanted is ExpectedVerdict.ACCUSE else frozenset[str]()
    return frozenset(name for item in heard for name in accused(item.line) - guilty)


def _first_false_accusation(plan: DrillPlan, onset_ns: int, heard: Sequence[Heard]) -> Answer | None:
    """Return the answer for the first false accusation, None: there is none.

    False is an accusation of another host than the one with the fault, or of that host before the onset.
    """
    guilty = frozenset({host_name(plan.rank)}) if plan.kind.wanted is ExpectedVerdict.ACCUSE else frozenset[str]()
    for item in heard:
        others = accused(item.line) - guilty
        if others:
            return Answer(False, f"accuses {', '.join(sorted(others))}: {describe(item.line)}", verdict=item.line)
        if accused(item.line) and item.at_ns < onset_ns:
            return Answer(False, f"before anything happened: {describe(item.line)}", verdict=item.line)
    return None


def _judge_wanted(plan: DrillPlan, onset_ns: int, heard: Sequence[Heard]) -> Answer:
    """Judge a drill that expects a verdict.

    One must have come after the onset, and its last line must name the right fault and cause.
    """
    wants_suspect = plan.kind.wanted is ExpectedVerdict.ACCUSE
    after = [item for item in heard if item.at_ns >= onset_ns and is_live(item.line)]
    hits = [item for item in after if bool(accused(item.line)) is wants_suspect]
    if not hits:
        return Answer(False, "no verdict" if not after else f"not what happened: {describe(after[-1].line)}")
    first = hits[0]
    last = [item for item in heard if item.line["id"] == first.line["id"]][-1].line
    seconds = (first.at_ns - onset_ns) / 1e9
    problem = _word_problem(plan, last)
    if problem:
        return Answer(False, problem, seconds, last)
    second = [item.line for item in hits if item.line["id"] != first.line["id"]]
    if second:
        return Answer(False, f"one fault, two incidents: {describe(second[0])}", seconds, last)
    return Answer(True, describe(last), seconds, last)


def _word_problem(plan: DrillPlan, line: VerdictLine) -> str:
    """Return what is wrong with a verdict's fault or cause, "": both are right."""
    if not is_live(line):
        return f"taken back: {describe(line)}"
    if line["fault"] not in plan.kind.faults:
        return f"wrong fault (right: {', '.join(sorted(plan.kind.faults))}): {describe(line)}"
    if line["cause"] not in plan.kind.causes:
        return f"wrong cause (right: {', '.join(sorted(plan.kind.causes))}): {describe(line)}"
    return ""


def describe(line: VerdictLine) -> str:
    """Return a short description of a verdict."""
    names = ", ".join(str(suspect["name"]) for suspect in line["suspects"]) or "nobody"
    return f"{line['fault']}, {line['cause']}, {names} ({line['reason']}, {line['state']})"

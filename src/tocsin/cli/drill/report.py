"""Formats drill results: one line per drill, and a table by kind. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tocsin.cli.drill.judge import Answer, ever_wrong
from tocsin.cli.drill.plan import DrillPlan
from tocsin.cli.drill.result import DrillResult
from tocsin.schemas.printable import plain

POSING = (
    "Each rank poses as a host of its own (n0, n1, ...) with its own agent; its host metrics are those of "
    "its rank's process tree."
)


def result_line(result: DrillResult) -> str:
    """Return one drill's result as one line."""
    return answer_line(result.plan, result.answer)


def answer_line(plan: DrillPlan, answer: Answer) -> str:
    """Return whether an engine's verdict is right as one line."""
    seconds = "" if answer.seconds is None else f" after {answer.seconds:.1f} s"
    mark = "right" if answer.right else "WRONG"
    return f"{mark}  {plan.kind.name} (seed {plan.seed}): {plan.sentence()}; verdict{seconds}: {plain(answer.why)}"


def summary_line(results: Sequence[DrillResult]) -> str:
    """Return the summary of all drills as one line."""
    right = sum(result.answer.right for result in results)
    seconds = _seconds(results)
    median = f", median {statistics.median(seconds):.1f} s, slowest {max(seconds):.1f} s" if seconds else ""
    wrong = sum(len(ever_wrong(result.plan, result.heard)) for result in results)
    return f"{right} of {len(results)} right{median}; ever named wrongly: {wrong}"


def markdown(results: Sequence[DrillResult]) -> str:
    """Return the report as Markdown: a table by kind, then every wrong answer, then the load."""
    lines = ["# Drills", "", POSING, "", f"{summary_line(results)}.", ""]
    lines += ["| kind | right | median s | slowest s |", "|---|---|---|---|"]
    for kind in dict.fromkeys(result.plan.kind.name for result in results):
        lines.append(_row(kind, [result for result in results if result.plan.kind.name == kind]))
    wrong = [result for result in results if not result.answer.right]
    lines += ["", "## Wrong answers", ""]
    lines += [f"- {result_line(result)} (job `{result.job_id}`)" for result in wrong] or ["None."]
    lines += ["", "## Load", "", _load_line(results)]
    return "\n".join(lines) + "\n"


def _row(kind: str, results: Sequence[DrillResult]) -> str:
    """Return a kind's row of the table."""
    right = sum(result.answer.right for result in results)
    seconds = _seconds(results)
    median = f"{statistics.median(seconds):.1f}" if seconds else "-"
    slowest = f"{max(seconds):.1f}" if seconds else "-"
    return f"| {kind} | {right} of {len(results)} | {median} | {slowest} |"


def _seconds(results: Sequence[DrillResult]) -> list[float]:
    """Return the times from onset to verdict of the right answers; how fast a wrong verdict came does not count."""
    return [r.answer.seconds for r in results if r.answer.right and r.answer.seconds is not None]


def _load_line(results: Sequence[DrillResult]) -> str:
    """Return a line with the step time and the CPU cores used (medians)."""
    step = statistics.median(result.step_seconds for result in results)
    cores = statistics.median(result.cpu_cores for result in results)
    load = f"ranks, agents and engine together used {cores:.2f} cores"
    return f"Healthy step {step * 1000:.0f} ms; {load} (medians)."

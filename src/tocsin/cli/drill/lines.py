"""Shows the events of a drill as plain lines: for logs, pipes and CI."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from tocsin.cli.drill.board import Board
from tocsin.cli.drill.judge import Heard, VerdictLine, describe
from tocsin.cli.drill.plan import DrillPlan
from tocsin.schemas.printable import plain

Rates = Mapping[int, Mapping[str, Any]]
"""Rank -> the engine's state of it, with its step rate."""


class ShownJob(Protocol):
    """A running job, as an observer sees it."""

    @property
    def plan(self) -> DrillPlan:
        """The drill's plan."""
        ...

    @property
    def job_id(self) -> str:
        """Name of the job."""
        ...

    @property
    def board(self) -> Board:
        """The page that its ranks share."""
        ...


class PlainLines:
    """Observer of a drill that prints each event with the seconds since the start."""

    def __init__(self, out: TextIO | None = None) -> None:
        """Store the start time.

        Args:
            out: where the lines go, None: to stdout.
        """
        self._began = time.monotonic()
        self._out = out

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._began:7.1f} s  {plain(text)}", file=self._out, flush=True)

    def started(self, job: ShownJob) -> None:
        """Print that the ranks train."""
        self.say(f"job {job.job_id}: {job.plan.rank_count} ranks train")

    def struck(self, job: ShownJob, onset_ns: int) -> None:
        """Print that the fault was injected."""
        self.say(strike_text(job, onset_ns))

    def heard(self, item: Heard) -> None:
        """Print a verdict that arrived."""
        self.say(f"job {item.line['job_id']}: {item.summary or describe(item.line)}")

    def tick(self, job: ShownJob) -> None:
        """Do nothing: plain lines are not redrawn."""


def strike_text(job: ShownJob, onset_ns: int) -> str:
    """Return a text that says which fault was injected, and when."""
    at = time.strftime("%H:%M:%S UTC", time.gmtime(onset_ns / 1e9))
    return f"job {job.job_id}: {job.plan.sentence()} ({at}, step {job.board.step(job.plan.rank)})"


def verdict_texts(item: Heard, *, acts: bool = False) -> list[str]:
    """Return the lines that show a verdict: suspects, evidence and proposed action; an update takes one line."""
    line = item.line
    if line["update"] > 0:
        return [f"update: {item.summary or describe(line)} [{line['state']}; proposed: {line['action']}]"]
    texts = [f"VERDICT: {item.summary or describe(line)}"]
    texts += [f"    because: {evidence_text(evidence)}" for evidence in line["evidence"]]
    left = "" if acts else "; nothing is executed"
    texts.append(f"    proposed: {line['action']} (reason: {line['reason']}{left})")
    return texts


def evidence_text(evidence: VerdictLine) -> str:
    """Return one item of evidence as one line."""
    text = str(evidence.get("text", ""))
    return text or f"{evidence['detector']}: {evidence['metric']}, score {evidence['score']:.1f}"


def rates_text(rates: Rates) -> str:
    """Return the step rate of each rank as one line."""
    texts = [f"{rank}: {rate_of(facts)}" for rank, facts in sorted(rates.items())]
    return "steps/s by rank  " + "  ".join(texts)


def rate_of(facts: Mapping[str, Any]) -> str:
    """Return a rank's steps per second as text, "-" if the engine does not know it."""
    rate = facts.get("steps_per_second")
    return "-" if rate is None else f"{float(rate):.1f}"

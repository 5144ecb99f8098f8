"""What happens in a drill, a line at a time: for logs, pipes and CI."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tocsin.cli.drill.judge import Heard, VerdictLine, describe
from tocsin.cli.drill.launcher import DrillJob
from tocsin.schemas.printable import plain

Rates = Mapping[int, Mapping[str, Any]]
"""Rank -> what the engine knows of it."""


class PlainLines:
    """Prints each event with the seconds since the start."""

    def __init__(self) -> None:
        """Note the time."""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._began:7.1f} s  {plain(text)}", flush=True)

    def started(self, job: DrillJob) -> None:
        """The ranks train."""
        self.say(f"job {job.job_id}: {job.plan.rank_count} ranks train")

    def struck(self, job: DrillJob, onset_ns: int) -> None:
        """The fault struck."""
        self.say(strike_text(job, onset_ns))

    def heard(self, item: Heard) -> None:
        """A verdict line came."""
        self.say(f"job {item.line['job_id']}: {item.summary or describe(item.line)}")

    def tick(self, job: DrillJob) -> None:
        """Nothing to draw."""


def strike_text(job: DrillJob, onset_ns: int) -> str:
    """When the fault struck, and what it was."""
    at = time.strftime("%H:%M:%S UTC", time.gmtime(onset_ns / 1e9))
    return f"job {job.job_id}: {job.plan.sentence()} ({at}, step {job.board.step(job.plan.rank)})"


def verdict_texts(item: Heard) -> list[str]:
    """A verdict in full: who, why with the evidence, what to do. An update in one line."""
    line = item.line
    if line["update"] > 0:
        return [f"update: {item.summary or describe(line)} [{line['state']}; proposed: {line['action']}]"]
    texts = [f"VERDICT: {item.summary or describe(line)}"]
    texts += [f"    because: {evidence_text(evidence)}" for evidence in line["evidence"]]
    texts.append(f"    proposed: {line['action']} (reason: {line['reason']}; nothing is executed)")
    return texts


def evidence_text(evidence: VerdictLine) -> str:
    """One reason in one line."""
    text = str(evidence.get("text", ""))
    return text or f"{evidence['detector']}: {evidence['metric']}, score {evidence['score']:.1f}"


def rates_text(rates: Rates) -> str:
    """The step rate of each rank in one line."""
    told = [f"{rank}: {rate_of(facts)}" for rank, facts in sorted(rates.items())]
    return "steps/s by rank  " + "  ".join(told)


def rate_of(facts: Mapping[str, Any]) -> str:
    """A rank's steps per second, ``-`` where the engine does not know."""
    rate = facts.get("steps_per_second")
    return "-" if rate is None else f"{float(rate):.1f}"

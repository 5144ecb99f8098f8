"""A check before a return is for a machine that actions of ours keep out, and that nobody uses or keeps out besides."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.actions.book import ActionBook
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.action_events import CordonOwner
from tocsin.schemas.verdicts import ActionKind

RETURN_RULE: Final = "return_check"
"""Rule and class of evidence of checks before a return."""


class ReturnCheckGuard:
    """Expires a check before a return whose machine is back, in use, or kept out by somebody else."""

    name = "return_checks"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if case.action.rule != RETURN_RULE:
            return None
        for host in case.tracked.hosts:
            detail = why_unchecked(case.book, case.facts, case.cluster, host)
            if detail:
                return Ruling(GuardOutcome.EXPIRE, ActionReason.NOT_TO_CHECK, f"{host}: {detail}")
        return None


def why_unchecked(book: ActionBook, facts: FactBook, cluster: str, host: str) -> str:
    """Return what is against loading a machine before it returns, "" for nothing.

    What took the job's work off a machine frees it of that attempt; a drain does not.
    """
    keeping = book.standing(cluster, host)
    if not keeping:
        return "no action keeps it out"
    if facts.cordon_owner(cluster, host) is CordonOwner.OTHER:
        return "somebody else keeps it out"
    ended = {one.action.target.job for one in keeping if one.kind is not ActionKind.DRAIN}
    using = [job for job in facts.jobs_on(cluster, host) if job not in ended]
    if not using:
        drained = {one.action.target.job for one in keeping} - ended
        using = [job for job in drained if facts.has_unknown_hosts(job)]
    return f"job {using[0].job_id} uses it" if using else ""

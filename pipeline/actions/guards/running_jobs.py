"""A check under load slows the job that works on its machine, and may fail for it: beside a job people decide on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID, JobKey
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState

_LIVE: Final = frozenset({VerdictState.OPEN, VerdictState.CONFIRMED})
_MOST_JOBS: Final = 10_000
_MOST_FAILURES: Final = 64


class RunningJobGuard:
    """Asks a person before a check while a job that has not failed works on one of its machines.

    A job works on the machines that it is known to have; of a job that is not known, on those of its verdict. It has
    failed while a verdict that stands says so (``fail_stop``): its checks are those of its stop. Checks before a return
    have a guard of their own, which lets them expire.
    """

    name = "running_jobs"

    def __init__(self) -> None:
        """Start without failures."""
        self._failed: dict[tuple[str, str], dict[str, int]] = {}
        """(cluster, job) -> verdicts that stand, each with the attempt that failed by it."""

    def take_verdict(self, verdict: Verdict) -> None:
        """Note whether an attempt of a job has failed by an update of a verdict."""
        key = verdict.job.cluster, verdict.job.job_id
        failures = self._failed.pop(key, {})
        failures.pop(verdict.verdict_id, None)
        if verdict.state in _LIVE and verdict.fault is FaultKind.FAIL_STOP:
            failures[verdict.verdict_id] = verdict.job.attempt
            if len(failures) > _MOST_FAILURES:
                del failures[next(iter(failures))]
        if failures:
            self._failed[key] = failures
            if len(self._failed) > _MOST_JOBS:
                del self._failed[next(iter(self._failed))]

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        action = case.action
        if case.tracked.approved_ns or action.kind is not ActionKind.PROBE or action.rule == RETURN_RULE:
            return None
        for host, job in _working(case):
            if not self._has_failed(job):
                detail = f"{host}: job {job.job_id} works on it" if host else f"job {job.job_id} works on its machines"
                return Ruling(GuardOutcome.ASK, ActionReason.JOB_RUNS, detail)
        return None

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [[*key, failures] for key, failures in self._failed.items()]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._failed = {(cluster, job_id): dict(failures) for cluster, job_id, failures in state}

    def _has_failed(self, job: JobKey) -> bool:
        """Return whether an attempt has failed; a later one that has says that this one is over."""
        failures = self._failed.get((job.cluster, job.job_id), {})
        return any(attempt >= job.attempt for attempt in failures.values())


def _working(case: ActionCase) -> Iterator[tuple[str, JobKey]]:
    """Yield the machines of a check, each with a job that works on it; "" for those of a job that are not known."""
    own, facts = case.action.target.job, case.facts
    is_job = own.job_id not in {IDLE_JOB_ID, FLEET_JOB_ID}
    is_unknown = is_job and (facts.job(own.cluster, own.job_id) is None or facts.has_unknown_hosts(own))
    for host in case.tracked.hosts:
        yield from ((host, job) for job in facts.jobs_on(case.cluster, host))
    if is_unknown:
        yield next(iter(case.tracked.hosts), ""), own

"""What the controller of actions is told of a host's checks under load."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.action_events import CheckResult
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer

CHECK: Final = "preflight"
"""Name of the check in what the controller is told."""
_LOAD: Final = frozenset({CheckName.COMPUTATION, CheckName.MEMORY_BANDWIDTH})
"""Checks without which a host was not under load."""
_DETAIL_CHARACTERS: Final = 500


def check_result_of(answer: HostAnswer, cluster: str, verdict_id: str, now_ns: int) -> CheckResult:
    """Return a host's answer as the controller is told it.

    A host on which the computation or the memory was left out was not under load: that it passed the other checks
    proves nothing to the controller.

    Args:
        answer: what the host answered.
        cluster: its cluster.
        verdict_id: verdict for which it was checked, "" for none.
        now_ns: when the checks ended.
    """
    ran = {check.name for check in answer.checks if check.outcome is not CheckOutcome.SKIPPED}
    return CheckResult(
        cluster=cluster,
        host=answer.host,
        boot_id=answer.boot_id,
        check=CHECK,
        is_passed=not answer.is_failed,
        is_under_load=answer.is_failed or ran >= _LOAD,
        ts_ns=now_ns,
        verdict_id=verdict_id,
        detail=failures_of(answer)[:_DETAIL_CHARACTERS],
        gpu_count=answer.gpu_count,
        known_gpu_count=answer.known_gpu_count,
    )


def failures_of(answer: HostAnswer) -> str:
    """Return the failed checks of a host in one line, "" for none."""
    failed = [check for check in answer.checks if check.outcome is CheckOutcome.FAILED]
    return "; ".join(f"{one.name}: {one.reason} {one.detail}".rstrip() for one in failed)


def is_silent(answer: HostAnswer) -> bool:
    """Return whether a host gave no answer: that says nothing about its parts, and is no failed check."""
    return any(check.reason is CheckReason.NO_ANSWER for check in answer.checks)

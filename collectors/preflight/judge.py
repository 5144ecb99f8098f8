"""Compares hosts with each other: figures beside the median, digests with the majority. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tocsin.schemas import preflight_limits as limits
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult

COMPARED = frozenset(
    {
        CheckName.COMPUTATION,
        CheckName.TENSOR_COMPUTATION,
        CheckName.MEMORY_BANDWIDTH,
        CheckName.GPU_MEMORY_BANDWIDTH,
        CheckName.DISK_WRITE_BANDWIDTH,
        CheckName.DISK_READ_BANDWIDTH,
        CheckName.PAIR_ALL_REDUCE,
        CheckName.CPU_CLOCKS,
        CheckName.GPU_CLOCKS,
    }
)
"""Checks whose figure is a host's own. That of a group's all-reduce is the whole group's."""


def judged(answers: Sequence[HostAnswer], earlier: Iterable[HostAnswer] = ()) -> list[HostAnswer]:
    """Return the answers with the peers' medians, and with those failed that are slower or other than their peers.

    Only results of one kind are compared: same check, unit, and processor, device and software. A host's peers are the
    other hosts of the run and the earlier answers of other hosts; with fewer than three the host's own earlier
    answers count, too (its own past comes second).

    Args:
        answers: answers of this run.
        earlier: answers of earlier runs that passed as a whole are used; others are left out.
    """
    past = [answer for answer in earlier if not answer.is_failed]
    return [_judged_host(answer, answers, past) for answer in answers]


def _judged_host(answer: HostAnswer, answers: Sequence[HostAnswer], past: Sequence[HostAnswer]) -> HostAnswer:
    """Return one host's answer beside its peers."""
    others = [one for one in (*answers, *past) if one.host != answer.host]
    own_past = [one for one in past if one.host == answer.host]
    return replace(answer, checks=tuple(_judged_check(check, others, own_past) for check in answer.checks))


def _judged_check(
    check: PreflightResult, others: Sequence[HostAnswer], own_past: Sequence[HostAnswer]
) -> PreflightResult:
    """Return one result beside its peers'."""
    if check.name not in COMPARED or check.figure is None:
        return check
    peers = _alike(check, others)
    if len(peers) < limits.LEAST_PEERS_COUNT:
        peers += _alike(check, own_past)
    if len(peers) < limits.LEAST_PEERS_COUNT:
        return check
    median = statistics.median(peer.figure or 0.0 for peer in peers)
    check = replace(check, peers_median=median)
    if check.outcome is not CheckOutcome.PASSED:
        return check
    if check.digest:
        digest, count = Counter(peer.digest for peer in peers).most_common(1)[0]
        if digest != check.digest and 2 * count > len(peers):
            return replace(check, outcome=CheckOutcome.FAILED, reason=CheckReason.DIFFERS_FROM_PEERS)
    if (check.figure or 0.0) < limits.SLOWER_RATIO * median:
        return replace(check, outcome=CheckOutcome.FAILED, reason=CheckReason.SLOWER_THAN_PEERS)
    reason = CheckReason.AS_PEERS if check.reason is CheckReason.TOO_FEW_PEERS else check.reason
    return replace(check, reason=reason)


def _alike(check: PreflightResult, answers: Iterable[HostAnswer]) -> list[PreflightResult]:
    """Return the results of the same check and kind that have a figure."""
    return [
        one
        for answer in answers
        for one in answer.checks
        if one.name is check.name and one.unit == check.unit and one.kind == check.kind and one.figure is not None
    ]

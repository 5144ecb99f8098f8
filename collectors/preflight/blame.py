"""Says which hosts of a group are at fault where an exchange between them was wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult

_EXCHANGES = (CheckName.GROUP_ALL_REDUCE, CheckName.PAIR_ALL_REDUCE)


def attributed(answers: Sequence[HostAnswer]) -> list[HostAnswer]:
    """Return the answers with wrong exchanges charged to those at fault; for the others the exchange says nothing.

    A wrong sum of two hosts is the fault of one of them. The hosts are charged that explain all wrong pairs, the one in
    most pairs first; where two are in equally many, both are. A sum over all hosts that is wrong is charged to the
    same; where no pair was wrong, to everybody. An exchange that broke off is charged to the hosts without an answer.
    """
    gone = {answer.host for answer in answers for check in answer.checks if check.name is CheckName.ANSWER}
    at_fault = charged(_wrong_pairs(answers)) | gone
    if not at_fault:
        return list(answers)
    return [answer if answer.host in at_fault else _cleared(answer, at_fault) for answer in answers]


def charged(pairs: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the hosts that explain all wrong pairs.

    >>> sorted(charged([frozenset("ab"), frozenset("ac"), frozenset("de")]))
    ['a', 'd', 'e']
    """
    left = set(pairs)
    found: set[str] = set()
    while left:
        counts = Counter(host for pair in left for host in pair)
        most = max(counts.values())
        worst = {host for host, count in counts.items() if count == most}
        found |= worst
        left = {pair for pair in left if not pair & worst}
    return frozenset(found)


def _wrong_pairs(answers: Sequence[HostAnswer]) -> set[frozenset[str]]:
    """Return the pairs of hosts whose sum was wrong on one of them."""
    return {
        frozenset((answer.host, peer))
        for answer in answers
        for check in answer.checks
        for peer in check.against
        if peer != answer.host
    }


def _cleared(answer: HostAnswer, at_fault: frozenset[str]) -> HostAnswer:
    """Return the answer of a host that is not at fault, with its failed exchanges set aside."""
    names = ", ".join(sorted(at_fault))
    checks: list[PreflightResult] = []
    for check in answer.checks:
        if check.name in _EXCHANGES and check.outcome is CheckOutcome.FAILED:
            detail = f"failed because of {names}"
            check = replace(  # noqa: PLW2901  # the same result, charged elsewhere
                check, outcome=CheckOutcome.SKIPPED, reason=CheckReason.GROUP_INCOMPLETE, detail=detail
            )
        checks.append(check)
    return replace(answer, checks=tuple(checks))

"""The exchange between the hosts of a group: sums over all of them and over pairs, by one child process."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.collectors.preflight.bounded import ChildAnswer, module_command, number_of, run_all
from tocsin.schemas import preflight_limits as limits
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, PreflightResult, failed, skipped

GROUP, PAIR = CheckName.GROUP_ALL_REDUCE, CheckName.PAIR_ALL_REDUCE


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a group's hosts meet, and which of them this one is.

    Attributes:
        rank: place of this host in the group's file, from 0.
        world_size: number of hosts.
        address: name or address of the first host.
        port: TCP port there.
    """

    rank: int
    world_size: int
    address: str
    port: int


def exchange(place: Rendezvous, seconds: float, grace_seconds: float) -> list[PreflightResult]:
    """Meet the other hosts and sum with them; return the results of group and pairs.

    Args:
        place: where they meet.
        seconds: load, group and pairs together.
        grace_seconds: time in which the others must come, and again for start and end.
    """
    if place.world_size == 1:
        return [skipped(name, CheckReason.ONE_HOST) for name in (GROUP, PAIR)]
    command = module_command(
        "_exchange_work",
        "any",
        place.rank,
        place.world_size,
        place.address,
        place.port,
        seconds,
        limits.ALL_REDUCE_BYTES,
        grace_seconds,
    )
    return exchange_results(run_all([command], seconds + 2 * grace_seconds)[0])


def exchange_results(answer: ChildAnswer) -> list[PreflightResult]:
    """Return the results of the child's answer; peers are named by their rank, as text."""
    values = answer.values
    absent = values.get("absent")
    if answer.reason is not None:
        return [failed(name, answer.reason, answer.detail) for name in (GROUP, PAIR)]
    if "missing" in values:
        return [skipped(name, CheckReason.NO_TORCH) for name in (GROUP, PAIR)]
    if "unreachable" in values:
        return [failed(name, CheckReason.UNREACHABLE, str(values["unreachable"])) for name in (GROUP, PAIR)]
    if isinstance(absent, list):
        who = "did not come: " + ", ".join(f"rank {rank}" for rank in absent) if absent else "the first host left"
        return [skipped(name, CheckReason.GROUP_INCOMPLETE, who) for name in (GROUP, PAIR)]
    pairs = values.get("pairs")
    found = [pair for pair in pairs if isinstance(pair, dict)] if isinstance(pairs, list) else []
    return [_group_result(values), _pair_result(found, str(values.get("kind", "")))]


def _group_result(values: Mapping[str, object]) -> PreflightResult:
    """Return the result of the sum over all hosts."""
    is_wrong = bool(number_of(values, "wrong_count"))
    return PreflightResult(
        GROUP,
        CheckOutcome.FAILED if is_wrong else CheckOutcome.PASSED,
        CheckReason.WRONG_RESULT if is_wrong else CheckReason.EXACT,
        number_of(values, "bytes_per_second"),
        "bytes_per_second",
        kind=str(values.get("kind", "")),
    )


def _pair_result(pairs: list[dict[str, object]], kind: str) -> PreflightResult:
    """Return the result of the sums with one other host each; the figure is the median over those."""
    rates = {str(pair.get("peer")): number_of(pair, "bytes_per_second") for pair in pairs}
    against = tuple(str(pair.get("peer")) for pair in pairs if number_of(pair, "wrong_count"))
    slowest = min(rates, key=lambda peer: rates[peer], default="")
    return PreflightResult(
        PAIR,
        CheckOutcome.FAILED if against else CheckOutcome.PASSED,
        CheckReason.WRONG_RESULT if against else CheckReason.EXACT,
        statistics.median(rates.values()) if rates else None,
        "bytes_per_second" if rates else "",
        detail=f"{len(rates)} pairs, slowest with rank {slowest}" if rates else "",
        kind=kind,
        against=against,
    )

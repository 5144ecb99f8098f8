"""Decide when a rank moves from the host that holds it to another host that claims it.

A live rank never moves: ranks change hosts only when the whole job is restarted. A claim is granted only when the
holder no longer names the rank and most other hosts started new processes too. A whole step or a hook's hello shows
such a start. Otherwise a host could take over a dead rank, or a silent machine's ranks, and the blame with them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from tocsin.pipeline.job.rank_holders import (
    Claim,
    Holders,
    RankFilterConfig,
    same_host,
)
from tocsin.schemas import events
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    HostStatus,
    JobKey,
    JobRecord,
    RankPlace,
    StepBatch,
    Topology,
)

ENDS = (events.EXIT, events.BYE, events.PROCESS_GONE)
"""Names of the events that report the end of a rank's process."""


def settle(
    holders: Holders,
    records: Sequence[JobRecord],
    now_ns: int,
    config: RankFilterConfig,
    is_at_work: Callable[[int], bool] = lambda _rank: False,
) -> list[Topology]:
    """Update open claims from a slice's records, and move the ranks whose claims can now be granted.

    Args:
        holders: which host holds which rank; modified.
        records: the records of one slice.
        now_ns: end of the slice.
        config: settings.
        is_at_work: returns whether a rank made a step on the host that holds it.

    Returns:
        Topology records for the ranks that moved, as announced by their new hosts.
    """
    for rank in [rank for rank, ts_ns in holders.contested.items() if now_ns - ts_ns > config.contest_ns]:
        del holders.contested[rank]
    if holders.former:
        _return_ranks(holders, records)
    if not records:
        return []
    job = records[0].job
    moved = _decide_by_work(holders, records, is_at_work)
    if not holders.claims:
        holders.anew_ns.clear()
        return [_announced(job, place, now_ns) for place in moved]
    _update_claims(holders, records, config)
    carrying = sum(map(bool, holders.ranks_of.values()))
    begun_ns = sorted(ns for host, ns in holders.anew_ns.items() if holders.ranks_of.get(host))
    granted = [_announced(job, place, now_ns) for place in moved]
    for rank, claim in sorted(holders.claims.items()):
        if now_ns - claim.newest_ns > config.claim_ns:
            del holders.claims[rank]
        elif rank not in holders.contested and _is_silent(claim, now_ns, config):
            involved = {holders.host_of[rank], claim.place.host}
            others = carrying - sum(bool(holders.ranks_of.get(host)) for host in involved)
            anew = len(begun_ns) - bisect_left(begun_ns, claim.since_ns)
            anew -= sum(holders.anew_ns.get(host, 0) >= claim.since_ns for host in involved & holders.ranks_of.keys())
            if 2 * anew > others or not others:
                granted.append(_move(holders, rank, claim, job))
    return granted


def _decide_by_work(
    holders: Holders, records: Sequence[JobRecord], is_at_work: Callable[[int], bool]
) -> list[RankPlace]:
    """Move each claimed rank to the claiming host where only that host sends the rank's steps; return the new places.

    A host that only reserved or claimed a rank, and does not train it, cannot keep it.
    """
    doubted = holders.claims.keys() | holders.contested.keys()
    for rank in holders.worked_ns.keys() - doubted:
        del holders.worked_ns[rank]
    if not doubted:
        return []
    for record in records:
        if isinstance(record, StepBatch):
            for row in record.rows:
                if row.rank in doubted:
                    hosts = holders.worked_ns.setdefault(row.rank, {})
                    hosts[record.host] = max(row.ts_ns, hosts.get(record.host, 0))
    granted = []
    for rank in sorted(holders.worked_ns):
        hosts, claim = holders.worked_ns[rank], holders.claims.get(rank)
        holder_works = is_at_work(rank) or any(same_host(host, holders.host_of[rank]) for host in hosts)
        if holder_works and rank in holders.contested and not _claimer_works(hosts, claim):
            del holders.contested[rank]
        elif not holder_works and claim is not None and _claimer_works(hosts, claim):
            holders.contested.pop(rank, None)
            holders.place(claim.place, claim.since_ns)
            granted.append(claim.place)
    return granted


def _claimer_works(hosts: Mapping[str, int], claim: Claim | None) -> bool:
    """Return whether the claiming host is among the hosts that sent steps of the rank."""
    return claim is not None and any(same_host(host, claim.place.host) for host in hosts)


def _announced(job: JobKey, place: RankPlace, now_ns: int) -> Topology:
    """Return a topology record that places one rank, stamped just before the slice's end."""
    return Topology(job, place.host, now_ns - 1, (place,))


def _is_silent(claim: Claim, now_ns: int, config: RankFilterConfig) -> bool:
    """Return whether the holder has not named the rank for long enough to grant the claim."""
    is_mute = now_ns - claim.holder_ns >= config.silent_ns
    patience_ns = config.silent_ns if claim.has_ended or is_mute else config.forgotten_ns
    return now_ns - claim.heard_ns >= patience_ns


def _move(holders: Holders, rank: int, claim: Claim, job: JobKey) -> Topology:
    """Give a rank to the host that claims it, and return the topology record of its new place."""
    holders.former.pop(rank, None)
    if not claim.has_ended:
        holders.former[rank] = holders.host_of[rank]
    holders.place(claim.place, claim.since_ns)
    return Topology(job, claim.place.host, claim.since_ns, (claim.place,))


def _return_ranks(holders: Holders, records: Sequence[JobRecord]) -> None:
    """Return ranks that were moved because of silence to their former host, if it sends steps of them again."""
    for record in records:
        if not isinstance(record, StepBatch):
            continue
        for rank in {row.rank for row in record.rows} & holders.former.keys():
            if same_host(holders.former[rank], record.host):
                holders.give(rank, holders.former.pop(rank))


def _update_claims(holders: Holders, records: Sequence[JobRecord], config: RankFilterConfig) -> None:
    """Update each open claim by the holder's records, and drop claims on ranks that are alive at their holder."""
    by_holder: dict[str, list[Claim]] = {}
    for rank, claim in holders.claims.items():
        by_holder.setdefault(holders.host_of[rank], []).append(claim)
    for record in records:
        for claim in by_holder.get(record.host, ()):
            claim.holder_ns = max(claim.holder_ns, record.ts_ns)
            rank = claim.place.rank
            if isinstance(record, Event) and record.rank == rank and record.name in ENDS:
                claim.has_ended = True
            elif _shows_life(record, rank, holders.ended_ns.get(rank, 0)):
                claim.has_ended = False
                claim.heard_ns = max(claim.heard_ns, record.ts_ns)
        began_ns = _began_ns(record)
        if began_ns > holders.anew_ns.get(record.host, 0):
            holders.anew_ns[record.host] = began_ns
    for rank, claim in list(holders.claims.items()):
        if claim.heard_ns > claim.since_ns + config.alive_ns:
            del holders.claims[rank]  # it lives where it was: whoever claims it says so again


def _shows_life(record: JobRecord, rank: int, ended_ns: int) -> bool:
    """Return whether a holder's record shows that a rank is alive.

    After its end only a new step or a hello shows it.
    """
    if isinstance(record, StepBatch):
        return any(row.rank == rank and _begin_ns(row.ts_ns, row.duration_seconds) >= ended_ns for row in record.rows)
    if isinstance(record, Event):
        return record.rank == rank and (not ended_ns or record.name == events.HELLO)
    if ended_ns:
        return False
    if isinstance(record, Topology):
        return any(place.rank == rank for place in record.places)
    return isinstance(record, HostStatus) and rank in record.ranks_seen


def _began_ns(record: JobRecord) -> int:
    """Return when a process started on a record's host, as a step or a hello shows it; 0: the record shows no start."""
    if isinstance(record, Event) and record.name == events.HELLO:
        return record.ts_ns
    if isinstance(record, StepBatch):
        return max((_begin_ns(row.ts_ns, row.duration_seconds) for row in record.rows), default=0)
    return 0


def _begin_ns(ts_ns: int, duration_seconds: float) -> int:
    return ts_ns - int(duration_seconds * NS_PER_SECOND)

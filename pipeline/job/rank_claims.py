"""When a rank that one host holds becomes another one's, which says that it runs there.

No rank moves alive, and none goes on without the others: a rank changes its host only as its job is started again,
and that shows by others than the two: the holder speaks of the rank no more, and most other hosts began anew (a whole
step, or a hook that said hello). Until then the claim waits, so that the death of a rank, or a machine that falls
silent, lets nobody take the rank and the blame with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from tocsin.pipeline.job.rank_holders import (
    Claim,
    Holders,
    SpeakersConfig,
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
"""Events that say that a rank's process is over."""


def settle(
    holders: Holders,
    records: Sequence[JobRecord],
    now_ns: int,
    config: SpeakersConfig,
    is_at_work: Callable[[int], bool] = lambda _rank: False,
) -> list[Topology]:
    """Hear what speaks for and against open claims, and grant those whose time has come.

    Args:
        holders: who holds which rank; changed.
        records: those of one slice.
        now_ns: its end.
        config: settings.
        is_at_work: whether a rank made a step where it is placed.

    Returns:
        The places of ranks that moved, as their new hosts announced them.
    """
    for rank in [rank for rank, ts_ns in holders.contested.items() if now_ns - ts_ns > config.contest_ns]:
        del holders.contested[rank]
    if holders.former:
        _take_back(holders, records)
    if not records:
        return []
    job = records[0].job
    moved = _decide_by_work(holders, records, is_at_work)
    if not holders.claims:
        holders.anew_ns.clear()
        return [_announced(job, place, now_ns) for place in moved]
    _hear(holders, records, config)
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
    """Of two hosts that claim a rank the one that sends its steps has it, where the other never sent one.

    A host that reserved a rank, or laid claim to it as the job began, and does not train it, keeps nobody from it.
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
    return claim is not None and any(same_host(host, claim.place.host) for host in hosts)


def _announced(job: JobKey, place: RankPlace, now_ns: int) -> Topology:
    return Topology(job, place.host, now_ns - 1, (place,))


def _is_silent(claim: Claim, now_ns: int, config: SpeakersConfig) -> bool:
    """Whether the holder has said nothing of the rank for long enough."""
    is_mute = now_ns - claim.holder_ns >= config.silent_ns
    patience_ns = config.silent_ns if claim.has_ended or is_mute else config.forgotten_ns
    return now_ns - claim.heard_ns >= patience_ns


def _move(holders: Holders, rank: int, claim: Claim, job: JobKey) -> Topology:
    holders.former.pop(rank, None)
    if not claim.has_ended:
        holders.former[rank] = holders.host_of[rank]
    holders.place(claim.place, claim.since_ns)
    return Topology(job, claim.place.host, claim.since_ns, (claim.place,))


def _take_back(holders: Holders, records: Sequence[JobRecord]) -> None:
    """Ranks whose silent host makes steps with them again were not gone."""
    for record in records:
        if not isinstance(record, StepBatch):
            continue
        for rank in {row.rank for row in record.rows} & holders.former.keys():
            if same_host(holders.former[rank], record.host):
                holders.give(rank, holders.former.pop(rank))


def _hear(holders: Holders, records: Sequence[JobRecord], config: SpeakersConfig) -> None:
    by_holder: dict[str, list[Claim]] = {}
    for rank, claim in holders.claims.items():
        by_holder.setdefault(holders.host_of[rank], []).append(claim)
    for record in records:
        for claim in by_holder.get(record.host, ()):
            claim.holder_ns = max(claim.holder_ns, record.ts_ns)
            rank = claim.place.rank
            if isinstance(record, Event) and record.rank == rank and record.name in ENDS:
                claim.has_ended = True
            elif _lives(record, rank, holders.ended_ns.get(rank, 0)):
                claim.has_ended = False
                claim.heard_ns = max(claim.heard_ns, record.ts_ns)
        began_ns = _began_ns(record)
        if began_ns > holders.anew_ns.get(record.host, 0):
            holders.anew_ns[record.host] = began_ns
    for rank, claim in list(holders.claims.items()):
        if claim.heard_ns > claim.since_ns + config.alive_ns:
            del holders.claims[rank]  # it lives where it was: whoever claims it says so again


def _lives(record: JobRecord, rank: int, ended_ns: int) -> bool:
    """Whether a holder's record says that its rank lives; after its end only a whole step or a hello does."""
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
    """When a process of this host began anew, as far as a record shows it; 0: it does not."""
    if isinstance(record, Event) and record.name == events.HELLO:
        return record.ts_ns
    if isinstance(record, StepBatch):
        return max((_begin_ns(row.ts_ns, row.duration_seconds) for row in record.rows), default=0)
    return 0


def _begin_ns(ts_ns: int, duration_seconds: float) -> int:
    return ts_ns - int(duration_seconds * NS_PER_SECOND)

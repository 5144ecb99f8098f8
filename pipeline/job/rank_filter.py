"""Filter a job's records.

Only the host that holds a rank may send records of it (``docs/adr/0019-who-speaks-of-a-rank.md``). ``RankFilter`` runs
before all other operators of a job, so refused records reach none of them. Hosts are identified by the name in their
records; whether a sender may use that name is checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.job.rank_claims import ENDS, settle
from tocsin.pipeline.job.rank_holders import Holders, RankFilterConfig, same_host
from tocsin.schemas import events
from tocsin.schemas.job_key import is_lone, lone_host
from tocsin.schemas.kinds import EventSource
from tocsin.schemas.reasons import SpeakerRefusal
from tocsin.schemas.records import (
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    Groups,
    HostStatus,
    JobRecord,
    ProbeAnswer,
    RankPlace,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.wire.codec import encode

_STEP_RANK = itemgetter(StepRecord._fields.index("rank"))
_COLLECTIVE_RANK = itemgetter(CollectiveRecord._fields.index("rank"))
_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """Records or batch rows of one host and rank that were refused in one slice, for one reason.

    Attributes:
        host: the host that sent them.
        kind: class name of the records.
        rank: the rank they are about, -1 if none in particular.
        reason: why they were refused.
        message: the reason as one sentence.
        ts_ns: time of the first refused record.
        count: number of refused records or rows.
        data: bytes of the first refused record; b"" where only rows of a batch were refused.
    """

    host: str
    kind: str
    rank: int
    reason: SpeakerRefusal
    message: str
    ts_ns: int
    count: int = 1
    data: bytes = b""

    @property
    def sentence(self) -> str:
        """Text of the dead letter: record kind, message, and the count if above one."""
        return f"{self.kind}: {self.message}" + (f" ({self.count} times in this second)" if self.count > 1 else "")


@dataclass(slots=True)
class _RefusalLog:
    """Collects the dead letters of one slice.

    One per host, record kind, rank and reason, and at most ``most_count``.
    """

    most_count: int
    found: dict[tuple[str, str, int, SpeakerRefusal], RefusedRecords] = field(default_factory=dict)
    dropped_count: int = 0

    def add(self, record: JobRecord, rank: int, reason: SpeakerRefusal, message: str, *, whole: bool = False) -> None:
        """Count one refusal; ``whole`` keeps the record's bytes in the dead letter."""
        kind = type(record).__name__
        key = (record.host, kind, rank, reason)
        known = self.found.get(key)
        if known is not None:
            self.found[key] = replace(known, count=known.count + 1)
        elif len(self.found) < self.most_count:
            data = encode(record) if whole else b""
            self.found[key] = RefusedRecords(record.host, kind, rank, reason, message, record.ts_ns, data=data)
        else:
            self.dropped_count += 1


class RankFilter:
    """Record filter for one attempt of one job."""

    def __init__(self, config: RankFilterConfig, is_at_work: Callable[[int], bool] = lambda _rank: False) -> None:
        """Start without any known host.

        Args:
            config: settings.
            is_at_work: returns whether a rank made a step on the host that holds it; a later claim on it is then not
                contested.
        """
        self._config = config
        self._is_at_work = is_at_work
        self._holders = Holders()
        self._refusals = _RefusalLog(config.max_refusal_count)
        self._part: tuple[int, bytes] | None = None
        """Cached snapshot part of the holders, with the ``change_count`` it was made at; None: not made yet."""
        self._kept: dict[type, Callable[[Any], Sequence[JobRecord]]] = {
            Topology: self._topology,
            Groups: self._groups,
            Event: self._event,
            HostStatus: self._status,
            CollectiveBatch: self._collectives,
            StepBatch: self._steps,
            ProbeAnswer: self._answer,
        }
        self.refused_by_host: dict[str, int] = {}
        """Host -> number of refused records and rows since this process started; not part of a snapshot."""

    @property
    def contested(self) -> frozenset[int]:
        """Ranks that two hosts claimed at about the same time, before either proved that it runs them.

        They accuse nobody.
        """
        return frozenset(self._holders.contested)

    def host_of(self, rank: int) -> str:
        """Return the host that holds a rank, "" if none does yet."""
        return self._holders.host_of.get(rank, "")

    def admit(
        self, records: Sequence[JobRecord], now_ns: int
    ) -> tuple[Sequence[JobRecord], tuple[RefusedRecords, ...]]:
        """Split the records of a slice into accepted ones and refusals.

        Args:
            records: the records of one slice, in canonical order.
            now_ns: end of the slice.

        Returns:
            The accepted records, with refused rows removed from batches, and the refusals. The same ``records`` object
            is returned when nothing was refused.
        """
        self._refusals = _RefusalLog(self._config.max_refusal_count)
        moved = settle(self._holders, records, now_ns, self._config, self._is_at_work)
        found: list[JobRecord] | None = list(moved) if moved else None
        for index, record in enumerate(records):
            keep = self._kept.get(type(record))
            kept: Sequence[JobRecord] = (record,) if keep is None else keep(record)
            if found is None:
                if len(kept) == 1 and kept[0] is record:
                    continue
                found = list(records[:index])
            found += kept
        if self._holders.is_size_due and not self._config.is_played:
            self._holders.update_world_size()
        for refusal in self._refusals.found.values():
            self.refused_by_host[refusal.host] = self.refused_by_host.get(refusal.host, 0) + refusal.count
        return records if found is None else tuple(found), tuple(self._refusals.found.values())

    # -- who says what ---------------------------------------------------------------

    def _why_not(self, rank: int, host: str) -> tuple[SpeakerRefusal, str] | None:
        """Return the reason and message why a host may not send records of a rank; None if it may."""
        holders, is_new = self._holders, rank not in self._holders.host_of
        if not holders.may_speak(rank, host):
            if holders.is_beyond(rank) and is_new:
                text = f"rank {rank}: most hosts announce a job of {holders.world_size} ranks"
                return SpeakerRefusal.RANK_BEYOND_WORLD, text
            held = holders.host_of.get(rank) or "nobody's host"
            return SpeakerRefusal.RANK_OF_OTHER_HOST, f"rank {rank} is placed on {held}, {host} speaks of it"
        if rank in holders.contested:
            return (
                SpeakerRefusal.RANK_CONTESTED,
                f"rank {rank}: two hosts said at about the same time that it runs there",
            )
        return None

    def _holds_all(self, host: str, ranks: set[int]) -> bool:
        """Return whether a host holds all of these ranks and none of them is contested (the usual case)."""
        return ranks <= self._holders.ranks_of.get(host, _NOBODY) and not (
            self._holders.contested and not ranks.isdisjoint(self._holders.contested)
        )

    def _refused_of(self, record: JobRecord, ranks: set[int]) -> set[int]:
        """Return the ranks of a batch that its host may not report, and add a dead letter for each."""
        found = set()
        for rank in sorted(ranks):
            refusal = self._why_not(rank, record.host)
            if refusal is not None:
                self._refusals.add(record, rank, *refusal)
                found.add(rank)
        return found

    def _steps(self, batch: StepBatch) -> Sequence[JobRecord]:
        """Return the batch without the rows of ranks that its host may not report."""
        ranks = set(map(_STEP_RANK, batch.rows))
        if self._holds_all(batch.host, ranks):
            return (batch,)
        refused = self._refused_of(batch, ranks)
        rows = tuple(row for row in batch.rows if row.rank not in refused)
        return (replace(batch, rows=rows),) if refused else (batch,)

    def _collectives(self, batch: CollectiveBatch) -> Sequence[JobRecord]:
        """Return the batch without the rows of ranks that its host may not report."""
        ranks = set(map(_COLLECTIVE_RANK, batch.rows))
        if self._holds_all(batch.host, ranks):
            return (batch,)
        refused = self._refused_of(batch, ranks)
        rows = tuple(row for row in batch.rows if row.rank not in refused)
        return (replace(batch, rows=rows),) if refused else (batch,)

    def _status(self, status: HostStatus) -> Sequence[JobRecord]:
        """Return the host status without the ranks that its host may not report."""
        if self._holds_all(status.host, set(status.ranks_seen)):
            return (status,)
        refused = self._refused_of(status, set(status.ranks_seen))
        seen = tuple(rank for rank in status.ranks_seen if rank not in refused)
        return (replace(status, ranks_seen=seen),) if refused else (status,)

    def _answer(self, answer: ProbeAnswer) -> Sequence[JobRecord]:
        """Return the probe answer if its host may report its rank; else an empty tuple."""
        return self._checked_record(answer, answer.rank)

    def _checked_record(self, record: Event | ProbeAnswer, rank: int) -> Sequence[JobRecord]:
        """Return the record if its host may report the rank; else add a dead letter and return an empty tuple."""
        refusal = self._why_not(rank, record.host) if rank >= 0 else None
        if refusal is None:
            return (record,)
        self._refusals.add(record, rank, *refusal, whole=True)
        return ()

    def _event(self, event: Event) -> Sequence[JobRecord]:
        """Return the event if its host may send it, and remember the end of a rank that it reports."""
        if event.source is EventSource.SCHEDULER and self._is_scheduler(event.host):
            return (event,)
        if event.rank < 0:
            return self._phase_of_host(event) if event.name == events.PHASE else (event,)
        kept = self._checked_record(event, event.rank)
        if kept and event.name in ENDS:
            self._holders.ended_ns[event.rank] = event.ts_ns
        return kept

    def _is_scheduler(self, host: str) -> bool:
        """Return whether a host may send scheduler events."""
        return self._config.is_played or host in self._config.schedulers

    def _phase_of_host(self, event: Event) -> Sequence[JobRecord]:
        """Turn a phase event of rank -1 into one event for each rank of its host.

        Replayed phases stay for the whole job.
        """
        if self._config.is_played:
            return (event,)
        ranks = self._ranks_of(event.host) - self._holders.contested.keys()
        if not ranks:
            text = f"{event.host} holds no rank of the job, and announces a phase of all"
            self._refusals.add(event, -1, SpeakerRefusal.PHASE_OF_NOBODY, text, whole=True)
        return tuple(replace(event, rank=rank) for rank in sorted(ranks))

    def _ranks_of(self, host: str) -> set[int] | frozenset[int]:
        """Return the ranks of a host, found by its short or its full name."""
        found = self._holders.ranks_of.get(host)
        if found:
            return found
        names = (name for name in self._holders.ranks_of if same_host(name, host))
        return frozenset(rank for name in names for rank in self._holders.ranks_of[name])

    # -- who runs where, and in which groups ---------------------------------------------

    def _topology(self, topology: Topology) -> Sequence[JobRecord]:
        """Return the topology record without the places that are refused."""
        kept = tuple(place for place in topology.places if self._is_placed(topology, place))
        return (topology,) if len(kept) == len(topology.places) else (replace(topology, places=kept),)

    def _is_placed(self, topology: Topology, place: RankPlace) -> bool:
        """Return whether an announced place of a rank is accepted; otherwise add a dead letter or record a claim."""
        holders, rank, host = self._holders, place.rank, topology.host
        if not same_host(place.host, host):
            text = f"rank {rank}: {host} announces that it runs on {place.host}"
            self._refusals.add(topology, rank, SpeakerRefusal.PLACE_OF_OTHER_HOST, text)
            return False
        held = holders.host_of.get(rank)
        holders.set_size(host, place.world_size)
        if held == place.host and rank in holders.placed_ns:
            return rank not in holders.contested
        if held is None and holders.is_beyond(rank):
            text = f"rank {rank}: most hosts announce a job of {holders.world_size} ranks"
            self._refusals.add(topology, rank, SpeakerRefusal.RANK_BEYOND_WORLD, text)
            return False
        is_free = held is None or rank not in holders.placed_ns or same_host(held, place.host)
        if is_free or self._config.is_played or self._comes_back(rank, place.host):
            holders.place(place, topology.ts_ns)
            return True
        self._claimed(topology, place)
        return False

    def _comes_back(self, rank: int, host: str) -> bool:
        """Return whether this host lost the rank by silence, so that it may have it back.

        The loss is then forgotten.
        """
        former = self._holders.former.get(rank)
        if former is None or not same_host(former, host):
            return False
        del self._holders.former[rank]
        return True

    def _claimed(self, topology: Topology, place: RankPlace) -> None:
        """Record a host's claim on a rank that another host holds, with a dead letter.

        Mark the rank contested if it came at once.
        """
        holders, rank, ts_ns = self._holders, place.rank, topology.ts_ns
        held = holders.host_of[rank]
        holders.claim(place, ts_ns)
        is_at_work = self._is_at_work(rank) or held in holders.worked_ns.get(rank, ())
        is_race = ts_ns - holders.placed_ns[rank] < self._config.announce_ns and not is_at_work
        if is_race or rank in holders.contested:
            holders.contested[rank] = ts_ns
        text = f"rank {rank}: {held} holds it, {topology.host} says that it runs there"
        self._refusals.add(topology, rank, SpeakerRefusal.RANK_HELD, text)

    def _groups(self, record: Groups) -> Sequence[JobRecord]:
        """Return the groups record without the groups of which no member may run on its host."""
        own = self._holders.ranks_of.get(record.host, _NOBODY)
        kept = []
        for group in record.groups:
            if self._has_member(record.host, own, group):
                kept.append(group)
                continue
            text = f"{group.comm_id}: no member of it is placed on {record.host}"
            self._refusals.add(record, -1, SpeakerRefusal.GROUP_OF_OTHERS, text)
        return (record,) if len(kept) == len(record.groups) else (replace(record, groups=tuple(kept)),)

    def _has_member(self, host: str, own: set[int] | frozenset[int], group: CommGroup) -> bool:
        """Return whether at least one rank of a group runs, or may run, on this host."""
        ranks, count = group.ranks, len(group.ranks)
        if any(rank < count and ranks[rank] == rank for rank in own):  # the whole world, nearly always
            return True
        if any(rank in ranks for rank in own):
            return True
        if own:
            return False
        holders = self._holders
        if is_lone(host):
            return any(lone_host(rank) == host for rank in ranks)
        return any(
            (held := holders.host_of.get(rank)) is None or is_lone(held) or same_host(held, host) for rank in ranks
        )

    def snapshot(self) -> dict[str, bytes]:
        """Return the state in two parts.

        ``holders`` (which host holds each rank) and ``speakers`` (ends and open claims).
        """
        count = self._holders.change_count
        if self._part is None or self._part[0] != count:
            self._part = count, pack_state(self._holders.to_state())
        return {"holders": self._part[1], "speakers": pack_state(self._holders.claims_state())}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned."""
        self._part = None
        self._holders.load_state(unpack_state(parts, "holders"), unpack_state(parts, "speakers"))

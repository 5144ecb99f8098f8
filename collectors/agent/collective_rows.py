"""Selection of the collective records that are sent, and the ring of all recent ones.

Rules of docs/interfaces.md, section 2: all completions of the sampled ranks; of every rank the operations that do
not finish, or else, at intervals, its last finished ones.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tocsin.collectors.agent.messages import Completion, InFlight, LastDone
from tocsin.collectors.agent.rank_state import RankState
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord

SAMPLED_RANKS: Final = 10
EPOCH_NS: Final = 60 * NS_PER_SECOND
UNFINISHED_NS: Final = NS_PER_SECOND
REPEAT_STATE_NS: Final = 5 * NS_PER_SECOND
REPEAT_LAST_NS: Final = 10 * NS_PER_SECOND
RING_NS: Final = 60 * NS_PER_SECOND
RING_RECORDS: Final = 100_000
_PACKED: Final = struct.Struct("<HHqqqq")
_TEXTS: Final = 0xFFFF


def sampled_ranks(
    world_size: int, dp_groups: Iterable[tuple[int, ...]], epoch: int, ranks: Iterable[int]
) -> frozenset[int]:
    """Return those of ``ranks`` whose completions are all sent in this epoch.

    In a job of up to ten ranks, all. Otherwise one data-parallel group an epoch, and at most ten of its members. An
    agent knows only its own ranks' groups, so each group's index among all is computed from its stride (Megatron's and
    DeepSpeed's layouts are regular). Then all agents agree without communication. Ranks without a known group form
    groups of ten.

    Args:
        world_size: number of ranks in the job.
        dp_groups: known data-parallel groups.
        epoch: number of the minute.
        ranks: the ranks to choose from.
    """
    if world_size <= SAMPLED_RANKS:
        return frozenset(ranks)
    group_of = {member: group for group in dp_groups for member in group}
    chosen = set()
    for rank in ranks:
        start = rank - rank % SAMPLED_RANKS
        group = group_of.get(rank) or tuple(range(start, max(rank + 1, min(start + SAMPLED_RANKS, world_size))))
        if rank in _members(group, world_size, epoch):
            chosen.add(rank)
    return frozenset(chosen)


def _members(group: tuple[int, ...], world_size: int, epoch: int) -> tuple[int, ...]:
    """Return the members of a group that are sampled in this epoch, at most ten.

    Empty if it is another group's turn.
    """
    size = len(group)
    group_count = max(1, -(-world_size // size))
    if _place(group) % group_count != epoch % group_count:
        return ()
    if size <= SAMPLED_RANKS:
        return group
    first = (epoch // group_count) * SAMPLED_RANKS % size
    return tuple(group[(first + index) % size] for index in range(SAMPLED_RANKS))


def _place(group: tuple[int, ...]) -> int:
    """Return the group's index among the groups of its kind, from its first member and its stride."""
    first, stride = group[0], group[1] - group[0] if len(group) > 1 else 1
    if stride <= 0:
        return first
    return first // (stride * len(group)) * stride + first % stride


def completion_records(rank: int, items: Iterable[Completion], correction_ns: int) -> list[CollectiveRecord]:
    """Return the records of finished operations, with their stamps corrected.

    Args:
        rank: global rank.
        items: the completions; times are the host's clock.
        correction_ns: subtracted from all times.
    """
    return [
        CollectiveRecord(end, "completion", rank, comm_id, op_name, op_seq, size, start and start - correction_ns, end)
        for comm_id, op_name, op_seq, size, start, end_ns in items
        for end in (end_ns - correction_ns,)
    ]


def _last_record(rank: int, item: LastDone, correction_ns: int, now_ns: int) -> CollectiveRecord:
    """Return the record of a rank's last finished operation, stamped now."""
    end_ns = item.end_ns - correction_ns if item.end_ns else 0
    return CollectiveRecord(now_ns, "completion", rank, item.comm_id, item.op_name, item.op_seq, end_ns=end_ns)


def _state_record(rank: int, item: InFlight, seen_ns: int, correction_ns: int) -> CollectiveRecord:
    """Return the record of an unfinished operation, stamped with the time when it was seen."""
    start_ns = item.start_ns - correction_ns if item.start_ns else 0
    return CollectiveRecord(
        seen_ns - correction_ns,
        "state",
        rank,
        item.comm_id,
        item.op_name,
        item.op_seq,
        item.msg_bytes,
        start_ns,
    )


@dataclass(slots=True)
class _LastSent:
    """The last state sent about a rank; times are stamps, 0 = never."""

    state: tuple[InFlight, ...] = ()
    state_ns: int = 0
    last_ns: int = 0


class StateRows:
    """Selects once a second the records about operations that do not finish."""

    def __init__(self) -> None:
        """Start without anything sent."""
        self._last_sent: dict[int, _LastSent] = {}

    def rows(self, rank: RankState, end_ns: int, correction_ns: int) -> list[CollectiveRecord]:
        """Return a rank's records for the slice that ends at ``end_ns``.

        A state's ``ts_ns`` is the time when it was seen: for a stopped process, the time of the last beat.

        Args:
            rank: state of the rank.
            end_ns: end of the slice, a corrected stamp.
            correction_ns: difference between host time and corrected stamps.
        """
        last_sent = self._last_sent.setdefault(rank.rank, _LastSent())
        host_ns = end_ns + correction_ns
        stuck = tuple(
            item
            for item in rank.oldest_inflight().values()
            if item.start_ns and host_ns - item.start_ns > UNFINISHED_NS
        )
        if stuck:
            if stuck == last_sent.state and 0 <= end_ns - last_sent.state_ns < REPEAT_STATE_NS:
                return []
            last_sent.state, last_sent.state_ns = stuck, end_ns
            rows = [_state_record(rank.rank, item, rank.inflight_seen_ns, correction_ns) for item in stuck]
            busy = {item.comm_id for item in stuck}
            return rows + self._last_rows(rank, end_ns, correction_ns, busy)
        last_sent.state = ()
        if not rank.last or 0 <= end_ns - last_sent.last_ns < REPEAT_LAST_NS:
            return []
        last_sent.last_ns = end_ns
        return self._last_rows(rank, end_ns, correction_ns, set())

    @staticmethod
    def _last_rows(rank: RankState, end_ns: int, correction_ns: int, without: set[str]) -> list[CollectiveRecord]:
        """Return the records of the last finished operations, except of the communicators in ``without``."""
        last = [item for item in rank.last.values() if item.comm_id not in without]
        return [_last_record(rank.rank, item, correction_ns, end_ns - 1_000_000) for item in last]


class CollectiveRing:
    """Ring buffer of all completions of the last minute, packed (36 bytes a record); kept after their ranks end."""

    def __init__(self, span_ns: int = RING_NS, limit: int = RING_RECORDS) -> None:
        """Create an empty ring that holds ``span_ns`` of time and at most ``limit`` records."""
        self._span_ns = span_ns
        self._limit = limit
        self._texts = _Numbers()
        self._parts: deque[tuple[int, int, bytes]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, host_ns: int, rank: int, items: tuple[Completion, ...]) -> None:
        """Add the completions of one step of a rank, and drop the oldest beyond age or number."""
        if items:
            texts, pack = self._texts, _PACKED.pack
            packed = b"".join([pack(texts[c], texts[n], s, size, t0, t1) for c, n, s, size, t0, t1 in items])
            self._parts.append((host_ns, rank, packed))
            self._count += len(items)
        while self._parts and (self._count > self._limit or self._parts[0][0] < host_ns - self._span_ns):
            self._count -= len(self._parts.popleft()[2]) // _PACKED.size

    def parts(self, rank: int = -1) -> Iterator[tuple[int, list[Completion]]]:
        """Yield (rank, completions of one of its steps), oldest first; ``rank`` -1: all ranks."""
        names = list(self._texts)
        for _, owner, packed in self._parts:
            if rank in {-1, owner}:
                rows = _PACKED.iter_unpack(packed)
                yield owner, [(names[c], names[n], seq, size, t0, t1) for c, n, seq, size, t0, t1 in rows]


class _Numbers(dict[str, int]):
    """Dictionary that numbers texts by first appearance.

    After 65,535 (a broken hook) all further ones share a number.
    """

    def __missing__(self, text: str) -> int:
        if len(self) >= _TEXTS:
            text = "other"
        return self.setdefault(text, len(self))

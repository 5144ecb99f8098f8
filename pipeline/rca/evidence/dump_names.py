"""Names in Flight Recorder dumps, made the same for all ranks of a job.

A dump leaves open which group a local group number means, and which global rank a point-to-point peer is. Nor does it
list all operations. ``DumpNames`` settles that by what all dumps of the job say together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tocsin.models.hang import GroupInfo, OpState, RankWait
from tocsin.schemas.formats.flight_recorder import FlightDump, FlightEntry

DEFAULT_GROUP_DESC = "default_pg"
DEFAULT_GROUP_NAME = "0"
HISTORY_OPS = 512
"""Finished operations of a rank that the analysis may look back on."""


class DumpNames:
    """Group names, members and operations of one job's dumps, in names that hold for all its ranks.

    Attributes:
        ranks: ranks that left a dump or are a member of a group in one.
        world: ranks in the job, by the highest rank that is known.
    """

    def __init__(self, dumps: Mapping[int, FlightDump]) -> None:
        """Read the names.

        Args:
            dumps: rank -> its dump; at least one.
        """
        self._ranks: dict[str, set[tuple[int, ...]]] = {}
        self._own: dict[tuple[int, str], tuple[int, ...]] = {}
        self._desc: dict[str, str] = {}
        self._comm_ids: dict[tuple[int, str], str] = {}
        for rank, dump in dumps.items():
            for group in dump.groups:
                self._desc.setdefault(group.name, group.desc)
                if group.ranks:
                    self._ranks.setdefault(group.name, set()).add(group.ranks)
                    self._own[rank, group.name] = group.ranks
            for entry in dump.entries:
                self._desc.setdefault(entry.group_name, entry.group_desc)
        members = [ranks for by_name in self._ranks.values() for ranks in by_name]
        members += [dump.nameless_ranks for dump in dumps.values()]
        self.ranks = set(dumps).union(*members)
        # Ranks are numbered without gaps: a number between two files is a rank without a file.
        self.world = 1 + max(self.ranks)
        self._mixed = {
            entry.group_name
            for dump in dumps.values()
            for entry in dump.entries
            if entry.is_p2p or entry.p2p_seq or entry.op_id not in {0, entry.collective_seq}
        }
        # Starts are recorded in all ranks of a job or in none (TORCH_NCCL_ENABLE_TIMING).
        self._timed = any(map(_shows_starts, dumps.values()))
        self._maps_in_order = _ids_in_order(dumps.values())

    def _is_default(self, name: str) -> bool:
        """Return whether a group is the default one, which all ranks belong to."""
        return self._desc.get(name) == DEFAULT_GROUP_DESC or name == DEFAULT_GROUP_NAME

    def kind(self, name: str) -> str:
        """Return a group's purpose: ``world`` for the default group, else its description."""
        return "world" if self._is_default(name) else self._desc.get(name, "")

    def comm_id(self, rank: int, name: str) -> str:
        """Return a communicator id: the group's name, with its members where several groups have this name."""
        if len(self._ranks.get(name, ())) < 2:
            return name
        known = self._comm_ids.get((rank, name))
        if known is None:  # made once: it is long, and asked for by each operation
            known = self._comm_ids[rank, name] = f"{name}{list(self._own.get((rank, name), ()))}"
        return known

    def groups(self, known: frozenset[int]) -> tuple[GroupInfo, ...]:
        """Return all groups.

        Args:
            known: ranks of the job; members of a default group that no dump describes.

        Returns:
            Each group with its members; without members where no dump lists them.
        """
        groups: dict[str, GroupInfo] = {}
        for (rank, name), ranks in sorted(self._own.items()):
            comm_id = self.comm_id(rank, name)
            groups.setdefault(comm_id, GroupInfo(comm_id, self.kind(name), ranks))
        for name in sorted(set(self._desc) - set(self._ranks)):
            members = tuple(sorted(known)) if self._is_default(name) else ()
            groups[name] = GroupInfo(name, self.kind(name), members, inferred=True)
        return tuple(groups.values())

    def state_of(self, rank: int, dump: FlightDump) -> RankWait:
        """Return the unfinished and finished operations of a rank, as its dump tells them."""
        pending = [self._op(rank, entry) for entry in dump.entries if not entry.is_done]
        done = [entry for entry in dump.entries if entry.is_done]
        completed = self._from_status(rank, dump)
        for entry in done:
            if not entry.is_p2p:
                comm_id = self.comm_id(rank, entry.group_name)
                completed[comm_id] = max(completed.get(comm_id, -1), entry.collective_seq)
        first: dict[str, int] = {}
        for op in pending:
            if not op.is_p2p:
                first.setdefault(op.comm_id, op.seq)
        # A communicator keeps its order: before its first unfinished collective all are finished.
        completed |= {comm_id: seq - 1 for comm_id, seq in first.items()}
        return RankWait(
            rank=rank,
            pending=tuple(pending),
            completed=completed,
            hidden_ops=_runs_hidden_ops(dump),
            history=tuple(self._op(rank, entry) for entry in done[-HISTORY_OPS:]),
        )

    def _op(self, rank: int, entry: FlightEntry) -> OpState:
        """Return an entry of a rank's dump as an operation for the hang analysis."""
        # The frame of a coalesced batch waits for nobody; the operations inside stand beside it.
        is_p2p = entry.is_p2p or "coalesced" in entry.name.rpartition(":")[2].split("_")[:1]
        started = entry.state == "started" or entry.started_ns > 0
        return OpState(
            comm_id=self.comm_id(rank, entry.group_name),
            seq=entry.p2p_seq if entry.is_p2p else entry.collective_seq,
            op_name=entry.name.rpartition(":")[2].partition(" ")[0],
            msg_bytes=entry.msg_bytes,
            dtype=entry.dtype,
            peer=self._peer(rank, entry),
            is_p2p=is_p2p,
            started=started if self._timed else None,
            start_ns=entry.created_ns,
        )

    def _peer(self, rank: int, entry: FlightEntry) -> int:
        """Return the peer of a point-to-point operation as a global rank; -1: the members' order is not known."""
        local = entry.p2p_peer
        members = self._own.get((rank, entry.group_name), ())
        if local < 0 or (members and local >= len(members)):
            return -1
        if members:
            return members[local]
        return local if self._is_default(entry.group_name) else -1

    def _from_status(self, rank: int, dump: FlightDump) -> dict[str, int]:
        """Return communicator id -> sequence number of the last finished collective, by the watchdog's status.

        The status has one counter for collectives and point-to-point operations, so groups with both are left out. It
        uses local group numbers; ``_ids_in_order`` says when their order tells the group.
        """
        if not any(entry.backend == "nccl" for entry in dump.entries) and not dump.comm_lib_version:
            return {}
        name_of = {entry.pg_id: entry.group_name for entry in dump.entries}
        if self._maps_in_order:
            name_of |= _pair_in_order(dump)
        return {
            self.comm_id(rank, name_of[pg_id]): status.last_completed_seq
            for pg_id, status in dump.status
            if pg_id in name_of and name_of[pg_id] not in self._mixed and status.last_completed_seq >= 0
        }


def _shows_starts(dump: FlightDump) -> bool:
    """Return whether a dump records when operations start on the GPU."""
    return any(entry.started_ns or entry.state == "started" for entry in dump.entries) or any(
        status.last_started_seq >= 0 for _, status in dump.status
    )


def _pair_in_order(dump: FlightDump) -> dict[int, str]:
    """Return local group number -> name of a dump, by their order; empty where the two do not match in number."""
    names = sorted((group.name for group in dump.groups if group.name.isdigit()), key=int)
    if len(names) != len(dump.groups) or len(names) != len(dump.status):
        return {}
    return {pg_id: name for (pg_id, _), name in zip(dump.status, names, strict=True)}


def _ids_in_order(dumps: Iterable[FlightDump]) -> bool:
    """Return whether all pairs of group number and name in the entries match ``_pair_in_order``, and some pair does."""
    shown = 0
    for dump in dumps:
        pairs = _pair_in_order(dump)
        for entry in dump.entries:
            if pairs.get(entry.pg_id, entry.group_name) != entry.group_name:
                return False
            shown += entry.pg_id in pairs
    return shown > 0


def _runs_hidden_ops(dump: FlightDump) -> bool:
    """Return whether a rank runs operations that the recorder does not list (gloo: send and receive).

    Only counters show them: the number of operations exceeds the number of collectives.
    """
    if any(entry.backend == "nccl" for entry in dump.entries) or dump.comm_lib_version:
        return False
    newest: dict[int, int] = {}
    for entry in dump.entries:
        newest[entry.pg_id] = max(newest.get(entry.pg_id, 0), entry.collective_seq)
        if not entry.is_p2p and entry.op_id > entry.collective_seq and not entry.p2p_seq:
            return True
    return any(status.last_enqueued_seq > newest[pg] for pg, status in dump.status if pg in newest)

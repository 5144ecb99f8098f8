"""A folder of Flight Recorder dumps -> who stands behind.

Reads the files (one per rank, the name ends in the rank), levels what the dumps leave
open - which local group number is which group, whose peer ``send 0->1`` means, what
runs beside the recorder's eyes - and asks ``tocsin.models.hang``. A file that cannot be
read is evidence about its rank, not the end of the analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin.models.hang import GroupInfo, HangFinding, HangInput, OpState, RankWait, analyse
from tocsin.models.hang_input import unheard_ranks
from tocsin.pipeline.rca.evidence.missing_dumps import without_the_uncollected
from tocsin.schemas.errors import ConfigError, FieldError, SchemaError
from tocsin.schemas.formats.flight_recorder import (
    MAX_DUMP_BYTES,
    FlightDump,
    FlightEntry,
    parse_dump,
    rank_of_filename,
)
from tocsin.schemas.wire.validate import MAX_RANKS

DEFAULT_GROUP_DESC = "default_pg"
DEFAULT_GROUP_NAME = "0"
HISTORY_OPS = 512
"""Finished operations of a rank that the analysis may look back on."""


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """What a folder of dumps holds.

    Attributes:
        dumps: rank -> its dump.
        unreadable: rank -> (file name, why) of files that are no whole dump.
        notes: files that were passed over, and why.
        names: rank -> the file that its dump was read from.
    """

    dumps: Mapping[int, FlightDump]
    unreadable: Mapping[int, tuple[str, str]]
    notes: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)


def read_folder(folder: Path) -> DumpFolder:
    """Read all dumps of a folder (not of its subfolders).

    Args:
        folder: where the dumps are.

    Raises:
        ConfigError: no folder, no file whose name ends in a rank, or none that can be read.
    """
    if not folder.is_dir():
        what = "it is a file" if folder.exists() else "it does not exist"
        raise ConfigError("DIR", str(folder), f"a folder with Flight Recorder dumps; {what}")
    files = _files_by_rank(folder)
    if not files:
        raise ConfigError("DIR", str(folder), "a folder with files whose names end in a rank; it has none")
    dumps: dict[int, FlightDump] = {}
    names: dict[int, str] = {}
    broken: list[tuple[int, Path, str]] = []
    notes: list[str] = []
    for rank, paths in sorted(files.items()):
        for path in paths:
            dump = _read_file(path)
            if isinstance(dump, str):
                broken.append((rank, path, dump))
            elif rank in dumps:
                notes.append(f"{path.name}: a second dump of rank {rank}, passed over")
            else:
                dumps[rank] = dump
                names[rank] = path.name
    if not dumps:
        _, path, why = broken[0]
        raise ConfigError("DIR", str(folder), f"a folder with readable dumps; {path.name}: {why}")
    found = _sort_broken(dumps, broken, notes, {_prefix(p) for r in dumps for p in files[r]})
    return replace(found, names=names)


def _sort_broken(
    dumps: dict[int, FlightDump], broken: list[tuple[int, Path, str]], notes: list[str], prefixes: set[str]
) -> DumpFolder:
    """A broken file speaks about its rank only where it is named as the dumps are."""
    unreadable: dict[int, tuple[str, str]] = {}
    for rank, path, why in broken:
        if rank in dumps or (_prefix(path) not in prefixes and rank > max(dumps)):
            notes.append(f"{path.name}: passed over, {why}")
        else:
            unreadable[rank] = (path.name, why)
    return DumpFolder(dumps, unreadable, tuple(notes))


def _files_by_rank(folder: Path) -> dict[int, list[Path]]:
    files: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            try:
                rank = rank_of_filename(path.name)
            except FieldError:
                continue
            if rank < MAX_RANKS:
                files.setdefault(rank, []).append(path)
    return files


def _prefix(path: Path) -> str:
    return path.stem.rstrip("0123456789")


def _read_file(path: Path) -> FlightDump | str:
    """The dump, or why there is none."""
    try:
        if path.stat().st_size > MAX_DUMP_BYTES:
            return f"larger than {MAX_DUMP_BYTES} bytes"
        return parse_dump(path.read_bytes())
    except (SchemaError, OSError) as error:
        return str(error)


def analyse_folder(folder: Path, world_size: int = 0) -> HangFinding:
    """Read a folder and judge it; what was unreadable stands in the evidence.

    Args:
        folder: where the dumps are.
        world_size: ranks in the job; 0: as the dumps say, or as the files' numbers suggest.

    Raises:
        ConfigError: there is nothing to judge.
    """
    content = read_folder(folder)
    finding = analyse_dumps(content, world_size)
    return without_the_uncollected(finding, len(set(content.dumps) | set(finding.missing_ranks)))


def analyse_dumps(content: DumpFolder, world_size: int = 0, facts: Mapping[int, str] | None = None) -> HangFinding:
    """Judge dumps that were read; what was unreadable stands in the evidence.

    Args:
        content: the dumps.
        world_size: as in ``analyse_folder``.
        facts: what else is known of ranks without a dump (``tocsin.models.hang``).

    Raises:
        ConfigError: none of the dumps is of a rank of this job.
    """
    content = _within_world(content, world_size)
    data = hang_input(content, world_size)
    known = {rank: fact for rank, fact in (facts or {}).items() if rank not in content.dumps}
    finding = analyse(replace(data, facts=known, silent=data.silent - set(known)))
    extra = [f"rank {rank}: {name} is unreadable: {why}" for rank, (name, why) in sorted(content.unreadable.items())]
    absent = sorted(set(finding.missing_ranks) - set(content.unreadable))
    if absent:
        extra.append(f"no dump of rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent[:32]))}")
    return replace(finding, evidence=(*finding.evidence, *extra, *content.notes))


def _within_world(content: DumpFolder, world_size: int) -> DumpFolder:
    """Leave out files of ranks that the job does not have: they are another job's."""
    world = world_size or _known_world(content.dumps.values())
    strangers = sorted(rank for rank in {*content.dumps, *content.unreadable} if rank >= world > 0)
    if not strangers:
        return content
    dumps = {rank: dump for rank, dump in content.dumps.items() if rank < world}
    if not dumps:
        raise ConfigError("world size", world, f"larger than {strangers[0]}, the lowest rank that left a dump")
    return DumpFolder(
        dumps,
        {rank: broken for rank, broken in content.unreadable.items() if rank < world},
        (*content.notes, f"passed over, the job has {world} ranks: dumps of ranks {strangers[:32]}"),
    )


def _known_world(dumps: Iterable[FlightDump]) -> int:
    """Ranks in the job by what most dumps say of the default group, 0: none says."""
    sizes = Counter(
        len(group.ranks)
        for dump in dumps
        for group in dump.groups
        if group.ranks and (group.desc == DEFAULT_GROUP_DESC or group.name == DEFAULT_GROUP_NAME)
    )
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0


def report(finding: HangFinding) -> dict[str, Any]:
    """The object that ``tocsin flight-recorder --json`` prints: a contract, keys in its order."""
    return {
        "fault": "hang",
        "culprits": list(finding.culprits),
        "groups": [
            {
                "comm_id": group.comm_id,
                "kind": group.kind,
                "op_name": group.op_name,
                "op_seq": group.seq,
                "waiting": list(group.waiting),
                "waits_for": list(group.waits_for),
                "members_inferred": group.inferred,
            }
            for group in finding.blocked
        ],
        "reason": finding.reason,
        "missing_ranks": list(finding.missing_ranks),
        "evidence": list(finding.evidence),
    }


def hang_input(content: DumpFolder, world_size: int = 0) -> HangInput:
    """Build what the hang analysis looks at.

    Args:
        content: the dumps of one job at one time.
        world_size: ranks in the job, 0: as the dumps say.
    """
    names = _Names(content.dumps)
    heard = set(content.dumps)
    world = max(names.world, world_size)
    named = (names.ranks | set(content.unreadable)) - heard
    silent = named.union(unheard_ranks(world, heard | named))
    states = tuple(names.state_of(rank, dump) for rank, dump in sorted(content.dumps.items()))
    return HangInput(
        groups=names.groups(frozenset(heard | silent)),
        states=states,
        silent=frozenset(silent),
        world_size=len(heard | silent),
        unlisted_count=max(0, world - len(heard | silent)),
    )


class _Names:
    """The names of one job's groups, the same for all its ranks."""

    def __init__(self, dumps: Mapping[int, FlightDump]) -> None:
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
        return self._desc.get(name) == DEFAULT_GROUP_DESC or name == DEFAULT_GROUP_NAME

    def kind(self, name: str) -> str:
        """What a group is for: ``world``, or its description."""
        return "world" if self._is_default(name) else self._desc.get(name, "")

    def comm_id(self, rank: int, name: str) -> str:
        """The group's name; with its members where groups of one name have different ones."""
        if len(self._ranks.get(name, ())) < 2:
            return name
        known = self._comm_ids.get((rank, name))
        if known is None:  # made once: it is long, and asked for by each operation
            known = self._comm_ids[rank, name] = f"{name}{list(self._own.get((rank, name), ()))}"
        return known

    def groups(self, known: frozenset[int]) -> tuple[GroupInfo, ...]:
        """All groups with their members; without members where no dump says who they are."""
        groups: dict[str, GroupInfo] = {}
        for (rank, name), ranks in sorted(self._own.items()):
            comm_id = self.comm_id(rank, name)
            groups.setdefault(comm_id, GroupInfo(comm_id, self.kind(name), ranks))
        for name in sorted(set(self._desc) - set(self._ranks)):
            members = tuple(sorted(known)) if self._is_default(name) else ()
            groups[name] = GroupInfo(name, self.kind(name), members, inferred=True)
        return tuple(groups.values())

    def state_of(self, rank: int, dump: FlightDump) -> RankWait:
        """What one dump says of its rank."""
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
        """The other side as a global rank; -1 where the members' order is not known."""
        local = entry.p2p_peer
        members = self._own.get((rank, entry.group_name), ())
        if local < 0 or (members and local >= len(members)):
            return -1
        if members:
            return members[local]
        return local if self._is_default(entry.group_name) else -1

    def _from_status(self, rank: int, dump: FlightDump) -> dict[str, int]:
        """Last finished collectives by the watchdog's account.

        It has one number for both kinds of operations, so a group with point-to-point traffic
        says nothing; and it goes by local group numbers: see ``_ids_in_order``.
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
    return any(entry.started_ns or entry.state == "started" for entry in dump.entries) or any(
        status.last_started_seq >= 0 for _, status in dump.status
    )


def _pair_in_order(dump: FlightDump) -> dict[int, str]:
    """Local group number -> name: both grow with the order in which the groups were made."""
    names = sorted((group.name for group in dump.groups if group.name.isdigit()), key=int)
    if len(names) != len(dump.groups) or len(names) != len(dump.status):
        return {}
    return {pg_id: name for (pg_id, _), name in zip(dump.status, names, strict=True)}


def _ids_in_order(dumps: Iterable[FlightDump]) -> bool:
    """Whether each pair of number and name that the entries show fits ``_pair_in_order``."""
    shown = 0
    for dump in dumps:
        pairs = _pair_in_order(dump)
        for entry in dump.entries:
            if pairs.get(entry.pg_id, entry.group_name) != entry.group_name:
                return False
            shown += entry.pg_id in pairs
    return shown > 0


def _runs_hidden_ops(dump: FlightDump) -> bool:
    """Whether a rank runs operations that the recorder does not see (gloo: send and receive).

    They show in the counters only: the number of operations outruns that of collectives.
    """
    if any(entry.backend == "nccl" for entry in dump.entries) or dump.comm_lib_version:
        return False
    newest: dict[int, int] = {}
    for entry in dump.entries:
        newest[entry.pg_id] = max(newest.get(entry.pg_id, 0), entry.collective_seq)
        if not entry.is_p2p and entry.op_id > entry.collective_seq and not entry.p2p_seq:
            return True
    return any(status.last_enqueued_seq > newest[pg] for pg, status in dump.status if pg in newest)

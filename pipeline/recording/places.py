"""The hosts, groups and attempts of a recording's ranks over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.tables import Manifest, Recording, Text
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.job_key import lone_host
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import NS_PER_SECOND, CommGroup, Groups, JobKey, RankPlace, Topology

_INTS = ("gpu", "dp", "pp", "tp")
_TEXTS = ("gpu_uuid", "leaf", "minipod")
_UNSTATED = {"from_ns": -1, "attempt": -1}
"""Default values of a topology or group row that does not state its time or attempt."""


class Places:
    """Ranks, hosts, groups and attempts of one recording."""

    def __init__(self, recording: Recording) -> None:
        """Read topology and groups.

        Raises:
            RecordingError: a rank is negative, a host has no name, or a rank is in two places at once.
        """
        manifest = recording.manifest
        self._cluster, self._job_id = manifest.cluster, manifest.job_id
        self._start_ns, self._attempt = manifest.start_ns, manifest.attempt
        topology, groups = _rows(recording, "topology"), _rows(recording, "groups")
        begins = self._read_attempts(recording, [*topology, *groups])
        self._attempts = sorted((from_ns, attempt) for attempt, from_ns in begins.items())
        self._topology = _announced(topology, manifest, begins, ("rank",))
        self._groups = _announced(groups, manifest, begins, ("comm_id", "host"))
        self._moves: dict[int, list[tuple[int, str]]] = {}
        for row in self._topology:
            moves = self._moves.setdefault(row["rank"], [])
            if not moves or moves[-1][1] != row["host"]:
                moves.append((row["from_ns"], row["host"]))
        self._uuid_of = _uuids(self._topology)

    def _read_attempts(self, recording: Recording, announced: Iterable[Mapping[str, Any]]) -> dict[int, int]:
        """Return attempt -> its start in ns, as far as tables tell; the manifest's own attempt starts at 0."""
        first: dict[int, int] = {self._attempt: 0}
        for row in announced:
            if row["attempt"] >= 0 and row["from_ns"] >= 0:
                first[row["attempt"]] = min(first.get(row["attempt"], row["from_ns"]), row["from_ns"])
        steps = recording.tables.get("steps", {})
        if "attempt" in steps:
            attempts, ts_ns, seconds = (
                cast(NDArray[Any], steps[name]) for name in ("attempt", "ts_ns", "duration_seconds")
            )
            begin_ns = ts_ns - (np.nan_to_num(seconds) * NS_PER_SECOND).astype(np.int64)
            order = np.argsort(attempts, kind="stable")
            cuts = np.flatnonzero(np.diff(attempts[order])) + 1
            for rows in np.split(order, cuts) if order.size else ():
                attempt, begin = int(attempts[rows[0]]), int(begin_ns[rows].min())
                if attempt >= 0:
                    first[attempt] = min(first.get(attempt, begin), begin)
        for row in announced:
            if row["attempt"] >= 0:
                first.setdefault(row["attempt"], self._start_ns)
        return first

    def job_at(self, ts_ns: int, attempt: int | None = None) -> JobKey:
        """Return the job key for a time: with the given attempt, or with the one that ran then."""
        if attempt is None or attempt < 0:
            index = bisect_right(self._attempts, (ts_ns, 1 << 62)) - 1
            attempt = self._attempts[max(0, index)][1]
        return JobKey(self._cluster, self._job_id, attempt)

    def attempt_end_ns(self, ts_ns: int, last_ns: int) -> int:
        """Return the end of the attempt that ran at a time: the start of the next one, or ``last_ns``."""
        index = bisect_right(self._attempts, (ts_ns, 1 << 62))
        return self._attempts[index][0] if index < len(self._attempts) else last_ns

    def host_of(self, rank: int, ts_ns: int | None = None) -> str:
        """Return the host of a rank at a time (None: its first host); without a topology, a host name of its own."""
        moves = self._moves.get(rank)
        if moves is None:
            return lone_host(rank)
        index = 0 if ts_ns is None else bisect_right(moves, ts_ns, key=lambda move: move[0]) - 1
        return moves[max(0, index)][1]

    def hosts_of(self, ranks: NDArray[Any], ts_ns: NDArray[Any]) -> tuple[list[str], NDArray[np.intp]]:
        """Return the sorted host names, and for each row the index of the host that its rank ran on."""
        changes = np.array(sorted({from_ns for moves in self._moves.values() for from_ns, _ in moves[1:]}), np.int64)
        epochs = np.searchsorted(changes, ts_ns, "right")
        first_ns = [self._start_ns - 1, *changes.tolist()]
        width = len(first_ns)
        different, inverse = np.unique(ranks.astype(np.int64) * width + epochs, return_inverse=True)
        names = [self.host_of(key // width, first_ns[key % width]) for key in different.tolist()]
        hosts = sorted(set(names))
        index = {host: row for row, host in enumerate(hosts)}
        return hosts, np.array([index[name] for name in names], np.intp)[inverse]

    def gpu_uuid(self, host: str, gpu: int) -> str:
        """Return the UUID of a GPU; if the topology has none, a key made of host and index."""
        return str(self._uuid_of.get((host, gpu)) or f"{host}/gpu{gpu}")

    def first_host(self, recording: Recording) -> str:
        """Return some host of the job, for announcements that belong to no host in particular."""
        if self._topology:
            return str(self._topology[0]["host"])
        hosts = recording.tables.get("host_metrics", {}).get("host")
        return hosts[0] if isinstance(hosts, Text) and len(hosts) else lone_host(0)

    def topologies(self) -> list[Topology]:
        """Return one topology record per host, time and attempt."""
        ranks = {row["rank"] for row in self._topology}
        by_place: dict[tuple[int, str, int], list[RankPlace]] = {}
        for row in self._topology:
            place = RankPlace(
                rank=row["rank"],
                host=row["host"],
                **{name: max(-1, row[name]) for name in _INTS},
                **{name: row[name] for name in _TEXTS},
                world_size=max(row.get("world_size", 0), 0) or len(ranks),
                pid=max(row.get("pid", 0), 0),
            )
            by_place.setdefault((row["from_ns"], row["host"], row["attempt"]), []).append(place)
        return [
            Topology(self.job_at(from_ns, attempt), host, from_ns, tuple({p.rank: p for p in places}.values()))
            for (from_ns, host, attempt), places in sorted(by_place.items())
        ]

    def groups(self) -> list[Groups]:
        """Return one groups record per host, time and attempt, with the groups of the host's ranks."""
        members: dict[tuple[int, int, str, str], tuple[str, dict[int, None]]] = {}
        for row in self._groups:
            key = (row["from_ns"], row["attempt"], row["comm_id"], row.get("host", ""))
            kind, ranks = members.setdefault(key, (row["kind"], {}))
            ranks[row["rank"]] = None
        by_host: dict[tuple[int, int, str], list[CommGroup]] = {}
        for (from_ns, attempt, comm_id, host), (kind, ranks) in members.items():
            group = CommGroup(comm_id, _kind(kind), tuple(ranks))
            # Where nobody says who announced it one announcement serves: all members say the same.
            by_host.setdefault((from_ns, attempt, host or self.host_of(group.ranks[0], from_ns)), []).append(group)
        return [
            Groups(self.job_at(from_ns, attempt), host, from_ns, tuple(groups))
            for (from_ns, attempt, host), groups in sorted(by_host.items())
        ]


def _uuids(topology: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """Return (host, GPU index) -> UUID, leaving out UUIDs that several GPUs of a host share."""
    named = {(row["host"], row["gpu"]): row["gpu_uuid"] for row in topology if row["gpu_uuid"]}
    owners = Counter((host, uuid) for (host, _), uuid in named.items())
    return {key: uuid for key, uuid in named.items() if owners[key[0], uuid] == 1}


def _kind(word: str) -> GroupKind:
    """Return the group kind of a word, ``OTHER`` if it is unknown."""
    return GroupKind(word) if word in set(GroupKind) else GroupKind.OTHER


def _rows(recording: Recording, table: str) -> list[dict[str, Any]]:
    """Return the rows of ``topology`` or ``groups`` as dicts; from_ns and attempt are -1 where they are not stated.

    Raises:
        RecordingError: a rank is negative, a host has no name, or a rank is in two places at once.
    """
    columns = recording.tables.get(table)
    if columns is None:
        return []
    lists = {name: _to_list(column) for name, column in columns.items()}
    defaults: dict[str, Any] = dict.fromkeys(_INTS, -1) | dict.fromkeys(_TEXTS, "") | _UNSTATED
    rows = []
    for index in range(len(lists["rank"])):
        row = defaults | {name: values[index] for name, values in lists.items()}
        if row["rank"] < 0:
            text = f"{row['rank']}: must not be negative"
            raise RecordingError(f"{table}.parquet", text, column="rank", row=index)
        if table == "topology" and not row["host"]:
            raise RecordingError("topology.parquet", "'': must name a host", column="host", row=index)
        rows.append(row)
    if table == "topology":
        _check_places(rows)
    return rows


def _check_places(rows: list[dict[str, Any]]) -> None:
    """Raise ``RecordingError`` if a rank is on two hosts at the same time."""
    known: dict[tuple[int, int, int], str] = {}
    for index, row in enumerate(rows):
        host = known.setdefault((row["attempt"], row["from_ns"], row["rank"]), row["host"])
        if host != row["host"]:
            text = (
                f"rank {row['rank']} is on {host!r} and on {row['host']!r} at the same time: from_ns says when it moves"
            )
            raise RecordingError("topology.parquet", text, column="host", row=index)


def _announced(
    rows: list[dict[str, Any]], manifest: Manifest, begins: Mapping[int, int], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return rows with from_ns and attempt filled in, sorted by time.

    Of rows before the start only the newest are kept.

    Args:
        rows: rows from ``_rows``.
        manifest: start and attempt of the recording.
        begins: attempt -> its start.
        names: columns that identify a row's subject; a later row of the same subject replaces earlier ones.
    """
    dated = []
    for row in rows:
        attempt = manifest.attempt if row["attempt"] < 0 else row["attempt"]
        from_ns = begins.get(attempt, 0) if row["from_ns"] < 0 else row["from_ns"]
        dated.append(row | {"attempt": attempt, "from_ns": from_ns})
    dated.sort(key=lambda row: int(row["from_ns"]))
    newest: dict[tuple[Any, ...], int] = {}
    for row in dated:
        if row["from_ns"] <= manifest.start_ns:
            newest[_subject(row, names)] = row["from_ns"]
    found = [row for row in dated if row["from_ns"] >= newest.get(_subject(row, names), 0)]
    return [row | {"from_ns": max(row["from_ns"], manifest.start_ns)} for row in found]


def _subject(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the key of what a row describes: its attempt and these columns."""
    return (row["attempt"], *(row.get(name, "") for name in names))


def _to_list(column: object) -> list[Any]:
    """Return a column's values as a list."""
    if isinstance(column, Text):
        return column.to_list()
    return cast(list[Any], cast(NDArray[Any], column).tolist())

"""The operations that each rank of a job waits in or has finished, from live collective records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tocsin.models.hang import OpState, RankWait
from tocsin.models.hang_input import ROOTED_NAMES, base_name
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, StepRecord

_ANEW_NS = 10 * NS_PER_SECOND
"""A smaller sequence number that ends this much later than a larger one belongs to a program that was restarted."""


@dataclass(slots=True)
class _WaitPlace:
    """The operations of one rank.

    Attributes:
        pending: unfinished operations, the oldest first, as fields of ``OpState``.
        pending_ns: when the rank last reported its unfinished operations.
        done: communicator -> [sequence number, end in ns] of its last finished collective.
    """

    pending: list[dict[str, Any]] = field(default_factory=list)
    pending_ns: int = 0
    done: dict[str, list[int]] = field(default_factory=dict)


class WaitPlaces:
    """The last known operations of one job's ranks.

    Attributes:
        done_span_ns: end of the first and of the newest finished collective, ns; 0: none finished.
    """

    def __init__(self, graph: JobGraph, on_finished_wait: Callable[[int, int, int], None]) -> None:
        """Start without ranks.

        Args:
            graph: the job.
            on_finished_wait: called with the duration, the start and the end of each wait that ended by itself, ns.
        """
        self._graph = graph
        self._on_finished_wait = on_finished_wait
        self._places: dict[int, _WaitPlace] = {}
        self.done_span_ns = [0, 0]

    @property
    def is_empty(self) -> bool:
        """Whether no rank has reported an operation."""
        return not self._places

    def starts_ns(self) -> list[int]:
        """Return when the unfinished operations of all ranks began, ns; unknown starts are left out."""
        return [op["start_ns"] for place in self._places.values() for op in place.pending if op["start_ns"] > 0]

    def take_collectives(self, rows: Sequence[CollectiveRecord]) -> None:
        """Take a batch of rows; its state rows replace what is known of a rank's unfinished operations."""
        fresh: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            place = self._places.get(row.rank)
            if place is None:
                place = self._places[row.rank] = _WaitPlace()
            if row.record == "state":
                op = OpState(
                    row.comm_id,
                    row.op_seq,
                    row.op_name,
                    row.msg_bytes,
                    row.dtype,
                    row.peer,
                    row.peer >= 0,
                    None,
                    row.start_ns,
                )
                fresh.setdefault(row.rank, []).append(asdict(op))
                place.pending_ns = row.ts_ns
            else:
                self._finish(place, row)
        for rank, pending in fresh.items():
            self._places[rank].pending = sorted(pending, key=lambda op: (op["start_ns"], op["comm_id"], op["seq"]))

    def _finish(self, place: _WaitPlace, row: CollectiveRecord) -> None:
        """Take a finished collective: it and all before it on the same communicator are pending no more."""
        if row.peer >= 0:
            return
        if row.end_ns:
            self.done_span_ns = [self.done_span_ns[0] or row.end_ns, max(self.done_span_ns[1], row.end_ns)]
        known = place.done.get(row.comm_id)
        # A smaller number long after a larger one: the program was started again, and counts anew.
        anew = known is not None and row.op_seq < known[0] and row.end_ns > known[1] + _ANEW_NS
        if anew:
            place.done.clear()
            place.pending = [op for op in place.pending if op["start_ns"] > row.end_ns]
        if anew or known is None or row.op_seq > known[0]:
            place.done[row.comm_id] = [row.op_seq, row.end_ns]
        for op in list(place.pending) if place.pending else ():
            if op["comm_id"] == row.comm_id and not op["is_p2p"] and op["seq"] <= row.op_seq:
                place.pending.remove(op)
                self._on_finished_wait(row.end_ns - op["start_ns"], op["start_ns"], row.end_ns)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Take finished steps: operations that a rank began before the end of its step are finished."""
        for row in rows:
            place = self._places.get(row.rank)
            if place is None or not place.pending:
                continue
            for op in list(place.pending):
                if op["start_ns"] < row.ts_ns and place.pending_ns < row.ts_ns:
                    place.pending.remove(op)
                    self._on_finished_wait(row.ts_ns - op["start_ns"], op["start_ns"], row.ts_ns)

    def reported_ns(self, rank: int) -> int:
        """Return when a rank last reported the operations that it waits in, ns; 0: never, or it waits in none."""
        place = self._places.get(rank)
        return place.pending_ns if place is not None and place.pending else 0

    def waiting_for(self, ranks: Collection[int], now_ns: int, patience_ns: int, silent: Collection[str]) -> set[int]:
        """Return the other ranks that have waited for exactly these ranks for longer than the patience.

        A rank in a collective counts where all members that lack are among these ranks. A rank that waits for another
        waiting rank does not count, because the one between may be at fault. A rank in a collective that a member has
        finished does not count either. No member finishes it before all are in it, so one of the reports is wrong.

        Args:
            ranks: the accused ranks.
            now_ns: the slice's end.
            patience_ns: a shorter wait is normal.
            silent: hosts that have reported nothing for too long.
        """
        accused, mute = frozenset(ranks), frozenset(silent)
        asked: dict[tuple[str, int, str], list[int]] = {}
        found: set[int] = set()
        for rank, place in self._places.items():
            facts = self._graph.ranks.get(rank)
            if rank in accused or not place.pending or (facts is not None and facts.exit is not None):
                continue
            for op in _front(place.pending):
                if now_ns - op["start_ns"] < patience_ns:
                    continue
                if not op["is_p2p"]:
                    asked.setdefault(_key_of(op), []).append(rank)
                elif op["peer"] in accused and not self._is_with(op["peer"], rank):
                    found.add(rank)
        for key, waiting in asked.items():
            group = self._graph.groups.get(key[0])
            if group is None or accused.isdisjoint(group.ranks) or self._is_finished(group.ranks, key):
                continue
            lacking = {rank for rank in group.ranks if not self._is_in(rank, key, mute)}
            if lacking and lacking <= accused:
                found.update(waiting)
        return found

    def _is_finished(self, ranks: Sequence[int], key: tuple[str, int, str]) -> bool:
        """Return whether a member finished a collective that no member can finish before all are in it."""
        if base_name(key[2]) in ROOTED_NAMES:
            return False
        return any(rank in self._places and self._places[rank].done.get(key[0], (-1,))[0] >= key[1] for rank in ranks)

    def _is_in(self, rank: int, key: tuple[str, int, str], mute: Collection[str]) -> bool:
        """Return whether a rank waits in or finished an operation; on a silent host only finished operations count."""
        place = self._places.get(rank)
        if place is None:
            return False
        if place.done.get(key[0], (-1,))[0] >= key[1]:
            return True
        return self._graph.host_of(rank) not in mute and any(_key_of(op) == key for op in _front(place.pending))

    def _is_with(self, rank: int, other: int) -> bool:
        """Return whether a rank waits in a point-to-point operation with another rank."""
        place = self._places.get(rank)
        return place is not None and any(op["is_p2p"] and op["peer"] == other for op in _front(place.pending))

    def state_of(self, rank: int) -> RankWait:
        """Return a rank's operations for the hang analysis."""
        place = self._places.get(rank, _WaitPlace())
        return RankWait(
            rank,
            tuple(OpState(**op) for op in place.pending),
            {comm_id: done[0] for comm_id, done in place.done.items()},
            {comm_id: done[1] for comm_id, done in place.done.items()},
            place.pending_ns if place.pending else 0,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the ranks' operations as a JSON-able object with arrays; ``done_span_ns`` is not part of it."""
        return _places_state(self._places)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the ranks' operations that ``to_state`` returned."""
        self._places = _places_from(state)


def _front(pending: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the operations that a rank waits in: the oldest one, or all point-to-point ones before a collective."""
    count = next((index for index, op in enumerate(pending) if not op["is_p2p"]), len(pending))
    return pending[: max(1, count)]


def _key_of(op: Mapping[str, Any]) -> tuple[str, int, str]:
    """Return communicator, sequence number and name of an operation."""
    return op["comm_id"], op["seq"], op["op_name"]


def _places_state(places: Mapping[int, _WaitPlace]) -> dict[str, Any]:
    """Return the ranks' operations as columns: ranks, report times, finished operations in a row, pending ones."""
    ranks = sorted(places)
    found = [places[rank] for rank in ranks]
    done = [(comm_id, *entry) for place in found for comm_id, entry in place.done.items()]
    return {
        "ranks": np.array(ranks, "<i8"),
        "pending_ns": np.array([place.pending_ns for place in found], "<i8"),
        "done_counts": np.array([len(place.done) for place in found], "<i8"),
        "done_comm_ids": [comm_id for comm_id, _, _ in done],
        "done": [np.array([entry[column] for entry in done], "<i8") for column in (1, 2)],
        "pending": [[rank, place.pending] for rank, place in zip(ranks, found, strict=True) if place.pending],
    }


def _places_from(state: Mapping[str, Any]) -> dict[int, _WaitPlace]:
    """Return the ranks' operations that ``_places_state`` described."""
    done = zip(state["done_comm_ids"], *(column.tolist() for column in state["done"]), strict=True)
    places = {}
    columns = (state[name].tolist() for name in ("ranks", "pending_ns", "done_counts"))
    for rank, pending_ns, count in zip(*columns, strict=True):
        own = {comm_id: [seq, end_ns] for comm_id, seq, end_ns in itertools.islice(done, count)}
        places[rank] = _WaitPlace([], pending_ns, own)
    for rank, pending in state["pending"]:
        places[rank].pending = pending
    return places

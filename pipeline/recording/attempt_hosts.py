"""The hosts that carry ranks of each attempt of a recording, and how many GPUs each of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from numpy.typing import NDArray

from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.tables import Recording

_Move = tuple[int, str]
"""(from when on in ns, the host of a rank)."""


def gpu_counts(recording: Recording, places: Places, begins: Mapping[int, int]) -> dict[int, dict[str, int]]:
    """Return attempt -> host -> the most ranks that it carries at one time, which is the number of its GPUs.

    Rows of the topology that state an attempt hold for it. Where none states one, or none states this one, those hold
    that begin in the attempt, and for other ranks the ones before it.

    Args:
        recording: the recording.
        places: its places.
        begins: attempt -> its first mark in ns.
    """
    stated = recording.tables.get("topology", {}).get("attempt")
    has_attempts = stated is not None and bool((cast(NDArray[Any], stated) >= 0).any())
    moves: dict[int, dict[int, list[_Move]]] = {}
    whole: dict[int, list[_Move]] = {}
    for record in places.topologies():
        own = moves.setdefault(record.job.attempt, {})
        for place in record.places:
            move = (record.ts_ns, record.host)
            own.setdefault(place.rank, []).append(move)
            whole.setdefault(place.rank, []).append(move)
    found = {}
    for attempt, begin_ns in begins.items():
        if has_attempts and attempt in moves:
            found[attempt] = _most(moves[attempt])
        else:
            end_ns = min((begin for later, begin in begins.items() if later > attempt), default=None)
            found[attempt] = _most({rank: _within(own, begin_ns, end_ns) for rank, own in whole.items()})
    return found


def _within(moves: Sequence[_Move], begin_ns: int, end_ns: int | None) -> list[_Move]:
    """Return the moves of one rank within a time; if there is none, where it was then."""
    inside = [move for move in moves if begin_ns <= move[0] and (end_ns is None or move[0] < end_ns)]
    before = [move for move in moves if move[0] < begin_ns]
    return inside or before[-1:] or [moves[0]]


def _most(moves: Mapping[int, Sequence[_Move]]) -> dict[str, int]:
    """Return host -> the most ranks that it carries at one time, from the moves of each rank."""
    now = {rank: own[0][1] for rank, own in moves.items()}
    counts = Counter(now.values())
    most = dict(counts)
    by_time: dict[int, dict[int, str]] = {}
    for rank, own in moves.items():
        for from_ns, host in own[1:]:
            by_time.setdefault(from_ns, {})[rank] = host
    for _, changes in sorted(by_time.items()):
        counts.subtract(now[rank] for rank in changes)
        counts.update(changes.values())
        now |= changes
        most |= {host: max(most.get(host, 0), counts[host]) for host in changes.values()}
    return most

"""Detection of stalls: a rank whose current step is overdue.

A step is overdue if it takes longer than ``max(2 s, 4 x median step)``. Before the first finished step, and between
two steps (the hook reports none open), the limit is 30 s. No step is overdue while an announced phase is open or after
the rank ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tocsin.collectors.agent.rank_state import RankState

FLOOR_SECONDS: Final = 2.0
MEDIANS: Final = 4.0
FIRST_STEP_SECONDS: Final = 30.0
STILL_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Open:
    """A stall that was reported as begun."""

    where: tuple[str, bool]
    step: int
    since_mono_ns: int
    said_mono_ns: int


class StallWatch:
    """Detects the stalls of one rank and builds the payloads of ``stall`` events."""

    def __init__(self) -> None:
        """Start without a stall."""
        self._open: _Open | None = None

    def look(self, rank: RankState, mono_ns: int) -> dict[str, Any] | None:
        """Return the payload of the ``stall`` event to send now, None for no event."""
        overdue = self._overdue(rank, mono_ns)
        known = self._open
        if known is None:
            if not overdue:
                return None
            where = _where(rank)
            self._open = _Open(where, rank.step, rank.since_mono_ns, mono_ns)
            return _payload("begin", rank, where, rank.step, rank.since_mono_ns, mono_ns)
        if not overdue or rank.step != known.step:
            self._open = None
            return _payload("end", rank, known.where, known.step, known.since_mono_ns, mono_ns)
        where = _where(rank)
        edge = "change" if where != known.where else "still"
        if edge == "still" and mono_ns - known.said_mono_ns < STILL_SECONDS * 1e9:
            return None
        known.where, known.said_mono_ns = where, mono_ns
        return _payload(edge, rank, where, known.step, known.since_mono_ns, mono_ns)

    @staticmethod
    def _overdue(rank: RankState, mono_ns: int) -> bool:
        """Return whether the rank's current step is overdue."""
        floor = FLOOR_SECONDS if rank.step_count and rank.in_step else FIRST_STEP_SECONDS
        seconds = (mono_ns - rank.since_mono_ns) / 1e9
        if seconds <= floor or rank.ended or rank.is_announced() or not rank.since_mono_ns:
            return False
        return seconds > MEDIANS * rank.median_step_seconds()


def _where(rank: RankState) -> tuple[str, bool]:
    """Return the phase of a rank, and whether it is in a collective."""
    return rank.phase, bool(rank.inflight) or rank.phase == "communication"


def _payload(
    edge: str, rank: RankState, where: tuple[str, bool], step: int, since_mono_ns: int, mono_ns: int
) -> dict[str, Any]:
    """Build the payload of a ``stall`` event; ``edge``: ``begin``, ``change``, ``still`` or ``end``."""
    # Without a beat so far its age is counted from the first word of the hook
    alive_ns = rank.beat_mono_ns or rank.spoke_mono_ns
    return {
        "edge": edge,
        "step": step,
        "phase": where[0],
        "in_collective": where[1],
        "elapsed_seconds": round((mono_ns - since_mono_ns) / 1e9, 3),
        "beat_age_seconds": round((mono_ns - alive_ns) / 1e9, 3),
    }

"""A small memory page shared by the drill and its ranks: each rank's step, and the fault that it must inject.

It is a memory-mapped file with one slot per rank. Each field has one writer (the drill writes what to do, the rank
what it did), so no lock is needed: an aligned store of 8 bytes is atomic.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_SLOT_BYTES = 64
_STEP, _ORDER, _MAGNITUDE, _APPLIED_NS = 0, 8, 16, 24
_GATE, _LAST_STEP = 0, 8
NO_LAST_STEP = 2**62
"""Value of the last step while the job's end is not planned: it trains on."""


@dataclass(frozen=True, slots=True)
class RankOrder:
    """The fault that a rank must inject into itself.

    Attributes:
        number: number of the fault in ``orders.ORDERS``, 0: none.
        magnitude: strength of the fault; its unit depends on the fault.
    """

    number: int
    magnitude: float


class Board:
    """The shared page; slot 0 belongs to the job, slot 1 + r to rank r."""

    def __init__(self, path: Path, rank_count: int) -> None:
        """Map the page into memory.

        Args:
            path: the file, created by ``Board.create``.
            rank_count: number of ranks of the job.
        """
        self._rank_count = rank_count
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _SLOT_BYTES * (1 + rank_count))

    @classmethod
    def create(cls, path: Path, rank_count: int) -> Board:
        """Create the file, with no fault ordered and the start gate closed, and return its board."""
        path.write_bytes(b"\0" * (_SLOT_BYTES * (1 + rank_count)))
        board = cls(path, rank_count)
        board.set_last_step(NO_LAST_STEP)
        for rank in range(rank_count):
            board.set_step(rank, -1)
        return board

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()

    # --- the drill writes, the ranks read

    def open_gate(self) -> None:
        """Let the ranks begin to train (their agents listen now)."""
        self._put("<q", _GATE, 1)

    def gate_is_open(self) -> bool:
        """Return whether the ranks may begin to train."""
        return bool(self._get("<q", _GATE))

    def set_last_step(self, step: int) -> None:
        """Let the job end normally after this step."""
        self._put("<q", _LAST_STEP, step)

    def last_step(self) -> int:
        """Return the step after which the job ends."""
        return int(self._get("<q", _LAST_STEP))

    def give_order(self, rank: int, order: RankOrder) -> None:
        """Order a rank to inject a fault into itself at the beginning of its next step."""
        base = self._base(rank)
        self._put("<d", base + _MAGNITUDE, order.magnitude)
        self._put("<q", base + _ORDER, order.number)  # last: whoever sees it sees the magnitude

    def order(self, rank: int) -> RankOrder:
        """Return the fault that a rank must inject now."""
        base = self._base(rank)
        return RankOrder(int(self._get("<q", base + _ORDER)), float(self._get("<d", base + _MAGNITUDE)))

    # --- the ranks write, the drill reads

    def set_step(self, rank: int, step: int) -> None:
        """Store the step that a rank begins."""
        self._put("<q", self._base(rank) + _STEP, step)

    def step(self, rank: int) -> int:
        """Return the step that a rank is in; -1: it has not begun."""
        return int(self._get("<q", self._base(rank) + _STEP))

    def steps(self) -> list[int]:
        """Return the steps of all ranks."""
        return [self.step(rank) for rank in range(self._rank_count)]

    def set_applied(self, rank: int, now_ns: int) -> None:
        """Store the time when a rank injected its fault: the onset."""
        self._put("<q", self._base(rank) + _APPLIED_NS, now_ns)

    def applied_ns(self, rank: int) -> int:
        """Return when a rank injected its fault, in nanoseconds; 0: not yet."""
        return int(self._get("<q", self._base(rank) + _APPLIED_NS))

    def _base(self, rank: int) -> int:
        """Return the offset of a rank's slot."""
        return _SLOT_BYTES * (1 + rank)

    def _put(self, form: str, offset: int, value: float) -> None:
        """Write a value at an offset."""
        struct.pack_into(form, self._page, offset, value)

    def _get(self, form: str, offset: int) -> float:
        """Read a value at an offset."""
        value: float = struct.unpack_from(form, self._page, offset)[0]
        return value

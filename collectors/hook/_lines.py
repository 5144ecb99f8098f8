"""Numbered sequences of operations: the collectives of a group, and the messages from one rank to another."""

import weakref
from typing import Any

from tocsin.collectors.hook._recorder import Operation


class Line:
    """A numbered sequence of operations: the collectives of a group, or the messages from one rank to another.

    Attributes:
        comm_id: id of the sequence in records.
        last: the operation that finished last, None before the first.
    """

    __slots__ = ("_count", "comm_id", "last")

    def __init__(self, comm_id: str) -> None:
        self.comm_id = comm_id
        self.last: Operation | None = None
        self._count = 0

    def next_seq(self) -> int:
        """Return the number of the operation that is about to be called, from 1."""
        self._count += 1
        return self._count


class Communicator(Line):
    """One group as the wrappers see it.

    Attributes:
        members: global ranks, indexed by rank in the group.
        own_rank: this process's rank in the group.
        lines: messages between pairs of members, by (global source, global destination).
    """

    __slots__ = ("_group", "_sequence", "lines", "members", "own_rank")

    def __init__(self, group: Any, comm_id: str, members: list[int]) -> None:
        super().__init__(comm_id)
        self.members = members
        self.own_rank: int = group.rank()
        self.lines: dict[tuple[int, int], Line] = {}
        self._group = weakref.ref(group)  # a strong one would keep a destroyed group's connections open
        try:
            group._get_sequence_number_for_group()  # noqa: SLF001  # torch has no public name for it
            self._sequence = type(group)._get_sequence_number_for_group  # noqa: SLF001  # the same
        except (AttributeError, RuntimeError):
            self._sequence = None

    def stands_for(self, group: Any) -> bool:
        """Return whether this communicator belongs to this group object, not to a former one at the same address."""
        return self._group() is group

    def line(self, source: int, destination: int) -> Line:
        """Return the sequence of messages from one global rank to another, created if new."""
        key = (source, destination)
        if key not in self.lines:
            self.lines[key] = Line(f"{self.comm_id}:{source}>{destination}")
        return self.lines[key]

    def next_seq(self) -> int:
        """Return the number of the collective that is about to be called, from 1."""
        self._count += 1
        if self._sequence is None:
            return self._count
        return int(self._sequence(self._group())) + 1

"""Ownership of ranks: which processes may send datagrams for a rank.

Allowed are the process that sent for the rank first, its descendants, and the ancestors that it had then.

The kernel states who sent a datagram (process id and user). A process id with its start time is unique. A process
in a pid namespace that the agent does not see has the process id 0 for it; then only the user is known. Such a rank is
bound to its user, and two containers of one user can send for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from tocsin.schemas.records import JobKey

MAX_ANCESTORS: Final = 32


class LocalSender(NamedTuple):
    """The process and user that sent a datagram, from the kernel.

    Attributes:
        pid: process id in the agent's namespace, 0 if not visible from there.
        uid: user id, -1 if unknown.
    """

    pid: int
    uid: int


class Life(Enum):
    """State of a process: it runs, is gone, or cannot be seen."""

    RUNS = "runs"
    GONE = "gone"
    HIDDEN = "hidden"
    """The process cannot be seen: another pid namespace, or a /proc that shows each user only its own processes."""


class Sight(NamedTuple):
    """The observed state of a process.

    Attributes:
        life: whether it runs.
        start_ticks: start time in clock ticks, 0 if it does not run or is hidden.
        parent_pid: process id of its parent, 0 for none or unknown.
    """

    life: Life
    start_ticks: int = 0
    parent_pid: int = 0


class Processes(Protocol):
    """Interface to look at processes and to watch those of ranks."""

    def settle(self, job: JobKey, rank: int) -> None:
        """Stop watching a rank's process."""

    def look(self, pid: int) -> Sight:
        """Return the observed state of a process now."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process to which a rank is bound.

    Attributes:
        sender: the process and its user.
        sight: its observed state when the rank was bound to it.
        ancestors: process id -> start ticks of its ancestors at that time.
    """

    sender: LocalSender
    sight: Sight
    ancestors: dict[int, int] = field(default_factory=dict)


def holder_of(sender: LocalSender, processes: Processes) -> Holder:
    """Return the binding of a rank to a sender, with the sender's present state and ancestors."""
    sight = processes.look(sender.pid)
    ancestors: dict[int, int] = {}
    parent = sight.parent_pid
    while parent and parent not in ancestors and len(ancestors) < MAX_ANCESTORS:
        above = processes.look(parent)
        if above.life is not Life.RUNS:
            break
        ancestors[parent] = above.start_ticks
        parent = above.parent_pid
    return Holder(sender, sight, ancestors)


def is_same(holder: Holder, sender: LocalSender, processes: Processes) -> bool:
    """Return whether the sender is the process that holds the rank, and not another one with a reused id."""
    if sender.pid != holder.sender.pid:
        return False
    now = processes.look(sender.pid)
    if now.life is not Life.RUNS or holder.sight.life is not Life.RUNS:
        return sender.uid == holder.sender.uid  # its last words, or nobody can see it
    return now.start_ticks == holder.sight.start_ticks


def is_family(holder: Holder, sender: LocalSender, processes: Processes) -> bool:
    """Return whether a sender may send for the rank: its holder, a descendant, or one of the recorded ancestors."""
    if not sender.pid or not holder.sender.pid:
        return sender == holder.sender
    if sender.pid == holder.sender.pid:
        return is_same(holder, sender, processes)
    sight = processes.look(sender.pid)
    if sender.pid in holder.ancestors:  # a launcher may be gone when its last word is read
        return sight.life is not Life.RUNS or sight.start_ticks == holder.ancestors[sender.pid]
    for _ in range(MAX_ANCESTORS):
        parent, sight = sight.parent_pid, processes.look(sight.parent_pid)
        if not parent or sight.life is not Life.RUNS:
            return False
        if parent == holder.sender.pid:
            return sight.start_ticks == holder.sight.start_ticks
    return False


def still_runs(holder: Holder, processes: Processes) -> bool:
    """Return whether the holder's process still runs; one that cannot be seen counts as running."""
    now = processes.look(holder.sender.pid)
    if now.life is Life.RUNS and holder.sight.life is Life.RUNS:
        return now.start_ticks == holder.sight.start_ticks
    return now.life is not Life.GONE and holder.sight.life is not Life.GONE

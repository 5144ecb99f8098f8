"""Who may speak for a rank: the process that said so first, its descendants, and the ancestors that it had then.

The kernel says who sent a datagram (process id and user); a process id with its start time is one process for good. A
process in a pid namespace that the agent does not see has the process id 0 for it: then the user is all there is to go
by. Such a rank is bound to its user, and two containers of one user can speak for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from tocsin.schemas.records import JobKey

MAX_ANCESTORS: Final = 32


class LocalSender(NamedTuple):
    """Who sent a datagram, as the kernel says.

    Attributes:
        pid: process id in the agent's namespace, 0 = not visible from there.
        uid: user, -1 = unknown.
    """

    pid: int
    uid: int


class Life(Enum):
    """What is known of a process."""

    RUNS = "runs"
    GONE = "gone"
    HIDDEN = "hidden"
    """It cannot be seen: another pid namespace, or a /proc that shows each user its own only."""


class Sight(NamedTuple):
    """A look at a process.

    Attributes:
        life: whether it runs.
        start_ticks: when it started, 0 where it does not run or is hidden.
        parent_pid: its parent, 0 = none, or not known.
    """

    life: Life
    start_ticks: int = 0
    parent_pid: int = 0


class Processes(Protocol):
    """Looks at processes, and watches those of ranks."""

    def settle(self, job: JobKey, rank: int) -> None:
        """Stop watching a rank's process."""

    def look(self, pid: int) -> Sight:
        """Return what is known of a process now."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a rank is bound to.

    Attributes:
        sender: it.
        sight: what was seen of it when the rank was bound to it.
        ancestors: process id -> start ticks of its parents at that time.
    """

    sender: LocalSender
    sight: Sight
    ancestors: dict[int, int] = field(default_factory=dict)


def holder_of(sender: LocalSender, processes: Processes) -> Holder:
    """Return what binds a rank to a sender."""
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
    """Return whether the sender is the very process that holds the rank, and not one that got its id later."""
    if sender.pid != holder.sender.pid:
        return False
    now = processes.look(sender.pid)
    if now.life is not Life.RUNS or holder.sight.life is not Life.RUNS:
        return sender.uid == holder.sender.uid  # its last words, or nobody can see it
    return now.start_ticks == holder.sight.start_ticks


def is_family(holder: Holder, sender: LocalSender, processes: Processes) -> bool:
    """Return whether a sender may speak for the rank: the holder, a descendant, an ancestor as recorded."""
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
    """Return whether the holder's process is there now; one that cannot be seen counts as there."""
    now = processes.look(holder.sender.pid)
    if now.life is Life.RUNS and holder.sight.life is Life.RUNS:
        return now.start_ticks == holder.sight.start_ticks
    return now.life is not Life.GONE and holder.sight.life is not Life.GONE

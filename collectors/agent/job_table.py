"""The jobs of a host, and who may speak for them.

A job belongs to the user who spoke for it first, until it is over (a minute after its last process); a rank to its
process (``owners``). What anybody else says is refused by name. A job whose processes are gone makes room for others,
and where the table is full the user with the most jobs loses one: made-up jobs hide nobody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tocsin.collectors.agent.gpu_places import GpuPlaces
from tocsin.collectors.agent.job_state import HostPlace, JobState
from tocsin.collectors.agent.messages import Datagram, Exit, Hello
from tocsin.collectors.agent.rank_state import RankState
from tocsin.collectors.clock import Now
from tocsin.collectors.owners import (
    Holder,
    Life,
    LocalSender,
    Processes,
    holder_of,
    is_family,
    is_same,
    still_runs,
)
from tocsin.schemas.records import NS_PER_SECOND

MAX_JOBS: Final = 64
MAX_JOBS_A_PROCESS: Final = 8
"""Of the running jobs of a host, so many may have come up with datagrams of one process."""
MAX_RANKS: Final = 256
MAX_RANKS_A_USER: Final = 512
TALKING_NS: Final = 10 * NS_PER_SECOND
"""A hook speaks each second: a process that was silent for so long does not keep a new attempt out."""
SILENT_NS: Final = 15 * NS_PER_SECOND
"""In a full table a job without a step that was silent for so long makes room for another of its user."""


class Refusal(NamedTuple):
    """Why a datagram is not taken: a named reason, and a sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class JobEntry:
    """The state of the job that a datagram is about.

    Attributes:
        state: the job's.
        is_new: whether it is the job's or the attempt's first.
    """

    state: JobState
    is_new: bool


class JobTable:
    """The jobs of one host by (cluster, job id)."""

    def __init__(self, place: HostPlace, processes: Processes, on_end: Callable[[JobState], None]) -> None:
        """Know no job; ``on_end`` hears of each job and attempt that is forgotten."""
        self.jobs: dict[tuple[str, str], JobState] = {}
        self.gpus = GpuPlaces()
        self._place = place
        self._processes = processes
        self._on_end = on_end

    def enter(self, datagram: Datagram, sender: LocalSender, now: Now) -> JobEntry | Refusal:
        """Return the state of the datagram's job; a new attempt replaces the old one."""
        job = datagram.job
        name = (job.cluster, job.job_id)
        state = self.jobs.get(name)
        if state is not None and state.sender.uid != sender.uid and not self._speaks_for(state, datagram.rank, sender):
            if state.is_reserved(now):
                text = f"job {job.job_id} is user {state.sender.uid}'s here: user {sender.uid} may not speak for it"
                return Refusal("foreign_job", text)
            self.forget(name)
            state = None
        if state is not None and job.attempt < state.job.attempt:
            return Refusal("old_attempt", f"datagram of attempt {job.attempt} of {job.job_id}")
        if state is not None and job.attempt == state.job.attempt:
            return JobEntry(state, is_new=False)
        refusal = self._room(sender, now) if state is None else self._is_busy(state, datagram, sender, now)
        if refusal is not None:
            return refusal
        if state is not None:
            self.forget(name)
        state = self.jobs[name] = JobState(job, self._place, self.gpus, sender)
        state.made_mono_ns = now.mono_ns
        return JobEntry(state, is_new=True)

    def claim(self, state: JobState, datagram: Datagram, sender: LocalSender) -> RankState | Refusal:
        """Return the state of the datagram's rank, bound to the sender where it was bound to nobody who still runs."""
        number, body = datagram.rank, datagram.body
        rank = state.ranks.get(number)
        if rank is None:
            refusal = self._rank_room(state)
            if refusal is not None:
                return refusal
            rank = state.rank(number)
        if rank.holder is None:
            if not isinstance(body, Exit):  # a launcher's word for a child that never spoke
                rank.holder = holder_of(sender, self._processes)
            return rank
        if sender == rank.holder.sender and not isinstance(body, Hello):
            return rank
        found = self._of_family(state, rank, rank.holder, datagram, sender)
        if found is not None:
            return found
        holder = rank.holder.sender
        text = f"rank {number} of job {state.job.job_id} is process {holder.pid} of user {holder.uid}"
        return Refusal("foreign_rank", f"{text}: another process may not speak for it")

    def _of_family(
        self, state: JobState, rank: RankState, holder: Holder, datagram: Datagram, sender: LocalSender
    ) -> RankState | None:
        """Return the rank where a sender may speak for it, as its holder's relative or as its next process."""
        if isinstance(datagram.body, Exit):
            may = is_family(holder, sender, self._processes) or self._may_report(holder, sender)
            return rank if may else None
        if sender.uid == holder.sender.uid and is_same(holder, sender, self._processes):
            return rank
        is_hello = isinstance(datagram.body, Hello)
        if is_family(holder, sender, self._processes):
            return self._bind_anew(state, rank.rank, sender) if is_hello else rank
        if sender.uid == holder.sender.uid and (rank.ended or not still_runs(holder, self._processes)):
            return self._bind_anew(state, rank.rank, sender)
        return None

    def whose_exit(self, datagram: Datagram, body: Exit, sender: LocalSender) -> Datagram | None:
        """Whose exit it is: a supervisor knows the environment only, the process itself may have named its job.

        None: no rank's. It is that of a launcher, or of a worker that no rank is known to be.
        """
        pid = body.pid
        for state in self.jobs.values():
            for rank in state.ranks.values():
                if pid > 0 and rank.hello is not None and rank.holder is not None and pid in (rank.pid, rank.hello.pid):
                    holder = rank.holder
                    if is_family(holder, sender, self._processes) or self._may_report(holder, sender):
                        return datagram._replace(job=state.job, rank=rank.rank)
        if body.of == "worker":
            return self._below(datagram, pid, sender)
        return None if self._launched(datagram, body, sender) else datagram

    def _below(self, datagram: Datagram, pid: int, sender: LocalSender) -> Datagram | None:
        """Whose exit a worker's is that is no rank: a shell's is that of the one rank below it, if that is gone."""
        found = [
            (state.job, rank.rank)
            for state in self.jobs.values()
            for rank in state.ranks.values()
            if rank.holder is not None
            and pid in rank.holder.ancestors
            and is_family(rank.holder, sender, self._processes)
            and not still_runs(rank.holder, self._processes)
        ]
        return datagram._replace(job=found[0][0], rank=found[0][1]) if len(found) == 1 else None

    def _launched(self, datagram: Datagram, body: Exit, sender: LocalSender) -> bool:
        """Return whether a descendant of the process that ended is another rank than the one that it is said to be.

        The child of a supervisor that has one only is known by the supervisor too: it may have another id for us.
        """
        said = (datagram.job.cluster, datagram.job.job_id, datagram.rank)
        pids = {body.pid, sender.pid} - {0} if body.of == "command" else {body.pid} - {0}
        return any(
            rank.holder is not None and not pids.isdisjoint(rank.holder.ancestors) and (*name, number) != said
            for name, state in self.jobs.items()
            for number, rank in state.ranks.items()
        )

    def forget(self, name: tuple[str, str]) -> None:
        """Forget a job."""
        self._on_end(self.jobs.pop(name))

    def forget_over(self, now: Now) -> None:
        """Forget the jobs that are over, or never were."""
        for name, state in list(self.jobs.items()):
            if state.is_over(now):
                self.forget(name)

    def _speaks_for(self, state: JobState, number: int, sender: LocalSender) -> bool:
        """Return whether another user's process may speak for a rank: a launcher of root, a process that changed."""
        rank = state.ranks.get(number)
        return rank is not None and rank.holder is not None and is_family(rank.holder, sender, self._processes)

    @staticmethod
    def _may_report(holder: Holder, sender: LocalSender) -> bool:
        """Return whether a user may report the exit of a process whose parents were not seen."""
        return holder.sight.life is not Life.RUNS and sender.uid == holder.sender.uid

    def _bind_anew(self, state: JobState, number: int, sender: LocalSender) -> RankState:
        """A new process is the rank now."""
        self._processes.settle(state.job, number)
        state.restart(number)
        rank = state.rank(number)
        rank.holder = holder_of(sender, self._processes)
        return rank

    def _is_busy(self, state: JobState, datagram: Datagram, sender: LocalSender, now: Now) -> Refusal | None:
        """Refuse a new attempt of a stranger while the present one runs and speaks."""
        for rank in state.ranks.values():
            if rank.holder is not None and is_family(rank.holder, sender, self._processes):
                return None
        for rank in state.ranks.values():
            is_talking = not rank.ended and now.mono_ns - rank.spoke_mono_ns < TALKING_NS
            if is_talking and rank.holder is not None and still_runs(rank.holder, self._processes):
                job = state.job
                text = f"attempt {job.attempt} of {job.job_id} runs here: attempt {datagram.job.attempt} has to wait"
                return Refusal("attempt_runs", text)
        return None

    def _rank_room(self, state: JobState) -> Refusal | None:
        if len(state.ranks) >= MAX_RANKS:
            return Refusal("too_many_ranks", f"more than {MAX_RANKS} ranks of {state.job.job_id} on one host")
        mine = sum(len(other.ranks) for other in self.jobs.values() if other.sender.uid == state.sender.uid)
        if mine >= MAX_RANKS_A_USER:
            return Refusal("too_many_ranks", f"more than {MAX_RANKS_A_USER} ranks of user {state.sender.uid}")
        return None

    def _room(self, sender: LocalSender, now: Now) -> Refusal | None:
        """Make room for a job of a sender; None: there is room."""
        own = sum(state.sender.pid == sender.pid and state.lives(now) for state in self.jobs.values())
        if sender.pid and own >= MAX_JOBS_A_PROCESS:
            return Refusal("too_many_jobs", f"more than {MAX_JOBS_A_PROCESS} jobs by process {sender.pid}")
        if len(self.jobs) < MAX_JOBS:
            return None
        loser = self._loser(sender, now)
        if loser is None:
            return Refusal("too_many_jobs", f"more than {MAX_JOBS} jobs on one host")
        self.forget((loser.job.cluster, loser.job.job_id))
        return None

    def _loser(self, sender: LocalSender, now: Now) -> JobState | None:
        """Return the job that makes room: a dead one, one of the user with the most, one that never did anything."""
        states = list(self.jobs.values())
        dead = [state for state in states if not state.lives(now)]
        if dead:
            return min(dead, key=_standing)
        counts = Counter(state.sender.uid for state in states)
        uid, most = max(counts.items(), key=lambda item: (item[1], item[0]))
        if most > counts[sender.uid] + 1:
            return min((state for state in states if state.sender.uid == uid), key=_standing)
        limit = now.mono_ns - SILENT_NS
        silent = [s for s in states if s.sender.uid == sender.uid and not s.has_steps() and s.spoke_mono_ns() < limit]
        return min(silent, key=_standing, default=None)


def _standing(state: JobState) -> tuple[bool, int]:
    """Order jobs by how much would be lost: made steps or not, spoke how long ago."""
    return state.has_steps(), state.spoke_mono_ns()

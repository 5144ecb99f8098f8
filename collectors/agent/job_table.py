"""The jobs of a host, and who may send for them.

A job belongs to the user who sent for it first, until it is over (a minute after its last process). A rank belongs to
its process (``owners``). Datagrams of others are refused with a reason. A job whose processes are gone makes room for
others. If the table is full, the user with the most jobs loses one, so that made-up jobs displace nobody else's.
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
"""Most running jobs on a host that began with datagrams of one process."""
MAX_RANKS: Final = 256
MAX_RANKS_A_USER: Final = 512
TALKING_NS: Final = 10 * NS_PER_SECOND
"""A hook sends something each second; a process silent for longer does not block a new attempt."""
SILENT_NS: Final = 15 * NS_PER_SECOND
"""In a full table, a job without a step that was silent for longer makes room for another job of its user."""


class Refusal(NamedTuple):
    """Refusal of a datagram: a named reason, and a sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class JobEntry:
    """The state of a datagram's job.

    Attributes:
        state: state of the job.
        is_new: whether the datagram is the first of the job or attempt.
    """

    state: JobState
    is_new: bool


class JobTable:
    """The jobs of one host by (cluster, job id), with the checks of who may send for them."""

    def __init__(self, place: HostPlace, processes: Processes, on_end: Callable[[JobState], None]) -> None:
        """Start without any job; ``on_end`` is called with each job or attempt that is forgotten."""
        self.jobs: dict[tuple[str, str], JobState] = {}
        self.gpus = GpuPlaces()
        self._place = place
        self._processes = processes
        self._on_end = on_end

    def enter(self, datagram: Datagram, sender: LocalSender, now: Now) -> JobEntry | Refusal:
        """Return the state of the datagram's job, or why it is refused; a new attempt replaces the old one."""
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
        refusal = self._make_room(sender, now) if state is None else self._is_busy(state, datagram, sender, now)
        if refusal is not None:
            return refusal
        if state is not None:
            self.forget(name)
        state = self.jobs[name] = JobState(job, self._place, self.gpus, sender)
        state.made_mono_ns = now.mono_ns
        state.began_mono_ns = now.mono_ns - max(0, now.host_ns - datagram.ts_ns)
        return JobEntry(state, is_new=True)

    def claim(self, state: JobState, datagram: Datagram, sender: LocalSender) -> RankState | Refusal:
        """Return the state of the datagram's rank, or why it is refused.

        A rank whose process no longer runs is bound to the sender.
        """
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

    def begins(self, state: JobState, number: int, sender: LocalSender) -> None:
        """Note who told a stage of the start of a rank that has not greeted."""
        if number in state.starters or len(state.starters) < MAX_RANKS:
            state.starters[number] = Holder(sender, self._processes.look(sender.pid))

    def _of_family(
        self, state: JobState, rank: RankState, holder: Holder, datagram: Datagram, sender: LocalSender
    ) -> RankState | None:
        """Return the rank if the sender may send for it, as a relative of its process or as its next process.

        Else None.
        """
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
        """Return an exit datagram with the job and rank of the process that ended, None if it is no rank's.

        A supervisor knows only the environment; the process itself may have named another job. No rank's are exits of
        launchers, and of workers not known as ranks.
        """
        pid = body.pid
        for state in self.jobs.values():
            for rank in state.ranks.values():
                if pid > 0 and rank.hello is not None and rank.holder is not None and pid in (rank.pid, rank.hello.pid):
                    holder = rank.holder
                    if is_family(holder, sender, self._processes) or self._may_report(holder, sender):
                        return datagram._replace(job=state.job, rank=rank.rank)
        if body.of == "worker":
            return self._exit_of_descendant(datagram, pid, sender)
        return None if self._launched(datagram, body, sender) else datagram

    def _exit_of_descendant(self, datagram: Datagram, pid: int, sender: LocalSender) -> Datagram | None:
        """Return the exit of an unknown worker as that of the single rank that descends from it and is gone, else None.

        Such a worker is, for example, a shell that started the rank.
        """
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
        """Return whether another rank than the stated one descends from the process that ended.

        A supervisor with one child knows that child, which may have another process id for the agent.
        """
        identity = (datagram.job.cluster, datagram.job.job_id, datagram.rank)
        pids = {body.pid, sender.pid} - {0} if body.of == "command" else {body.pid} - {0}
        return any(
            rank.holder is not None and not pids.isdisjoint(rank.holder.ancestors) and (*name, number) != identity
            for name, state in self.jobs.items()
            for number, rank in state.ranks.items()
        )

    def forget(self, name: tuple[str, str]) -> None:
        """Remove a job and call ``on_end``."""
        self._on_end(self.jobs.pop(name))

    def forget_over(self, now: Now) -> None:
        """Remove the jobs that are over or were never real; one that starts may take minutes until its first hello."""
        for name, state in list(self.jobs.items()):
            if state.is_over(now) and not state.is_starting(now, self._processes):
                self.forget(name)

    def _speaks_for(self, state: JobState, number: int, sender: LocalSender) -> bool:
        """Return whether another user's process may send for a rank, e.g.

        a launcher of root or a process that changed user.
        """
        rank = state.ranks.get(number)
        return rank is not None and rank.holder is not None and is_family(rank.holder, sender, self._processes)

    @staticmethod
    def _may_report(holder: Holder, sender: LocalSender) -> bool:
        """Return whether a user may report the exit of a process whose parents are unknown."""
        return holder.sight.life is not Life.RUNS and sender.uid == holder.sender.uid

    def _bind_anew(self, state: JobState, number: int, sender: LocalSender) -> RankState:
        """Bind a rank to a new process and return its new state."""
        self._processes.settle(state.job, number)
        state.restart(number)
        rank = state.rank(number)
        rank.holder = holder_of(sender, self._processes)
        return rank

    def _is_busy(self, state: JobState, datagram: Datagram, sender: LocalSender, now: Now) -> Refusal | None:
        """Refuse a stranger's new attempt while the present one runs and sends; None to accept it."""
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
        """Return a refusal if the job or its user has too many ranks on this host, else None."""
        if len(state.ranks) >= MAX_RANKS:
            return Refusal("too_many_ranks", f"more than {MAX_RANKS} ranks of {state.job.job_id} on one host")
        mine = sum(len(other.ranks) for other in self.jobs.values() if other.sender.uid == state.sender.uid)
        if mine >= MAX_RANKS_A_USER:
            return Refusal("too_many_ranks", f"more than {MAX_RANKS_A_USER} ranks of user {state.sender.uid}")
        return None

    def _make_room(self, sender: LocalSender, now: Now) -> Refusal | None:
        """Make room for a new job of a sender; return a refusal if there is none, else None."""
        own = sum(state.sender.pid == sender.pid and state.lives(now) for state in self.jobs.values())
        if sender.pid and own >= MAX_JOBS_A_PROCESS:
            return Refusal("too_many_jobs", f"more than {MAX_JOBS_A_PROCESS} jobs by process {sender.pid}")
        if len(self.jobs) < MAX_JOBS:
            return None
        removed = self._job_to_remove(sender, now)
        if removed is None:
            return Refusal("too_many_jobs", f"more than {MAX_JOBS} jobs on one host")
        self.forget((removed.job.cluster, removed.job.job_id))
        return None

    def _job_to_remove(self, sender: LocalSender, now: Now) -> JobState | None:
        """Return the job to remove from a full table, None if there is none.

        Preferred are jobs without a live process, then one of the user with the most jobs, then a silent one without
        steps.
        """
        states = list(self.jobs.values())
        dead = [state for state in states if not state.lives(now)]
        if dead:
            return min(dead, key=_removal_order)
        counts = Counter(state.sender.uid for state in states)
        uid, most = max(counts.items(), key=lambda item: (item[1], item[0]))
        if most > counts[sender.uid] + 1:
            return min((state for state in states if state.sender.uid == uid), key=_removal_order)
        limit = now.mono_ns - SILENT_NS
        silent = [s for s in states if s.sender.uid == sender.uid and not s.has_steps() and s.spoke_mono_ns() < limit]
        return min(silent, key=_removal_order, default=None)


def _removal_order(state: JobState) -> tuple[bool, int]:
    """Sort key of jobs by how much their removal would lose: whether they made steps, when they last sent something."""
    return state.has_steps(), state.spoke_mono_ns()

"""What one peer may make the engine remember: hosts, jobs, ranks.

An honest agent speaks for one host, of at most 64 jobs, of at most 256 ranks each (its own bounds). Whoever makes up
more is refused by name; what was accepted is forgotten again when it is not spoken of for a while.

Attempts are counted for each peer: one that makes up attempts pays with its own older ones, and never with an attempt
that another peer speaks of, or that has an open verdict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tocsin.schemas.errors import TooManyError
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    CollectiveBatch,
    Event,
    JobKey,
    JobRecord,
    ProbeAnswer,
    StepBatch,
    Topology,
)


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Bounds of what is remembered.

    Attributes:
        peer_count: peers whose names are counted; the one that spoke longest ago is forgotten for another.
        peer_host_count: host names that one peer may use.
        host_job_count: jobs that one host may speak of; the agent's own bound, and the idle one.
        job_attempt_count: attempts of a job that one peer may speak of: its older one goes when a newer one begins.
        peer_attempt_count: attempts of all jobs that one peer may speak of: far less than ``job_count``.
        host_rank_count: ranks of one attempt that one host may speak of: the agent's own bound.
        job_count: attempts of all jobs together: each has a turn every second.
        forget_seconds: what a peer has not spoken of for so long does not count any more; an agent speaks of each job
            every few seconds.
        quiet_seconds: where ``job_count`` is reached, an attempt goes that nobody spoke of for so long and that has no
            verdict.
    """

    peer_count: int = 20_000
    peer_host_count: int = 64
    host_job_count: int = 65
    job_attempt_count: int = 8
    peer_attempt_count: int = 128
    host_rank_count: int = 256
    job_count: int = 2_000
    forget_seconds: float = 120.0
    quiet_seconds: float = 60.0


_OWN_STATE = ""
"""Stands for the peers that spoke before the engine was started again; no peer has this name."""


@dataclass(slots=True)
class _Host:
    """What one host speaks of.

    Attributes:
        heard_seconds: when it last spoke.
        jobs: (cluster, job) -> when it was last spoken of.
        ranks: attempt -> its ranks; as many attempts as jobs, the oldest go first.
    """

    heard_seconds: float
    jobs: dict[tuple[str, str], float] = field(default_factory=dict)
    ranks: OrderedDict[JobKey, set[int]] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class _Peer:
    """What one peer speaks of.

    Attributes:
        hosts: the host names that it uses.
        attempts: attempt -> when it last spoke of it, the oldest first.
    """

    hosts: dict[str, _Host] = field(default_factory=dict)
    attempts: OrderedDict[JobKey, float] = field(default_factory=OrderedDict)


class Intake:
    """Counts what peers speak of; not thread-safe, the listener's thread owns it."""

    def __init__(
        self,
        limits: IntakeLimits,
        is_held: Callable[[JobKey], bool] = lambda _job: False,
        forget: Callable[[JobKey], None] = lambda _job: None,
    ) -> None:
        """Know nothing yet.

        Args:
            limits: the bounds.
            is_held: whether an attempt has an open verdict, and so is not forgotten to make room: nothing stays open
                that nobody closes.
            forget: makes the engine forget an attempt.
        """
        self._limits = limits
        self._is_held = is_held
        self._forget = forget
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._jobs: OrderedDict[JobKey, float] = OrderedDict()
        self._speakers: dict[JobKey, set[str]] = {}
        """Attempt -> the peers that count it as theirs."""

    def begin(self, known: Iterable[JobKey], now_seconds: float) -> None:
        """Know the attempts that the engine took up from its state: they count as if somebody had spoken of them now.

        Args:
            known: attempts that the engine has a turn for.
            now_seconds: a steady clock.
        """
        for job in sorted(known):
            self._job(_OWN_STATE, job, now_seconds)

    def check(self, peer: str, record: JobRecord, now_seconds: float) -> None:
        """Count a record's names, or refuse them.

        Args:
            peer: who sent it: a signed-in peer, or an address.
            record: what it sent.
            now_seconds: a steady clock.

        Raises:
            TooManyError: it is the one name too many; ``reason`` says of what.
        """
        limits = self._limits
        host = self._host(peer, record.host, now_seconds)
        name = (record.job.cluster, record.job.job_id)
        if name not in host.jobs and len(host.jobs) >= limits.host_job_count:
            _expire(host.jobs, now_seconds - limits.forget_seconds)
            if len(host.jobs) >= limits.host_job_count:
                raise TooManyError("jobs", f"host {record.host[:80]!r} speaks of", limits.host_job_count)
        self._job(peer, record.job, now_seconds)
        host.jobs[name] = host.heard_seconds = now_seconds
        if ranks := _ranks_of(record):
            self._ranks(host, record, ranks)

    def _host(self, peer: str, name: str, now_seconds: float) -> _Host:
        hosts = self._peers.setdefault(peer, _Peer()).hosts
        self._peers.move_to_end(peer)
        if len(self._peers) > self._limits.peer_count:
            gone, known = self._peers.popitem(last=False)
            for job in known.attempts:
                self._unsaid(gone, job)
        host = hosts.get(name)
        if host is not None:
            return host
        if len(hosts) >= self._limits.peer_host_count:
            begin = now_seconds - self._limits.forget_seconds
            for old in [key for key, one in hosts.items() if one.heard_seconds < begin]:
                del hosts[old]
            if len(hosts) >= self._limits.peer_host_count:
                raise TooManyError("hosts", "one connection's peer speaks for", self._limits.peer_host_count)
        host = hosts[name] = _Host(now_seconds)
        return host

    def _job(self, peer: str, job: JobKey, now_seconds: float) -> None:
        attempts = self._peers.setdefault(peer, _Peer()).attempts
        if job not in attempts and peer != _OWN_STATE:
            self._bound_attempts(peer, job, now_seconds)
        if job not in self._jobs and len(self._jobs) >= self._limits.job_count and peer != _OWN_STATE:
            self._make_room(now_seconds)
        self._jobs[job] = attempts[job] = now_seconds
        self._jobs.move_to_end(job)
        attempts.move_to_end(job)
        self._speakers.setdefault(job, set()).add(peer)

    def _bound_attempts(self, peer: str, job: JobKey, now_seconds: float) -> None:
        """One more attempt of a peer: an older one of its own goes where it has too many, or this one is refused."""
        limits, attempts = self._limits, self._peers[peer].attempts
        own = [key for key in attempts if (key.cluster, key.job_id) == (job.cluster, job.job_id)]
        if len(own) >= limits.job_attempt_count:
            older = sorted(key for key in own if key.attempt < job.attempt)
            if not any(self._gives_way(peer, key, now_seconds) for key in older):
                raise TooManyError("attempts", f"peer {peer[:80]!r} speaks, in job {job.job_id[:80]!r}, of", len(own))
        if len(attempts) >= limits.peer_attempt_count:
            begin = now_seconds - limits.quiet_seconds
            quiet = [key for key, seconds in attempts.items() if seconds < begin]
            if not any(self._gives_way(peer, key, now_seconds) for key in quiet):
                raise TooManyError("attempts", f"peer {peer[:80]!r} speaks, in all jobs, of", limits.peer_attempt_count)

    def _gives_way(self, peer: str, job: JobKey, now_seconds: float) -> bool:
        """Whether an attempt counts as this peer's no more: others speak of it, or it is forgotten."""
        begin = now_seconds - self._limits.forget_seconds
        others = (self._peers[one].attempts[job] for one in self._speakers[job] if one != peer)
        if any(seconds >= begin for seconds in others):
            del self._peers[peer].attempts[job]
            self._unsaid(peer, job)
            return True
        if self._is_held(job):
            return False
        self._drop(job)
        return True

    def _unsaid(self, peer: str, job: JobKey) -> None:
        """An attempt counts as this peer's no more."""
        speakers = self._speakers[job]
        speakers.discard(peer)
        if not speakers:
            del self._speakers[job]

    def _make_room(self, now_seconds: float) -> None:
        for job, heard_seconds in self._jobs.items():
            if now_seconds - heard_seconds < self._limits.quiet_seconds:
                break
            if job.job_id != IDLE_JOB_ID and not self._is_held(job):
                self._drop(job)
                return
        raise TooManyError("jobs_in_all", "the engine knows", self._limits.job_count)

    def _drop(self, job: JobKey) -> None:
        self._forgotten(job)
        self._forget(job)

    def _forgotten(self, job: JobKey) -> None:
        self._jobs.pop(job, None)
        for peer in self._speakers.pop(job, ()):
            del self._peers[peer].attempts[job]

    def _ranks(self, host: _Host, record: JobRecord, ranks: set[int]) -> None:
        known = host.ranks.setdefault(record.job, set())
        host.ranks.move_to_end(record.job)
        if len(host.ranks) > self._limits.host_job_count:
            host.ranks.popitem(last=False)
        if len(known | ranks) > self._limits.host_rank_count:
            text = f"host {record.host[:80]!r} speaks, in job {record.job.job_id[:80]!r}, of"
            raise TooManyError("ranks", text, self._limits.host_rank_count)
        known |= ranks

    def forget_old(self, known: Iterable[JobKey], now_seconds: float) -> None:
        """Forget what the engine has forgotten, and peers that are gone; called once in a while.

        Args:
            known: attempts that the engine has a turn for.
            now_seconds: a steady clock.
        """
        begin = now_seconds - self._limits.forget_seconds
        for job in self._jobs.keys() - set(known):
            if self._jobs[job] < now_seconds - self._limits.quiet_seconds:  # younger: its first turn may still come
                self._forgotten(job)
        for name, peer in list(self._peers.items()):
            for host in [key for key, host in peer.hosts.items() if host.heard_seconds < begin]:
                del peer.hosts[host]
            for job in [job for job, seconds in peer.attempts.items() if seconds < begin]:
                if len(self._speakers[job]) > 1 or not self._is_held(job):  # else it keeps what only it speaks of
                    del peer.attempts[job]
                    self._unsaid(name, job)
            if not peer.hosts and not peer.attempts:
                del self._peers[name]


def _expire(seen: dict[tuple[str, str], float], begin_seconds: float) -> None:
    for key in [key for key, seconds in seen.items() if seconds < begin_seconds]:
        del seen[key]


def _ranks_of(record: JobRecord) -> set[int]:
    """The ranks that a record says something of; those of a communicator's members are named by everybody."""
    if isinstance(record, StepBatch | CollectiveBatch):
        return {row.rank for row in record.rows}
    if isinstance(record, Topology):
        return {place.rank for place in record.places}
    if isinstance(record, Event | ProbeAnswer) and record.rank >= 0:
        return {record.rank}
    return set()

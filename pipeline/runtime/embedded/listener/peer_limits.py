"""Limit the hosts, jobs, attempts and ranks that one peer can make the engine remember.

An honest agent reports one host, at most 64 jobs and at most 256 ranks of each (its own bounds). Names beyond the
limits are refused with a reason. Accepted names are forgotten when they are not used for a while. A peer that invents
attempts loses its own older ones, never an attempt that another peer reports or that has an open verdict.
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
    """Limits on remembered names.

    Attributes:
        peer_count: tracked peers; beyond it the least recently heard one is forgotten.
        peer_host_count: host names that one peer may use.
        host_job_count: jobs that one host may report: the agent's own bound, plus the idle job.
        job_attempt_count: attempts of one job that one peer may report; a newer one replaces an older one.
        peer_attempt_count: attempts of all jobs that one peer may report; far below ``job_count``.
        host_rank_count: ranks of one attempt that one host may report: the agent's own bound.
        job_count: attempts of all jobs together; each is processed every second.
        forget_seconds: names that a peer did not use for this long no longer count; agents use each every few seconds.
        quiet_seconds: at ``job_count``, an attempt that nobody reported for this long makes way if it has no open
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
"""Peer name for attempts restored from the engine's state; no real peer has it."""


@dataclass(slots=True)
class _Host:
    """Names that one host uses.

    Attributes:
        heard_seconds: when it was last heard.
        jobs: (cluster, job) -> when the host last reported it.
        ranks: attempt -> its ranks, least recently used first; bounded like the jobs.
    """

    heard_seconds: float
    jobs: dict[tuple[str, str], float] = field(default_factory=dict)
    ranks: OrderedDict[JobKey, set[int]] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class _Peer:
    """Names that one peer uses.

    Attributes:
        hosts: host name -> what that host uses.
        attempts: attempt -> when the peer last reported it, least recently used first.
    """

    hosts: dict[str, _Host] = field(default_factory=dict)
    attempts: OrderedDict[JobKey, float] = field(default_factory=OrderedDict)


class Intake:
    """Counts the names that peers use; used by the listener's thread only."""

    def __init__(
        self,
        limits: IntakeLimits,
        is_held: Callable[[JobKey], bool] = lambda _job: False,
        forget: Callable[[JobKey], None] = lambda _job: None,
    ) -> None:
        """Start without names.

        Args:
            limits: the limits.
            is_held: returns whether an attempt has an open verdict, and so must not be forgotten.
            forget: makes the engine forget an attempt.
        """
        self._limits = limits
        self._is_held = is_held
        self._forget = forget
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._jobs: OrderedDict[JobKey, float] = OrderedDict()
        self._reporters: dict[JobKey, set[str]] = {}
        """Attempt -> the peers that it counts for."""

    def begin(self, known: Iterable[JobKey], now_seconds: float) -> None:
        """Count the attempts of a restored engine as if they had just been reported.

        Args:
            known: the attempts that the engine processes.
            now_seconds: monotonic time.
        """
        for job in sorted(known):
            self._job(_OWN_STATE, job, now_seconds)

    def check(self, peer: str, record: JobRecord, now_seconds: float) -> None:
        """Count the names in a record, or refuse the record.

        Args:
            peer: the sender: a principal, or an address.
            record: the record.
            now_seconds: monotonic time.

        Raises:
            TooManyError: a limit would be exceeded; ``reason`` says which.
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
        """Return the entry of a peer's host, adding it if the limit allows."""
        hosts = self._peers.setdefault(peer, _Peer()).hosts
        self._peers.move_to_end(peer)
        if len(self._peers) > self._limits.peer_count:
            gone, known = self._peers.popitem(last=False)
            for job in known.attempts:
                self._uncount(gone, job)
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
        """Count an attempt for a peer, making room for it if needed."""
        attempts = self._peers.setdefault(peer, _Peer()).attempts
        if job not in attempts and peer != _OWN_STATE:
            self._bound_attempts(peer, job, now_seconds)
        if job not in self._jobs and len(self._jobs) >= self._limits.job_count and peer != _OWN_STATE:
            self._make_room(now_seconds)
        self._jobs[job] = attempts[job] = now_seconds
        self._jobs.move_to_end(job)
        attempts.move_to_end(job)
        self._reporters.setdefault(job, set()).add(peer)

    def _bound_attempts(self, peer: str, job: JobKey, now_seconds: float) -> None:
        """Make room for one more attempt of a peer by giving up an older one of its own.

        Raise ``TooManyError`` if impossible.
        """
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
        """Give up a peer's attempt, and return whether that was possible.

        If other peers report the attempt it just stops counting for this peer; otherwise it is forgotten, unless it has
        an open verdict.
        """
        begin = now_seconds - self._limits.forget_seconds
        others = (self._peers[one].attempts[job] for one in self._reporters[job] if one != peer)
        if any(seconds >= begin for seconds in others):
            del self._peers[peer].attempts[job]
            self._uncount(peer, job)
            return True
        if self._is_held(job):
            return False
        self._drop(job)
        return True

    def _uncount(self, peer: str, job: JobKey) -> None:
        """Stop counting an attempt for a peer."""
        reporters = self._reporters[job]
        reporters.discard(peer)
        if not reporters:
            del self._reporters[job]

    def _make_room(self, now_seconds: float) -> None:
        """Forget the least recently reported attempt that is quiet and has no open verdict.

        Raise ``TooManyError`` if none is.
        """
        for job, heard_seconds in self._jobs.items():
            if now_seconds - heard_seconds < self._limits.quiet_seconds:
                break
            if job.job_id != IDLE_JOB_ID and not self._is_held(job):
                self._drop(job)
                return
        raise TooManyError("jobs_in_all", "the engine knows", self._limits.job_count)

    def _drop(self, job: JobKey) -> None:
        """Forget an attempt here and in the engine."""
        self._forgotten(job)
        self._forget(job)

    def _forgotten(self, job: JobKey) -> None:
        """Remove an attempt from all counts."""
        self._jobs.pop(job, None)
        for peer in self._reporters.pop(job, ()):
            del self._peers[peer].attempts[job]

    def _ranks(self, host: _Host, record: JobRecord, ranks: set[int]) -> None:
        """Count the ranks of a record for its host; raise ``TooManyError`` beyond the limit."""
        known = host.ranks.setdefault(record.job, set())
        host.ranks.move_to_end(record.job)
        if len(host.ranks) > self._limits.host_job_count:
            host.ranks.popitem(last=False)
        if len(known | ranks) > self._limits.host_rank_count:
            text = f"host {record.host[:80]!r} speaks, in job {record.job.job_id[:80]!r}, of"
            raise TooManyError("ranks", text, self._limits.host_rank_count)
        known |= ranks

    def forget_old(self, known: Iterable[JobKey], now_seconds: float) -> None:
        """Remove attempts that the engine has forgotten, and names that were not used for a while; called now and then.

        Args:
            known: the attempts that the engine processes.
            now_seconds: monotonic time.
        """
        begin = now_seconds - self._limits.forget_seconds
        for job in self._jobs.keys() - set(known):
            if self._jobs[job] < now_seconds - self._limits.quiet_seconds:  # younger: its first turn may still come
                self._forgotten(job)
        for name, peer in list(self._peers.items()):
            for host in [key for key, host in peer.hosts.items() if host.heard_seconds < begin]:
                del peer.hosts[host]
            for job in [job for job, seconds in peer.attempts.items() if seconds < begin]:
                if len(self._reporters[job]) > 1 or not self._is_held(job):  # else it keeps what only it speaks of
                    del peer.attempts[job]
                    self._uncount(name, job)
            if not peer.hosts and not peer.attempts:
                del self._peers[name]


def _expire(seen: dict[tuple[str, str], float], begin_seconds: float) -> None:
    """Remove entries last used before ``begin_seconds``."""
    for key in [key for key, seconds in seen.items() if seconds < begin_seconds]:
        del seen[key]


def _ranks_of(record: JobRecord) -> set[int]:
    """Return the ranks that a record reports on; members of communication groups are not counted."""
    if isinstance(record, StepBatch | CollectiveBatch):
        return {row.rank for row in record.rows}
    if isinstance(record, Topology):
        return {place.rank for place in record.places}
    if isinstance(record, Event | ProbeAnswer) and record.rank >= 0:
        return {record.rank}
    return set()

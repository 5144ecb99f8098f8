"""What an embedded engine knows of jobs and machines, as facts for its controller of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from tocsin.pipeline.runtime.embedded.actions.group_facts import GroupFacts
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.job_changes import changes_of_job
from tocsin.schemas.action_events import ActionEvent, JobFacts, MachineFacts
from tocsin.schemas.records import NS_PER_SECOND, JobKey

_LOOK_NS: Final = 5 * NS_PER_SECOND
"""Distance of two looks at the engine's jobs."""
_MOST_REMEMBERED: Final = 100_000


class EngineFacts:
    """Tells what changed since it was asked last: of machines, idle ones included, and of each running attempt."""

    def __init__(self, engine: EmbeddedEngine, told: Callable[[], Iterable[MachineFacts | JobFacts]]) -> None:
        """Look at an engine; nothing was told yet.

        Args:
            engine: the engine.
            told: returns what agents and ranks told of machines and jobs, with any time.
        """
        self._engine = engine
        self._of_agents = told
        self._looked_ns = -_LOOK_NS
        self._told: dict[tuple[str, str], ActionEvent] = {}
        self._groups = GroupFacts()
        self._running: frozenset[JobKey] = frozenset()
        """The attempts that ran at the last look."""

    def changed(self, now_ns: int) -> Iterator[ActionEvent]:
        """Yield the facts that changed, looking at most every five seconds, at hosts and changes of attempts each time.

        Args:
            now_ns: the present time, which they carry.
        """
        if len(self._told) > _MOST_REMEMBERED:
            self._told.clear()
        yield from self._changes(now_ns)
        if now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        for fact in self._of_agents():
            found = replace(fact, ts_ns=now_ns)
            if isinstance(found, MachineFacts):
                yield from self._if_new((found.cluster, f"facts {found.host}"), found)
            else:
                yield from self._if_new((found.job.cluster, f"names {found.job.job_id}"), found)
        running = frozenset(self._newest_attempts())
        yield from (JobFacts(job, now_ns, is_over=True) for job in sorted(self._running - running))
        self._running = running
        for job in sorted(running):
            pipeline = self._engine.pipeline(job)
            if pipeline is None:
                continue
            placement = pipeline.graph.placement
            for host, (leaf, minipod) in sorted(placement.switches_of_hosts().items()):
                known = MachineFacts(job.cluster, host, now_ns, leaf=leaf, minipod=minipod)
                yield from self._if_new((job.cluster, f"host {host}"), known)
            groups = self._groups.of(job, placement)
            if groups:
                fact = JobFacts(job, now_ns, groups=groups)
                yield from self._if_new((job.cluster, f"groups {job.job_id}"), fact)

    def _changes(self, now_ns: int) -> Iterator[ActionEvent]:
        """Yield the hosts and changes of running attempts: an action of this second has to know them."""
        for job in self._newest_attempts():
            pipeline = self._engine.pipeline(job)
            if pipeline is None:
                continue
            hosts = tuple(sorted(pipeline.graph.placement.hosts()))
            if hosts:
                yield from self._if_new((job.cluster, f"job {job.job_id}"), JobFacts(job, now_ns, hosts))
            changes = changes_of_job(pipeline)
            if changes:
                fact = JobFacts(job, now_ns, changes=changes)
                yield from self._if_new((job.cluster, f"changes {job.job_id}"), fact)

    def _newest_attempts(self) -> list[JobKey]:
        """Return the newest running attempt of each job, sorted."""
        newest = {(job.cluster, job.job_id): job for job in sorted(self._engine.running_jobs())}
        return list(newest.values())

    def _if_new(self, key: tuple[str, str], fact: MachineFacts | JobFacts) -> Iterator[ActionEvent]:
        """Yield a fact unless the same was told last, whatever its time."""
        timeless = replace(fact, ts_ns=0)
        if self._told.get(key) != timeless:
            self._told[key] = timeless
            yield fact

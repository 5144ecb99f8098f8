"""What the Flink job's states of attempts prove about jobs and the engine, as facts for the controller of actions.

The job writes the state of each attempt every ten seconds of event time, after it has judged that second. So the newest
state of a cluster says up to when the engine has judged it: that is the engine's heartbeat. Verdicts cannot be it, as a
healthy job has none, and neither can ticks, which come without any engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tocsin.pipeline.actions.quiet_steps import QuietCounter
from tocsin.pipeline.job.place_columns import places_of_rows
from tocsin.pipeline.runtime.embedded.actions.group_facts import groups_of
from tocsin.pipeline.stores.base import JobStatus
from tocsin.schemas.action_events import (
    ActionEvent,
    AttemptChange,
    EngineHeartbeat,
    EngineWay,
    JobFacts,
    MachineFacts,
    QuietSteps,
)
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.plain_objects import read_object
from tocsin.schemas.records import NS_PER_SECOND

_LOOK_NS: Final = 5 * NS_PER_SECOND
"""Distance of two looks at the machines."""
_MOST_REMEMBERED: Final = 100_000


@dataclass(slots=True)
class _PlacedJob:
    """The newest places of an attempt: as they were told, its groups, and the switches of its machines."""

    told: object
    groups: JobFacts
    machines: list[MachineFacts]


class StatusFacts:
    """Remembers what was told, and tells what changed."""

    def __init__(self, quiet_step_count: int = 500) -> None:
        """Start without knowledge.

        Args:
            quiet_step_count: after so many steps without a sign of a fault a machine's steps are told.
        """
        self.quiet = QuietCounter(quiet_step_count)
        self._steps: list[QuietSteps] = []
        self._judged_ns: dict[str, int] = {}
        self._hosts: dict[tuple[str, str], JobFacts] = {}
        self._changes: dict[tuple[str, str], JobFacts] = {}
        self._placed: dict[tuple[str, str], _PlacedJob] = {}
        self._told: dict[tuple[str, str], ActionEvent] = {}
        self._looked_ns = 0

    def take(self, status: JobStatus) -> None:
        """Take the state of an attempt; of one that ended or was superseded only the time counts."""
        job, state = status.job, status.state
        self._judged_ns[job.cluster] = max(self._judged_ns.get(job.cluster, 0), status.ts_ns)
        if not status.is_known or state.get("superseded"):
            return
        if state.get("ended"):
            self._take_end(job, status.ts_ns)
            return
        self._take_steps(job, state.get("ranks", {}))
        self._take_changes(job, state.get("changes", ()), status.ts_ns)
        self._take_places(job, state.get("places"), status.ts_ns)
        hosts = state.get("hosts", {})
        is_whole = isinstance(hosts, dict) and len(hosts) == state.get("host_count")
        known = self._hosts.get((job.cluster, job.job_id))
        if not is_whole or not hosts or (known is not None and _is_later(known, job, status.ts_ns)):
            return
        self._hosts[job.cluster, job.job_id] = JobFacts(job, status.ts_ns, tuple(sorted(hosts)))
        if len(self._hosts) > _MOST_REMEMBERED:
            del self._hosts[next(iter(self._hosts))]

    def _take_changes(self, job: JobKey, changes: object, ts_ns: int) -> None:
        """Take what was changed about an attempt; a state of an older engine says nothing of it."""
        known = self._changes.get((job.cluster, job.job_id))
        if not changes or not isinstance(changes, list) or (known is not None and _is_later(known, job, ts_ns)):
            return
        found = tuple(read_object(AttemptChange, one, "changes") for one in changes)
        self._changes[job.cluster, job.job_id] = JobFacts(job, ts_ns, changes=found)
        if len(self._changes) > _MOST_REMEMBERED:
            del self._changes[next(iter(self._changes))]

    def _take_places(self, job: JobKey, told: object, ts_ns: int) -> None:
        """Take where the ranks of an attempt are; groups are made anew only where something moved."""
        key = job.cluster, job.job_id
        known = self._placed.get(key)
        if told is None or (known is not None and _is_later(known.groups, job, ts_ns)):
            return
        if known is not None and known.groups.job == job and known.told == told:
            known.groups = replace(known.groups, ts_ns=ts_ns)
            return
        places = places_of_rows(told, "places")
        switches = {one.host: (one.leaf, one.minipod) for one in places.values() if one.leaf}
        machines = [MachineFacts(job.cluster, host, ts_ns, leaf=a, minipod=b) for host, (a, b) in switches.items()]
        self._placed[key] = _PlacedJob(told, JobFacts(job, ts_ns, groups=groups_of(places)), machines)
        if len(self._placed) > _MOST_REMEMBERED:
            del self._placed[next(iter(self._placed))]

    def _take_end(self, job: JobKey, ts_ns: int) -> None:
        """Take that an attempt ended: it uses no machine any more."""
        known = self._hosts.get((job.cluster, job.job_id))
        if known is not None and known.job == job:
            self._hosts[job.cluster, job.job_id] = replace(known, ts_ns=ts_ns, is_over=True)

    def _take_steps(self, job: JobKey, ranks: object) -> None:
        """Take the newest step of each machine whose ranks the state lists; a very large job lists only some."""
        newest: dict[str, tuple[int, int]] = {}
        for facts in ranks.values() if isinstance(ranks, dict) else ():
            host, step, seconds = (facts.get(name) for name in ("host", "step", "last_seen_seconds"))
            if isinstance(host, str) and host and isinstance(step, int) and isinstance(seconds, int | float):
                at_ns = self._judged_ns[job.cluster] - int(seconds * NS_PER_SECOND)
                newest[host] = max(newest.get(host, (step, at_ns)), (step, at_ns))
        for host, (step, at_ns) in newest.items():
            told = self.quiet.on_step(job, host, step, at_ns)
            if told is not None:
                self._steps.append(told)

    def due(
        self, told: Iterable[MachineFacts | JobFacts], now_ns: int, *, with_heartbeats: bool
    ) -> Iterator[ActionEvent]:
        """Yield what changed since the last call, and the heartbeats if they count.

        Args:
            told: what agents and ranks told of machines and jobs; looked at every five seconds.
            now_ns: the present time.
            with_heartbeats: whether what others said meanwhile has been read.
        """
        if len(self._told) > _MOST_REMEMBERED:
            self._told.clear()
        yield from self._of_states(now_ns)
        steps, self._steps = self._steps, []
        yield from steps
        if now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            for one in told:
                found = replace(one, ts_ns=now_ns)
                if isinstance(found, MachineFacts):
                    yield from self._if_new((found.cluster, f"host {found.host}"), found)
                else:
                    yield from self._if_new((found.job.cluster, f"names {found.job.job_id}"), found)
        if with_heartbeats:
            for cluster, ts_ns in self._judged_ns.items():
                yield EngineHeartbeat(cluster, EngineWay.FLINK, ts_ns)

    def _of_states(self, now_ns: int) -> Iterator[ActionEvent]:
        """Yield what the states of attempts say and was not told, as read now: what agents say may be told before."""
        for key, fact in self._hosts.items():
            yield from self._if_new((key[0], f"job {key[1]}"), replace(fact, ts_ns=now_ns))
        for key, fact in self._changes.items():
            yield from self._if_new((key[0], f"changes {key[1]}"), fact)
        for key, placed in self._placed.items():
            for machine in placed.machines:
                yield from self._if_new((key[0], f"switch {machine.host}"), replace(machine, ts_ns=now_ns))
            if placed.groups.groups:
                yield from self._if_new((key[0], f"groups {key[1]}"), replace(placed.groups, ts_ns=now_ns))

    def _if_new(self, key: tuple[str, str], fact: MachineFacts | JobFacts) -> Iterator[ActionEvent]:
        """Yield a fact unless the same was told last, whatever its time."""
        timeless = replace(fact, ts_ns=0)
        if self._told.get(key) != timeless:
            self._told[key] = timeless
            yield fact


def _is_later(known: JobFacts, job: JobKey, ts_ns: int) -> bool:
    """Return whether known facts are of a later attempt, or of a later time of the same one."""
    return (known.job.attempt, known.ts_ns) > (job.attempt, ts_ns)

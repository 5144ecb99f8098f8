"""What the controller knows of machines, jobs, executors and engines, each by its newest message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tocsin.schemas.action_events import (
    AttemptChange,
    AttemptChangeKind,
    CordonOwner,
    CordonSeen,
    EngineHeartbeat,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
    MachineFacts,
    Pod,
)
from tocsin.schemas.actions import Action, ActionTarget, Machine
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.plain_objects import plain_object, read_object
from tocsin.schemas.verdicts import Component

T = TypeVar("T")
_KEPT_IF_UNKNOWN = ("boot_id", "driver", "firmware", "node_uid", "leaf", "minipod", "booted_ns")
_MOST_BOOTS = 4
_MOST_CHANGES = 512
_BEFORE = "before "
"""Begin of what stands for the unknown boot id before a known one."""


@dataclass(frozen=True, slots=True)
class JobCapacity:
    """Whether an eviction leaves a job enough machines, as its job controller said.

    Attributes:
        cluster: cluster of the job.
        job_id: its name.
        ts_ns: when it was read.
        spare_count: number of machines that can take the place of another, None: not said.
        may_shrink: whether the job can go on with fewer machines, None: not said.
        spare_hosts: names of machines that can take the place of another, empty: not said.
    """

    cluster: str
    job_id: str
    ts_ns: int
    spare_count: int | None = None
    may_shrink: bool | None = None
    spare_hosts: tuple[str, ...] = ()


class FactBook:
    """The newest fact of each machine, job, executor and engine; the least recently told are forgotten first."""

    def __init__(self, most_count: int) -> None:
        """Start without facts.

        Args:
            most_count: how many of each kind are remembered.
        """
        self._most_count = most_count
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._machines: dict[tuple[str, str], MachineFacts] = {}
        self._jobs: dict[tuple[str, str], JobFacts] = {}
        self._capacities: dict[tuple[str, str], JobCapacity] = {}
        self._cordons: dict[tuple[str, str], CordonSeen] = {}
        self._executors: dict[tuple[str, str], ExecutorHeard] = {}
        self._engines: dict[str, EngineHeartbeat] = {}
        self._boots: dict[tuple[str, str], list[tuple[int, str]]] = {}
        """Machine -> (since when, boot id) of its last boots, oldest first."""
        self._judged: dict[tuple[str, str, str], int] = {}
        """("host" or "verdict", cluster, name) -> time of the newest check of it, or of a person's newest word."""
        self._gpu_counts: dict[tuple[str, str], int] = {}
        """Machine -> the most GPUs that a check saw on it."""
        self._places: dict[tuple[str, str, str], set[str]] = {}
        """(cluster, "leaf", "minipod" or "fleet", name) -> its machines."""

    def take_machine(self, told: MachineFacts) -> bool:
        """Take what is told of a machine; "" leaves what is known. Return whether it is not older than that."""
        key = told.cluster, told.host
        known = self._machines.get(key)
        if known is not None:
            if told.ts_ns < known.ts_ns:
                return False
            kept = {name: getattr(told, name) or getattr(known, name) for name in _KEPT_IF_UNKNOWN}
            if kept["boot_id"] != known.boot_id:
                kept["booted_ns"] = told.booted_ns
            told = replace(told, **kept)
            self._unplace(known)
        self._put(self._machines, key, told)
        self._take_boot(told)
        self._place(told)
        return True

    def take_job(self, told: JobFacts) -> bool:
        """Take what is told of a job; an earlier attempt changes nothing. Return whether it was taken.

        Spares, and whether the job can shrink, have a time of their own: who knows neither leaves them as they are.
        So have changes of the attempt.
        """
        key = told.job.cluster, told.job.job_id
        known = self._jobs.get(key)
        if known is not None and told.job.attempt < known.job.attempt:
            return False
        is_taken = self._take_capacity(told)
        is_same = known is not None and told.job.attempt == known.job.attempt
        changes = _latest(known.changes if known is not None and is_same else (), told.changes)
        told = replace(told, spare_count=None, may_shrink=None, spare_hosts=(), changes=changes)
        if known is not None and is_same:
            if told.ts_ns < known.ts_ns:
                self._jobs[key] = replace(known, changes=changes)
                return is_taken or changes != known.changes
            told = replace(
                told,
                hosts=told.hosts or known.hosts,
                slurm_job_id=told.slurm_job_id or known.slurm_job_id,
                pods=told.pods or known.pods,
                slurm_restart_count=_first_known(told.slurm_restart_count, known.slurm_restart_count),
                is_over=told.is_over or known.is_over,
                groups=told.groups or known.groups,
            )
        self._put(self._jobs, key, told)
        return True

    def _take_capacity(self, told: JobFacts) -> bool:
        """Take spares and whether a job can shrink, if either is told; return whether it is not older than before."""
        key = told.job.cluster, told.job.job_id
        known = self._capacities.get(key)
        is_silent = told.spare_count is None and told.may_shrink is None and not told.spare_hosts
        if is_silent or (known is not None and told.ts_ns < known.ts_ns):
            return False
        capacity = JobCapacity(*key, told.ts_ns, told.spare_count, told.may_shrink, told.spare_hosts)
        self._put(self._capacities, key, capacity)
        return True

    def take_check(self, cluster: str, host: str, ts_ns: int) -> bool:
        """Take the time of a machine's check. Return whether no newer one is known: of several the newest counts."""
        return self._is_newest(("host", cluster, host), ts_ns)

    def take_gpu_count(self, cluster: str, host: str, count: int) -> int:
        """Take how many GPUs a check saw on a machine, and return the most that any check saw on it."""
        most = max(count, self._gpu_counts.get((cluster, host), 0))
        if most:
            self._put(self._gpu_counts, (cluster, host), most)
        return most

    def take_word(self, cluster: str, verdict_id: str, ts_ns: int) -> bool:
        """Take the time of a person's judgement of a verdict. Return whether no newer one is known."""
        return self._is_newest(("verdict", cluster, verdict_id), ts_ns)

    def _is_newest(self, key: tuple[str, str, str], ts_ns: int) -> bool:
        """Note a judgement's time and return whether it is not older than the newest of the same thing."""
        if ts_ns < self._judged.get(key, 0):
            return False
        self._put(self._judged, key, ts_ns)
        return True

    def take_cordon(self, told: CordonSeen) -> bool:
        """Take who keeps new work off a machine. Return whether it is not older than what is known."""
        known = self._cordons.get((told.cluster, told.host))
        if known is not None and told.ts_ns < known.ts_ns:
            return False
        self._put(self._cordons, (told.cluster, told.host), told)
        return True

    def take_human_change(self, told: HumanChange) -> bool:
        """Take what a person did to a machine as who keeps new work off it now."""
        is_back = told.kind is HumanChangeKind.UNCORDONED
        owner = CordonOwner.NOBODY if is_back else CordonOwner.OTHER
        return self.take_cordon(CordonSeen(told.cluster, told.host, owner, told.ts_ns))

    def take_executor(self, told: ExecutorHeard) -> bool:
        """Take that an executor is alive. Return whether it is not older than what is known."""
        known = self._executors.get((told.cluster, told.executor))
        if known is not None and told.ts_ns < known.ts_ns:
            return False
        self._put(self._executors, (told.cluster, told.executor), told)
        return True

    def take_heartbeat(self, told: EngineHeartbeat) -> bool:
        """Take that an engine judges. Return whether it is not older than what is known."""
        known = self._engines.get(told.cluster)
        if known is not None and told.ts_ns < known.ts_ns:
            return False
        self._put(self._engines, told.cluster, told)
        return True

    def machine(self, cluster: str, host: str) -> MachineFacts | None:
        """Return what is known of a machine, None for nothing."""
        return self._machines.get((cluster, host))

    def job(self, cluster: str, job_id: str) -> JobFacts | None:
        """Return what is known of a job, None for nothing."""
        return self._jobs.get((cluster, job_id))

    def capacity(self, cluster: str, job_id: str, since_ns: int) -> JobCapacity | None:
        """Return what a job controller said of spares and shrinking, None if it said nothing since a time."""
        known = self._capacities.get((cluster, job_id))
        return None if known is None or known.ts_ns < since_ns else known

    def jobs_on(self, cluster: str, host: str) -> list[JobKey]:
        """Return the attempts that use a machine, as far as it is known."""
        return [
            one.job
            for (where, _), one in self._jobs.items()
            if where == cluster and not one.is_over and host in one.hosts
        ]

    def has_unknown_hosts(self, job: JobKey) -> bool:
        """Return whether an attempt is known to run, and its machines are not known."""
        known = self._jobs.get((job.cluster, job.job_id))
        return known is not None and known.job == job and not known.is_over and not known.hosts

    def cordon_owner(self, cluster: str, host: str) -> CordonOwner:
        """Return who keeps new work off a machine, as far as it is known."""
        known = self._cordons.get((cluster, host))
        return CordonOwner.NOBODY if known is None else known.owner

    def heartbeat(self, cluster: str) -> EngineHeartbeat | None:
        """Return the last heartbeat of a cluster's engine, None if none was heard."""
        return self._engines.get(cluster)

    def has_executor(self, action: Action, since_ns: int) -> bool:
        """Return whether an executor for an action's kind and machines was heard since a time."""
        return any(
            one.ts_ns >= since_ns and _is_for(one, action)
            for (where, _), one in self._executors.items()
            if where == action.target.job.cluster
        )

    def has_announced(self, executor: str, action: Action) -> bool:
        """Return whether the newest announcement of an executor holds an action's kind and machines."""
        known = self._executors.get((action.target.job.cluster, executor))
        return known is not None and _is_for(known, action)

    def boot_at(self, cluster: str, host: str, at_ns: int) -> str:
        """Return the boot id that a machine had at a time.

        Returns:
            "" if none is known; if the machine has booted since and nobody told its boot id before, a text that no
            boot id equals.
        """
        boots = self._boots.get((cluster, host), [])
        found = [boot_id for since_ns, boot_id in boots if since_ns <= at_ns]
        if found or not boots:
            return found[-1] if found else ""
        return f"{_BEFORE}{boots[0][1]}"

    def leaf_of(self, job: JobKey, host: str) -> str:
        """Return the leaf switch of a machine, "" if it is not known."""
        known = self._machines.get((job.cluster, host))
        return "" if known is None else known.leaf

    def minipod_of(self, cluster: str, host: str) -> str:
        """Return the minipod of a machine, "" if it is not known."""
        known = self._machines.get((cluster, host))
        return "" if known is None else known.minipod

    def size(self, cluster: str, scope: str, name: str) -> int:
        """Return the number of machines of a leaf, a minipod or the fleet (name ""), 0 if none is known."""
        return len(self._places.get((cluster, scope, name), ()))

    def target(self, job: JobKey, component: Component | None, hosts: Sequence[str], at_ns: int) -> ActionTarget:
        """Return the target of an action with the incarnation of its evidence.

        Args:
            job: job and attempt of the verdict.
            component: what is to blame beside machines.
            hosts: the machines.
            at_ns: time of the newest evidence: a machine that has booted since is another incarnation.
        """
        facts = self._jobs.get((job.cluster, job.job_id))
        is_same = facts is not None and facts.job.attempt == job.attempt
        known_job = facts if facts is not None and is_same else JobFacts(job, 0)
        pods = {one.host: one for one in known_job.pods}
        machines = []
        for host in sorted(set(hosts)):
            known = self._machines.get((job.cluster, host))
            node_uid = "" if known is None else known.node_uid
            boot_id = self.boot_at(job.cluster, host, at_ns)
            pod = pods.get(host, Pod(host))
            machines.append(Machine(host, boot_id, node_uid, pod.uid, pod.name))
        count = known_job.slurm_restart_count
        return ActionTarget(job, component, tuple(machines), known_job.slurm_job_id, count)

    def to_state(self) -> dict[str, Any]:
        """Return all facts as JSON-able values, each kind by key."""
        books: tuple[Mapping[Any, Any], ...] = (
            self._machines,
            self._jobs,
            self._cordons,
            self._executors,
            self._engines,
            self._capacities,
        )
        names = ("machines", "jobs", "cordons", "executors", "engines", "capacities")
        state: dict[str, Any] = {
            name: [plain_object(one) for one in book.values()] for name, book in zip(names, books, strict=True)
        }
        state["judged"] = [[*key, ts_ns] for key, ts_ns in self._judged.items()]
        state["gpu_counts"] = [[*key, count] for key, count in self._gpu_counts.items()]
        state["boots"] = [[*key, boots] for key, boots in sorted(self._boots.items()) if len(boots) > 1]
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the facts by what ``to_state`` returned."""
        self.clear()
        for told in (read_object(MachineFacts, one, "machine") for one in state["machines"]):
            self._machines[told.cluster, told.host] = told
            self._place(told)
            self._take_boot(told)
        for cluster, host, boots in state.get("boots", ()):  # a state of before has none
            self._boots[cluster, host] = [(since_ns, boot_id) for since_ns, boot_id in boots]
        for kind, cluster, name, ts_ns in state.get("judged", ()):  # a state of before has none
            self._judged[kind, cluster, name] = ts_ns
        for cluster, name, count in state.get("gpu_counts", ()):  # a state of before has none
            self._gpu_counts[cluster, name] = count
        for job in (read_object(JobFacts, one, "job") for one in state["jobs"]):
            self._take_capacity(job)  # a state of before has it there
            self._jobs[job.job.cluster, job.job.job_id] = replace(job, spare_count=None, may_shrink=None)
        for capacity in (read_object(JobCapacity, one, "capacity") for one in state.get("capacities", ())):
            self._capacities[capacity.cluster, capacity.job_id] = capacity
        for cordon in (read_object(CordonSeen, one, "cordon") for one in state["cordons"]):
            self._cordons[cordon.cluster, cordon.host] = cordon
        for executor in (read_object(ExecutorHeard, one, "executor") for one in state["executors"]):
            self._executors[executor.cluster, executor.executor] = executor
        for engine in (read_object(EngineHeartbeat, one, "engine") for one in state["engines"]):
            self._engines[engine.cluster] = engine

    def _put(self, book: dict[Any, T], key: object, told: T) -> None:
        """Remember a fact as the one told last."""
        book.pop(key, None)
        book[key] = told
        while len(book) > self._most_count:
            oldest = next(iter(book))
            gone = book.pop(oldest)
            if isinstance(gone, MachineFacts):
                self._unplace(gone)
                self._boots.pop((gone.cluster, gone.host), None)

    def _take_boot(self, told: MachineFacts) -> None:
        """Remember a machine's boot id, if it is another one than before."""
        boots = self._boots.setdefault((told.cluster, told.host), [])
        if told.boot_id and (not boots or boots[-1][1] != told.boot_id):
            since_ns = told.booted_ns or (told.ts_ns if boots else 0)
            boots.append((since_ns, told.boot_id))
            del boots[:-_MOST_BOOTS]
        if not boots:
            del self._boots[told.cluster, told.host]

    def _place(self, told: MachineFacts) -> None:
        for scope, name in (("leaf", told.leaf), ("minipod", told.minipod), ("fleet", "")):
            if name or scope == "fleet":
                self._places.setdefault((told.cluster, scope, name), set()).add(told.host)

    def _unplace(self, told: MachineFacts) -> None:
        for scope, name in (("leaf", told.leaf), ("minipod", told.minipod), ("fleet", "")):
            hosts = self._places.get((told.cluster, scope, name))
            if hosts is not None:
                hosts.discard(told.host)
                if not hosts:
                    del self._places[told.cluster, scope, name]


def _is_for(executor: ExecutorHeard, action: Action) -> bool:
    """Return whether an action is of a kind, and on machines, that an executor announced."""
    if action.kind not in executor.kinds:
        return False
    hosts = action.target.hosts
    return not executor.hosts or (bool(hosts) and set(hosts) <= set(executor.hosts))


def _latest(known: Sequence[AttemptChange], told: Sequence[AttemptChange]) -> tuple[AttemptChange, ...]:
    """Return the latest change of each kind and machine; of very many machines one change of all of them."""
    if not told:
        return tuple(known)
    found: dict[tuple[AttemptChangeKind, str], int] = {}
    for one in (*known, *told):
        found[one.kind, one.host] = max(one.at_ns, found.get((one.kind, one.host), one.at_ns))
    if len(found) > _MOST_CHANGES:
        kinds = dict.fromkeys(kind for kind, _ in found)
        found = {(kind, ""): max(at_ns for (one, _), at_ns in found.items() if one is kind) for kind in kinds}
    return tuple(AttemptChange(kind, at_ns, host) for (kind, host), at_ns in found.items())


def _first_known(newer: int | None, older: int | None) -> int | None:
    return older if newer is None else newer

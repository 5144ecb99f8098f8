"""What ranks told of their jobs: Slurm's job and the pods, as the environment of their processes names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tocsin.schemas.action_events import JobFacts, Pod
from tocsin.schemas.events import JOB_FACT_KEYS
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import Event

_MOST_JOBS: Final = 10_000
_MOST_PODS: Final = 20_000
_MOST_DIGITS: Final = 9


class _AttemptNames(NamedTuple):
    """What was told of one attempt of a job; pods by their hosts."""

    attempt: int
    slurm_job_id: str
    slurm_restart_count: int | None
    pods: dict[str, Pod]


class FleetJobs:
    """The scheduler's names of each job's newest attempt; the job that was heard longest ago is forgotten first."""

    def __init__(self, cluster: str) -> None:
        """Start without jobs.

        Args:
            cluster: cluster of the jobs.
        """
        self._cluster = cluster
        self._all: dict[str, _AttemptNames] = {}

    def told(self, event: Event) -> None:
        """Take a rank's hello; one of an earlier attempt changes nothing."""
        said = {key: str(event.payload.get(key) or "") for key in JOB_FACT_KEYS}
        attempt, job_id = event.job.attempt, event.job.job_id
        known = self._all.get(job_id)
        has_told = said["slurm_job_id"] or said["pod_uid"] or said["pod_name"]
        if not has_told or (known is not None and known.attempt > attempt):
            return
        if known is None or known.attempt < attempt:
            known = _AttemptNames(attempt, "", None, {})
        pod, pods = _pod_of(event.host, said), known.pods
        if pod.uid or pod.name:
            is_new = pods.get(event.host) != pod and (event.host in pods or len(pods) < _MOST_PODS)
            pods = {**pods, event.host: pod} if is_new else pods
        count = said["slurm_restart_count"]
        is_count = count.isascii() and count.isdigit() and len(count) <= _MOST_DIGITS
        restarts = int(count) if is_count else known.slurm_restart_count
        self._all.pop(job_id, None)
        self._all[job_id] = _AttemptNames(attempt, said["slurm_job_id"] or known.slurm_job_id, restarts, pods)
        while len(self._all) > _MOST_JOBS:
            del self._all[next(iter(self._all))]

    def facts(self) -> Iterator[JobFacts]:
        """Yield what was told of each job, with time 0; any thread may ask."""
        for job_id, told in list(self._all.items()):
            job = JobKey(self._cluster, job_id, told.attempt)
            pods = tuple(pod for _, pod in sorted(told.pods.items()))
            restarts = told.slurm_restart_count
            yield JobFacts(job, 0, slurm_job_id=told.slurm_job_id, pods=pods, slurm_restart_count=restarts)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [
            [
                job_id,
                told.attempt,
                told.slurm_job_id,
                {host: pod.uid for host, pod in told.pods.items()},
                told.slurm_restart_count,
                {host: pod.name for host, pod in told.pods.items() if pod.name},
            ]
            for job_id, told in self._all.items()
        ]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned; one of before has neither restart counts nor names."""
        self._all = {}
        for job_id, attempt, slurm_job_id, uids, *later in state:
            restarts, names = later or (None, {})
            pods = {host: Pod(host, uid, names.get(host, "")) for host, uid in uids.items()}
            self._all[job_id] = _AttemptNames(attempt, slurm_job_id, restarts, pods)


def _pod_of(host: str, said: Mapping[str, str]) -> Pod:
    """Return the pod of a rank as its hello names it."""
    name, namespace = said["pod_name"], said["pod_namespace"]
    return Pod(host, said["pod_uid"], f"{namespace}/{name}" if name and namespace else name)

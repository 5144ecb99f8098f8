"""What ranks told of their jobs: Slurm's job and the pods, as the environment of their processes names them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tocsin.schemas.action_events import JobFacts, Pod
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import Event

_MOST_JOBS: Final = 10_000
_MOST_PODS: Final = 20_000


class FleetJobs:
    """The scheduler's names of each job's newest attempt; the job that was heard longest ago is forgotten first."""

    def __init__(self, cluster: str) -> None:
        """Start without jobs.

        Args:
            cluster: cluster of the jobs.
        """
        self._cluster = cluster
        self._all: dict[str, tuple[int, str, dict[str, str]]] = {}
        """Job -> its attempt, Slurm's id, and host -> UID of the pod there."""

    def told(self, event: Event) -> None:
        """Take a rank's hello; one of an earlier attempt changes nothing."""
        slurm_job_id, pod_uid = event.payload.get("slurm_job_id") or "", event.payload.get("pod_uid") or ""
        attempt, job_id = event.job.attempt, event.job.job_id
        known = self._all.get(job_id)
        if not (slurm_job_id or pod_uid) or (known is not None and known[0] > attempt):
            return
        before, pods = ("", {}) if known is None or known[0] < attempt else known[1:]
        if pod_uid and len(pods) < _MOST_PODS:
            pods = {**pods, event.host: pod_uid} if pods.get(event.host) != pod_uid else pods
        self._all.pop(job_id, None)
        self._all[job_id] = attempt, slurm_job_id or before, pods
        while len(self._all) > _MOST_JOBS:
            del self._all[next(iter(self._all))]

    def facts(self) -> Iterator[JobFacts]:
        """Yield what was told of each job, with time 0; any thread may ask."""
        for job_id, (attempt, slurm_job_id, pods) in list(self._all.items()):
            found = tuple(Pod(host, uid) for host, uid in sorted(pods.items()))
            yield JobFacts(JobKey(self._cluster, job_id, attempt), 0, slurm_job_id=slurm_job_id, pods=found)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [[job_id, *told] for job_id, told in self._all.items()]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._all = {job_id: (attempt, slurm_job_id, dict(pods)) for job_id, attempt, slurm_job_id, pods in state}

"""Identity of this process: job, attempt and rank, read from the environment.

Standard library only: it runs inside the training process.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.collectors.hook._names import job_name

UNKNOWN = -1
_REQUEUE_STRIDE = 1000  # a requeued Slurm job starts torchelastic's own count at 0 again

_CLUSTER = ("TOCSIN_CLUSTER", "SLURM_CLUSTER_NAME")
_JOB_ID = ("TOCSIN_JOB_ID",)
_RANK = ("TOCSIN_RANK", "RANK", "SLURM_PROCID")
_WORLD_SIZE = ("TOCSIN_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS")
_LOCAL_RANK = ("TOCSIN_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")


@dataclass(frozen=True, slots=True)
class Identity:
    """The job and attempt of this process, and its rank and coordinates in it.

    Attributes:
        cluster: name of the cluster.
        job_id: name of the job in its cluster.
        attempt: number of restarts so far.
        rank: global rank.
        world_size: number of ranks in the job, -1 if unknown.
        local_rank: rank on this host, -1 if unknown.
        gpu: index of its GPU on this host, -1 if unknown.
        gpu_uuid: UUID of that GPU, "" if unknown.
        dp: data-parallel coordinate, -1 if unknown.
        pp: pipeline stage, -1 if unknown.
        tp: tensor-parallel coordinate, -1 if unknown.
    """

    cluster: str
    job_id: str
    attempt: int
    rank: int
    world_size: int = UNKNOWN
    local_rank: int = UNKNOWN
    gpu: int = UNKNOWN
    gpu_uuid: str = ""
    dp: int = UNKNOWN
    pp: int = UNKNOWN
    tp: int = UNKNOWN

    @property
    def job(self) -> tuple[str, str, int]:
        """``(cluster, job_id, attempt)``, as every datagram carries it."""
        return (self.cluster, self.job_id, self.attempt)

    @property
    def is_first_here(self) -> bool:
        """Whether this rank prints messages for its host: it has local rank 0."""
        return self.local_rank == 0 or (self.local_rank < 0 and self.rank == 0)


def from_environment(env: Mapping[str, str] = os.environ, script: str = "") -> Identity:
    """Read the identity; the first variable that is set and makes sense wins.

    ==========  ============================================================================
    cluster     TOCSIN_CLUSTER, SLURM_CLUSTER_NAME, "default"
    job_id      TOCSIN_JOB_ID, else user-script-run (``_names.job_name``): a TORCHELASTIC_RUN_ID that
                somebody gave, SLURM_JOB_ID, the pod's owner, a hash of MASTER_ADDR:MASTER_PORT, "local"
    attempt     TOCSIN_ATTEMPT; else TORCHELASTIC_RESTART_COUNT + 1000 x SLURM_RESTART_COUNT when
                both are there, whichever is there, 0
    rank        TOCSIN_RANK, RANK, SLURM_PROCID, 0 (torchrun's ranks win over those of srun, which
                then started one launcher a node)
    world_size  TOCSIN_WORLD_SIZE, WORLD_SIZE, SLURM_NTASKS, unknown
    local_rank  TOCSIN_LOCAL_RANK, LOCAL_RANK, SLURM_LOCALID, unknown
    gpu         TOCSIN_GPU, the entry of CUDA_VISIBLE_DEVICES that the local rank points at, unknown
    gpu_uuid    TOCSIN_GPU_UUID, that entry if it is a UUID, unknown
    dp, pp, tp  TOCSIN_DP, TOCSIN_PP, TOCSIN_TP, unknown
    ==========  ============================================================================

    Args:
        env: the environment.
        script: what runs, for the name of a job that has none; "" = this process's script.
    """
    local_rank = _number(env, _LOCAL_RANK, UNKNOWN)
    gpu, gpu_uuid = _visible_gpu(env, local_rank)
    return Identity(
        cluster=_text(env, _CLUSTER) or "default",
        job_id=_text(env, _JOB_ID) or job_name(env, script),
        attempt=_attempt(env),
        rank=_number(env, _RANK, 0),
        world_size=_number(env, _WORLD_SIZE, UNKNOWN),
        local_rank=local_rank,
        gpu=_number(env, ("TOCSIN_GPU",), gpu),
        gpu_uuid=env.get("TOCSIN_GPU_UUID") or gpu_uuid,
        dp=_number(env, ("TOCSIN_DP",), UNKNOWN),
        pp=_number(env, ("TOCSIN_PP",), UNKNOWN),
        tp=_number(env, ("TOCSIN_TP",), UNKNOWN),
    )


def has_rank(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names a rank; without one all processes of a job would be rank 0."""
    return _number(env, _RANK, UNKNOWN) >= 0


def start_kind(env: Mapping[str, str] = os.environ) -> str:
    """Return how this process starts: ``hot`` where torchrun starts its workers again in place, else ``full``."""
    return "hot" if _number(env, ("TORCHELASTIC_RESTART_COUNT",), 0) else "full"


_SCHEDULER = {
    "slurm_job_id": "SLURM_JOB_ID",
    "slurm_restart_count": "SLURM_RESTART_COUNT",
    "slurm_node_name": "SLURMD_NODENAME",
    "pod_name": "POD_NAME",
    "pod_namespace": "POD_NAMESPACE",
    "pod_uid": "POD_UID",
    "node_name": "NODE_NAME",
}
_MOST_CHARACTERS = 253  # a name in Kubernetes


def scheduler_facts(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the environment says of the scheduler's job, pod and node; what is not set is left out.

    Slurm sets its variables itself; a pod's manifest sets the others from the downward API. Without POD_NAME, a pod's
    host name is its name.
    """
    found = {key: env.get(name, "").strip() for key, name in _SCHEDULER.items()}
    if not found["pod_name"] and env.get("KUBERNETES_SERVICE_HOST"):
        found["pod_name"] = env.get("HOSTNAME", "").strip()
    return {key: value for key, value in found.items() if value and len(value) <= _MOST_CHARACTERS and value.isascii()}


def _text(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the first variable that is set, "" for none."""
    for name in names:
        value = env.get(name, "")
        if value:
            return value
    return ""


def _number(env: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    """Return the first variable that holds a whole number of at least 0, else the default."""
    for name in names:
        value = env.get(name, "").strip()
        if value.isascii() and value.isdigit():
            return int(value)
    return default


def _attempt(env: Mapping[str, str]) -> int:
    """Return the attempt from torchrun's and Slurm's restart counters."""
    restarts = _number(env, ("TORCHELASTIC_RESTART_COUNT",), UNKNOWN)
    requeues = _number(env, ("SLURM_RESTART_COUNT",), UNKNOWN)
    both = requeues * _REQUEUE_STRIDE + restarts if min(restarts, requeues) >= 0 else max(restarts, requeues, 0)
    return _number(env, ("TOCSIN_ATTEMPT",), both)


def _visible_gpu(env: Mapping[str, str], local_rank: int) -> tuple[int, str]:
    """Return (index, UUID) of the GPU that CUDA_VISIBLE_DEVICES assigns to this process; -1 and "" if unknown."""
    visible = [entry.strip() for entry in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    position = 0 if len(visible) == 1 else local_rank
    if not 0 <= position < len(visible):
        return UNKNOWN, ""
    entry = visible[position]
    if entry.isascii() and entry.isdigit():
        return int(entry), ""
    return UNKNOWN, entry if entry.startswith(("GPU-", "MIG-")) else ""  # "-1", "NoDevFiles": no GPU

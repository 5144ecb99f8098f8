"""Tells the agent that a rank's process starts, so that the engine knows of it before the training script speaks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from tocsin.collectors.exec.command import Sockets, deliver
from tocsin.collectors.hook._identity import start_kind

LAUNCHERS = frozenset(
    {
        "torchrun",
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate",
        "accelerate.commands.launch",
        "deepspeed",
        "horovodrun",
        "mpirun",
        "mpiexec",
        "srun",
    }
)
"""Words of a command that starts the ranks, and is none itself."""


def is_rank(command: Sequence[str], env: Mapping[str, str] = os.environ) -> bool:
    """Return whether a command is one rank of a job, as far as its words and the environment tell.

    Launchers set rank and local rank for each worker. Under srun alone a rank is a Python program that is no launcher;
    of a shell script nobody knows which of both it is.
    """
    words = {os.path.basename(word) for word in command}
    if words & LAUNCHERS:
        return False
    if env.get("TOCSIN_RANK") or (env.get("RANK") and env.get("LOCAL_RANK")):
        return True
    return bool(env.get("SLURM_PROCID")) and any(word.startswith("python") for word in words)


def send_start(agent_sockets: Sockets, job: tuple[str, str, int], rank: int) -> bool:
    """Tell the agent that a rank's process starts; return whether its socket accepted it. It is tried once.

    Args:
        agent_sockets: path of the agent's socket, or several; the first one with a listener is used.
        job: ``(cluster, job_id, attempt)``.
        rank: global rank of the process.
    """
    message: dict[str, object] = {
        "v": 1,
        "t": "stage",
        "job": job,
        "rank": rank,
        "ts": time.time_ns(),
        "stage": "env_setup",
        "edge": "begin",
        "start_kind": start_kind(),
    }
    return deliver(message, agent_sockets, 0.0)

"""What one rank of a drill's job is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pause:
    """A phase between two steps that the job announces.

    Attributes:
        after_step: it begins when this step is done.
        phase: ``checkpoint`` or ``evaluation``.
        seconds: how long it takes.
    """

    after_step: int
    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long the parts of a healthy step take, beside the CPU work of a few milliseconds.

    Attributes:
        read_seconds: the loader's storage.
        forward_seconds: the accelerator in the forward pass.
        backward_seconds: the accelerator in the backward pass.
        first_step_seconds: what the first step takes longer (compilation, allocation).
    """

    read_seconds: float = 0.008
    forward_seconds: float = 0.045
    backward_seconds: float = 0.090
    first_step_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class RankConfig:
    """One rank of a drill's job.

    Attributes:
        rank: its number.
        world_size: ranks of the job.
        tensor_parallel: size of the tensor-parallel groups.
        cluster: the cluster's name.
        job_id: the job's name.
        seed: of weights and data.
        store_path: file of the rendezvous store.
        board_path: file of the shared page.
        checkpoint_folder: where checkpoints go.
        stderr_path: where stdout and stderr go.
        agent_socket: the datagram socket of its host's agent.
        pace: how long things take.
        pauses: announced phases, ascending.
        relay_socket: the relay through which its traffic goes, None = direct.
    """

    rank: int
    world_size: int
    tensor_parallel: int
    cluster: str
    job_id: str
    seed: int
    store_path: Path
    board_path: Path
    checkpoint_folder: Path
    stderr_path: Path
    agent_socket: Path
    pace: StepTimes = field(default_factory=StepTimes)
    pauses: tuple[Pause, ...] = ()
    relay_socket: Path | None = None

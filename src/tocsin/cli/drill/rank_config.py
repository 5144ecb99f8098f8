"""The configuration of one rank of a drill's job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pause:
    """A phase between two steps that the job announces.

    Attributes:
        after_step: step after which it begins.
        phase: ``checkpoint`` or ``evaluation``.
        seconds: its duration.
    """

    after_step: int
    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Where a job that can go on keeps its checkpoints and losses.

    Attributes:
        folder: folder of the checkpoints, which all attempts share.
        losses_folder: folder of this attempt's losses, a file a rank.
        every_steps: a checkpoint is written after so many steps.
        resume_step: step with which this attempt begins; 0: from new weights, else from the checkpoint of that step.
    """

    folder: Path
    losses_folder: Path
    every_steps: int
    resume_step: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of the parts of a healthy step, in addition to a few milliseconds of CPU work.

    Attributes:
        read_seconds: reading a batch from storage.
        forward_seconds: the accelerator's forward pass.
        backward_seconds: the accelerator's backward pass.
        first_step_seconds: how much longer the first step takes (compilation, allocation).
    """

    read_seconds: float = 0.008
    forward_seconds: float = 0.045
    backward_seconds: float = 0.090
    first_step_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Configuration of one rank of a drill's job.

    Attributes:
        rank: number of the rank.
        world_size: number of ranks of the job.
        tensor_parallel: size of the tensor-parallel groups.
        stage_count: pipeline stages, 1: no pipeline.
        has_own_batches: whether its batches are no other rank's, and tell their sequences' lengths.
        cluster: name of the cluster.
        job_id: name of the job.
        seed: seed of weights and data.
        store_path: file of the rendezvous store.
        board_path: file of the shared page.
        checkpoint_folder: folder for checkpoints.
        stderr_path: file for stdout and stderr.
        agent_socket: datagram socket of its host's agent.
        pace: durations of the parts of a step.
        pauses: announced phases, ascending.
        relay_socket: control socket of the relay that its traffic goes through, None: no relay.
        attempt: number of restarts of the job so far.
        checkpoints: where it keeps what a later attempt goes on with, None: it cannot go on.
        start_seconds: how long it sleeps before it joins the others; None: its start is not told.
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
    stage_count: int = 1
    has_own_batches: bool = False
    pace: StepTimes = field(default_factory=StepTimes)
    pauses: tuple[Pause, ...] = ()
    relay_socket: Path | None = None
    attempt: int = 0
    checkpoints: CheckpointPlan | None = None
    start_seconds: float | None = None

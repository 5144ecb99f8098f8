"""The training job of a drill as a pipeline: stages that send and receive over gloo, each with several replicas.

Each microbatch goes forward through all stages, then its gradient goes back. What a stage waits for its neighbour is
communication, as the hook sees it in the calls of send and receive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tocsin.cli.drill.board import Board
from tocsin.cli.drill.rank_config import RankConfig
from tocsin.cli.drill.trainer import Struck, join_job, new_group
from tocsin.collectors import hook

_MICROBATCH_COUNT = 3
_MICROBATCH_SIZE = 4
_WIDTH = 32


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A rank's place in the pipeline.

    Attributes:
        stage: its stage.
        replica: its replica of the stage.
        before: rank of the stage before it in its replica, -1: it is the first.
        behind: rank of the stage behind it in its replica, -1: it is the last.
    """

    stage: int
    replica: int
    before: int
    behind: int

    @classmethod
    def of(cls, rank: int, world_size: int, stage_count: int) -> StagePlace:
        """Return the place of a rank; the ranks of a stage are neighbours.

        Args:
            rank: the rank.
            world_size: ranks of the job, a multiple of ``stage_count``.
            stage_count: pipeline stages.
        """
        replica_count = world_size // stage_count
        stage, replica = divmod(rank, replica_count)
        before = rank - replica_count if stage > 0 else -1
        behind = rank + replica_count if stage < stage_count - 1 else -1
        return cls(stage, replica, before, behind)


@dataclass
class StageTrainer:
    """Model, neighbours and process groups of one rank of a pipeline."""

    config: RankConfig
    board: Board
    place: StagePlace
    data: dist.ProcessGroup
    chain: dist.ProcessGroup
    struck: Struck = field(init=False)
    model: nn.Sequential = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        """Create the stage's layers and the optimizer."""
        self.struck = Struck(self.config, self.board)
        torch.manual_seed(self.config.seed)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def run(self) -> None:
        """Train until the last step that the shared page names."""
        hook.attach(model=self.model, optimizer=self.optimizer, collectives=True)
        step = 0
        while step <= self.board.last_step():
            self.board.set_step(self.config.rank, step)
            self.struck.begin_step()
            with hook.step(step):
                self._step(step)
            step += 1

    def _step(self, step: int) -> None:
        """Run one training step: all microbatches forward, then back, then the gradients of all replicas."""
        passes = [self._forward(step) for _ in range(_MICROBATCH_COUNT)]
        self.optimizer.zero_grad()
        for entered, left in reversed(passes):
            self._backward(entered, left)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.data)
        with hook.phase("optimizer"):
            self.optimizer.step()

    def _forward(self, step: int) -> tuple[Tensor, Tensor]:
        """Take a microbatch from the stage before and give it to the one behind; return what entered and what left."""
        pace = self.config.pace
        entered = torch.ones(_MICROBATCH_SIZE, _WIDTH)
        if self.place.before >= 0:
            dist.recv(entered, src=self.place.before, group=self.chain)
        entered.requires_grad_()
        with hook.phase("forward"):
            left: Tensor = self.model(entered)
            seconds = pace.forward_seconds + (pace.first_step_seconds if step == 0 else 0.0)
            self.struck.compute(seconds / _MICROBATCH_COUNT)
        if self.place.behind >= 0:
            dist.send(left.detach(), dst=self.place.behind, group=self.chain)
        return entered, left

    def _backward(self, entered: Tensor, left: Tensor) -> None:
        """Take a microbatch's gradient from the stage behind and give its own to the one before."""
        gradient = torch.ones_like(left)
        if self.place.behind >= 0:
            dist.recv(gradient, src=self.place.behind, group=self.chain)
        with hook.phase("backward"):
            left.backward(gradient)  # type: ignore[no-untyped-call]
            self.struck.compute(self.config.pace.backward_seconds / _MICROBATCH_COUNT)
        if self.place.before >= 0 and entered.grad is not None:
            dist.send(entered.grad, dst=self.place.before, group=self.chain)


def train(config: RankConfig, board: Board) -> None:
    """Train as one rank of a pipeline until the job's end.

    Args:
        config: configuration of the rank.
        board: page shared with the drill.
    """
    store = join_job(config)
    place = StagePlace.of(config.rank, config.world_size, config.stage_count)
    replica_count = config.world_size // config.stage_count
    ranks = range(config.world_size)
    stages = [new_group(list(ranks[at : at + replica_count]), "dp") for at in ranks[::replica_count]]
    chains = [new_group(list(ranks[at::replica_count]), "pp") for at in range(replica_count)]
    del store  # all groups are there
    hook.init(job_id=config.job_id, rank=config.rank, cluster=config.cluster, dp=place.replica, pp=place.stage)
    StageTrainer(config, board, place, stages[place.stage], chains[place.replica]).run()
    hook.close()
    dist.barrier()  # nobody leaves while a peer still reads from its sockets

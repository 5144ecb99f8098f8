"""The training job of a drill: real torch.distributed over gloo, with the hook used as a user would.

Only the forkserver and its ranks import this module, because it costs torch's 500 MB.
"""

from __future__ import annotations

import datetime as dt
import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store  # where torch's own type stubs know them

from tocsin.cli.drill.board import Board, RankOrder
from tocsin.cli.drill.checkpoints import Keeper
from tocsin.cli.drill.detour import DetourStore
from tocsin.cli.drill.model import ModelSize, TinyTransformer, TokenLoader
from tocsin.cli.drill.orders import OrderKind
from tocsin.cli.drill.rank_config import Pause, RankConfig
from tocsin.collectors import hook

_COLLECTIVE_TIMEOUT = dt.timedelta(minutes=10)
"""Far longer than any drill, so that torch's own watchdog does not end a hang."""
_WORLD_REDUCE_EVERY = 4
"""The mean loss is summed over all ranks in every fourth step, as for a log line."""
_BUSY_WIDTH = 192
"""Size of the matrices that a slow rank multiplies; a product takes half a millisecond."""
_GARBAGE_COUNT = 50_000
"""Objects that a collection visits, as the caches of a training program; it takes some milliseconds."""
_LAUNCH_SECONDS = 0.005
"""Duration of one simulated kernel. The accelerator only runs what the process has launched, so a process that does not
get the CPU delays it; that is why its time is many small waits instead of a long one."""


@dataclass(frozen=True, slots=True)
class ParallelGrid:
    """The rank's process groups and its place in them.

    Attributes:
        data: ranks with the same part of the model.
        tensor: ranks that share a layer.
        data_size: number of ranks in ``data``.
        data_index: place of the rank in ``data``.
        tensor_index: place of the rank in ``tensor``.
    """

    data: dist.ProcessGroup
    tensor: dist.ProcessGroup
    data_size: int
    data_index: int
    tensor_index: int


class Struck:
    """The fault of this rank; it reads its order from the shared page at the beginning of each step."""

    def __init__(self, config: RankConfig, board: Board) -> None:
        """Start without a fault.

        Args:
            config: configuration of the rank.
            board: the shared page.
        """
        self._rank, self._board, self._world_size = config.rank, board, config.world_size
        self._random = random.Random(config.seed * 1009 + config.rank)
        self._garbage: list[list[object]] = []
        self._order = RankOrder(OrderKind.NOTHING, 0.0)
        self._busy = torch.ones(_BUSY_WIDTH, _BUSY_WIDTH)
        self.once: OrderKind = OrderKind.NOTHING
        self.work_ratio = 1.0
        """Work of the batch in hand, as a multiple of a usual one."""

    def begin_step(self) -> None:
        """Carry out a new order from this step on; faults that happen once happen in this step."""
        self.once = OrderKind.NOTHING
        if self._order.number == OrderKind.NOTHING:
            self._order = self._board.order(self._rank)
            if self._order.number != OrderKind.NOTHING:
                self._board.set_applied(self._rank, time.time_ns())
                self.once = OrderKind(self._order.number)

    def read_seconds(self) -> float:
        """Return how much longer reading a batch takes now, in seconds."""
        return self._order.magnitude if self._order.number == OrderKind.SLOW_LOADER else 0.0

    def length_spread_ratio(self) -> float:
        """Return the standard deviation of the logarithm of sequence lengths; 0: all are equal."""
        return self._order.magnitude if self._order.number == OrderKind.UNEVEN_DATA else 0.0

    def compute(self, seconds: float) -> None:
        """Wait for the simulated accelerator; with the order to be slow, compute longer."""
        longer = self._order.magnitude if self._order.number == OrderKind.LONG_STAGE else self.work_ratio
        for _ in range(round(seconds * longer / _LAUNCH_SECONDS)):
            time.sleep(_LAUNCH_SECONDS)
        if self._order.number == OrderKind.SLOW_COMPUTE:
            until = time.perf_counter() + seconds * (self._order.magnitude - 1.0)
            while time.perf_counter() < until:
                torch.mm(self._busy, self._busy)

    def collect_garbage(self) -> None:
        """With the order to pause: in steps drawn at random, collect garbage for some time."""
        if self._order.number != OrderKind.GC_PAUSES or self._random.random() * self._world_size >= 1.0:
            return
        if not self._garbage:
            self._garbage = [[number] for number in range(_GARBAGE_COUNT)]
            for one in self._garbage:
                one.append(one)  # a cycle, which the collector must visit
        until = time.perf_counter() + self._order.magnitude * self._random.uniform(0.5, 1.5)
        while time.perf_counter() < until:
            gc.collect()


@dataclass
class Trainer:
    """Model, data and process groups of one rank."""

    config: RankConfig
    board: Board
    grid: ParallelGrid
    keeper: Keeper | None
    struck: Struck = field(init=False)
    model: TinyTransformer = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    loader: TokenLoader = field(init=False)

    def __post_init__(self) -> None:
        """Create the model, the optimizer and the loader."""
        config, size = self.config, ModelSize()
        self.struck = Struck(config, self.board)
        torch.manual_seed(config.seed)
        self.model = TinyTransformer(size, self.grid.tensor, config.tensor_parallel)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.loader = TokenLoader(
            size,
            config.seed * 1000 + self.grid.data_index,
            lambda: config.pace.read_seconds + self.struck.read_seconds(),
        )

    def run(self) -> None:
        """Train until the last step that the shared page names."""
        pauses = {pause.after_step: pause for pause in self.config.pauses}
        batches = self.batches()
        keeper = self.keeper
        step = 0 if keeper is None else keeper.resume(self.model, self.optimizer, self.loader)
        while step <= self.board.last_step():
            self.board.set_step(self.config.rank, step)
            self.struck.begin_step()
            begin_ns = time.time_ns()
            with hook.step(step):
                loss = self._step(step, batches)
                if keeper is not None:
                    keeper.note(step, loss, begin_ns)  # a loop that writes down its losses does so in its step
            if keeper is not None and keeper.is_due(step):
                with hook.phase("checkpoint"):
                    keeper.save(step + 1, self.model, self.optimizer, self.loader)
            if step in pauses:
                self._pause(pauses[step])
            step += 1

    def batches(self) -> Iterator[Tensor]:
        """Attach the hook; return an iterator over the tokens of each batch."""
        hook.attach(model=self.model, optimizer=self.optimizer, collectives=True)
        return iter(self.loader)

    def _step(self, step: int, batches: Iterator[Tensor]) -> float:
        """Run one training step; return this rank's loss."""
        pace, struck = self.config.pace, self.struck
        with hook.phase("data"):
            tokens = next(batches)
        if struck.once is OrderKind.EXCEPTION:
            _check_tokens(tokens + ModelSize().vocabulary, step)
        _check_tokens(tokens, step)
        with hook.phase("forward"):
            loss: Tensor = self.model(tokens)
            struck.compute(pace.forward_seconds + (pace.first_step_seconds if step == 0 else 0.0))
            struck.collect_garbage()
            if struck.once is OrderKind.NAN_LOSS:
                loss = loss * float("nan")
        with hook.phase("backward"):
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            struck.compute(pace.backward_seconds)
        self._report(loss)
        self._reduce_gradients()
        with hook.phase("optimizer"):
            self.optimizer.step()
        if step % _WORLD_REDUCE_EVERY == 0:
            dist.all_reduce(loss.detach().clone())
        return loss.item()

    def _report(self, loss: Tensor) -> None:
        """Give the hook the loss and the norm of this rank's own gradients."""
        if self.struck.once is OrderKind.NAN_GRADIENT:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(float("nan"))
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        hook.loss(loss.item())
        hook.grad_norm(torch.nn.utils.get_total_norm(grads).item())

    def _reduce_gradients(self) -> None:
        """Replace the gradients by their mean over the data-parallel group, in one bucket."""
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        bucket = torch.cat([grad.flatten() for grad in grads])
        if self.struck.once is OrderKind.BROADCAST:
            dist.broadcast(bucket, src=self.config.rank, group=self.grid.data)
        elif self.struck.once is not OrderKind.SKIP_REDUCE:
            dist.all_reduce(bucket, group=self.grid.data)
        bucket /= self.grid.data_size
        at = 0
        for grad in grads:
            grad.copy_(bucket[at : at + grad.numel()].view_as(grad))
            at += grad.numel()

    def _pause(self, pause: Pause) -> None:
        """Checkpoint or evaluate, then wait for the slowest rank, like a real trainer."""
        with hook.phase(pause.phase):
            if pause.phase == "checkpoint" and self.grid.data_index == 0:
                path = self.config.checkpoint_folder / f"part{self.grid.tensor_index}.pt"
                torch.save(self.model.state_dict(), path)
                time.sleep(pause.seconds)
            elif pause.phase == "evaluation":
                self._evaluate(pause.seconds)
            dist.barrier()

    def _evaluate(self, seconds: float) -> None:
        """Evaluate the model for about ``seconds``."""
        until = time.monotonic() + seconds
        held_out = TokenLoader(ModelSize(), self.config.seed, lambda: 0.0)
        self.model.eval()
        with torch.no_grad():
            for count, tokens in enumerate(held_out):
                self.model(tokens)
                time.sleep(self.config.pace.forward_seconds)
                done = torch.tensor([float(time.monotonic() > until)])
                dist.all_reduce(done)  # all stop at the same batch, or the groups would part
                if done.item() > 0 or count > 10_000:
                    break
        self.model.train()


def _check_tokens(tokens: Tensor, step: int) -> None:
    """Check that the embedding has every token of a batch; raise ValueError if not."""
    largest, vocabulary = int(tokens.max()), ModelSize().vocabulary
    if largest >= vocabulary:
        raise ValueError(f"batch of step {step}: token {largest} is outside the vocabulary of {vocabulary}")


def new_group(ranks: list[int], kind: str) -> dist.ProcessGroup:
    """Create a process group of a kind that the hook knows; all ranks of the job must call it."""
    group: dist.ProcessGroup = dist.new_group(ranks, timeout=_COLLECTIVE_TIMEOUT, group_desc=kind)
    return group


def join_job(config: RankConfig) -> Store:
    """Join the job's process group over gloo, and return the rendezvous store.

    The caller keeps it until the last group is created: torch calls back into a store that is written in Python, and
    such a store is gone with its last reference in Python.
    """
    torch.set_num_threads(1)
    time.sleep(config.start_seconds or 0.0)
    store: Store = FileStore(str(config.store_path), config.world_size)
    if config.relay_socket is not None:
        store = DetourStore(store, config.relay_socket)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=config.rank,
        world_size=config.world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    return store


def train(config: RankConfig, board: Board, kind: type[Trainer] = Trainer) -> None:
    """Train as one rank of the job until the job's end.

    Args:
        config: configuration of the rank.
        board: page shared with the drill.
        kind: how it trains.
    """
    store = join_job(config)
    grid = make_grid(config)
    del store  # all groups are there
    keeper = None if config.checkpoints is None else Keeper(config.rank, config.checkpoints)
    hook.init(
        job_id=config.job_id,
        rank=config.rank,
        cluster=config.cluster,
        dp=grid.data_index,
        tp=grid.tensor_index,
    )
    kind(config, board, grid, keeper).run()
    hook.close()
    if keeper is not None:
        keeper.leave()
    dist.barrier()  # nobody leaves while a peer still reads from its sockets


def make_grid(config: RankConfig) -> ParallelGrid:
    """Create the process groups: neighbouring ranks share a layer, ranks at equal places of these groups share data."""
    world, parts = config.world_size, config.tensor_parallel
    tensor = [list(range(first, first + parts)) for first in range(0, world, parts)]
    data = [list(range(place, world, parts)) for place in range(parts)]
    tensor_groups = [new_group(ranks, "tp") for ranks in tensor]
    data_groups = [new_group(ranks, "dp") for ranks in data]
    place = config.rank % parts
    return ParallelGrid(
        data=data_groups[place],
        tensor=tensor_groups[config.rank // parts],
        data_size=len(data[place]),
        data_index=config.rank // parts,
        tensor_index=place,
    )

"""A synthetic training job from the physics of training alone: 1F1B pipelines, all-reduces, waiting.

A *worker* is one (data-parallel rank, pipeline stage): the tensor-parallel ranks inside it compute in step. Every
array is indexed [step, microbatch, stage, data-parallel rank] as far as it has these axes; all times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a job.

    Attributes:
        dp: data-parallel ranks.
        pp: pipeline stages.
        tp: tensor-parallel ranks of a worker.
        gpus_per_host: ranks of a host.
        microbatches: per step.
        steps: number of steps.
    """

    dp: int
    pp: int
    tp: int
    gpus_per_host: int
    microbatches: int
    steps: int

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.dp * self.pp * self.tp

    @property
    def hosts(self) -> int:
        """All hosts."""
        return -(-self.ranks // self.gpus_per_host)

    def rank_of(self, stage: int, dp: int, tp: int) -> int:
        """The global rank: tensor ranks lie side by side, then replicas, then stages."""
        return (stage * self.dp + dp) * self.tp + tp

    def loading_stages(self) -> tuple[int, ...]:
        """The stages that read batches: the first (tokens) and the last (labels)."""
        return tuple(sorted({0, self.pp - 1}))


@dataclass(frozen=True, slots=True)
class Work:
    """How long everything takes in each step.

    Attributes:
        forward: of a worker, [S, M, P, D].
        backward: of a worker, [S, M, P, D].
        forward_p2p: transfer from stage p to p+1, [S, M, P-1, D].
        backward_p2p: transfer from stage p+1 to p, [S, M, P-1, D].
        gather: parameters' all-gather of a stage's replicas, [S, P].
        scatter: gradients' reduce-scatter of a stage's replicas, [S, P].
        optimizer: [S, P, D].
        loading: waiting for the batch, [S, P, D].
        rank_ratio: a rank's own compute over its worker's, [S, P, D, T]; 1 for the slowest.
        rank_pause: pauses in a rank's forward passes, part of the worker's forward time, [S, P, D, T].
        rank_loading: a rank's own waiting for data, [S, P, D, T].
        cost: relative cost of the sequences of a microbatch, [S, M, D].
    """

    forward: Seconds
    backward: Seconds
    forward_p2p: Seconds
    backward_p2p: Seconds
    gather: Seconds
    scatter: Seconds
    optimizer: Seconds
    loading: Seconds
    rank_ratio: Seconds
    rank_pause: Seconds
    rank_loading: Seconds
    cost: Seconds


@dataclass(slots=True)
class Played:
    """When each operation ran, seconds since its step's begin.

    Attributes:
        forward: starts and ends, [2, S, M, P, D]; as ``backward``.
        backward: starts and ends.
        forward_send: launch and end of the transfers to the next stage, [2, S, M, P-1, D]; the others alike.
        forward_recv: at the receiving stage p+1.
        backward_send: from stage p+1.
        backward_recv: at stage p.
        gather: [2, S, P, D]; as ``embedding``, ``scatter``, ``clip`` and ``optimizer``.
        step_seconds: time of each step, [S].
    """

    forward: Seconds
    backward: Seconds
    forward_send: Seconds
    forward_recv: Seconds
    backward_send: Seconds
    backward_recv: Seconds
    gather: Seconds
    embedding: Seconds
    scatter: Seconds
    clip: Seconds
    optimizer: Seconds
    step_seconds: Seconds = field(default_factory=lambda: np.zeros(0))


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The order in which a stage computes: warm-up forwards, then one forward one backward, then the rest."""
    warm = min(stages - stage - 1, microbatches)
    order = [("f", index) for index in range(warm)]
    for index in range(microbatches - warm):
        order += [("f", warm + index), ("b", index)]
    return order + [("b", index) for index in range(microbatches - warm, microbatches)]


def _empty(work: Work) -> Played:
    """Arrays for all operations."""
    steps, microbatches, stages, replicas = work.forward.shape
    compute, pair = (np.zeros((2, steps, microbatches, depth, replicas)) for depth in (stages, stages - 1))
    tail = np.zeros((2, steps, stages, replicas))
    copies = [compute.copy() for _ in range(2)], [pair.copy() for _ in range(4)], [tail.copy() for _ in range(5)]
    return Played(*copies[0], *copies[1], *copies[2])


class Pipeline:
    """One simulation: computes wait for what they receive, transfers for both sides, collectives for all members."""

    def __init__(self, work: Work) -> None:
        self._work, self.played = work, _empty(work)
        _, self._microbatches, self._stages, _ = work.forward.shape
        gather = self.played.gather
        gather[0] = work.loading
        gather[1] = gather[0].max(axis=2, keepdims=True) + work.gather[:, :, None]
        self._free = [gather[1][:, stage] for stage in range(self._stages)]

    def run(self) -> Played:
        """All computes in an order that their dependencies allow, then the step's tail."""
        orders = [one_forward_one_backward(stage, self._stages, self._microbatches) for stage in range(self._stages)]
        position, done = [0] * self._stages, set[tuple[str, int, int]]()
        while any(at < len(order) for at, order in zip(position, orders, strict=True)):
            for stage, order in enumerate(orders):
                while position[stage] < len(order):
                    kind, index = order[position[stage]]
                    source = stage - 1 if kind == "f" else stage + 1
                    if 0 <= source < self._stages and (kind, index, source) not in done:
                        break
                    self._compute(kind, index, stage, source)
                    done.add((kind, index, stage))
                    position[stage] += 1
        self._tail()
        return self.played

    def _compute(self, kind: str, index: int, stage: int, source: int) -> None:
        """One compute and the transfer that it waits for."""
        played, work = self.played, self._work
        own = played.forward if kind == "f" else played.backward
        start = self._free[stage]
        if 0 <= source < self._stages:
            edge = min(stage, source)
            send = played.forward_send if kind == "f" else played.backward_send
            receive = played.forward_recv if kind == "f" else played.backward_recv
            seconds = work.forward_p2p if kind == "f" else work.backward_p2p
            launched = own[1][:, index, source]
            posted = own[1][:, index - 1, stage] if index else self._free[stage]
            arrived = np.maximum(launched, posted) + seconds[:, index, edge]
            send[0][:, index, edge], send[1][:, index, edge] = launched, arrived
            receive[0][:, index, edge], receive[1][:, index, edge] = posted, arrived
            start = np.maximum(start, arrived)
        needed = (work.forward if kind == "f" else work.backward)[:, index, stage]
        own[0][:, index, stage], own[1][:, index, stage] = start, start + needed
        self._free[stage] = start + needed

    def _tail(self) -> None:
        """Embedding gradients between first and last stage, gradients over replicas, one barrier, the optimizer."""
        played, work = self.played, self._work
        free = np.stack(self._free, axis=1)
        played.embedding[0] = free
        ends = free.copy()
        if self._stages > 1:
            ends[:, [0, -1]] = np.maximum(free[:, 0], free[:, -1])[:, None] + 1e-3
        played.embedding[1] = ends
        played.scatter[0] = ends
        played.scatter[1] = ends.max(axis=2, keepdims=True) + work.scatter[:, :, None]
        played.clip[0] = played.scatter[1]
        played.clip[1] = played.scatter[1].max(axis=(1, 2), keepdims=True) + 2e-3
        played.optimizer[0] = played.clip[1]
        played.optimizer[1] = played.clip[1] + work.optimizer
        played.step_seconds = played.optimizer[1].max(axis=(1, 2))


def play(work: Work) -> Played:
    """Simulate all steps."""
    return Pipeline(work).run()


def seconds_of(work: Work, first_step: int = 0) -> float:
    """The time of all steps from one on."""
    return float(play(work).step_seconds[first_step:].sum())

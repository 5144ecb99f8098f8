"""Tracker of loss and gradient spikes on single hosts: finite but wrong numbers, a sign of silent data corruption.

A loss spike counts if one host's loss jumps alone and every rank's gradient norm jumps with it. Outliers in the data
hit another replica each time, and a diverging model hits all. Where ranks report their own gradient norm before the
all-reduce, spikes of that norm are tracked in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.models.own_norms import OwnNormConfig, OwnNorms
from tocsin.pipeline.core.arrays import map_from, map_state
from tocsin.pipeline.detect.traces.memory import past_from, past_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.evidence.spikes import Spike, SpikeConfig, Spikes
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Settings of the tracker.

    Attributes:
        factor: ratio to the others' loss, or to the usual gradient norm, that is a spike. Losses of replicas differ by
            some percent, gradient norms of one run by up to two times.
        least_host_count: fewest hosts with own losses that can be compared.
        usual_count: number of usual gradient norms kept; judging starts with half of them.
        uneasy_count: steps after a job-wide gradient spike in which own norms are not judged.
        settle_ns: age of a step's first row at which the step is judged.
        open_keep_count: most steps that wait to be judged.
        back_count: distance of an earlier step that shows a rollback.
        losses: when repeated loss spikes on one host are beyond chance.
        norms: the same for own gradient norms, which spike now and then on uneven data.
        own: when an own gradient norm is a spike.
    """

    factor: float = 3.0
    least_host_count: int = 4
    usual_count: int = 32
    uneasy_count: int = 3
    settle_ns: int = 3 * NS_PER_SECOND
    open_keep_count: int = 16
    back_count: int = 200
    losses: SpikeConfig = field(default_factory=SpikeConfig)
    norms: SpikeConfig = field(default_factory=lambda: SpikeConfig(chance_ratio=1e-5, seldom_count=10))
    own: OwnNormConfig = field(default_factory=OwnNormConfig)


@dataclass(slots=True)
class _Step:
    """Numbers of one step: arrival time of its first row, and losses and gradient norms by rank."""

    first_ns: int
    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class LossSpikes:
    """Losses and gradient norms of one job's recent steps, and the spikes found in them.

    Attributes:
        config: settings.
        graph: the job's ranks and hosts.
        open: step -> numbers of steps that are not judged yet.
        judged_step: newest judged step.
        uneasy_count: remaining steps in which own norms are not judged.
        usual: gradient norms of recent steps without a spike.
        losses: loss spikes.
        norms: spikes of own gradient norms.
        own: usual own gradient norm of each rank.
    """

    config: LossConfig
    graph: JobGraph
    open: dict[int, _Step] = field(default_factory=dict)
    judged_step: int = -1
    uneasy_count: int = 0
    usual: list[float] = field(default_factory=list)
    losses: Spikes = field(init=False)
    norms: Spikes = field(init=False)
    own: OwnNorms = field(init=False)

    def __post_init__(self) -> None:
        """Start without spikes."""
        self.losses, self.norms = Spikes(self.config.losses), Spikes(self.config.norms)
        self.own = OwnNorms(self.config.own)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Store the finite losses and gradient norms of steps that are not judged yet; restart after a rollback."""
        for row in rows:
            if row.step < self.judged_step - self.config.back_count:
                self.judged_step, self.open = row.step - 1, {}
            if row.grad_norm is None or row.step <= self.judged_step or not math.isfinite(row.grad_norm):
                continue
            if row.loss is not None and not math.isfinite(row.loss):
                continue
            step = self.open.get(row.step)
            if step is None:
                step = self.open[row.step] = _Step(row.ts_ns)
            step.first_ns = min(step.first_ns, row.ts_ns)
            step.norms[row.rank] = row.grad_norm
            if row.loss is not None:
                step.losses[row.rank] = row.loss
        for number in sorted(self.open)[: -self.config.open_keep_count]:
            del self.open[number]

    def find(self, now_ns: int) -> Finding | None:
        """Judge all settled steps and return a finding about the host that spikes repeatedly; None if there is none."""
        for number in sorted(self.open):
            if now_ns - self.open[number].first_ns < self.config.settle_ns:
                break
            self._judge(number, self.open.pop(number))
        losses, norms = self.losses.found(now_ns), self.norms.found(now_ns)
        if losses:
            return self._finding(losses, Reason.LOSS_JUMPS_ALONE)
        return self._finding(norms, Reason.GRADIENT_JUMPS_ALONE) if norms else None

    def _judge(self, number: int, step: _Step) -> None:
        """Judge one step: look for loss spikes if the job's gradient norm jumped, else for spikes of own norms."""
        self.judged_step = max(self.judged_step, number)
        ranks, norms = _arrays(step.norms)
        norm = float(np.median(norms))
        if len(self.usual) >= self.config.usual_count // 2 and norm >= self.config.factor * np.median(self.usual):
            self.uneasy_count = self.config.uneasy_count
            self._judge_losses(number, step)
            return
        self.usual = [*self.usual, norm][-self.config.usual_count :]
        if self.uneasy_count:
            self.uneasy_count -= 1
        else:
            # Where nobody says which stage a rank is in, nobody is known to be its peer.
            is_known = (norms > 0) & np.isin(ranks, list(self.graph.places))
            self._judge_norms(number, step.first_ns, ranks[is_known], norms[is_known])

    def _judge_losses(self, number: int, step: _Step) -> None:
        """Record a loss spike if the losses that exceed the median by ``factor`` are all of one host."""
        ranks, losses = _arrays(step.losses)
        if not ranks.size or (middle := float(np.median(losses))) <= 0:
            return
        high = ranks[losses > self.config.factor * middle].tolist()
        hosts = {self.graph.host_of(rank) for rank in high}
        if len(hosts) == 1:
            host_count = len({self.graph.host_of(rank) for rank in ranks.tolist()})
            if host_count >= self.config.least_host_count:
                spike = Spike(number, step.first_ns, hosts.pop(), tuple(high), float(losses.max()), middle, host_count)
                self.losses.add(spike)

    def _judge_norms(self, number: int, first_ns: int, ranks: IntArray, norms: FloatArray) -> None:
        """Record a spike of own gradient norms in a step with a usual global norm.

        Args:
            number: step number.
            first_ns: arrival time of its first row.
            ranks: ranks with a known place, ascending.
            norms: their gradient norms.
        """
        far = self.own.step(ranks, self._roles(ranks), norms)
        if far:
            hosts = {self.graph.host_of(one.rank) for one in far}
            host = hosts.pop() if len(hosts) == 1 else None
            top = max(far, key=lambda one: (one.norm, -one.rank))
            fields = (
                top.norm,
                top.usual_norm,
                min(one.role_count for one in far),
                self.own.step_count,
                top.before_ratio,
            )
            spiked = () if host is None else tuple(one.rank for one in far)
            self.norms.add(Spike(number, first_ns, host, spiked, *fields))

    def _roles(self, ranks: IntArray) -> IntArray:
        """Return one number per rank, equal for ranks with the same pipeline stage and tensor-parallel index."""
        places = self.graph.places
        pairs = [(places[rank].pp, places[rank].tp) for rank in ranks.tolist()]
        stages, parts = np.array(pairs, np.int64).reshape(-1, 2).T
        roles: IntArray = stages * (parts.max(initial=0) + 2) + parts
        return roles

    def _finding(self, spikes: Sequence[Spike], reason: Reason) -> Finding:
        """Return the corruption finding about the host of these spikes, without a drain, as bad data looks the same."""
        first, last = spikes[0], spikes[-1]
        ranks = sorted({rank for spike in spikes for rank in spike.ranks})
        steps = ", ".join(str(spike.step) for spike in spikes[-3:])
        is_loss = reason is Reason.LOSS_JUMPS_ALONE
        what, others = ("loss", "the others") if is_loss else ("gradient norm", "its peers")
        end = "and everybody's gradient norm with it" if is_loss else "and nobody else's with it"
        text = (
            f"{names_of(self.graph, ranks[:3])}: its own {what} jumped in {len(spikes)} steps (last {steps}), to "
            f"{last.value:.3g} where {others} had {last.usual_value:.3g}, {end}"
        )
        metric, numbers = "loss" if is_loss else "grad_norm", (last.value, last.usual_value)
        evidence = Evidence("losses", metric, 2.0, first.ts_ns, last.ts_ns, text, *numbers)
        return Finding(
            FaultKind.SILENT_CORRUPTION,
            "unknown",
            suspects_of(self.graph, ranks),
            first.ts_ns,
            0.75,
            reason,
            (evidence,),
            is_soft=True,  # a shard of bad data does the same
            seen_ns=last.ts_ns,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "open": [
                [number, step.first_ns, map_state(step.losses, "<f8"), map_state(step.norms, "<f8")]
                for number, step in sorted(self.open.items())
            ],
            "judged_step": self.judged_step,
            "uneasy_count": self.uneasy_count,
            "usual": self.usual,
            "losses": self.losses.to_state(),
            "norms": self.norms.to_state(),
            "own": [self.own.step_count, past_state(self.own.past), past_state(self.own.often)],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.open = {
            number: _Step(first_ns, map_from(losses), map_from(norms))
            for number, first_ns, losses, norms in state["open"]
        }
        self.judged_step, self.usual = state["judged_step"], state["usual"]
        self.uneasy_count = state["uneasy_count"]
        self.losses.load_state(state["losses"])
        self.norms.load_state(state["norms"])
        self.own.step_count, past, often = state["own"]
        past_from(self.own.past, past)
        past_from(self.own.often, often)


def _arrays(numbers: dict[int, float]) -> tuple[IntArray, FloatArray]:
    """Return the ranks, ascending, and their values as two arrays."""
    ranks, values = map_state(numbers, "<f8")
    return ranks, values

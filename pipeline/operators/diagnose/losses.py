"""Whose own loss jumps alone, again and again, and everybody's gradient with it: numbers that are wrong, and finite.

An outlier in the data does that to another replica each time; a diverging model, or a bad batch of all, to all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tocsin.pipeline.operators.diagnose.common import names_of, suspects_of
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Settings.

    Attributes:
        factor: a loss that is so many times the others' has jumped, as has a gradient norm over its usual one: losses
            of replicas in one step lie within some percent, gradient norms of one run within a factor of two.
        chance_ratio: the same host has all jumps by chance as seldom as this, if each falls on any host: that says how
            many are needed (three in a job of 15 hosts, five in one of four).
        least_host_count: fewer hosts with losses of their own tell nothing.
        usual_count: gradient norms that are remembered as usual; none is judged before half of them are.
        settle_ns: a step is judged when its first row is so old.
        forget_ns: jumps that are older than this count no more.
        lasting_ns: what is found holds for so long after the last one.
        open_keep_count: steps that wait to be judged.
        back_count: who makes a step that lies so far back was rolled back, and makes the others again.
    """

    factor: float = 3.0
    chance_ratio: float = 0.005
    least_host_count: int = 4
    usual_count: int = 32
    settle_ns: int = 3 * NS_PER_SECOND
    forget_ns: int = 3600 * NS_PER_SECOND
    lasting_ns: int = 600 * NS_PER_SECOND
    open_keep_count: int = 16
    back_count: int = 200


@dataclass(slots=True)
class _Step:
    """Rows of one step: when the first came, and the numbers by rank."""

    first_ns: int
    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class LossTracker:
    """Losses of one job's last steps, and which jumped alone.

    Attributes:
        config: settings.
        graph: who runs where.
        open: steps that are not judged yet.
        judged_step: the newest one that was.
        usual: gradient norms of steps in which nothing jumped.
        jumps: [step, ts_ns, host, ranks, loss, what the others had], the oldest first.
        host_count: on how many hosts the last judged step had losses.
    """

    config: LossConfig
    graph: JobGraph
    open: dict[int, _Step] = field(default_factory=dict)
    judged_step: int = -1
    usual: list[float] = field(default_factory=list)
    jumps: list[list[Any]] = field(default_factory=list)
    host_count: int = 0

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Keep the numbers of steps that are not judged yet."""
        for row in rows:
            if row.step < self.judged_step - self.config.back_count:
                self.judged_step, self.open = row.step - 1, {}
            if row.loss is None or row.grad_norm is None or row.step <= self.judged_step:
                continue
            if not (math.isfinite(row.loss) and math.isfinite(row.grad_norm)):
                continue
            step = self.open.get(row.step)
            if step is None:
                step = self.open[row.step] = _Step(row.ts_ns)
            step.first_ns = min(step.first_ns, row.ts_ns)
            step.losses[row.rank], step.norms[row.rank] = row.loss, row.grad_norm
        for number in sorted(self.open)[: -self.config.open_keep_count]:
            del self.open[number]

    def find(self, now_ns: int) -> Finding | None:
        """The machine whose losses jump, None: there is none, or nobody can say."""
        for number in sorted(self.open):
            if now_ns - self.open[number].first_ns < self.config.settle_ns:
                break
            self._judge(number, self.open.pop(number))
        self.jumps = [jump for jump in self.jumps if now_ns - jump[1] <= self.config.forget_ns]
        if not self.jumps or now_ns - self.jumps[-1][1] > self.config.lasting_ns:
            return None
        hosts = {jump[2] for jump in self.jumps}
        return self._finding() if len(hosts) == 1 and len(self.jumps) >= self._least_count() else None

    def _least_count(self) -> int:
        """So many jumps of one host are no chance: the first falls on any, each other one on the same."""
        return 1 + max(2, math.ceil(math.log(1 / self.config.chance_ratio) / math.log(max(2, self.host_count))))

    def _judge(self, number: int, step: _Step) -> None:
        self.judged_step = max(self.judged_step, number)
        ranks = sorted(step.losses)
        losses = np.array([step.losses[rank] for rank in ranks])
        norm = statistics.median(step.norms.values())
        self.host_count = len({self.graph.host_of(rank) for rank in ranks})
        if len(self.usual) < self.config.usual_count // 2 or norm < self.config.factor * statistics.median(self.usual):
            self.usual = [*self.usual, norm][-self.config.usual_count :]
            return
        middle = float(np.median(losses))
        high = [rank for rank, loss in zip(ranks, losses.tolist(), strict=True) if loss > self.config.factor * middle]
        hosts = {self.graph.host_of(rank) for rank in high}
        if middle > 0 and len(hosts) == 1 and self.host_count >= self.config.least_host_count:
            host = hosts.pop()
            self.jumps.append([number, step.first_ns, host, high, float(losses.max()), middle])

    def _finding(self) -> Finding:
        first, last = self.jumps[0], self.jumps[-1]
        ranks = sorted({rank for jump in self.jumps for rank in jump[3]})
        steps = ", ".join(str(jump[0]) for jump in self.jumps[-3:])
        text = (
            f"{names_of(self.graph, ranks[:3])}: its own loss jumped in {len(self.jumps)} steps (last {steps}), to "
            f"{last[4]:.3g} where the others had {last[5]:.3g}, and everybody's gradient norm with it"
        )
        evidence = Evidence("losses", "loss", 2.0, first[1], last[1], text, suspect_value=last[4], peer_value=last[5])
        return Finding(
            FaultKind.SILENT_CORRUPTION,
            "unknown",
            suspects_of(self.graph, ranks),
            first[1],
            0.75,
            Reason.LOSS_JUMPS_ALONE,
            (evidence,),
            is_soft=True,  # a shard of bad data does the same
            seen_ns=last[1],
        )

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "open": [
                [number, step.first_ns, sorted(step.losses.items()), sorted(step.norms.items())]
                for number, step in sorted(self.open.items())
            ],
            "judged_step": self.judged_step,
            "usual": self.usual,
            "jumps": self.jumps,
            "host_count": self.host_count,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.open = {
            number: _Step(first_ns, dict(map(tuple, losses)), dict(map(tuple, norms)))
            for number, first_ns, losses, norms in state["open"]
        }
        self.judged_step, self.usual = state["judged_step"], state["usual"]
        self.jumps, self.host_count = state["jumps"], state["host_count"]

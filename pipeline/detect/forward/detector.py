"""Detector of a host whose forward pass became longer than its peers', by the newest steps of a job.

It speaks where the step detector does not: the job's steps are hardly longer. What was so from the first steps on is
how the job is split, and is not told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tocsin.models.slow_forward import ForwardConfig, SlowForward, find_slow_forward, forward_excess_ratios
from tocsin.models.steps import StepWindow
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.steps.rows import StepRows, table_of
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR: Final = "forward"
METRIC: Final = "forward_seconds"


@dataclass(frozen=True, slots=True)
class ForwardDetectorConfig:
    """Settings of the detector of long forward passes.

    Attributes:
        lines: alarm lines.
        newest_count: newest steps that are compared. With the five seconds until steps are told, a host is named within
            ten steps where a step takes three seconds or more.
        early_count: first judged steps whose excess is how the job is split ...
        early_ratio: ... if it is at least this share of the present one, as in ``StepsConfig``.
        most_step_ratio: from this share of a step on the step detector tells.
        grace_ns: a host is told for so long after it last passed the tests.
        handover_ns: a host that passes them so soon after another one is no machine's fault, and nor is the other: what
            moves among hosts is data or a program. As ``RotationConfig`` remembers it.
    """

    lines: ForwardConfig = field(default_factory=ForwardConfig)
    newest_count: int = 6
    early_count: int = 24
    early_ratio: float = 0.5
    most_step_ratio: float = 0.10
    grace_ns: int = 30 * NS_PER_SECOND
    handover_ns: int = 180 * NS_PER_SECOND


@dataclass(slots=True)
class _LongPass:
    """The host that is told: its rank, since when, when it last passed the tests, and how far it is above the lines."""

    host: str
    rank: int
    since_ns: int
    last_ns: int
    excess_ratio: float
    step_ratio: float
    score: float


class ForwardDetector:
    """Follows the forward passes of one job's ranks."""

    def __init__(self, config: ForwardDetectorConfig, graph: JobGraph) -> None:
        """Start without history.

        Args:
            config: settings.
            graph: the job, for the hosts and stages of its ranks.
        """
        self._config = config
        self._graph = graph
        self._judged_count = 0
        self._early: dict[int, float] = {}
        """Rank -> excess of its forward pass in the job's first judged steps; the least on any of its hosts."""
        self._now: _LongPass | None = None
        self._last: tuple[str, int] = ("", 0)
        """The host that passed the tests last, and when."""
        self._moving_until_ns = 0

    def on_steps(self, data: Slice, steps: Sequence[StepRows], judged_count: int) -> list[Anomaly]:
        """Take the newest steps of a job; return the host whose forward pass is longer at a slice's end.

        Args:
            data: the slice.
            steps: the newest judged steps, newest last.
            judged_count: number of steps judged so far.
        """
        if judged_count > self._judged_count and steps:
            self._judge(steps, judged_count)
        self._judged_count = judged_count
        now = self._now
        if now is not None and now.last_ns <= self._graph.placement.moved_ns:
            self._now = now = None
        if now is not None and data.end_ns - now.last_ns > self._config.grace_ns + self._three_steps_ns(steps):
            self._now = now = None
        return [] if now is None else [self._anomaly(data, now)]

    @staticmethod
    def _three_steps_ns(steps: Sequence[StepRows]) -> int:
        """Return three times the length of the newest step."""
        return int(3 * NS_PER_SECOND * float(np.nanmax(steps[-1].values[:, 0]))) if steps else 0

    def _judge(self, steps: Sequence[StepRows], judged_count: int) -> None:
        """Compare the ranks over the newest steps."""
        config = self._config
        if judged_count <= config.early_count:
            self._early = self._excess_ratios(steps)
            return
        if self._graph.placement.moved_ns > 0 and len(steps) >= config.early_count:
            # how the job is split makes a rank slow on each of its hosts
            known = self._early
            excess = self._excess_ratios(steps)
            self._early = {rank: min(value, known.get(rank, value)) for rank, value in excess.items()}
        newest = steps[-config.newest_count :]
        if len(newest) < config.newest_count:
            return
        window, ranks = self._window(newest)
        hosts = np.array([self._graph.host_of(rank) for rank in ranks])
        slow = find_slow_forward(window, hosts, config.lines)
        if slow is None or slow.step_ratio >= config.most_step_ratio:
            return
        rank, host = ranks[slow.column], str(hosts[slow.column])
        if not host or not self._early.get(rank, slow.excess_ratio) < config.early_ratio * slow.excess_ratio:
            return
        self._see(newest, host, rank, slow)

    def _see(self, newest: Sequence[StepRows], host: str, rank: int, slow: SlowForward) -> None:
        """Note that a host passed the tests over some steps."""
        known, newest_ns = self._now, newest[-1].end_ns
        name, passed_ns = self._last
        if name not in ("", host) and newest_ns - passed_ns < self._config.handover_ns:
            self._moving_until_ns = newest_ns + self._config.handover_ns
        self._last = host, newest_ns
        if newest_ns < self._moving_until_ns:
            self._now = None
            return
        begin_ns = newest[0].end_ns - int(float(np.nanmax(newest[0].values[:, 0])) * NS_PER_SECOND)
        since_ns = known.since_ns if known is not None and known.host == host else begin_ns
        figures = slow.excess_ratio, slow.step_ratio, slow.score
        self._now = _LongPass(host, rank, since_ns, newest_ns, *figures)

    def _excess_ratios(self, steps: Sequence[StepRows]) -> dict[int, float]:
        """Return rank -> excess of its forward pass over its peers'."""
        window, ranks = self._window(steps)
        return dict(zip(ranks, map(float, forward_excess_ratios(window)), strict=True))

    def _window(self, steps: Sequence[StepRows]) -> tuple[StepWindow, tuple[int, ...]]:
        """Return steps as arrays of shape (steps, ranks), and the ranks."""
        ranks, table = table_of(steps)
        roles = np.array(self._graph.placement.stages_of(ranks), dtype=np.int64)
        return StepWindow(table[0], table[1], table[2:], roles), ranks

    def _anomaly(self, data: Slice, now: _LongPass) -> Anomaly:
        """Return the anomaly of the host that is told."""
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.HOST, now.host),
            metric=METRIC,
            start_ns=now.since_ns,
            end_ns=now.last_ns,
            score=now.score,
            detector=DETECTOR,
            detail={"rank": now.rank, "excess_ratio": now.excess_ratio, "step_ratio": now.step_ratio},
        )

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one named part."""
        now = self._now
        told = None if now is None else [getattr(now, name) for name in _LongPass.__slots__]
        early = [list(self._early), list(self._early.values())]
        state = {
            "judged": self._judged_count,
            "early": early,
            "now": told,
            "last": self._last,
            "moving_until_ns": self._moving_until_ns,
        }
        return {DETECTOR: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        state: dict[str, Any] = unpack_state(parts, DETECTOR)
        self._judged_count = state["judged"]
        self._early = dict(zip(*state["early"], strict=True))
        self._now = None if state["now"] is None else _LongPass(*state["now"])
        self._last, self._moving_until_ns = (state["last"][0], state["last"][1]), state["moving_until_ns"]

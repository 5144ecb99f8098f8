"""Which rank was the first without a number.

After one all-reduce everybody has it, so the order is told by (step, loss before
gradient norm), which needs no clock. Clocks are asked only among hosts whose error
is known to be smaller than the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.operators.diagnose.common import names_of, suspects_of
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas import events
from tocsin.schemas.event_payloads import number
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind

_STAGE = {"loss": 0, "grad_norm": 1}
_LOCAL_STAGE = -1
"""A number of the rank's own, said to be so: before it met those of the others."""


@dataclass(frozen=True, slots=True)
class NanConfig:
    """Settings.

    Attributes:
        settle_ns: how long after the first report the others may still be heard.
        answer_ns: how long the peers' own numbers of that step are waited for.
        forget_ns: an episode without new reports ends after this.
    """

    settle_ns: int = NS_PER_SECOND
    answer_ns: int = 10 * NS_PER_SECOND
    forget_ns: int = 300 * NS_PER_SECOND


@dataclass(slots=True)
class NanTracker:
    """The reports of one episode: rank -> [step, stage, ts_ns, value]."""

    config: NanConfig
    first: dict[int, list[Any]] = field(default_factory=dict)
    newest_ns: int = 0

    def take(self, event: Event) -> None:
        """Keep a rank's first report of the episode."""
        what = str(event.payload.get("what", event.payload.get("where", "")))
        stage = _LOCAL_STAGE if "local" in what else _STAGE.get(what, 1)
        step, value = int(number(event.payload, "step", -1)), str(event.payload.get("value", "nan"))
        self._report(event.rank, [step, stage, event.ts_ns, value])

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Step records show it too, where nobody sends events of it."""
        for row in rows:
            if row.loss is None and row.grad_norm is None:
                continue
            for stage, told in enumerate((row.loss, row.grad_norm)):
                if told is not None and not math.isfinite(told):
                    self._report(row.rank, [row.step, stage, row.ts_ns, str(told)])

    def _report(self, rank: int, report: list[Any]) -> None:
        ts_ns = int(report[2])
        if ts_ns - self.newest_ns > self.config.forget_ns:
            self.first.clear()
        self.newest_ns = max(self.newest_ns, ts_ns)
        known = self.first.get(rank)
        if known is None or report[:2] < known[:2]:
            self.first[rank] = report

    def find(self, graph: JobGraph, now_ns: int) -> Finding | None:
        """Who was first, nobody where that cannot be said, None without an episode."""
        if not self.first or now_ns - self.newest_ns > self.config.forget_ns:
            return None
        onset_ns = min(report[2] for report in self.first.values())
        if now_ns - onset_ns < self.config.settle_ns:
            return None
        earliest = min(report[:2] for report in self.first.values())
        ranks = [rank for rank, report in self.first.items() if report[:2] == earliest]
        # Several in the same step had it before they met: what they share (the weights) is to blame,
        # and the fastest of them is only the fastest.
        single = len({graph.host_of(rank) for rank in ranks}) == 1
        if single:
            peers, cleared = self._cleared(graph, ranks, earliest)
            if cleared < peers and now_ns - onset_ns < self.config.answer_ns:
                return None
            # A rank that alone reports its loss is not the first, it is the only one; its own number is its own.
            single = cleared > 0 or earliest[1] == _LOCAL_STAGE
        evidence = tuple(self._evidence(graph, rank) for rank in sorted(ranks)[:5])
        if single:
            suspects, reason, confidence = suspects_of(graph, ranks), Reason.NAN_FIRST_BY_STEP, 0.9
        else:
            suspects, reason, confidence = (), Reason.NAN_EVERYWHERE, 0.6
        return Finding(
            FaultKind.SILENT_CORRUPTION,
            "nan_gradient",
            suspects,
            onset_ns,
            confidence,
            reason,
            evidence,
            certain=True,
        )

    def _cleared(self, graph: JobGraph, ranks: Sequence[int], earliest: Sequence[int]) -> tuple[int, int]:
        """How many ranks of other hosts report this number, and how many of them had one at that step."""
        hosts = {graph.host_of(rank) for rank in ranks}
        step, stage = earliest
        peers, cleared = 0, 0
        for rank, facts in graph.ranks.items():
            if graph.host_of(rank) in hosts:
                continue
            later = rank in self.first  # the earliest ones are all in ``ranks``
            peers += int(later or max(facts.number_steps) >= 0)
            cleared += int(later or facts.number_steps[max(stage, 0)] >= step)
        return peers, cleared

    def _evidence(self, graph: JobGraph, rank: int) -> Evidence:
        step, stage, ts_ns, value = self.first[rank]
        what = {0: "loss", _LOCAL_STAGE: "its own gradient"}.get(stage, "gradient norm")
        text = f"{names_of(graph, [rank])}: {what} is {value} at step {step}"
        others = [report[0] for other, report in self.first.items() if other != rank]
        if others:
            text += f"; {len(others)} other ranks followed (first at step {min(others)})"
        return Evidence("nan", events.NAN, 2.0, ts_ns, ts_ns, text)

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"first": sorted(self.first.items()), "newest_ns": self.newest_ns}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.first = dict(map(tuple, state["first"]))
        self.newest_ns = state["newest_ns"]

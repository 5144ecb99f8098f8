"""The detector of causes that name no machine: when it tells a cause, for how long, and that its state is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tocsin.models.step_causes import DATA, JITTER, STAGE
from tocsin.pipeline.detect.steps.rows import StepRows
from tocsin.pipeline.detect.whatif.config import WhatIfConfig
from tocsin.pipeline.detect.whatif.detector import WhatIfDetector
from tocsin.pipeline.lab.testing.builders import START_NS, build_graph
from tocsin.schemas.records import NS_PER_SECOND, JobKey, Slice, StepRecord
from tocsin.schemas.verdicts import Anomaly, ComponentKind

JOB = JobKey("test", "job")
RANKS = range(8)
WINDOW_COUNT = 24


def no_pause(_step: int, _rank: int) -> float:
    return 0.0


def a_pause(step: int, rank: int) -> float:
    return 0.5 if rank == (step * 5) % 8 else 0.0


@dataclass
class Played:
    """One job with a step a second, and what the detector tells of it."""

    detector: WhatIfDetector = field(default_factory=lambda: WhatIfDetector(WhatIfConfig(), build_graph()))
    window: list[StepRows] = field(default_factory=list)
    count: int = 0

    def run(self, count: int, pause: Callable[[int, int], float] = no_pause) -> list[list[Anomaly]]:
        """What is told at the end of each of the next slices."""
        return [self.slice(pause) for _ in range(count)]

    def slice(self, pause: Callable[[int, int], float]) -> list[Anomaly]:
        self.count += 1
        own = {rank: 0.6 + pause(self.count, rank) + 0.001 * ((self.count * 7 + rank) % 5) for rank in RANKS}
        meet, end_ns = max(own.values()) + 0.02, self.end_ns()
        rows = {
            rank: StepRecord(end_ns, rank, self.count, meet, 0.0, own[rank] - 0.35, 0.3, 0.05, meet - own[rank])
            for rank in RANKS
        }
        self.window = [*self.window, StepRows.of(rows)][-WINDOW_COUNT:]
        return self.take()

    def take(self) -> list[Anomaly]:
        data = Slice(JOB, self.end_ns() - NS_PER_SECOND, self.end_ns(), ())
        return self.detector.on_steps(data, self.window, self.count)

    def end_ns(self) -> int:
        return START_NS + self.count * NS_PER_SECOND


def causes_of(told: Sequence[Sequence[Anomaly]]) -> list[set[str]]:
    return [{anomaly.metric for anomaly in found} for found in told]


def test_a_cause_is_told_of_the_job_once_windows_that_share_no_step_show_it() -> None:
    job = Played()
    assert causes_of(job.run(30)) == [set()] * 30
    told = causes_of(job.run(60, a_pause))
    assert told[:24] == [set()] * 24
    assert told[45:] == [{JITTER}] * 15
    [anomaly] = job.take()
    assert (anomaly.component.kind, anomaly.detector) == (ComponentKind.JOB, "whatif")
    assert anomaly.detail["costs_ratio"] == pytest.approx(0.5 / 1.12, abs=0.03)
    assert anomaly.score == pytest.approx(anomaly.detail["costs_ratio"] * 21)


def test_it_is_told_no_more_soon_after_it_ended() -> None:
    job = Played()
    job.run(90, a_pause)
    told = causes_of(job.run(40))
    assert told[0] == {JITTER}
    assert told[36:] == [set()] * 4


@pytest.mark.parametrize("count", [4, 12])
def test_a_few_steps_are_not_enough(count: int) -> None:
    job = Played()
    job.run(24)
    told = job.run(count, a_pause) + job.run(64 - count)
    assert causes_of(told) == [set()] * 64


def test_a_job_that_stands_is_told_of_no_more() -> None:
    job = Played()
    assert job.run(90, a_pause)[-1]
    window, count = job.window, job.count
    job.count += 100
    data = Slice(JOB, job.end_ns() - NS_PER_SECOND, job.end_ns(), ())
    assert job.detector.on_steps(data, window, count) == []


@pytest.mark.parametrize("at", [5, 30, 47, 48, 49, 70])
def test_a_restored_one_tells_what_the_first_one_would(at: int) -> None:
    whole, first = Played(), Played()
    told = whole.run(90, a_pause)
    before = first.run(at, a_pause)
    second = Played(window=first.window, count=first.count)
    second.detector.restore(first.detector.snapshot())
    assert before + second.run(90 - at, a_pause) == told


def test_the_words_are_those_of_the_causes() -> None:
    assert {STAGE, DATA, JITTER} == {"stage_imbalance", "data_imbalance", "software_jitter"}

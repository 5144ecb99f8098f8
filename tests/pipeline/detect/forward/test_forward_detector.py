"""A host whose forward pass becomes longer than its peers': named within ten steps, and what looks like it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tocsin.pipeline.detect.forward.detector import ForwardDetector, ForwardDetectorConfig
from tocsin.pipeline.detect.steps.rows import StepRows
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second
from tocsin.schemas.records import RankPlace, Slice, StepRecord, Topology
from tocsin.schemas.verdicts import Anomaly

STEP_SECONDS = 10.0
SHARES = {"data": 0.05, "forward": 0.35, "backward": 0.5, "optimizer": 0.1}
Load = Callable[[int, int, str], float]


@dataclass
class Job:
    """Ranks whose steps are fed to the detector; ``load`` is (rank, step, phase) -> factor of the usual time."""

    load: Load
    ranks: int = 8
    ranks_a_host: int = 1
    jitter_ratio: float = 0.01
    stage_of: Callable[[int], int] = lambda _rank: 0
    graph: JobGraph = field(default_factory=JobGraph)
    count: int = 0
    window: list[StepRows] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.detector = ForwardDetector(ForwardDetectorConfig(), self.graph)
        self.draw = random.Random(1)
        places = tuple(
            RankPlace(rank, f"n{rank // self.ranks_a_host}", pp=self.stage_of(rank), world_size=self.ranks)
            for rank in range(self.ranks)
        )
        self.graph.take([Topology(JOB, place.host, at_second(0), (place,)) for place in places])

    def _record(self, rank: int) -> tuple[float, dict[str, float]]:
        times = {
            phase: STEP_SECONDS * share * self.load(rank, self.count, phase) * self.draw.gauss(1.0, self.jitter_ratio)
            for phase, share in SHARES.items()
        }
        return sum(times.values()), times

    def step(self) -> list[Anomaly]:
        self.count += 1
        found = {rank: self._record(rank) for rank in range(self.ranks)}
        whole = max(own for own, _ in found.values()) + 0.01
        ts_ns = at_second(self.count * STEP_SECONDS)
        rows = {
            rank: StepRecord(
                ts_ns,
                rank,
                self.count,
                whole,
                times["data"],
                times["forward"],
                times["backward"],
                times["optimizer"],
                whole - own,
            )
            for rank, (own, times) in found.items()
        }
        self.window = [*self.window, StepRows.of(rows)][-24:]
        return self.detector.on_steps(Slice(JOB, ts_ns, ts_ns + 1, ()), self.window, self.count)

    def steps(self, count: int) -> list[tuple[int, str]]:
        """Make some steps; return (step, host) for each step at whose end a host is told."""
        return [(self.count, one.component.name) for _ in range(count) for one in self.step()]


def slow_from(first: int, ranks: tuple[int, ...] = (3,), factor: float = 1.1) -> Load:
    return lambda rank, step, phase: factor if step >= first and rank in ranks and phase == "forward" else 1.0


class TestOneThatTakesATenthLonger:
    @pytest.mark.parametrize("jitter_ratio", [0.0, 0.005, 0.01, 0.02])
    @pytest.mark.parametrize("ranks", [5, 8, 64])
    def test_it_is_named_within_ten_steps(self, ranks: int, jitter_ratio: float) -> None:
        job = Job(slow_from(41), ranks, jitter_ratio=jitter_ratio)
        assert job.steps(40) == []
        found = job.steps(10)
        assert {host for _, host in found} == {"n3"}

    def test_its_figures_are_those_of_the_pass_and_of_the_step(self) -> None:
        job = Job(slow_from(41), jitter_ratio=0.002)
        job.steps(50)
        [found] = job.step()
        assert found.detail["rank"] == 3
        assert found.detail["excess_ratio"] == pytest.approx(0.1, abs=0.005)
        assert found.detail["step_ratio"] == pytest.approx(0.035, abs=0.003)
        assert found.start_ns == pytest.approx(at_second(400), abs=int(30e9))

    def test_a_host_of_several_ranks_is_compared_with_other_hosts(self) -> None:
        job = Job(slow_from(41, (4, 5, 6, 7)), 32, ranks_a_host=4)
        assert job.steps(40) == []
        assert {host for _, host in job.steps(10)} == {"n1"}

    def test_peers_are_those_of_the_same_stage(self) -> None:
        job = Job(slow_from(41), 16, stage_of=lambda rank: rank // 8)
        job.load = lambda rank, step, phase: slow_from(41)(rank, step, phase) * (1.5 if rank >= 8 else 1.0)
        job.steps(40)
        assert {host for _, host in job.steps(10)} == {"n3"}

    def test_it_is_told_no_more_when_it_is_over(self) -> None:
        job = Job(lambda rank, step, phase: 1.1 if 41 <= step < 80 and (rank, phase) == (3, "forward") else 1.0)
        assert job.steps(80)
        assert job.steps(20)[-1][0] < 92


class TestWhatIsNoMachine:
    @pytest.mark.parametrize("ranks", [2, 4])
    def test_fewer_than_four_peers(self, ranks: int) -> None:
        assert Job(slow_from(41, (1,)), ranks).steps(80) == []

    @pytest.mark.parametrize(
        "load",
        [
            pytest.param(slow_from(0), id="from the start"),
            pytest.param(slow_from(41, (1, 4)), id="two hosts at once"),
            pytest.param(slow_from(41, tuple(range(8))), id="all ranks"),
            pytest.param(slow_from(41, factor=1.05), id="half of it"),
            pytest.param(
                lambda rank, step, phase: 1.1 if step % 8 == rank and phase == "forward" else 1.0, id="in turn"
            ),
            pytest.param(
                lambda rank, step, _phase: 1.0 + random.Random(rank * 100_003 + step).gauss(0.0, 0.2),
                id="lengths that vary",
            ),
            pytest.param(
                lambda rank, step, phase: (
                    {"forward": 1.1, "backward": 0.93}.get(phase, 1.0) if step > 40 and rank == 3 else 1.0
                ),
                id="the border between two timers",
            ),
            pytest.param(
                lambda rank, step, phase: 1.4 if step in (60, 61, 62) and (rank, phase) == (3, "forward") else 1.0,
                id="three long steps",
            ),
        ],
    )
    def test_nobody_is_named(self, load: Load) -> None:
        assert Job(load).steps(200) == []

    def test_a_rank_that_slows_the_step_by_a_tenth_is_left_to_the_step_detector(self) -> None:
        assert Job(slow_from(41, factor=1.4)).steps(100) == []

    def test_what_moves_from_host_to_host_is_told_of_the_first_at_most(self) -> None:
        job = Job(lambda rank, step, phase: 1.1 if step // 12 % 8 == rank and phase == "forward" else 1.0)
        assert len({host for _, host in job.steps(300)}) <= 1

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("jitter_ratio", [0.02, 0.05, 0.1])
    def test_noise(self, seed: int, jitter_ratio: float) -> None:
        job = Job(lambda *_: 1.0, 32, jitter_ratio=jitter_ratio)
        job.draw = random.Random(seed)
        assert job.steps(300) == []

    def test_forward_passes_that_nobody_measures(self) -> None:
        job = Job(lambda *_: 1.0)
        job.load = lambda _rank, _step, phase: float("nan") if phase == "forward" else 1.0
        assert job.steps(60) == []


def test_a_restore_in_between_changes_nothing() -> None:
    whole, part = Job(slow_from(41)), Job(slow_from(41))
    for job in (whole, part):
        job.steps(47)
    kept = part.detector.snapshot()
    part.detector = ForwardDetector(ForwardDetectorConfig(), part.graph)
    part.detector.restore(kept)
    assert part.steps(30) == whole.steps(30) != []
    assert part.detector.snapshot() == whole.detector.snapshot()

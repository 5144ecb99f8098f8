"""The detectors keep the contract of detectors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest

from tests.models.minder_cases import LIMITS
from tests.pipeline.detect.conformance import (
    FAULTY_HOST,
    Detector,
    DetectorCase,
    Lack,
    accused,
)
from tests.pipeline.detect.conformance_checks import DetectorConformance
from tocsin.models.documents import Model
from tocsin.models.lstm_vae import Limits
from tocsin.models.minder import PRIORITY, MinderConfig, MinderModel, Variant
from tocsin.models.similarity import ceiling
from tocsin.pipeline.detect.baselines.minder import MinderDetector, MinderDetectorConfig
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS, Metric, MetricTable
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Frame,
    JobKey,
    JobRecord,
    RankPlace,
    Slice,
    StepBatch,
    StepRecord,
    TableAnnouncement,
    Topology,
)
from tocsin.schemas.verdicts import ComponentKind

JOB = JobKey("c", "j")
T0 = 1_700_000_000 * NS_PER_SECOND
FAULT_AT = 30


def user_table(high: float | None) -> MetricTable:
    """The built-in metrics and one of the user's own, with this upper limit."""
    return MetricTable(16, GPU_METRICS, (*HOST_METRICS, Metric("tokens_per_second", "host", 0.0, high, "low")))


def _hosts(count: int) -> list[str]:
    return [f"n{number:02d}" for number in range(count)]


def _only_duration(row: StepRecord) -> StepRecord:
    return StepRecord(row.ts_ns, row.rank, row.step, row.duration_seconds)


def _without_communication(row: StepRecord) -> StepRecord:
    return row._replace(communication_seconds=None)


class TestStepDetector(DetectorConformance):
    exempt: ClassVar[Mapping[str, str]] = {
        "units": "steps are told in seconds: there are no limits that could have another unit"
    }
    scores = (1.0, 1.25)
    """A share of the steps of 0.8 is the line, and there is no larger one than 1. (The job's own score has no end.)"""
    gross_strength = 4.0
    graded_strengths = (0.21, 0.24)
    """A step that takes 1.10 times as long is the line; 1.125, and it is the share of steps that is told."""
    waits_slices = 6
    """For who sends no step any more; then it goes on without (``StepsConfig.ripe_ns``)."""
    within_slices = 4
    """Steps take a second: three slow ones of the window of five, and 1.5 s that even the strongest must last."""
    model: Model | None = None

    def detector(self, graph: JobGraph) -> Detector:
        detector = StepDetector(StepsConfig(), graph)
        detector.on_model(self.model)
        return detector

    def untaught(self) -> DetectorCase:
        case = TestStepDetector()
        case.model = Model("nothing is strong", {"slow": {"min_strength_ratio": 10.0}})
        return case

    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        draw = np.random.default_rng(5)
        made = []
        for second in range(60 if self.strength >= 1 else 120):  # weak evidence must last for most of a minute
            end_ns = T0 + (second + 1) * NS_PER_SECOND
            places = [Topology(JOB, h, end_ns, (RankPlace(r, h, pp=0),)) for r, h in enumerate(_hosts(hosts))]
            own = 0.8 * (1 + 0.01 * draw.standard_normal(hosts))
            if faulty and second >= FAULT_AT:
                own[min(hosts, 4) - 1] *= 1 + 0.5 * self.strength
            step = float(own.max()) + 0.01
            rows = [
                StepRecord(end_ns - 1, r, second, step, 0.0, 0.4 * t, 0.5 * t, 0.1 * t, step - t)
                for r, t in enumerate(own.tolist())
            ]
            batches = [StepBatch(JOB, host, end_ns - 1, (rows[r],)) for r, host in enumerate(_hosts(hosts))]
            made.append(Slice(JOB, end_ns - NS_PER_SECOND, end_ns, (*(places if second == 0 else ()), *batches)))
        return made

    def alike(self, data: Slice) -> Slice:
        first = next(record.rows[0] for record in data.records if isinstance(record, StepBatch))
        records = tuple(
            dataclasses.replace(r, rows=tuple(first._replace(rank=row.rank) for row in r.rows))
            if isinstance(r, StepBatch)
            else r
            for r in data.records
        )
        return dataclasses.replace(data, records=records)

    def blanked(self, record: JobRecord, lack: Lack) -> JobRecord:
        assert isinstance(record, StepBatch)
        blank = _only_duration if lack == "all numbers" else _without_communication
        return dataclasses.replace(record, rows=tuple(map(blank, record.rows)))

    def test_the_score_of_the_whole_job_grows_with_its_slowdown(self) -> None:
        weak, strong = self._weak_and_strong((1.0, self.gross_strength))
        of_job = [
            {
                index: a.score
                for index, said in enumerate(reported)
                for a in said
                if a.component.kind is ComponentKind.JOB
            }
            for reported in (weak, strong)
        ]
        both = of_job[0].keys() & of_job[1].keys()

        assert both
        assert all(of_job[1][index] > 2 * of_job[0][index] for index in both)


class FrameConformance(DetectorConformance):
    """Detectors that look at metrics: their slices hold a frame a host."""

    table: MetricTable | None = None
    metric = "gpu_power_watts"
    gross_strength = 1.75
    slice_count = 50
    unit = 1.0
    """What the metric that the fault shows in is multiplied by."""

    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        draw = np.random.default_rng(5)
        table = self.table or MetricTable(1, GPU_METRICS, HOST_METRICS)
        names = [metric.name for metric in (*table.host, *table.gpu)]
        made = []
        for window in range(self.slice_count):
            start_ns = T0 + 5 * window * NS_PER_SECOND
            records: list[JobRecord] = []
            if self.table is not None:
                records.append(TableAnnouncement(JOB, "n00", start_ns, self.table))
            for row, host in enumerate(_hosts(hosts)):
                values = 0.5 * (1 + 0.02 * draw.standard_normal((len(names), 5)))
                values[names.index("gpu_power_watts")] *= 900
                if faulty and window >= self.fault_at and row == min(hosts, 4) - 1:
                    values[names.index(self.metric)] *= 1 - 0.4 * self.strength
                values[names.index(self.metric)] *= self.unit
                matrix = values.astype("<f4")
                split = len(table.host)
                records.append(
                    Frame(
                        JOB,
                        host,
                        start_ns + 5 * NS_PER_SECOND - 1,
                        table.table_id,
                        start_ns,
                        NS_PER_SECOND,
                        5,
                        (f"GPU-{host}",),
                        matrix[split:].tobytes(),
                        matrix[:split].tobytes(),
                    )
                )
            made.append(Slice(JOB, start_ns, start_ns + 5 * NS_PER_SECOND, tuple(records)))
        return made

    def alike(self, data: Slice) -> Slice:
        first = next(record for record in data.records if isinstance(record, Frame))
        gpu, host = first.gpu_matrix, first.host_matrix
        records = (
            dataclasses.replace(r, gpu_matrix=gpu, host_matrix=host) if isinstance(r, Frame) else r
            for r in data.records
        )
        return dataclasses.replace(data, records=tuple(records))

    def blanked(self, record: JobRecord, lack: Lack) -> JobRecord:
        """Some: those of every second metric, and of the one that the fault shows in."""
        assert isinstance(record, Frame)
        table = self.table or MetricTable(1, GPU_METRICS, HOST_METRICS)

        def blank(matrix: bytes, metrics: Sequence[Metric]) -> bytes:
            values = np.frombuffer(matrix, "<f4").reshape(-1, len(metrics), record.tick_count).copy()
            every = lack == "all numbers"
            gone = [every or index % 2 == 0 or m.name == self.metric for index, m in enumerate(metrics)]
            values[:, gone] = np.nan
            return values.tobytes()

        return dataclasses.replace(
            record,
            gpu_matrix=blank(record.gpu_matrix, table.gpu),
            host_matrix=blank(record.host_matrix, table.host),
        )


class TestPeerDetector(FrameConformance):
    scores = (0.4, 1.4)
    exempt: ClassVar[Mapping[str, str]] = {
        "units": "the built-in metrics have the units of the recording format; users' own are checked below"
    }
    model: Model | None = None

    def detector(self, graph: JobGraph) -> Detector:
        detector = PeerDetector(PeersConfig(), graph)
        detector.on_model(self.model)
        return detector

    def untaught(self) -> DetectorCase:
        case = type(self)()
        case.model = Model("nothing adds up", {"working": {"drift_sigmas": 9.0}})
        return case

    def test_the_anomaly_says_which_metric_and_to_which_side(self) -> None:
        said = self.play(self.slices(8, faulty=True))[1][-1]
        [metric] = [entry for entry in said[0].detail["metrics"] if entry["score"] >= 1]

        assert (said[0].component.name, metric["metric"], metric["direction"]) == (FAULTY_HOST, self.metric, "low")
        assert metric["value"] < 0.75 * metric["expected"]

    def test_a_fault_is_said_within_three_windows(self) -> None:
        _, reported = self.play(self.slices(8, faulty=True))

        assert not any(reported[: FAULT_AT + 1])
        assert any(reported[: FAULT_AT + 3])


class TestPeerDetectorOnMetricsOfTheUsersOwn(TestPeerDetector):
    table = user_table(None)
    metric = "tokens_per_second"
    exempt: ClassVar[Mapping[str, str]] = {}

    def rescaled(self, factor: float) -> DetectorCase:
        """``factor`` 1 has limits, too: 0 and 1."""
        case = TestPeerDetectorOnMetricsOfTheUsersOwn()
        case.table, case.unit = user_table(factor), factor
        return case

    def test_the_unit_of_a_metric_does_not_matter_where_its_limits_have_it_too(self) -> None:
        plain, scaled = (case.play(case.slices(8, faulty=True))[1] for case in map(self.rescaled, (1.0, 1000.0)))

        assert accused(plain) == accused(scaled) == {FAULTY_HOST}
        assert [a.score for said in scaled for a in said] == pytest.approx(
            [a.score for said in plain for a in said], rel=1e-3
        )

    def test_units_do_not_matter_to_a_metric_without_limits(self) -> None:
        plain = self.play(self.slices(8, faulty=True))[1]
        self.unit = 1000.0
        scaled = self.play(self.slices(8, faulty=True))[1]

        assert [[a.component for a in said] for said in scaled] == [[a.component for a in said] for said in plain]
        assert [a.score for said in scaled for a in said] == pytest.approx(
            [a.score for said in plain for a in said], rel=1e-3
        )


class MinderConformance(FrameConformance):
    """Two calls, at 480 s and at 960 s."""

    variant: Variant = "raw"
    window_ticks = 8
    threshold_sigmas = 1.5
    """Below what a lone outlier among four can reach, sqrt(3)."""
    scores = (1.0, ceiling(8) / threshold_sigmas)
    slice_count = 200
    break_step = 9
    fault_at = 100
    within_slices = (240 + 480) // 5 + 2
    exempt: ClassVar[Mapping[str, str]] = {
        "always different": "it compares machines as they are: whoever is a little warmer is the farthest all day",
        "4096 hosts": "all pairs of all windows: a call on 4,096 machines takes many minutes (make bench-detect)",
    }

    priority: tuple[str, ...] = PRIORITY

    def model(self) -> MinderModel:
        """What is trained."""
        limits = LIMITS | {"gpu_power_watts": Limits(0.0, 900.0 * self.unit)}
        return MinderModel(limits, priority=self.priority, threshold_sigmas=self.threshold_sigmas, version="m1")

    def detector(self, graph: JobGraph) -> Detector:
        config = MinderConfig(self.variant, window_ticks=self.window_ticks)
        return MinderDetector(MinderDetectorConfig(self.model(), config))

    def untaught(self) -> DetectorCase:
        case = type(self)()
        case.threshold_sigmas = math.sqrt(8 - 1) + 0.01  # nobody among eight can be above it
        return case

    def rescaled(self, factor: float) -> DetectorCase:
        case = type(self)()
        case.unit = factor
        return case


class TestMahalanobisBaseline(MinderConformance):
    variant: Variant = "mahalanobis"
    window_ticks = 60
    priority: tuple[str, ...] = ("gpu_power_watts", "gpu_util_ratio", "cpu_util_ratio")
    """Three: the moments of seven are a minute of this suite."""
    exempt: ClassVar[Mapping[str, str]] = {
        **MinderConformance.exempt,
        "4 hosts": "one of four is a quarter of the spread that its components are measured in: at no threshold from "
        "0.9 up does it stay the farthest for four minutes",
        "falls silent": "a gap is filled from the nearest sample, however long: one number, repeated, has no variance, "
        "and who has none is the farthest (24 of 25 draws)",
    }


class TestMinderDetectorRaw(MinderConformance):
    exempt: ClassVar[Mapping[str, str]] = {
        **MinderConformance.exempt,
        "falls silent": "a gap is filled from the nearest sample, however long: where that one was far out, who fell "
        "silent is the farthest (4 of 25 draws)",
    }

    def test_it_speaks_at_its_calls_only_and_says_what_convicted(self) -> None:
        _, reported = self.play(self.slices(8, faulty=True))
        [index] = [index for index, said in enumerate(reported) if said]
        [anomaly] = reported[index]

        assert index == 960 // 5 - 1
        assert (anomaly.metric, anomaly.model_version, anomaly.detail["variant"]) == (self.metric, "m1", "raw")
        assert abs(anomaly.start_ns - T0 - 500 * NS_PER_SECOND) <= 8 * NS_PER_SECOND

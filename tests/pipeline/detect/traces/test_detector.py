"""The trace detectors keep the contract of detectors, and say what they say for the right reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from tests.pipeline.detect.conformance import (
    FAULTY_HOST,
    Detector,
    Lack,
    accused,
)
from tests.pipeline.detect.conformance_checks import DetectorConformance
from tocsin.pipeline.detect.traces.detector import (
    BILSTM,
    ENTROPY,
    TraceDetector,
    TracesConfig,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    JobKey,
    JobRecord,
    RankPlace,
    Slice,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.verdicts import Anomaly

JOB = JobKey("c", "j")
T0 = 1_700_000_000 * NS_PER_SECOND
SECONDS = 200
FAULT_AT = 120
Own = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
"""A rank's own phases in a step: data, forward, backward, optimizer; shape (ranks, 4)."""
Strike = Callable[[int, Own], None]
"""Changes the own times of one second."""


def hosts_of(count: int) -> list[str]:
    return [f"n{number:02d}" for number in range(count)]


def steps_of(own: Own, end_ns: int, second: int) -> list[StepBatch]:
    """One step of all ranks, a rank a host; who is done waits for the slowest."""
    busy = own.sum(axis=1)
    step = float(busy.max()) + 0.02
    return [
        StepBatch(JOB, host, end_ns - 1, (_step(end_ns - 1, rank, second, [step, *phases, step - sum(phases)]),))
        for rank, (host, phases) in enumerate(zip(hosts_of(len(own)), own.tolist(), strict=True))
    ]


def _step(ts_ns: int, rank: int, step: int, seconds: list[float]) -> StepRecord:
    duration, data, forward, backward, optimizer, communication = seconds
    return StepRecord(ts_ns, rank, step, duration, data, forward, backward, optimizer, communication)


def job_slices(hosts: int, strike: Strike, seconds: int = SECONDS) -> list[Slice]:
    """A step a second; topology in the first slice."""
    draw = np.random.default_rng(5)
    made = []
    for second in range(seconds):
        end_ns = T0 + (second + 1) * NS_PER_SECOND
        own = np.array([0.02, 0.3, 0.4, 0.1]) * (1 + 0.01 * draw.standard_normal((hosts, 4)))
        strike(second, own)
        records: list[JobRecord] = [*steps_of(own, end_ns, second)]
        if second == 0:
            records = [Topology(JOB, h, end_ns, (RankPlace(r, h, pp=0),)) for r, h in enumerate(hosts_of(hosts))]
        made.append(Slice(JOB, end_ns - NS_PER_SECOND, end_ns, tuple(records)))
    return made


def nothing(second: int, own: Own) -> None:
    """A healthy job."""


def slow_forward(second: int, own: Own, strength: float = 1.0) -> None:
    """``FAULTY_HOST`` (the last, where there are fewer) computes half as fast, or slower by so many times as much."""
    if second >= FAULT_AT:
        own[min(len(own), 4) - 1, 1] *= 1 + 0.5 * strength


def run(detector: TraceDetector, graph: JobGraph, slices: Sequence[Slice]) -> list[Anomaly]:
    """All that is said."""
    reported: list[Anomaly] = []
    for data in slices:
        graph.take(data.records)
        reported += detector.on_slice(data)
    return reported


def told_of(slices: Sequence[Slice]) -> tuple[TraceDetector, list[Anomaly]]:
    graph = JobGraph()
    detector = TraceDetector(TracesConfig(), graph)
    return detector, run(detector, graph, slices)


class TestEntropyOverPhases(DetectorConformance):
    gross_strength = 4.0
    graded_strengths = (0.2, 0.6)
    seconds = SECONDS
    fault_at = FAULT_AT
    within_slices = 42
    """Three windows of ten seconds, the one in which the fault began, and the one after the last."""
    exempt: ClassVar[Mapping[str, str]] = {
        "units": "operation times are told in seconds: there are no limits that could have another unit",
        "learning": "nobody tells it to: it learns each rank's own past (test_what_lasts_beyond_ten_minutes_is_normal)",
    }

    def detector(self, graph: JobGraph) -> Detector:
        return TraceDetector(TracesConfig(), graph)

    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        seconds = self.seconds if hosts < 1000 else self.fault_at + self.within_slices + 1
        return job_slices(hosts, partial(slow_forward, strength=self.strength) if faulty else nothing, seconds)

    def alike(self, data: Slice) -> Slice:
        """Of whole records: the first host's rows, with the rank of the other."""
        telling = [r for r in data.records if isinstance(r, StepBatch | CollectiveBatch)]
        if not telling:
            return data
        own = {record.host: record.rows[0].rank for record in telling}
        records = tuple(
            dataclasses.replace(r, rows=tuple(row._replace(rank=own[r.host]) for row in telling[0].rows))  # type: ignore[arg-type]  # of its own kind
            if isinstance(r, StepBatch | CollectiveBatch)
            else r
            for r in data.records
        )
        return dataclasses.replace(data, records=records)

    def blanked(self, record: JobRecord, lack: Lack) -> JobRecord:
        assert isinstance(record, StepBatch)
        return _without_phases(record) if lack == "all numbers" else _without_forward(record)

    def test_the_anomaly_names_the_class_and_begins_with_the_fault(self) -> None:
        said = [anomaly for reported in self.play(self.slices(8, faulty=True))[1] for anomaly in reported][-1]

        assert said.detector == ENTROPY
        assert said.component.name == FAULTY_HOST
        assert {name for name, _ in said.detail["classes"][:2]} == {"forward", "communication"}
        assert abs(said.start_ns - (T0 + FAULT_AT * NS_PER_SECOND)) <= 10 * NS_PER_SECOND

    def test_it_speaks_within_four_windows(self) -> None:
        _, reported = self.play(self.slices(8, faulty=True))

        assert not any(reported[:FAULT_AT])
        assert any(reported[: FAULT_AT + 42])


class TestEntropyOverCollectives(TestEntropyOverPhases):
    """The same job as told by collectives only: who is late waits less."""

    exempt: ClassVar[Mapping[str, str]] = {
        **TestEntropyOverPhases.exempt,
        "some numbers": "which operations a rank finishes is what it looks at: one that is told of no more changes the "
        "distribution as one that is run no more does",
    }

    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        return [_as_collectives(data) for data in super().slices(hosts, faulty=faulty)]

    def blanked(self, record: JobRecord, lack: Lack) -> JobRecord:
        """Some: of one operation; the fault shows in it."""
        assert isinstance(record, CollectiveBatch)
        return _unfinished(record, ("all_reduce", "all_gather") if lack == "all numbers" else ("all_reduce",))

    def test_the_anomaly_names_the_class_and_begins_with_the_fault(self) -> None:
        said = [anomaly for reported in self.play(self.slices(8, faulty=True))[1] for anomaly in reported][-1]

        assert (said.metric, said.component.name) == ("collectives_distribution", FAULTY_HOST)
        assert said.detail["classes"][0][0] in {"all_reduce", "all_gather"}

    def test_a_rank_that_sends_fewer_of_its_collectives_is_not_compared(self) -> None:
        """Only ten sampled ranks of a job send all of theirs; the others the newest of each communicator."""
        slices = self.slices(8, faulty=False)
        for index, data in enumerate(slices):
            if index >= FAULT_AT and index % 10:
                records = (r for r in data.records if not (isinstance(r, CollectiveBatch) and r.host == "n05"))
                slices[index] = dataclasses.replace(data, records=tuple(records))

        assert not told_of(slices)[1]


def _without_phases(batch: StepBatch) -> StepBatch:
    rows = tuple(StepRecord(row.ts_ns, row.rank, row.step, row.duration_seconds) for row in batch.rows)
    return dataclasses.replace(batch, rows=rows)


def _without_forward(batch: StepBatch) -> StepBatch:
    return dataclasses.replace(batch, rows=tuple(row._replace(forward_seconds=None) for row in batch.rows))


def _as_collectives(data: Slice) -> Slice:
    """Two collectives a step: the first waits for the slowest, the second moves data."""
    records: list[JobRecord] = []
    for record in data.records:
        if not isinstance(record, StepBatch):
            records.append(record)
            continue
        [row] = record.rows
        end_ns = row.ts_ns
        rows = tuple(
            CollectiveRecord(end_ns, "completion", row.rank, "g", name, 2 * row.step + place + 1, 1, begin_ns, end_ns)
            for place, (name, begin_ns) in enumerate(
                (
                    ("all_reduce", end_ns - int((row.communication_seconds or 0) * NS_PER_SECOND)),
                    ("all_gather", end_ns - NS_PER_SECOND // 10),
                )
            )
        )
        records.append(CollectiveBatch(data.job, record.host, record.ts_ns, rows))
    return dataclasses.replace(data, records=tuple(records))


def _unfinished(batch: CollectiveBatch, names: Collection[str]) -> CollectiveBatch:
    rows = (row._replace(record="state", end_ns=0) if row.op_name in names else row for row in batch.rows)
    return dataclasses.replace(batch, rows=tuple(rows))


class TestWhatIsNoFaultOfOneRank:
    def test_e4_an_evaluation_of_all_ranks_accuses_nobody(self) -> None:
        def evaluate(second: int, own: Own) -> None:
            if 120 <= second < 160:
                own[:, 2] *= 0.001

        assert not told_of(job_slices(8, evaluate))[1]

    def test_a_rank_that_always_did_more_accuses_nobody(self) -> None:
        def extra_work(second: int, own: Own) -> None:
            own[0, 3] *= 3

        assert not told_of(job_slices(8, extra_work))[1]

    def test_data_that_is_slow_for_another_rank_each_step_accuses_nobody(self) -> None:
        draw = np.random.default_rng(1)

        def long_sequences(second: int, own: Own) -> None:
            own[:, 1:3] *= draw.lognormal(0, 0.3, (len(own), 1))

        assert not told_of(job_slices(16, long_sequences, 600))[1]

    def test_a_short_spell_accuses_nobody(self) -> None:
        def spell(second: int, own: Own) -> None:
            if 120 <= second < 128:  # touches two windows at most
                own[3, 1] *= 1.5

        detector, reported = told_of(job_slices(8, spell))

        assert not reported
        assert detector.abstained[Reason.NOT_CONTINUOUS] > 0

    def test_too_many_hosts_together_are_no_machines_fault(self) -> None:
        def three_of_eight(second: int, own: Own) -> None:
            if second >= FAULT_AT:
                own[:3, 1] *= 1.5

        detector, reported = told_of(job_slices(8, three_of_eight))

        assert not reported
        assert detector.abstained[Reason.AMBIGUOUS] > 0

    def test_what_lasts_beyond_ten_minutes_is_normal(self) -> None:
        reported = told_of(job_slices(8, slow_forward, 1_200))[1]

        assert accused([reported]) == {FAULTY_HOST}
        assert max(anomaly.slice_end_ns for anomaly in reported) < T0 + 1_000 * NS_PER_SECOND


class TestBadInput:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
    @pytest.mark.parametrize("field", ["duration_seconds", "forward_seconds"])
    def test_times_that_cannot_be_are_left_out_by_name(self, field: str, value: float) -> None:
        def spoiled(data: Slice) -> Slice:
            records = (
                dataclasses.replace(r, rows=tuple(StepRecord(**{**row._asdict(), field: value}) for row in r.rows))
                if isinstance(r, StepBatch) and r.host == "n02"
                else r
                for r in data.records
            )
            return dataclasses.replace(data, records=tuple(records))

        graph = JobGraph()  # is not shown them: the codec lets no such record through to either
        detector = TraceDetector(TracesConfig(), graph)
        reported: list[Anomaly] = []
        for data in job_slices(8, nothing):
            graph.take(data.records)
            reported += detector.on_slice(spoiled(data))

        assert not reported
        assert detector.abstained[Reason.BAD_NUMBER] == SECONDS - 4  # the topology's second, and the warm-up

    def test_collectives_that_end_before_they_begin_are_left_out_by_name(self) -> None:
        row = CollectiveRecord(T0, "completion", 0, "g", "all_reduce", 1, 1, T0 + 5, T0)
        data = Slice(JOB, T0, T0 + NS_PER_SECOND, (CollectiveBatch(JOB, "n00", T0, (row,)),))

        detector, reported = told_of([data])

        assert not reported
        assert detector.abstained[Reason.BAD_NUMBER] == 1

    def test_steps_of_no_length_accuse_nobody(self) -> None:
        def zero(second: int, own: Own) -> None:
            own[:] = 0.0

        slices = job_slices(8, zero)
        slices = [
            dataclasses.replace(
                data,
                records=tuple(
                    dataclasses.replace(r, rows=tuple(_step(w.ts_ns, w.rank, w.step, [0.0] * 6) for w in r.rows))
                    if isinstance(r, StepBatch)
                    else r
                    for r in data.records
                ),
            )
            for data in slices
        ]

        detector, reported = told_of(slices)

        assert not reported
        assert detector.abstained[Reason.TOO_FEW_OPERATIONS] > 0

    def test_a_flood_of_steps_is_bounded_and_counted(self) -> None:
        rows = tuple(StepRecord(T0 + n, 0, n, 0.01, 0.0, 0.004, 0.004, 0.001, 0.001) for n in range(5_000))
        detector, _ = told_of([Slice(JOB, T0, T0 + NS_PER_SECOND, (StepBatch(JOB, "n00", T0, rows),))])

        assert detector.left_out_count == 5_000 - 3 - TracesConfig().windows.max_step_count
        assert len(detector.snapshot()["trace_windows"]) < 10_000


def test_equal_machines_never_alarm_in_10_000_slices_and_the_state_stays_small() -> None:
    detector, sizes = TraceDetector(TracesConfig(), graph := JobGraph()), []
    for second in range(10_000):
        batches = steps_of(np.array([[0.02, 0.3, 0.4, 0.1]] * 4), T0 + (second + 1) * NS_PER_SECOND, second)
        data = Slice(JOB, T0 + second * NS_PER_SECOND, T0 + (second + 1) * NS_PER_SECOND, tuple(batches))
        graph.take(data.records)
        assert not detector.on_slice(data)
        if second % 1_000 == 999:
            sizes.append(sum(map(len, detector.snapshot().values())))

    assert max(sizes) < 1.2 * min(sizes[1:]) < 20_000


@pytest.mark.parametrize("hosts", [4, 16, 256])
def test_a_lone_gross_outlier_alarms_soon_at_any_size(hosts: int) -> None:
    def gross(second: int, own: Own) -> None:
        if second >= FAULT_AT:
            own[2] *= 3

    reported = told_of(job_slices(hosts, gross, FAULT_AT + 150))[1]

    assert accused([reported]) == {hosts_of(hosts)[2]}
    first = min(anomaly.slice_end_ns for anomaly in reported)
    assert first - T0 <= (FAULT_AT + 40) * NS_PER_SECOND  # three windows of ten seconds, and the one that it began in


def test_without_a_model_the_network_abstains_by_name() -> None:
    detector, reported = told_of(job_slices(8, slow_forward))

    assert detector.abstained[Reason.NO_MODEL] > 0
    assert BILSTM not in {anomaly.detector for anomaly in reported}

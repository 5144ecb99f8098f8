"""What every detector must do, whatever it looks at: inherit, and say how its slices are made."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pytest

from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Frame, JobRecord, Slice, StepBatch, Topology
from tocsin.schemas.verdicts import Anomaly, ComponentKind

FAULTY_HOST = "n03"


class Detector(Protocol):
    """What is tested."""

    abstained: dict[str, int]

    def on_slice(self, data: Slice) -> Sequence[Anomaly]: ...

    def snapshot(self) -> dict[str, bytes]: ...

    def restore(self, parts: Mapping[str, bytes]) -> None: ...


def numbers_in(value: Any) -> list[float]:
    """All numbers of a JSON value."""
    if isinstance(value, Mapping):
        return [number for inner in value.values() for number in numbers_in(inner)]
    if isinstance(value, list | tuple):
        return [number for inner in value for number in numbers_in(inner)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def accused(told: Sequence[Sequence[Anomaly]]) -> set[str]:
    """Hosts that are named; of the whole job a detector may speak besides."""
    named = [anomaly.component for said in told for anomaly in said]
    return {component.name for component in named if component.kind is ComponentKind.HOST}


def renamed(data: Slice, names: Mapping[str, str]) -> Slice:
    """The same slice where hosts have other names, in canonical order again."""
    records: list[JobRecord] = []
    for record in data.records:
        moved: dict[str, Any] = {"host": names[record.host]}
        if isinstance(record, Topology):
            moved["places"] = tuple(dataclasses.replace(place, host=names[place.host]) for place in record.places)
        records.append(dataclasses.replace(record, **moved))
    records.sort(key=lambda record: (type(record).__name__, record.ts_ns, record.host))
    return dataclasses.replace(data, records=tuple(records))


def later(data: Slice, span_ns: int) -> Slice:
    """The same slice at a later time, its steps counted on (a step a second)."""
    records: list[JobRecord] = []
    for record in data.records:
        moved: dict[str, Any] = {"ts_ns": record.ts_ns + span_ns}
        if isinstance(record, Frame):
            moved["first_tick_ns"] = record.first_tick_ns + span_ns
        elif isinstance(record, StepBatch):
            steps = span_ns // NS_PER_SECOND
            moved["rows"] = tuple(row._replace(ts_ns=row.ts_ns + span_ns, step=row.step + steps) for row in record.rows)
        records.append(dataclasses.replace(record, **moved))
    return Slice(data.job, data.start_ns + span_ns, data.end_ns + span_ns, tuple(records))


class DetectorConformance(ABC):
    """The contract of CONTRIBUTING.md, as tests. Subclasses make a detector and its slices.

    Attributes:
        sizes: jobs in which a lone gross fault must be found.
        large_sizes: the same, in the slow suite.
        within_slices: how many slices after its onset it must be said.
        fault_at: the slice of the onset.
    """

    sizes: Sequence[int] = (4, 16)
    large_sizes: Sequence[int] = (256,)
    within_slices = 3
    fault_at = 30

    @abstractmethod
    def detector(self, graph: JobGraph) -> Detector:
        """A new one."""

    @abstractmethod
    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        """Slices of a job of so many hosts; where ``faulty``, ``FAULTY_HOST`` (the last, where there are fewer) is."""

    @abstractmethod
    def emptied(self, data: Slice) -> Slice:
        """The same slice where every number of one host is missing."""

    @abstractmethod
    def alike(self, data: Slice) -> Slice:
        """The same slice where every host tells what the first one tells."""

    def play(self, slices: Sequence[Slice], break_at: int = -1) -> tuple[Detector, list[list[Anomaly]]]:
        """All that it says of each slice; at ``break_at`` it is replaced by a restored one."""
        graph = JobGraph()
        detector = self.detector(graph)
        told = []
        for index, data in enumerate(slices):
            graph.take(data.records)
            told.append(list(detector.on_slice(data)))
            if index == break_at:
                parts = detector.snapshot()
                detector = self.detector(graph)
                detector.restore(parts)
                assert detector.snapshot() == parts
        return detector, told

    def test_it_finds_what_it_is_made_for_and_names_nobody_else(self) -> None:
        _, told = self.play(self.slices(8, faulty=True))

        assert accused(told) == {FAULTY_HOST}

    def test_it_says_nothing_of_a_healthy_job(self) -> None:
        _, told = self.play(self.slices(8, faulty=False))

        assert not [anomaly for said in told for anomaly in said]

    def test_scores_are_numbers_from_zero_up_and_times_lie_in_the_past(self) -> None:
        slices = self.slices(8, faulty=True)
        _, told = self.play(slices)

        for data, said in zip(slices, told, strict=True):
            for anomaly in said:
                assert anomaly.score >= 0
                assert anomaly.start_ns <= anomaly.end_ns <= anomaly.slice_end_ns == data.end_ns

    def test_nan_never_comes_out(self) -> None:
        slices = [self.emptied(data) if index % 2 else data for index, data in enumerate(self.slices(8, faulty=True))]
        detector, told = self.play(slices)

        for said in told:
            for anomaly in said:
                assert math.isfinite(anomaly.score)
                assert not [number for number in numbers_in(anomaly.detail) if math.isnan(number)]
        assert detector.snapshot()

    def test_a_job_whose_numbers_are_all_missing_accuses_nobody(self) -> None:
        slices = self.slices(8, faulty=True)
        for _ in range(8):
            slices = [self.emptied(data) for data in slices]
        _, told = self.play(slices)

        assert not accused(told)

    @pytest.mark.parametrize("hosts", [1, 2])
    def test_too_few_peers_abstain_by_name(self, hosts: int) -> None:
        detector, told = self.play(self.slices(hosts, faulty=True))

        assert not accused(told)
        assert detector.abstained[Reason.TOO_FEW_PEERS] > 0

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.75, 0.9, 0.99])
    def test_a_snapshot_anywhere_changes_nothing(self, share: float) -> None:
        slices = self.slices(8, faulty=True)
        detector, told = self.play(slices)
        restored, told_again = self.play(slices, break_at=int(share * len(slices)))

        assert told_again == told
        assert restored.abstained == detector.abstained
        assert restored.snapshot() == detector.snapshot()

    def test_identical_inputs_give_identical_answers(self) -> None:
        assert self.play(self.slices(8, faulty=True))[1] == self.play(self.slices(8, faulty=True))[1]

    @pytest.mark.parametrize("share", [0.5, 0.65, 0.9])
    def test_what_comes_later_changes_nothing_that_was_said(self, share: float) -> None:
        slices = self.slices(8, faulty=True)
        count = int(share * len(slices))

        assert self.play(slices[:count])[1] == self.play(slices)[1][:count]

    def test_machines_that_are_permuted_permute_the_answer_and_nothing_else(self) -> None:
        hosts = [f"n{number:02d}" for number in range(8)]
        names = dict(zip(hosts, reversed(hosts), strict=True))
        slices = self.slices(8, faulty=True)
        plain = self.play(slices)[1]
        other = self.play([renamed(data, names) for data in slices])[1]

        for one, two in zip(plain, other, strict=True):
            by_host = {names.get(a.component.name, a.component.name): a for a in one}
            assert by_host.keys() == {a.component.name for a in two}
            for anomaly in two:
                twin = by_host[anomaly.component.name]
                assert anomaly.score == pytest.approx(twin.score, rel=1e-3)
                assert (anomaly.metric, anomaly.start_ns) == (twin.metric, twin.start_ns)

    def test_identical_machines_are_never_accused_whatever_they_do_together(self) -> None:
        _, told = self.play([self.alike(data) for data in self.slices(8, faulty=True)])

        assert not accused(told)

    def test_a_lone_gross_fault_is_found_in_jobs_of_any_size(self) -> None:
        for hosts in self.sizes:
            self._found_within_its_time(hosts)

    @pytest.mark.slow  # seconds to a minute for each size
    def test_a_lone_gross_fault_is_found_in_large_jobs(self) -> None:
        for hosts in self.large_sizes:
            self._found_within_its_time(hosts)

    def _found_within_its_time(self, hosts: int) -> None:
        _, told = self.play(self.slices(hosts, faulty=True))
        spoken = [index for index, said in enumerate(told) if said]

        assert accused(told) == {FAULTY_HOST}, hosts
        assert self.fault_at <= spoken[0] < self.fault_at + self.within_slices, hosts

    @pytest.mark.slow  # 10,000 slices: half a minute and more
    @pytest.mark.timeout(600)
    def test_ten_thousand_slices_leave_no_more_state_than_two_thousand_and_identical_machines_say_nothing(self) -> None:
        made = [self.alike(data) for data in self.slices(4, faulty=False)]
        span_ns = made[-1].end_ns - made[0].start_ns
        graph = JobGraph()
        detector, said = self.detector(graph), 0
        sizes: list[int] = []
        for turn in range(-(-10_000 // len(made))):
            for data in made:
                moved = later(data, turn * span_ns)
                graph.take(moved.records)
                said += len(detector.on_slice(moved))
            sizes.append(sum(map(len, detector.snapshot().values())))

        assert said == 0
        assert sizes[-1] <= 1.1 * max(sizes[: len(sizes) // 5])

    def test_a_slice_without_records_is_fine(self) -> None:
        first, *rest = self.slices(8, faulty=True)
        empty = Slice(first.job, first.start_ns, first.end_ns, ())
        detector = self.detector(JobGraph())

        assert list(detector.on_slice(empty)) == []
        detector.restore(detector.snapshot())
        assert list(detector.on_slice(Slice(first.job, rest[0].start_ns, rest[0].end_ns, ()))) == []

    def test_anomalies_name_hosts_that_sent_something(self) -> None:
        for hosts in (3, 8):
            slices = self.slices(hosts, faulty=True)
            known = {record.host for data in slices for record in data.records}
            assert accused(self.play(slices)[1]) <= known

    def test_a_damaged_snapshot_is_refused(self) -> None:
        detector, _ = self.play(self.slices(3, faulty=False))
        parts = detector.snapshot()
        for name in parts:
            with pytest.raises(SnapshotError, match=name):
                self.detector(JobGraph()).restore({**parts, name: b"{"})
            with pytest.raises(SnapshotError, match=name):
                self.detector(JobGraph()).restore({other: parts[other] for other in parts if other != name})

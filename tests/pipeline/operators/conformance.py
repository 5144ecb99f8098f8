"""What every detector must do, whatever it looks at: inherit, and say how its slices are made."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pytest

from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Slice
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


class DetectorConformance(ABC):
    """The contract of CONTRIBUTING.md, as tests. Subclasses make a detector and its slices."""

    @abstractmethod
    def detector(self, graph: JobGraph) -> Detector:
        """A new one."""

    @abstractmethod
    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        """Slices of a job of so many hosts; where ``faulty``, ``FAULTY_HOST`` (the last, where there are fewer) is."""

    @abstractmethod
    def emptied(self, data: Slice) -> Slice:
        """The same slice where every number of one host is missing."""

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

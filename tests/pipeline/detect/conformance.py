"""One detector under test: how its slices are made, and what it says of them. The checks: ``conformance_checks``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, get_args

import pytest

from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, Frame, JobRecord, Slice, StepBatch, Topology
from tocsin.schemas.verdicts import Anomaly, ComponentKind

FAULTY_HOST = "n03"
Lack = Literal["some numbers", "all numbers", "rows"]
"""What of a host is missing; ``some``: those in which its faults show are among them."""
LACKS: tuple[Lack, ...] = get_args(Lack)


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


def accused(reported: Sequence[Sequence[Anomaly]]) -> set[str]:
    """Hosts that are named; of the whole job a detector may speak besides."""
    named = [anomaly.component for said in reported for anomaly in said]
    return {component.name for component in named if component.kind is ComponentKind.HOST}


def scores_of(reported: Sequence[Sequence[Anomaly]], host: str) -> dict[int, float]:
    """The highest score that a host has in each slice in which it has one."""
    found: dict[int, float] = {}
    for index, said in enumerate(reported):
        own = [a.score for a in said if a.component.kind is ComponentKind.HOST and a.component.name == host]
        if own:
            found[index] = max(own)
    return found


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
        elif isinstance(record, CollectiveBatch):
            moved["rows"] = tuple(
                row._replace(
                    ts_ns=row.ts_ns + span_ns,
                    op_seq=row.op_seq + 2 * (span_ns // NS_PER_SECOND),
                    start_ns=row.start_ns and row.start_ns + span_ns,
                    end_ns=row.end_ns and row.end_ns + span_ns,
                )
                for row in record.rows
            )
        records.append(dataclasses.replace(record, **moved))
    return Slice(data.job, data.start_ns + span_ns, data.end_ns + span_ns, tuple(records))


def without(data: Slice, host: str) -> Slice:
    """The same slice in which a host is not heard of."""
    return dataclasses.replace(data, records=tuple(record for record in data.records if record.host != host))


class DetectorCase:
    """A detector, its slices, and what its documents say of it. Not abstract: pytest leaves such classes out silently.

    Attributes:
        within_slices: its continuity: how many slices after its onset a lone gross fault must be said.
        fault_at: the slice of the onset.
        waits_slices: so much later it may name a fault where another host is missing.
        strength: of the fault, in usual ones.
        gross_strength: of a gross one.
        graded_strengths: of two faults that its score tells apart: not so strong that it has stopped growing.
        break_step: a snapshot is tried after every so many slices, all in one run.
        scores: between which a host's score lies (docs/conformance.md).
        exempt: check -> why this detector cannot pass it by its nature.
    """

    within_slices = 3
    fault_at = 30
    waits_slices = 0
    strength = 1.0
    gross_strength = 2.0
    graded_strengths = (0.25, 0.5)
    break_step = 1
    scores: tuple[float, float] = (1.0, math.inf)
    exempt: ClassVar[Mapping[str, str]] = {}

    def detector(self, graph: JobGraph) -> Detector:
        """A new one."""
        raise NotImplementedError

    def slices(self, hosts: int, *, faulty: bool) -> list[Slice]:
        """Slices of a job of so many hosts; where ``faulty``, ``FAULTY_HOST`` (the last, where there are fewer) is."""
        raise NotImplementedError

    def blanked(self, record: JobRecord, lack: Lack) -> JobRecord:
        """The same record where some or all of its numbers are missing."""
        raise NotImplementedError

    def lacking(self, data: Slice, host: str, lack: Lack) -> Slice:
        """The same slice where numbers of one host are missing; what it announced stays known."""
        records: list[JobRecord] = []
        for record in data.records:
            if record.host != host or not isinstance(record, Frame | StepBatch | CollectiveBatch):
                records.append(record)
            elif lack != "rows":
                records.append(self.blanked(record, lack))
        return dataclasses.replace(data, records=tuple(records))

    def alike(self, data: Slice) -> Slice:
        """The same slice where every host tells what the first one tells."""
        raise NotImplementedError

    def untaught(self) -> DetectorCase:
        """The same case before it was told to learn: it says nothing of the fault, or of a machine that is well."""
        raise NotImplementedError

    def rescaled(self, factor: float) -> DetectorCase:
        """The same case where the fault's metric has another unit: values and limits are so many times as large."""
        raise NotImplementedError

    def skip_if_exempt(self, check: str) -> None:
        """Leave out a check that this detector's case declares, with its reason in the report."""
        if check in self.exempt:
            pytest.skip(self.exempt[check])

    def reported(self, hosts: int = 8, *, faulty: bool = True) -> Sequence[Sequence[Anomaly]]:
        """All that a new one says of the case's own slices: played once for each strength."""
        return _reported(type(self), self.strength, hosts, faulty)  # type: ignore[arg-type]  # a class has a hash: mypy looks at its instances'

    def play(self, slices: Iterable[Slice], break_at: Container[int] = ()) -> tuple[Detector, list[list[Anomaly]]]:
        """All that it says of each slice; after those of ``break_at`` it is replaced by a restored one."""
        graph = JobGraph()
        detector = self.detector(graph)
        reported = []
        for index, data in enumerate(slices):
            graph.take(data.records)
            reported.append(list(detector.on_slice(data)))
            if index in break_at:
                parts = detector.snapshot()
                detector = self.detector(graph)
                detector.restore(parts)
                assert detector.snapshot() == parts
        return detector, reported


@cache
def _reported(kind: type[DetectorCase], strength: float, hosts: int, faulty: bool) -> list[list[Anomaly]]:
    case = kind()
    case.strength = strength
    return case.play(case.slices(hosts, faulty=faulty))[1]

"""All learned detectors of a job together: restored after every slice they judge as if nothing had happened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from tests.pipeline.detect.conformance import FAULTY_HOST
from tests.pipeline.detect.learned.test_minder import TestStreamingMinder as OfMinder
from tests.pipeline.detect.learned.test_minder import of_power
from tests.pipeline.detect.learned.test_traces import entropy_of, model
from tests.pipeline.detect.traces.test_detector import job_slices, slow_forward
from tocsin.models.documents import Model
from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, join_blocks, slice_blocks
from tocsin.pipeline.detect.learned.config import DetectorMode, LearnedConfig
from tocsin.pipeline.detect.learned.detectors import LearnedDetectors
from tocsin.pipeline.detect.learned.operator import LearnedOperator
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly

HOSTS, SECONDS = 6, 240
HOUR_NS = 3600 * NS_PER_SECOND
MODELS = {"minder": Model("m1", None, of_power(), "hash of m1"), "entropy": entropy_of(5.0), "bilstm": model()}
Second = tuple[Slice, tuple[Slice, MetricMeans | None] | None]
"""The records of one second, and of the metric slice that ends with it."""


@cache
def seconds() -> tuple[Second, ...]:
    """A job of six machines; one of them computes slower from second 120 on, and draws less power from 150 on."""
    fast = job_slices(HOSTS, partial(slow_forward, strength=1.0), SECONDS)
    ends = {data.end_ns: data for data in OfMinder().slices(HOSTS, faulty=True)}
    return tuple((data, _means(ends[data.end_ns]) if data.end_ns in ends else None) for data in fast)


def _means(data: Slice) -> tuple[Slice, MetricMeans | None]:
    return data, join_blocks(slice_blocks(data, BUILTIN_TABLES), BUILTIN_TABLE)


class Played:
    """The learned detectors of one job, all in one mode, which may be restored as an engine does at its start."""

    def __init__(self, mode: DetectorMode) -> None:
        self.config = LearnedConfig(dict.fromkeys(LEARNED, mode))
        self.graph = JobGraph()
        self.said: list[tuple[Anomaly, ...]] = []
        self._begin()

    def _begin(self) -> None:
        self._known: set[str] = set()
        self.detectors = LearnedDetectors(self.config, self.graph, self._choose, _untimed)

    def _choose(self, name: str, operator: LearnedOperator, data: Slice) -> None:
        """Give each detector its model once, from the first slice after a start on."""
        del data
        if name not in self._known:
            self._known.add(name)
            operator.on_model(MODELS[name])

    def play(self, told: Sequence[Second], *, restores: bool) -> Played:
        for fast, metrics in told:
            self.graph.take(fast.records)
            self.detectors.on_slice(fast)
            if metrics is not None:
                self.detectors.on_means(*metrics, BUILTIN_TABLE)
            self.said.append(self.detectors.anomalies)
            if restores:
                parts = self.detectors.snapshot()
                self._begin()
                self.detectors.restore(parts)
                assert self.detectors.snapshot() == parts
        return self

    def state(self) -> tuple[Any, ...]:
        return self.detectors.status(), self.detectors.accusers, self.detectors.snapshot()


@contextlib.contextmanager
def _untimed(_: str) -> Iterator[None]:
    yield


@pytest.mark.slow  # half a minute: 240 snapshots of three detectors
@pytest.mark.parametrize("mode", [DetectorMode.EVIDENCE, DetectorMode.ACCUSE])
def test_restored_after_every_slice_all_three_say_and_keep_what_they_would_have(mode: DetectorMode) -> None:
    whole = Played(mode).play(seconds(), restores=False)
    restored = Played(mode).play(seconds(), restores=True)
    named = {(one.detector, one.component.name) for said in whole.said for one in said}

    assert named == {(name, FAULTY_HOST) for name in LEARNED}
    assert restored.said == whole.said
    assert restored.play(seconds()[-1:], restores=False).state() == whole.play(seconds()[-1:], restores=False).state()
    assert whole.detectors.accusers == (frozenset(LEARNED) if mode is DetectorMode.ACCUSE else frozenset())


def test_what_nothing_new_confirms_is_withdrawn_after_two_minutes_and_begins_anew() -> None:
    """The job's metrics stop while a machine is named; they come again when it is well."""
    ends = {data.end_ns: data for data in OfMinder().slices(HOSTS, faulty=True)}
    played = Played(DetectorMode.EVIDENCE)
    last = list(ends.values())[-1]
    for data in ends.values():
        played.graph.take(data.records)
        played.detectors.on_slice(data)
        played.detectors.on_means(*_means(data), BUILTIN_TABLE)
    assert {one.component.name for one in played.detectors.anomalies} == {FAULTY_HOST}

    for second in (100, 121):
        empty = Slice(last.job, last.end_ns + (second - 1) * NS_PER_SECOND, last.end_ns + second * NS_PER_SECOND, ())
        played.detectors.on_means(empty, None, BUILTIN_TABLE)
        assert bool(played.detectors.anomalies) == (second == 100)

    later = [replace(data, start_ns=data.start_ns + HOUR_NS, end_ns=data.end_ns + HOUR_NS) for data in healthy_slices()]
    for data in later:
        played.detectors.on_means(data, _means(data)[1], BUILTIN_TABLE)
        assert played.detectors.anomalies == ()


def healthy_slices() -> list[Slice]:
    """A minute of metrics of a job whose machines are well."""
    return OfMinder().slices(HOSTS, faulty=False)[:12]

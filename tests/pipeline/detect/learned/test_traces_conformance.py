"""Entropy and the Bi-LSTM as operators of a running job keep the contract of all detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.pipeline.detect.conformance import Detector, DetectorCase
from tests.pipeline.detect.learned.test_traces import entropy_of
from tests.pipeline.detect.traces.test_bilstm import TestNetworkOverPhases as NetworkOverPhases
from tests.pipeline.detect.traces.test_bilstm import model as trained
from tests.pipeline.detect.traces.test_detector import TestEntropyOverCollectives as OverCollectives
from tests.pipeline.detect.traces.test_detector import TestEntropyOverPhases as OverPhases
from tocsin.models.documents import Model
from tocsin.pipeline.detect.learned.operator import LearnedOperator
from tocsin.pipeline.detect.learned.traces import StreamingBilstm, StreamingEntropy
from tocsin.pipeline.detect.traces.detector import TracesConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # minutes: each check plays a job, and a network is trained


class OnSlices:
    """An operator behind the protocol of the checks, which has no word for "nothing new was judged"."""

    def __init__(self, operator: LearnedOperator) -> None:
        self.operator = operator
        self.abstained = operator.abstained

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        found = self.operator.on_slice(data) or ()
        self.abstained = self.operator.abstained
        return found

    def snapshot(self) -> dict[str, bytes]:
        return self.operator.snapshot()

    def restore(self, parts: Mapping[str, bytes]) -> None:
        self.operator.restore(parts)
        self.abstained = self.operator.abstained


def judged_by(operator: LearnedOperator, model: Model | None) -> Detector:
    """The operator with a model, which an engine gives it again after a restart."""
    operator.on_model(model)
    return OnSlices(operator)


class TestStreamingEntropyOverPhases(OverPhases):
    exempt: ClassVar[Mapping[str, str]] = {
        "units": "operation times are told in seconds: there are no limits that could have another unit",
    }
    line_sigmas: float | None = None

    def detector(self, graph: JobGraph) -> Detector:
        announced = None if self.line_sigmas is None else entropy_of(self.line_sigmas)
        return judged_by(StreamingEntropy(TracesConfig(), graph), announced)

    def untaught(self) -> DetectorCase:
        case = TestStreamingEntropyOverPhases()
        case.line_sigmas = 900.0
        return case


class TestStreamingEntropyOverCollectives(OverCollectives):
    def detector(self, graph: JobGraph) -> Detector:
        return judged_by(StreamingEntropy(TracesConfig(), graph), entropy_of(4.0))


class TestStreamingBilstm(NetworkOverPhases):
    def detector(self, graph: JobGraph) -> Detector:
        network = trained() if self.is_taught else replace(trained(), line_factor=900.0)
        announced = Model("n1", None, {"phases": network}, f"hash of {network.line_factor}")
        return judged_by(StreamingBilstm(TracesConfig(), graph), announced)

    def untaught(self) -> DetectorCase:
        case = TestStreamingBilstm()
        case.is_taught = False
        return case

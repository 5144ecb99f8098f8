"""The one-class network as a detector: the contract, and that it sees no future (D7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest

from tests.pipeline.detect.conformance import (
    FAULTY_HOST,
    Detector,
    DetectorCase,
    accused,
)
from tests.pipeline.detect.traces.test_detector import TestEntropyOverPhases as OverPhases
from tests.pipeline.detect.traces.test_detector import (
    hosts_of,
    job_slices,
    nothing,
    run,
    slow_forward,
)
from tocsin.models.bilstm_ocnn import OcnnModel, read_model
from tocsin.models.op_features import Vocabulary
from tocsin.pipeline.detect.traces.detector import (
    BILSTM,
    ENTROPY,
    TraceDetector,
    TracesConfig,
)
from tocsin.pipeline.detect.traces.training import sequences_of
from tocsin.pipeline.detect.traces.windows import PHASE_VOCABULARY, WindowConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import Slice

torch = pytest.importorskip("torch", reason="training needs tocsin[train]")

from tocsin.models.training.bilstm_ocnn_training import NormalData, OcnnTraining, train  # noqa: E402  # torch first

SEQUENCE_COUNT = 3
SECONDS = 300


@cache
def model() -> OcnnModel:
    """Trained on two healthy jobs like those that are judged."""
    torch.set_num_threads(1)
    jobs = [sequences_of(job_slices(hosts, nothing, 600), SEQUENCE_COUNT, WindowConfig()) for hosts in (8, 16, 12)]
    data = NormalData(np.concatenate([jobs[0][0], jobs[1][0]]), *jobs[2])
    small = OcnnTraining(hidden_size=8, head_size=8, batch_size=128)
    return read_model(train(data, PHASE_VOCABULARY, small).to_bytes())


class OnlyTheNetwork(TraceDetector):
    """Says nothing of the entropies."""

    def on_slice(self, data: Slice) -> list:  # type: ignore[type-arg]  # a test's own
        return [anomaly for anomaly in super().on_slice(data) if anomaly.detector == BILSTM]


class TestNetworkOverPhases(OverPhases):
    seconds = SECONDS
    within_slices = 62
    """Four of five windows: one more than the entropies need, and a sequence is six."""
    exempt: ClassVar[Mapping[str, str]] = {
        "units": "operation times are told in seconds: there are no limits that could have another unit",
        "direction": "times are sorted into bins and the network ends in sigmoids: it rises and falls as faults grow",
    }
    graded_strengths = (0.2, 0.6)
    """Several bins apart: of neighbours the stronger one may score lower."""
    is_taught = True

    def detector(self, graph: JobGraph) -> Detector:
        return OnlyTheNetwork(TracesConfig(), graph, {"phases": model()} if self.is_taught else None)

    def untaught(self) -> DetectorCase:
        """Without a model it abstains."""
        case = TestNetworkOverPhases()
        case.is_taught = False
        return case

    def test_the_anomaly_names_the_class_and_begins_with_the_fault(self) -> None:
        said = [anomaly for reported in self.play(self.slices(8, faulty=True))[1] for anomaly in reported]

        assert {anomaly.detector for anomaly in said} == {BILSTM}
        assert {anomaly.component.name for anomaly in said} == {FAULTY_HOST}

    def test_it_speaks_within_four_windows(self) -> None:
        """Four of five windows: one more than the entropies need."""
        _, reported = self.play(self.slices(8, faulty=True))

        assert not any(reported[:120])
        assert any(reported[: 120 + 62])

    def test_d7_what_comes_later_changes_nothing_that_was_said(self) -> None:
        slices = self.slices(8, faulty=True)

        assert self.play(slices)[1][:200] == self.play(slices[:200])[1]


def test_both_speak_of_one_fault() -> None:
    graph = JobGraph()
    reported = run(
        TraceDetector(TracesConfig(), graph, {"phases": model()}), graph, job_slices(8, slow_forward, SECONDS)
    )

    assert {anomaly.detector for anomaly in reported} == {ENTROPY, BILSTM}
    assert accused([reported]) == {FAULTY_HOST} <= set(hosts_of(8))


def test_a_model_for_other_operations_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        TraceDetector(TracesConfig(), JobGraph(), {"phases": replace(model(), vocabulary=Vocabulary(("a", "b")))})

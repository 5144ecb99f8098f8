"""Streaming Minder: the contract of all detectors, properties of its score, and what a change of its model does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.detect.conformance import Detector, DetectorCase
from tests.pipeline.detect.test_conformance import FrameConformance
from tocsin.models.documents import Model
from tocsin.models.lstm_vae import Limits
from tocsin.models.minder import MinderModel
from tocsin.models.minder_file import decode_minder
from tocsin.models.minder_stream import LEAST_MACHINES, centre_scores, windows_of
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, join_blocks, slice_blocks
from tocsin.pipeline.detect.learned.minder import StreamingMinder, StreamingMinderConfig
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND, JobKey, Slice
from tocsin.schemas.verdicts import Anomaly

POWER = "gpu_power_watts"
JOB = JobKey("lab", "j1", 0)


def shipped() -> MinderModel:
    """The model that ships."""
    data = shipped_model("minder")
    assert data is not None
    return decode_minder(data)


def of_power(unit: float = 1.0) -> MinderModel:
    """The shipped network of power alone, in another unit where that is tried."""
    model, limits = shipped(), Limits(0.0, 900.0 * unit)
    vae = dataclasses.replace(model.single[POWER], limits=(limits,))
    return MinderModel({POWER: limits}, {POWER: vae}, priority=(POWER,))


class OnFrames:
    """The operator behind the protocol of the checks: it is handed the means of each slice's frames."""

    def __init__(self, operator: StreamingMinder) -> None:
        self.operator = operator
        self.abstained = operator.abstained

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        means = join_blocks(slice_blocks(data, BUILTIN_TABLES), BUILTIN_TABLE)
        found = self.operator.on_means(data, means, BUILTIN_TABLE) or ()
        self.abstained = self.operator.abstained
        return found

    def snapshot(self) -> dict[str, bytes]:
        return self.operator.snapshot()

    def restore(self, parts: Mapping[str, bytes]) -> None:
        self.operator.restore(parts)
        self.abstained = self.operator.abstained


class TestStreamingMinder(FrameConformance):
    """Eight samples of five seconds a window: a fault fills it little by little."""

    within_slices = 6
    scores = (0.4, 1.4)
    graded_strengths = (0.35, 0.6)
    limit_sigmas = 5.0
    exempt: ClassVar[Mapping[str, str]] = {
        "4096 hosts": "what it costs there is measured, and not asserted: make bench-detect",
    }

    def detector(self, graph: JobGraph) -> Detector:
        own = StreamingMinderConfig()
        sums = dataclasses.replace(own.sums, drift_sigmas=self.limit_sigmas, max_sigmas=self.limit_sigmas + 7)
        operator = StreamingMinder(dataclasses.replace(own, sums=sums), graph)
        operator.on_model(Model("m1", None, of_power(self.unit), f"hash of {self.unit}"))
        return OnFrames(operator)

    def untaught(self) -> DetectorCase:
        case = type(self)()
        case.limit_sigmas = 1e6
        return case

    def rescaled(self, factor: float) -> DetectorCase:
        case = type(self)()
        case.unit = factor
        return case


# -- the score ----------------------------------------------------------------------


def embeddings(seed: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
    """Windows of machines that are alike but for noise."""
    return (0.5 + 0.02 * np.random.default_rng(seed).standard_normal((count, 8))).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(LEAST_MACHINES, 40), far=st.floats(0.3, 50.0))
def test_one_far_out_has_the_highest_score_and_no_ceiling(seed: int, count: int, far: float) -> None:
    rows = embeddings(seed, count)
    rows[1] += far
    scores = centre_scores(rows, np.zeros(count, np.intp))

    assert int(scores.argmax()) == 1
    assert scores[1] > np.sqrt(count - 1)  # what a z-score of so many machines cannot reach


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(LEAST_MACHINES, 40))
def test_machines_in_another_order_have_the_same_scores(seed: int, count: int) -> None:
    rows, order = embeddings(seed, count), np.random.default_rng(seed).permutation(count)
    groups = np.arange(count) % 2 if count >= 2 * LEAST_MACHINES else np.zeros(count, np.intp)

    np.testing.assert_array_equal(centre_scores(rows, groups)[order], centre_scores(rows[order], groups[order]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(8, 60))
def test_one_more_healthy_machine_frees_nobody(seed: int, count: int) -> None:
    rows = embeddings(seed, count)
    rows[0] += 0.3
    more = np.concatenate([rows, embeddings(seed + 1, 1)])

    assert centre_scores(more, np.zeros(count + 1, np.intp))[0] > 0.5 * centre_scores(rows, np.zeros(count, np.intp))[0]


def test_machines_of_another_role_and_unknown_ones_do_not_count() -> None:
    rows = embeddings(1, 12)
    groups = np.array([0] * 6 + [1] * 3 + [-1] * 3)
    rows[5] = np.nan
    found = centre_scores(rows, groups)

    assert np.isfinite(found[:5]).all()
    assert np.isnan(found[5:]).all(), "unknown, a role of three, compared with nobody"


def test_a_window_is_filled_from_the_nearest_sample_and_needs_its_newest() -> None:
    nan = np.nan
    found = windows_of(np.array([[nan, 1, nan, nan, 4, 5], [1, 2, 3, 4, 5, nan], [nan] * 4 + [5, 6]], np.float32))

    assert found[0].tolist() == [1, 1, 1, 4, 4, 5]
    assert np.isnan(found[1:]).all(), "no newest sample; less than half of the samples"


# -- models -------------------------------------------------------------------------


def taught() -> tuple[TestStreamingMinder, OnFrames, list[Slice]]:
    """A detector that has learned for twenty slices, and the slices that follow."""
    case = TestStreamingMinder()
    detector = case.detector(JobGraph())
    assert isinstance(detector, OnFrames)
    slices = case.slices(6, faulty=True)
    for data in slices[:20]:
        detector.on_slice(data)
    return case, detector, slices[20:]


def test_the_same_model_again_forgets_nothing_and_another_one_begins_anew() -> None:
    _, detector, rest = taught()
    before = detector.snapshot()
    detector.operator.on_model(Model("other name", None, of_power(), "hash of 1.0"))
    assert detector.snapshot() == before
    detector.operator.on_model(Model("m2", None, of_power(), "another hash"))
    detector.on_slice(rest[0])

    assert detector.operator.card()["version"] == "m2"
    assert len(detector.snapshot()["minder"]) < len(before["minder"])


def test_a_withdrawal_is_the_model_that_ships() -> None:
    _, detector, _ = taught()
    detector.operator.on_model(Model("", None))

    assert detector.operator.card()["version"] == "builtin"
    assert detector.operator.card()["metrics"] == list(shipped().priority)


def test_a_model_of_another_detector_is_no_model() -> None:
    with pytest.raises(ConfigError, match="must be a model of minder"):
        StreamingMinder(StreamingMinderConfig(), JobGraph()).on_model(Model("x", None, object(), "h"))


# -- a job without metrics ----------------------------------------------------------


def test_a_job_without_any_metric_is_an_abstention_by_name_once_a_slice() -> None:
    operator = StreamingMinder(StreamingMinderConfig(), JobGraph())
    seconds = [Slice(JOB, n * NS_PER_SECOND, (n + 1) * NS_PER_SECOND, ()) for n in range(60)]
    for data in seconds:
        operator.on_slice(data)
        if data.end_ns % METRIC_SLICE_NS == 0:
            operator.on_means(data, None, BUILTIN_TABLE)  # frames of another table alone: no second count

    assert operator.abstained == {Reason.METRIC_MISSING: 12}

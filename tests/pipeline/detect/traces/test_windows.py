"""One extraction for training, backtest and engine: the same records give the same windows and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.detect.traces.test_detector import JOB, job_slices, nothing
from tocsin.models.op_features import PHASES, OpRows, Vocabulary, phase_vocabulary, sum_up
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.traces.training import role_windows, second_slices
from tocsin.pipeline.detect.traces.windows import PHASE_VOCABULARY, RoleWindow, TraceWindows, WindowConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import NS_PER_SECOND, Event, Slice, StepBatch

SHORT = WindowConfig(window_ns=4 * NS_PER_SECOND, min_step_count=3, warmup_count=1)


def features_of(windows: Sequence[RoleWindow]) -> list[tuple[str, int, int, bytes]]:
    """What a network is given of each window."""
    return [
        (one.family, one.begin_ns, one.end_ns, sum_up(one.rows, one.vocabulary.class_count).features.tobytes())
        for one in windows
    ]


def as_engine(slices: Sequence[Slice], idle_before: int, noisy: bool, killed_after: int) -> list[RoleWindow]:
    """The windows of an engine: a slice a second though nothing came, other records, a restart from a snapshot."""
    graph = JobGraph()
    found: list[RoleWindow] = []
    windows = TraceWindows(SHORT, graph)
    for index, data in enumerate(slices):
        for _ in range(idle_before if index % 5 == 0 else 0):
            empty = Slice(JOB, data.start_ns, data.start_ns, ())
            assert not windows.take(empty)
        other = Event(JOB, "n00", data.end_ns - 1, -1, EventSource.KERNEL, "link_down", Severity.WARNING)
        heard = dataclasses.replace(data, records=(*data.records, other)) if noisy else data
        graph.take(heard.records)
        if windows.take(heard):
            found += windows.close(heard.end_ns)
        if index == killed_after:
            state = unpack_state({"part": pack_state(windows.to_state())}, "part")
            windows = TraceWindows(SHORT, graph)
            windows.load_state(state)
    return found


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 40),
    st.sets(st.integers(1, 39), max_size=12),
)
def test_an_engine_and_a_recording_cut_the_same_windows(
    idle_before: int, noisy: bool, killed_after: int, silent: set[int]
) -> None:
    """A recording has no empty seconds; an engine has them, and is restarted at any slice."""
    slices = [
        dataclasses.replace(data, records=()) if index in silent else data
        for index, data in enumerate(job_slices(4, nothing, 40))
    ]
    recorded = second_slices(record for data in slices for record in data.records)

    trained = features_of(list(role_windows(recorded, SHORT)))
    live = features_of(as_engine(slices, idle_before, noisy, killed_after))

    assert live == trained
    assert len(trained) >= 3


def phases_of(seconds: dict[str, float]) -> RoleWindow:
    """Four steps of three ranks that measure these phases."""
    words = phase_vocabulary(seconds).words
    classes = PHASE_VOCABULARY.encode(words)
    values = np.tile([seconds[word] for word in words], 12)
    rows = OpRows(np.repeat(np.arange(3), 4 * len(words)), np.tile(classes, 12), values)
    return RoleWindow("phases", PHASE_VOCABULARY, rows, 0, 1)


def test_phases_that_a_network_does_not_know_count_as_the_rest_of_their_step() -> None:
    full = phases_of({"data": 1.0, "forward": 2.0, "backward": 4.0, "communication": 8.0, "rest": 16.0})
    plain = phases_of({"data": 1.0, "communication": 8.0, "rest": 22.0})
    fewer = phase_vocabulary({"data", "communication"})

    assert fewer.words == ("data", "communication", "rest")
    assert full.sources == ("data", "forward", "backward", "communication", "rest")
    np.testing.assert_array_equal(full.in_words_of(fewer).seconds, plain.in_words_of(fewer).seconds)
    np.testing.assert_array_equal(full.in_words_of(fewer).classes, plain.in_words_of(fewer).classes)
    np.testing.assert_array_equal(full.in_words_of(fewer).ranks, plain.in_words_of(fewer).ranks)


@pytest.mark.parametrize(
    ("words", "is_enough"),
    [(("data", "rest"), True), (("data", "forward", "rest"), False), (PHASES, False)],
)
def test_a_network_of_phases_needs_all_of_its_phases(words: tuple[str, ...], is_enough: bool) -> None:
    window = phases_of({"data": 1.0, "communication": 8.0, "rest": 22.0})

    assert window.has_sources_of(Vocabulary(words)) is is_enough


def test_a_network_of_collectives_must_know_half_of_them() -> None:
    rows = OpRows(np.zeros(4, np.int64), np.array([0, 0, 1, 1]), np.ones(4))
    window = RoleWindow("collectives", Vocabulary(("all_gather", "all_reduce")), rows, 0, 1)

    assert window.has_sources_of(Vocabulary(("all_reduce", "broadcast")))
    assert not window.has_sources_of(Vocabulary(("broadcast",)))


def test_a_slice_without_steps_and_collectives_ends_no_window() -> None:
    slices = job_slices(4, nothing, 20)
    windows = TraceWindows(SHORT, JobGraph())
    for data in slices:
        windows.take(data)
    late = Slice(JOB, slices[-1].end_ns, slices[-1].end_ns + 60 * NS_PER_SECOND, ())

    assert not windows.take(late)
    assert any(isinstance(record, StepBatch) for record in slices[-1].records)
    assert windows.take(dataclasses.replace(slices[-1], start_ns=late.start_ns, end_ns=late.end_ns))

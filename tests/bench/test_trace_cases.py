"""The simulated jobs of ``make bench ARGS=traces``: each of them teaches the network."""

from __future__ import annotations

import pytest

from tests.bench import trace_cases
from tests.bench.trace_cases import VOCABULARY, cases
from tocsin.pipeline.detect.traces.training import second_slices, sequences_of
from tocsin.pipeline.detect.traces.windows import WindowConfig
from tocsin.pipeline.lab.simulation.case import HEALTHY
from tocsin.pipeline.recording.stream import records_of


def test_a_job_that_tells_only_how_long_it_waits_teaches_the_network_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_cases, "HOSTS", (4, 4))
    case = next(one for one in cases(601, 40, HEALTHY, "fit", 60.0) if one.shape.step_detail == "waits")
    slices = list(second_slices(records_of(case.recording())))

    assert len(sequences_of(slices, 2, WindowConfig(), vocabulary=VOCABULARY)[0])
    assert not len(sequences_of(slices, 2, WindowConfig())[0]), "all phases: it measures fewer"

"""``peers`` and ``steps`` alone: what the engine says when only one of them speaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_announcements import DEAF
from tests.pipeline.lab.backtest.kit import cpu_recording, metric_table
from tests.pipeline.lab.backtest.trace_kit import traced
from tocsin.models.documents import write_numbers
from tocsin.pipeline.lab.backtest.detector_sets import runner_of
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import Reason


def both() -> Recording:
    """The steps show that n3 is slow, the metrics that n5 has a busy CPU."""
    slow = traced(300, 1, slow_from=120)
    cpu = 0.5 + 0.005 * np.random.default_rng(1).standard_normal((300, 8))
    cpu[60:, 5] = 0.95
    metrics = metric_table([f"n{index}" for index in range(8)], {"cpu_util_ratio": cpu})
    return replace(slow, tables={**slow.tables, "host_metrics": metrics})


def named(name: str, recording: Recording) -> set[str]:
    lines = runner_of(name, {}).judge(recording).lines
    return {suspect["name"] for line in lines for suspect in line["suspects"]}


def test_each_says_what_its_own_input_shows() -> None:
    recording = both()

    assert named("peers", recording) == {"n5"}
    assert named("steps", recording) == {"n3"}
    assert {"n3"} <= named("ours", recording)


def test_what_events_say_is_neither_ones_word() -> None:
    recording = draw_case(2, 4, "machine_unreachable", duration_seconds=300.0).recording()

    assert runner_of("ours", {}).judge(recording).lines
    for name, words in (("peers", {"peers", "exits"}), ("steps", {"steps"})):
        for line in runner_of(name, {}).judge(recording).lines:
            assert line["update"] > 0 or words & {one["detector"] for one in line["evidence"]}


@pytest.mark.parametrize(("name", "reason"), [("peers", Reason.METRIC_MISSING), ("steps", Reason.NO_HOOK)])
def test_without_its_input_it_says_why_it_cannot_judge(name: str, reason: Reason) -> None:
    recording = traced(60, 1) if name == "peers" else cpu_recording()

    assert runner_of(name, {}).judge(recording).reason is reason


def test_a_quiet_recording_is_judged() -> None:
    for name in ("peers", "steps"):
        opinion = runner_of(name, {}).judge(replace(both(), tables={**traced(200, 2).tables, **cpu_recording().tables}))
        assert (opinion.lines, opinion.reason) == ((), None)


def _without_length() -> Recording:
    recording = both()
    return replace(recording, manifest=replace(recording.manifest, end_ns=recording.manifest.start_ns))


def _two_machines() -> Recording:
    cpu = 0.5 + 0.005 * np.random.default_rng(1).standard_normal((300, 2))
    cpu[60:, 1] = 0.95
    return replace(traced(300, 1), tables={"host_metrics": metric_table(["n0", "n1"], {"cpu_util_ratio": cpu})})


def _all_nan() -> Recording:
    nothing = np.full((300, 8), np.nan)
    metrics = metric_table([f"n{index}" for index in range(8)], {"cpu_util_ratio": nothing})
    return replace(both(), tables={**both().tables, "host_metrics": metrics})


@pytest.mark.parametrize(
    ("name", "recording", "reason"),
    [
        ("peers", _without_length(), Reason.SPAN_TOO_SHORT),
        ("steps", _without_length(), Reason.SPAN_TOO_SHORT),
        ("peers", _two_machines(), Reason.TOO_FEW_PEERS),
        ("peers", _all_nan(), Reason.METRIC_MISSING),
    ],
    ids=["peers-no-length", "steps-no-length", "two-machines", "all-nan"],
)
def test_what_it_could_not_judge_has_its_own_reason(name: str, recording: Recording, reason: Reason) -> None:
    opinion = runner_of(name, {}).judge(recording)

    assert (opinion.lines, opinion.reason) == ((), reason)


def test_its_model_counts_from_the_first_slice_and_a_bad_one_is_refused() -> None:
    """A model that is as hard of hearing as it may be hears the same later."""
    own = runner_of("peers", {}).judge(both()).lines
    deaf = runner_of("peers", {"peers": write_numbers(DEAF)}).judge(both()).lines

    assert own[0]["suspects"] == deaf[0]["suspects"] == [{"kind": "host", "name": "n5"}]
    assert deaf[0]["detected_ns"] > own[0]["detected_ns"]
    with pytest.raises(ModelRefusedError):
        runner_of("steps", {"steps": b"no json"})

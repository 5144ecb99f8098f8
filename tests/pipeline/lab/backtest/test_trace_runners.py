"""Trace detectors over recordings: steps, collectives or traced operations, and a named reason without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.models.plain_networks import plain_network
from tests.pipeline.lab.backtest.kit import at, cpu_recording
from tests.pipeline.lab.backtest.trace_kit import traced
from tocsin.models.bilstm_file import encode_bilstm
from tocsin.models.op_features import PHASES, Vocabulary
from tocsin.pipeline.lab.backtest.detector_sets import runner_of
from tocsin.pipeline.recording.tables import Text
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import Reason

PHASES_ONLY = {"bilstm": encode_bilstm({"phases": plain_network(Vocabulary(PHASES))})}


def named(lines: tuple[object, ...]) -> set[str]:
    return {suspect["name"] for line in lines for suspect in line["suspects"]}  # type: ignore[index]  # verdict lines


@pytest.mark.parametrize(("tables", "who"), [(("ops",), "3"), (("topology", "ops"), "n3")])
def test_operations_alone_are_enough_for_entropy(tables: tuple[str, ...], who: str) -> None:
    """A rank that nobody placed has no host: it is named as a rank."""
    opinion = runner_of("entropy", {}).judge(traced(160, 1, slow_from=80, tables=tables))

    assert opinion.reason is None
    assert named(opinion.lines) == {who}
    first = opinion.lines[0]
    assert first["metric"] == "ops_distribution"
    assert at(80) < first["detected_ns"] <= at(104)


def test_a_healthy_trace_is_judged_and_accuses_nobody() -> None:
    opinion = runner_of("entropy", {}).judge(traced(160, 2, tables=("ops",)))

    assert (opinion.lines, opinion.reason) == ((), None)


def test_a_trace_of_few_steps_says_that_it_is_too_short() -> None:
    assert runner_of("entropy", {}).judge(traced(20, 2, tables=("ops",))).reason is Reason.WARMING_UP
    assert runner_of("entropy", {}).judge(traced(3, 2, tables=("ops",))).reason is Reason.SPAN_TOO_SHORT


def test_steps_and_operations_of_one_recording_are_both_judged() -> None:
    recording = traced(240, 3, slow_from=120, tables=("topology", "steps", "ops"))
    lines = runner_of("entropy", {}).judge(recording).lines

    assert {line["metric"] for line in lines} == {"phases_distribution", "ops_distribution"}
    assert named(lines) == {"n3"}


def test_the_network_abstains_by_name_without_a_model_without_input_and_without_one_for_this_input() -> None:
    recording = traced(160, 1, tables=("ops",))

    assert runner_of("bilstm", {}).judge(recording).reason is Reason.NO_MODEL
    assert runner_of("bilstm", PHASES_ONLY).judge(cpu_recording()).reason is Reason.NO_HOOK
    assert runner_of("bilstm", PHASES_ONLY).judge(recording).reason is Reason.NO_MODEL
    assert runner_of("bilstm", PHASES_ONLY).judge(traced(60, 1)).reason is Reason.WARMING_UP


def test_two_ranks_are_too_few() -> None:
    recording = traced(160, 1, tables=("ops",))
    columns = recording.tables["ops"]
    rows = np.flatnonzero(np.asarray(columns["rank"]) < 2)
    few = {
        name: column.take(rows) if isinstance(column, Text) else np.asarray(column)[rows]
        for name, column in columns.items()
    }

    assert runner_of("entropy", {}).judge(replace(recording, tables={"ops": few})).reason is Reason.TOO_FEW_PEERS


def test_a_file_that_is_no_model_is_refused_at_once() -> None:
    with pytest.raises(ModelRefusedError, match="cut short"):
        runner_of("bilstm", {"bilstm": PHASES_ONLY["bilstm"][:20]})

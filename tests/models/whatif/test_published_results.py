"""The what-if figures of a public trace, beside those that the study's authors published for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tocsin.models.whatif.scenarios import Explained, Slowdowns, model_of, slowdowns
from tocsin.pipeline.recording.op_trace import read_op_trace

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    found = shared_data / "whatif"
    if not found.is_dir():
        pytest.skip(f"no public what-if trace at {found}")
    return found


@pytest.fixture(scope="module")
def ours(folder: Path) -> tuple[list[str], Slowdowns]:
    model = model_of(read_op_trace(folder / "trace-ST.parquet"))
    return [str(step) for step in model.arrays.steps.tolist()], slowdowns(model)


@pytest.fixture(scope="module")
def published(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((folder / "result-ST.json").read_text())
    return found


def near(found: object, expected: object) -> bool:
    return bool(np.allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=TOLERANCE))


SERIES: Mapping[str, Callable[[Slowdowns], Any]] = {
    "step_t_base": lambda found: found.traced_seconds,
    "step_t_nodelay": lambda found: found.real_seconds,
    "step_t_noblk": lambda found: found.ideal_seconds,
    "blocking_step_slowdown": lambda found: found.step_ratios,
    "launch_step_slowdown": lambda found: found.step_discrepancies,
}


@pytest.mark.parametrize("name", SERIES)
def test_the_steps_are_those_published(
    name: str, ours: tuple[list[str], Slowdowns], published: Mapping[str, Any]
) -> None:
    steps, found = ours

    assert set(steps) == set(published[name])
    assert near(SERIES[name](found), [published[name][step] for step in steps])


def test_the_ratios_are_those_published(ours: tuple[list[str], Slowdowns], published: Mapping[str, Any]) -> None:
    _, found = ours

    assert near(found.slowdown_ratio, published["blocking_slowdown"])
    assert near(found.discrepancy_ratio, published["launch_slowdown"])


def test_the_slowdowns_by_type_are_those_published(
    ours: tuple[list[str], Slowdowns], published: Mapping[str, Any]
) -> None:
    steps, found = ours
    whole, by_step = published["blocking_decompose_by_optype"], published["blocking_decompose_by_optype_per_step"]

    assert set(found.optype_ratios) == set(whole)
    for name, value in whole.items():
        assert near(found.optype_ratios[name], value), name
        assert near(found.by_optype[name], [by_step[step][name] for step in steps]), name


@pytest.mark.parametrize("part", ["dp_rank", "stage"])
def test_the_slowdowns_by_place_are_those_published(
    part: str, ours: tuple[list[str], Slowdowns], published: Mapping[str, Any]
) -> None:
    steps, found = ours
    whole = published[f"blocking_decompose_by_{part}"]
    by_step = published[f"blocking_decompose_by_{part}_per_step"]
    ratios, series = {
        "dp_rank": (found.dp_rank_ratios, found.by_dp_rank),
        "stage": (found.stage_ratios, found.by_stage),
    }[part]

    assert near(ratios, [whole[str(at)] for at in range(len(ratios))])
    assert near(series, [[by_step[step][str(at)] for step in steps] for at in range(len(ratios))])


@pytest.mark.parametrize(("file", "which"), [("mw-ST.json", "workers"), ("ms-ST.json", "last_stage")])
def test_what_the_slowest_workers_and_the_last_stage_explain_is_as_published(
    file: str, which: str, folder: Path, ours: tuple[list[str], Slowdowns]
) -> None:
    expected, (_, found) = json.loads((folder / file).read_text()), ours
    explained = getattr(found, which)
    assert isinstance(explained, Explained)

    assert near(found.real_seconds.mean(), expected["tori"])
    assert near(found.ideal_seconds.mean(), expected["tideal"])
    assert near(explained.removed_seconds, expected["trem"])
    assert near(explained.added_seconds, expected["tadd"])
    assert near(explained.removed_ratio, expected["rem"])
    assert near(explained.added_ratio, expected["add"])

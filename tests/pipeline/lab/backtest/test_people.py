"""What people said of verdicts, beside what a detector set tells of the same recording."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.lab.backtest.kit import Says, at, cpu_recording
from tocsin.pipeline.lab.backtest.people import FeedbackTally, JudgedVerdict, judged_in, read_judged, tally_of
from tocsin.pipeline.lab.backtest.summary import CaseRow, figures_of, index_page, table_lines, to_object
from tocsin.pipeline.lab.backtest.trial import judge
from tocsin.schemas.errors import ConfigError

UPHELD = JudgedVerdict("old-1", "default", "job", 0, "fail_slow", ("n2",), at(200), at(300), is_true=True)
DENIED = replace(UPHELD, verdict_id="old-2", suspects=("n4",), is_true=False)
SAID = Says("a", (("n1", 100), ("n2", 230), ("n4", 250)))


def tally(*judged: JudgedVerdict, said: Says = SAID) -> FeedbackTally:
    [answer] = judge(cpu_recording(faults=None), [said], judged).answers
    assert answer.feedback is not None
    return answer.feedback


def line(**changes: Any) -> dict[str, Any]:
    [found] = Says("a", (("n2", 230),)).judge(cpu_recording()).lines
    return {**found, **changes}


def test_the_same_suspects_at_the_same_time_are_the_same_verdict() -> None:
    assert tally(UPHELD, DENIED) == FeedbackTally(1, 1, 1, 1, 1)
    assert tally(UPHELD, DENIED, said=Says("a")) == FeedbackTally(1, 0, 1, 0, 0)
    assert tally() == FeedbackTally(unjudged_count=3)


@pytest.mark.parametrize(
    ("seconds", "count"), [(197, 0), (198, 1), (420, 1), (421, 0)], ids=["before", "begin", "end", "after"]
)
def test_another_time_is_another_verdict(seconds: float, count: int) -> None:
    assert tally(UPHELD, said=Says("a", (("n2", seconds),))).found_count == count


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"suspects": []}, 0),
        ({"suspects": [], "id": "old-1"}, 1),
        ({"state": "cancelled", "id": "old-1"}, 0),
        ({"fault": "degraded"}, 0),
        ({"fault": "hang"}, 1),
    ],
)
def test_an_id_is_enough_and_what_was_taken_back_is_not_told(changes: dict[str, Any], count: int) -> None:
    assert tally_of([line(**changes)], [UPHELD]).found_count == count


def test_where_nobody_is_named_the_fault_must_be_the_same() -> None:
    nobody = replace(UPHELD, suspects=())
    assert tally_of([line(suspects=[])], [nobody]).found_count == 1
    assert tally_of([line(suspects=[], fault="hang")], [nobody]).found_count == 0


@pytest.mark.parametrize(
    "changes", [{"cluster": "other"}, {"job_id": "other"}, {"attempt": 1}, {"onset_ns": at(601)}, {"onset_ns": at(-3)}]
)
def test_verdicts_of_other_recordings_do_not_count(changes: dict[str, Any]) -> None:
    found = cpu_recording().manifest
    assert judged_in([UPHELD], found) == [UPHELD]
    assert judged_in([replace(UPHELD, **changes)], found) == []


def test_figures_are_sums_and_are_shown_only_where_words_were_given() -> None:
    cases = [CaseRow(name, judge(cpu_recording(faults=None), [SAID], [UPHELD])) for name in ("x", "y")]
    [figures] = figures_of([case.trial for case in cases if case.trial is not None])
    assert figures.feedback == FeedbackTally(2, 2, 0, 0, 4)
    assert table_lines([figures])[-1].split() == ["a", "2", "2", "0", "0", "4"]
    told = to_object(cases)
    wanted = {"upheld": 1, "found": 1, "denied": 0, "repeated": 0, "unjudged": 2}
    assert told["cases"][0]["sets"]["a"]["feedback"] == wanted
    assert "what people said" in index_page(cases)

    without = [CaseRow("x", judge(cpu_recording(faults=None), [SAID]))]
    assert "feedback" not in json.dumps(to_object(without))
    assert "what people said" not in index_page(without)


def test_the_last_line_on_a_verdict_counts(tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    lines = [asdict(UPHELD), asdict(DENIED), {**asdict(UPHELD), "is_true": False, "note": "no"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_judged(path) == (replace(UPHELD, is_true=False), DENIED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_true": "yes"}, "is_true"),
        ({"suspects": "n2"}, "suspects"),
        ({"suspects": [7]}, r"suspects\[0\]"),
        ({"onset_ns": None}, "onset_ns"),
        ({"job_id": ""}, "job_id"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "said.jsonl"
    path.write_text(json.dumps(asdict(UPHELD)) + "\n" + json.dumps({**asdict(UPHELD), **changes}) + "\n")
    with pytest.raises(ConfigError, match=f"line 2: {said}"):
        read_judged(path)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "said.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        read_judged(path)
    with pytest.raises(ConfigError, match="can be read"):
        read_judged(tmp_path / "absent")

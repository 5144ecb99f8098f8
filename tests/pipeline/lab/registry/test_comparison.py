"""When a new model is worse, and by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.lab.registry.comparison import compare
from tocsin.pipeline.recording.score import FaultScore, FolderScore

HIT = FaultScore("gpu_slow", "thermal", 10.0, cause_right=True)
MISS = FaultScore("gpu_slow", "thermal", None, None)


def folders(*faults: FaultScore, false_count: int = 0, machine_days: float = 4.0) -> list[FolderScore]:
    """One recording a fault, and a healthy one with the false accusations."""
    days = machine_days / (len(faults) + 1)
    return [*(FolderScore((fault,), 0, days) for fault in faults), FolderScore((), false_count, days)]


def reasons(current: list[FolderScore], new: list[FolderScore]) -> list[str]:
    return [one.reason.value for one in compare(current, new).shortfalls]


def late(delay_seconds: float) -> FaultScore:
    return replace(HIT, delay_seconds=delay_seconds)


WRONG = replace(HIT, cause_right=False)
SCORES = st.lists(
    st.builds(
        FolderScore,
        st.lists(st.sampled_from([HIT, MISS, WRONG, late(3.0), late(60.0)]), max_size=3).map(tuple),
        st.integers(0, 3),
        st.floats(0.01, 2.0),
    ),
    min_size=1,
    max_size=30,
)


@given(SCORES)
def test_a_model_is_never_worse_than_itself(scores: list[FolderScore]) -> None:
    assert set(reasons(scores, scores)) <= {"too_few_recordings"}


@given(SCORES, SCORES)
def test_of_two_models_on_the_same_recordings_one_is_not_worse_by_f1(
    one: list[FolderScore], other: list[FolderScore]
) -> None:
    size = min(len(one), len(other))
    one = one[:size]
    other = [replace(b, faults=a.faults, machine_days=a.machine_days) for a, b in zip(one, other[:size], strict=True)]

    assert not ("f1_lower" in reasons(one, other) and "f1_lower" in reasons(other, one))


@pytest.mark.parametrize(
    ("new", "wanted", "words"),
    [
        (folders(*[HIT] * 20), [], ""),
        (folders(*[HIT] * 19, MISS), ["f1_lower"], "F1 0.9744 instead of 1.0000: lower by 0.0256"),
        (
            folders(*[HIT] * 20, false_count=2),
            ["f1_lower", "more_false_accusations"],
            "2 false accusations instead of 0 in 4.00 machine-days: 2 more, 0.500 per machine-day",
        ),
        (folders(*[HIT] * 19, WRONG), [], ""),
        (
            folders(*[HIT] * 18, WRONG, WRONG),
            ["causes_worse"],
            "cause right 18 times instead of 20 of the 20 faults that both found: lower by 0.100, more than 0.02",
        ),
        (folders(*[late(11.0)] * 20), [], ""),
        (
            folders(*[late(11.5)] * 20),
            ["slower"],
            "11.50 s instead of 10.00 s on the 20 faults that both found: later by 1.50 s, more than 1.00 s",
        ),
        (folders(*[late(2.0)] * 20), [], ""),
    ],
)
def test_worse_is_named_with_by_how_much(new: list[FolderScore], wanted: list[str], words: str) -> None:
    found = compare(folders(*[HIT] * 20), new).shortfalls

    assert [one.reason.value for one in found] == wanted
    assert words in " ".join(one.text for one in found)


def test_a_model_that_finds_hard_faults_late_is_not_slower() -> None:
    current = folders(*[HIT] * 15, *[MISS] * 15)
    new = folders(*[HIT] * 15, *[replace(late(300.0), cause_right=False)] * 15)
    compared = compare(current, new)

    assert compared.shortfalls == ()
    assert compared.new.median_seconds == pytest.approx(155.0)
    assert compared.shared is not None
    assert compared.shared.median_seconds == (10.0, 10.0)


def test_more_hits_do_not_buy_a_false_accusation() -> None:
    current, new = folders(*[HIT] * 10, *[MISS] * 10), folders(*[HIT] * 20, false_count=1)

    assert reasons(current, new) == ["more_false_accusations"]


@pytest.mark.parametrize(
    ("faults", "machine_days", "wanted"),
    [(10, 1.0, []), (9, 1.0, ["too_few_recordings"]), (10, 0.99, ["too_few_recordings"])],
)
def test_too_few_to_tell(faults: int, machine_days: float, wanted: list[str]) -> None:
    scores = folders(*[HIT] * faults, machine_days=machine_days)

    assert reasons(scores, scores) == wanted
    assert [one.reason.value for one in compare(None, scores).shortfalls] == wanted


def test_worse_comes_before_too_few() -> None:
    assert reasons(folders(HIT), folders(MISS)) == ["f1_lower", "too_few_recordings"]


def test_without_faults_an_accusation_is_worse() -> None:
    assert reasons(folders(), folders(false_count=1))[:2] == ["f1_lower", "more_false_accusations"]


def test_all_figures_are_json() -> None:
    reported = compare(folders(*[HIT] * 3), folders(*[HIT] * 2, MISS)).to_object()

    assert reported["current"]["f1"] == 1.0
    assert reported["new"]["hits"] == 2
    assert reported["found_by_both"]["faults"] == 2
    assert set(reported["shortfalls"]) == {"f1_lower", "too_few_recordings"}

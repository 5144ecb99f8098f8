"""A host's answer survives its JSON form; a wrong field is named."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.schemas.errors import FieldError
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult, answer_of

FIGURES = st.none() | st.floats(0, allow_infinity=False, allow_nan=False)
RESULTS = st.builds(
    PreflightResult,
    name=st.sampled_from(CheckName),
    outcome=st.sampled_from(CheckOutcome),
    reason=st.sampled_from(CheckReason),
    figure=FIGURES,
    unit=st.text(max_size=5),
    peers_median=FIGURES,
    detail=st.text(max_size=5),
    digest=st.text(max_size=5),
    kind=st.text(max_size=5),
)
ANSWERS = st.builds(
    HostAnswer,
    host=st.text(min_size=1, max_size=5),
    checks=st.lists(RESULTS, max_size=3).map(tuple),
    seconds=st.just(2.0),
    gpu_count=st.integers(0, 16),
    known_gpu_count=st.integers(0, 16),
)


@settings(max_examples=30)
@given(ANSWERS)
def test_an_answer_survives_its_json_form(answer: HostAnswer) -> None:
    assert answer_of(json.loads(json.dumps(answer.to_json()))) == answer


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("name", "compute", "checks[0].name"),
        ("outcome", "good", "checks[0].outcome"),
        ("outcome", ["passed"], "checks[0].outcome"),
        ("reason", None, "checks[0].reason"),
        ("figure", -1, "checks[0].figure"),
        ("figure", math.nan, "checks[0].figure"),
        ("figure", True, "checks[0].figure"),
        ("unit", 3, "checks[0].unit"),
    ],
)
def test_a_wrong_field_of_a_result_is_named(field: str, value: object, named: str) -> None:
    result = PreflightResult(CheckName.COMPUTATION, CheckOutcome.PASSED, CheckReason.EXACT, 1.0, "x")
    whole: dict[str, Any] = HostAnswer("n0", (result,), 1.0).to_json()
    whole["checks"][0][field] = value

    with pytest.raises(FieldError, match="answer." + named.replace("[", r"\[").replace("]", r"\]")):
        answer_of(whole)


@pytest.mark.parametrize(
    "value", [None, [], {}, {"version": 2}, {"version": 1, "host": "a"}, {"version": 1, "checks": []}]
)
def test_what_is_no_answer_is_refused(value: object) -> None:
    with pytest.raises(FieldError, match="answer"):
        answer_of(value)

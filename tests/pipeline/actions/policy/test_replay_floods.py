"""Floods of one false signal in whatever shape, real faults among them, and lines with odd values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.actions.policy.samples import JOB, A, at, verdict
from tocsin.pipeline.actions.policy.controller_judge import ControllerJudge
from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.actions.policy.policy_file import load_policy
from tocsin.pipeline.actions.policy.replay import Decision, DecisionOutcome, replay
from tocsin.pipeline.actions.policy.verdict_lines import read_verdict_lines
from tocsin.schemas.actions import REMOVING_KINDS
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict, VerdictState

POLICY = load_policy()
DAY = 86_400.0
REAL = {
    "gpu_card_drop": A.EVICT,
    "ecc_error": A.EVICT,
    "machine_unreachable": A.EVICT,
    "thermal_throttle": A.DRAIN,
    "process_frozen": A.RESTART,
}
STATES = (VerdictState.OPEN, VerdictState.CONFIRMED, VerdictState.CANCELLED, VerdictState.RESOLVED)
shapes = st.fixed_dictionaries(
    {
        "cause": st.sampled_from(("nvlink_error", "pcie_downgrade", "unknown", "text {}")),
        "count": st.integers(5, 60),
        "step_seconds": st.sampled_from((0.0, 0.1, 7.0, 600.0, 3700.0, DAY, 9 * DAY)),
        "job_count": st.integers(1, 30),
        "host_count": st.sampled_from((1, 3, 500)),
        "kinds": st.lists(st.sampled_from((A.EVICT, A.DRAIN, A.REBOOT, A.RESET_GPU)), min_size=1, max_size=3),
        "states": st.lists(st.sampled_from(STATES), min_size=1, max_size=4),
        "has_leaf": st.booleans(),
        "reason": st.sampled_from(("silent_rank", "text {}")),
    }
)


def flood(shape: dict[str, Any]) -> list[Verdict]:
    """Return the updates of a flood."""
    common = Component(ComponentKind.LEAF, "leaf1") if shape["has_leaf"] else None
    found = []
    for number in range(shape["count"]):
        one = verdict(
            shape["cause"].format(number),
            (f"n{number % shape['host_count']}",),
            number * shape["step_seconds"],
            name=f"flood{number}",
            job=replace(JOB, job_id=f"j{number % shape['job_count']}"),
            action=shape["kinds"][number % len(shape["kinds"])],
            reason=shape["reason"].format(number),
            common=common,
        )
        for update, state in enumerate(shape["states"]):
            later_ns = at(240.0 * update) - at(0)
            found.append(
                replace(
                    one,
                    update=update,
                    state=state,
                    detected_ns=one.detected_ns + later_ns,
                    expires_ns=one.expires_ns + later_ns,
                )
            )
    return found


def decided(verdicts: list[Verdict]) -> list[Decision]:
    return list(replay(sorted(verdicts, key=lambda one: one.detected_ns), [], ControllerJudge(PolicyLadder(POLICY))))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(shapes)
def test_no_shape_of_a_flood_takes_more_than_two_machines_or_hides_real_faults(shape: dict[str, Any]) -> None:
    span = shape["count"] * shape["step_seconds"]
    jobs = {kind: replace(JOB, job_id="frozen" if kind is A.RESTART else "other") for kind in REAL.values()}
    real = [
        verdict(cause, (f"r{index}",), span * (index + 1) / 6, job=jobs[kind], action=kind, name=f"real{index}")
        for index, (cause, kind) in enumerate(REAL.items())
    ]
    found = decided([*flood(shape), *real])
    acts = [one for one in found if one.outcome is DecisionOutcome.ACT]
    taken = [one for one in acts if one.verdict_id.startswith("flood") and one.kind in REMOVING_KINDS]
    late = {
        one.verdict_id: one.at_ns - real[int(one.verdict_id[4:])].detected_ns
        for one in acts
        if "real" in one.verdict_id
    }

    assert len(taken) <= 2
    assert late.keys() == {one.verdict_id for one in real}
    assert max(late.values()) <= at(10.0) - at(0)


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63 - 1,
    2**70,
    1.5,
    1e300,
    "",
    "x" * 300,
    "\u2028",
    [],
    [None],
    [[]],
    {},
    {"kind": "host"},
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(verdict().to_line())), st.sampled_from(ODD), st.booleans())
def test_an_odd_value_is_decided_or_named_by_line_and_field(tmp_path: Path, key: str, value: Any, drop: bool) -> None:
    odd = {**verdict(name="odd").to_line(), key: value}
    if drop:
        del odd[key]
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps(verdict().to_line()) + "\n\n" + json.dumps(odd) + "\n")
    words = ""
    try:
        for one in decided(read_verdict_lines(path)):
            assert json.loads(json.dumps(one.to_line())) == one.to_line()
    except RecordingError as error:
        words = str(error)

    assert not words or (f"{path}:3" in words and (key in words or "line is no JSON" in words))


@pytest.mark.parametrize("cause", ["link down on port {}", "unknown"])
def test_texts_of_another_program_are_no_classes_of_their_own(cause: str) -> None:
    lines = [verdict(cause.format(n), (f"n{n}",), 60.0 * n, reason=f"{n} errors", name=f"v{n}") for n in range(40)]

    assert sum(one.outcome is DecisionOutcome.ACT for one in decided(lines)) == 2


@pytest.mark.parametrize(("span_seconds", "most_count"), [(3000.0, 12), (80_000.0, 40)])
def test_a_signal_under_many_listed_reasons_takes_no_more_than_the_fleet_may_lose(
    span_seconds: float, most_count: int
) -> None:
    reasons = [one.value for one in Reason if one is not Reason.CANARY][:50]
    lines = [
        verdict(
            "unknown",
            (f"n{number}",),
            span_seconds * number / 150,
            action=A.DRAIN,
            reason=reasons[number % 50],
            name=f"v{number}",
            job=replace(JOB, job_id=f"j{number}"),
        )
        for number in range(150)
    ]
    taken = [one for one in decided(lines) if one.outcome is DecisionOutcome.ACT and one.kind in REMOVING_KINDS]

    assert len(reasons) == 50
    assert len({one.target for one in taken}) == len(taken) == most_count

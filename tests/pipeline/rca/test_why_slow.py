"""Causes that name no machine beside other findings: what they take back, what they explain, and what they leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tocsin.pipeline.lab.testing.builders import at_second, build_finding
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.why_slow import add_causes, split_causes
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind

JOB = JobKey("test", "job")
AS_LONG_AS_PEERS = FakeProgress(self_time_excess={"n3": 0.0})
"""A job in which the ranks of n3 are measured to compute as long as their peers'."""
N3 = Component(ComponentKind.HOST, "n3")


def cause(metric: str = "data_imbalance", second: float = 100.0, ratio: float = 0.2, machine: float = 0.0) -> Anomaly:
    costs = {"stage_imbalance": 0.0, "data_imbalance": 0.0, "software_jitter": 0.0, metric: ratio, "machine": machine}
    detail: dict[str, Any] = {
        "costs": costs,
        "costs_ratio": ratio,
        "slowdown_ratio": 1.3,
        "long_stage": 3,
        "stage_ratio": 0.27,
        "window_seconds": 24.0,
        "first_end_ns": at_second(second + 24),
    }
    span = at_second(second), at_second(second + 60)
    return Anomaly(JOB, span[1], Component(ComponentKind.JOB, "job"), metric, *span, 2.0, "whatif", detail=detail)


def slow_machine(second: float = 110.0, **changes: Any) -> Finding:
    return replace(build_finding("n3", second=second), **changes)


def slow_job(second: float = 110.0, word: str = "unknown") -> Finding:
    return Finding(FaultKind.FAIL_SLOW, word, (), at_second(second), 0.8, Reason.JOB_WIDE_SLOWDOWN, ())


def words(findings: list[Finding]) -> list[tuple[str, str, list[str]]]:
    return [(one.fault.value, one.cause, list(one.accused)) for one in findings]


def test_without_an_answer_nothing_is_taken_back() -> None:
    assert add_causes([slow_machine()], [], [], AS_LONG_AS_PEERS) == [slow_machine()]


def test_a_machine_that_costs_nothing_is_not_accused_and_its_open_verdict_is_taken_back() -> None:
    [told] = add_causes([slow_machine()], [cause()], [], AS_LONG_AS_PEERS)

    assert words([told]) == [("degraded", "data_imbalance", [])]
    assert told.clears == (N3,)
    assert told.costs_ratio == 0.2


@pytest.mark.parametrize(
    ("finding", "progress", "found"),
    [
        (slow_machine(), FakeProgress(self_time_excess={"n3": 0.1}), cause()),
        (slow_machine(), FakeProgress(), cause()),
        (slow_machine(), replace(AS_LONG_AS_PEERS, median_step_ns=0), cause()),
        (slow_machine(certain=True), AS_LONG_AS_PEERS, cause()),
        (slow_machine(evidence=(Evidence("hardware", "ecc", 1.0, 0, 1),)), AS_LONG_AS_PEERS, cause()),
        (slow_machine(second=400.0), AS_LONG_AS_PEERS, cause()),
        (slow_machine(), AS_LONG_AS_PEERS, cause(machine=0.3)),
        (slow_machine(fault=FaultKind.HANG), AS_LONG_AS_PEERS, cause()),
    ],
    ids=["slow", "not measured", "no steps", "certain", "reported", "began later", "dearer machine", "hangs"],
)
def test_any_other_machine_stays_accused(finding: Finding, progress: FakeProgress, found: Anomaly) -> None:
    told = add_causes([finding], [found], [], progress)

    assert told[0] == finding
    assert words(told[1:]) == [("degraded", "data_imbalance", [])]
    assert told[1].clears == ()


@pytest.mark.parametrize("word", ["unknown", "workload_change"])
def test_a_slowdown_without_a_reason_gets_the_cause_that_began_with_it(word: str) -> None:
    [told] = add_causes([slow_job(word=word)], [cause(), cause("software_jitter", ratio=0.1)], [], AS_LONG_AS_PEERS)[:1]

    assert words([told]) == [("fail_slow", "data_imbalance", [])]
    assert "data_imbalance 20 %" in told.evidence[0].text


@pytest.mark.parametrize(
    ("finding", "found"),
    [
        (slow_job(400.0), cause()),
        (slow_job(), cause(machine=0.3)),
        (slow_job(word="shared_service"), cause()),
        (replace(slow_job(), ends=Reason.NEW_NORMAL), cause()),
    ],
    ids=["began later", "dearer machine", "known", "over"],
)
def test_what_it_does_not_explain_keeps_its_cause(finding: Finding, found: Anomaly) -> None:
    told = add_causes([finding], [found], [], AS_LONG_AS_PEERS)

    assert told[0] == finding
    assert words(told[1:]) == [("degraded", "data_imbalance", [])]


def test_two_causes_are_two_findings_with_their_shares() -> None:
    told = add_causes([], [cause(), cause("stage_imbalance", ratio=0.14)], [], AS_LONG_AS_PEERS)

    assert [(one.cause, one.costs_ratio, one.reason) for one in told] == [
        ("data_imbalance", 0.2, Reason.SLOWEST_RANK_CHANGES),
        ("stage_imbalance", 0.14, Reason.LONG_STAGE),
    ]
    assert "stage 3: 27 % longer than the mean stage" in told[1].evidence[0].text


def test_while_the_whole_job_is_slower_since_then_the_slowdown_will_tell_it() -> None:
    slower = replace(cause(), metric="step_seconds", detector="steps")
    assert add_causes([], [cause()], [slower], AS_LONG_AS_PEERS) == []
    for second in (125, 400):  # the first window that shows the cause ended before
        later = replace(slower, start_ns=at_second(second))
        assert words(add_causes([], [cause()], [later], AS_LONG_AS_PEERS)) == [("degraded", "data_imbalance", [])]


def test_rules_of_other_detectors_do_not_see_these_anomalies() -> None:
    other = replace(cause(), detector="steps")
    assert split_causes([cause(), other]) == ([cause()], [other])

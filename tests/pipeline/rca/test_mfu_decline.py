"""What explains a decline of the model FLOPs utilization, and what does not."""

from __future__ import annotations

import pytest

from tocsin.pipeline.detect.mfu.detector import DETECTOR
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.mfu_decline import MfuDecline
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, FaultKind


def decline() -> Anomaly:
    """A lasting decline by a seventh."""
    detail = {
        "is_accepted": False,
        "costs_ratio": 0.14,
        "level_flops_per_second": 4e14,
        "flops_per_second": 3.4e14,
        "peak_flops_per_second": 9.9e14,
    }
    job = JobKey("c", "j", 1)
    return Anomaly(
        job, 60, Component(ComponentKind.JOB, "j"), "mfu_ratio", start_ns=10, end_ns=60, score=1.0, detector=DETECTOR,
        detail=detail,
    )  # fmt: skip


def found(fault: FaultKind, cause: str) -> Finding:
    """Another finding of the same time."""
    return Finding(fault, cause, (), 0, 0.7, Reason.JOB_WIDE_SLOWDOWN, ())


@pytest.mark.parametrize(
    "cause", ["gradual_slowdown", "stage_imbalance", "data_imbalance", "software_jitter", "communication"]
)
def test_a_cause_of_slower_steps_explains_it(cause: str) -> None:
    findings = [found(FaultKind.DEGRADED, cause)]

    assert MfuDecline().add(findings, [decline()], []) == tuple(findings)


def test_a_slower_job_explains_it_whatever_the_cause() -> None:
    findings = [found(FaultKind.FAIL_SLOW, "placement")]

    assert MfuDecline().add(findings, [decline()], []) == tuple(findings)


def test_a_deviation_that_does_the_job_no_harm_does_not_explain_it() -> None:
    [other, told] = MfuDecline().add([found(FaultKind.DEGRADED, "network")], [decline()], [])

    assert other.cause == "network"
    assert (told.reason, told.cause, told.suspects) == (Reason.MFU_DECLINED, "unknown", ())


def test_an_explanation_that_comes_later_ends_it() -> None:
    operator = MfuDecline()
    operator.add([], [decline()], [])

    [_, ended] = operator.add([found(FaultKind.DEGRADED, "communication")], [decline()], [])

    assert ended.ends is Reason.MFU_EXPLAINED

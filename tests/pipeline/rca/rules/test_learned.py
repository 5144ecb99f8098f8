"""Anomalies of learned detectors: they support findings, and accuse alone only where they may and nobody else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.models.pace import Slowdown
from tocsin.pipeline.lab.testing.builders import at_second, build_deviation, build_finding, build_graph
from tocsin.pipeline.lab.testing.progress import AS_EVER, SLOWER, FakeProgress
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.learned import MAX_CONFIDENCE, LearnedEvidence, accused_alone, supported
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, FaultKind


def named(*hosts: str, detector: str = "minder", lasted: float = 100.0, score: float = 1.2) -> tuple[Anomaly, ...]:
    """What a detector says of these hosts, from second 0 on."""
    made = [build_deviation(host, (0, lasted), "gpu_power_watts", "low") for host in hosts]
    return tuple(replace(one, detector=detector, score=score, detail={}) for one in made)


def alone(
    anomalies: tuple[Anomaly, ...],
    *findings: Finding,
    slowdown: Slowdown | None = SLOWER,
    accusers: frozenset[str] = frozenset({"minder"}),
    step_ns: int = 0,
    stalled_since_ns: int = 0,
) -> tuple[list[str], str, Reason | None]:
    """Who is accused, of what, and why nobody is."""
    pace = FakeProgress(slowdown, median_step_ns=step_ns, stalled_since_ns=stalled_since_ns)
    about = pace, MachineRules()
    now_ns, learned = at_second(100), LearnedEvidence(anomalies, accusers)
    found, reason = accused_alone(build_graph(), now_ns, findings, learned, about)
    hosts = [suspect.component.name for one in found for suspect in one.suspects]
    return hosts, "".join(one.fault for one in found), reason


def test_each_detector_that_names_a_suspect_adds_its_evidence_and_confidence_once() -> None:
    said = (*named("n3"), *named("n3", score=1.3), *named("n3", detector="entropy"), *named("n5"))
    [found, other] = supported([build_finding("n3"), build_finding("n1")], LearnedEvidence(said))

    assert [(one.detector, one.score) for one in found.evidence] == [("entropy", 1.2), ("minder", 1.3)]
    assert found.confidence == build_finding("n3").confidence
    assert found.told_confidence == pytest.approx(0.9)
    assert other == build_finding("n1")


def test_confidence_has_an_end_and_never_falls() -> None:
    for before, after in ((0.97, MAX_CONFIDENCE), (0.99, 0.99)):
        [found] = supported([replace(build_finding("n3"), confidence=before)], LearnedEvidence(named("n3")))
        assert found.told_confidence == after


@pytest.mark.parametrize("change", ["only_holds", "is_harmless"])
def test_what_accuses_nobody_now_is_not_supported(change: str) -> None:
    finding = replace(build_finding("n3"), **{change: True})  # type: ignore[arg-type]
    assert supported([finding], LearnedEvidence(named("n3"))) == [finding]


def test_alone_it_accuses_only_where_it_may() -> None:
    assert alone(named("n3")) == (["n3"], FaultKind.FAIL_SLOW, None)
    assert alone(named("n3"), accusers=frozenset()) == ([], "", None)
    assert alone(named("n3"), accusers=frozenset({"entropy"})) == ([], "", None)
    assert alone(named("n3", score=0.9)) == ([], "", None)


def test_alone_it_is_not_heard_where_somebody_is_named() -> None:
    assert alone(named("n3"), build_finding("n1")) == ([], "", None)
    assert alone(named("n3"), replace(build_finding("n1"), fault=FaultKind.DEGRADED))[0] == ["n3"]
    assert alone(named("n3"), build_finding())[0] == ["n3"], "a slow job, and nobody is named"


def test_many_at_once_are_no_machines_fault() -> None:
    assert alone(named("n1", "n2")) == ([], "", Reason.AMBIGUOUS)


def test_what_harms_nobody_is_degraded_and_unknown_harm_must_last() -> None:
    assert alone(named("n3"), slowdown=AS_EVER)[1] == FaultKind.DEGRADED
    assert alone(named("n3", lasted=74), slowdown=None) == ([], "", Reason.NOT_CONTINUOUS)
    assert alone(named("n3", lasted=75), slowdown=None)[1] == FaultKind.FAIL_SLOW


def test_steps_that_reach_back_no_further_than_the_onset_show_no_harm() -> None:
    """What a job remembers of its steps ends; that does not make a harmless machine slow."""
    assert alone(named("n3"), slowdown=None, step_ns=10**9)[1] == FaultKind.DEGRADED
    assert alone(named("n3"), slowdown=None, step_ns=10**9, stalled_since_ns=at_second(20))[1] == FaultKind.HANG

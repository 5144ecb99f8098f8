"""Deviations that did no harm, and how long that is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.rca.rules.kit import told_of
from tocsin.pipeline.lab.testing.builders import at_second, build_deviation, build_graph
from tocsin.pipeline.lab.testing.progress import AS_EVER, NO_STEP, SLOWER, FakeProgress
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.machine import find_machine
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind


class TestForgiven:
    """A deviation that begins as the job goes over to work that nobody announced."""

    def _after(self, pace: FakeProgress, now_sigmas: float = 9.0) -> list[str]:
        cleared, rules = HarmlessDeviations(), MachineRules()
        begins = build_deviation("n3", (0, 10), "nvlink_bytes_per_second", "low")
        assert find_machine(
            build_graph(), at_second(12), [begins], FakeProgress(NO_STEP, work_goes_on=True), rules, cleared
        ) == (
            [],
            [Reason.NON_TRAINING_PHASE],
        )
        later = build_deviation("n3", (0, 90), "nvlink_bytes_per_second", "low", now_sigmas)
        found, _ = find_machine(build_graph(), at_second(92), [later], pace, rules, cleared)
        return [finding.fault.value for finding in found]

    def test_it_is_a_fault_where_it_stays_and_the_steps_are_slower_a_minute_later(self) -> None:
        assert self._after(FakeProgress(SLOWER)) == ["fail_slow"]

    def test_it_stays_forgiven_where_the_job_is_as_ever_or_it_is_gone_or_no_step_ended(self) -> None:
        assert self._after(FakeProgress(AS_EVER)) == ["degraded"]
        assert self._after(FakeProgress(SLOWER), now_sigmas=1.0) == ["degraded"]
        assert self._after(FakeProgress(NO_STEP)) == ["degraded"]

    def test_the_first_steps_after_a_pause_do_not_make_it_a_fault(self) -> None:
        """All machines come back from other work, one by one; by the third step they have."""
        assert self._after(FakeProgress(replace(SLOWER, step_count=2))) == ["degraded"]
        assert self._after(FakeProgress(replace(SLOWER, step_count=3))) == ["fail_slow"]
        assert self._after(FakeProgress(SLOWER, median_step_ns=0)) == ["fail_slow"]  # told by work, not by steps

    def test_what_was_seen_to_hurt_nobody_is_not_why_the_job_is_slower_later(self) -> None:
        cleared, rules = HarmlessDeviations(), MachineRules()
        lasting = build_deviation("n3", (0, 90), "nvlink_bytes_per_second", "low")
        find_machine(build_graph(), at_second(92), [lasting], FakeProgress(AS_EVER), rules, cleared)

        longer = build_deviation("n3", (0, 198), "nvlink_bytes_per_second", "low")
        found, _ = find_machine(build_graph(), at_second(200), [longer], FakeProgress(SLOWER), rules, cleared)
        assert [finding.fault.value for finding in found] == ["degraded"]


@pytest.mark.parametrize(("step_seconds", "fault"), [(1.0, "degraded"), (40.0, "fail_slow")])
def test_a_minute_of_long_steps_shows_no_absence_of_harm(step_seconds: float, fault: str) -> None:
    """The step that was under way as it began ends in time; the next one is the first that tells."""
    cleared, rules = HarmlessDeviations(), MachineRules()
    step_ns = round(step_seconds * NS_PER_SECOND)
    lasting = build_deviation("n3", (0, 90), "nvlink_bytes_per_second", "low")
    find_machine(build_graph(), at_second(92), [lasting], FakeProgress(AS_EVER, median_step_ns=step_ns), rules, cleared)

    longer = build_deviation("n3", (0, 108), "nvlink_bytes_per_second", "low")
    found, _ = find_machine(
        build_graph(), at_second(110), [longer], FakeProgress(SLOWER, median_step_ns=step_ns), rules, cleared
    )
    assert [finding.fault.value for finding in found] == [fault]


def test_whose_cpu_another_program_used_when_the_job_became_slower_is_not_why() -> None:
    """A minute later the storage of all is slow. What else differs may take that long until it hurts."""
    hurts = [("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER)]
    later, at_once = (
        FakeProgress(SLOWER, slower_since_ns=at_second(50)),
        FakeProgress(SLOWER, slower_since_ns=at_second(5)),
    )
    cleared = HarmlessDeviations()

    assert told_of(at_once, 70, HarmlessDeviations()) == hurts
    assert told_of(later, 40, cleared) == [("degraded", Reason.NO_IMPACT)]
    assert told_of(later, 120, cleared) == [("degraded", Reason.SLOWDOWN_FOLLOWS_ANOMALY)]
    assert told_of(at_once, 125, cleared) == [("degraded", Reason.NO_IMPACT)]
    assert told_of(later, 120, HarmlessDeviations(), "pfc_tx_packets_per_second") == hurts


def test_only_whom_it_was_said_of_is_cleared() -> None:
    """A daemon since a minute, and a link that fails as the steps become longer: the latter is why."""
    pace, cleared = FakeProgress(SLOWER, slower_since_ns=at_second(45)), HarmlessDeviations()
    daemon = build_deviation("n3", (0, 110), "cpu_util_ratio", "high")
    link = build_deviation("n5", (45, 110), "rdma_bytes_per_second", "low")
    first, _ = find_machine(build_graph(), at_second(110), [daemon, link], pace, MachineRules(), cleared)
    then, _ = find_machine(build_graph(), at_second(115), [daemon, link], pace, MachineRules(), cleared)

    assert [(f.suspects[0].component.name, f.reason) for f in first][:1] == [("n3", Reason.SLOWDOWN_FOLLOWS_ANOMALY)]
    assert [(f.suspects[0].component.name, f.fault) for f in then][:1] == [("n5", FaultKind.FAIL_SLOW)]


@pytest.mark.parametrize(
    ("metric", "own_seconds", "hurts_later"),
    [("cpu_util_ratio", 0.0, False), ("cpu_util_ratio", None, True), ("pfc_tx_packets_per_second", 0.0, True)],
    ids=["measured", "not-measured", "more-than-a-cpu"],
)
def test_whose_own_time_was_measured_beside_another_programs_cpu_is_not_why_when_rows_are_lost(
    metric: str, own_seconds: float | None, hurts_later: bool
) -> None:
    cleared = HarmlessDeviations()
    measured = {} if own_seconds is None else {"n3": own_seconds}
    first = told_of(FakeProgress(SLOWER, self_time_excess=measured), 60, cleared, metric)
    later = told_of(FakeProgress(SLOWER), 65, cleared, metric)

    assert [fault for fault, _ in (first[0], later[0])] == ["fail_slow" if hurts_later else "degraded"] * 2

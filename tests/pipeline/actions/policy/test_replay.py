"""Replays: floods of one class, real faults among them, and events that hide no decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.pipeline.actions.policy.samples import JOB, A, at, event, ladder, seen, verdict
from tocsin.pipeline.actions.config import HOUR_SECONDS, MACHINE_BUDGETS, BudgetLimit, BudgetScope
from tocsin.pipeline.actions.policy.controller_judge import ControllerJudge, replay_config
from tocsin.pipeline.actions.policy.limits import PolicyLimits
from tocsin.pipeline.actions.policy.replay import Decision, DecisionOutcome, replay
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState

HOUR = 3600


def decided(verdicts: Sequence[Verdict], events: Sequence[Event] = ()) -> list[Decision]:
    ordered = sorted(verdicts, key=lambda one: one.detected_ns)
    return list(replay(ordered, sorted(events, key=lambda one: one.ts_ns), ControllerJudge(ladder())))


def taken(decisions: Sequence[Decision]) -> list[str]:
    hard = {A.EVICT, A.DRAIN}
    return [
        one.target.name
        for one in decisions
        if one.outcome is DecisionOutcome.ACT and one.kind in hard and one.target is not None
    ]


def flood(spread_seconds: float, job_size: int) -> list[Verdict]:
    """214 machines of 288, one class: links that train after a boot."""
    return [
        verdict(
            "nvlink_error",
            hosts=(f"n{number:03}",),
            seconds=number * spread_seconds / 214,
            job=replace(JOB, job_id=f"j{number // job_size}"),
        )
        for number in range(214)
    ]


REAL = (
    ("gpu_card_drop", "n250"),
    ("ecc_error", "n251"),
    ("machine_unreachable", "n252"),
    ("thermal_throttle", "n253"),
    ("process_frozen", "n254"),
)


FROZEN = replace(JOB, job_id="frozen")
"""Job of the process that froze: no machine of it was taken before."""


@pytest.mark.parametrize("job_size", [8, 288])
@pytest.mark.parametrize("spread_seconds", [60.0, HOUR * 24.0, HOUR * 24 * 24.5])
def test_a_flood_takes_two_machines_and_real_faults_act_meanwhile(spread_seconds: float, job_size: int) -> None:
    job = replace(JOB, job_id="j0" if job_size == 288 else "other")
    real = [
        verdict(cause, hosts=(name,), seconds=spread_seconds * (index + 1) / 6, job=FROZEN if name == "n254" else job)
        for index, (cause, name) in enumerate(REAL)
    ]
    found = decided([*flood(spread_seconds, job_size), *real])
    flooded = [name for name in taken(found) if int(name[1:]) < 214]
    acted = {(one.verdict_id, one.kind.value) for one in found if one.outcome is DecisionOutcome.ACT}

    assert len(flooded) == 2
    assert {name for _, name in REAL[:4]} <= set(taken(found))
    assert acted >= {(real[0].verdict_id, "evict"), (real[3].verdict_id, "drain"), (real[4].verdict_id, "restart")}
    held = Counter(one.by for one in found if one.outcome in {DecisionOutcome.WAIT_APPROVAL, DecisionOutcome.REFUSED})
    assert set(held) <= {"class_unproven", "breaker_open"}
    assert sum(held.values()) >= 212


def test_one_verdict_on_many_machines_is_a_flood_too() -> None:
    one = verdict("nvlink_error", hosts=tuple(f"n{number:03}" for number in range(214)))

    assert 1 <= len(taken(decided([one]))) <= 2


def test_events_change_no_decision_about_verdicts() -> None:
    verdicts = [
        verdict(cause, hosts=(name,), seconds=60 * index, job=FROZEN if name == "n254" else JOB)
        for index, (cause, name) in enumerate(REAL)
    ]
    noise = [
        event(name, payload, second, on=on)
        for second in range(0, 400, 7)
        for on in ("n250", "n251", "n252", "n253", "n254", "other")
        for name, payload in (
            ("xid", {"code": 13}),
            ("xid", {"code": 999}),
            ("exit", {"code": 1, "stderr_tail": "TypeError"}),
            ("ib_port", {"port": "mlx5_0/1", "state": "down"}),
            ("of_others", {}),
        )
    ]
    plain = decided(verdicts)
    beside = [one for one in decided(verdicts, noise) if one.verdict_id]

    assert beside == plain
    assert sum(one.outcome is DecisionOutcome.ACT for one in plain) == len(REAL)


def test_renewals_are_decided_once() -> None:
    one = verdict()
    renewals = [replace(one, update=n, detected_ns=at(2 + 300 * n), expires_ns=at(602 + 300 * n)) for n in range(5)]

    assert [(each.outcome, each.kind) for each in decided(renewals)] == [(DecisionOutcome.ACT, A.EVICT)]


def test_an_action_waits_for_witnesses_and_is_done_with_them() -> None:
    alone = verdict(witnesses=())
    later = replace(verdict(), update=1, detected_ns=at(20))

    assert [(one.at_ns, one.outcome, one.by) for one in decided([alone, later])] == [
        (at(2), DecisionOutcome.REFUSED, "one_witness"),
        (at(20), DecisionOutcome.ACT, "machine_fault"),
    ]


def test_a_verdict_beyond_its_deadline_is_refused() -> None:
    stale = verdict(expires_ns=at(1))

    assert [(one.outcome, one.by) for one in decided([stale])] == [(DecisionOutcome.REFUSED, "verdict_stale")]


def test_what_the_policy_asks_approval_for_waits() -> None:
    from tocsin.schemas.verdicts import Component, ComponentKind

    leaf = Component(ComponentKind.LEAF, "leaf3")
    one = verdict("machine_unreachable", hosts=("n1", "n2", "n3"), common=leaf)

    assert [(each.outcome, each.target) for each in decided([one])] == [(DecisionOutcome.WAIT_APPROVAL, leaf)]


def test_closed_verdicts_and_the_canary_decide_nothing() -> None:
    assert decided([verdict(state=VerdictState.RESOLVED), verdict(reason="canary")]) == []


def test_a_crash_after_an_eviction_that_was_done_is_checked() -> None:
    crash = verdict("process_exit", hosts=("n9",), seconds=900, action=A.RESTART, evidence=(seen("exit"),))

    assert [(one.kind, one.by) for one in decided([verdict(), crash])] == [
        (A.EVICT, "machine_fault"),
        (A.PROBE, "dies_after_eviction"),
    ]


@pytest.mark.parametrize(
    ("job_id", "outcome", "by"), [("j1", "wait_approval", "job_runs"), ("idle", "act", "user_code")]
)
@pytest.mark.parametrize("has_later_record", [True, False])
def test_repeated_codes_are_decided_as_the_controller_decides_them(
    job_id: str, outcome: str, by: str, has_later_record: bool
) -> None:
    job = replace(JOB, job_id=job_id)
    events = [replace(event("xid", {"code": 13}, 600.0 * n), job=job) for n in range(3)]
    later = [verdict("ecc_error", hosts=("n7",), seconds=5000.0)] if has_later_record else []
    found = [one for one in decided(later, events) if one.kind is A.PROBE]

    assert [one.to_line() for one in found] == [
        {"at_ns": at(720), "verdict_id": "", "target": "n1", "kind": "probe", "outcome": outcome, "by": by}
    ]


def test_a_freeze_after_an_eviction_that_was_done_is_checked_and_the_job_stands() -> None:
    later = replace(JOB, attempt=1)
    frozen = verdict("process_frozen", ("n9",), 592, action=A.RESTART, fault=FaultKind.HANG, job=later)
    silent = verdict("machine_unreachable", hosts=("n8",), seconds=892, fault=FaultKind.HANG, job=later)

    assert [(one.kind, one.outcome, one.by) for one in decided([verdict(), frozen, silent])] == [
        (A.EVICT, DecisionOutcome.ACT, "machine_fault"),
        (A.PROBE, DecisionOutcome.WAIT_APPROVAL, "job_runs"),
        (A.EVICT, DecisionOutcome.ACT, "machine_fault"),
    ]


def test_repeated_codes_of_a_job_that_has_failed_are_checked_at_once() -> None:
    events = [event("xid", {"code": 13}, 600.0 * n) for n in range(2)]
    crash = verdict("process_exit", hosts=("n9",), seconds=700, action=A.RESTART, evidence=(seen("exit"),))
    found = decided([crash], events)

    assert [(one.kind, one.outcome, one.by) for one in found if one.kind is A.PROBE] == [
        (A.PROBE, DecisionOutcome.ACT, "user_code")
    ]


def test_repeated_codes_that_a_verdict_tells_of_are_decided_with_it() -> None:
    events = [event("xid", {"code": 13}, 600.0 * n) for n in range(2)]
    told = verdict("gpu_execution_error", seconds=600, evidence=(seen("xid", "n1: XID 13: x"), seen("steps")))
    found = [one for one in decided([told], events) if one.kind is A.PROBE]

    assert [(one.verdict_id, one.outcome) for one in found] == [(told.verdict_id, DecisionOutcome.ACT)]


def test_an_event_and_a_hang_without_culprit_act_on_nothing() -> None:
    hang = verdict("unknown", hosts=(), fault=FaultKind.HANG, action=A.NOTIFY)
    found = decided([hang], [event("xid", {"code": 79}, 0)])

    assert [(one.outcome, one.target) for one in found] == [(DecisionOutcome.NOTIFY, None)]
    assert found[0].to_line() == {
        "at_ns": at(2),
        "verdict_id": hang.verdict_id,
        "target": "j1",
        "kind": "notify",
        "outcome": "notify",
        "by": "hang_without_culprit",
    }


def test_a_replay_keeps_to_the_limits_of_the_policy() -> None:
    other = verdict("ecc_error", hosts=("n2",), seconds=60.0)
    one_an_hour = (BudgetLimit(BudgetScope.JOB, HOUR_SECONDS, 1), *MACHINE_BUDGETS[1:])

    def outcomes(limits: PolicyLimits) -> list[tuple[str, str]]:
        judge = ControllerJudge(ladder(), replay_config(limits))
        return [(one.outcome.value, one.by) for one in replay([verdict(), other], [], judge)]

    assert outcomes(PolicyLimits()) == [("act", "machine_fault")] * 2
    assert outcomes(PolicyLimits(machine_budgets=one_an_hour)) == [("act", "machine_fault"), ("refused", "budget_job")]
    assert outcomes(PolicyLimits(spare_count=0)) == [("refused", "no_spare")] * 2
    assert outcomes(PolicyLimits(spare_count=0, may_shrink=True)) == [("act", "machine_fault")] * 2


def test_a_restart_on_an_open_verdict_is_decided_when_its_wait_is_over() -> None:
    opened = verdict("process_exit", action=A.RESTART, state=VerdictState.OPEN)
    other = verdict("ecc_error", hosts=("n2",), seconds=60.0, job=replace(JOB, job_id="j2"))

    assert [(one.at_ns, one.kind, one.by) for one in decided([opened])] == [(at(8), A.RESTART, "process_is_named")]
    assert [(one.at_ns, one.kind) for one in decided([opened, other])] == [(at(8), A.RESTART), (at(62), A.EVICT)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"state": VerdictState.CONFIRMED}, [("restart", "act", "process_is_named")]),
        ({"cause": "ecc_error", "action": A.EVICT}, [("evict", "act", "machine_fault")]),
        ({"state": VerdictState.CANCELLED, "action": A.NONE}, []),
    ],
)
def test_a_later_line_decides_what_becomes_of_a_restart_that_waits(
    changes: dict[str, object], found: list[tuple[str, str, str]]
) -> None:
    opened = verdict("process_exit", action=A.RESTART, state=VerdictState.OPEN)
    later = replace(opened, update=1, detected_ns=at(4), **changes)  # type: ignore[arg-type]
    held = [] if found and found[0][0] == "restart" else [("restart", "refused", "verdict_open")]

    assert [(one.kind.value, one.outcome.value, one.by) for one in decided([opened, later])] == [*held, *found]

"""The ladder that ships: what each kind of failure leads to, alone and when it happens again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.policy.samples import JOB, A, asked, at, event, ladder, seen, verdict
from tocsin.pipeline.actions.ladder import Ladder
from tocsin.schemas.action_events import CheckResult
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, action_id_of
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    FaultKind,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)

STEPS = ["probe", "restart", "rollback", "replay"]


def kinds(one: list[tuple[str, str, str]]) -> list[str]:
    return [kind for kind, _, _ in one]


@pytest.mark.parametrize(
    ("cause", "fault", "wanted"),
    [
        ("gpu_card_drop", FaultKind.FAIL_STOP, ("evict", "n1", "machine_fault")),
        ("machine_unreachable", FaultKind.HANG, ("evict", "n1", "machine_fault")),
        ("pcie_downgrade", FaultKind.FAIL_SLOW, ("evict", "n1", "machine_fault")),
        ("thermal_throttle", FaultKind.FAIL_SLOW, ("drain", "n1", "slow_machine")),
        ("a_word_of_others", FaultKind.FAIL_SLOW, ("drain", "n1", "slow_machine")),
        ("process_frozen", FaultKind.HANG, ("restart", "n1", "process_is_named")),
        ("process_exit", FaultKind.FAIL_STOP, ("restart", "n1", "process_is_named")),
        ("nan_gradient", FaultKind.SILENT_CORRUPTION, ("rollback", "n1", "nan_is_named")),
        ("unknown", FaultKind.SILENT_CORRUPTION, ("probe", "n1", "silent_corruption")),
        ("loader_stall", FaultKind.FAIL_SLOW, ("notify", "n1", "program_stands")),
        ("data_imbalance", FaultKind.FAIL_SLOW, ("notify", "n1", "nobody_to_blame")),
        ("ecc_error", FaultKind.DEGRADED, ("notify", "n1", "no_harm_yet")),
    ],
)
def test_what_a_named_suspect_leads_to(cause: str, fault: FaultKind, wanted: tuple[str, str, str]) -> None:
    assert asked(ladder(), verdict(cause, fault=fault)) == [wanted]


def test_a_hang_without_culprit_only_tells_people() -> None:
    one = verdict("unknown", hosts=(), fault=FaultKind.HANG, action=A.NOTIFY)

    assert asked(ladder(), one) == [("notify", "", "hang_without_culprit")]


def test_a_crash_without_culprit_goes_one_step_further_each_time() -> None:
    it = ladder()
    crashes = [verdict("unknown", hosts=(), seconds=600 * n, action=A.NOTIFY) for n in range(6)]
    found = [asked(it, one)[0] for one in crashes]

    assert [kind for kind, _, _ in found] == [*STEPS, "notify", "notify"]
    assert {by for _, _, by in found[:4]} == {"crash_without_culprit"}
    assert found[4] == ("notify", "", "steps_exhausted")


def test_a_nan_without_culprit_does_the_same() -> None:
    one = verdict("nan_gradient", hosts=(), fault=FaultKind.SILENT_CORRUPTION, action=A.NOTIFY)

    assert asked(ladder(), one) == [("probe", "", "crash_without_culprit")]


def test_updates_of_one_crash_and_a_second_verdict_on_it_are_one_step() -> None:
    it = ladder()
    first = verdict("unknown", hosts=(), action=A.NOTIFY)
    again = replace(first, update=1, detected_ns=at(300))
    same = replace(first, verdict_id="other", onset_ns=at(1), detected_ns=at(4))

    assert [kinds(asked(it, one)) for one in (first, same, again)] == [["probe"]] * 3


def test_a_job_that_was_well_for_long_begins_at_the_first_step() -> None:
    it = ladder()
    asked(it, verdict("unknown", hosts=(), action=A.NOTIFY))
    late = verdict("unknown", hosts=(), seconds=21_700, action=A.NOTIFY)

    assert kinds(asked(it, late)) == ["probe"]


def test_another_job_has_steps_of_its_own() -> None:
    it = ladder()
    asked(it, verdict("unknown", hosts=(), action=A.NOTIFY))
    other = verdict("unknown", hosts=(), seconds=60, job=replace(JOB, job_id="j2"), action=A.NOTIFY)

    assert kinds(asked(it, other)) == ["probe"]


def test_it_is_a_ladder_as_the_controller_asks_for_one() -> None:
    it: Ladder = ladder()

    assert it.on_time(at(0)) == ()


def ended(one: Verdict, kind: ActionKind, state: ActionState, rule: str = "crash_without_culprit") -> Action:
    target = ActionTarget(one.job)
    name = action_id_of(one.verdict_id, kind, target)
    return Action(name, one.verdict_id, 0, kind, target, one.cause, rule, "", at(0), at(600), state, "", at(60))


def checked(one: Verdict, host_name: str, *, is_passed: bool) -> CheckResult:
    return CheckResult("default", host_name, "", "bandwidth", is_passed, True, at(50), one.verdict_id)


def test_checks_that_pass_lead_to_the_next_step_at_once() -> None:
    it = ladder()
    one = verdict("unknown", hosts=(), action=A.NOTIFY)
    asked(it, one)
    assert it.on_check(checked(one, "n7", is_passed=True), at(50)) == ()
    done = ended(one, A.PROBE, ActionState.DONE)
    found = it.on_action(done, at(60))

    assert [(each.kind, each.verdict.verdict_id) for each in found] == [(A.RESTART, one.verdict_id)]
    assert kinds(asked(it, replace(one, update=1, detected_ns=at(70)))) == ["restart"]
    assert it.on_action(done, at(80)) == (), "the same end twice is one step"


def test_a_machine_that_fails_the_checks_is_evicted_and_nothing_else_follows() -> None:
    it = ladder()
    one = verdict("unknown", hosts=(), action=A.NOTIFY)
    asked(it, one)
    found = it.on_check(checked(one, "n7", is_passed=False), at(50))

    assert [(each.kind, each.hosts, each.rule) for each in found] == [(A.EVICT, ("n7",), "checks_failed")]
    assert it.on_action(ended(one, A.PROBE, ActionState.DONE), at(60)) == ()


def test_a_check_that_nobody_asked_for_leads_to_nothing() -> None:
    assert ladder().on_check(checked(verdict(), "n7", is_passed=False), at(50)) == ()


@pytest.mark.parametrize("state", [ActionState.FAILED, ActionState.REFUSED])
def test_a_step_that_nobody_can_do_leads_to_the_next_one(state: ActionState) -> None:
    it = ladder()
    one = verdict("unknown", hosts=(), action=A.NOTIFY)
    asked(it, one)
    found = [it.on_action(ended(one, kind, state), at(60)) for kind in (A.PROBE, A.RESTART, A.ROLLBACK, A.REPLAY)]

    assert [[each.kind for each in some] for some in found] == [[A.RESTART], [A.ROLLBACK], [A.REPLAY], [A.NOTIFY]]


def test_a_step_that_was_done_waits_for_the_next_failure() -> None:
    it = ladder()
    one = verdict("unknown", hosts=(), action=A.NOTIFY)
    asked(it, one)
    it.on_action(ended(one, A.PROBE, ActionState.DONE), at(60))

    assert it.on_action(ended(one, A.RESTART, ActionState.DONE), at(90)) == ()
    assert kinds(asked(it, verdict("unknown", hosts=(), seconds=600, action=A.NOTIFY))) == ["rollback"]


def test_an_eviction_that_was_done_is_remembered() -> None:
    it = ladder()
    it.on_action(ended(verdict(), A.EVICT, ActionState.DONE, "machine_fault"), at(10))

    assert asked(it, verdict("process_exit", seconds=600, action=A.RESTART))[0][2] == "dies_after_eviction"


@pytest.mark.parametrize("hosts", [(), ("n4",)])
def test_a_crash_after_an_eviction_is_checked_first(hosts: tuple[str, ...]) -> None:
    it = ladder()
    it.note_eviction(JOB, at(10))
    cause = "process_exit" if hosts else "unknown"
    crash = verdict(cause, hosts=hosts, seconds=600, action=A.RESTART)
    found = [
        asked(it, replace(crash, verdict_id=f"v{n}", onset_ns=at(600 + 60 * n), detected_ns=at(602 + 60 * n)))
        for n in range(3)
    ]

    assert [kinds(one) for one in found] == [["probe"], ["rollback"], ["replay"]]
    assert found[0][0][2] == ("dies_after_eviction" if hosts else "fails_after_eviction")


@pytest.mark.parametrize(
    ("cause", "fault", "advice", "after_seconds", "wanted"),
    [
        ("process_frozen", FaultKind.HANG, A.RESTART, 600, ("probe", "", "dies_after_eviction")),
        ("process_frozen", FaultKind.HANG, A.RESTART, 3590, ("probe", "", "dies_after_eviction")),
        ("process_frozen", FaultKind.HANG, A.RESTART, 3700, ("restart", "n4", "process_is_named")),
        ("process_exit", FaultKind.HANG, A.RESTART, 600, ("probe", "", "dies_after_eviction")),
        ("machine_unreachable", FaultKind.HANG, A.RESTART, 600, ("probe", "", "silent_after_eviction")),
        ("machine_unreachable", FaultKind.HANG, A.RESTART, 3700, ("restart", "n4", "engine_proposes_milder")),
        ("machine_unreachable", FaultKind.HANG, A.EVICT, 600, ("evict", "n4", "machine_fault")),
        ("machine_unreachable", FaultKind.FAIL_STOP, A.EVICT, 600, ("evict", "n4", "machine_fault")),
        ("hdfs_error", FaultKind.FAIL_STOP, A.RESTART, 600, ("restart", "n4", "process_is_named")),
    ],
)
def test_what_stands_after_an_eviction_is_checked_first_unless_its_machine_is_proven(
    cause: str, fault: FaultKind, advice: ActionKind, after_seconds: float, wanted: tuple[str, str, str]
) -> None:
    it = ladder()
    it.note_eviction(JOB, at(0))

    assert asked(it, verdict(cause, hosts=("n4",), seconds=after_seconds, fault=fault, action=advice)) == [wanted]


def test_what_broke_before_the_eviction_is_no_failure_after_it() -> None:
    it = ladder()
    it.note_eviction(JOB, at(700))

    for cause in ("process_exit", "process_frozen"):
        assert kinds(asked(it, verdict(cause, hosts=("n4",), seconds=600, action=A.RESTART))) == ["restart"]


def test_a_machine_fault_after_an_eviction_is_one_all_the_same() -> None:
    it = ladder()
    it.note_eviction(JOB, at(10))

    assert kinds(asked(it, verdict(hosts=("n4",), seconds=600))) == ["evict"]


def test_one_network_alert_is_tolerated_and_two_in_five_minutes_are_not() -> None:
    it = ladder()
    first, second = verdict("nic_dropout"), verdict("nic_dropout", seconds=200)

    assert asked(it, first) == [("notify", "n1", "tolerated")]
    assert asked(it, verdict("nic_dropout", hosts=("n2",), seconds=100)) == [("notify", "n2", "tolerated")]
    assert asked(it, second) == [("evict", "n1", "network_alert")]


@pytest.mark.parametrize(("apart_seconds", "kind"), [(0, "notify"), (4, "notify"), (5, "evict")])
def test_two_verdicts_of_one_onset_are_one_alert(apart_seconds: int, kind: str) -> None:
    it = ladder()
    first = verdict("nic_dropout", seconds=100)
    again = replace(first, verdict_id="again", onset_ns=at(100 + apart_seconds), detected_ns=at(160))
    asked(it, first)

    assert kinds(asked(it, again)) == [kind]


def test_a_network_alert_of_a_machine_without_a_job_is_tolerated_once_too() -> None:
    it = ladder()
    idle = JobKey(JOB.cluster, "idle", 0)
    found = [
        asked(it, verdict("nic_dropout", seconds=seconds, job=idle, action=A.DRAIN, fault=FaultKind.DEGRADED))
        for seconds in (0, 100)
    ]
    other = [
        asked(it, verdict("nic_dropout", hosts=("n2",), seconds=seconds, job=idle, action=A.DRAIN, name=f"x{seconds}"))
        for seconds in (0, 100)
    ]

    assert kinds(found[0]) == kinds(found[1]) == ["notify"]
    assert other == [[("notify", "n2", "tolerated")], [("drain", "n2", "idle_network_alert")]]


def test_two_network_alerts_in_six_minutes_are_tolerated() -> None:
    it = ladder()
    asked(it, verdict("nic_dropout"))

    assert asked(it, verdict("nic_dropout", seconds=360)) == [("notify", "n1", "tolerated")]


def test_updates_and_events_of_one_alert_are_one() -> None:
    it = ladder()
    down = {"port": "mlx5_0/1", "state": "down"}
    one = verdict("nic_dropout", seconds=10)
    it.on_event(event("ib_port", down, 10))
    found = [asked(it, replace(one, update=n, detected_ns=at(12 + 60 * n))) for n in range(4)]
    it.on_event(event("ib_port", down, 195))

    assert found == [[("notify", "n1", "tolerated")]] * 4


def test_an_alert_that_stands_for_five_minutes_is_no_flap() -> None:
    it = ladder()
    one = verdict("nic_dropout")
    asked(it, one)

    assert asked(it, replace(one, update=1, detected_ns=at(301))) == [("evict", "n1", "network_alert")]


def test_an_alert_that_was_taken_back_does_not_count() -> None:
    it = ladder()
    one = verdict("nic_dropout")
    asked(it, one)
    assert asked(it, replace(one, update=1, state=VerdictState.CANCELLED, detected_ns=at(20))) == []

    assert asked(it, verdict("nic_dropout", seconds=100)) == [("notify", "n1", "tolerated")]


def test_a_port_that_went_down_before_makes_two_alerts() -> None:
    it = ladder()
    it.on_event(event("ib_port", {"port": "mlx5_0/1", "state": "down"}, 10))

    assert asked(it, verdict("nic_dropout", seconds=100)) == [("evict", "n1", "network_alert")]


@pytest.mark.parametrize("code", [13, 31, 94])
def test_codes_of_user_programs_take_no_machine_and_lead_to_diagnostics_when_they_repeat(code: int) -> None:
    it = ladder()
    evidence = (seen("xid", f"n1: XID {code}: whatever"), seen("steps", detector="waits"))
    found = [asked(it, verdict("ecc_error", seconds=60 * n, evidence=evidence)) for n in range(4)]

    assert found == [[("restart", "n1", "user_code")], *[[("probe", "n1", "user_code")]] * 3]


def test_an_unknown_code_never_acts() -> None:
    it = ladder()
    found = [asked(it, verdict("unknown", seconds=60 * n, evidence=(seen("xid", "XID 999"),))) for n in range(4)]

    assert found == [[("notify", "n1", "unknown_code")]] * 4


def test_a_code_of_the_hardware_counts_beside_a_harmless_one() -> None:
    evidence = (seen("xid", "XID 13: x (RESTART_APP)"), seen("xid", "XID 79: x (RESTART_BM)"))

    assert kinds(asked(ladder(), verdict(evidence=evidence))) == ["evict"]


def test_evidence_that_names_no_code_takes_it_from_the_hosts_events() -> None:
    it = ladder()
    it.on_event(event("xid", {"code": 13}, 0))

    assert kinds(asked(it, verdict("ecc_error", evidence=(seen("xid"),)))) == ["restart"]


def test_events_of_a_host_hide_no_verdict_on_something_else() -> None:
    it = ladder()
    for second in range(5):
        it.on_event(event("xid", {"code": 13}, second * 10))
    it.on_event(event("xid", {"code": 999}, 0))

    assert kinds(asked(it, verdict("machine_unreachable", evidence=(seen("connection", detector="silence"),)))) == [
        "evict"
    ]
    assert kinds(asked(it, verdict("gpu_card_drop", evidence=(seen("gpu_lost", "n1: fell off the bus"),)))) == ["evict"]


def test_a_failed_kernel_after_a_code_of_an_earlier_one_is_a_repetition() -> None:
    it = ladder()
    it.on_event(event("xid", {"code": 13}, -3600))
    it.on_event(event("xid", {"code": 13}, -1))
    one = verdict("cuda_execution_error", action=A.RESTART)

    assert kinds(asked(it, one)) == ["probe"]
    other = ladder()
    other.on_event(event("xid", {"code": 13}, -1))
    assert kinds(asked(other, one)) == ["restart"]


def test_a_renewal_of_the_first_failure_stays_what_it_was() -> None:
    it = ladder()
    first = verdict("cuda_execution_error", action=A.RESTART)
    asked(it, first)
    asked(it, verdict("cuda_execution_error", seconds=600, action=A.RESTART))

    assert kinds(asked(it, replace(first, update=1, detected_ns=at(700)))) == ["restart"]


def test_a_burst_of_one_code_is_one_and_a_repetition_asks_people_for_diagnostics() -> None:
    it = ladder()
    burst = [it.on_event(event("xid", {"code": 31}, second / 10)) for second in range(20)]
    later = it.on_event(event("xid", {"code": 31}, 600))

    assert burst == [()] * 20
    assert [(one.host, one.kind) for one in later] == [("n1", A.PROBE)]


def test_words_of_a_program_take_no_machine() -> None:
    words = (seen("exit", "rank 3 exited with code 1: CUDA error: uncorrectable ECC error", detector="stop"),)
    others = tuple(Witness(f"w{n}", WitnessKind.CONNECTION_LOST) for n in range(6))
    one = verdict("ecc_error", evidence=words, witnesses=others)

    assert asked(ladder(), one) == [("restart", "n1", "words_of_the_program")]


def test_words_beside_a_hardware_event_of_the_machine_do() -> None:
    words = (seen("exit", "rank 3: CUDA error: uncorrectable ECC error", detector="stop"),)

    assert kinds(asked(ladder(), verdict("ecc_error", evidence=words))) == ["evict"]


def test_an_error_of_the_users_code_goes_back_and_takes_no_machine() -> None:
    words = (seen("exit", "rank 3 on n1 exited with code 1: TypeError: 'NoneType' object", detector="stop"),)

    assert asked(ladder(), verdict("process_exit", evidence=words, action=A.RESTART)) == [
        ("rollback", "", "user_error")
    ]


@pytest.mark.parametrize(
    "text", ["an XID", "XID 123456", "XID 4294967295", "Xid(13)", "XIDs 13, 31", "XID error 31", "DCGM error 999"]
)
def test_an_xid_whose_code_cannot_be_read_takes_nothing(text: str) -> None:
    evidence = (seen("xid", f"n1: {text}"), seen("steps", detector="waits"))

    assert asked(ladder(), verdict("gpu_execution_error", evidence=evidence)) == [("notify", "n1", "unknown_code")]


def test_an_xid_whose_code_the_host_s_event_tells_is_that_code() -> None:
    it = ladder()
    it.on_event(event("xid", {"code": 79}, 8))
    evidence = (seen("xid", "n1: an XID"), seen("steps", detector="waits"))

    assert kinds(asked(it, verdict("gpu_card_drop", seconds=10, evidence=evidence))) == ["evict"]


def test_an_exception_after_a_code_of_the_hardware_is_no_user_error() -> None:
    evidence = (seen("exit", "rank 3: KeyError: 'x'", detector="stop"), seen("xid", "n1: XID 79: off (RESTART_BM)"))
    found = asked(ladder(), verdict("unknown", evidence=evidence, action=A.EVICT))

    assert [one for one in found if one[2] == "user_error"] == []


@pytest.mark.parametrize(("advice", "kind"), [(A.NONE, "notify"), (A.NOTIFY, "notify"), (A.PROBE, "probe")])
def test_no_check_of_a_machine_where_the_engine_proposes_none(advice: A, kind: str) -> None:
    unsure = verdict(fault=FaultKind.FAIL_SLOW, confidence=0.5, action=advice)

    assert kinds(asked(ladder(), unsure)) == [kind]


@pytest.mark.parametrize("advice", [A.NOTIFY, A.PROBE, A.RESTART])
def test_no_rule_is_harder_than_the_engine(advice: object) -> None:
    assert asked(ladder(), verdict(action=advice)) == [(str(advice), "n1", "engine_proposes_milder")]


def test_a_job_that_goes_on_is_not_restarted_for_one_frozen_process() -> None:
    assert kinds(asked(ladder(), verdict("process_frozen", action=A.NOTIFY))) == ["notify"]


def test_hosts_behind_one_leaf_are_one_action_with_approval() -> None:
    leaf = Component(ComponentKind.LEAF, "leaf3")
    names = [f"n{number:02}" for number in range(32)]
    (found,) = ladder().on_verdict(verdict("machine_unreachable", hosts=names, common=leaf), at(2))

    assert (found.kind, found.component, found.needs_approval) == (A.EVICT, leaf, True)
    assert found.hosts == tuple(names)


@pytest.mark.parametrize("cause", [name for name, one in CAUSES.items() if one.blames != "machine"])
@pytest.mark.parametrize("fault", list(FaultKind))
def test_no_machine_is_taken_for_what_no_machine_did(cause: str, fault: FaultKind) -> None:
    it = ladder()
    it.note_eviction(JOB, at(0))
    for second in (0, 60, 120, 180, 240):
        for kind in kinds(asked(it, verdict(cause, seconds=second, fault=fault))):
            assert kind not in {"evict", "drain"}


def test_closed_verdicts_ask_for_nothing() -> None:
    for state in (VerdictState.CANCELLED, VerdictState.EXPIRED, VerdictState.RESOLVED):
        assert asked(ladder(), verdict(state=state)) == []


def test_a_restored_ladder_goes_on_where_the_other_was() -> None:
    it, other = ladder(), ladder()
    asked(it, verdict("nic_dropout"))
    asked(it, verdict("unknown", hosts=(), action=A.NOTIFY))
    it.note_eviction(JOB, at(10))
    it.on_event(event("xid", {"code": 13}, 590, on="n3"))
    other.restore(it.snapshot())
    assert other.snapshot() == it.snapshot()
    after = [
        verdict("nic_dropout", seconds=100),
        verdict("unknown", hosts=(), seconds=600, action=A.NOTIFY),
        verdict("process_exit", hosts=("n4",), seconds=601, action=A.RESTART),
        verdict("ecc_error", hosts=("n3",), seconds=602, evidence=(seen("xid"),)),
    ]

    one = verdict("unknown", hosts=(), action=A.NOTIFY)
    done = ended(one, A.PROBE, ActionState.DONE)
    assert other.on_action(done, at(20)) == it.on_action(done, at(20)) != ()
    assert [asked(other, one) for one in after] == [asked(it, one) for one in after]
    assert kinds(asked(other, after[0])) == ["evict"]


def test_a_damaged_snapshot_is_refused() -> None:
    right = ladder().snapshot()["ladder"]
    for data in (b"{}", b"no", b'{"version": 2}', right.replace(b'"alerts":{}', b'"alerts":[1]')):
        with pytest.raises(SnapshotError):
            ladder().restore({"ladder": data})
    with pytest.raises(SnapshotError):
        ladder().restore({})

"""The router: each incident is told once a route, its end too, and a flood is one notice."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.flood import FloodLimits
from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import Route, RouteConfig, RouteMatch
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState, Witness, WitnessKind

ROUTES = RouteConfig({}, (Route("all", "r"),))


def _router(routes: RouteConfig = ROUTES, **hooks: object) -> AlertRouter:
    return AlertRouter(RouterConfig(routes), **hooks)  # type: ignore[arg-type]  # hooks by name


def _kinds(notices: list[Notice]) -> list[str]:
    return [one.kind.value for one in notices]


def _again(router: AlertRouter) -> AlertRouter:
    """The router of the next process."""
    fresh = _router()
    fresh.load_state(json.loads(json.dumps(router.to_state())))
    return fresh


def test_renewals_are_no_news_and_changes_are() -> None:
    router = _router()

    assert _kinds(router.on_verdicts([verdict()], at(0))) == ["firing"]
    assert router.on_verdicts([verdict(second=30, update=1, confidence=0.99)], at(30)) == []
    (changed,) = router.on_verdicts([verdict(second=60, update=2, cause="nic_dropout")], at(60))
    assert changed.kind is NoticeKind.CHANGED
    assert changed.told_ns == at(0)


def test_each_end_has_its_word_and_the_untold_end_in_silence() -> None:
    words = {
        VerdictState.CANCELLED: NoticeKind.TAKEN_BACK,
        VerdictState.EXPIRED: NoticeKind.LAPSED,
        VerdictState.RESOLVED: NoticeKind.RESOLVED,
    }
    for state, kind in words.items():
        router = _router()
        assert router.on_verdicts([verdict(state=state, update=1)], at(1)) == []
        router.on_verdicts([verdict(second=2)], at(2))
        (end,) = router.on_verdicts([verdict(second=9, state=state, update=1)], at(9))
        assert end.kind is kind
        assert router.standing_count == 0


def test_a_new_normal_says_that_the_job_is_not_faster() -> None:
    router = _router()
    router.on_verdicts([verdict()], at(0))
    (end,) = router.on_verdicts([verdict(second=9, state=VerdictState.RESOLVED, update=1, reason="new_normal")], at(9))

    assert end.kind is NoticeKind.RESOLVED
    assert end.note.startswith("Slower pace accepted")


def test_a_remark_is_told_where_its_incident_was_told_and_nowhere_else() -> None:
    router = _router()
    assert router.remark(verdict().verdict_id, "its eviction waits for a person", at(0)) == []
    assert router.untold == {"remark": 1}
    router.on_verdicts([verdict()], at(1))
    (told,) = router.remark(verdict().verdict_id, "its eviction waits for a person", at(2))
    assert (told.kind, told.note, told.told_ns) == (NoticeKind.CHANGED, "its eviction waits for a person", at(1))
    router.on_verdicts([verdict(second=9, state=VerdictState.RESOLVED, update=1)], at(9))
    assert router.remark(verdict().verdict_id, "too late", at(10)) == []


def test_lines_that_come_again_tell_nothing_and_a_reopened_one_fires_again() -> None:
    router = _router()
    lines = [verdict(), verdict(second=9, state=VerdictState.RESOLVED, update=1)]
    router.on_verdicts(lines, at(9))
    fresh = _again(router)

    assert fresh.on_verdicts([verdict(), verdict(update=5), *lines], at(20)) == []
    assert _kinds(fresh.on_verdicts([verdict(second=30, update=2)], at(30))) == ["firing"]


def test_a_restart_with_higher_numbers_tells_nothing_twice() -> None:
    router = _router()
    router.on_verdicts([verdict(second=5)], at(5))
    fresh = _again(router)

    assert fresh.on_verdicts([verdict(second=3, update=7), verdict(second=5, update=8)], at(30)) == []
    assert fresh.standing_count == 1


def test_silenced_and_covered_ones_are_not_told_but_told_ones_end() -> None:
    why: list[str] = [""]
    router = _router(silence=lambda _one, _now: why[0], covered_by=lambda one: "f" if one.update == 3 else "")
    router.on_verdicts([verdict(1)], at(0))
    why[0] = "maintenance"

    assert router.on_verdicts([verdict(2)], at(1)) == []
    assert _kinds(router.on_verdicts([verdict(1, 3, state=VerdictState.RESOLVED)], at(3))) == ["resolved"]
    why[0] = ""
    assert router.on_verdicts([verdict(2, 4, update=3)], at(4)) == []
    assert _kinds(router.on_verdicts([verdict(2, 5, update=4)], at(5))) == ["firing"]
    assert router.untold == {"maintenance": 1, "covered_by_fleet": 1}


def test_an_open_one_is_told_where_asked_and_confirmed_as_a_change() -> None:
    match = RouteMatch(state=("open", "confirmed"))
    router = _router(RouteConfig({}, (Route("early", "r", match),)))

    assert _kinds(router.on_verdicts([verdict(state=VerdictState.OPEN)], at(0))) == ["firing"]
    assert _kinds(router.on_verdicts([verdict(second=5, update=1)], at(5))) == ["changed"]


SLOW: dict[str, Any] = {"fault": FaultKind.FAIL_SLOW}
LONG_LIFE = at(86_400)


def test_five_real_incidents_among_4_000_are_told_at_once_and_the_flood_is_one_summary() -> None:
    rng = random.Random(7)
    flood = [verdict(number, host=f"n{number}", **SLOW) for number in range(4_000)]
    real = [verdict(90_000 + number, host=f"r{number}") for number in range(5)]
    lines = [*flood, *real]
    rng.shuffle(lines)
    router = _router()
    told = router.on_verdicts(lines, at(0))

    assert {one.verdict_id for one in real} <= {one.verdict.verdict_id for one in told}
    assert len(told) == 5 + 5 + 1
    (summary,) = [one for one in told if one.note]
    assert "3995 more incidents" in summary.note
    for update in range(1, 5):  # renewals of all of them
        more = [verdict(n, update, host=f"n{n}", update=update, **SLOW) for n in range(4_000)]
        assert router.on_verdicts(more, at(update * 15)) == []
    fresh = _again(router)
    ends = [verdict(n, 200, state=VerdictState.RESOLVED, update=9, **SLOW) for n in range(4_000)]
    told = fresh.on_verdicts(ends, at(200))
    assert _kinds(told) == ["resolved"] * 6
    assert told[-1].verdict.verdict_id == summary.verdict.verdict_id
    assert fresh.standing_count == 5


def test_a_flood_that_trickles_for_an_hour_updates_its_summary_seldom() -> None:
    router = _router()
    count = 0
    for number in range(720):
        one = verdict(number, number * 5, expires_ns=LONG_LIFE)
        count += len(router.on_verdicts([one], at(number * 5)))

    assert count < 5 + 1 + 11


def test_after_a_calm_window_later_incidents_are_told_one_by_one_while_some_of_the_flood_stand() -> None:
    router = _router()
    router.on_verdicts([verdict(n, host=f"n{n}", expires_ns=LONG_LIFE) for n in range(30)], at(0))
    (summary,) = router.to_state()["summaries"].values()
    assert router.on_verdicts([verdict(40, 1790, expires_ns=LONG_LIFE)], at(1790)) == []
    assert router.on_verdicts([], at(3580)) == []
    renewed = [verdict(n, 3590, update=1, host=f"n{n}", expires_ns=LONG_LIFE) for n in range(30)]
    assert router.on_verdicts(renewed, at(3590)) == []
    fresh = _again(router)
    (told,) = fresh.on_verdicts([verdict(50, 3600, expires_ns=LONG_LIFE)], at(3600))
    assert (told.kind, told.note) == (NoticeKind.FIRING, "")
    assert fresh.on_verdicts([one for one in renewed if one.update], at(3601)) == []
    late = fresh.on_verdicts([verdict(100 + n, 3605, expires_ns=LONG_LIFE) for n in range(20)], at(3605))
    assert len(late) == 5
    assert sum(bool(one.note) for one in late) == 1
    ends = [verdict(n, 3700, update=2, state=VerdictState.RESOLVED) for n in (*range(30), 40)]
    told_ends = fresh.on_verdicts(ends, at(3700))
    assert len(told_ends) == 6
    (end,) = [one for one in told_ends if one.note]
    assert end.kind is NoticeKind.RESOLVED
    assert end.verdict.verdict_id == decode_verdict(summary["verdict"].encode()).verdict_id
    assert len(fresh.to_state()["summaries"]) == 1


def test_a_flood_of_flapping_incidents_does_not_become_calm() -> None:
    router = _router()
    told = router.on_verdicts([verdict(n, host=f"n{n}", expires_ns=LONG_LIFE) for n in range(10)], at(0))
    for row in range(360):
        told += router.on_verdicts([verdict(1000 + row, row * 100, expires_ns=LONG_LIFE)], at(row * 100))
    assert sum(not one.note for one in told) == 5


def test_a_trickle_after_a_flood_is_told_one_by_one_though_it_never_pauses_for_long() -> None:
    router = _router()
    told = router.on_verdicts([verdict(n, host=f"n{n}", expires_ns=LONG_LIFE) for n in range(8)], at(0))
    assert [one.note for one in told].count("") == 5
    named: list[str] = []
    for row in range(1, 60):  # one host each 25 minutes for a day, and one of the flood stands all the time
        new = [verdict(100 + row, row * 1500, host=f"x{row}", expires_ns=LONG_LIFE)]
        named += [one.verdict.suspects[0].component.name for one in router.on_verdicts(new, at(row * 1500))]
        router.on_verdicts([], at(row * 1500 + 750))
        router = _again(router)

    assert named == [f"x{row}" for row in range(2, 60)]


def test_floods_of_many_signatures_leave_no_more_than_a_bounded_number_of_pages() -> None:
    router = _router(RouteConfig({}, (Route("all", "r"),), limits=FloodLimits(5, 20, 600.0)))
    lines = [verdict(n, metric=f"m{n % 500}", host=f"n{n}") for n in range(5_000)]
    firing = [one for one in router.on_verdicts(lines, at(0)) if one.kind is NoticeKind.FIRING]

    assert sum(not one.note for one in firing) == 60
    assert len(firing) <= 60 + 60 + 1


def test_two_witnesses_make_it_another_signature_and_lift_it_out_of_a_summary() -> None:
    router = _router()
    router.on_verdicts([verdict(n, host=f"n{n}") for n in range(100)], at(0))
    seen = (Witness("n1", WitnessKind.PEERS_WAIT), Witness("n2", WitnessKind.PEERS_WAIT))
    (told,) = router.on_verdicts([verdict(50, 5, update=1, host="n50", witnesses=seen)], at(5))

    assert told.kind is NoticeKind.FIRING
    assert told.verdict.verdict_id == verdict(50).verdict_id
    (end,) = router.on_verdicts([verdict(50, 9, update=2, state=VerdictState.CANCELLED)], at(9))
    assert end.kind is NoticeKind.TAKEN_BACK


def test_complaint_1_false_fatal_verdicts_of_63_machines_are_few_pages_and_are_taken_back() -> None:
    """214 of 288 nodes raised a fatal signal within weeks, 63 on one day, none real."""
    router = _router()
    fields: dict[str, Any] = {"cause": "nvlink_error", "expires_ns": LONG_LIFE}
    told = [
        one for n in range(63) for one in router.on_verdicts([verdict(n, n * 60, host=f"n{n}", **fields)], at(n * 60))
    ]
    firing = {one.verdict.verdict_id for one in told if one.kind is NoticeKind.FIRING}
    assert len(firing) == 6, "five machines, and one summary"
    ends = [verdict(n, 3800, update=1, state=VerdictState.CANCELLED, **fields) for n in range(63)]
    back = router.on_verdicts(ends, at(3800))

    assert {one.verdict.verdict_id for one in back} == firing
    assert {one.kind for one in back} == {NoticeKind.TAKEN_BACK}


def test_complaint_3_a_flapping_verdict_does_not_page_again_and_again() -> None:
    """Throttle flaps at ten a second."""
    router = _router()
    told: list[Notice] = []
    for number in range(6000):
        state = VerdictState.RESOLVED if number % 2 else VerdictState.CONFIRMED
        told += router.on_verdicts([verdict(1, number / 10, state=state, update=number)], at(number / 10))

    assert _kinds(told).count("firing") == 6, "its budget, then one summary"


def test_flapping_suspects_are_told_twice_a_minute_and_what_becomes_a_page_at_once() -> None:
    router = _router()
    soft = {"action": ActionKind.NOTIFY, **SLOW}
    told: list[Notice] = router.on_verdicts([verdict(**soft)], at(0))
    for second in range(1, 60):
        told += router.on_verdicts([verdict(1, second, update=second, host=f"n{second % 2}", **soft)], at(second))
    assert _kinds(told) == ["firing", "changed", "changed"]
    (worse,) = router.on_verdicts([verdict(1, 60, update=60, host="n1", **SLOW)], at(60))

    assert worse.severity is AlertSeverity.PAGE


def test_a_name_that_was_not_told_yet_is_told_at_once_up_to_six_times_a_minute() -> None:
    router, told = _router(), []
    for second in range(30):
        told += router.on_verdicts([verdict(1, second, update=second, host=f"n{second}")], at(second))

    assert [one.verdict.suspects[0].component.name for one in told] == [f"n{n}" for n in range(7)]


def test_a_change_that_waited_is_told_when_its_minute_has_passed_without_another_line() -> None:
    router = _router()
    for second, cause in ((0, "unknown"), (5, "gpu_card_drop"), (6, "nic_dropout"), (7, "unknown")):
        router.on_verdicts([verdict(1, second, update=second, cause=cause)], at(second))
    assert router.on_verdicts([], at(64)) == []
    (changed,) = router.on_verdicts([], at(65))

    assert (changed.kind, changed.verdict.update) == (NoticeKind.CHANGED, 7)
    assert router.on_verdicts([], at(200)) == []


def test_a_change_that_waited_is_not_told_after_the_end_or_under_planned_work() -> None:
    for is_ended in (True, False):
        works: list[str] = []
        router = _router(silence=lambda _verdict, _now_ns, works=works: "planned" if works else "")
        for second, cause in ((0, "unknown"), (5, "gpu_card_drop"), (6, "nic_dropout"), (7, "unknown")):
            router.on_verdicts([verdict(1, second, update=second, cause=cause)], at(second))
        if is_ended:
            router.on_verdicts([verdict(1, 8, update=8, state=VerdictState.RESOLVED)], at(8))
        else:
            works.append("n1")

        assert router.on_verdicts([], at(65)) == []


def test_a_lasting_long_stage_is_information_once_an_attempt() -> None:
    router = _router()
    stage: dict[str, Any] = {"cause": "stage_imbalance", "suspects": (), "action": ActionKind.NOTIFY, **SLOW}
    (told,) = router.on_verdicts([verdict(1, **stage)], at(0))
    assert told.severity is AlertSeverity.INFORMATION
    router.on_verdicts([verdict(1, 50, update=1, state=VerdictState.RESOLVED, **stage)], at(50))
    again = _again(router)

    assert again.on_verdicts([verdict(2, 60, **stage)], at(60)) == []
    assert again.on_verdicts([verdict(1, 61, update=2, **stage)], at(61)) == []
    assert again.untold == {"once_an_attempt": 2}
    assert _kinds(again.on_verdicts([verdict(3, 90, job=JobKey("c", "j", 1), **stage)], at(90))) == ["firing"]


def test_old_verdicts_are_not_told_at_a_cold_start_and_one_that_stands_is() -> None:
    router = _router()
    assert router.on_verdicts([verdict(n, n) for n in range(50)], at(7200)) == []
    assert router.untold == {"stale": 50}
    assert _kinds(router.on_verdicts([verdict(7, 7201, update=1, reason="still_true")], at(7201))) == ["firing"]


def test_degraded_and_canaries_are_not_told_unless_a_route_asks_for_degraded() -> None:
    line = verdict(fault=FaultKind.DEGRADED)
    assert _router().on_verdicts([line, verdict(2, reason="canary")], at(0)) == []
    asking = _router(RouteConfig({}, (Route("d", "r", RouteMatch(fault=("degraded",))),)))
    (told,) = asking.on_verdicts([line, verdict(2, reason="canary")], at(0))

    assert told.severity is AlertSeverity.INFORMATION


def fleet_line(number: int, cause: str, update: int = 0, **fields: Any) -> Verdict:
    shape = {"job": JobKey("c", "fleet"), "suspects": (), "action": ActionKind.NOTIFY, "fault": FaultKind.DEGRADED}
    return verdict(number, float(update), update=update, cause=cause, **{**shape, **fields})


@pytest.mark.parametrize("cause", ["common_component", "common_driver", "monitoring_fault"])
def test_a_fleet_incident_is_one_page_and_its_end_is_told(cause: str) -> None:
    router = _router()
    (told,) = router.on_verdicts([fleet_line(1, cause)], at(0))
    assert (told.kind, told.severity) == (NoticeKind.FIRING, AlertSeverity.PAGE)
    assert router.on_verdicts([fleet_line(1, cause, 1, reason="still_true")], at(1)) == []
    assert _kinds(router.on_verdicts([fleet_line(1, cause, 2, state=VerdictState.RESOLVED)], at(2))) == ["resolved"]


def test_planned_work_of_many_hosts_and_other_degraded_incidents_are_no_page() -> None:
    lines = [fleet_line(1, "planned_work"), fleet_line(2, "common_driver", job=JobKey("c", "j"))]
    assert _router().on_verdicts(lines, at(0)) == []


def test_a_route_that_asks_for_open_ones_also_tells_what_is_confirmed_at_once() -> None:
    router = _router(RouteConfig({}, (Route("early", "r", RouteMatch(state=("open",))),)))

    assert _kinds(router.on_verdicts([verdict()], at(0))) == ["firing"]


def test_the_state_is_bounded() -> None:
    router = AlertRouter(RouterConfig(ROUTES, max_standing_count=100, max_ended_count=50))
    router.on_verdicts([verdict(number) for number in range(1_000)], at(0))
    assert router.standing_count == 100
    router.on_verdicts([verdict(n, 9, state=VerdictState.RESOLVED, update=1) for n in range(1_000)], at(9))
    assert router.standing_count == 0
    assert len(router.to_state()["ended"]) == 50
    router.on_verdicts([], at(100))
    assert router.to_state()["summaries"] == {}


def test_a_told_incident_under_planned_work_neither_lapses_nor_is_told_again() -> None:
    why = [""]
    router = _router(silence=lambda _one, _now: why[0])
    told = router.on_verdicts([verdict()], at(0))
    why[0] = "under_maintenance"
    for update in range(1, 50):
        told += router.on_verdicts([verdict(1, update * 300, update=update)], at(update * 300))
    why[0] = ""
    told += router.on_verdicts([verdict(1, 15_000, update=50, cause="nic_dropout")], at(15_000))

    assert _kinds(told) == ["firing", "changed"]


def test_a_told_incident_without_a_line_lapses_but_not_right_after_a_start() -> None:
    router = _router()
    router.on_verdicts([verdict(), verdict(2)], at(0))  # they expire after 600 s
    fresh = _again(router)
    assert fresh.on_verdicts([], at(50_000)) == []
    assert fresh.on_verdicts([verdict(2, 50_001, update=1)], at(50_001)) == []
    assert fresh.on_verdicts([], at(53_000)) == []
    (end,) = fresh.on_verdicts([], at(53_601))

    assert end.kind is NoticeKind.LAPSED
    assert end.verdict.verdict_id == verdict().verdict_id
    assert end.verdict.state is VerdictState.EXPIRED
    assert fresh.standing_count == 1


def test_after_a_long_gap_it_lapses_and_is_told_once_more_with_the_next_line() -> None:
    router = _router()
    router.on_verdicts([verdict(expires_ns=at(600))], at(0))
    assert router.on_verdicts([], at(600 + 3599)) == []
    assert _kinds(router.on_verdicts([], at(600 + 3600))) == ["lapsed"]

    assert _kinds(router.on_verdicts([verdict(second=5000, update=9, expires_ns=at(5600))], at(5000))) == ["firing"]

"""The router: each incident is told once a route, its end too, and a flood is one notice."""

from __future__ import annotations

import json
import random

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.notice import Notice, NoticeKind
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import Route, RouteConfig, RouteMatch
from tocsin.schemas.verdicts import FaultKind, VerdictState

ROUTES = RouteConfig({}, (Route("all", "r"),))


def _router(routes: RouteConfig = ROUTES, **hooks: object) -> AlertRouter:
    return AlertRouter(RouterConfig(routes), **hooks)  # type: ignore[arg-type]  # hooks by name


def _kinds(notices: list[Notice]) -> list[str]:
    return [one.kind.value for one in notices]


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
    assert "normal" in end.note


def test_lines_that_come_again_tell_nothing_and_a_reopened_one_fires_again() -> None:
    router = _router()
    lines = [verdict(), verdict(second=9, state=VerdictState.RESOLVED, update=1)]
    router.on_verdicts(lines, at(9))
    fresh = _router()
    fresh.load_state(json.loads(json.dumps(router.to_state())))

    assert fresh.on_verdicts([verdict(), verdict(update=5), *lines], at(20)) == []
    assert _kinds(fresh.on_verdicts([verdict(second=30, update=2)], at(30))) == ["firing"]


def test_a_restart_with_higher_numbers_tells_nothing_twice() -> None:
    router = _router()
    router.on_verdicts([verdict(second=5)], at(5))
    fresh = _router()
    fresh.load_state(json.loads(json.dumps(router.to_state())))

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


def test_five_real_incidents_among_20_000_are_told_at_once_and_the_flood_is_one_summary() -> None:
    rng = random.Random(7)
    flood = [verdict(number, fault=FaultKind.FAIL_SLOW, host=f"n{number}") for number in range(20_000)]
    real = [verdict(90_000 + number, host=f"r{number}") for number in range(5)]
    lines = [*flood, *real]
    rng.shuffle(lines)
    router = _router()
    told = router.on_verdicts(lines, at(0))

    assert {one.verdict_id for one in real} <= {one.verdict.verdict_id for one in told}
    assert len(told) == 5 + 10 + 1
    (summary,) = [one for one in told if one.note]
    assert "19990 more incidents" in summary.note
    for update in range(1, 5):  # renewals of all of them
        more = [verdict(n, update, fault=FaultKind.FAIL_SLOW, host=f"n{n}", update=update) for n in range(20_000)]
        assert router.on_verdicts(more, at(update * 15)) == []
    fresh = _router()
    fresh.load_state(json.loads(json.dumps(router.to_state())))
    ends = [verdict(n, 200, fault=FaultKind.FAIL_SLOW, state=VerdictState.RESOLVED, update=9) for n in range(20_000)]
    told = fresh.on_verdicts(ends, at(200))
    assert _kinds(told) == ["resolved"] * 11
    assert told[-1].verdict.verdict_id == summary.verdict.verdict_id
    assert fresh.standing_count == 5


def test_a_flood_that_trickles_updates_its_summary_seldom() -> None:
    router = _router()
    count = sum(len(router.on_verdicts([verdict(number, number / 100)], at(number / 100))) for number in range(2_000))

    assert count < 10 + 1 + 12


def test_the_state_is_bounded() -> None:
    router = AlertRouter(RouterConfig(ROUTES, max_standing_count=100, max_ended_count=50))
    router.on_verdicts([verdict(number) for number in range(1_000)], at(0))
    assert router.standing_count == 100
    router.on_verdicts([verdict(n, 9, state=VerdictState.RESOLVED, update=1) for n in range(1_000)], at(9))
    assert router.standing_count == 0
    assert len(router.to_state()["ended"]) == 50
    router.on_verdicts([], at(10))
    assert router.to_state()["summaries"] == {}


def test_a_told_incident_without_a_line_lapses_but_not_right_after_a_start() -> None:
    router = _router()
    router.on_verdicts([verdict(), verdict(2)], at(0))  # they expire after 600 s
    fresh = _router()
    fresh.load_state(json.loads(json.dumps(router.to_state())))
    assert fresh.on_verdicts([], at(50_000)) == []
    assert fresh.on_verdicts([verdict(2, 50_001, update=1)], at(50_001)) == []
    assert fresh.on_verdicts([], at(53_000)) == []
    (end,) = fresh.on_verdicts([], at(53_601))

    assert end.kind is NoticeKind.LAPSED
    assert end.verdict.verdict_id == verdict().verdict_id
    assert end.verdict.state is VerdictState.EXPIRED
    assert fresh.standing_count == 1

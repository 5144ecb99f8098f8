"""Rows of hard actions wait after an engine's start and after changes; the verdict's own line never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model_announcements import announced
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook, proposed_before
from tocsin.pipeline.lab.testing import JobShape, MetricsScenario, Scenario
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobKey, RankPlace, Topology
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState
from tocsin.schemas.wire.codec import encode

T0 = 1_800_000_000 * NS_PER_SECOND
EVICT = replace(verdict("a"), action=ActionKind.EVICT)


def at(seconds: float) -> int:
    return T0 + int(seconds * NS_PER_SECOND)


class Book:
    """A book of proposals, and what was changed."""

    def __init__(self, started_ns: int = T0) -> None:
        self.changed: list[tuple[int, Reason]] = []
        self.asked: list[tuple[JobKey, str]] = []
        self.book = ProposalBook(HoldRules(), started_ns, self._changes)

    def _changes(self, job: JobKey, host: str) -> list[tuple[int, Reason]]:
        self.asked.append((job, host))
        return self.changed

    def take(self, one: Verdict, seconds: float, update: int = 0) -> list[tuple[str, str]]:
        taken = list(self.book.take(replace(one, detected_ns=at(seconds), update=update)))
        return said(taken)

    def due(self, seconds: float) -> list[tuple[str, str]]:
        return said(self.book.due(at(seconds)))


def said(changes: list[ActionChange]) -> list[tuple[str, str]]:
    return [(change.state.value, change.detail) for change in changes]


def test_a_hard_action_waits_until_the_engine_is_five_minutes_old() -> None:
    book = Book()

    assert book.take(EVICT, 20) == [("waiting", "engine_young")]
    assert book.due(299) == []
    assert book.due(300) == [("proposed", "")]
    assert book.due(301) == []


@pytest.mark.parametrize("kind", [ActionKind.RESTART, ActionKind.ROLLBACK, ActionKind.PROBE, ActionKind.NOTIFY])
def test_what_takes_no_machine_away_does_not_wait(kind: ActionKind) -> None:
    assert Book().take(replace(EVICT, action=kind), 1) == [("proposed", "")]


@pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REPLAY])
def test_all_hard_ones_wait(kind: ActionKind) -> None:
    assert Book().take(replace(EVICT, action=kind), 1) == [("waiting", "engine_young")]


def test_a_start_from_a_snapshot_is_no_start() -> None:
    assert Book(started_ns=0).take(EVICT, 1) == [("proposed", "")]


@pytest.mark.parametrize("reason", [Reason.PLACES_CHANGED, Reason.MODEL_CHANGED])
def test_a_change_makes_it_wait_for_ten_minutes(reason: Reason) -> None:
    book = Book()
    book.changed = [(at(1000), reason)]

    assert book.take(EVICT, 1100) == [("waiting", reason.value)]
    assert book.due(1599) == []
    assert book.due(1600) == [("proposed", "")]
    assert book.asked[0][1] == EVICT.suspects[0].component.name


def test_a_change_while_it_waits_makes_it_wait_on() -> None:
    book = Book()
    book.take(EVICT, 20)
    book.changed = [(at(200), Reason.PLACES_CHANGED)]

    assert book.due(300) == [("waiting", "places_changed")]
    assert book.due(800) == [("proposed", "")]


def test_a_verdict_that_closes_takes_back_what_waits() -> None:
    book = Book()
    book.take(EVICT, 20)
    closed = replace(EVICT, action=ActionKind.NONE, state=VerdictState.RESOLVED, reason="recovered")

    assert book.take(closed, 40, update=1) == [("cancelled", "recovered")]
    assert book.due(1000) == []


def test_a_later_update_replaces_what_waits() -> None:
    book = Book()
    book.take(EVICT, 20)
    later = replace(EVICT, action=ActionKind.RESTART)

    assert book.take(later, 40, update=1) == [("cancelled", later.reason), ("proposed", "")]
    assert book.due(1000) == []


def test_a_renewal_of_what_waits_is_the_same_row() -> None:
    book = Book()
    first = list(book.book.take(replace(EVICT, detected_ns=at(20))))
    renewed = list(book.book.take(replace(EVICT, detected_ns=at(40), update=1)))
    at_last = book.book.due(at(300))

    assert [change.state.value for change in (*first, *renewed, *at_last)] == ["waiting", "waiting", "proposed"]
    assert {change.action.verdict_update for change in (*first, *renewed, *at_last)} == {0}


def test_what_waits_is_found_in_the_rows() -> None:
    """Whoever closes the verdict by its rows takes it back, too."""
    changes = list(Book().book.take(replace(EVICT, detected_ns=at(1))))

    assert [action.kind for action in proposed_before(replace(EVICT, update=1, detected_ns=at(2)), changes)] == [
        ActionKind.EVICT
    ]


def test_the_engine_tells_when_a_rank_was_moved_and_keeps_it_in_its_snapshot() -> None:
    """Which claims of a rank are granted is the gate's matter (``test_speakers``): here one was."""
    scenario = Scenario(JobShape())
    scenario.run(12)
    engine, job = scenario.engine, scenario.job.job
    moved_ns = scenario.job.now_ns
    pipeline = engine.pipeline(job)
    assert pipeline is not None
    pipeline.graph.take([Topology(job, "m00", moved_ns, (RankPlace(3, "m00", world_size=8),))])

    assert engine.changes_of(job, "n01") == []
    assert engine.changes_of(job, "m00") == engine.changes_of(job, "n03") == [(moved_ns, Reason.PLACES_CHANGED)]
    again = Scenario(JobShape()).engine
    again.restore(engine.snapshot())
    assert again.changes_of(job, "n03") == engine.changes_of(job, "n03")


def test_a_model_that_came_later_is_a_change_and_one_that_was_there_is_none() -> None:
    start_ns = JobShape().start_ns
    for at_second, effective_second, changed in ((1, 20, True), (-100, -60, False)):
        scenario = MetricsScenario(JobShape(rank_count=4))
        scenario.engine.take(encode(announced(start_ns, at_second, effective_second)))
        scenario.run(30)
        reported = scenario.engine.changes_of(scenario.job.job, "n01")
        assert reported == ([(start_ns + effective_second * NS_PER_SECOND, Reason.MODEL_CHANGED)] if changed else [])
        again = MetricsScenario(JobShape(rank_count=4))
        again.engine.restore(scenario.engine.snapshot())
        for _ in range(15):
            for record in scenario.job.second():
                again.engine.take(encode(record))
            again.engine.tick(scenario.job.now_ns)
        assert again.engine.changes_of(scenario.job.job, "n01") == reported

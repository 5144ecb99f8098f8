"""Planned work covers the verdicts that concern nothing else; what stands outside is an incident as any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.stores.samples import JOB, verdict
from tocsin.pipeline.incidents.maintenance import KEPT_AFTER_END_NS, MaintenanceBook, MaintenanceConfig
from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Suspect, Verdict, VerdictState

T0 = 1_800_000_000 * NS_PER_SECOND
LEAVES = {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2"}
HOST, LEAF, JOB_KIND, RANK = ComponentKind.HOST, ComponentKind.LEAF, ComponentKind.JOB, ComponentKind.RANK
UNDER = ("waiting", "under_maintenance")
PROPOSED = ("proposed", "")


def at(seconds: float) -> int:
    return T0 + int(seconds * NS_PER_SECOND)


def work(kind: ComponentKind, name: str, begin: float = 0, end: float = 100, said: float = 0) -> Maintenance:
    target = Component(kind, name)
    return Maintenance(f"{kind}-{name}", JOB.cluster, target, at(begin), at(end), "new optics", "uid:7", at(said))


def book_of(*works: Maintenance) -> MaintenanceBook:
    book = MaintenanceBook(lambda _job, host: LEAVES.get(host, ""))
    for one in works:
        assert book.take(one)
    return book


def accusing(*names: str, kind: ComponentKind = HOST, common: Component | None = None) -> Verdict:
    suspects = tuple(Suspect(Component(kind, name)) for name in names)
    return replace(verdict("v"), suspects=suspects, common=common)


N1, LEAF1, OWN_JOB = work(HOST, "n1"), work(LEAF, "leaf1"), work(JOB_KIND, JOB.job_id)
BEHIND_LEAF1 = Component(LEAF, "leaf1")


@pytest.mark.parametrize(
    ("works", "told", "is_covered"),
    [
        ([], accusing("n1"), False),
        ([N1], accusing("n1"), True),
        ([N1], accusing("n2"), False),
        ([N1], accusing("n1", "n3"), False),
        ([N1, work(HOST, "n3")], accusing("n1", "n3"), True),
        ([N1], accusing(), False),
        ([N1], accusing("n1", kind=RANK), False),
        ([LEAF1], accusing("n1", "n2"), True),
        ([LEAF1], accusing("n1", "n3"), False),
        ([LEAF1, work(HOST, "n3")], accusing("n1", "n3"), True),
        ([LEAF1], accusing("unheard"), False),
        ([LEAF1], accusing("a", "b", common=BEHIND_LEAF1), True),
        ([LEAF1], accusing(common=BEHIND_LEAF1), True),
        ([OWN_JOB], accusing(), True),
        ([OWN_JOB], accusing("n1", "n3"), True),
        ([OWN_JOB], replace(accusing("n1"), job=JobKey(JOB.cluster, "another", 0)), False),
        ([OWN_JOB], replace(accusing("n1"), job=replace(JOB, attempt=9)), True),
        ([N1], replace(accusing("n1"), job=replace(JOB, cluster="c2")), False),
    ],
)
def test_work_covers_a_verdict_that_concerns_nothing_else(
    works: list[Maintenance], told: Verdict, *, is_covered: bool
) -> None:
    book = book_of(*works)
    assert (book.covering(told, at(1)) is not None) == is_covered
    assert book.silence(told, at(1)) == ("under_maintenance" if is_covered else "")


def test_a_verdict_is_covered_only_while_the_work_goes_on() -> None:
    book = book_of(work(HOST, "n1", 10, 20))
    assert [book.silence(accusing("n1"), at(second)) != "" for second in (9, 10, 19, 20)] == [False, True, True, False]
    assert [book.active(at(second)) for second in (9, 10)] == [frozenset(), {"host-n1"}]


def test_of_several_works_together_the_one_that_ends_first_is_named() -> None:
    short = work(HOST, "n3", end=50)
    assert book_of(N1, short).covering(accusing("n1", "n3"), at(1)) == short


def test_the_latest_word_on_a_work_counts_in_whatever_order_they_come() -> None:
    book = book_of(N1)
    ended = book.ended(N1, "uid:8", at(5))
    for works in ([N1, ended], [ended, N1]):
        book = book_of(*works)
        assert book.silence(accusing("n1"), at(4)) != ""
        assert book.silence(accusing("n1"), at(5)) == ""
        assert [one.actor for one in book.works()] == ["uid:8"]


def test_work_that_is_ended_before_it_begins_never_does() -> None:
    later = work(HOST, "n1", 50, 100)
    book = book_of(later, MaintenanceBook(lambda _job, _host: "").ended(later, "uid:8", at(5)))
    assert not any(book.active(at(second)) for second in (0, 4, 5, 60))


def test_the_book_is_bounded_and_forgets_what_ended_long_ago() -> None:
    book = MaintenanceBook(lambda _job, _host: "", MaintenanceConfig(kept_count=2))
    assert book.take(N1)
    assert book.take(LEAF1)
    assert not book.take(OWN_JOB)
    assert book.take(book.ended(N1, "uid:8", at(5))), "a word on a known work is taken even where the book is full"
    late = 105 + KEPT_AFTER_END_NS / NS_PER_SECOND
    assert book.take(work(JOB_KIND, "another", late, late + 10, said=late))
    assert [one.target.name for one in book.works()] == ["another"]


def test_a_restored_book_covers_the_same() -> None:
    book, other = book_of(N1, LEAF1), book_of(OWN_JOB)
    other.restore(book.snapshot())
    assert other.works() == book.works()
    assert other.snapshot() == book.snapshot()
    assert other.silence(accusing("n2"), at(1)) != ""


# --- what verdicts propose meanwhile ------------------------------------------------------------------


class Proposing:
    """A book of proposals under planned work; the engine is old, and nothing changed."""

    def __init__(self, *works: Maintenance) -> None:
        self.works = book_of(*works)
        self.book = self.make()

    def make(self) -> ProposalBook:
        book = ProposalBook(HoldRules(), 0, lambda _job, _host: [])
        book.maintenance = self.works
        return book

    def restart(self) -> None:
        state, self.book = self.book.to_state(), self.make()
        self.book.load_state(state)

    def take(self, told: Verdict, second: float, update: int = 0) -> list[tuple[str, str]]:
        changes = self.book.take(replace(told, detected_ns=at(second), update=update))
        return [(one.state.value, one.detail) for one in changes]

    def due(self, second: float) -> list[tuple[str, str]]:
        return [(one.state.value, one.detail) for one in self.book.due(at(second))]


@pytest.mark.parametrize("action", [ActionKind.EVICT, ActionKind.RESTART, ActionKind.PROBE, ActionKind.NOTIFY])
def test_under_work_every_action_waits_and_is_proposed_when_the_work_ends(action: ActionKind) -> None:
    proposing = Proposing(N1)
    assert proposing.take(replace(accusing("n1"), action=action), 5) == [UNDER]
    assert proposing.due(99) == []
    assert proposing.due(100) == [PROPOSED]
    assert proposing.due(101) == []


def test_work_that_is_ended_early_lets_the_actions_go_at_once() -> None:
    proposing = Proposing(N1)
    proposing.take(accusing("n1"), 5)
    assert proposing.due(6) == []
    proposing.works.take(proposing.works.ended(N1, "uid:8", at(7)))
    assert proposing.due(7) == [PROPOSED]


def test_actions_that_were_proposed_wait_from_the_begin_of_the_work() -> None:
    proposing = Proposing(work(HOST, "n1", 50, 100))
    assert proposing.take(accusing("n1", "n3"), 5) == [PROPOSED] * 2
    proposing.book.clear()
    assert proposing.take(accusing("n1"), 5) == [PROPOSED]
    assert proposing.due(50) == [UNDER]
    assert proposing.take(accusing("n1"), 60, 1) == [UNDER]
    assert proposing.due(100) == [PROPOSED]


def test_a_verdict_that_ends_under_work_is_cancelled_and_never_proposed() -> None:
    proposing = Proposing(N1)
    proposing.take(accusing("n1"), 5)
    over = replace(accusing("n1"), action=ActionKind.NONE, state=VerdictState.RESOLVED, reason="recovered")
    assert [state for state, _ in proposing.take(over, 20, 1)] == ["cancelled"]
    assert proposing.due(100) == []


@pytest.mark.parametrize("told", [accusing("n1"), accusing("a", "b", common=BEHIND_LEAF1)])
def test_after_a_restart_the_actions_still_wait_for_the_end_of_the_work(told: Verdict) -> None:
    proposing = Proposing(N1, LEAF1)
    count = len(told.suspects)
    assert proposing.take(told, 5) == [UNDER] * count
    proposing.restart()
    assert proposing.due(6) == []
    proposing.restart()
    assert proposing.due(100) == [PROPOSED] * count


def test_what_is_taken_back_is_later_than_what_a_tick_changed() -> None:
    """The database keeps the later of two changes, and slices are judged some seconds after their end."""
    proposing = Proposing(N1)
    proposing.take(accusing("n1"), 90)
    [due] = proposing.book.due(at(100))
    over = replace(accusing("n1"), action=ActionKind.NONE, state=VerdictState.RESOLVED, detected_ns=at(98), update=1)
    [cancelled] = proposing.book.take(over)
    assert cancelled.changed_ns > due.changed_ns

"""Lines that planned work keeps from people come back once, when it ends and they still stand."""

from __future__ import annotations

from dataclasses import replace

from tests.pipeline.stores.samples import JOB, ONSET, SECOND, verdict
from tocsin.pipeline.incidents.held_lines import HeldLines, parts_of
from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict, VerdictState

LINE = verdict("a")
NOW = LINE.detected_ns
END = NOW + 60 * SECOND


def ground(max_count: int = 10) -> tuple[MaintenanceBook, HeldLines]:
    book = MaintenanceBook(lambda _job, _host: "")
    host = Component(ComponentKind.HOST, "n3")
    book.take(Maintenance("w", JOB.cluster, host, ONSET, END, "r", "uid:1", ONSET))
    return book, HeldLines(book, max_count)


def ids(lines: list[Verdict]) -> list[tuple[str, int]]:
    return [(one.verdict_id, one.update) for one in lines]


def test_the_newest_line_comes_back_once_when_the_work_ends() -> None:
    _, held = ground()
    assert held.on_verdicts([LINE], NOW) == []
    assert held.on_verdicts([replace(LINE, update=1)], NOW + SECOND) == []
    assert ids(held.on_verdicts([], END)) == [("a", 1)]
    assert held.on_verdicts([], END + SECOND) == []


def test_work_that_a_person_ends_gives_back_at_once() -> None:
    book, held = ground()
    held.on_verdicts([LINE], NOW)
    [work] = book.works()
    book.take(book.ended(work, "uid:1", NOW + SECOND))
    assert ids(held.on_verdicts([], NOW + SECOND)) == [("a", 0)]


def test_what_is_over_or_lapsed_or_told_by_a_new_line_does_not_come_back() -> None:
    _, held = ground()
    over, lapsed, told = LINE, replace(LINE, verdict_id="b", expires_ns=END), replace(LINE, verdict_id="c")
    held.on_verdicts([over, lapsed, told], NOW)
    held.on_verdicts([replace(over, update=1, state=VerdictState.RESOLVED)], NOW + SECOND)
    assert held.on_verdicts([replace(told, update=1)], END) == []


def test_other_hosts_are_not_held_and_of_too_many_the_oldest_is_forgotten() -> None:
    _, held = ground(max_count=2)
    held.on_verdicts([replace(LINE, verdict_id=name) for name in "abc"], NOW)
    held.on_verdicts([replace(LINE, verdict_id="other", suspects=())], NOW)
    assert ids(held.on_verdicts([], END)) == [("b", 0), ("c", 0)]


def test_a_restart_holds_on() -> None:
    book, held = ground()
    held.on_verdicts([LINE], NOW)
    again = HeldLines(book)
    again.load_state(held.to_state())
    assert again.on_verdicts([], NOW + SECOND) == []
    assert again.on_verdicts([], END) == [LINE]
    assert parts_of([["a", "c"]]) == {"told": [["a", "c"]], "held": []}

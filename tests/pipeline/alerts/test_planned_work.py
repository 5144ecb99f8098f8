"""Planned work as a sender of alerts knows it: by target, by hosts behind a switch, and whole again from its parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.alerts.planned_work import PlannedWork
from tocsin.pipeline.incidents.maintenance import KEPT_AFTER_END_NS
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.operator_requests import NoteTaken
from tocsin.schemas.verdicts import Component, ComponentKind

LINE = verdict("v1", expires_ns=ONSET + 3600 * SECOND)


def work(target: Component, seconds: int, *hosts: str, said: int = 0, name: str = "00ff") -> NoteTaken:
    end_ns = ONSET + seconds * SECOND
    return NoteTaken(Maintenance(name, "c1", target, ONSET, end_ns, "new cable", "operator:ann", said), hosts)


def of(kind: str, name: str) -> Component:
    return Component(ComponentKind(kind), name)


@pytest.mark.parametrize(
    ("taken", "is_silent"),
    [
        (work(of("host", "n3"), 60), True),
        (work(of("host", "n4"), 60), False),
        (work(of("job", "job-1"), 60), True),
        (work(of("leaf", "leaf1"), 60, "n3", "n4"), True),
        (work(of("leaf", "leaf1"), 60, "n4"), False),
        (NoteTaken(Feedback("c1", "v1", False, "", "operator:ann", ONSET)), False),
    ],
)
def test_which_verdicts_nobody_is_told_of(taken: NoteTaken, is_silent: bool) -> None:
    planned = PlannedWork()
    planned.take(taken, ONSET)
    assert bool(planned.silence(LINE, ONSET + SECOND)) is is_silent
    assert planned.silence(LINE, ONSET + 61 * SECOND) == ""


@given(st.permutations([work(of("host", "n3"), 3600, said=1), work(of("host", "n3"), 10, said=2)]))
def test_of_two_words_on_one_work_the_later_counts_in_whatever_order(words: list[NoteTaken]) -> None:
    planned = PlannedWork()
    for one in words:
        planned.take(one, ONSET)
    assert planned.silence(LINE, ONSET + 20 * SECOND) == ""


def test_a_host_that_left_the_switch_is_told_of_again() -> None:
    planned = PlannedWork()
    planned.take(work(of("leaf", "leaf1"), 60, "n3"), ONSET)
    planned.take(work(of("leaf", "leaf1"), 60, "n4"), ONSET)
    assert planned.silence(LINE, ONSET + SECOND) == ""


def test_the_parts_hold_the_work_and_the_lines_that_it_holds() -> None:
    planned, state = PlannedWork(), {"other": b"x"}
    planned.take(work(of("leaf", "leaf1"), 60, "n3"), ONSET)
    assert planned.released([LINE], ONSET + SECOND) == []
    state |= {name: data for name, data in planned.changes().items() if data is not None}
    assert planned.changes() == {}
    again = PlannedWork()
    again.load(state, ONSET + 2 * SECOND)
    assert again.changes() == {}
    assert again.released([], ONSET + 2 * SECOND) == []
    assert again.released([], ONSET + 61 * SECOND) == [LINE]


def test_work_that_ended_long_ago_leaves_the_parts() -> None:
    planned = PlannedWork()
    planned.take(work(of("host", "n3"), 60), ONSET)
    state = {name: data for name, data in planned.changes().items() if data is not None}
    again = PlannedWork()
    again.load(state, ONSET + 61 * SECOND + KEPT_AFTER_END_NS)
    assert again.changes() == {"work/00ff": None}
    assert again.book.works() == ()

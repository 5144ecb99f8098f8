"""Steps are counted on each machine since the last sign of a fault there, and while no verdict names it."""

from __future__ import annotations

from dataclasses import replace

from tests.pipeline.actions.kit import JOB, T0, verdict_on
from tocsin.pipeline.actions.quiet_steps import QuietCounter
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import VerdictState


def _told(counter: QuietCounter, steps: range, host: str = "n1", attempt: int = 0) -> list[int]:
    job = replace(JOB, attempt=attempt)
    found = [counter.on_step(job, host, step, T0 + step * NS_PER_SECOND) for step in steps]
    return [one.step_count for one in found if one is not None]


def test_each_further_number_of_quiet_steps_is_told_once() -> None:
    assert _told(QuietCounter(10), range(100, 131)) == [10, 20, 30]


def test_a_sign_and_a_new_attempt_begin_anew() -> None:
    counter = QuietCounter(10)
    _told(counter, range(9))
    counter.on_sign(JOB.cluster, "n1")
    assert _told(counter, range(9, 18)) == []
    assert _told(counter, range(9), attempt=1) == []
    assert _told(counter, range(9, 20), attempt=1) == [10]


def test_steps_while_a_verdict_stands_do_not_count_on_the_machines_that_it_names() -> None:
    counter, verdict = QuietCounter(10), verdict_on("n1")
    counter.on_verdict(replace(verdict, expires_ns=T0 + 50 * NS_PER_SECOND))
    assert _told(counter, range(50)) == []
    assert _told(counter, range(50), "n2") == [10, 20, 30, 40]
    assert _told(counter, range(50, 61)) == [10], "it expired"
    counter.on_verdict(verdict)
    counter.on_verdict(replace(verdict, update=1, state=VerdictState.RESOLVED))
    assert _told(counter, range(61, 72)) == [10]

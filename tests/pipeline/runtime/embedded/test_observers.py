"""Recorders listen to an engine: each turn once, after the operators, until they are taken off."""

from __future__ import annotations

import threading

import pytest

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode


def _run(engine: EmbeddedEngine, job: FakeJob, seconds: int) -> int:
    count = 0
    for _ in range(seconds):
        for record in job.second():
            engine.take(encode(record))
            count += 1
        engine.tick(job.now_ns)
    return count


def test_every_record_of_every_turn_is_heard_once_in_order() -> None:
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    turns: list[SliceBundle] = []
    engine.taps.append(turns.append)
    sent = _run(engine, job, 20)
    engine.tick(job.now_ns + 10_000_000_000)

    assert [turn.end_ns for turn in turns] == sorted({turn.end_ns for turn in turns})
    assert sum(len(turn.fast.records) + sum(len(m.records) for m in turn.metrics) for turn in turns) == sent


def test_several_taps_hear_the_same() -> None:
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    one: list[SliceBundle] = []
    other: list[SliceBundle] = []
    engine.taps += [one.append, other.append]
    _run(engine, job, 10)

    assert one == other
    assert one


def test_a_tap_that_is_off_hears_nothing_and_the_others_go_on() -> None:
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    gone: list[SliceBundle] = []
    stays: list[SliceBundle] = []
    hear = gone.append
    engine.taps += [hear, stays.append]
    _run(engine, job, 5)
    heard_count = len(gone)
    engine.untap(hear)
    _run(engine, job, 5)

    assert len(gone) == heard_count
    assert len(stays) > heard_count
    with pytest.raises(ValueError, match="not in list"):
        engine.untap(hear)


def test_untap_waits_for_a_turn_that_is_being_heard() -> None:
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    inside, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(turn: SliceBundle) -> None:
        inside.set()
        go_on.wait(60)
        order.append("heard")

    engine.taps.append(slow)
    for record in job.second():
        engine.take(encode(record))
    ticking = threading.Thread(target=engine.tick, args=(job.now_ns + 3_000_000_000,))
    ticking.start()
    assert inside.wait(60)

    def take_off() -> None:
        engine.untap(slow)
        order.append("off")

    leaving = threading.Thread(target=take_off)
    leaving.start()
    go_on.set()
    leaving.join(60)
    ticking.join(60)

    assert order[-1] == "off"
    assert set(order) == {"heard", "off"}


def test_taps_change_no_verdict() -> None:
    reported = []
    for taps in ([], [lambda turn: None]):
        engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
        engine.taps.extend(taps)
        _run(engine, job, 15)
        job.freeze(3)
        verdicts: list[Verdict] = []
        for _ in range(15):
            for record in job.second():
                engine.take(encode(record))
            verdicts += engine.tick(job.now_ns).verdicts
        reported.append(verdicts)

    assert reported[0] == reported[1]
    assert reported[0]

"""A person closes an incident over the control socket; nobody else can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.runtime.embedded.restarts import Life
from tests.pipeline.waiting import until
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.close_handler import close_handler
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineRefusedError
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.reasons import Reason, SpeakerRefusal
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict, VerdictState
from tocsin.schemas.wire.codec import decode, encode

CLOSED = Reason.CLOSED_BY_HUMAN.value
ACTOR = f"uid:{os.getuid()}"


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    life.run(25)
    life.job.kill(3)
    life.run(10)
    yield life
    if life.is_up:
        life.end()


def close(life: Life, wanted: str, **reported: object) -> dict[str, object]:
    path = life.service._config.control_path  # noqa: SLF001  # where a client finds it
    return ControlClient(path).call("incident_close", **{"id": wanted, "note": "replaced the card", **reported})


def opened(life: Life) -> str:
    [verdict] = life.service.engine.live_verdicts()
    return verdict.verdict_id


def test_the_beginning_of_an_id_closes_an_incident_with_note_and_actor(life: Life) -> None:
    wanted = opened(life)
    answer = close(life, wanted[:6], actor="uid:0 of another", note=" replaced the card ")
    life.run(3)
    until(lambda: life.incidents()[wanted].reason == CLOSED)
    last = life.incidents()[wanted]

    assert answer == {"ok": True, "verdict_id": wanted, "job": life.job.job.job_id, "actor": ACTOR}
    assert last.state is VerdictState.RESOLVED
    assert last.evidence[-1].text == f"closed by {ACTOR}: replaced the card"
    assert len(last.evidence) > 1, "why it was told is kept"
    assert life.service.engine.live_verdicts() == []


@pytest.mark.parametrize("away", [0, 2])
def test_a_closing_outlives_the_engine_and_the_finding_does_not_reopen_it(life: Life, away: int) -> None:
    wanted = opened(life)
    close(life, wanted)
    life.kill()
    life.run(away)
    life.start()
    life.run(40)
    until(lambda: life.incidents()[wanted].reason == CLOSED)

    assert life.service.engine.live_verdicts() == []
    assert life.incidents().keys() == {wanted}


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        ({"id": "zz"}, "not_found"),
        ({"id": ""}, "bad_request"),
        ({"note": "  "}, "bad_request"),
        ({"note": "x" * 1001}, "bad_request"),
        ({"note": 7}, "bad_request"),
    ],
)
def test_what_cannot_be_closed_is_refused_by_name(life: Life, reported: dict[str, object], reason: str) -> None:
    with pytest.raises(EngineRefusedError) as raised:
        close(life, opened(life), **reported)
    assert raised.value.reason == reason
    life.run(3)
    assert len(life.service.engine.live_verdicts()) == 1


def test_a_beginning_of_several_ids_closes_none(life: Life) -> None:
    [one] = life.service.engine.live_verdicts()
    two = replace(one, verdict_id=one.verdict_id + "0")
    answer = close_handler(lambda: [one, two], life.service.engine.take_record, life.service.time.now_ns)
    with pytest.raises(EngineRefusedError, match=two.verdict_id) as raised:
        answer({"id": one.verdict_id[:4], "note": "n", "actor": ACTOR})
    assert raised.value.reason == "ambiguous"
    answer({"id": one.verdict_id, "note": "a whole id is one", "actor": ACTOR})


# --- the event that says so ------------------------------------------------------------------------


def play(
    host: str | None, killed: tuple[int, ...] = (3,), *, nan: bool = False, seconds: int = 60
) -> tuple[list[Verdict], EmbeddedEngine, list[str]]:
    """Ranks die in second 25; in second 36 a host (None: the control socket) closes what was told."""
    engine, job = EmbeddedEngine(EngineConfig()), FakeJob(JobShape())
    lines: list[Verdict] = []
    refused: list[str] = []
    for second in range(seconds):
        if second == 22 and nan:
            job.nan(2)
        if second == 25:
            for rank in killed:
                job.kill(rank)
        records = [encode(record) for record in job.second()]
        if second == 36:
            reported = close_event(
                job.job, engine.live_verdicts()[0].verdict_id, "seen", "uid:7", job.now_ns - NS_PER_SECOND // 2
            )
            records.append(encode(reported if host is None else replace(reported, host=host)))
        for data in records:
            engine.take(data)
        output = engine.tick(job.now_ns)
        lines += output.verdicts
        refused += [entry.reason for _, entry in output.refused]
    return lines, engine, refused


def test_the_event_that_closes_is_a_record_as_any_other() -> None:
    reported = close_event(FakeJob(JobShape()).job, "v1", "note", "uid:7", 1_800_000_000 * NS_PER_SECOND)
    assert decode(encode(reported)) == reported

    first, engine, _ = play(None)
    assert first == play(None)[0], "a replay says the same"
    assert [line.reason for line in first][-1] == CLOSED
    assert first[-1].state is VerdictState.RESOLVED
    assert "engine:control" not in engine.status()["jobs"][0]["hosts"]


@pytest.mark.parametrize("nan", [False, True])
def test_the_end_of_a_whole_job_is_told_no_more_once_somebody_has_closed_it(*, nan: bool) -> None:
    """Nor does the number that was lost before explain it then."""
    lines, engine, _ = play(None, tuple(range(JobShape().rank_count)), nan=nan, seconds=150)
    assert [line.reason for line in lines][-1] == CLOSED
    assert engine.live_verdicts() == []


def test_a_host_that_closes_an_incident_is_not_heard() -> None:
    lines, engine, refused = play("n03")
    assert CLOSED not in [line.reason for line in lines]
    assert refused == [SpeakerRefusal.CLOSE_OF_HOST]
    assert engine.live_verdicts() != []

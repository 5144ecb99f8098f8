"""People's notes over Kafka: answered once, kept over any death, told to all who act by them; forged ones have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.kafka.notes_kit import ANN, JOB, NotesWorld, gpu_lost
from tocsin.pipeline.kafka.operator_notes import OperatorNotes
from tocsin.schemas import events
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.kafka.topics import DEAD_LETTER, EVENTS, OPERATOR_NOTES
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.operator_requests import request_signature
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.signatures import is_signed_by, signature_of
from tocsin.schemas.verdicts import Component, ComponentKind, VerdictState
from tocsin.schemas.wire.codec import decode

HOUR: dict[str, Any] = {"for_seconds": 3600, "reason": "new cable"}


def closings(world: NotesWorld) -> list[Event]:
    found = [decode(one.value or b"") for one in world.log(EVENTS)]
    return [one for one in found if isinstance(one, Event) and one.name == events.INCIDENT_CLOSE]


def test_planned_work_is_answered_told_and_ended() -> None:
    world = NotesWorld()
    world.place(n1="leaf1")
    answer = world.asked("maintenance", target="n1", **HOUR)
    assert (answer["ok"], answer["state"], answer["target"], answer["cluster"]) == (True, "on", "n1", "c1")
    assert answer["actor"] == "unproven:somebody"
    world.begin()  # another process goes on from the committed state
    world.run(2)
    over = world.asked("maintenance_end", id=answer["maintenance_id"][:6])
    assert over["state"] == "over"
    works = [one.note for one in world.taken()]
    assert all(isinstance(one, Maintenance) for one in works)
    assert [one.maintenance_id for one in works if isinstance(one, Maintenance)] == [answer["maintenance_id"]] * 2
    assert world.asked("maintenance_end", id="")["reason"] == "bad_field"
    assert world.asked("maintenance_end", id=answer["maintenance_id"])["reason"] == "not_found"


def test_a_host_that_nobody_heard_of_needs_its_kind() -> None:
    world = NotesWorld()
    world.place(n1="leaf1")
    assert world.asked("maintenance", target="n7", **HOUR)["reason"] == "unknown_target"
    assert world.asked("maintenance", target="n7", kind="host", **HOUR)["ok"] is True
    world.tell("81ab")
    world.run(2)
    assert world.asked("maintenance", target=JOB.job_id, **HOUR)["target_kind"] == "job"


def test_work_on_a_leaf_switch_names_its_hosts_also_those_that_come_later() -> None:
    world = NotesWorld()
    world.place(n1="leaf1", n2="leaf1", n3="leaf2")
    assert world.asked("maintenance", target="leaf1", **HOUR)["target_kind"] == "leaf"
    assert world.taken()[-1].hosts == ("n1", "n2")
    world.place(n4="leaf1")
    world.run(12)
    assert world.taken()[-1].hosts == ("n1", "n2", "n4")
    count = len(world.taken())
    world.begin()
    world.run(30)
    assert len(world.taken()) == count  # what did not change is not told again


def test_an_idle_host_under_work_proposes_nothing_until_it_ends() -> None:
    world = NotesWorld()
    world.place(n1="leaf1")
    work = world.asked("maintenance", target="leaf1", **HOUR)
    world.run(1, gpu_lost("n1", world.now_ns + NS_PER_SECOND))
    world.run(2)
    [line] = world.lines()
    assert (line.job.job_id, line.action.value) == ("idle", "none")
    world.asked("maintenance_end", id=work["maintenance_id"])
    world.run(2)
    assert [one.action.value for one in world.lines()] == ["none", "drain"]


def test_a_denied_incident_of_an_idle_host_is_cancelled() -> None:
    world = NotesWorld()
    world.place(n1="leaf1")
    world.run(1, gpu_lost("n1", world.now_ns + NS_PER_SECOND))
    world.run(2)
    [line] = world.lines()
    answer = world.asked("feedback", id=line.verdict_id[:6], is_true=False, note="a loose cable of the tester")
    assert (answer["ok"], answer["verdict_id"]) == (True, line.verdict_id)
    world.run()
    assert [one.state for one in world.lines()] == [VerdictState.CONFIRMED, VerdictState.CANCELLED]
    assert any("unproven:somebody" in one.text for one in world.lines()[-1].evidence)
    [said] = [one.note for one in world.taken()]
    assert isinstance(said, Feedback)
    assert (said.is_true, said.cluster) == (False, "c1")


def test_a_fleet_incident_is_closed_at_once() -> None:
    world = NotesWorld()
    world.place(n1="leaf1")
    world.run(1, gpu_lost("n1", world.now_ns + NS_PER_SECOND))
    world.run(2)
    [line] = world.lines()
    assert world.asked("incident_close", id=line.verdict_id, note="replaced")["ok"] is True
    world.run()
    last = world.lines()[-1]
    assert (last.state, last.reason) == (VerdictState.RESOLVED, "closed_by_human")
    assert closings(world) == []


def test_a_job_s_incident_is_closed_by_a_record_among_its_events() -> None:
    world = NotesWorld()
    world.tell("81ab")
    world.run(2)
    answer = world.asked("incident_close", id="81", note="card replaced")
    assert (answer["verdict_id"], answer["job"]) == ("81ab", JOB.job_id)
    [event] = closings(world)
    assert (event.job, event.payload) == (
        JOB,
        {"id": "81ab", "note": "card replaced", "actor": "unproven:somebody"},
    )
    [sent] = [one for one in world.sent if one.topic == EVENTS]
    assert sent.timestamp_ms == event.ts_ns // 1_000_000
    assert 0 < event.ts_ns - world.now_ns <= 2 * NS_PER_SECOND
    world.tell("81ab", 1, VerdictState.RESOLVED)
    world.run(2)
    assert world.asked("incident_close", id="81ab", note="again")["reason"] == "not_found"
    assert world.asked("incident_close", id="81ab", note=" ")["reason"] == "bad_request"


def test_a_closing_waits_for_fresh_ticks_over_a_death_and_not_for_ever() -> None:
    world = NotesWorld()
    world.tell("81ab")
    world.tell("91ab")
    world.run(2)
    world.run(20, has_ticks=False)
    world.ask("incident_close", id="81ab", note="card replaced")
    world.run(5, has_ticks=False)
    assert (world.answers(), closings(world)) == ([], [])
    world.begin()
    world.run(1)
    assert [one["ok"] for one in world.answers()] == [True]
    world.run(20, has_ticks=False)
    world.ask("incident_close", id="91ab", note="card replaced")
    world.run(700, has_ticks=False)
    assert world.answers()[-1]["reason"] == "no_ticks"
    assert len(closings(world)) == 1


def test_only_an_operator_who_signed_is_heard_and_named(tmp_path: Path) -> None:
    world = NotesWorld(tmp_path)
    world.tell("81ab")
    world.run(2)
    stranger = new_credential(Role.OPERATOR, "eve", 1)
    world.ask("feedback", id="81ab", is_true=True, note="")
    world.ask("feedback", id="81ab", is_true=True, note="", signer=stranger)
    value = world.ask("feedback", id="81ab", is_true=True, note="", signer=ANN)
    world.send(value.replace(b"true", b"false"), request_signature(value, ANN))
    world.run()
    assert world.dead() == ["unsigned", "unknown_key", "bad_signature"]
    assert [one.note.actor for one in world.taken()] == ["operator:ann"]
    assert [one.get("reason", "") for one in world.answers()] == ["unsigned", "unknown_key", "", "bad_signature"]
    letter = next(one for one in world.sent if one.topic == DEAD_LETTER)
    assert letter.headers["topic"] == OPERATOR_NOTES.encode()


def test_what_closes_a_job_s_incident_carries_the_operator_s_own_signature(tmp_path: Path) -> None:
    world = NotesWorld(tmp_path)
    world.tell("81ab")
    world.run(2)
    world.ask("incident_close", id="81ab", note="card replaced", signer=ANN)
    world.run(3, has_ticks=False)
    world.begin()  # the key is found again by its id
    world.run()
    [event] = closings(world)
    assert event.payload["actor"] == "operator:ann"
    [sent] = [one.value for one in world.sent if one.topic == EVENTS]
    assert signature_of(sent) is not None
    assert is_signed_by(sent, ANN)


def test_a_copy_of_a_request_changes_nothing(tmp_path: Path) -> None:
    world = NotesWorld(tmp_path)
    world.place(n1="leaf1")
    value = world.ask("maintenance", target="n1", signer=ANN, **HOUR)
    header = request_signature(value, ANN)
    world.run()
    world.begin()
    world.send(value, header)
    world.run(1300)
    world.send(value, header)
    world.ask("maintenance", target="n1", signer=ANN, off_ns=-700 * NS_PER_SECOND, **HOUR)
    world.run()
    assert world.dead() == ["repeated", "stale", "stale"]
    assert len(world.taken()) == 1


@pytest.mark.parametrize(
    ("value", "reason"), [(b"", "undecodable"), (b"[]", "bad_field"), (b'{"version": 1}', "bad_field")]
)
def test_what_is_no_request_is_a_dead_letter(value: bytes, reason: str) -> None:
    world = NotesWorld()
    world.send(value)
    world.run()
    assert (world.dead(), world.answers(), world.work.refused) == ([reason], [], {})


def test_an_unknown_command_is_refused_and_answered() -> None:
    world = NotesWorld()
    assert world.asked("reboot", id="n1")["reason"] == "unknown_command"
    assert world.dead() == ["unknown_command"]


def test_the_metrics_count_requests_by_outcome() -> None:
    world = NotesWorld()
    world.place(n1="leaf1")
    world.asked("maintenance", target="n1", **HOUR)
    world.asked("maintenance", target="n9", **HOUR)
    notes: OperatorNotes = world.work.notes
    [family] = notes.families()
    assert {one.labels["outcome"]: one.value for one in family.samples} == {"taken": 1, "unknown_target": 1}
    assert notes.book.works()[0].target == Component(ComponentKind.HOST, "n1")

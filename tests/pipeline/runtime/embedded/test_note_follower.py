"""People plan work and judge verdicts; what was answered is kept, and what cannot be taken is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.runtime.embedded.noted_life import NotedLife
from tests.pipeline.waiting import until
from tocsin.pipeline.lab.testing import JobShape
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError
from tocsin.pipeline.runtime.embedded.note_journal import FILE_NAME, NoteJournal
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import EngineError
from tocsin.schemas.operator_notes import Feedback, Maintenance, OperatorNote
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind, VerdictState

ACTOR = f"uid:{os.getuid()}"
DAY_NS = 86_400 * NS_PER_SECOND


@pytest.fixture
def life(tmp_path: Path) -> Iterator[NotedLife]:
    life = NotedLife(tmp_path, JobShape(leaf_hosts_count=4))
    life.run(25)
    yield life
    if life.is_up:
        life.end()


def host_of(life: NotedLife, rank: int) -> str:
    [pipeline] = [life.service.engine.pipeline(job) for job in life.service.engine.running_jobs()]
    assert pipeline is not None
    return pipeline.graph.placement.places[rank].host


def leaf_of(life: NotedLife, host: str) -> str:
    [leaf] = {view.hosts.leaf_of(host) for view in life.fleet.views.values()}
    return leaf


def refusal(life: NotedLife, cmd: str, **told: object) -> str:
    with pytest.raises(EngineRefusedError) as raised:
        life.client.call(cmd, **told)
    return raised.value.reason


def test_a_fault_under_planned_work_is_told_and_stored_and_proposed_only_after_it(life: NotedLife) -> None:
    host = host_of(life, 3)
    planned = life.plan(target=host, for_seconds=86_400, actor="uid:0 of another")
    assert (planned["actor"], planned["target_kind"], planned["state"]) == (ACTOR, "host", "on")
    assert life.client.call("status")["notes"]["on"] == 1

    life.job.kill(3)
    life.run(10)
    until(lambda: bool(life.newest_actions()))
    [found] = life.incidents().values()
    assert [one.component.name for one in found.suspects] == [host]
    assert {(one.state, one.detail) for one in life.newest_actions()} == {(ActionState.WAITING, "under_maintenance")}

    life.kill()
    life.start()
    assert [one["maintenance_id"] for one in life.works()] == [planned["maintenance_id"]]
    life.run(3)
    until(lambda: life.service.writer.waiting_count == 0)
    assert {one.state for one in life.newest_actions()} == {ActionState.WAITING}

    ended = life.client.call("maintenance_end", id=planned["maintenance_id"][:4])
    assert ended["state"] == "over"
    life.run(3)
    until(lambda: ActionState.WAITING not in {one.state for one in life.newest_actions()})
    [found] = life.incidents().values()
    assert found.state in (VerdictState.OPEN, VerdictState.CONFIRMED)
    assert ActionState.PROPOSED in {one.state for one in life.newest_actions()}

    life.kill()
    life.start()
    assert [one["state"] for one in life.works()] == ["over"]


def test_work_on_a_leaf_covers_its_hosts_and_work_on_another_host_does_not(life: NotedLife) -> None:
    host = host_of(life, 3)
    life.plan(target=host_of(life, 4))
    life.job.kill(3)
    life.run(10)
    until(lambda: bool(life.newest_actions()))
    assert {one.detail for one in life.newest_actions()} != {"under_maintenance"}

    leaf = life.plan(target=leaf_of(life, host))
    assert leaf["target_kind"] == "leaf"
    life.run(3)
    until(lambda: {one.detail for one in life.newest_actions()} == {"under_maintenance"})


def test_a_job_is_a_target_and_a_new_name_needs_its_kind(life: NotedLife) -> None:
    [job] = life.service.engine.running_jobs()
    assert life.plan(target=job.job_id)["target_kind"] == "job"
    assert life.plan(target="new-host", kind="host")["cluster"] == job.cluster


def test_work_can_be_planned_before_anything_is_heard(tmp_path: Path) -> None:
    life = NotedLife(tmp_path, JobShape(leaf_hosts_count=4))
    with pytest.raises(EngineRefusedError, match="--cluster"):
        life.plan(target="n3", kind="host")
    assert life.plan(target="n3", kind="host", cluster="c")["cluster"] == "c"
    life.end()


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"target": "nobody"}, "unknown_target"),
        ({"target": ""}, "bad_field"),
        ({"target": "n3", "kind": "rack"}, "bad_field"),
        ({"target": "idle", "kind": "job"}, "bad_field"),
        ({"for_seconds": 0}, "bad_field"),
        ({"for_seconds": "2h"}, "bad_field"),
        ({"for_seconds": 30 * 86_400 + 1}, "too_long"),
        ({"begin_ns": 1}, "in_the_past"),
        ({"begin_ns": 2**61}, "too_far"),
        ({"reason": " "}, "bad_field"),
        ({"reason": "x" * 1001}, "bad_field"),
    ],
)
def test_work_that_cannot_be_planned_is_refused_by_name(life: NotedLife, told: dict[str, object], reason: str) -> None:
    wanted = {"target": host_of(life, 3), "for_seconds": 60, "reason": "r", **told}
    assert refusal(life, "maintenance", **wanted) == reason
    assert life.works() == []


def test_work_begins_when_it_is_planned_to_and_is_ended_once(life: NotedLife) -> None:
    begin_ns = life.job.now_ns + DAY_NS
    later = life.plan(target=host_of(life, 3), begin_ns=begin_ns)
    assert (later["state"], later["begin_ns"]) == ("planned", begin_ns)
    assert later["end_ns"] - begin_ns == 3600 * NS_PER_SECOND
    assert refusal(life, "maintenance_end", id="zz") == "not_found"
    life.client.call("maintenance_end", id=later["maintenance_id"])
    assert refusal(life, "maintenance_end", id=later["maintenance_id"]) == "not_found"


def test_a_judgement_is_kept_over_a_kill_and_the_latest_counts(life: NotedLife) -> None:
    life.job.kill(3)
    life.run(10)
    [verdict] = life.service.engine.live_verdicts()
    life.client.call("feedback", id=verdict.verdict_id[:6], is_true=False, note="")
    said = life.client.call("feedback", id=verdict.verdict_id, is_true=True, note=" the card was dead ")
    assert (said["verdict_id"], said["actor"], said["note"]) == (verdict.verdict_id, ACTOR, "the card was dead")

    life.kill()
    notes = NoteJournal(life.folder / FILE_NAME).read()
    assert [one.is_true for one in notes if isinstance(one, Feedback)] == [False, True]
    life.start()
    assert life.client.call("status")["notes"] == {"on": 0, "planned": 0, "feedback": 1}
    # a verdict that was told before the kill is still known
    life.client.call("feedback", id=verdict.verdict_id, is_true=True, note="again")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"id": "zz", "is_true": True}, "not_found"),
        ({"id": "", "is_true": True}, "bad_field"),
        ({"id": "zz", "is_true": "yes"}, "bad_field"),
        ({"id": "zz", "is_true": True, "note": 7}, "bad_field"),
    ],
)
def test_a_judgement_that_cannot_be_taken_is_refused_by_name(
    life: NotedLife, told: dict[str, object], reason: str
) -> None:
    assert refusal(life, "feedback", **told) == reason


def test_a_disk_that_refuses_keeps_the_note_from_counting(life: NotedLife) -> None:
    (life.folder / f"{FILE_NAME}.new").mkdir()
    assert refusal(life, "maintenance", target=host_of(life, 3), for_seconds=60, reason="r") == "not_kept"
    assert life.works() == []
    (life.folder / f"{FILE_NAME}.new").rmdir()
    life.plan(target=host_of(life, 3))
    assert len(life.works()) == 1


# --- the file ---------------------------------------------------------------------------------------


def work(name: str) -> Maintenance:
    return Maintenance(name, "c", Component(ComponentKind.HOST, "n1"), 5, 9, "r", "uid:1", 5)


def test_an_unfinished_last_line_is_left_out_and_the_next_note_comes_after_whole_lines(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / FILE_NAME
    kept: list[OperatorNote] = []
    journal = NoteJournal(path)
    for name in ("a", "b"):
        journal.append(work(name), kept)
        kept.append(work(name))
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o640)
    path.write_bytes(path.read_bytes()[:-5])

    again = NoteJournal(path)
    assert again.read() == [work("a")]
    again.append(work("c"), [work("a")])
    assert NoteJournal(path).read() == [work("a"), work("c")]
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    NoteJournal(path).replace([work("a"), work("b")])
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b"{", lines[2], b""]))
    assert NoteJournal(path).read() == [work("b")]


@pytest.mark.parametrize("first", [json.dumps({"version": 2}), "[]", "x"])
def test_a_file_of_another_form_is_left_alone(tmp_path: Path, first: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(f"{first}\n")
    with pytest.raises(EngineError, match="version"):
        NoteJournal(path).read()

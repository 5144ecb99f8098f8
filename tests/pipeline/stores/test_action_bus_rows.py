"""Changes of actions and executors' messages as rows of the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.test_store import ask
from tests.schemas.test_action_codec import ACK, ACTION
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.action_events import AckKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Machine


@pytest.fixture(params=["chdb", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


def test_each_change_is_one_row_and_the_view_has_the_last(store: SqlStore) -> None:
    done = replace(ACTION, revision=2, state=ActionState.DONE, reason="done", holder="slurm")
    store.write_action_changes([done, ACTION])
    store.write_action_changes([ACTION])

    counted = ask(store, "SELECT count() AS n FROM tocsin.action_changes FINAL")
    now = ask(store, "SELECT action_id, hosts, state, reason, holder, toString(revision) AS r FROM tocsin.actions_now")
    assert str(counted[0]["n"]) == "2"
    assert now == [
        {
            "action_id": ACTION.action_id,
            "hosts": ["n012"],
            "state": "done",
            "reason": "done",
            "holder": "slurm",
            "r": "2",
        }
    ]


def test_the_row_says_on_which_incarnation_the_action_rests(store: SqlStore) -> None:
    machines = (
        Machine("n1", "boot-1", pod_uid="u1", pod_name="ml/p"),
        Machine("n2", node_uid="node-2", pod_name="ml/q"),
    )
    known = replace(ACTION.target, machines=machines, slurm_job_id="77", slurm_restart_count=2)
    store.write_action_changes([replace(ACTION, target=known), replace(ACTION, action_id="f" * 32)])

    columns = "hosts, boot_ids, node_uids, pods, slurm_job_id, toString(slurm_restart_count) AS requeued"
    found = {row["slurm_job_id"]: row for row in ask(store, f"SELECT {columns} FROM tocsin.actions_now")}
    assert found["77"] == {
        "hosts": ["n1", "n2"],
        "boot_ids": ["boot-1", ""],
        "node_uids": ["", "node-2"],
        "pods": ["u1", "ml/q"],
        "slurm_job_id": "77",
        "requeued": "2",
    }
    assert [row["requeued"] for name, row in found.items() if name != "77"] == ["-1"]


def test_a_message_of_an_executor_is_one_row_though_it_is_written_twice(store: SqlStore) -> None:
    done = replace(ACK, kind=AckKind.DONE, seq=2, effects=("cordon", "evict"), detail="two\nlines")
    store.write_action_acks([ACK, done])
    store.write_action_acks([done])

    found = ask(store, "SELECT kind, executor, effects, detail FROM tocsin.action_acks FINAL ORDER BY seq")
    assert found == [
        {"kind": "claimed", "executor": "slurm", "effects": [], "detail": ""},
        {"kind": "done", "executor": "slurm", "effects": ["cordon", "evict"], "detail": "two lines"},
    ]

"""The controller inside the engine: what it decides is on the disk before anybody sees it, and survives a death."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.pipeline.actions.kit import T0, verdict_on
from tests.pipeline.runtime.embedded.actions.acting import Acting
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.runtime.embedded.actions.action_log import LogLine
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind


def _ack(action: Action, kind: AckKind, seq: int, now_ns: int) -> Ack:
    lease_ns = now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
    return Ack(action.action_id, action.target.job, kind, "slurm", action.epoch, seq, now_ns, lease_ns)


def _acting(folder: Path) -> Acting:
    acting = Acting(folder, ControllerConfig(is_dry_run=False, spare_count=9, may_shrink=True))
    acting.tick()
    acting.executor_lives()
    return acting


def test_a_dry_run_shows_and_gives_nothing_to_carry_out(tmp_path: Path) -> None:
    acting = Acting(tmp_path, ControllerConfig())
    acting.executor_lives()
    acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=1))
    (action,) = acting.fetched()
    assert (action.kind, action.state) == (ActionKind.RESTART, ActionState.PROPOSED)


def test_a_verdict_becomes_an_action_that_is_carried_out_once(tmp_path: Path) -> None:
    acting = _acting(tmp_path)
    acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2))
    (action,) = acting.fetched()
    assert (action.kind, action.state) == (ActionKind.RESTART, ActionState.APPROVED)
    for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), 1):
        acting.exchange(_ack(action, kind, seq, acting.now_ns))
        acting.tick()
    (done,) = acting.fetched()
    assert (done.action_id, done.state) == (action.action_id, ActionState.DONE)
    assert [one.state for one in acting.rows if one.action_id == action.action_id][-1] is ActionState.DONE


def test_a_death_after_the_disk_forgets_nothing_and_executes_nothing_twice(tmp_path: Path) -> None:
    first = _acting(tmp_path)
    verdict = verdict_on("n1", action=ActionKind.RESTART, at_seconds=2)
    first.tick(verdict)
    (action,) = first.fetched()
    second = Acting(tmp_path, first.config, now_ns=first.now_ns + 5 * NS_PER_SECOND)
    second.executor_lives()
    second.tick(verdict)  # the journal is replayed: the same line comes again
    (again,) = second.fetched()
    assert (again.action_id, again.epoch) == (action.action_id, action.epoch + 1)
    assert len(second.wanted()) == 1


def test_after_a_restart_nothing_acts_until_the_engine_has_caught_up(tmp_path: Path) -> None:
    acting = _acting(tmp_path)
    behind_ns = acting.now_ns - 60 * NS_PER_SECOND
    later = Acting(tmp_path, acting.config, now_ns=acting.now_ns)
    later.executor_lives()
    later.tick(seconds=30, tick_ns=behind_ns)
    later.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2), tick_ns=behind_ns)
    assert [state for _, state, _ in later.states()] == ["waiting"]
    later.executor_lives()
    later.tick()
    assert [state for _, state, _ in later.states()] == ["approved"]


def test_what_is_stale_when_the_engine_has_caught_up_is_never_done(tmp_path: Path) -> None:
    acting = _acting(tmp_path)
    later = Acting(tmp_path, acting.config, now_ns=T0 + 3600 * NS_PER_SECOND)
    later.executor_lives()
    later.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2), tick_ns=T0 + 3 * NS_PER_SECOND)
    for _ in range(5):
        later.tick()
    assert all(one.state not in {ActionState.APPROVED, ActionState.CLAIMED} for one in later.wanted())


def test_an_engine_that_has_just_begun_without_a_state_acts_later(tmp_path: Path) -> None:
    acting = Acting(tmp_path, ControllerConfig(is_dry_run=False), is_settled=False)
    acting.executor_lives()
    acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2))
    assert [state for _, state, _ in acting.states()] == ["waiting"]
    acting.is_settled = True
    acting.tick()
    assert [state for _, state, _ in acting.states()] == ["approved"]


def test_what_the_disk_refuses_is_seen_by_nobody_until_it_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting = _acting(tmp_path)

    def full(_lines: Sequence[LogLine], _parts: Mapping[str, bytes]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(acting.log, "write", full)
        acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2))
        assert acting.fetched() == []
        assert (acting.rows, acting.wanted()) == ([], ())
        assert acting.follower.status()["failures"] == 1
    acting.tick()
    assert [one.state for one in acting.fetched()] == [ActionState.APPROVED]


def test_status_and_metrics_count_by_state_and_reason(tmp_path: Path) -> None:
    acting = _acting(tmp_path)
    acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2))
    assert acting.follower.status()["states"] == {"approved": 1}
    families = {one.name: one for one in acting.follower.families()}
    (sample,) = families["tocsin_actions"].samples
    assert (sample.labels, sample.value) == ({"kind": "restart", "state": "approved"}, 1)
    changes = {tuple(one.labels.values()): one.value for one in families["tocsin_action_changes_total"].samples}
    assert changes == {("restart", "approved"): 1}


@pytest.mark.parametrize(("is_dry_run", "count"), [(False, 1), (True, 0)])
def test_people_are_told_once_that_nothing_can_carry_an_action_out(
    tmp_path: Path, *, is_dry_run: bool, count: int
) -> None:
    acting = Acting(tmp_path, ControllerConfig(is_dry_run=is_dry_run))
    told: list[tuple[str, str]] = []
    acting.follower.tellers.append(lambda verdict_id, text: told.append((verdict_id, text)))
    acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=1))
    acting.tick(seconds=2)
    again = Acting(tmp_path, acting.config, now_ns=acting.now_ns)
    again.follower.tellers.append(lambda verdict_id, text: told.append((verdict_id, text)))
    again.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=1))
    assert [verdict_id for verdict_id, _ in told] == ["v1"] * count

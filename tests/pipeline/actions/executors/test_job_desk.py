"""What a job controller believes: signed, begun, in time, of the attempt that runs, and each action once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.actions.executors.made import SECOND_NS, made_action
from tocsin.pipeline.actions.executors.job_controller import JobActionState, JobAnswer
from tocsin.pipeline.actions.executors.job_desk import JobDesk, RunningJob
from tocsin.pipeline.identity.action_signatures import ActionChecker, ActionSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.credentials import Role
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

KEY = new_signing_key(Role.CONTROLLER, "engine", 1)
NOW_NS = 100 * SECOND_NS
RUNNING = RunningJob(JobKey("ci", "train", 0), frozenset({"n1", "n2"}))


def _desk(running: RunningJob = RUNNING) -> JobDesk:
    return JobDesk(ActionChecker([public_half(KEY)]), lambda: running)


def _begun(kind: ActionKind = ActionKind.RESTART, *hosts: str, **changes: Any) -> Action:
    values: dict[str, Any] = {"state": ActionState.STARTED, "lease_ns": NOW_NS + 60 * SECOND_NS, "epoch": 2}
    return made_action(kind, *(hosts or ("n1",)), now_ns=NOW_NS, **(values | changes))


def _post(desk: JobDesk, action: Action, now_ns: int = NOW_NS) -> tuple[int, JobAnswer, Action | None]:
    value = encode_action(action)
    return desk.on_post(value, ActionSigner(KEY).header(value), now_ns)


def test_a_signed_action_is_begun_once() -> None:
    desk, action = _desk(), _begun()
    assert _post(desk, action) == (200, JobAnswer(JobActionState.RUNNING), action)
    assert _post(desk, action) == (200, JobAnswer(JobActionState.RUNNING), None)
    desk.on_end(action.action_id, JobAnswer(JobActionState.DONE))
    assert _post(desk, action) == (200, JobAnswer(JobActionState.DONE), None)
    assert desk.state(action.action_id) == JobAnswer(JobActionState.DONE)


def test_a_forged_action_begins_nothing() -> None:
    desk, action = _desk(), _begun()
    value = encode_action(action)
    forger = ActionSigner(new_signing_key(Role.CONTROLLER, "engine", 2))
    changed = encode_action(_begun(ActionKind.EVICT, "n2"))
    for body, signature, reason in (
        (value, b"", "unsigned"),
        (value, forger.header(value), "unknown_key"),
        (changed, ActionSigner(KEY).header(value), "bad_signature"),
    ):
        status, answer, begun = desk.on_post(body, signature, NOW_NS)
        assert (status, answer.reason, begun) == (403, reason, None)
    assert not desk.answers


def test_bytes_that_are_no_action_are_a_bad_request() -> None:
    status, _, begun = _desk().on_post(b"{}", ActionSigner(KEY).header(b"{}"), NOW_NS)
    assert (status, begun) == (400, None)


@pytest.mark.parametrize(
    ("action", "state", "reason"),
    [
        (_begun(state=ActionState.APPROVED), JobActionState.REFUSED, "not_begun"),
        (_begun(lease_ns=NOW_NS), JobActionState.EXPIRED, "deadline_passed"),
        (_begun(deadline_ns=NOW_NS), JobActionState.EXPIRED, "deadline_passed"),
        (_begun(ActionKind.EVICT, "n3"), JobActionState.EXPIRED, "host_left_job"),
        (_begun(ActionKind.DRAIN), JobActionState.REFUSED, "kind_not_done_here"),
    ],
)
def test_what_must_not_be_begun_has_its_reason(action: Action, state: JobActionState, reason: str) -> None:
    desk = _desk()
    _, answer, begun = _post(desk, action)
    assert (answer.state, answer.reason, begun) == (state, reason, None)
    assert not desk.answers


@pytest.mark.parametrize(
    ("job", "state", "reason"),
    [
        (JobKey("ci", "train", 1), JobActionState.EXPIRED, "new_attempt"),
        (JobKey("ci", "other", 0), JobActionState.REFUSED, "no_such_job"),
    ],
)
def test_another_job_or_attempt_is_left_alone(job: JobKey, state: JobActionState, reason: str) -> None:
    _, answer, begun = _post(_desk(RunningJob(job, RUNNING.hosts)), _begun())
    assert (answer.state, answer.reason, begun) == (state, reason, None)


def test_a_lower_epoch_than_was_seen_is_refused() -> None:
    desk = _desk()
    _post(desk, _begun(epoch=5))
    _, answer, begun = _post(desk, _begun(ActionKind.EVICT, epoch=4))
    assert (answer.reason, begun) == ("lower_epoch", None)


def test_only_an_eviction_that_was_done_is_taken_back() -> None:
    desk, evict = _desk(), _begun(ActionKind.EVICT)
    back = _begun(ActionKind.EVICT, state=ActionState.UNDOING)
    assert _post(desk, back)[2] is None
    _post(desk, evict)
    assert _post(desk, back) == (200, JobAnswer(JobActionState.RUNNING), None)
    desk.on_end(evict.action_id, JobAnswer(JobActionState.DONE))
    assert _post(desk, back) == (200, JobAnswer(JobActionState.UNDONE), back)
    assert _post(desk, back)[2] is None


def test_a_second_action_is_refused_while_one_is_in_hand() -> None:
    desk, first, second = _desk(), _begun(verdict="v1"), _begun(ActionKind.EVICT, verdict="v2")
    assert _post(desk, first)[2] == first
    status, answer, begun = _post(desk, second)
    assert (status, answer.state, answer.reason, begun) == (200, JobActionState.REFUSED, "another_in_hand", None)
    assert first.action_id in answer.detail
    assert desk.state(second.action_id) is None
    assert _post(desk, first) == (200, JobAnswer(JobActionState.RUNNING), None)
    desk.on_end(first.action_id, JobAnswer(JobActionState.FAILED))
    assert _post(desk, second)[2] == second


def test_an_action_that_was_taken_is_checked_again_before_it_is_carried_out() -> None:
    running = [RUNNING]
    desk, action = JobDesk(ActionChecker([public_half(KEY)]), lambda: running[0]), _begun()
    assert _post(desk, action)[2] == action
    assert desk.check(action, NOW_NS) is None
    late = desk.check(action, action.lease_ns)
    running[0] = RunningJob(JobKey("ci", "train", 1), RUNNING.hosts)
    gone = desk.check(action, NOW_NS)
    assert [one and (one.state, one.reason) for one in (late, gone)] == [
        (JobActionState.EXPIRED, "deadline_passed"),
        (JobActionState.EXPIRED, "new_attempt"),
    ]

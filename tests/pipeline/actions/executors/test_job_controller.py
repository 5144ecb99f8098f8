"""A job controller as a target: what is asked, what its answers mean, and that only signed bytes are handed over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.pipeline.actions.executors.made import carried_out, made_action
from tocsin.pipeline.actions.executors.job_controller import (
    HttpJobController,
    JobActionState,
    JobAnswer,
    JobControllerTarget,
)
from tocsin.pipeline.actions.executors.job_facts import SignedFact, facts_body
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.signed_actions import SignedAction, SignedActions
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAnswerError, TargetAwayError, TargetRefusedError
from tocsin.schemas.verdicts import ActionKind


class FakeJobController:
    """Keeps what was posted, and answers what it is told to."""

    def __init__(self) -> None:
        self.posted: list[tuple[bytes, bytes]] = []
        self.answer: JobAnswer | None = None
        self.after_post = JobAnswer(JobActionState.DONE)

    def state(self, action_id: str) -> JobAnswer | None:
        del action_id
        return self.answer

    def facts(self) -> tuple[SignedFact, ...]:
        return ()

    def post(self, value: bytes, signature: bytes) -> JobAnswer:
        self.posted.append((value, signature))
        self.answer = self.after_post
        return self.answer


def _signed(action: Action) -> SignedActions:
    known = SignedActions()
    known.put(SignedAction(action, encode_action(action), b"k-1 00"))
    return known


def test_the_signed_bytes_are_handed_over_once() -> None:
    action, controller = made_action(ActionKind.RESTART, "n1"), FakeJobController()
    target = JobControllerTarget(controller, _signed(action))
    look = carried_out(target, action)
    assert (look.stage, look.reason) == (Stage.DONE, ExecutorReason.DONE_BY_JOB_CONTROLLER)
    assert controller.posted == [(encode_action(action), b"k-1 00")]
    assert target.look(action).stage is Stage.DONE


def test_without_the_signed_bytes_nothing_is_posted() -> None:
    action, controller = made_action(ActionKind.RESTART, "n1"), FakeJobController()
    target = JobControllerTarget(controller, SignedActions())
    with pytest.raises(TargetAwayError):
        target.make(action, target.look(action))
    assert controller.posted == []


@pytest.mark.parametrize(
    ("answer", "stage", "reason"),
    [
        (JobAnswer(JobActionState.RUNNING), Stage.WAITING, ExecutorReason.JOB_CONTROLLER_WORKS),
        (JobAnswer(JobActionState.EXPIRED, "new_attempt"), Stage.EXPIRED, ExecutorReason.NEW_ATTEMPT),
        (JobAnswer(JobActionState.EXPIRED, "words"), Stage.EXPIRED, ExecutorReason.JOB_NOT_RUNNING),
        (JobAnswer(JobActionState.REFUSED), Stage.REFUSED, ExecutorReason.TARGET_REFUSED),
        (JobAnswer(JobActionState.FAILED), Stage.FAILED, ExecutorReason.TARGET_REFUSED),
    ],
)
def test_an_answer_becomes_a_stage(answer: JobAnswer, stage: Stage, reason: ExecutorReason) -> None:
    action, controller = made_action(ActionKind.EVICT, "n1"), FakeJobController()
    controller.answer = answer
    look = JobControllerTarget(controller, SignedActions()).look(action)
    assert (look.stage, look.reason) == (stage, reason)


def test_only_what_an_eviction_left_out_is_given_back() -> None:
    restart, evict, controller = (
        made_action(ActionKind.RESTART, "n1"),
        made_action(ActionKind.EVICT, "n1"),
        FakeJobController(),
    )
    target = JobControllerTarget(controller, _signed(evict))
    controller.answer, controller.after_post = JobAnswer(JobActionState.DONE), JobAnswer(JobActionState.UNDONE)
    assert target.look_back(restart).reason is ExecutorReason.NOTHING_TO_UNDO
    assert carried_out(target, evict, back=True).reason is ExecutorReason.GIVEN_BACK
    assert len(controller.posted) == 1


class _Handler(BaseHTTPRequestHandler):
    status, body = 200, b"{}"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        self.send_response(type(self).status)
        self.end_headers()
        self.wfile.write(type(self).body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def http() -> Iterator[HttpJobController]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield HttpJobController(f"http://127.0.0.1:{server.server_port}", limit_seconds=2.0)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, b"busy", TargetAwayError),
        (429, b"later", TargetAwayError),
        (403, b"no", TargetRefusedError),
        (200, b"[]", TargetAnswerError),
        (200, b'{"state": "unheard of"}', TargetAnswerError),
    ],
)
def test_a_wrong_answer_has_its_error(
    http: HttpJobController, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, error: type[Exception]
) -> None:
    monkeypatch.setattr(_Handler, "status", status)
    monkeypatch.setattr(_Handler, "body", body)
    with pytest.raises(error):
        http.post(b"{}", b"k-1 00")


def test_answers_over_http(http: HttpJobController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "body", b'{"state": "running", "reason": "stops", "detail": "two ranks are left"}')
    assert http.state("a") == JobAnswer(JobActionState.RUNNING, "stops", "two ranks are left")
    monkeypatch.setattr(_Handler, "status", 404)
    assert http.state("a") is None


def test_facts_over_http(http: HttpJobController, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [SignedFact(b"{}", b"k-1 00"), SignedFact(b"[]", b"k-1 01")]
    monkeypatch.setattr(_Handler, "body", facts_body(told))
    assert http.facts() == told
    monkeypatch.setattr(_Handler, "status", 404)
    assert http.facts() == (), "one that says nothing of its jobs"
    monkeypatch.setattr(_Handler, "status", 503)
    with pytest.raises(TargetAwayError):
        http.facts()


def test_nobody_at_the_address_is_a_system_that_is_away() -> None:
    with pytest.raises(TargetAwayError):
        HttpJobController("http://127.0.0.1:1", limit_seconds=1.0).state("a")

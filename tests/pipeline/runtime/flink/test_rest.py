"""The client of Flink's REST interface, against answers as a 2.2 cluster gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.serving import serving
from tocsin.pipeline.runtime.flink.rest import FlinkRest
from tocsin.schemas.errors import ConfigError, EngineError

JOB = "7bb1e3b8d465ba9f71fa62a323dab462"


class Flink:
    """Answers by path; notes what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, Any]] = []
        flink = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                flink.asked.append((self.command, self.path, body))
                found = flink.answers.get(self.path)
                if isinstance(found, list) and found and isinstance(found[0], Step):
                    found = found.pop(0).answer if len(found) > 1 else found[0].answer
                status, data = (404, {"errors": ["Not found."]}) if found is None else (200, found)
                if isinstance(data, Exception):
                    status, data = 500, {"errors": ["Internal server error.", f"Caused by: java.lang.X: {data}"]}
                text = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = _answer  # noqa: N815  # http.server's names

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class Step:
    """One answer of several that come one after the other; the last stays."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


@pytest.fixture
def flink() -> Iterator[Flink]:
    made = Flink()
    with serving(made.server):
        yield made


def job_entry(state: str, name: str = "tocsin", running: int = 4) -> dict[str, Any]:
    return {"jid": JOB, "name": name, "state": state, "duration": 1500, "tasks": {"total": 4, "running": running}}


def test_jobs_and_their_state(flink: Flink) -> None:
    flink.answers["/jobs/overview"] = {"jobs": [job_entry("RUNNING", running=3), job_entry("FAILED", "old", 0)]}
    [one, two] = FlinkRest(flink.url + "/").jobs()

    assert (one.is_running, one.is_over, one.age_seconds) == (False, False, 1.5)
    assert two.is_over


def test_checkpoints_of_a_job_that_has_none_yet(flink: Flink) -> None:
    flink.answers[f"/jobs/{JOB}/checkpoints"] = {"counts": {"completed": 0}, "latest": {"completed": None}}
    found = FlinkRest(flink.url).checkpoints(JOB)

    assert (found.done_count, found.last_path, found.restored_path) == (0, "", "")


@pytest.mark.parametrize(("deletes", "stays"), [(True, False), (False, True)])
def test_whether_a_cancelled_jobs_checkpoint_stays(flink: Flink, *, deletes: bool, stays: bool) -> None:
    kept = {"enabled": True, "delete_on_cancellation": deletes}
    flink.answers[f"/jobs/{JOB}/checkpoints/config"] = {"externalization": kept}

    assert FlinkRest(flink.url).keeps_checkpoints(JOB) is stays


def test_how_old_an_answer_may_be(flink: Flink) -> None:
    flink.answers["/config"] = {"refresh-interval": 1500}

    assert FlinkRest(flink.url).stale_seconds() == 1.5


def test_a_savepoint_is_waited_for(flink: Flink) -> None:
    flink.answers[f"/jobs/{JOB}/savepoints"] = {"request-id": "t1"}
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/s/1"}}
    flink.answers[f"/jobs/{JOB}/savepoints/t1"] = [Step({"status": {"id": "IN_PROGRESS"}}), Step(done)]

    assert FlinkRest(flink.url).savepoint(JOB, "/s") == "file:/s/1"
    assert flink.asked[0][2] == {"cancel-job": False, "target-directory": "/s"}


def test_a_savepoint_that_fails_says_why(flink: Flink) -> None:
    flink.answers[f"/jobs/{JOB}/stop"] = {"request-id": "t1"}
    cause = {"stack-trace": "java.lang.Exception: no\nCaused by: java.io.IOException: disk full\n\tat x.Y(Z.java:1)"}
    flink.answers[f"/jobs/{JOB}/savepoints/t1"] = {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}

    with pytest.raises(EngineError, match="the savepoint failed: IOException: disk full"):
        FlinkRest(flink.url).stop(JOB)


def test_a_cancelled_job_is_waited_for(flink: Flink) -> None:
    flink.answers[f"/jobs/{JOB}?mode=cancel"] = b""
    states = ["CANCELLING", "CANCELED"]
    flink.answers["/jobs/overview"] = [Step({"jobs": [job_entry(state)]}) for state in states]
    FlinkRest(flink.url).cancel(JOB)

    assert flink.asked[0][:2] == ("PATCH", f"/jobs/{JOB}?mode=cancel")


def test_a_metric_is_one_number_over_all_parts_that_have_it(flink: Flink) -> None:
    flink.answers[f"/jobs/{JOB}"] = {"vertices": [{"id": "a"}, {"id": "b"}]}
    for vertex, answer in (("a", []), ("b", [{"id": "x", "sum": 7.0}])):
        flink.answers[f"/jobs/{JOB}/vertices/{vertex}/subtasks/metrics?get=x&agg=sum"] = answer
        flink.answers[f"/jobs/{JOB}/vertices/{vertex}/subtasks/metrics?get=y&agg=sum"] = []

    assert FlinkRest(flink.url).metric(JOB, "x") == 7.0
    assert FlinkRest(flink.url).metric(JOB, "y") is None


def test_a_refusal_and_an_answer_that_is_none_are_sentences(flink: Flink) -> None:
    with pytest.raises(EngineError, match=r"refuses /overview \(404\): Not found"):
        FlinkRest(flink.url).overview()
    flink.answers["/overview"] = ValueError("no leader yet")
    with pytest.raises(EngineError, match=r"\(500\): X: no leader yet"):
        FlinkRest(flink.url).overview()
    flink.answers["/overview"] = b"<html>"
    with pytest.raises(EngineError, match="no answer from Flink"):
        FlinkRest(flink.url).overview()


def test_nobody_there() -> None:
    with pytest.raises(EngineError, match=r"no answer from Flink at http://127.0.0.1:1: .*refused"):
        FlinkRest("http://127.0.0.1:1").overview()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8081", "ftp://x:1", "http://", "http://x:y", "http://x:1?a=b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        FlinkRest(url)

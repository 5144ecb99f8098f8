"""``tocsin alerts``: check, schema and test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.cli.main import main
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, Notice, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue

BODIES: list[dict[str, object]] = []


class Hook(BaseHTTPRequestHandler):
    """Takes each message."""

    def do_POST(self) -> None:
        BODIES.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    BODIES.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def _file(folder: Path, port: int = 9) -> Path:
    path = folder / "alerts.yaml"
    path.write_text(
        "version: 1\n"
        "receivers:\n"
        f"  hook: {{kind: webhook, url: 'http://127.0.0.1:{port}/', signing_key_env: TOCSIN_TEST_KEY}}\n"
        "routes:\n  - {name: all, receiver: hook}\n"
    )
    return path


def test_check_says_what_goes_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "check", str(_file(tmp_path))]) == 0
    out = capsys.readouterr().out

    assert "route all: to hook (webhook): not degraded, confirmed" in out
    assert "  information, once an attempt: cause stage_imbalance (shipped)" in out
    assert "in 600 s a route tells 5 incidents of one kind" in out
    assert "watchdog: none" in out


def test_check_names_a_typo_by_line_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path)
    path.write_text(path.read_text().replace("receiver: hook}", "reciever: hook}"))

    assert main(["alerts", "check", str(path)]) == 2
    assert "alerts.yaml:5: routes.0.reciever" in capsys.readouterr().err


def test_check_names_all_typos_in_one_go_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path)
    text = path.read_text().replace("receiver: hook}", "reciever: hook}").replace("webhook", "webhok")
    path.write_text(text + "watchdog: {receiver: hok}\n")

    assert main(["alerts", "check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("alerts.yaml:")[2].split(" ")[1] for line in lines] == [
        "receivers.hook.kind",
        "routes.0.reciever",
        "watchdog.receiver",
    ]


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["required"] == ["version", "receivers", "routes"]


def test_a_test_says_that_it_is_one(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_TEST_KEY", "k" * 40)
    assert main(["alerts", "test", "all", "--config", str(_file(tmp_path, port))]) == 0

    assert "hook: delivered" in capsys.readouterr().out
    (body,) = BODIES
    assert body["kind"] == "test"
    assert "k" * 40 not in json.dumps(body)


def test_a_test_that_does_not_arrive_is_a_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "test", "all", "--config", str(_file(tmp_path))]) == 1
    assert "secret_missing" in capsys.readouterr().out
    assert main(["alerts", "test", "al", "--config", str(_file(tmp_path))]) == 2
    assert "did you mean all?" in capsys.readouterr().err


def test_the_list_says_what_stands_and_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = AlertQueue(tmp_path / "alerts.db", at(0))
    notices = [
        (Notice("all", NoticeKind.FIRING, AlertSeverity.PAGE, verdict(number), at(0), at(0)), "hook")
        for number in (1, 2)
    ]
    queue.put(notices, at(0))
    queue.delivered(queue.take("hook", at(1), 1), ("",), at(1))
    queue.failed(queue.take("hook", at(1), 1), DeliveryReason.TIMED_OUT, at(2))

    assert main(["alerts", "list", "--data", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("standing  all -> hook")
    assert "page, firing  0000000000000001  host n1: gpu lost" in first
    assert second.startswith("waiting   all -> hook")
    assert "tried 1 times" in second
    assert main(["alerts", "list", "--json", "--data", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["state"], row["verdict_id"], row["kind"]) for row in rows] == [
        ("standing", f"{1:016x}", "firing"),
        ("waiting", f"{2:016x}", "firing"),
    ]


def test_a_list_without_a_queue_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "list", "--data", str(tmp_path)]) == 2
    assert "alerts.db" in capsys.readouterr().err

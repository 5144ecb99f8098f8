"""The control socket: one line in, one line out, and nothing a client does stops the engine."""

import contextlib
import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.descriptors import many_open_files
from tocsin.pipeline.runtime.embedded.control_socket import (
    MAX_LINE_BYTES,
    ControlClient,
    ControlServer,
    EngineAbsentError,
    EngineRefusedError,
    sql_handler,
)
from tocsin.schemas.errors import EngineError, StoreError

left = threading.Event()


def fail(_: dict[str, Any]) -> dict[str, Any]:
    raise StoreError("no such table: nix")


def boom(_: dict[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError


def count(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for n in range(request["to"]):
        yield {"n": n}
        yield {}  # nothing new


def forever(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        yield {"n": 0}
        while True:
            left.wait(0.01)
            yield {}
    finally:
        left.set()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    left.clear()
    handlers = {
        "echo": lambda request: {"text": request["text"]},
        "sql": sql_handler(lambda sql, fmt: sql.encode() if fmt == "CSV" else b"\xff\xfe"),
        "fail": fail,
        "boom": boom,
        "count": count,
        "forever": forever,
    }
    with ControlServer(tmp_path / "run" / "control.sock", handlers):
        yield tmp_path / "run" / "control.sock"


def raw(path: Path, data: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError):  # the server refused before it read all
            connection.sendall(data)
        answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
        return answer


def test_any_text_comes_back(path: Path) -> None:
    text = "it's \"\n\u2028 ☃ \udc80"
    assert ControlClient(path).call("echo", text=text) == {"ok": True, "text": text}


def test_ping_needs_no_handler(path: Path) -> None:
    assert ControlClient(path).call("ping")["ok"] is True


def test_only_the_owner_may_ask(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_stream_has_many_lines(path: Path) -> None:
    assert [a["n"] for a in ControlClient(path).stream("count", to=3)] == [0, 1, 2]


def test_a_stream_ends_when_its_client_leaves(path: Path) -> None:
    answers = ControlClient(path).stream("forever")
    assert next(answers)["n"] == 0
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    assert left.wait(60)


def test_an_explained_error_keeps_its_reason(path: Path) -> None:
    with pytest.raises(EngineRefusedError, match="no such table: nix") as caught:
        ControlClient(path).call("fail")
    assert caught.value.reason == "store"


def test_an_unforeseen_error_ends_one_request_only(path: Path) -> None:
    with pytest.raises(EngineError, match="without an answer"):
        ControlClient(path).call("boom")
    assert ControlClient(path).call("ping")["ok"]


def test_an_unknown_command_lists_the_known(path: Path) -> None:
    with pytest.raises(EngineRefusedError, match=r"unknown command 'nix'.*count.*echo") as caught:
        ControlClient(path).call("nix")
    assert caught.value.reason == "unknown_command"


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"cmd": 1}\n', b"\xff\n", b"null\n"])
def test_what_is_no_request_is_refused(path: Path, line: bytes) -> None:
    assert raw(path, line)["reason"] == "bad_request"


def test_a_line_over_1_mb_is_refused_on_both_sides(path: Path) -> None:
    assert raw(path, b"x" * (MAX_LINE_BYTES + 1))["reason"] == "too_large"
    with pytest.raises(EngineRefusedError) as caught:
        ControlClient(path).call("echo", text="x" * MAX_LINE_BYTES)
    assert caught.value.reason == "too_large"


def test_sql_answers_text_and_refuses_bytes(path: Path) -> None:
    client = ControlClient(path)
    assert client.call("sql", query="a☃", format="CSV")["result"] == "a☃"
    with pytest.raises(EngineRefusedError, match="no text"):
        client.call("sql", query="a", format="Parquet")
    with pytest.raises(EngineRefusedError, match="query"):
        client.call("sql", query=1)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(EngineAbsentError, match="no engine listens"):
        ControlClient(tmp_path / "none.sock").call("ping")


def test_what_a_dead_engine_left_is_replaced_a_living_one_is_not(tmp_path: Path) -> None:
    stale = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    with pytest.raises(EngineAbsentError):
        ControlClient(stale).call("ping")
    with ControlServer(stale, {}):
        with pytest.raises(EngineError, match="already listens"):
            ControlServer(stale, {}).start()
        assert ControlClient(stale).call("ping")["ok"]
    assert not stale.exists()


def test_a_path_too_long_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot listen"):
        ControlServer(tmp_path / ("x" * 120), {}).start()


def test_an_engine_with_many_open_files_streams(path: Path) -> None:
    with many_open_files():
        assert [a["n"] for a in ControlClient(path).stream("count", to=3)] == [0, 1, 2]

"""``serve`` does not live on without one of its threads; ``status`` and ``incidents`` say that nothing is judged."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli import drill_mark, incidents, serve, status
from tocsin.cli.paths import control_socket
from tocsin.pipeline.lab.testing import MemoryStore
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.schemas.records import NS_PER_SECOND


def unasked() -> dict[str, Any]:
    """Return what the parsers of both commands give where nothing is said."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    status.add_arguments(parser)
    incidents.add_arguments(parser)
    return vars(parser.parse_args([]))


ASK = unasked()


@pytest.fixture
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def service_in(folder: Path, steady_ns: Any = None) -> EngineService:
    config = ServiceConfig(f"unix:{folder}/e.sock", control_socket(folder), dead_letter_folder=folder)
    more = {} if steady_ns is None else {"steady_ns": steady_ns}
    return EngineService(config, MemoryStore(), **more)


def dies(*_: object) -> None:
    raise RecursionError("unforeseen")


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("name", ["ticker", "agents", "store", "dead_letters", "control"])
def test_a_thread_that_dies_ends_serve(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "_LOOK_SECONDS", 0.05)
    service = service_in(tmp_path)
    if name == "control":
        monkeypatch.setattr("tocsin.pipeline.runtime.embedded.control_socket._Server.serve_forever", dies)
        monkeypatch.setattr("tocsin.pipeline.runtime.embedded.control_socket._Server.shutdown", lambda _: None)
    else:
        thread = {
            "ticker": service._ticker,  # noqa: SLF001  # the service's thread
            "agents": service.server.thread,
            "store": service.writer.thread,
            "dead_letters": service.dead_letters.thread,
        }[name]
        monkeypatch.setattr(thread, "_run", dies)
    forced: list[str] = []

    words = serve._serve_until_stopped(service, "", str(tmp_path), lambda: forced.append(name))  # noqa: SLF001  # the loop

    assert words == f"dead threads: {name} (RecursionError)"
    assert words in capsys.readouterr().err
    assert forced == [name]  # a process that does not come to its end is ended


def test_a_process_that_does_not_come_to_its_end_is_ended() -> None:
    script = (
        "import time; from tocsin.cli import serve; serve._END_SECONDS = 0.1; serve._end_by_force_later();"
        " time.sleep(60); print('alive')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)

    assert (ended.returncode, ended.stdout) == (2, "")


@pytest.mark.usefixtures("signals")
def test_a_page_s_port_that_is_taken_is_not_fatal_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tocsin.collectors.metrics_page import MetricsPage

    other = MetricsPage("127.0.0.1:0", list, lambda: (True, "ok"))
    service = service_in(tmp_path)
    monkeypatch.setattr(serve, "_LOOK_SECONDS", 0.05)
    shown: list[int] = []

    def look() -> str:
        shown.append(status.run(argparse.Namespace(**{**ASK, "data": tmp_path})))
        return "enough"

    monkeypatch.setattr(service, "death", look)
    serve._serve_until_stopped(service, f"127.0.0.1:{other.port},127.0.0.1:0", str(tmp_path), lambda: None)  # noqa: SLF001
    other.close()

    assert service.pages[0].startswith("none: ")
    assert service.pages[1].startswith("127.0.0.1:")
    assert "no metrics page" in capsys.readouterr().out


def test_an_old_tick_is_an_error_of_status_and_incidents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = [0]
    service = service_in(tmp_path, lambda: steady[0])
    service.start(ticking=False)
    service.tick(NS_PER_SECOND)
    monkeypatch.setattr(incidents, "print_list", lambda *_: None)
    ask = {**ASK, "data": tmp_path}
    try:
        fresh = status.run(argparse.Namespace(**ask)), incidents.run(argparse.Namespace(**ask))
        quiet = capsys.readouterr().err
        steady[0] = 12 * NS_PER_SECOND
        old = status.run(argparse.Namespace(**ask)), incidents.run(argparse.Namespace(**ask))
    finally:
        service.stop()
    words = capsys.readouterr().err

    assert (fresh, old) == ((0, 0), (2, 2))
    assert not quiet
    assert words.count("the engine's newest tick is 12 s old: it judges nothing now") == 2


def test_incidents_of_a_drill_that_ended_need_no_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drill_mark.leave_drill_mark(tmp_path)
    monkeypatch.setattr(incidents, "print_list", lambda *_: None)
    ask = {**ASK, "data": tmp_path}

    assert incidents.run(argparse.Namespace(**ask)) == 0

"""M2: silent clients of the pages. M4: the engine's own clock is set."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.attacks.registry import Outcome, attack
from tocsin.collectors.metrics_page import MAX_CLIENTS, MetricsPage
from tocsin.pipeline.lab.testing import FakeJob, JobShape, MemoryStore
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode


@attack("M2", "silent clients")
def silent_clients() -> Outcome:
    """More connections that say nothing, or half a line, than may be open: probes are answered between them."""
    page = MetricsPage("127.0.0.1:0", list, lambda: (True, "ok"))
    page.start()
    silent: list[socket.socket] = []
    answered = 0
    for number in range(MAX_CLIENTS + 30):
        client = socket.create_connection(("127.0.0.1", page.port))
        if number % 2:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost")
        silent.append(client)
        if number % 10 == 0:
            with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/healthz", timeout=10) as answer:
                answered += answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/healthz", timeout=10) as answer:
        answered += answer.status == 200  # all who came before it are accepted by now
    still_open = sum(_is_open(client) for client in silent)
    for client in silent:
        client.close()
    page.close()
    # Had they been waited for, the deadline of a client would have closed them all.
    held = answered == 1 + len(range(0, MAX_CLIENTS + 30, 10)) and 0 < still_open <= MAX_CLIENTS
    return Outcome(len(silent), f"{answered} probes answered, {still_open} silent clients open meanwhile", held)


def _is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@attack("M4", "the engine's wall clock is set")
def clock_is_set() -> Outcome:
    """An hour ahead for one tick, a minute back, days ahead: a killed rank is named."""
    steps = ((3600.0, -3600.0), (-60.0, 60.0), (86_400.0 * 30, -86_400.0 * 30))
    held = [pair[0] for pair in steps if _named_after(pair) == (["n03"], 0)]
    return Outcome(len(steps), f"named rightly and nobody else after steps of {held} s", len(held) == len(steps))


def _named_after(steps: tuple[float, float]) -> tuple[list[str], int]:
    """The first accused after the steps, one tick apart, and a kill; and how many verdicts came before it."""
    job = FakeJob(JobShape(rank_count=6))
    wall, steady = [job.now_ns], [0]
    with TemporaryDirectory() as folder:
        config = ServiceConfig(f"unix:{folder}/e.sock", Path(folder) / "c.sock")
        service = EngineService(config, MemoryStore(), lambda: wall[0], None, lambda: steady[0])
        for second in range(53):
            if second == 44:
                before = len(service.memory.lines)
                job.kill(3)
            for record in job.second():
                service.engine.take(encode(record))
            step = steps[second - 20] if 20 <= second < 22 else 0.0
            steady[0] += NS_PER_SECOND
            wall[0] += NS_PER_SECOND + round(step * NS_PER_SECOND)
            service.on_second(wall[0] // NS_PER_SECOND * NS_PER_SECOND)
        service.server.stop_now()
        lines = [line["verdict"] for line in service.memory.lines]
    return [suspect["name"] for suspect in lines[before]["suspects"]] if len(lines) > before else [], before

"""C1, H3 against a real ``tocsin serve``: floods while a rank of a live job dies; a thread that dies."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.attacks.registry import Outcome, attack
from tests.pipeline.runtime.embedded.listener.kit import Visitor
from tocsin.cli.paths import control_socket
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError
from tocsin.pipeline.runtime.embedded.listener.limits import raise_descriptor_limit
from tocsin.schemas.errors import EngineError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

ROOT = Path(__file__).resolve().parents[2]
KILLED_AFTER_SECONDS, NAMED_WITHIN_SECONDS = 25, 12
_START_SECONDS = 90.0


def _arguments(folder: Path) -> list[str]:
    return ["serve", "--data", str(folder), "--listen", f"unix:{folder}/e.sock", "--metrics-listen", ""]


@contextmanager
def _serving(folder: Path, wrapper: tuple[str, ...] = ()) -> Iterator[ControlClient]:
    """A real engine."""
    log = (folder / "serve.log").open("wb")
    command = [*wrapper, sys.executable, "-m", "tocsin", *_arguments(folder)]
    process = subprocess.Popen(command, stderr=log, cwd=ROOT)
    client = ControlClient(control_socket(folder), timeout_seconds=30.0)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                client.call("ping")
                break
            except EngineAbsentError:
                time.sleep(0.1)
        yield client
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _live_seconds(job: FakeJob, address: str, seconds: int) -> Iterator[int]:
    """A job in real time, an agent a host; yields after each second."""
    agents: dict[str, Visitor] = {}
    for second in range(seconds):
        for record in job.second():
            if record.host not in agents:
                agents[record.host] = Visitor(address, record.host)
            agents[record.host].send(encode(record))
        for agent in agents.values():
            agent.send()
            agent.drain()
        time.sleep(max(0.0, job.now_ns / NS_PER_SECOND - time.time()))
        yield second


def _under_flood(kind: str) -> Outcome:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(_serving(folder))
        address = f"unix:{folder}/e.sock"
        flooder = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.flooder", address, kind, str(KILLED_AFTER_SECONDS + 20)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(flooder.wait)
        reported: list[dict[str, Any]] = []
        threading.Thread(target=_listen, args=(client, reported), daemon=True).start()
        job = FakeJob(JobShape(rank_count=6, start_ns=(time.time_ns() // NS_PER_SECOND - 1) * NS_PER_SECOND))
        for second in _live_seconds(job, address, KILLED_AFTER_SECONDS + NAMED_WITHIN_SECONDS):
            if second == KILLED_AFTER_SECONDS:
                job.kill(3)
        status = client.call("status", job_id=job.job.job_id)
        flooder.terminate()
    of_job = [line for line in reported if line["job_id"] == job.job.job_id]
    named = [suspect["name"] for line in of_job[:1] for suspect in line["suspects"]]
    seconds = (of_job[0]["detected_ns"] - of_job[0]["onset_ns"]) / NS_PER_SECOND if of_job else float("inf")
    late = sum(host["late"] for one in status["jobs"] for name, host in one["hosts"].items() if name.startswith("n"))
    effect = f"named {named} after {seconds:.1f} s, {late} live records late, {len(reported)} lines in all"
    others = {s["name"] for line in of_job for s in line["suspects"]} - {"n03"}
    return Outcome(1, effect, named == ["n03"] and not others)


def _listen(client: ControlClient, reported: list[dict[str, Any]]) -> None:
    """Collect verdict lines until the engine ends."""
    with contextlib.suppress(EngineError):
        for line in client.stream("verdicts", after=0):
            reported.append(line["verdict"])  # noqa: PERF401  # each as it comes: the stream does not end


for _kind in ("late", "garbage", "jobs", "hosts"):
    attack("H3", f"a flood of {_kind} at a real engine", slow=True)(lambda kind=_kind: _under_flood(kind))  # type: ignore[misc]


def _rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


@attack("H2", "a real engine with 1,024 descriptors", slow=True)
def idle_and_unfinished() -> Outcome:
    """1,500 silent connections, 212 with 15.9 MB of a message: an agent is heard; log and memory stay small."""
    raise_descriptor_limit(8_192)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(_serving(folder, ("prlimit", "--nofile=1024:1024")))
        address, pid = f"unix:{folder}/e.sock", int(client.call("ping")["pid"])
        before_bytes = _rss_bytes(pid)
        silent = [Visitor(address) for _ in range(1_500)]
        hostile = [Visitor(address, f"evil{number}") for number in range(212)]
        for one in hostile:
            one.unsent += (15_900_000).to_bytes(4, "little") + b"T" * 15_800_000
        most_bytes = 0
        for _ in range(60):
            for one in hostile:
                one.send()
            most_bytes = max(most_bytes, _rss_bytes(pid))
            time.sleep(0.1)
        agent = Visitor(address, "n0")
        time.sleep(3.0)
        is_heard = any(answer["t"] == "welcome" for answer in agent.answers())
        answer = client.call("status")
        log_bytes = (folder / "serve.log").stat().st_size
        for one in (*silent, *hostile, agent):
            one.socket.close()
    grown_bytes = most_bytes - before_bytes
    effect = f"{grown_bytes >> 20} MB more, log of {log_bytes} bytes, an agent is heard: {is_heard}, {answer['live']}"
    held = is_heard and grown_bytes < 700 << 20 and log_bytes < 100_000 and bool(answer["is_live"])
    return Outcome(1_712, effect, held)


@attack("C1", "a ticker that dies in a real engine", slow=True)
def ticker_dies() -> Outcome:
    """What nothing catches ends the process with a status that is not 0, in words."""
    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import sys; from tocsin.pipeline.runtime.embedded import service; from tocsin.cli.main import main\n"
            "def tick(*_): raise MemoryError\n"
            f"service.EngineService.tick = tick\nsys.exit(main({_arguments(Path(folder))!r}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
    words = done.stderr.strip().rpartition("\n")[2]
    return Outcome(1, f"status {done.returncode}: {words}"[:200], done.returncode == 2 and "ticker" in words)

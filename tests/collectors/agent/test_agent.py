"""The agent as a process: hooks speak, an engine hears; and the parts that need its sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.collectors.peer import EnginePeer, FakeHook, wait_until
from tocsin.cli.main import main
from tocsin.collectors.agent.agent import (
    Agent,
    AgentConfig,
    Parts,
    Wakeup,
)
from tocsin.collectors.agent.core import CoreConfig
from tocsin.collectors.agent.datagram_socket import DatagramSocket
from tocsin.collectors.agent.job_state import HostPlace
from tocsin.collectors.api import Reading
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.sources.process import ProcessWatcher
from tocsin.collectors.transport.sink import MemorySink
from tocsin.schemas.errors import ConfigError, TransportError
from tocsin.schemas.records import (
    CollectiveBatch,
    Event,
    Frame,
    Groups,
    HostStatus,
    ProbeAnswer,
    Record,
    StepBatch,
    Topology,
)
from tocsin.schemas.wire.codec import decode

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Running:
    """An agent, an engine that it speaks to, and their folder."""

    peer: EnginePeer
    process: subprocess.Popen[bytes]
    folder: Path

    def hook(self, rank: int = 0) -> FakeHook:
        return FakeHook(self.folder / "agent", rank)

    def names(self) -> list[str]:
        return [event.name for event in self.peer.of(Event)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(*flags: str) -> Running:
        peer = running[-1].peer if running else EnginePeer(tmp_path / "engine")
        named = {"engine": f"unix:{peer.path}", "socket": f"{tmp_path}/agent", "spool-dir": f"{tmp_path}/spool"}
        words = [f"--{name}={value}" for name, value in named.items()]
        command = [sys.executable, "-m", "tocsin", "agent", "--host=h", *words, *flags]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        running.append(Running(peer, subprocess.Popen(command, env=env), tmp_path))
        wait_until((tmp_path / "agent").exists)
        return running[-1]

    yield begin
    for one in running:
        one.process.kill()
        one.process.wait()
    if running:
        running[0].peer.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_from_hooks_to_an_engine_and_a_clean_end(start: Callable[..., Running]) -> None:
    port = free_port()
    agent = start(f"--metrics-listen=127.0.0.1:{port}", f"--as-process-tree={os.getpid()}", "--leaf=leaf3")
    hooks = [agent.hook(rank) for rank in range(2)]
    for hook in hooks:
        hook.send("hello", pid=1, world_size=2, dp=hook.rank)
        hook.send("groups", groups=[{"comm_id": "w", "kind": "world", "ranks": [0, 1]}])
    with pytest.raises(OSError, match="too long"):
        hooks[0].send_bytes(b"x" * 10_000_000)
    hooks[0].send_bytes(b"x" * 202_000)
    hooks[0].send_bytes(b"{")
    hooks[0].send("step", step="one")
    for step in range(12):
        for hook in hooks:
            now = time.time_ns()
            hook.send("step", step=step, dur=0.01, loss=1.0, coll=[["w", "all_reduce", step, 8, now - 9, now]])
        time.sleep(0.02)
    hooks[1].send("nan", step=12, what="loss", value="nan")
    kinds = {Frame, StepBatch, CollectiveBatch, Event, Topology, Groups, HostStatus}

    def complete() -> bool:
        frames = [f for f in agent.peer.of(Frame) if f.job.job_id == "j"]
        statuses = [s for s in agent.peer.of(HostStatus) if s.job.job_id == "j" and s.clock_error_ns < 10**8]
        return bool({type(record) for record in agent.peer.records} >= kinds and frames and statuses)

    wait_until(complete, 60)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    health = urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).read().decode()
    agent.process.send_signal(signal.SIGTERM)

    assert agent.process.wait(60) == 0
    wait_until(lambda: agent.peer.events("agent")[-1].payload["edge"] == "stop")
    rows = [row for batch in agent.peer.of(StepBatch) for row in batch.rows]
    assert sorted((row.rank, row.step) for row in rows) == [(rank, step) for rank in (0, 1) for step in range(12)]
    assert agent.peer.of(Topology)[-1].places[1].pid == os.getpid()  # as the kernel says, not the hook
    assert agent.peer.of(Topology)[-1].places[1].leaf == "leaf3"
    status = next(s for s in agent.peer.of(HostStatus) if s.job.job_id == "j")
    assert status.hook_present
    assert set(status.collectors) == {"pose_process_tree", "disk", "process"}
    for reason in ("too_large", "undecodable", "bad_field"):
        assert f'tocsin_agent_dead_letters_total{{reason="{reason}"}} 1' in metrics
    assert 'tocsin_agent_collector_success{collector="process"} 1' in metrics
    assert health == "ok\n"
    assert not (agent.folder / "agent").exists()


def test_an_agent_that_was_killed_leaves_a_socket_that_the_next_one_replaces(start: Callable[..., Running]) -> None:
    first = start()
    first.hook().send("hello", pid=1, world_size=1)
    wait_until(lambda: "hello" in first.names())
    first.process.kill()
    first.process.wait()
    inode = (first.folder / "agent").stat().st_ino
    second = start()
    wait_until(lambda: (first.folder / "agent").stat().st_ino != inode)
    second.hook().send("hello", pid=1, world_size=1)

    wait_until(lambda: second.names().count("hello") == 2)
    starts = [event for event in second.peer.events("agent") if event.job.job_id == "j"]
    assert [event.payload["edge"] for event in starts] == ["start", "start"]


def test_what_the_socket_took_is_sent_once_over_restarts(start: Callable[..., Running]) -> None:
    """SIGTERM in the middle of a slice: its steps left with nobody."""
    agent = start()
    taken: list[int] = []
    hook = agent.hook()
    for life in range(3):
        hook.send("hello", pid=1, world_size=1)
        for _ in range(12):
            now = time.time_ns()
            hook.send("step", step=len(taken), dur=0.001, coll=[["w", "all_reduce", len(taken), 8, now - 9, now]])
            taken.append(len(taken))
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0
        if life < 2:
            agent = start()

    rows = [row for batch in agent.peer.of(StepBatch) for row in batch.rows]
    assert sorted(row.step for row in rows) == taken
    assert all(row.ts_ns <= batch.ts_ns for batch in agent.peer.of(StepBatch) for row in batch.rows)
    done = [row.op_seq for batch in agent.peer.of(CollectiveBatch) for row in batch.rows]
    assert set(taken) == set(done)


def test_a_frozen_child_and_a_killed_one_are_events(start: Callable[..., Running]) -> None:
    agent = start()
    code = "import sys; from pathlib import Path; from tests.collectors.peer import FakeHook; import time\n"
    code += f"FakeHook(Path({str(agent.folder / 'agent')!r})).send('hello', pid=1, world_size=1); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, cwd=ROOT
    )
    try:
        wait_until(lambda: "hello" in agent.names())
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: agent.peer.events("stopped"))
    finally:
        child.kill()
    wait_until(lambda: agent.peer.events("process_gone"))
    child.wait()

    assert agent.peer.events("stopped")[0].payload["pid"] == child.pid
    assert agent.peer.events("process_gone")[0].rank == 0


def test_a_clock_ten_minutes_ahead_is_corrected(start: Callable[..., Running]) -> None:
    agent = start()
    wait_until(lambda: agent.peer.controls)
    agent.peer.offset_ns = 600 * 10**9

    def too_new(data: bytes) -> dict[str, object] | None:
        ahead_ns = decode(data).ts_ns - (time.time_ns() - agent.peer.offset_ns)
        return {"reason": "clock_ahead", "message": "", "ahead_ns": ahead_ns} if ahead_ns > 2 * 10**9 else None

    agent.peer.refuse = too_new
    agent.peer.hang_up()  # the engine's clock was moved, not the host's: the agent has to ask anew
    agent.hook().send("hello", pid=1, world_size=1)
    wait_until(lambda: agent.peer.events("clock_ahead"), 60)
    ahead = agent.peer.events("clock_ahead")[0]

    assert ahead.payload["ahead_seconds"] == pytest.approx(600, abs=1)
    assert ahead.ts_ns == pytest.approx(time.time_ns() - 600 * 10**9, abs=10**10)


def answers(records: list[Record]) -> dict[str, ProbeAnswer]:
    return {record.request_id: record for record in records if isinstance(record, ProbeAnswer)}


def test_probes_are_answered_and_other_users_files_are_not_read(start: Callable[..., Running]) -> None:
    agent = start()
    hook = agent.hook(3)
    reply = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    reply.bind(str(agent.folder / "reply"))
    reply.settimeout(60)
    now = time.time_ns()
    hook.send("hello", pid=1, world_size=4, reply=str(agent.folder / "reply"))
    hook.send("step", step=1, dur=0.1, coll=[["w", "all_reduce", 5, 8, now - 9, now]])
    wait_until(lambda: "hello" in agent.names())

    agent.peer.say({"t": "probe", "request_id": "ring", "probe": "ring", "rank": 3})
    agent.peer.say({"t": "probe", "request_id": "none", "probe": "stacks", "rank": 3})
    agent.peer.say({"t": "probe", "request_id": "fr", "probe": "flight_recorder", "rank": -1})
    request = json.loads(reply.recv(4096))
    dump = Path(request["dir"]) / "fr_3"
    dump.write_bytes(b"dump of rank 3")
    hook.send("dump", path=str(dump), request_id=request["request_id"], why="probe")
    wait_until(lambda: set(answers(agent.peer.records)) >= {"ring", "none", "fr"})
    (agent.folder / "link").symlink_to("/etc/hostname")
    hook.send("dump", path=str(agent.folder / "link"), request_id="", why="stuck")
    wait_until(lambda: "stuck" in answers(agent.peer.records))
    reply.close()
    found = answers(agent.peer.records)

    ring = decode(found["ring"].payload)
    assert isinstance(ring, CollectiveBatch)
    assert [row.op_seq for row in ring.rows] == [5]
    assert (found["fr"].payload, found["fr"].rank) == (b"dump of rank 3", 3)
    assert not dump.exists()
    assert found["none"].payload == b""
    assert found["stuck"].payload == b""


def test_a_hooks_own_dump_is_read_below_the_folder_of_dumps(start: Callable[..., Running], tmp_path: Path) -> None:
    agent = start(f"--dump-dir={tmp_path}/dumps")
    hook = agent.hook(3)
    hook.send("hello", pid=1, world_size=4)
    for folder, text in (("kept", b"secret"), ("dumps/job", b"dump of rank 3")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fr_3").write_bytes(text)
        hook.send("dump", path=str(tmp_path / folder / "fr_3"), request_id="", why="stuck")
    wait_until(lambda: len(agent.peer.of(ProbeAnswer)) == 2)

    assert sorted(answer.payload for answer in agent.peer.of(ProbeAnswer)) == [b"", b"dump of rank 3"]
    assert (tmp_path / "dumps").stat().st_mode & 0o7777 == 0o1733


def test_a_launcher_reports_the_exit_of_its_rank_and_is_gone_at_once(start: Callable[..., Running]) -> None:
    agent = start()
    code = "import sys; from pathlib import Path; from tests.collectors.peer import FakeHook\n"
    code += f"FakeHook(Path({str(agent.folder / 'agent')!r}), 4).send('hello', pid=1, world_size=8); sys.exit(3)"
    words = ["exec", f"--agent-socket={agent.folder}/agent", "--", sys.executable, "-c", code]
    identity = {"TOCSIN_CLUSTER": "c", "TOCSIN_JOB_ID": "j", "TOCSIN_RANK": "4"}
    env = {**os.environ, **identity, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    found = subprocess.run([sys.executable, "-m", "tocsin", *words], env=env, cwd=ROOT, check=False)
    wait_until(lambda: agent.peer.events("exit"))

    assert found.returncode == 3
    assert [(event.rank, event.payload["code"]) for event in agent.peer.events("exit")] == [(4, 3)]
    assert "hello" in agent.names()


class Stubborn:
    """A collector that raises, or that does not come back."""

    period_seconds = 0.05

    def __init__(self, name: str, gate: threading.Event | None = None) -> None:
        self.name = name
        self.gate = gate

    def collect(self, now_ns: int) -> Reading:
        if self.gate is None:
            raise RuntimeError("broken source")
        self.gate.wait()
        return Reading()


def test_collectors_that_raise_or_hang_are_seen_and_the_rest_goes_on(tmp_path: Path) -> None:
    system, sink, wake, gate = SystemClock(), MemorySink(), Wakeup(), threading.Event()
    watcher = ProcessWatcher(system)
    collectors = (Stubborn("raises"), Stubborn("hangs", gate), watcher)
    config = AgentConfig(CoreConfig(HostPlace("h")), str(tmp_path / "a"), deadline_seconds=0.2)
    agent = Agent(config, Parts(sink, watcher, collectors), SteadyClock(system), wake)
    thread = threading.Thread(target=agent.run)
    thread.start()

    def success() -> dict[str, float]:
        family = next(f for f in agent.families() if f.name == "tocsin_agent_collector_success")
        return {sample.labels["collector"]: sample.value for sample in family.samples}

    wait_until(lambda: success() == {"raises": 0.0, "hangs": 0.0, "process": 1.0})
    FakeHook(tmp_path / "a").send("hello", pid=1, world_size=1)
    wait_until(lambda: any(getattr(record, "name", "") == "hello" for record in sink.records))
    assert agent.health() == (True, "ok")
    wait_until(lambda: agent.ready() == (False, "collectors fail: hangs, raises"))  # a busy machine hangs for moments
    agent.stop()
    thread.join(60)
    gate.set()

    assert not thread.is_alive()
    last = sink.records[-1]
    assert isinstance(last, Event)
    assert (last.name, last.payload) == ("agent", {"edge": "stop"})


class DeadSink(MemorySink):
    """A sink whose thread died."""

    def is_alive(self) -> bool:
        return False


def test_an_agent_whose_sink_died_ends_with_an_error(tmp_path: Path) -> None:
    """Whoever started it starts it anew: it would take records and send none."""
    system = SystemClock()
    watcher = ProcessWatcher(system)
    config = AgentConfig(CoreConfig(HostPlace("h")), str(tmp_path / "a"))
    agent = Agent(config, Parts(DeadSink(), watcher, ()), SteadyClock(system), Wakeup())

    assert agent.ready() == (False, "no engine is connected, 0 records wait in the spool")
    with pytest.raises(TransportError, match="the thread that sends has died"):
        agent.run()


def test_wrong_settings_are_said_in_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TOCSIN_SPOOL_DIR": str(tmp_path / "s")}
    command = [sys.executable, "-m", "tocsin", "agent", "--engine=nowhere", f"--socket={tmp_path}/a"]
    found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False)

    assert found.returncode == 2
    must = "unix:PATH or HOST:PORT ([ADDRESS]:PORT for IPv6)"
    assert found.stderr == f"tocsin agent: engine = 'nowhere': must be {must}\n"


@pytest.mark.parametrize(
    ("flags", "env", "named"),
    [
        (["--host="], {}, "host = ''"),
        ([], {"TOCSIN_HOST": ""}, "host = ''"),
        (["--host", "h" * 1025], {}, "host = 'hhh"),
        (["--host=h", "--cluster", "c" * 1025], {}, "cluster = 'ccc"),
        (["--host=h", "--leaf", "l" * 1025], {}, "leaf = 'lll"),
        (["--host=h", "--period-seconds=nan"], {}, "period-seconds = nan"),
        (["--host=h", "--period-seconds=inf"], {}, "period-seconds = inf"),
    ],
)
def test_names_and_periods_that_no_record_could_carry_are_refused_at_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    env: dict[str, str],
    named: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tocsin.cli.agent.set_up_logs", lambda _: None)  # it would log into this test's stderr for good
    words = [f"--socket={tmp_path}/a", "--spool-dir=", f"--engine=unix:{tmp_path}/e", *flags]

    assert main(["agent", *words]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.fixture
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_an_agent_that_is_ended_as_soon_as_it_has_its_socket_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the socket took is in the spool, and the socket is gone."""

    def bound(path: str) -> DatagramSocket:
        made = DatagramSocket(path)
        FakeHook(Path(path)).send("hello", pid=1, world_size=1)
        os.kill(os.getpid(), signal.SIGTERM)
        return made

    monkeypatch.setattr("tocsin.collectors.agent.agent.DatagramSocket", bound)
    monkeypatch.setattr("tocsin.cli.agent.set_up_logs", lambda _: None)  # it would log into this test's stderr for good
    words = [f"--socket={tmp_path}/a", f"--spool-dir={tmp_path}/spool", f"--engine=unix:{tmp_path}/e", "--host=h"]

    assert main(["agent", *words, "--metrics-listen="]) == 0
    assert not (tmp_path / "a").exists()
    assert any(b"hello" in path.read_bytes() for path in (tmp_path / "spool").glob("*.spool"))


def quiet_agent(folder: Path, sink: MemorySink) -> Agent:
    system = SystemClock()
    watcher = ProcessWatcher(system)
    config = AgentConfig(CoreConfig(HostPlace("h")), str(folder / "a"))
    return Agent(config, Parts(sink, watcher, ()), SteadyClock(system), Wakeup())


def test_records_that_were_found_damaged_are_announced_as_lost(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.state = replace(sink.state, dropped_count=1)  # as the spool counts before the first record comes
    agent = quiet_agent(tmp_path, sink)
    agent.stop()
    agent.run()

    lost = [record for record in sink.records if isinstance(record, Event) and record.name == "spool_overflow"]
    assert [event.payload for event in lost] == [{"dropped_count": 1}]


def test_a_full_spool_is_announced_when_somebody_listens(tmp_path: Path) -> None:
    sink = MemorySink()
    agent = quiet_agent(tmp_path, sink)
    found = []
    for is_connected, spooled_count in ((False, 9), (True, 9), (True, 0), (True, 0)):
        sink.state = replace(sink.state, dropped_count=3, is_connected=is_connected, spooled_count=spooled_count)
        agent.ship()
        found.append(
            [record.payload for record in sink.records if isinstance(record, Event) and record.name == "spool_overflow"]
        )
    assert found == [[], [], [{"dropped_count": 3}], [{"dropped_count": 3}]]
    agent.stop()
    agent.run()


def test_late_samples_are_a_metric_of_the_agent(tmp_path: Path) -> None:
    agent = quiet_agent(tmp_path, MemorySink())
    agent.core.slices.frames.cut(10 * 10**9)
    agent.core.slices.frames.add(10**9, {"cpu_util_ratio": 0.5}, {})
    late = next(family for family in agent.families() if family.name == "tocsin_agent_late_samples_total")

    assert [sample.value for sample in late.samples] == [1]


def test_a_socket_path_that_cannot_be_bound_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="socket"):
        DatagramSocket(str(tmp_path / ("x" * 200)))
    assert list(tmp_path.iterdir()) == []


def test_the_agent_imports_nothing_heavy() -> None:
    code = (
        "import sys, tocsin.cli.agent, tocsin.collectors.agent.agent, tocsin.collectors.transport.socket_sink\n"
        "heavy = {'numpy', 'torch', 'asyncio', 'http', 'ssl', 'kafka', 'tocsin.pipeline', 'tocsin.models'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    assert found.stdout == "[]\n"

"""C5: any local user reaches the agent's socket, and says what he likes about others' jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from tests.attacks.registry import Outcome, attack
from tests.collectors.agent.core_bench import USER, Bench, names
from tests.collectors.peer import FakeHook, wait_until
from tocsin.collectors.agent.agent import (
    Agent,
    AgentConfig,
    Parts,
    Wakeup,
)
from tocsin.collectors.agent.core import CoreConfig
from tocsin.collectors.agent.job_state import HostPlace
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.sources.process import ProcessWatcher
from tocsin.collectors.transport.sink import MemorySink

RANK, LAUNCHER, STRANGER, OTHER_USER = 77, 70, 99, 2000
WORDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("hello", {"pid": 5, "world_size": 8}),
    ("nan", {"step": 3, "what": "loss", "value": "nan"}),
    ("phase", {"phase": "checkpoint", "edge": "begin"}),
    ("bye", {}),
    ("exit", {"pid": 7, "code": 1, "signal": 0, "stderr_tail": "CUDA error: uncorrectable ECC error encountered"}),
    ("exit", {"pid": 0, "code": -9, "signal": 9}),
    ("step", {"step": 10**6, "dur": 9.0, "loss": "nan"}),
    ("beat", {"step": 1, "phase": "", "step_ns": 0}),
    ("dump", {"path": "/etc/shadow", "why": "stuck"}),
    ("groups", {"groups": [{"comm_id": "w", "kind": "dp", "ranks": [0, 5]}]}),
)


@attack("C5", "strangers speak for a job")
def strangers_speak() -> Outcome:
    """Every word, for every rank and attempt, by another user's process; for the rank, by another process too."""
    bench = Bench()
    bench.watcher.parents = {RANK: LAUNCHER, LAUNCHER: 1}
    bench.hello()
    bench.take()
    tries = 0
    for pid, uid in ((STRANGER, OTHER_USER), (0, OTHER_USER), (STRANGER, 0), (STRANGER, USER), (0, USER)):
        ranks = (0,) if uid == USER else (-1, 0, 5)
        for attempt in (0,) if uid == USER else (0, 1, 2**31 - 1):
            for rank in ranks:
                for kind, keys in WORDS:
                    with bench.spoken_by(pid, uid):
                        bench.hook(kind, rank, ("c", "j", attempt), **keys)
                    tries += 1
    said = bench.take()
    with bench.spoken_by(LAUNCHER):
        bench.hook("exit", pid=7, code=1)
    is_reported = names(bench.take()) == ["exit"]
    held = not said and not bench.core.dumps and is_reported and len(bench.core.jobs) == 1
    return Outcome(tries, f"{len(said)} records; the launcher's own exit is {'told' if is_reported else 'lost'}", held)


@attack("C5", "made-up jobs")
def made_up_jobs() -> Outcome:
    """64 and more jobs of one process, of processes that are gone, of living ones of another user."""
    hidden = tries = 0
    for a_process, is_gone in ((640, False), (1, True), (1, False)):
        bench = Bench()
        for number in range(640):
            pid = 1000 + number // a_process
            if is_gone:
                bench.watcher.gone.add(pid)
            with bench.spoken_by(pid, OTHER_USER):
                bench.hello(job=("c", f"made-up-{number}", 0))
            tries += 1
        for number in range(16):
            with bench.spoken_by(50 + number):
                bench.hello(job=("c", f"real-{number}", 0))
            hidden += ("c", f"real-{number}") not in bench.core.jobs
    return Outcome(tries, f"{hidden} real jobs hidden", hidden == 0)


CODE: Final = """
import os, sys
from pathlib import Path
from tests.collectors.peer import FakeHook
if os.geteuid() == 0 and sys.argv[2] == "other":
    os.setgid(12345); os.setuid(12345)
for rank in (0, 5):
    for attempt in (0, 1, 2**31 - 1):
        hook = FakeHook(Path(sys.argv[1]), rank, ("c", "j", attempt))
        hook.send("hello", pid=5, world_size=8)
        hook.send("nan", step=3, what="loss", value="nan")
        hook.send("exit", pid=0, code=1, signal=0, stderr_tail="CUDA error: uncorrectable ECC error encountered")
        hook.send("bye")
"""


@attack("C5", "real processes and the kernel's word", slow=True)
def real_processes() -> Outcome:
    """A real agent: the rank is this process; a child that changed its user speaks, and a process of nobody's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        system, sink, wake = SystemClock(), MemorySink(), Wakeup()
        watcher = ProcessWatcher(system)
        config = AgentConfig(CoreConfig(HostPlace("h")), f"{folder}/a")
        agent = Agent(config, Parts(sink, watcher, (watcher,)), SteadyClock(system), wake)
        thread = threading.Thread(target=agent.run)
        thread.start()
        rank = subprocess.Popen(
            [sys.executable, "-c", f"{HELLO}\nimport time; time.sleep(60)", f"{folder}/a"], env=_environment()
        )
        try:
            wait_until(lambda: "hello" in names(list(sink.records)))
            tries = 24
            subprocess.run([sys.executable, "-c", CODE, f"{folder}/a", "other"], env=_environment(), check=True)
            wait_until(lambda: agent.core.tally.dead_letters.total() >= tries or len(names(sink.records)) > 4)
            FakeHook(Path(f"{folder}/a")).send("exit", pid=rank.pid, code=1)  # this process is the rank's parent
            wait_until(lambda: "exit" in names(list(sink.records)))
        finally:
            rank.kill()
            rank.wait()
            agent.stop()
            thread.join(60)
        said = [name for name in names(sink.records) if name != "agent"]
        refused = dict(agent.core.tally.dead_letters)
    is_other_user = os.geteuid() == 0
    return Outcome(tries, f"{said}, refused {refused}", said == ["hello", "exit"] or not is_other_user)


HELLO: Final = """
import sys
from pathlib import Path
from tests.collectors.peer import FakeHook
FakeHook(Path(sys.argv[1])).send("hello", pid=1, world_size=8)
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).resolve().parents[2])])}

"""What the agent costs: CPU and memory of the real process with eight busy ranks and all collectors on.

The GPUs are the eight of a stub of the driver's library under the real nvidia-ml-py (without a C
compiler: those of the fake NVML): their calls cost no driver time. The RDMA ports eight of a
tree written here, the kernel log a file that gets lines, the exporter a page of this process.
The agent proves who it is with a secret and seals each message, as it does over a network.
``python -m tests.bench.bench_agent 10`` measures ten seconds instead of a minute.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.collectors.peer import EnginePeer, FakeHook, wait_until
from tests.collectors.sources.nvml_stub import build
from tests.serving import serving
from tocsin.pipeline.identity.gate import Gate, GateConfig
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Role, new_credential

SECONDS = 60.0
RANKS = 8
STEPS_A_SECOND = 5
COLLECTIVES_A_STEP = 20
GOAL_PERCENT = 1.0
GOAL_MEGABYTES = 60.0


def main(seconds: float = SECONDS) -> None:
    """Run the agent with fake ranks; print share of a core and resident memory."""
    with tempfile.TemporaryDirectory() as folder, _exporter() as page:
        token = new_credential(Role.AGENT, "bench", time.time_ns())
        write_credentials(Path(folder) / "token.json", (token,))
        peer = EnginePeer(Path(folder) / "engine", Gate(GateConfig(CredentialStore(Path(folder) / "token.json"))))
        _write_sys(Path(folder) / "sys")
        (Path(folder) / "kern.log").write_text("")
        stub = build(Path(folder))
        command, env = _command(folder, peer, page), {**os.environ, "LD_LIBRARY_PATH": folder if stub else ""}
        agent = subprocess.Popen([*command, "--nvml", "auto" if stub else f"fake:{RANKS}"], env=env)
        try:
            wait_until((Path(folder) / "agent").exists)
            hooks = [FakeHook(Path(folder) / "agent", rank) for rank in range(RANKS)]
            log = Path(folder) / "kern.log"
            _say_hello(hooks)
            _steps(hooks, log, 2.0)  # the imports and the first hellos are not what a day costs
            before, switches, start = _cpu_seconds(agent.pid), _switches(agent.pid), time.monotonic()
            sent = _steps(hooks, log, seconds)
            wall = time.monotonic() - start
            percent = 100 * (_cpu_seconds(agent.pid) - before) / wall
            voluntary, forced = (now - then for now, then in zip(_switches(agent.pid), switches, strict=True))
            megabytes = _rss_megabytes(agent.pid)
        finally:
            agent.terminate()
            agent.wait(10)
        records, size = len(peer.frames), sum(map(len, peer.frames))
        peer.close()
    print(f"{RANKS} ranks, {STEPS_A_SECOND} steps/s each, {COLLECTIVES_A_STEP} collectives a step, {wall:.0f} s")
    gpus = f"{RANKS} GPUs: {'nvidia-ml-py over a stub library' if stub else 'the fake NVML'}"
    print(f"collectors: host, disk, process, nvml ({gpus}), rdma ({RANKS} ports), kernel_log, prometheus (2,600 lines)")
    print(
        f"datagrams {sent / wall:.0f} /s, records {records / wall:.1f} /s, {size / wall / 1e3:.1f} kB/s to the engine"
    )
    print(f"CPU {percent:.2f} % of a core (goal {GOAL_PERCENT:.0f} %), load average {os.getloadavg()[0]:.1f}")
    print(f"context switches {voluntary / wall:.0f} /s, and {forced / wall:.0f} /s that others' work forced")
    print(f"RSS {megabytes:.1f} MB (goal {GOAL_MEGABYTES:.0f} MB)")


def _command(folder: str, peer: EnginePeer, page: str) -> list[str]:
    flags = {
        "--engine": f"unix:{peer.path}",
        "--host": "bench",
        "--token-file": f"{folder}/token.json",
        "--socket": f"{folder}/agent",
        "--spool-dir": f"{folder}/spool",
        "--sys-root": f"{folder}/sys",
        "--kmsg-path": f"{folder}/kern.log",
        "--prometheus": page,
    }
    return [sys.executable, "-m", "tocsin", "agent", *(word for flag in flags.items() for word in flag)]


def _write_sys(sys_root: Path) -> None:
    """Write eight ports with the files of a ConnectX-7, and no network interface."""
    for number in range(RANKS):
        port = sys_root / "class" / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        for name in ("counters/port_rcv_data", "counters/port_xmit_data", "counters/link_downed"):
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text("230539874932483\n")
        for name in ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"):
            (port / "hw_counters").mkdir(exist_ok=True)
            (port / "hw_counters" / name).write_text("0\n")
        for name, text in {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}.items():
            (port / name).write_text(f"{text}\n")


class _Handler(BaseHTTPRequestHandler):
    page = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _exporter() -> Iterator[str]:
    """Serve a page as large as those of dcgm-exporter and node_exporter together."""
    lines = [f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="GPU-{n}",Hostname="bench"}} 60' for n in range(RANKS)]
    lines += [
        f'node_cpu_seconds_total{{cpu="{n}",mode="{m}"}} 1' for n in range(192) for m in ("idle", "iowait", "user")
    ]
    lines += [f'node_of_no_interest_total{{device="d{n}"}} {n}' for n in range(2000)]
    _Handler.page = "\n".join([*lines, ""]).encode()
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/metrics"


def _say_hello(hooks: list[FakeHook]) -> None:
    groups = [{"comm_id": "world", "kind": "world", "ranks": list(range(RANKS))}]
    for hook in hooks:
        hook.send("hello", pid=os.getpid(), world_size=RANKS, gpu=hook.rank, hook_version="bench")
        hook.send("groups", groups=groups)


def _steps(hooks: list[FakeHook], log: Path, seconds: float) -> int:
    """Send steps, beats and hellos at the pace of a real job; return the number of datagrams.

    The kernel says ten lines a second meanwhile.
    """
    sent = 0
    start = time.monotonic()
    first = time.time_ns() // 1_000_000
    for step in range(int(seconds * STEPS_A_SECOND)):
        time.sleep(max(0.0, start + step / STEPS_A_SECOND - time.monotonic()))
        with log.open("a") as file:
            file.write("[ 1.5] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\n" * 2)
        for hook in hooks:
            hook.send("step", **_step(first + step))
            sent += 1
            if step % STEPS_A_SECOND == hook.rank % STEPS_A_SECOND:
                hook.send("beat", step=first + step + 1, phase="forward", step_ns=time.time_ns())
                sent += 1
        if step % (10 * STEPS_A_SECOND) == 0:
            _say_hello(hooks)
    return sent


def _step(step: int) -> dict[str, object]:
    now = time.time_ns()
    done = [
        ["world", "all_reduce", step * COLLECTIVES_A_STEP + index, 1 << 20, now - 2_000_000, now - 1_000_000]
        for index in range(COLLECTIVES_A_STEP)
    ]
    phases = {"dur": 0.2, "data": 0.01, "fwd": 0.06, "bwd": 0.1, "opt": 0.02, "comm": 0.01}
    return {"step": step, **phases, "loss": 2.5, "gn": 0.7, "coll": done, "dropped": 0}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _switches(pid: int) -> tuple[int, int]:
    """Return how often its threads went to sleep, and how often they had to make room."""
    counts = [0, 0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                counts[line.startswith("nonvoluntary")] += int(line.split()[1])
    return counts[0], counts[1]


def _rss_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)

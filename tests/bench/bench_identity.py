"""What identity costs the engine: the listener's CPU for the same records with sealed messages and without.

Records of a made-up job, and frames of eight GPUs, over one loopback connection a host; the engine takes them (and
ticks at the end: the whole engine's share is smaller). Both ways take turns, so that others' load on the machine meets
both; the best round of each counts. Sealing is done before the clock runs: that is the agents' cost (``bench_agent``).
``python -m tests.bench.bench_identity 20`` sends the records of twenty seconds instead of sixty.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.schemas import samples
from tocsin.collectors.transport.sign_in import TCP, SignIn, TokenSearch
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer, parse_address
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

HOSTS = 32
SECONDS = 60
ROUNDS = 5
GOAL_RATIO = 1.15


def records(seconds: int) -> tuple[dict[str, list[bytes]], int]:
    """Return host -> its records' bytes, and the time at their end."""
    job = FakeJob(JobShape(HOSTS))
    found: dict[str, list[bytes]] = {}
    for second in range(seconds):
        for record in job.second():
            found.setdefault(record.host, []).append(encode(record))
        if second % 5 == 4:
            for host, own in found.items():
                frame = dataclasses.replace(samples.FRAME, job=job.job, host=host, ts_ns=job.now_ns - 1_000_000)
                first = job.now_ns - 5 * NS_PER_SECOND + 1
                own.append(encode(dataclasses.replace(frame, first_tick_ns=first)))
    return found, job.now_ns


class Host:
    """One host's connection."""

    def __init__(self, address: str, host: str, token: str) -> None:
        self.sign_in = SignIn(TokenSearch(token, is_insecure=True), _hello(host), TCP)
        self.has_answered = False
        self.socket = socket.create_connection(parse_address(address)[1])
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def open(self, now_ns: int) -> None:
        """Answer the challenge."""
        self.has_answered = True
        size = int.from_bytes(self.socket.recv(4, socket.MSG_WAITALL), "little")
        challenge = json.loads(self.socket.recv(size, socket.MSG_WAITALL))
        self.socket.sendall(_framed(json.dumps(self.sign_in.answer(challenge, now_ns)).encode()))

    def sealed(self, found: list[bytes]) -> bytes:
        """Return all records as they travel."""
        return b"".join(_framed(data + self.sign_in.tag(data)) for data in found)


def _hello(host: str) -> dict[str, str]:
    return {"t": "hello", "host": host, "agent_version": "bench"}


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def cpu_seconds(found: dict[str, list[bytes]], now_ns: int, folder: Path | None) -> tuple[float, float]:
    """Return the listener's CPU for all records, and that of the tick after them; ``folder``: with credentials."""
    store = None if folder is None else CredentialStore(folder / "engine.json")
    config = ServerConfig(gate=GateConfig(store, is_open=store is None))
    engine = EmbeddedEngine(EngineConfig(history=None))
    server = AgentServer(engine, "127.0.0.1:0", lambda: now_ns, config=config)
    hosts = {host: Host(server.address, host, "" if folder is None else str(folder / f"{host}.json")) for host in found}
    until = time.monotonic() + 30.0
    while len(server.connected_hosts) < len(hosts):
        server.turn(0.01)
        if server.counters["connections"] == len(hosts):
            for one in [one for one in hosts.values() if not one.has_answered]:
                one.open(now_ns)
        assert time.monotonic() < until
    sent = {host: one.sealed(found[host]) for host, one in hosts.items()}
    senders = [threading.Thread(target=one.socket.sendall, args=(sent[host],)) for host, one in hosts.items()]
    wanted = sum(map(len, found.values()))
    before = time.thread_time()
    for sender in senders:
        sender.start()
    while engine.counters["records_ok"] + engine.counters["records_duplicate"] < wanted:
        server.turn(0.1)
    middle = time.thread_time()
    engine.tick(now_ns)
    after = time.thread_time()
    for one in hosts.values():
        one.socket.close()
    server.close()
    return middle - before, after - middle


def main(seconds: int = SECONDS) -> None:
    """Take the same records both ways; print the CPU of each and the ratio."""
    found, now_ns = records(seconds)
    count, size = sum(map(len, found.values())), sum(len(data) for one in found.values() for data in one)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = [Credential(f"k-{host}", Role.AGENT, host, secrets.token_bytes(32)) for host in found]
        write_credentials(folder / "engine.json", tuple(keys))
        for key in keys:
            write_credentials(folder / f"{key.name}.json", (key,))
        plain, signed, tick = [], [], []
        for _ in range(ROUNDS):
            took, ticked = cpu_seconds(found, now_ns, None)
            plain.append(took)
            tick.append(ticked)
            signed.append(cpu_seconds(found, now_ns, folder)[0])
    without, with_it, ticked = min(plain), min(signed), min(tick)
    print(f"{count} records of {HOSTS} hosts, {size / count:.0f} bytes each, {seconds} s; best of {ROUNDS} rounds")
    print(f"listener without identity {without / count * 1e6:.1f} us a record, with it {with_it / count * 1e6:.1f} us")
    print(f"ratio of the listener {with_it / without:.3f} (goal {GOAL_RATIO})")
    print(f"ratio with the operators' turns {(with_it + ticked) / (without + ticked):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)

"""M1, M5, M7, L: files that an agent or an engine reads, removes or leaves lying."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.collectors.agent.core_bench import Bench, of
from tests.collectors.agent.test_beneath import HOSTILE, LIMIT, ME
from tests.collectors.peer import EnginePeer, FakeHook, wait_until
from tocsin.collectors.agent import beneath
from tocsin.collectors.agent.beneath import DumpFolders
from tocsin.collectors.agent.datagram_socket import DatagramSocket
from tocsin.collectors.transport.spool import MIN_SEGMENT_BYTES, DiskSpool
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter, DeadLetterLog
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.schemas.errors import SpoolError, TocsinError
from tocsin.schemas.records import StepBatch


@attack("M1", "dumps that are others' files")
def others_files() -> Outcome:
    """Every way out of the folder of dumps, with ``openat2`` and with the walk for kernels that lack it."""
    read: list[str] = []
    openat2 = beneath.openat2
    for way in ("openat2", "walk"):
        if way == "walk":
            beneath.openat2 = _absent
        try:
            for make in HOSTILE:
                with tempfile.TemporaryDirectory() as folder:
                    root, kept = Path(folder, "dumps"), Path(folder, "kept")
                    root.mkdir()
                    kept.mkdir()
                    (kept / "password").write_bytes(b"secret")
                    path = make(root, kept / "password")
                    if _reads(root, path):
                        read.append(f"{make.__name__} ({way})")
        finally:
            beneath.openat2 = openat2
    return Outcome(2 * len(HOSTILE), f"read: {read or 'none'}", not read)


def _absent(root_fd: int, relative: str) -> int:
    raise OSError(errno.ENOSYS, "not there")


def _reads(root: Path, path: str) -> bool:
    try:
        DumpFolders(str(root)).read(path, ME, LIMIT)
    except (OSError, ValueError):
        return False
    return True


def _file(path: Path) -> None:
    path.write_bytes(b"somebody's work")


def _linked(path: Path) -> None:
    _file(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


def _agent(path: Path) -> None:
    DatagramSocket(str(path)).close()


def _control(path: Path) -> None:
    with ControlServer(path, {}):
        pass


def _listen(path: Path) -> None:
    server = AgentServer(EmbeddedEngine(EngineConfig()), f"unix:{path}", time.time_ns)
    server.start()
    server.close()


@attack("M5", "files where a socket is to be")
def files_in_the_way() -> Outcome:
    """A file, a link, a pipe and a folder at the places of the three sockets."""
    gone: list[str] = []
    tries = 0
    kinds: tuple[Callable[[Path], None], ...] = (_file, _linked, os.mkfifo, Path.mkdir)
    for door in (_agent, _control, _listen):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "s")
                kind(path)
                before = path.lstat()
                tries += 1
                try:
                    door(path)
                    gone.append(f"{door.__name__}: took it")
                except TocsinError:
                    if (not path.is_symlink() and not path.exists()) or path.lstat().st_ino != before.st_ino:
                        gone.append(f"{door.__name__}: removed it")
    return Outcome(tries, f"{gone or 'all left alone'}", not gone)


@attack("M7", "damaged bits of a spool")
def damaged_bits() -> Outcome:
    """One flipped bit in each of 60 spools of 30 records: how many records it costs, and how many are counted."""
    draw = random.Random(7)  # a test's damage
    lost, miscounted, wrong = 0, 0, 0
    with tempfile.TemporaryDirectory() as base:
        for number in range(60):
            folder = Path(base, str(number))
            records = [draw.randbytes(draw.randint(1, 400)) for _ in range(30)]
            spool = DiskSpool(str(folder), 16 * MIN_SEGMENT_BYTES)
            for record in records:
                spool.append(record)
            spool.close()
            path = next(folder.glob("*.spool"))
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
            again = DiskSpool(str(folder), 16 * MIN_SEGMENT_BYTES)
            left = []
            while (item := again.read()) is not None:
                left.append(item[0])
            lost = max(lost, len(records) - len(left))
            miscounted += again.dropped_count != len(records) - len(left)
            wrong += any(record not in records for record in left)
            again.close()
    effect = f"at most {lost} record lost a bit, {miscounted} counted wrongly, {wrong} wrong records"
    return Outcome(60, effect, (lost, miscounted, wrong) == (1, 0, 0))


@attack("M7", "odd names, cursors and links in a spool")
def odd_spools() -> Outcome:
    """Whatever lies in the folder, the agent starts (or says why not), loses nothing and reaches no other file."""
    bad: list[str] = []
    names = ("7.spool/", "\u00b2\u00b2.spool", "-1.spool", "9" * 200 + ".spool", "00000009-0123456789abcdef.spool/")
    cursors = ("1 -20 -1", "-1 0 0", "1 99999999999999999999 3", "x", "1 \u00b2 1")
    links = ("lock", "cursor", "cursor.new", "1.spool", "00000009-0123456789abcdef.spool")
    tried = [*(f"name {n}" for n in names), *(f"cursor {c}" for c in cursors), *(f"link {n}" for n in links)]
    for what in tried:
        kind, _, text = what.partition(" ")
        with tempfile.TemporaryDirectory() as base:
            folder, victim = Path(base, "spool"), Path(base, "victim")
            victim.write_bytes(b"v" * 500)
            spool = DiskSpool(str(folder), 16 * MIN_SEGMENT_BYTES)
            spool.append(b"kept")
            spool.close()
            if kind == "name":
                (folder / text[:-1]).mkdir() if text.endswith("/") else (folder / text).write_bytes(b"x")
            elif kind == "cursor":
                (folder / "cursor").write_text(text)
            else:
                (folder / text).unlink(missing_ok=True)
                (folder / text).symlink_to(victim)
            try:
                again = DiskSpool(str(folder), 16 * MIN_SEGMENT_BYTES)
                item = again.read()
                again.close()
                bad += [] if item and item[0] == b"kept" else [f"{what}: lost"]
            except SpoolError:
                bad += [] if what == "link lock" else [f"{what}: does not start"]
            bad += [] if victim.read_bytes() == b"v" * 500 else [f"{what}: reached another file"]
    return Outcome(len(tried), f"{bad or 'none did anything'}", not bad)


@attack("L", "steps of the open slice at an agent's end")
def open_slice() -> Outcome:
    """The core ends at every quarter of a second of a slice: each step that it took leaves, once."""
    lost = doubled = tries = 0
    for quarter in range(1, 24):
        bench = Bench()
        bench.hello()
        for number in range(quarter):
            bench.runs(0.25)
            bench.step(number, dur=0.2)
        bench.core.on_stop(bench.clock.read()[0])
        bench.take()
        steps = [row.step for batch in of(bench.records, StepBatch) for row in batch.rows]
        tries += quarter
        lost += quarter - len(set(steps))
        doubled += len(steps) - len(set(steps))
    return Outcome(tries, f"{lost} steps lost, {doubled} sent twice", lost == doubled == 0)


@attack("L", "SIGTERM of a real agent", slow=True)
def terminated_agents() -> Outcome:
    """Ten lives of an agent, each ended by SIGTERM in the middle of a slice."""
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        peer = EnginePeer(Path(folder, "engine"))
        hook = FakeHook(Path(folder, "agent"))
        for _ in range(10):
            words = [f"--engine=unix:{peer.path}", f"--socket={folder}/agent", f"--spool-dir={folder}/spool"]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-m", "tocsin", "agent", "--host=h", "--nvml=off", "--rdma=off", *words]
            agent = subprocess.Popen(command, env=env)
            wait_until(Path(folder, "agent").exists, 60)
            hook.send("hello", pid=1, world_size=1)
            for _ in range(100):
                hook.send("step", step=taken, dur=0.001)
                taken += 1
                time.sleep(0.005)
            agent.send_signal(signal.SIGTERM)
            agent.wait(60)
        steps = [row.step for batch in peer.of(StepBatch) for row in batch.rows]
        peer.close()
    lost, doubled = taken - len(set(steps)), len(steps) - len(set(steps))
    return Outcome(taken, f"{lost} steps lost, {doubled} sent twice", lost == doubled == 0)


@attack("L", "large dead letters")
def large_dead_letters() -> Outcome:
    """Dead letters as large as a record may be: no file exceeds its bound."""
    with tempfile.TemporaryDirectory() as folder:
        file = DeadLetterLog(Path(folder), "late")
        for number in range(2):
            file.write(DeadLetter(number, "n0", "late", "", b"x" * 15_900_000))
        largest = max(path.stat().st_size for path in Path(folder).iterdir())
    return Outcome(2, f"largest file {largest / 1e6:.0f} MB", largest <= 32_000_000)


@attack("L", "files that others can read")
def readable_files() -> Outcome:
    """The spool and the dead letters hold what programs printed: no file of theirs is open to all, in any folder."""
    bad: list[str] = []
    modes = (0o700, 0o755, 0o777, 0o2775)
    before = os.umask(0)
    try:
        for mode in modes:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder).chmod(mode)
                spool = DiskSpool(folder, 16 * MIN_SEGMENT_BYTES)
                spool.append(b"text")
                spool.close()
                DeadLetterLog(Path(folder), "late").write(DeadLetter(1, "n0", "late", "", b"text"))
                bad += [f"{path.name} in {mode:o}" for path in Path(folder).iterdir() if path.stat().st_mode & 0o007]
    finally:
        os.umask(before)
    return Outcome(len(modes), f"open to all: {bad or 'none'}", not bad)


@attack("L", "an agent's socket that is another's")
def replaced_sockets() -> Outcome:
    """An agent that ends leaves what somebody put at its socket's place meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        agent = DatagramSocket(str(path))
        path.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(str(path))
            agent.close()
            is_there = path.exists()
        second = DatagramSocket(f"{path}2")
        Path(f"{path}2").unlink()
        _file(Path(f"{path}2"))
        second.close()
        is_there = is_there and Path(f"{path}2").exists()
    return Outcome(2, "left alone" if is_there else "removed", is_there)

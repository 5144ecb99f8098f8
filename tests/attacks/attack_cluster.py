"""C7: who reaches a cluster of one machine."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.attacks.registry import Outcome, attack
from tocsin.cli.cluster import command
from tocsin.cli.cluster.endpoint_users import READER, address_of, make_users
from tocsin.cli.cluster.flink_conf import FlinkConfig, settings_of
from tocsin.cli.cluster.state import last_state

_UP_SECONDS = 480.0
_LISTENS = "0A"


@attack("C7", "settings and words")
def words() -> Outcome:
    """What is generated, and what is printed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_of(FlinkConfig(folder), 1, 2, folder)
        users = json.loads(make_users(folder).read_text())
        shown = address_of("clickhouse://127.0.0.1:9000", folder, READER)
        table = command.address_lines({"kafka": "k:1", "flink": "f", "clickhouse": shown}, 1.0, [])
        checks = {
            "web submit": settings["web.submit.enable"] == "false",
            "addresses": all(
                settings[key] == "127.0.0.1"
                for key in ("jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address")
            ),
            "modes": all(file.stat().st_mode & 0o077 == 0 for file in (folder, *folder.iterdir())),
            "passwords shown": not any(user["password"] in "\n".join(table) for user in users.values()),
            "passwords there": all(len(user["password"]) >= 32 for user in users.values()),
        }
        opened = command.reach_lines(Namespace(metrics_ports="9249", flink_setting=[]), folder)
        checks["words"] = "ALL interfaces" in opened[0]
    wrong = [name for name, holds in checks.items() if not holds]
    return Outcome(len(checks), f"wrong: {wrong}", held=not wrong)


@attack("C7", "a cluster up", slow=True)
def cluster_up() -> Outcome:
    """A real one: every listener of its processes, Flink's upload, the endpoint without a password."""
    with tempfile.TemporaryDirectory() as name, _cluster(Path(name) / "cluster") as folder:
        state = last_state(folder)
        assert state is not None
        listeners = list(_listeners(set(state.processes.values())))
        wrong = [f"listens on {where}" for where in listeners if not _is_loopback(where[0])]
        if not listeners:
            wrong.append("no listener was found")
        upload = Request(f"{state.addresses['flink']}/jars/upload", data=b"x", method="POST")  # loopback
        try:
            with urlopen(upload, timeout=10) as answer:  # loopback
                wrong.append(f"jars/upload answers {answer.status}")
        except HTTPError as error:
            if error.code not in {404, 405}:
                wrong.append(f"jars/upload answers {error.code}")
        bare = "clickhouse://" + state.addresses["clickhouse"].partition("@")[2].partition("?")[0]
        asked = subprocess.run(
            [sys.executable, "-m", "tocsin", "sql", "--clickhouse", bare, "SELECT 1"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0 or "Authentication failed" not in asked.stderr:
            wrong.append("the endpoint answers without a password")
    return Outcome(len(listeners) + 2, f"{len(listeners)} listeners; wrong: {wrong}", held=not wrong)


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Path]:
    log = folder.parent / "up.log"
    with log.open("wb") as out:
        up = subprocess.Popen(
            [sys.executable, "-m", "tocsin", "cluster", "up", f"--folder={folder}"], stdout=out, stderr=out
        )
    try:
        until = time.monotonic() + _UP_SECONDS
        while (state := last_state(folder)) is None or state.phase != "running":
            if up.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the cluster did not start: {log.read_text()[-500:]}")
            time.sleep(0.5)
        yield folder
    finally:
        up.terminate()
        up.wait(120)


def _listeners(roots: set[int]) -> Iterator[tuple[str, int]]:
    """(address, port) of each TCP listener of these processes and their descendants."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    ours = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    sockets = set()
    for pid in ours:
        with contextlib.suppress(OSError):
            sockets |= {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
                packed, _, port = fields[1].partition(":")
                words_of = (packed[index : index + 8] for index in range(0, len(packed), 8))
                raw = b"".join(bytes.fromhex(word)[::-1] for word in words_of)
                yield socket.inet_ntop(family, raw), int(port, 16)


def _is_loopback(address: str) -> bool:
    return address.removeprefix("::ffff:").startswith("127.") or address == "::1"

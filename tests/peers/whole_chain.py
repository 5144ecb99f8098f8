"""A site for the whole chain: a job that Slurm runs, real agents on its nodes, an executor; one machine loses a GPU."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.peers.slurm import Slurm
from tests.peers.slurm_ranks import CLUSTER, pids_of, steps_of
from tests.tools import peers
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.main import main

RANK_COUNT = 4
NODES = tuple(f"node{number}" for number in range(1, RANK_COUNT + 2))
"""Nodes with an agent: the first four, which Slurm gives to the job, and one that can take the place of another."""
_WARM_STEPS = 60
_START_SECONDS = 60.0
ROUTES = """
version: 1
receivers:
  am: {{kind: alertmanager, urls: ['{url}']}}
routes:
  - {{name: wake, receiver: am}}
"""


def host_of(node: str) -> str:
    """How the agent of a node calls its machine."""
    return f"gpu-{node.removeprefix('node')}.site.example"


class Site:
    """Processes of the chain that are the same in both modes.

    Attributes:
        folder: folder of the site.
        credentials: file of all credentials.
        job_id: number of the job in Slurm.
    """

    def __init__(self, folder: Path, slurm: Slurm, alertmanager: str) -> None:
        self.folder, self.slurm = folder, slurm
        self.credentials = folder / "all.json"
        self.children: list[Child] = []
        self.job_id = 0
        (folder / "nodes").write_text("".join(f"{host_of(node)} {node}\n" for node in NODES))
        self.routes = folder / "alerts.yaml"
        self.routes.write_text(ROUTES.format(url=alertmanager))

    def token(self, name: str, role: str) -> str:
        """A new credential's file."""
        out = self.folder / f"{name}.json"
        issue = ["token", "issue", name, f"--role={role}", f"--credentials={self.credentials}", f"--out={out}"]
        assert main(issue) == 0
        return str(out)

    def run(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None, ready: str = "") -> Child:
        """Start a command of tocsin."""
        command = [sys.executable, "-m", "tocsin", *arguments]
        log = self.folder / f"{name}.log"
        child = Child(Program(name, command, log, environment or {}, folder=ROOT))
        child.start()
        self.children.append(child)
        if ready:
            child.wait_ready(lambda: child.said(ready), _START_SECONDS)
        return child

    def start_agents(self, flags: Sequence[str]) -> None:
        """An agent for each node, with a kernel log of its own."""
        for node in NODES:
            own = self.folder / node
            own.mkdir()
            (own / "kmsg").touch()
            command = ["agent", f"--host={host_of(node)}", f"--cluster={CLUSTER}", f"--socket={own / 'a.sock'}"]
            command += [f"--spool-dir={own / 'spool'}", f"--kmsg-path={own / 'kmsg'}", "--nvml=off", "--rdma=off"]
            command += ["--metrics-listen=", f"--token-file={self.token(host_of(node), 'agent')}", *flags]
            self.run(f"agent-{node}", *command)
        for node, child in zip(NODES, self.children[-len(NODES) :], strict=True):
            child.wait_ready((self.folder / node / "a.sock").exists, _START_SECONDS)

    def start_executor(self, keys: Path, flags: Sequence[str]) -> None:
        """``tocsin executor slurm``; ``keys``: public keys of controllers."""
        command = ["executor", "slurm", f"--cluster={CLUSTER}", f"--controller-keys={keys}"]
        command += [f"--slurm-bin={peers.program('scontrol').parent}", f"--node-map={self.folder / 'nodes'}"]
        command += [f"--token-file={self.token('slurm', 'executor')}", *flags]
        self.run("executor", *command, environment=self.slurm.environment, ready="the executor is ready")

    def start_job(self) -> None:
        """Submit the job, and let it make steps."""
        command = f"cd {ROOT} && exec {sys.executable} -m tests.peers.slurm_ranks {self.folder}"
        self.job_id = self.slurm.submit(RANK_COUNT, command=command)
        self.slurm.until(lambda: steps_of(self.folder, 0) >= _WARM_STEPS, _START_SECONDS)

    def strike(self) -> str:
        """One machine loses a GPU, as its kernel says, and the rank there dies; the machine's node."""
        node = self.slurm.hosts_of(self.job_id)[1]
        stamp = time.strftime("%b %d %H:%M:%S")
        with (self.folder / node / "kmsg").open("a") as log:
            log.write(f"{stamp} {node} kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.\n")
        os.kill(pids_of(self.folder, 0)[node], signal.SIGKILL)
        return node

    def stop(self) -> None:
        """End all processes; the job is Slurm's."""
        for child in reversed(self.children):
            child.kill()

"""A site for the whole chain: a job that Slurm runs, real agents on its nodes, an executor; one machine loses a GPU."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.peers.slurm import Slurm
from tests.peers.slurm_ranks import CLUSTER, pids_of, steps_of
from tests.peers.test_live_alerts import alerts
from tests.pipeline.alerts.adapters.receiver import Receiver
from tests.pipeline.waiting import until
from tests.tools import peers
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.main import main

RANK_COUNT = 4
NODES = tuple(f"node{number}" for number in range(1, RANK_COUNT + 2))
"""Nodes with an agent: the first four, which Slurm gives to the job, and one that can take the place of another."""
_WARM_STEPS = 60
_START_SECONDS = 120.0
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
        database: flags of ``tocsin sql`` that name the database.
        job_id: number of the job in Slurm.
    """

    def __init__(self, folder: Path, slurm: Slurm, alertmanager: str) -> None:
        self.folder, self.slurm = folder, slurm
        self.database: list[str] = []
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
        self.slurm.until(lambda: len(pids_of(self.folder, 0)) == RANK_COUNT)

    def strike(self) -> str:
        """One machine loses a GPU, as its kernel says, and the rank there dies; the machine's node."""
        node = self.slurm.hosts_of(self.job_id)[1]
        stamp = time.strftime("%b %d %H:%M:%S")
        with (self.folder / node / "kmsg").open("a") as log:
            log.write(f"{stamp} {node} kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.\n")
        os.kill(pids_of(self.folder, 0)[node], signal.SIGKILL)
        return node

    def rows(self, query: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        """What ``tocsin sql`` shows."""
        capsys.readouterr()
        assert main(["sql", query, *self.database, "--format=JSONEachRow"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def stop(self) -> None:
        """End all processes; the job is Slurm's."""
        for child in reversed(self.children):
            child.kill()


def play(site: Site, webhook: Receiver) -> str:
    """Strike the job, and wait until it trains again and somebody was paged; the struck node."""
    site.start_job()
    node, slurm = site.strike(), site.slurm
    slurm.until(lambda: slurm.node(node).takes_no_work, 60)
    slurm.until(lambda: slurm.job(site.job_id).restart_count == 1)
    slurm.until(lambda: slurm.job(site.job_id).is_running)
    slurm.until(lambda: steps_of(site.folder, 1) > 0)
    until(lambda: bool(alerts(webhook, "TocsinIncident", "firing")))
    return node


def check(site: Site, webhook: Receiver, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The effect in Slurm, the page, and the rows of incident, action, acks and page are about the same fault."""
    slurm, host = site.slurm, host_of(node)
    actions = "SELECT action_id, verdict_id, kind, hosts, holder FROM tocsin.actions_now"
    until(lambda: bool(site.rows(f"{actions} WHERE state = 'done' AND kind = 'evict'", capsys)), 60)
    [action] = site.rows(f"{actions} WHERE state = 'done' AND kind != 'notify'", capsys)
    assert (action["kind"], action["hosts"], action["holder"]) == ("evict", [host], "slurm")
    assert slurm.node(node).reason == f"[HC] tocsin gpu_card_drop {action['action_id']}"
    assert slurm.job(site.job_id).excluded == node
    assert node not in slurm.hosts_of(site.job_id)
    said = f"SELECT kind, effects FROM tocsin.action_acks FINAL WHERE action_id = '{action['action_id']}' ORDER BY seq"
    until(lambda: "done" in {one["kind"] for one in site.rows(said, capsys)}, 60)
    acks = site.rows(said, capsys)
    kinds = [one["kind"] for one in acks]
    assert kinds == ["claimed"] * kinds.count("claimed") + ["started", "done"]
    assert acks[-1]["effects"] == ["drain", "exclude", "note", "requeue"]

    incident = {"verdict_id": action["verdict_id"], "cause": "gpu_card_drop", "cluster": CLUSTER}
    assert site.rows(f"SELECT {', '.join(incident)} FROM tocsin.incidents_all FINAL", capsys)[-1] == incident
    pages = alerts(webhook, "TocsinIncident", "firing")
    assert [(one["labels"]["verdict_id"], one["labels"]["host"]) for one in pages] == [(action["verdict_id"], host)]
    sent = "SELECT verdict_id, receiver, outcome FROM tocsin.alerts_sent FINAL WHERE kind = 'firing'"
    told = {"verdict_id": action["verdict_id"], "receiver": "am", "outcome": "delivered"}
    until(lambda: site.rows(sent, capsys) == [told])

"""A Slurm in memory that answers in the recorded words of a real one (``slurm_answers``).

It knows what the executor relies on: a second drain replaces the reason, hosts are excluded only while a job waits, a
reboot comes when the node's jobs have ended and leaves it down.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.pipeline.actions.executors.recorded import recorded
from tocsin.pipeline.actions.executors.commands import CommandResult
from tocsin.schemas.errors import TargetAwayError

USER = "root"
BOOT_SECONDS = 1_700_000_000
START_SECONDS = 1_700_000_100


@dataclass
class FakeNode:
    name: str
    is_down: bool = False
    flags: set[str] = field(default_factory=set)
    reason: str = ""
    user: str = USER
    boot_seconds: int = BOOT_SECONDS
    host_name: str = ""
    """How its machine calls itself; "": as the node."""
    address: str = "127.0.0.1"
    reasons: list[str] = field(default_factory=list)
    """Every reason that it had."""


@dataclass
class FakeBatchJob:
    number: int
    hosts: list[str]
    state: str = "RUNNING"
    restarts: int = 0
    start_seconds: int = START_SECONDS
    excluded: str = ""
    required: str = ""
    comment: str = ""
    is_held: bool = False
    is_batch: bool = True
    can_requeue: bool = True
    het_job_id: int = 0


class FakeSlurm:
    """Runs ``scontrol``, ``squeue`` and ``sinfo`` on nodes and jobs in memory; keeps every effect in ``effects``."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = {name: FakeNode(name) for name in nodes}
        self.jobs: dict[int, FakeBatchJob] = {}
        self.effects: list[str] = []
        self.config = recorded("config.txt")
        self.is_away = False
        self.away_after_effect = False
        """The next effect is made, and its answer is lost."""

    def add_job(self, number: int, *hosts: str, **changes: Any) -> FakeBatchJob:
        self.jobs[number] = FakeBatchJob(number, list(hosts), **changes)
        return self.jobs[number]

    def start_again(self, number: int, now_seconds: int) -> None:
        """Start a waiting job on hosts that are free and that it may have."""
        job = self.jobs[number]
        if job.state != "PENDING" or job.is_held:
            return
        free = [name for name in self.nodes if not self.takes_no_work(name) and name not in job.excluded.split(",")]
        job.hosts, job.state, job.start_seconds = free[:1], "RUNNING", now_seconds

    def takes_no_work(self, name: str) -> bool:
        return self.nodes[name].is_down or "DRAIN" in self.nodes[name].flags

    def busy(self, name: str) -> bool:
        return any(name in job.hosts and job.state == "RUNNING" for job in self.jobs.values())

    def run(self, arguments: Sequence[str]) -> CommandResult:
        """See ``Commands.run``."""
        if self.is_away:
            raise TargetAwayError("scontrol did not end within 15 s")
        if arguments[0] == "squeue":
            return CommandResult(0, json.dumps({"jobs": [self._job_json(job) for job in self.jobs.values()]}), "")
        if arguments[0] == "sinfo":
            listed = [f"{node.name} {node.host_name or node.name} {node.address}\n" for node in self.nodes.values()]
            return CommandResult(0, "".join(listed), "")
        what = arguments[1]
        if what == "show":
            return self._show(arguments[2], arguments[3:])
        refused = self._effect(what, arguments[2:])
        if refused:
            return CommandResult(1, "", refused)
        self.effects.append(" ".join(arguments[1:]))
        if self.away_after_effect:
            self.away_after_effect = False
            raise TargetAwayError("scontrol did not end within 15 s")
        return CommandResult(0, "", "")

    def reboot_now(self, name: str, now_seconds: int) -> None:
        """What Slurm does once a node that is to reboot has no job."""
        node = self.nodes[name]
        if "REBOOT_REQUESTED" in node.flags and not self.busy(name):
            node.flags = set()
            node.is_down, node.boot_seconds = True, now_seconds
            node.reason += " : reboot issued : reboot complete"

    def _show(self, what: str, rest: Sequence[str]) -> CommandResult:
        if what == "config":
            return CommandResult(0, self.config, "")
        if what == "hostnames":
            return CommandResult(0, "\n".join(rest[0].split(",")) + "\n", "")
        if rest[0] not in self.nodes:
            return CommandResult(1, recorded("node_unknown.txt").replace("node99", rest[0]), "")
        return CommandResult(0, self._node_text(self.nodes[rest[0]]), "")

    def _node_text(self, node: FakeNode) -> str:
        base = "DOWN" if node.is_down else "ALLOCATED" if self.busy(node.name) else "IDLE"
        text = recorded("node_idle.txt").rstrip("\n").replace("NodeName=node1", f"NodeName={node.name}")
        text = text.replace("NodeHostName=vm", f"NodeHostName={node.host_name or node.name}")
        text = text.replace("State=IDLE ", f"State={'+'.join((base, *sorted(node.flags)))} ")
        boot = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(node.boot_seconds))
        text = re.sub(r"BootTime=\S+", f"BootTime={boot}", text)
        return text + (f"\n   Reason={node.reason} [{node.user}@2026-11-26T21:00:00]\n\n" if node.reason else "\n\n")

    def _job_json(self, job: FakeBatchJob) -> dict[str, Any]:
        entry: dict[str, Any] = dict(json.loads(recorded("job_running.json"))["jobs"][0])
        return entry | {
            "job_id": job.number,
            "job_state": job.state,
            "restart_cnt": job.restarts,
            "start_time": job.start_seconds,
            "nodes": ",".join(job.hosts),
            "required_nodes": job.required,
            "excluded_nodes": job.excluded,
            "requeue": job.can_requeue,
            "batch_flag": job.is_batch,
            "priority": 0 if job.is_held else 7,
            "het_job_id": job.het_job_id,
            "admin_comment": job.comment,
        }

    def _effect(self, what: str, rest: Sequence[str]) -> str:
        """Change something; returns why it is refused."""
        values = dict(word.split("=", 1) for word in rest if "=" in word)
        if what == "update" and "NodeName" in values:
            return self._update_node(self.nodes[values["NodeName"]], values)
        if what == "reboot":
            node = self.nodes[rest[-1]]
            node.flags |= {"DRAIN", "REBOOT_REQUESTED"}
            self._write(node, values["reason"])
            return ""
        if what == "cancel_reboot":
            self.nodes[rest[0]].flags -= {"REBOOT_REQUESTED"}
            return ""
        number = values.get("JobId", rest[0])
        return self._update_job(what, self.jobs[int(number)], values)

    def _update_node(self, node: FakeNode, values: dict[str, str]) -> str:
        if "State" not in values:
            self._write(node, values["Reason"])
            return ""
        if values["State"] == "RESUME":
            if not self.takes_no_work(node.name):
                return "slurm_update error: Invalid node state specified"
            node.flags, node.is_down, node.reason = set(), False, ""
            return ""
        node.flags |= {"DRAIN"}
        self._write(node, values["Reason"])
        return ""

    def _write(self, node: FakeNode, reason: str) -> None:
        node.reason, node.user = reason, USER
        node.reasons.append(reason)

    def _update_job(self, what: str, job: FakeBatchJob, values: dict[str, str]) -> str:
        if what in ("requeue", "requeuehold"):
            if job.state != "RUNNING":
                return "Job is pending execution"
            job.state, job.hosts, job.restarts, job.is_held = "PENDING", [], job.restarts + 1, what == "requeuehold"
        elif what == "release":
            job.is_held = False
        elif "AdminComment" in values:
            job.comment = values["AdminComment"]
        elif job.state != "PENDING":
            return "Job is no longer pending execution"
        else:
            job.excluded = values["ExcNodeList"]
        return ""

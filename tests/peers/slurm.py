"""A real Slurm on this machine: one ``slurmctld`` and eight ``slurmd`` in a folder, without root and without munge.

A stub in place of ``RebootProgram`` restarts the one ``slurmd`` that called it, with ``-b``: that one says at each
registration that the machine has just booted. So it is started once more without it before its node takes jobs again.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.pipeline.alerts.adapters.receiver import refused_port
from tests.tools import peers
from tocsin.pipeline.actions.executors.commands import Programs
from tocsin.pipeline.actions.executors.slurm_cluster import ENVIRONMENT, SlurmCluster
from tocsin.pipeline.actions.executors.slurm_text import JobReading, NodeReading

NODE_COUNT = 8
REQUEUE_SECONDS = 5
"""Slurm starts a requeued job again after the life of its credential; this is the least that it takes."""
BOOT_SECONDS = 1.1
"""How long a machine takes to boot here: longer than the second by which slurmctld may date a boot too early."""

CONFIG = """\
ClusterName=ci
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire={requeue}
PluginDir={plugins}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/ctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
ReturnToService={return_to_service}
SlurmdTimeout=60
MessageTimeout=2
TCPTimeout=1
KillWait=1
BatchStartTimeout=5
ResumeTimeout=30
RebootProgram={reboot}
SlurmdParameters=config_overrides
NodeName=node[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=1000
PartitionName=main Nodes=node[1-{count}] Default=YES MaxTime=INFINITE State=UP
"""

REBOOT = """\
#!{python}
# Called by slurmd's child: asks the test's process to restart the slurmd that is this process's grandparent.
import os, pathlib
parent = os.getppid()
status = pathlib.Path(f"/proc/{{parent}}/stat").read_text().rsplit(")", 1)[1].split()
note = pathlib.Path({folder!r}, "reboots", str(os.getpid()))
note.parent.mkdir(exist_ok=True)
written = note.with_name(f"{{note.name}}.part")
written.write_text(f"{{parent}} {{status[1]}}")
written.rename(note)
"""


class Slurm:
    """A running Slurm, and what tests ask of it beside the code under test."""

    def __init__(self, folder: Path, return_to_service: int = 1) -> None:
        self.folder = folder
        for name in ("state", "run", "log", *(f"spool/{node}" for node in node_names())):
            (folder / name).mkdir(parents=True)
        plugins = peers.libraries() / "slurm-wlm"
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{peers.libraries()}:{plugins}",
            **ENVIRONMENT,
        }
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.rebooted: set[str] = set()
        first = free_ports(NODE_COUNT)
        values = {
            "host": socket.gethostname().split(".")[0],
            "port": refused_port(),
            "user": user_name(),
            "requeue": REQUEUE_SECONDS,
            "plugins": plugins,
            "folder": folder,
            "return_to_service": return_to_service,
            "reboot": folder / "reboot",
            "count": NODE_COUNT,
            "first": first,
            "last": first + NODE_COUNT - 1,
        }
        (folder / "slurm.conf").write_text(CONFIG.format(**values))
        reboot = folder / "reboot"
        reboot.write_text(REBOOT.format(python=sys.executable, folder=str(folder)))
        reboot.chmod(0o755)
        self.commands = Programs(15, self.environment, str(peers.program("scontrol").parent))
        self.cluster = SlurmCluster(self.commands)

    def start_controller(self) -> None:
        """Start slurmctld; what it kept in its folder goes on."""
        self._start("slurmctld", [str(peers.program("slurmctld-wlm")), "-D"])
        self.until(lambda: "UP" in self.ask("scontrol", "ping"))

    def start_node(self, node: str, *flags: str) -> None:
        """Start the slurmd of one node."""
        steps = str(peers.program("slurmstepd-wlm"))
        self._start(node, [str(peers.program("slurmd-wlm")), "-D", *flags, "-N", node, "-d", steps])

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one daemon: ``slurmctld``, or the name of a node.

        The signal is sent again until the daemon ends: one that arrives just before slurmd waits for its next
        connection is noticed only after that connection.
        """
        daemon = self.daemons.pop(name)
        deadline = time.monotonic() + 60
        while daemon.poll() is None:
            assert time.monotonic() < deadline, f"{name} does not end: {self.log()}"
            daemon.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(0.5)

    def restart_rebooted(self) -> list[str]:
        """Restart the slurmds of the nodes whose RebootProgram was called; returns their names.

        A slurmd starts no sooner than ``BOOT_SECONDS`` after the call: slurmctld counts in whole seconds, and takes a
        node that registers sooner for one that has not booted yet. It does not look again before the node's next
        registration, minutes later.
        """
        restarted = []
        for note in sorted(path for path in (self.folder / "reboots").glob("*") if path.suffix != ".part"):
            callers = {int(pid) for pid in note.read_text().split()}
            note.unlink()
            for name in [name for name, daemon in self.daemons.items() if daemon.pid in callers]:
                self.stop(name)
                time.sleep(BOOT_SECONDS)
                self.start_node(name, "-b")
                restarted.append(name)
                self.rebooted.add(name)
        return restarted

    def settle(self, name: str) -> None:
        """Start the slurmd of a node that was rebooted as one whose machine has run for long."""
        self.rebooted.discard(name)
        self.stop(name)
        self.start_node(name)
        self.until(lambda: self.node(name).boot_seconds < time.time() - 30)

    def ask(self, *arguments: str) -> str:
        """Run one of Slurm's programs; its output."""
        return self.commands.run(arguments).output

    def node(self, name: str) -> NodeReading:
        node = self.cluster.node(name)
        assert node is not None, name
        return node

    def job(self, job_id: int) -> JobReading:
        job = self.cluster.job(job_id)
        assert job is not None, job_id
        return job

    def submit(self, hosts: int | str, *flags: str, command: str = "exec sleep 600") -> int:
        """Start a batch job, on so many hosts or on these; its number, once it runs."""
        script = self.folder / "job.sh"
        script.write_text(f"#!/bin/sh\n{command}\n")
        place = [f"-N{hosts}"] if isinstance(hosts, int) else [f"-w{hosts}"]
        arguments = ["sbatch", "--parsable", *place, "--exclusive", "-o/dev/null", f"-D{self.folder}", *flags]
        job_id = int(self.ask(*arguments, str(script)))
        self.until(lambda: self.job(job_id).is_running)
        return job_id

    def hosts_of(self, job_id: int) -> tuple[str, ...]:
        return self.cluster.hosts(self.job(job_id).nodes)

    def until(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Until it is so; an assertion fails with Slurm's log where it does not come to that."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        log = self.folder / "log" / "ctld.log"
        return "\n".join(log.read_text().splitlines()[-20:]) if log.exists() else "no log"

    def reset(self) -> None:
        """End all jobs, and give every node back to work."""
        self.ask("scancel", "--user", user_name())
        self.until(lambda: not self.ask("squeue", "--noheader"))
        for name in node_names():
            if name not in self.daemons:
                self.start_node(name)
            if name in self.rebooted:
                self.settle(name)
            if self.node(name).is_rebooting:
                self.ask("scontrol", "cancel_reboot", name)
            if self.node(name).takes_no_work:
                self.ask("scontrol", "update", f"NodeName={name}", "State=RESUME")
            self.until(lambda name=name: is_ready(self.node(name)))  # type: ignore[misc]

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                [*arguments, "-f", str(self.folder / "slurm.conf")],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )


@contextmanager
def running_slurm(folder: Path, return_to_service: int = 1) -> Iterator[Slurm]:
    """Run a Slurm until the block ends."""
    assert not peers.missing(), "make peers fetches them"
    slurm = Slurm(folder, return_to_service)
    try:
        slurm.start_controller()
        for name in node_names():
            slurm.start_node(name)
        for name in node_names():
            slurm.until(lambda name=name: is_ready(slurm.node(name)))  # type: ignore[misc]
        yield slurm
    finally:
        slurm.ask("scancel", "--user", user_name())
        for name in list(slurm.daemons):
            slurm.stop(name)


def node_names() -> list[str]:
    """Names of the nodes."""
    return [f"node{number}" for number in range(1, NODE_COUNT + 1)]


def is_ready(node: NodeReading) -> bool:
    """Whether a node takes work."""
    return not node.takes_no_work and not node.flags & {"NOT_RESPONDING", "COMPLETING"} and node.base == "IDLE"


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for first in range(17_501, 30_000, count):
        with_sockets = []
        try:
            for port in range(first, first + count):
                one = socket.socket()
                with_sockets.append(one)
                one.bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in with_sockets:
                one.close()
        return first
    raise AssertionError("no free ports")


def user_name() -> str:
    """Name of this process's user, as Slurm shows it."""
    return pwd.getpwuid(os.getuid()).pw_name

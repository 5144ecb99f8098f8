"""``tocsin preflight --group``: the same checks on many hosts at once, started by Slurm, Kubernetes, or here."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tocsin.cli import preflight_kube
from tocsin.cli.durations import duration_of
from tocsin.cli.preflight_answers import answer_lines, answers_in
from tocsin.collectors.preflight.blame import attributed
from tocsin.collectors.preflight.checks import HostChecks, PreflightConfig
from tocsin.collectors.preflight.exchange import Rendezvous, exchange
from tocsin.schemas.errors import ConfigError, TargetError
from tocsin.schemas.preflight import CheckName, CheckReason, HostAnswer, failed
from tocsin.schemas.preflight_limits import MOST_HOSTS
from tocsin.schemas.printable import json_text, plain

SRUN, KUBECTL, HERE = "srun", "kubectl", "here"
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MEMBER: Final = re.compile(r"(?:(slurm)|(\d{1,4})/(\d{1,4}))@([^@\s]+):(\d{1,5})")
_TAIL_CHARACTERS: Final = 300
_ASK_SECONDS: Final = 15.0
_STAGES_COUNT: Final = 8
"""Checks with a load of their own, which a host runs one after the other."""


def hosts_in(path: str) -> list[str]:
    """Return the hosts of a group's file: a name a line; blank lines and ``#`` to the end of a line are passed over.

    Raises:
        ConfigError: the file cannot be read, or a line is no name; the message names the line.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--group", path, f"a text file that can be read ({error})") from error
    hosts: list[str] = []
    for number, line in enumerate(lines, 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        if _HOST.fullmatch(name) is None:
            raise ConfigError(f"{path}, line {number}", name, "the name of a host")
        if name in hosts:
            raise ConfigError(f"{path}, line {number}", name, "named once")
        hosts.append(name)
    if not 1 <= len(hosts) <= MOST_HOSTS:
        raise ConfigError("--group", path, f"a file of 1 to {MOST_HOSTS} hosts, not {len(hosts)}")
    return hosts


def member_of(text: str, environment: Mapping[str, str]) -> Rendezvous:
    """Return the place in the group that ``--member`` names: ``RANK/WORLD@HOST:PORT``, or ``slurm@HOST:PORT``.

    Raises:
        ConfigError: it names none, or Slurm has not set the task's number.
    """
    found = _MEMBER.fullmatch(text)
    must = "RANK/WORLD@HOST:PORT, or slurm@HOST:PORT in a task of srun"
    if found is None:
        raise ConfigError("--member", text, must)
    slurm, rank, world, address, port = found.groups()
    if slurm:
        rank, world = environment.get("SLURM_PROCID", ""), environment.get("SLURM_NTASKS", "")
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world) and 0 < int(port) < 2**16):
        raise ConfigError("--member", text, must)
    return Rendezvous(int(rank), int(world), address, int(port))


def answers_of(hosts: Sequence[str], output: str, why: str) -> list[HostAnswer]:
    """Return the hosts' answers in the output of all members; who is missing has failed.

    Args:
        hosts: the group's hosts; a member's rank is its place here.
        output: what all members printed.
        why: what is known about why an answer is missing, for people.
    """
    found = answers_in(output)
    missing = failed(CheckName.ANSWER, CheckReason.NO_ANSWER, why)
    answers = [_named(found[rank], hosts, rank) for rank in sorted(found) if 0 <= rank < len(hosts)]
    gone = [HostAnswer(host, (missing,)) for rank, host in enumerate(hosts) if rank not in found]
    return attributed(sorted([*answers, *gone], key=lambda answer: hosts.index(answer.host)))


def _named(answer: HostAnswer, hosts: Sequence[str], rank: int) -> HostAnswer:
    """Return a member's answer under its host's name, with its peers' names in place of their ranks."""
    names = {str(other): name for other, name in enumerate(hosts)}
    checks = tuple(
        replace(
            check,
            against=tuple(names.get(peer, peer) for peer in check.against),
            detail=re.sub(r"\brank (\d+)", lambda found: names.get(found[1], found[0]), check.detail),
        )
        for check in answer.checks
    )
    return replace(answer, host=hosts[rank], checks=checks)


def run_member(text: str, config: PreflightConfig) -> int:
    """Check this host as a member of a group, print its answer for the group's command, and return 0.

    Raises:
        ConfigError: the place in the group is wrong.
    """
    place = member_of(text, os.environ)
    answer = HostChecks(config).run(lambda: exchange(place, config.seconds, config.grace_seconds))
    print("\n".join(answer_lines(place.rank, answer)), flush=True)
    return 0


def check_group(args: argparse.Namespace, config: PreflightConfig) -> list[HostAnswer] | None:
    """Check the hosts of the group's file and return their answers; with ``--show`` print what would run: None.

    Raises:
        ConfigError: a flag's value cannot be used, or the program that reaches the hosts is missing.
        EngineError: Kubernetes refuses the Jobs.
    """
    hosts = hosts_in(args.group)
    if not 0 < args.port < 2**16:
        raise ConfigError("--port", args.port, "a TCP port")
    # A host runs its checks one after the other; the slowest one may need its grace several times.
    seconds = duration_of(args.start, "--start") + _STAGES_COUNT * config.seconds + 4 * config.grace_seconds
    words = ["preflight", *_member_words(args)]
    if args.via == KUBECTL:
        return _check_by_jobs(args, hosts, ["tocsin", *words], seconds)
    member = [sys.executable, "-m", "tocsin", *words]
    if args.show:
        command = shlex.join(
            srun_command(hosts, member, _first_address(hosts, args.port)) if args.via == SRUN else member
        )
        print(plain(f"SLURM_HOSTFILE={args.group} {command}" if args.via == SRUN else command))
        return None
    run = run_srun if args.via == SRUN else run_here
    return run(hosts, member, args.port, seconds)


def _member_words(args: argparse.Namespace) -> list[str]:
    """Return the flags that a member is started with."""
    words = ["--each", args.each, "--folder", args.folder, "--disk-mib", str(args.disk_mib)]
    return [*words, *(word for name in args.without for word in ("--without", name))]


def _check_by_jobs(
    args: argparse.Namespace, hosts: Sequence[str], member: Sequence[str], seconds: float
) -> list[HostAnswer] | None:
    """Check the group's hosts by Kubernetes Jobs."""
    if not args.image:
        raise ConfigError("--image", "", "given with --via kubectl: an image with tocsin in it")
    run = preflight_kube.new_run()
    settings = {"run": run, "image": args.image, "namespace": args.namespace, "gpus": str(args.gpus)}
    listed = preflight_kube.manifests(hosts, member, args.port, seconds, settings)
    if args.show:
        print(json_text(listed, indent=1))
        return None
    return answers_of(hosts, *preflight_kube.run_jobs(listed, run, args.namespace, seconds))


def run_srun(hosts: Sequence[str], member: Sequence[str], port: int, seconds: float) -> list[HostAnswer]:
    """Run the members as the tasks of one ``srun``, one a host, and return their answers.

    Raises:
        ConfigError: there is no srun here.
    """
    if shutil.which("srun") is None:
        raise ConfigError("--via", SRUN, "something else: there is no srun on the PATH")
    with tempfile.NamedTemporaryFile("w", prefix="tocsin-hosts-") as file:
        file.write("\n".join(hosts) + "\n")
        file.flush()
        command = srun_command(hosts, member, _first_address(hosts, port))
        # Task I runs on line I of this file, so that the first host is the one where all meet.
        output, why = _outputs([command], seconds, {"SLURM_HOSTFILE": file.name})
    return answers_of(hosts, output, why)


def srun_command(hosts: Sequence[str], member: Sequence[str], meeting: str) -> list[str]:
    """Return the command line of srun; the hosts and their order are in the file that SLURM_HOSTFILE names.

    Args:
        hosts: the group's hosts.
        member: program and arguments of each task.
        meeting: where the tasks meet: ``ADDRESS:PORT``.
    """
    options = (f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--distribution=arbitrary", "--exclusive")
    return ["srun", *options, *member, "--member", f"slurm@{meeting}"]


def _first_address(hosts: Sequence[str], port: int) -> str:
    """Return where the tasks of srun meet: the first host's ``NodeAddr``, its name where Slurm does not tell it."""
    from tocsin.pipeline.actions.executors.commands import Programs
    from tocsin.pipeline.actions.executors.slurm_cluster import ENVIRONMENT, SlurmCluster

    found = hosts[0]
    with contextlib.suppress(TargetError):
        machines = SlurmCluster(Programs(_ASK_SECONDS, ENVIRONMENT)).machines()
        found = next((one.address for one in machines if one.name == hosts[0]), found)
    return f"{found}:{port}"


def run_here(hosts: Sequence[str], member: Sequence[str], port: int, seconds: float) -> list[HostAnswer]:
    """Run all members on this machine, to try a group out, and return their answers."""
    count = len(hosts)
    commands = [[*member, "--member", f"{rank}/{count}@127.0.0.1:{port}"] for rank in range(count)]
    return answers_of(hosts, *_outputs(commands, seconds, {}))


def _outputs(commands: Sequence[Sequence[str]], seconds: float, environment: Mapping[str, str]) -> tuple[str, str]:
    """Run commands side by side for at most some seconds; return all that they printed, and the end of the errors."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _started(commands, out.fileno(), err.fileno(), environment) as children:
            late = False
            for child in children:
                try:
                    child.wait(0.0 if late else seconds)
                except subprocess.TimeoutExpired:
                    late = True
        out.seek(0)
        err.seek(0)
        tail = err.read().decode("utf-8", "replace").strip()[-_TAIL_CHARACTERS:]
        why = f"no answer in {seconds:g} s" if late else "ended without an answer"
        return out.read().decode("utf-8", "replace"), f"{why}: {tail}" if tail else why


@contextlib.contextmanager
def _started(
    commands: Sequence[Sequence[str]], out: int, err: int, environment: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start commands, each in a session of its own, and kill at the end what still runs."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            variables = {**os.environ, **environment}
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, env=variables
            )
            children.append(child)
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()

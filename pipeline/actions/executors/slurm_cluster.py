"""What is asked of a Slurm cluster: one node or one job a command, never a list.

``scontrol update NodeName=node2,nodeX`` with a wrong name fails **and** drains node2, and ``NodeName=ALL`` drains
everything. So a name that Slurm could read as a list, a range or a wildcard is refused here, before any command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tocsin.pipeline.actions.executors.commands import CommandResult, Commands
from tocsin.pipeline.actions.executors.slurm_text import (
    JobReading,
    MachineReading,
    NodeReading,
    SettingsReading,
    parse_jobs,
    parse_machines,
    parse_node,
    parse_settings,
)
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError

ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TZ": "UTC",
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "standard",
        "SQUEUE_FORMAT": "",
        "SQUEUE_STATES": "",
        "SINFO_PARTITION": "",
    }
)
"""Variables with which the programs answer in the form that is read here, whatever the user has set."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_WILDCARDS = ("all",)
_LIST = re.compile(r"[A-Za-z0-9._,\[\]-]+")
_AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Zero Bytes were transmitted",
    "Transport endpoint",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable",
    "Insane message length",
    "Header lengths are longer",
)
"""Words with which Slurm's clients say that the controller did not answer. What was asked may have been done."""


class SlurmCluster:
    """Asks one Slurm cluster, by its own programs."""

    def __init__(self, commands: Commands) -> None:
        """Ask nothing yet.

        Args:
            commands: runs ``scontrol``, ``squeue`` and ``sinfo``, with ``ENVIRONMENT``.
        """
        self._commands = commands

    def settings(self) -> SettingsReading:
        """Return the settings that decide what may be asked.

        Raises:
            TargetError: Slurm is away, or answers something that cannot be read.
        """
        return parse_settings(self._ask("scontrol", "show", "config").output)

    def node(self, name: str) -> NodeReading | None:
        """Return a node, None where the cluster has none of this name.

        Raises:
            TargetError: Slurm is away, or answers something that cannot be read.
        """
        node = _one_node(name)
        answer = self._try("scontrol", "show", "node", node)
        if not answer.is_success and answer.output.strip() == f"Node {node} not found":
            return None
        return parse_node(_checked(answer, "scontrol show node").output, node)

    def machines(self) -> tuple[MachineReading, ...]:
        """Return on which machine each node of each partition is.

        Raises:
            TargetError: Slurm is away, or answers something that cannot be read.
        """
        return parse_machines(self._ask("sinfo", "--all", "--Node", "--noheader", "--format", "%N %n %o").output)

    def job(self, job_id: int) -> JobReading | None:
        """Return a job, None where Slurm knows none of this number, or forgot it after its end.

        Raises:
            TargetError: Slurm is away, or answers something that cannot be read.
        """
        return parse_jobs(self._ask("squeue", "--json").output).get(job_id)

    def hosts(self, host_list: str) -> tuple[str, ...]:
        """Return the names of a host list such as ``node[2-3]``.

        Raises:
            TargetError: Slurm does not take it for a host list.
        """
        if not host_list:
            return ()
        if not _LIST.fullmatch(host_list):
            raise TargetRefusedError(f"{host_list!r} is no list of hosts")
        return tuple(self._ask("scontrol", "show", "hostnames", host_list).output.split())

    def drain(self, name: str, reason: str) -> None:
        """Take new work away from a node; what runs there goes on.

        Args:
            name: name of the node.
            reason: one line, shown by ``sinfo -R``. It replaces the node's reason: read the node first.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "update", f"NodeName={_one_node(name)}", "State=DRAIN", f"Reason={_line(reason)}")

    def rewrite_reason(self, name: str, reason: str) -> None:
        """Replace a node's reason and nothing else.

        Args:
            name: name of the node.
            reason: one line. Read the node first.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "update", f"NodeName={_one_node(name)}", f"Reason={_line(reason)}")

    def resume(self, name: str) -> None:
        """Give a node that is drained or down back to work.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "update", f"NodeName={_one_node(name)}", "State=RESUME")

    def reboot(self, name: str, reason: str) -> None:
        """Reboot a node once its jobs have ended. It takes no new work, and is down after the reboot.

        Args:
            name: name of the node.
            reason: one line, shown by ``sinfo -R``. It replaces the node's reason: read the node first.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "reboot", "ASAP", "nextstate=DOWN", f"reason={_line(reason)}", _one_node(name))

    def cancel_reboot(self, name: str) -> None:
        """Take back a reboot that was asked for and has not begun. The node stays drained.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "cancel_reboot", _one_node(name))

    def note(self, job_id: int, comment: str) -> None:
        """Replace a job's administrators' comment.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "update", f"JobId={job_id:d}", f"AdminComment={_line(comment)}")

    def requeue(self, job_id: int) -> None:
        """End a job's run and put it back into the queue.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "requeue", f"{job_id:d}")

    def requeue_held(self, job_id: int) -> None:
        """End a job's run and put it back into the queue, held.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "requeuehold", f"{job_id:d}")

    def exclude(self, job_id: int, host_list: str) -> None:
        """Replace the list of hosts that a waiting job must not get. Slurm takes this of pending jobs only.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        if not _LIST.fullmatch(host_list):
            raise TargetRefusedError(f"{host_list!r} is no list of hosts")
        self._ask("scontrol", "update", f"JobId={job_id:d}", f"ExcNodeList={host_list}")

    def release(self, job_id: int) -> None:
        """Let a held job be started.

        Raises:
            TargetError: Slurm is away or refuses.
        """
        self._ask("scontrol", "release", f"{job_id:d}")

    def _ask(self, *arguments: str) -> CommandResult:
        return _checked(self._try(*arguments), " ".join(arguments[:2]))

    def _try(self, *arguments: str) -> CommandResult:
        """Run a program; a controller that does not answer is an error, other failures are the caller's."""
        answer = self._commands.run(arguments)
        if not answer.is_success and any(words in answer.error for words in _AWAY):
            raise TargetAwayError(f"{arguments[0]}: {answer.complaint}")
        return answer


def _checked(answer: CommandResult, what: str) -> CommandResult:
    if not answer.is_success:
        raise TargetRefusedError(f"{what}: {answer.complaint}")
    return answer


def is_node_name(name: str) -> bool:
    """Return whether Slurm reads a text as the name of one node, and as nothing else."""
    return _NAME.fullmatch(name) is not None and name.lower() not in _WILDCARDS


def _one_node(name: str) -> str:
    """Return the name of one node, as it is.

    Raises:
        TargetRefusedError: Slurm could read it as several nodes, or as something else.
    """
    if not is_node_name(name):
        raise TargetRefusedError(f"{name!r} is not the name of one node")
    return name


def _line(text: str) -> str:
    """Return a text that Slurm keeps as one line.

    Raises:
        TargetRefusedError: it is empty, or has a character that is not printable.
    """
    if not text or not text.isprintable():
        raise TargetRefusedError(f"{text!r} is not a line of printable characters")
    return text

"""Reading the answers of ``scontrol`` and ``squeue``: nodes, jobs, settings. Text in, values out.

``scontrol show node`` is read in its form of many lines: there a key stands behind exactly three spaces, and a reason
of several lines goes on behind more, so no reason can pass for another field. Jobs are read as JSON, because a job's
name may hold whatever its user likes. Read with Slurm 22.05; the JSON of later versions, in which a number is an object
and a state a list, is read too.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.schemas.errors import TargetAnswerError

ALWAYS_RETURNS = 2
"""``ReturnToService`` with which every node that registers goes back to work, whatever took it down."""
_STATE_SIGNS = "*~#!%$@^-"
"""Signs that old versions put behind a state's word."""
_BUSY = frozenset({"ALLOCATED", "MIXED"})
_LINE = re.compile(r"^(?:   )?(?! )([A-Za-z:/]+)=(.*)$")
_NODE_NAME = re.compile(r"^NodeName=(\S+)")
_REASON_SIGNED = re.compile(r"(.*) \[([^\[\]@]+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\](\n.*)?", re.DOTALL)
"""A reason: its first line, who wrote it and when, its further lines."""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_REASON_GOES_ON = " " * 10
_SUFFIXES = (" : reboot complete", " : reboot issued", " : reboot requested")
"""What Slurm itself puts behind a reason."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node as Slurm shows it.

    Attributes:
        name: name of the node.
        base: the state's first word: ``IDLE``, ``MIXED``, ``ALLOCATED``, ``DOWN`` ...
        flags: the state's further words: ``DRAIN``, ``COMPLETING``, ``REBOOT_ISSUED``, ``NOT_RESPONDING`` ...
        reason: why it is drained or down, as it was written; "" without one.
        reason_user: who wrote it, "" if unknown.
        reason_seconds: when it was written (Unix time), 0 if unknown.
        boot_seconds: when the machine started (Unix time), 0 if unknown; Slurm computes it to a second or two.
        next_state: state that Slurm gives the node after a reboot, "" for none.
        host_name: how its machine calls itself (``NodeHostName``), "" if unknown.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_seconds: int = 0
    boot_seconds: int = 0
    next_state: str = ""
    host_name: str = ""

    @property
    def takes_no_work(self) -> bool:
        """Whether new work stays away: it is draining, drained, down, or failing."""
        return self.base in ("DOWN", "ERROR") or bool(self.flags & {"DRAIN", "FAIL"})

    @property
    def is_drained(self) -> bool:
        """Whether the node takes no new jobs and no job runs on it any more; until then it is draining."""
        return "DRAIN" in self.flags and self.base not in _BUSY and "COMPLETING" not in self.flags

    @property
    def is_rebooting(self) -> bool:
        """Whether a reboot was asked for and is not complete."""
        return bool(self.flags & {"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"})

    @property
    def own_reason(self) -> str:
        """The reason without what Slurm itself wrote behind it."""
        text = self.reason
        while (shorter := _without_suffix(text)) != text:
            text = shorter
        return text


@dataclass(frozen=True, slots=True)
class MachineReading:
    """On which machine a node is.

    Attributes:
        name: name of the node.
        host_name: how its machine calls itself (``NodeHostName``).
        address: name or number under which Slurm reaches it (``NodeAddr``).
    """

    name: str
    host_name: str
    address: str


@dataclass(frozen=True, slots=True)
class JobReading:
    """A job as Slurm shows it.

    Attributes:
        job_id: number of the job.
        states: ``RUNNING``, ``PENDING``, ``COMPLETING``, ``COMPLETED`` ...; one word or more.
        restart_count: how often it was requeued.
        start_seconds: when its present run began (Unix time), or will begin; 0 if unknown.
        nodes: hosts that it has now, as a host list (``node[2-3]``); "" for none.
        required: hosts that its user demands, as a host list.
        excluded: hosts that it must not get, as a host list.
        can_requeue: whether Slurm may requeue it.
        is_batch: whether it is a batch job; others cannot be requeued.
        is_held: whether it waits until somebody releases it.
        het_job_id: number of the heterogeneous job of which it is a part, 0 for none.
        admin_comment: what administrators wrote about it.
    """

    job_id: int
    states: frozenset[str]
    restart_count: int
    start_seconds: int = 0
    nodes: str = ""
    required: str = ""
    excluded: str = ""
    can_requeue: bool = True
    is_batch: bool = True
    is_held: bool = False
    het_job_id: int = 0
    admin_comment: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it has its hosts and runs on them."""
        return bool(self.states & {"RUNNING", "SUSPENDED"}) and "COMPLETING" not in self.states

    @property
    def is_pending(self) -> bool:
        """Whether the job waits for hosts; a job whose last run still ends on its former hosts does not yet."""
        return "PENDING" in self.states and "COMPLETING" not in self.states

    @property
    def is_over(self) -> bool:
        """Whether it will not run again by itself."""
        return not self.states & {"RUNNING", "SUSPENDED", "PENDING", "COMPLETING", "CONFIGURING", "REQUEUED"}


@dataclass(frozen=True, slots=True)
class SettingsReading:
    """Settings of a Slurm cluster that decide what may be asked of it.

    Attributes:
        cluster: its name.
        version: Slurm's version.
        returns_by_itself: whether a node that is down goes back to work as soon as it registers: ``ReturnToService`` 2.
        reboot_program: ``RebootProgram``, "" for none.
        returns_silent: whether one that is down because it was silent does so: ``ReturnToService`` 1 or 2.
    """

    cluster: str
    version: str
    returns_by_itself: bool
    reboot_program: str
    returns_silent: bool


def parse_node(text: str, name: str) -> NodeReading:
    """Read the answer of ``scontrol show node NAME``, made with ``TZ=UTC``.

    Args:
        text: the answer.
        name: name of the node that was asked for.

    Raises:
        TargetAnswerError: the answer is about another node, or it lacks a field.
    """
    first = _NODE_NAME.match(text)
    if first is None or first[1] != name or "\nNodeName=" in text:
        raise TargetAnswerError(f"scontrol show node {name}: the answer is not about this node alone")
    fields, reason = _node_fields(text, name)
    words = re.search(r"(?:^| )State=(\S+)", fields.get("State", ""))
    if words is None:
        raise TargetAnswerError(f"scontrol show node {name}: the answer has no State")
    base, *flags = words[1].split("+")
    if base[-1:] == "*":
        flags.append("NOT_RESPONDING")
    signed = _REASON_SIGNED.fullmatch(reason)
    boot = re.search(r"BootTime=(\S+)", fields.get("BootTime", ""))
    host = re.search(r" NodeHostName=(\S+)", fields.get("NodeAddr", ""))
    return NodeReading(
        name,
        base.rstrip(_STATE_SIGNS),
        frozenset(flag.rstrip(_STATE_SIGNS) for flag in flags),
        signed[1] + (signed[4] or "") if signed else reason,
        signed[2] if signed else "",
        _unix_seconds(signed[3]) if signed else 0,
        _unix_seconds(boot[1]) if boot else 0,
        fields.get("NextState", "").removeprefix("NextState="),
        "" if host is None else host[1],
    )


def parse_machines(text: str) -> tuple[MachineReading, ...]:
    """Read the answer of ``sinfo --Node --format "%N %n %o"``: each node once, in its order.

    Raises:
        TargetAnswerError: a line has not three words.
    """
    lines = dict.fromkeys(line for line in text.splitlines() if line.strip())
    try:
        return tuple(MachineReading(*line.split()) for line in lines)
    except TypeError as error:
        raise TargetAnswerError(f"sinfo --Node: {error}") from error


def parse_jobs(text: str) -> dict[int, JobReading]:
    """Read the answer of ``squeue --json``: the jobs by their number.

    Raises:
        TargetAnswerError: it is no JSON of jobs, or a job lacks a field.
    """
    try:
        found = [_job(entry) for entry in json.loads(text)["jobs"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetAnswerError(f"squeue --json: {type(error).__name__}: {error}") from error
    return {job.job_id: job for job in found}


def parse_settings(text: str) -> SettingsReading:
    """Read the answer of ``scontrol show config``.

    Raises:
        TargetAnswerError: a setting is missing, or has a value that cannot be read.
    """
    found = dict(re.findall(r"^(\w+)\s+= (.*?)\s*$", text, re.MULTILINE))
    try:
        return SettingsReading(
            found["ClusterName"],
            found["SLURM_VERSION"],
            int(found["ReturnToService"]) >= ALWAYS_RETURNS,
            _known(found["RebootProgram"]),
            int(found["ReturnToService"]) > 0,
        )
    except (KeyError, ValueError) as error:
        raise TargetAnswerError(f"scontrol show config: {type(error).__name__}: {error}") from error


def _node_fields(text: str, name: str) -> tuple[dict[str, str], str]:
    """Return the lines of a node, each by its first key, and the reason, whose lines are joined."""
    fields: dict[str, str] = {}
    reason: list[str] = []
    is_reason = False
    for line in text.split("\n"):
        if is_reason and line.startswith(_REASON_GOES_ON):
            reason.append(line.removeprefix(_REASON_GOES_ON))
            continue
        found = _LINE.match(line)
        is_reason = found is not None and found[1] == "Reason"
        if found is None:
            continue
        if found[1] in fields:
            raise TargetAnswerError(f"scontrol show node {name}: the answer has {found[1]} twice")
        fields[found[1]] = line.strip()
        if is_reason:
            reason.append(found[2])
    return fields, "\n".join(reason)


def _job(entry: Mapping[str, Any]) -> JobReading:
    states = entry["job_state"]
    return JobReading(
        _whole(entry["job_id"]),
        frozenset([states] if isinstance(states, str) else states),
        _whole(entry["restart_cnt"]),
        _whole(entry["start_time"]),
        entry["nodes"],
        entry["required_nodes"],
        entry["excluded_nodes"],
        bool(entry["requeue"]),
        bool(entry["batch_flag"]),
        _whole(entry["priority"]) == 0,
        _whole(entry["het_job_id"]),
        entry["admin_comment"],
    )


def _whole(value: Any) -> int:
    """Return a number that stands alone or, as since Slurm 23.02, in an object; 0 where it is not set."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set", True) else 0
    return 0 if value is None else int(value)


def _known(value: str) -> str:
    return "" if value == "(null)" else value


def _unix_seconds(text: str) -> int:
    """Return the Unix time of Slurm's form in UTC; 0 for ``None`` and ``Unknown``."""
    try:
        return calendar.timegm(time.strptime(text, _TIME_FORMAT))
    except ValueError:
        return 0


def _without_suffix(reason: str) -> str:
    for suffix in _SUFFIXES:
        reason = reason.removesuffix(suffix)
    return reason

"""The hook's messages as values, which ``datagrams.parse_datagram`` returns.

All times are the host's clock in Unix nanoseconds, as the hook stamped them. Frequent messages are tuples, because a
frozen dataclass takes twice as long to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tocsin.schemas.records import CommGroup, JobKey, StepRecord

Completion = tuple[str, str, int, int, int, int]
"""A finished collective: comm_id, op_name, op_seq, msg_bytes, start_ns, end_ns (host's clock). A plain tuple, because
hundreds come a second."""


class InFlight(NamedTuple):
    """A collective that has not finished."""

    comm_id: str
    op_name: str
    op_seq: int
    msg_bytes: int
    start_ns: int


class LastDone(NamedTuple):
    """The last finished collective of a communicator."""

    comm_id: str
    op_name: str
    op_seq: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The introduction of a rank's hook: process, world size, GPU, parallel coordinates, and the scheduler's names."""

    pid: int
    world_size: int
    gpu: int
    gpu_uuid: str
    dp: int
    pp: int
    tp: int
    reply: str
    hook_version: str
    local_rank: int = -1
    slurm_job_id: str = ""
    slurm_restart_count: str = ""
    slurm_node_name: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = ""
    node_name: str = ""


@dataclass(frozen=True, slots=True)
class GroupList:
    """All communication groups of a rank."""

    groups: tuple[CommGroup, ...]


class StepDone(NamedTuple):
    """A finished step with the collectives that finished during it."""

    record: StepRecord
    completions: tuple[Completion, ...]
    dropped_count: int


class Beat(NamedTuple):
    """A periodic sign of life of a hook, with its current step, phase and unfinished collectives."""

    step: int
    phase: str
    step_ns: int
    inflight: tuple[InFlight, ...]
    last: tuple[LastDone, ...]


@dataclass(frozen=True, slots=True)
class PhaseEdge:
    """The begin or end of an announced phase."""

    phase: str
    edge: str


@dataclass(frozen=True, slots=True)
class StageEdge:
    """The begin or end of a stage of a rank's start.

    Attributes:
        stage: its name.
        edge: begin or end.
        start_kind: full or hot.
        seconds: how long it lasted, None if not told.
        cache_hit_ratio: share of what was needed that a cache had, 0 to 1; None if not told.
    """

    stage: str
    edge: str
    start_kind: str
    seconds: float | None = None
    cache_hit_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A loss or gradient norm that became NaN or infinite."""

    step: int
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What a rank tells of its model's work and its GPU: the payload of a ``model`` event."""

    payload: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """The state of a rank's data loader.

    Attributes:
        values: payload of the ``loader`` event.
    """

    values: Mapping[str, str | float]


@dataclass(frozen=True, slots=True)
class Bye:
    """The normal end of a hook."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process as a supervisor saw it."""

    pid: int
    code: int
    signal: int
    stderr_tail: str
    of: str = ""
    """"command": the sender's only child. "worker": one of a launcher's workers, of whichever rank."""


@dataclass(frozen=True, slots=True)
class DumpWritten:
    """A Flight Recorder dump that a hook wrote to disk."""

    path: str
    request_id: str
    why: str


Body = (
    Hello
    | GroupList
    | StepDone
    | Beat
    | PhaseEdge
    | StageEdge
    | NotFinite
    | ModelWork
    | LoaderReport
    | Bye
    | Exit
    | DumpWritten
)


class Datagram(NamedTuple):
    """One message of a hook.

    Attributes:
        job: the job that it names.
        rank: global rank.
        ts_ns: time when it was sent, host's clock.
        body: the message itself; its type says which.
    """

    job: JobKey
    rank: int
    ts_ns: int
    body: Body

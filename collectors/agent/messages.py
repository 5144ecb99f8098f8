"""The messages of the hook, as values: what ``datagrams.parse_datagram`` returns.

All times are the host's clock, Unix nanoseconds, as the hook stamped them. What comes often is a tuple: a frozen
dataclass takes twice as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tocsin.schemas.records import CommGroup, JobKey, StepRecord

Completion = tuple[str, str, int, int, int, int]
"""A finished collective: comm_id, op_name, op_seq, msg_bytes, start_ns, end_ns; times are the host's clock. A plain
tuple: hundreds come a second."""


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
    """A rank's hook says who it is."""

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


@dataclass(frozen=True, slots=True)
class GroupList:
    """All groups of a rank."""

    groups: tuple[CommGroup, ...]


class StepDone(NamedTuple):
    """A finished step with the collectives that finished in it."""

    record: StepRecord
    completions: tuple[Completion, ...]
    dropped_count: int


class Beat(NamedTuple):
    """The hook's sign of life."""

    step: int
    phase: str
    step_ns: int
    inflight: tuple[InFlight, ...]
    last: tuple[LastDone, ...]


@dataclass(frozen=True, slots=True)
class PhaseEdge:
    """An announced phase begins or ends."""

    phase: str
    edge: str


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Loss or gradient norm is not a number any more."""

    step: int
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The hook closed in order."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A supervisor saw the process end."""

    pid: int
    code: int
    signal: int
    stderr_tail: str
    of: str = ""
    """"command": the sender's only child; "worker": one of a launcher's workers, whichever rank that is."""


@dataclass(frozen=True, slots=True)
class DumpWritten:
    """A flight-recorder dump lies on disk."""

    path: str
    request_id: str
    why: str


Body = Hello | GroupList | StepDone | Beat | PhaseEdge | NotFinite | Bye | Exit | DumpWritten


class Datagram(NamedTuple):
    """One message of a hook.

    Attributes:
        job: the job that it names.
        rank: global rank.
        ts_ns: when it was sent, by the host's clock.
        body: the rest, by type.
    """

    job: JobKey
    rank: int
    ts_ns: int
    body: Body

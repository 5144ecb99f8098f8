"""What travels from a training host to the engine.

All times are Unix nanoseconds (``_ns``), all other numbers base units with the
unit in the name. Every record carries the join keys: the job (cluster, job id,
attempt), the host and ``ts_ns``, its **event time**: the time by which it is put
into a slice. A batch's rows keep their own times.

The classes are plain values: they hold what was decoded and check nothing.
``tocsin.schemas.wire.codec`` validates on decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tocsin.schemas.job_key import IDLE_JOB_ID as IDLE_JOB_ID  # noqa: PLC0414  # re-exported: every record has one
from tocsin.schemas.job_key import JobKey as JobKey  # noqa: PLC0414  # re-exported, too
from tocsin.schemas.kinds import EventSource as EventSource  # noqa: PLC0414  # re-exported: words of these records
from tocsin.schemas.kinds import GroupKind as GroupKind  # noqa: PLC0414  # re-exported: words of these records
from tocsin.schemas.kinds import Severity as Severity  # noqa: PLC0414  # re-exported: words of these records
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.model_announcement import ModelAnnouncement as ModelAnnouncement  # noqa: PLC0414  # re-exported, too

NS_PER_SECOND = 1_000_000_000
METRIC_SLICE_NS = 5 * NS_PER_SECOND
_METRIC_TICKS_PER_SLICE = 5


def metric_slice_ns(tick_ns: int, least_ns: int = METRIC_SLICE_NS) -> int:
    """Length of the slices of frames with this sampling period: at least five ticks."""
    return max(least_ns, _METRIC_TICKS_PER_SLICE * tick_ns)


@dataclass(frozen=True, slots=True)
class Frame:
    """One host's metrics over one metric slice (the unit of transport).

    Attributes:
        job: whose the rows are.
        host: machine name.
        ts_ns: event time: the end of its slice minus 1 ms.
        table_id: the metric table that names the columns.
        first_tick_ns: time of the first sample.
        tick_ns: sampling period.
        tick_count: samples per series.
        gpu_uuids: one per GPU row; a GPU's index is no key.
        gpu_matrix: little-endian float32, shape (GPUs, GPU metrics, ticks), NaN = no sample.
        host_matrix: little-endian float32, shape (host metrics, ticks), NaN = no sample.
    """

    job: JobKey
    host: str
    ts_ns: int
    table_id: int
    first_tick_ns: int
    tick_ns: int
    tick_count: int
    gpu_uuids: tuple[str, ...]
    gpu_matrix: bytes
    host_matrix: bytes


class StepRecord(NamedTuple):
    """One rank's finished step, as a tuple (see ``CollectiveRecord``). Phase times are exclusive; None = not measured.

    Attributes:
        ts_ns: wall clock at the step's end.
        rank: global rank.
        step: the training step's number.
        duration_seconds: wall time of the whole step.
        data_seconds: waiting for the next batch.
        forward_seconds: forward pass without the collectives inside it.
        backward_seconds: backward pass without the collectives inside it.
        optimizer_seconds: optimizer step.
        communication_seconds: time inside collectives, waiting included.
        loss: training loss; NaN and infinity are evidence, not errors.
        grad_norm: gradient norm; NaN and infinity are evidence, not errors.
    """

    ts_ns: int
    rank: int
    step: int
    duration_seconds: float
    data_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    communication_seconds: float | None = None
    loss: float | None = None
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The steps that one host finished since its last batch.

    Attributes:
        job: whose steps.
        host: machine name.
        ts_ns: event time of the batch: end of the slice it was cut on, minus 1 ms.
        rows: the steps, ordered by (ts_ns, rank, step).
    """

    job: JobKey
    host: str
    ts_ns: int
    rows: tuple[StepRecord, ...]


class CollectiveRecord(NamedTuple):
    """A completed collective, or the state of one in flight, on one rank (channel).

    A tuple, in the order of its columns on the wire: hundreds a second are made where every microsecond counts.

    Attributes:
        ts_ns: when the completion or the state was seen.
        record: ``completion`` or ``state``.
        rank: global rank.
        comm_id: the communicator, the same text on all its members.
        op_name: e.g. ``all_reduce``.
        op_seq: sequence number in its communicator, from 1; -1: unknown.
        msg_bytes: message size; -1: unknown.
        start_ns: when this rank entered it; 0: unknown.
        end_ns: when it finished; 0: not finished.
        channel: -1: the whole operation.
        total_chunks: chunks to move; -1: unknown (so for the three below).
        gpu_ready: chunks copied to the send buffer.
        rdma_transmitted: chunks posted to the network.
        rdma_done: chunks acknowledged.
        dtype: element type, "" = unknown.
        peer: the other rank of a point-to-point operation, -1: none.
    """

    ts_ns: int
    record: Literal["completion", "state"]
    rank: int
    comm_id: str
    op_name: str
    op_seq: int
    msg_bytes: int = -1
    start_ns: int = 0
    end_ns: int = 0
    channel: int = -1
    total_chunks: int = -1
    gpu_ready: int = -1
    rdma_transmitted: int = -1
    rdma_done: int = -1
    dtype: str = ""
    peer: int = -1


@dataclass(frozen=True, slots=True)
class CollectiveBatch:
    """Collective records of one host's ranks.

    Attributes:
        job: whose collectives.
        host: machine name.
        ts_ns: event time of the batch.
        rows: ordered by (ts_ns, rank, comm_id, op_seq).
    """

    job: JobKey
    host: str
    ts_ns: int
    rows: tuple[CollectiveRecord, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once.

    Attributes:
        job: whose event; a host's own event goes to each of its jobs.
        host: machine name.
        ts_ns: when it happened.
        rank: global rank, -1: the host.
        source: where it was seen.
        name: fixed names in ``tocsin.schemas.events``.
        severity: how bad it is by itself.
        payload: JSON object.
    """

    job: JobKey
    host: str
    ts_ns: int
    rank: int
    source: EventSource
    name: str
    severity: Severity
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank runs.

    Attributes:
        rank: global rank.
        host: machine name.
        gpu: GPU index on the host, -1: none (an index is no key).
        gpu_uuid: the GPU's key, "" = none.
        dp: data-parallel coordinate, -1: unknown (so for pp, tp).
        pp: pipeline stage.
        tp: tensor-parallel coordinate.
        leaf: leaf switch, "" = unknown.
        minipod: minipod, "" = unknown.
        world_size: ranks in the job, 0: unknown.
        pid: process id on the host, 0: unknown.
    """

    rank: int
    host: str
    gpu: int = -1
    gpu_uuid: str = ""
    dp: int = -1
    pp: int = -1
    tp: int = -1
    leaf: str = ""
    minipod: str = ""
    world_size: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Topology:
    """The places of one host's ranks; announced at hello and every 30 s.

    Attributes:
        job: whose ranks.
        host: machine name.
        ts_ns: when it was announced.
        places: one per rank of this host.
    """

    job: JobKey
    host: str
    ts_ns: int
    places: tuple[RankPlace, ...]


@dataclass(frozen=True, slots=True)
class CommGroup:
    """A communication group.

    Attributes:
        comm_id: the communicator, the same text on all its members.
        kind: what it is for.
        ranks: members in group order (global ranks).
    """

    comm_id: str
    kind: GroupKind
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of one host's ranks; announced at change and every 30 s.

    Attributes:
        job: whose groups.
        host: machine name.
        ts_ns: when it was announced.
        groups: the groups that a rank of this host belongs to.
    """

    job: JobKey
    host: str
    ts_ns: int
    groups: tuple[CommGroup, ...]


@dataclass(frozen=True, slots=True)
class TableAnnouncement:
    """A metric table of the user's own; announced at start and every 30 s.

    Attributes:
        job: whose frames use it.
        host: machine name.
        ts_ns: when it was announced.
        table: the table.
    """

    job: JobKey
    host: str
    ts_ns: int
    table: MetricTable


@dataclass(frozen=True, slots=True)
class HostStatus:
    """An agent's own heartbeat: one a metric slice and job, sent also when all is quiet.

    Attributes:
        job: one of the jobs that it serves, or the idle job.
        host: machine name.
        ts_ns: event time.
        clock_offset_ns: estimated offset of the host's clock to the engine's (host - engine).
        clock_error_ns: bound of that estimate's error.
        ranks_seen: ranks whose hook spoke during the last slice.
        hook_present: whether any hook of this job has said hello to this agent.
        dropped_count: datagrams that the hooks report as dropped, since start.
        spooled_count: records waiting in the spool.
        collectors: name -> {"ok": bool, "seconds": float, "reason": str}.
    """

    job: JobKey
    host: str
    ts_ns: int
    clock_offset_ns: int
    clock_error_ns: int
    ranks_seen: tuple[int, ...]
    hook_present: bool
    dropped_count: int
    spooled_count: int
    collectors: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """An answer to a probe.

    Attributes:
        job: whose probe.
        host: machine name.
        ts_ns: when it was sent; what it holds keeps its own times.
        rank: global rank, -1: the host.
        request_id: the probe's id.
        probe: what was asked for.
        payload: the answer.
    """

    job: JobKey
    host: str
    ts_ns: int
    rank: int
    request_id: str
    probe: Literal["stacks", "flight_recorder", "ring", "fast_metrics"]
    payload: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Moves the watermark when nothing else does. Belongs to no job.

    Attributes:
        ts_ns: the time that it states.
    """

    ts_ns: int


JobRecord = (
    Frame | StepBatch | CollectiveBatch | Event | Topology | Groups | TableAnnouncement | HostStatus | ProbeAnswer
)
"""A record that belongs to a job and goes into one of its slices."""

Record = JobRecord | Tick | ModelAnnouncement
"""Whatever an engine takes; an announcement has a topic of its own and is no job's."""


@dataclass(frozen=True, slots=True)
class Slice:
    """All records of one job in one span of event time, in canonical order.

    Attributes:
        job: whose records.
        start_ns: first instant of the span.
        end_ns: first instant after the span.
        records: ordered by (kind, ts_ns, host, rank, bytes), exact duplicates dropped.
    """

    job: JobKey
    start_ns: int
    end_ns: int
    records: tuple[JobRecord, ...]

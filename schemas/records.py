"""The records that travel from a training host to the engine.

All times are Unix nanoseconds (``_ns``), all other numbers base units with the unit in the name. Every record
carries the join keys: the job (cluster, job id, attempt), the host and ``ts_ns``. The latter is its **event
time**, by which it is assigned to a slice. A batch's rows keep their own times.

The classes are plain values and check nothing. ``tocsin.schemas.wire.codec`` validates on decode.
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
    """Return the slice length for frames with this sampling period: at least five ticks and at least ``least_ns``."""
    return max(least_ns, _METRIC_TICKS_PER_SLICE * tick_ns)


@dataclass(frozen=True, slots=True)
class Frame:
    """One host's metrics over one metric slice, the unit of transport.

    Attributes:
        job: the job that the host belongs to.
        host: machine name.
        ts_ns: event time: the end of its slice minus 1 ms.
        table_id: the metric table that names the columns.
        first_tick_ns: time of the first sample.
        tick_ns: sampling period.
        tick_count: samples per series.
        gpu_uuids: UUID of each GPU row; a GPU's index is no key.
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
    """One rank's finished step, as a tuple for speed (see ``CollectiveRecord``).

    Phase times are exclusive; None = not measured.

    Attributes:
        ts_ns: wall clock time at the step's end.
        rank: global rank.
        step: the training step's number.
        duration_seconds: wall time of the whole step.
        data_seconds: time waiting for the next batch.
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
        job: the job of the steps.
        host: machine name.
        ts_ns: event time of the batch: end of its slice minus 1 ms.
        rows: the steps, ordered by (ts_ns, rank, step).
    """

    job: JobKey
    host: str
    ts_ns: int
    rows: tuple[StepRecord, ...]


class CollectiveRecord(NamedTuple):
    """A completed collective, or the state of one in flight, on one rank (and channel).

    A tuple in the order of its columns on the wire, because hundreds a second are created where time is short.

    Attributes:
        ts_ns: time when the completion or the state was seen.
        record: ``completion`` or ``state``.
        rank: global rank.
        comm_id: id of the communicator, the same on all its members.
        op_name: name of the operation, e.g. ``all_reduce``.
        op_seq: sequence number in its communicator, from 1; -1 if unknown.
        msg_bytes: message size in bytes, -1 if unknown.
        start_ns: time when this rank entered it, 0 if unknown.
        end_ns: time when it finished, 0 if not finished.
        channel: channel number, -1 for the whole operation.
        total_chunks: chunks to move, -1 if unknown.
        gpu_ready: chunks copied to the send buffer, -1 if unknown.
        rdma_transmitted: chunks posted to the network, -1 if unknown.
        rdma_done: chunks acknowledged, -1 if unknown.
        dtype: element type, "" if unknown.
        peer: the other rank of a point-to-point operation, -1 for none.
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
    """A batch of collective records of one host's ranks.

    Attributes:
        job: the job of the collectives.
        host: machine name.
        ts_ns: event time of the batch.
        rows: the records, ordered by (ts_ns, rank, comm_id, op_seq).
    """

    job: JobKey
    host: str
    ts_ns: int
    rows: tuple[CollectiveRecord, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A single event on a host or rank.

    Attributes:
        job: the job concerned; a host's own event is sent to each of its jobs.
        host: machine name.
        ts_ns: time when it happened.
        rank: global rank, -1 for the host.
        source: component that saw it.
        name: name of the event, one of ``tocsin.schemas.events``.
        severity: severity of the event by itself.
        payload: JSON object with details.
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
    """The place of one rank: host, GPU, coordinates and switches.

    Attributes:
        rank: global rank.
        host: machine name.
        gpu: GPU index on the host, -1 for none (an index is no key).
        gpu_uuid: UUID of the GPU, "" for none.
        dp: data-parallel coordinate, -1 if unknown.
        pp: pipeline stage, -1 if unknown.
        tp: tensor-parallel coordinate, -1 if unknown.
        leaf: name of the leaf switch, "" if unknown.
        minipod: name of the minipod, "" if unknown.
        world_size: number of ranks in the job, 0 if unknown.
        pid: process id on the host, 0 if unknown.
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
    """The places of one host's ranks, announced at hello and every 30 s.

    Attributes:
        job: the job of the ranks.
        host: machine name.
        ts_ns: time of the announcement.
        places: one entry per rank of this host.
    """

    job: JobKey
    host: str
    ts_ns: int
    places: tuple[RankPlace, ...]


@dataclass(frozen=True, slots=True)
class CommGroup:
    """A communication group and its members.

    Attributes:
        comm_id: id of the communicator, the same on all its members.
        kind: kind of the group.
        ranks: members as global ranks, in group order.
    """

    comm_id: str
    kind: GroupKind
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of one host's ranks, announced at a change and every 30 s.

    Attributes:
        job: the job of the groups.
        host: machine name.
        ts_ns: time of the announcement.
        groups: all groups that have a rank of this host.
    """

    job: JobKey
    host: str
    ts_ns: int
    groups: tuple[CommGroup, ...]


@dataclass(frozen=True, slots=True)
class TableAnnouncement:
    """A user's own metric table, announced at start and every 30 s.

    Attributes:
        job: the job whose frames use it.
        host: machine name.
        ts_ns: time of the announcement.
        table: the table.
    """

    job: JobKey
    host: str
    ts_ns: int
    table: MetricTable


@dataclass(frozen=True, slots=True)
class HostStatus:
    """An agent's own heartbeat, one per metric slice and job, sent also when nothing else is.

    Attributes:
        job: one of the jobs on the host, or the idle job.
        host: machine name.
        ts_ns: event time.
        clock_offset_ns: estimated offset of the host's clock from the engine's (host - engine).
        clock_error_ns: bound of the error of that estimate.
        ranks_seen: ranks whose hook sent something during the last slice.
        hook_present: whether any hook of this job has said hello to this agent.
        dropped_count: datagrams that the hooks reported as dropped, since start.
        spooled_count: records waiting in the spool.
        collectors: collector name -> {"ok": bool, "seconds": float, "reason": str}.
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
    """The answer to a probe.

    Attributes:
        job: the job that was probed.
        host: machine name.
        ts_ns: time when it was sent; its content keeps its own times.
        rank: global rank, -1 for the host.
        request_id: id of the probe.
        probe: kind of data that was asked for.
        payload: the answer's bytes.
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
    """A record that moves the watermark when nothing else does; it belongs to no job.

    Attributes:
        ts_ns: the time that the watermark may reach.
    """

    ts_ns: int


JobRecord = (
    Frame | StepBatch | CollectiveBatch | Event | Topology | Groups | TableAnnouncement | HostStatus | ProbeAnswer
)
"""A record that belongs to a job and to one of its slices."""

Record = JobRecord | Tick | ModelAnnouncement
"""Any record that an engine accepts. A model announcement has a topic of its own and belongs to no job."""


@dataclass(frozen=True, slots=True)
class Slice:
    """All records of one job in one span of event time, in canonical order.

    Attributes:
        job: the job of the records.
        start_ns: first instant of the span.
        end_ns: first instant after the span.
        records: ordered by (kind, ts_ns, host, rank, bytes), without exact duplicates.
    """

    job: JobKey
    start_ns: int
    end_ns: int
    records: tuple[JobRecord, ...]

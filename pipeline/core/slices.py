"""Cut the records of all jobs into slices of event time.

Records are held until the watermark has passed the end of their slice. They are then emitted once, in canonical order,
without exact duplicates. Only ticks move the watermark: ``watermark = newest tick - lateness``.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote

from tocsin.pipeline.core.frame_blocks import (
    MAGIC,
    FrameBlock,
    MetricSlice,
    decode_block,
    encode_block,
)
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.schemas.errors import FieldError, TooManyError
from tocsin.schemas.records import (
    METRIC_SLICE_NS,
    NS_PER_SECOND,
    CollectiveBatch,
    Event,
    Frame,
    Groups,
    HostStatus,
    JobKey,
    JobRecord,
    ProbeAnswer,
    Slice,
    StepBatch,
    TableAnnouncement,
    Topology,
    metric_slice_ns,
)
from tocsin.schemas.wire.codec import decode, encode

_KIND_ORDER: dict[type, int] = {
    # Facts before what they explain: who runs where, then what happened, then numbers.
    TableAnnouncement: 0,
    Topology: 1,
    Groups: 2,
    Event: 3,
    HostStatus: 4,
    CollectiveBatch: 5,
    StepBatch: 6,
    ProbeAnswer: 7,
    Frame: 8,
    FrameBlock: 8,
}
Held = JobRecord | FrameBlock
_SMALL_HOST_BYTES = 1 << 20
"""Bytes of waiting records that each host may hold even when the total bound is reached."""


class RecordOutcome(StrEnum):
    """Result of adding a record to the buffer: accepted, or why it was refused."""

    OK = "ok"
    LATE = "late"
    DUPLICATE = "duplicate"
    AHEAD = "clock_ahead"


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """Settings of the slice buffer.

    Attributes:
        fast_slice_ns: slice length for all records except frames.
        metric_slice_ns: minimum slice length for frames (a frame's slice spans at least five of its sampling ticks).
        lateness_ns: how long a slice stays open after its end.
        max_ahead_ns: records stamped further ahead of the newest tick are refused.
        forget_job_after_ns: a job without records for this long is forgotten.
        max_slice_ns: maximum slice length: five sampling ticks of an hour.
        host_held_bytes: maximum bytes of waiting records of one host in one job.
        held_bytes: maximum bytes of all waiting records; beyond it, only hosts that hold little are accepted.
    """

    fast_slice_ns: int = NS_PER_SECOND
    metric_slice_ns: int = METRIC_SLICE_NS
    lateness_ns: int = NS_PER_SECOND
    max_ahead_ns: int = 2 * NS_PER_SECOND
    forget_job_after_ns: int = 3600 * NS_PER_SECOND
    max_slice_ns: int = 5 * 3600 * NS_PER_SECOND
    host_held_bytes: int = 48 << 20
    held_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class SliceBundle:
    """Everything that one job's operators process at one second boundary.

    Attributes:
        job: the job.
        end_ns: the second boundary, which the watermark has passed.
        fast: the 1 s slice that ends there; it may be empty, because silence is evidence too.
        metrics: the metric slices that end there.
    """

    job: JobKey
    end_ns: int
    fast: Slice
    metrics: tuple[MetricSlice, ...]


@dataclass(slots=True)
class _JobBuffer:
    """Waiting records of one job, by the end of their slice."""

    next_end_ns: int
    last_ts_ns: int
    fast: dict[int, dict[bytes, Held]] = field(default_factory=dict)
    metrics: dict[tuple[int, int], dict[bytes, Held]] = field(default_factory=dict)
    held_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of waiting records by host, without frame blocks, whose memory is bounded where they are built."""


class SliceBuffer:
    """Holds the records of all jobs of one engine until their slices are complete.

    Guarantee: ``advance`` returns the same bundles for the same set of records. Their order does not matter as long as
    none is late, and records may be repeated.
    """

    def __init__(self, config: SliceConfig) -> None:
        """Start empty; the first tick sets the time."""
        self._config = config
        self._tick_ns: int | None = None
        self._jobs: dict[JobKey, _JobBuffer] = {}
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Total bytes of records that wait for the end of their slice."""
        return self._held_bytes

    @property
    def watermark_ns(self) -> int | None:
        """Watermark in ns, None before the first tick; slices that end at or before it accept no more records."""
        return None if self._tick_ns is None else self._tick_ns - self._config.lateness_ns

    @property
    def jobs(self) -> tuple[JobKey, ...]:
        """The jobs that get a slice bundle each second, sorted."""
        return tuple(sorted(self._jobs))

    def slice_end_ns(self, record: Held) -> int:
        """Return the end of the slice that a record belongs to."""
        if isinstance(record, FrameBlock):
            return record.end_ns
        length = self._length_ns(record)
        return (record.ts_ns // length + 1) * length

    def _length_ns(self, record: Held) -> int:
        """Return the length of the slice that a record belongs to."""
        if isinstance(record, FrameBlock):
            return record.end_ns - record.start_ns
        if isinstance(record, Frame):
            return metric_slice_ns(record.tick_ns, self._config.metric_slice_ns)
        return self._config.fast_slice_ns

    def add(self, record: Held, data: bytes | None = None, *, may_be_ahead: bool = False) -> RecordOutcome:
        """Add one record and return whether it was accepted, or why not.

        Args:
            record: the decoded record or frame block.
            data: its bytes as received, which identify duplicates; None: the record is encoded for that.
            may_be_ahead: accept records ahead of the newest tick, while ticks are catching up with real time.

        Raises:
            FieldError: the record's slice would be longer than ``max_slice_ns``.
            TooManyError: its host, or all hosts together, would hold too many bytes.
        """
        end_ns = self.slice_end_ns(record)
        if isinstance(record, Frame) and self._length_ns(record) > self._config.max_slice_ns:
            raise FieldError("frame.tick_ns", record.tick_ns, f"at most {self._config.max_slice_ns // 5}")
        if self._tick_ns is not None:
            if record.ts_ns > self._tick_ns + self._config.max_ahead_ns and not may_be_ahead:
                return RecordOutcome.AHEAD
            if end_ns <= self._tick_ns - self._config.lateness_ns:
                return RecordOutcome.LATE
        buffer = self._jobs.get(record.job)
        if buffer is None:
            fast_ns = self._config.fast_slice_ns
            first = (record.ts_ns // fast_ns + 1) * fast_ns
            if self.watermark_ns is not None:
                first = max(first, (self.watermark_ns // fast_ns + 1) * fast_ns)
            buffer = self._jobs[record.job] = _JobBuffer(first, record.ts_ns)
        buffer.last_ts_ns = max(buffer.last_ts_ns, record.ts_ns)
        # A job's first records may arrive in any order: its first turn is its earliest slice.
        is_metrics = isinstance(record, Frame | FrameBlock)
        if end_ns < buffer.next_end_ns and not is_metrics:
            buffer.next_end_ns = end_ns
        key = _bytes_of(record) if data is None else bytes(data)
        if is_metrics:
            held = buffer.metrics.setdefault((end_ns, self._length_ns(record)), {})
        else:
            held = buffer.fast.setdefault(end_ns, {})
        if key in held:
            return RecordOutcome.DUPLICATE
        self._hold(buffer, record, len(key))
        held[key] = record
        return RecordOutcome.OK

    def _hold(self, buffer: _JobBuffer, record: Held, size: int) -> None:
        """Add a record's size to the byte counts, or raise ``TooManyError`` when a bound would be exceeded."""
        if isinstance(record, FrameBlock):
            return
        config, of_host = self._config, buffer.held_bytes[record.host] + size
        is_full = self._held_bytes + size > config.held_bytes and of_host > _SMALL_HOST_BYTES
        if of_host > config.host_held_bytes or is_full:
            who = f"of host {record.host[:80]!r} in job {record.job.job_id[:80]!r} are held"
            raise TooManyError("bytes_held", who, config.host_held_bytes)
        buffer.held_bytes[record.host] = of_host
        self._held_bytes += size

    def _release(self, buffer: _JobBuffer, held: Mapping[bytes, Held]) -> Mapping[bytes, Held]:
        """Subtract the sizes of removed records from the byte counts, and return these records unchanged."""
        for key, record in held.items():
            if not isinstance(record, FrameBlock):
                buffer.held_bytes[record.host] -= len(key)
                self._held_bytes -= len(key)
                if not buffer.held_bytes[record.host]:
                    del buffer.held_bytes[record.host]
        return held

    def _drop_job(self, job: JobKey) -> None:
        """Remove a job and its waiting records."""
        buffer = self._jobs.pop(job, None)
        if buffer is not None:
            self._held_bytes -= buffer.held_bytes.total()

    def forget(self, job: JobKey) -> None:
        """Remove a job and its waiting records; it gets no more slice bundles."""
        self._drop_job(job)

    def begin_anew(self, tick_ns: int) -> None:
        """Drop all waiting records and restart time at ``tick_ns``, which may be earlier than the current time."""
        self._tick_ns = tick_ns
        first_ns = (tick_ns - self._config.lateness_ns) // self._config.fast_slice_ns + 1
        self._jobs = {job: _JobBuffer(first_ns * self._config.fast_slice_ns, tick_ns) for job in self._jobs}
        self._held_bytes = 0

    def advance(self, tick_ns: int, on_failure: Callable[[JobKey, Exception], None] | None = None) -> list[SliceBundle]:
        """Move time to ``tick_ns`` and return the slice bundles that are now complete, sorted by (end, job).

        Args:
            tick_ns: the newest tick.
            on_failure: called with the job and the error when a job's bundles cannot be built; the job's waiting
                records are then dropped. None: the error is raised.
        """
        if self._tick_ns is not None and tick_ns <= self._tick_ns:
            return []
        self._tick_ns = tick_ns
        watermark = tick_ns - self._config.lateness_ns
        bundles: list[SliceBundle] = []
        for job, buffer in list(self._jobs.items()):
            try:
                bundles.extend(self._bundles_of(job, buffer, watermark))
            except Exception as error:  # supervising: one job's records must not stop the others
                if on_failure is None:
                    raise
                self._drop_job(job)
                self._jobs[job] = _JobBuffer((watermark // NS_PER_SECOND + 1) * NS_PER_SECOND, buffer.last_ts_ns)
                on_failure(job, error)
                continue
            if watermark - buffer.last_ts_ns > self._config.forget_job_after_ns:
                self._drop_job(job)
        bundles.sort(key=lambda bundle: (bundle.end_ns, bundle.job))
        return bundles

    def _bundles_of(self, job: JobKey, buffer: _JobBuffer, watermark: int) -> list[SliceBundle]:
        """Return one job's bundles up to the watermark, and remove their records from the buffer."""
        bundles = []
        step = self._config.fast_slice_ns
        while buffer.next_end_ns <= watermark:
            end = buffer.next_end_ns
            fast = Slice(job, end - step, end, _records(sort_records(self._release(buffer, buffer.fast.pop(end, {})))))
            ending = sorted(key for key in buffer.metrics if key[0] <= end)
            metrics = tuple(_metric_slice(job, key, self._release(buffer, buffer.metrics.pop(key))) for key in ending)
            bundles.append(SliceBundle(job, end, fast, metrics))
            buffer.next_end_ns = end + step
        return bundles

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts: one for the time and one for each job."""
        parts = {"time": pack_state({"tick_ns": self._tick_ns})}
        for job, buffer in self._jobs.items():
            held = [*buffer.fast.values(), *buffer.metrics.values()]
            parts[f"job:{quote(job.cluster, safe='')}/{quote(job.job_id, safe='')}/{job.attempt}"] = pack_state(
                {
                    "job": [job.cluster, job.job_id, job.attempt],
                    "next_end_ns": buffer.next_end_ns,
                    "last_ts_ns": buffer.last_ts_ns,
                    "records": sorted(base64.b64encode(data).decode() for group in held for data in group),
                }
            )
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned."""
        self._jobs.clear()
        self._tick_ns, self._held_bytes = None, 0
        for name in parts:
            if not name.startswith("job:"):
                continue
            state = unpack_state(parts, name)
            job = JobKey(*state["job"])
            for text in state["records"]:
                data = base64.b64decode(text)
                record = decode_block(data) if data.startswith(MAGIC) else decode(data)
                if not hasattr(record, "job"):
                    continue
                self.add(record, data)  # type: ignore[arg-type]  # ticks are never held
            buffer = self._jobs.setdefault(job, _JobBuffer(state["next_end_ns"], state["last_ts_ns"]))
            buffer.next_end_ns = state["next_end_ns"]
            buffer.last_ts_ns = state["last_ts_ns"]
        self._tick_ns = unpack_state(parts, "time")["tick_ns"]


def _bytes_of(record: Held) -> bytes:
    return encode_block(record) if isinstance(record, FrameBlock) else encode(record)


def _metric_slice(job: JobKey, key: tuple[int, int], held: Mapping[bytes, Held]) -> MetricSlice:
    """Build the metric slice with this end and length from its records and frame blocks."""
    end_ns, length_ns = key
    ordered = sort_records(held)
    blocks = tuple(record for record in ordered if isinstance(record, FrameBlock))
    return MetricSlice(job, end_ns - length_ns, end_ns, _records(ordered), blocks)


def _records(ordered: Iterable[Held]) -> tuple[JobRecord, ...]:
    return tuple(record for record in ordered if not isinstance(record, FrameBlock))


def _rank_of(record: Held) -> int:
    """Return the rank of an event or probe answer, -1 for other records; used for sorting."""
    return record.rank if isinstance(record, Event | ProbeAnswer) else -1


def canonical_records(records: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """Return the records of a whole slice in canonical order, without exact duplicates.

    Records are encoded only where kind, time, host and rank are equal and the bytes must decide.
    """
    groups: dict[tuple[int, int, str, int], list[JobRecord]] = {}
    for record in records:
        key = (_KIND_ORDER[type(record)], record.ts_ns, record.host, _rank_of(record))
        groups.setdefault(key, []).append(record)
    found: list[JobRecord] = []
    for _, same in sorted(groups.items()):
        found += same if len(same) == 1 else [one for _, one in sorted({encode(one): one for one in same}.items())]
    return tuple(found)


def sort_records(held: Mapping[bytes, Held]) -> tuple[Held, ...]:
    """Order by (kind, ts_ns, host, rank, bytes): independent of arrival."""
    ordered = sorted(
        held.items(),
        key=lambda item: (
            _KIND_ORDER[type(item[1])],
            item[1].ts_ns,
            item[1].host,
            _rank_of(item[1]),
            item[0],
        ),
    )
    return tuple(record for _, record in ordered)

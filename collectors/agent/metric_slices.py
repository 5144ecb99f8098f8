"""Records of a metric slice: the samples of the host's metrics, and the status of the host, for each job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.collectors.agent.job_state import JobState
from tocsin.collectors.agent.slicer import BEFORE_END_NS, CutFrame, FrameCutter, metric_slice_ns
from tocsin.collectors.clock import Now
from tocsin.schemas.metrics import BUILTIN_TABLE_ID
from tocsin.schemas.records import Frame, HostStatus, JobKey, Record

UNKNOWN_ERROR_NS: Final = 250_000_000
"""Bound of the difference of two hosts' clocks until they were compared."""

ServedJob = tuple[JobKey, JobState | None]
"""A job that the host serves and its state; None for the job of an idle host."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the agent's other parts, as ``HostStatus`` tells it.

    Attributes:
        clock_offset_ns: host's clock minus engine's.
        clock_error_ns: bound of the offset's error.
        spooled_count: records that wait in the spool.
        collectors: collector -> {"ok", "seconds", "reason"} of its last call.
    """

    clock_offset_ns: int = 0
    clock_error_ns: int = UNKNOWN_ERROR_NS
    spooled_count: int = 0
    collectors: Mapping[str, Any] = field(default_factory=dict)


class MetricSlices:
    """Cuts the host's samples into metric slices and makes each job's records of them."""

    def __init__(self, host: str, period_seconds: float) -> None:
        """Start without samples.

        Args:
            host: this host's name.
            period_seconds: sampling period of the metrics.

        Raises:
            ConfigError: slices of this period would not begin on whole seconds, or not hold whole ticks.
        """
        self._host = host
        self._slice_ns = metric_slice_ns(period_seconds)
        self._tick_ns = round(period_seconds * 1e9)
        self.frames = FrameCutter(self._tick_ns, self._slice_ns)
        """Samples that are not cut yet."""

    def end_at(self, end_ns: int) -> bool:
        """Return whether a metric slice ends at this boundary."""
        return end_ns % self._slice_ns == 0

    def cut(self, end_ns: int, jobs: Sequence[ServedJob], now: Now, around: Surroundings) -> Iterator[Record]:
        """Yield each job's frame, where there were samples, and host status of the slice that ends at ``end_ns``.

        Args:
            end_ns: the slice's end.
            jobs: the jobs that the host serves.
            now: the time.
            around: state of the agent's other parts.
        """
        cut = self.frames.cut(end_ns)
        ts_ns = end_ns - BEFORE_END_NS
        for job, state in jobs:
            if not cut.is_empty:
                yield self._frame(job, cut, _gpus_of(state, cut, is_only_job=len(jobs) <= 1), ts_ns)
            yield self._status(job, state, ts_ns, now, around)

    def _frame(self, job: JobKey, cut: CutFrame, gpu_uuids: tuple[str, ...], ts_ns: int) -> Frame:
        """Return a job's frame: the host's series and those of these GPUs."""
        return Frame(
            job=job,
            host=self._host,
            ts_ns=ts_ns,
            table_id=BUILTIN_TABLE_ID,
            first_tick_ns=cut.first_tick_ns,
            tick_ns=self._tick_ns,
            tick_count=cut.tick_count,
            gpu_uuids=gpu_uuids,
            gpu_matrix=cut.gpu_matrix(gpu_uuids),
            host_matrix=cut.host_matrix,
        )

    def _status(self, job: JobKey, state: JobState | None, ts_ns: int, now: Now, around: Surroundings) -> HostStatus:
        """Return the host's status as a job's record."""
        ranks = state.ranks.values() if state else ()
        return HostStatus(
            job=job,
            host=self._host,
            ts_ns=ts_ns,
            clock_offset_ns=around.clock_offset_ns,
            clock_error_ns=around.clock_error_ns,
            ranks_seen=state.ranks_seen(now.mono_ns - self._slice_ns) if state else (),
            hook_present=bool(state and state.hello_seen),
            dropped_count=sum(rank.dropped_count for rank in ranks),
            spooled_count=around.spooled_count,
            collectors=around.collectors,
        )


def _gpus_of(state: JobState | None, cut: CutFrame, *, is_only_job: bool) -> tuple[str, ...]:
    """Return the sampled GPUs that a job holds; all of them where none is known and the host serves one job."""
    held = state.gpu_uuids() if state else set()
    holds_all = not held and is_only_job
    return tuple(sorted(uuid for uuid in cut.gpu_matrices if holds_all or uuid in held))

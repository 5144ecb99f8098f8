"""What a start of an attempt took: its stages, and what its GPU time was spent on."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.records import JobKey

UNTOLD = ""
"""Stage of the row that stands for the whole start, with the GPU time that no stage tells of."""


@dataclass(frozen=True, slots=True)
class StartStage:
    """One stage of a start, on all hosts.

    Attributes:
        start_kind: ``full`` or ``hot``.
        stage: its name.
        begin_ns: first begin, 0 = unknown.
        end_ns: last end so far, 0 = none.
        host_count: hosts that are known to be or have been in it.
        open_count: hosts that have begun and not ended.
        lost_count: hosts whose mark is missing, though they are past the stage.
        median_seconds: median duration of the hosts that have ended; None: none has.
        slowest_host: the host that is in it for the longest time, else the one that took the longest; "" = unknown.
        slowest_begin_ns: when that host began, 0 = unknown.
        slowest_end_ns: when it ended, 0 = it has not.
        last_host: the host that ended last, "" where fewer than two have.
        saved_gpu_ns: GPU time that the job would have saved without that host (Bootseer's blame), GPU-nanoseconds.
        own_gpu_ns: GPU time of hosts in the stage, until training or the end of the start; 0 while it goes on.
        waiting_gpu_ns: GPU time of hosts that had ended it and waited for the last one; 0 while the start goes on.
        cache_hit_ratio: mean share of cache hits that the processes told, 0 to 1; None: none was told.
    """

    start_kind: str
    stage: str
    begin_ns: int
    end_ns: int
    host_count: int
    open_count: int
    lost_count: int
    median_seconds: float | None
    slowest_host: str
    slowest_begin_ns: int
    slowest_end_ns: int
    last_host: str
    saved_gpu_ns: int
    own_gpu_ns: int = 0
    waiting_gpu_ns: int = 0
    cache_hit_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """One start of an attempt: an attempt has several where its processes begin again in place.

    Attributes:
        job: the attempt.
        began_ns: first hello or begin of a stage, as in the attempt's account of time.
        train_ns: begin of the first step that followed, 0 = none has.
        told_ns: stream time of this account; of two accounts of one start the later one is kept.
        host_count: hosts of the attempt.
        gpu_count: ranks of the attempt, each with a GPU.
        stages: its stages, in the order of their begins.
        over_ns: where its attempt is over and never trained: until when its time counts as start-up, 0 = none does.
        is_failed: whether it failed; else it is not known to have been on its way to a first step.
    """

    job: JobKey
    began_ns: int
    train_ns: int
    told_ns: int
    host_count: int
    gpu_count: int
    stages: tuple[StartStage, ...] = ()
    over_ns: int = 0
    is_failed: bool = False

    @property
    def start_up_ns(self) -> int:
        """How long it took until training, or its failure; 0 while it goes on, as in the attempt's account of time."""
        until_ns = self.train_ns or self.over_ns
        return max(0, until_ns - self.began_ns) if until_ns else 0

    @property
    def gpu_ns(self) -> int:
        """GPU time from the begin to training, or until it failed, in GPU-nanoseconds."""
        return self.start_up_ns * self.gpu_count

    @property
    def untold_gpu_ns(self) -> int:
        """GPU time of it that no stage tells of, in GPU-nanoseconds."""
        return self.gpu_ns - sum(one.own_gpu_ns + one.waiting_gpu_ns for one in self.stages)

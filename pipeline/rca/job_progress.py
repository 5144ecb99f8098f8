"""Interface through which root-cause rules read the job's step times and work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.schemas.verdicts import WitnessKind


class JobProgress(Protocol):
    """**Protocol:** pace of one job, measured by its step records and its machines' work metrics."""

    @property
    def median_step_ns(self) -> int:
        """Median step time over the job's history in nanoseconds; 0 if unknown."""
        ...

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """Return how much longer steps take after ``onset_ns`` than before, as known at ``now_ns``.

        None where there are too few steps to tell.
        """
        ...

    def self_time_excess_seconds(self, host: str) -> float | None:
        """Return how many seconds a step a host's slowest rank computes longer than its peers; None if not measured."""
        ...

    def grown_self_time_seconds(self, host: str, onset_ns: int) -> float:
        """Return by how many seconds a step a host's excess self time over its peers has grown since ``onset_ns``.

        0.0 where it is unknown, or does not stand out among all hosts.
        """
        ...

    def costs_ratio(self, ranks: Collection[int], onset_ns: int, now_ns: int) -> float | None:
        """Return the share of the job's step time that these ranks cost now; None if it cannot be told.

        Without ranks, or where their own time is not longer than their peers', it is the growth since ``onset_ns``.
        """
        ...

    @property
    def least_communication_ratio(self) -> float | None:
        """Share of the newest steps that the rank communicates which does so least, 0 to 1; None if not measured."""
        ...

    def harmed_since(self, onset_ns: int, now_ns: int) -> Mapping[str, WitnessKind]:
        """Return host -> kind of testimony, for hosts that are held up since ``onset_ns``.

        It shows in their own step times; without steps, in the work of their machines.
        """
        ...

    @property
    def self_time_holds_waits(self) -> bool:
        """Whether the ranks' self time includes waiting for others.

        So it does where all ranks' self time grew and the machines do less work a second.
        """
        ...

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        """Return by how many seconds steps can at most be longer since ``onset_ns``; None with too few steps."""
        ...

    def more_work(self, host: str) -> Load | None:
        """Return how much more work than its peers a host lately does; None if no more, or unknown."""
        ...

    def moves_no_more(self, host: str) -> bool:
        """Return whether a host's tensor cores and links are known to do no more than expected."""
        ...

    def wastes_power(self, host: str) -> bool:
        """Return whether a host lately draws more power than expected without doing correspondingly more work."""
        ...

    @property
    def work_is_known(self) -> bool:
        """Whether metrics measure the work of the job's machines."""
        ...

    @property
    def work_goes_on(self) -> bool:
        """Whether the machines work at about their usual rate, independent of the steps."""
        ...

    @property
    def non_training_since_ns(self) -> int:
        """Time in nanoseconds since when machines compute as usual but move much less data.

        0 if they do not, or unknown.
        """
        ...

    @property
    def stalled_since_ns(self) -> int:
        """Time in nanoseconds since when metrics show that the machines do no work; 0 if they work, or unknown."""
        ...

    @property
    def stalled_known_ns(self) -> int:
        """Time in nanoseconds at which the current stall became known."""
        ...

    @property
    def longest_pause_ns(self) -> int:
        """Longest gap between two finished steps beyond a usual step time, in nanoseconds.

        Announced pauses are not counted.
        """
        ...

    @property
    def longest_stall_ns(self) -> int:
        """Longest stall of the machines' work that ended by itself, in nanoseconds."""
        ...

    @property
    def processes_wait_since_ns(self) -> int:
        """Time in nanoseconds since when GPUs steadily draw less power while their memory stays in use.

        The processes then live and wait. 0 if that is not so, or unknown.
        """
        ...

    @property
    def ended_at_once(self) -> Mapping[str, int]:
        """Host -> approximate time in nanoseconds at which its processes ended, read from GPU memory.

        Empty unless nearly all hosts' processes ended within seconds, and where no GPU memory is reported.
        """
        ...

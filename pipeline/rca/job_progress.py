"""What the explanations ask of the step detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.schemas.verdicts import WitnessKind


class JobProgress(Protocol):
    """The job's pace, as its step records show it."""

    @property
    def median_step_ns(self) -> int:
        """The job's step time over its history, 0: not known."""
        ...

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """How much longer the steps take since then, as was seen by ``now_ns``; None: the steps cannot tell."""
        ...

    def own_excess_seconds(self, host: str) -> float | None:
        """How much longer than its peers the slowest rank of a host computes in a step; None: not measured."""
        ...

    def grown_excess_seconds(self, host: str, onset_ns: int) -> float:
        """By how much more than before an onset a host computes longer than its peers, beyond all others; 0: not."""
        ...

    def harmed_since(self, onset_ns: int, now_ns: int) -> Mapping[str, WitnessKind]:
        """Hosts whose own steps (without steps: whose own machine) show that they are held up since then, and how."""
        ...

    @property
    def own_time_holds_waits(self) -> bool:
        """Whether all ranks' own time is longer, and the machines do less work a second since: they wait within it."""
        ...

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        """By how much the job's steps may at most be longer since then; None: too few steps tell."""
        ...

    def more_work(self, host: str) -> Load | None:
        """How much more work than its peers a host lately does, None: no more, or nobody knows."""
        ...

    def moves_no_more(self, host: str) -> bool:
        """Whether a host's tensor cores and links are known to do no more than expected."""
        ...

    def wastes_power(self, host: str) -> bool:
        """Whether a host lately draws more power than expected and does not do as much more with it."""
        ...

    @property
    def work_is_known(self) -> bool:
        """Whether metrics show the machines' work."""
        ...

    @property
    def work_goes_on(self) -> bool:
        """Whether the machines work about as much as ever, whatever the steps do."""
        ...

    @property
    def other_work_since_ns(self) -> int:
        """Since when the machines compute as much as ever and move much less, 0: they do not, or nobody knows."""
        ...

    @property
    def stalled_since_ns(self) -> int:
        """Since when the machines do no work, as their metrics show it, 0: they work, or nobody knows."""
        ...

    @property
    def stalled_known_ns(self) -> int:
        """When that became known."""
        ...

    @property
    def longest_pause_ns(self) -> int:
        """The longest time between two steps that ended, beyond a usual step; not where the job announced a pause."""
        ...

    @property
    def longest_stall_ns(self) -> int:
        """The longest such time that ended by itself."""
        ...

    @property
    def processes_wait_since_ns(self) -> int:
        """Since when the GPUs always draw less power while their memory is in use as ever: processes live and wait.

        0: they do not, or nobody tells.
        """
        ...

    @property
    def ended_at_once(self) -> Mapping[str, int]:
        """Host -> about when its processes ended, where those of nearly all did so within seconds; else empty.

        By their GPU memory; empty also where nobody tells.
        """
        ...

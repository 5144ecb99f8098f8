"""A job's progress whose every answer a test sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.pipeline.lab.testing.builders import START_NS
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import WitnessKind

SLOWER = Slowdown(0.3, is_certain=True, is_gone=False, step_seconds=1.3, before_seconds=1.0, step_count=60)
"""Sixty steps of 1.3 s in a job whose steps took 1 s."""
AS_EVER = Slowdown(0.0, is_certain=False, is_gone=True, step_seconds=1.0, before_seconds=1.0)
"""A job whose steps take 1 s, as they always did."""
NO_STEP = Slowdown(float("inf"), is_certain=True, is_gone=False, step_seconds=float("nan"), before_seconds=1.0)
"""A job whose steps took 1 s, and that ends none any more."""


@dataclass
class FakeProgress:
    """A ``JobProgress`` that answers with what it was given.

    Attributes:
        slowdown: answer to ``slowdown_since`` for spans that lie mostly after ``slower_since_ns``.
        slower_since_ns: when the job became slower. Spans that lie mostly before are answered with ``AS_EVER``.
        median_step_ns: the job's step time, 0: not known.
        growth_seconds: answer to ``most_growth_seconds``; None: too few steps tell.
        self_time_excess: host -> how much longer than its peers it computes, in seconds; absent: not measured.
        grown_self_time: host -> by how much that grew, in seconds; absent: not at all.
        cost_ratio: answer to ``costs_ratio``; None: it cannot be told.
        least_communication_ratio: share of its steps that the rank communicates which does so least; None: not known.
        harmed: host -> how its own data show that it is held up.
        loads: host -> how much more work than its peers it does.
        wasting: hosts that draw more power without doing more with it.
        moving_no_more: hosts whose tensor cores and links do no more than expected.
        self_time_holds_waits: whether all ranks' own time holds their waits.
        work_is_known: whether metrics show the machines' work.
        work_goes_on: whether the machines work about as much as ever.
        non_training_since_ns: when the job began to compute as ever and to move much less, 0: it did not.
        stalled_since_ns: when the machines ceased to work, 0: they work.
        stalled_known_ns: when that became known.
        longest_pause_ns: the longest time between two steps that ended.
        longest_stall_ns: the longest stall that ended by itself.
        processes_wait_since_ns: when GPUs began to draw less power with their memory in use, 0: they do not.
        ended_at_once: host -> when its processes ended, where those of nearly all hosts did; else empty.
    """

    slowdown: Slowdown | None = None
    slower_since_ns: int = START_NS - 5 * NS_PER_SECOND
    median_step_ns: int = NS_PER_SECOND
    growth_seconds: float | None = None
    self_time_excess: Mapping[str, float] = field(default_factory=dict)
    grown_self_time: Mapping[str, float] = field(default_factory=dict)
    cost_ratio: float | None = None
    least_communication_ratio: float | None = None
    harmed: Mapping[str, WitnessKind] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    wasting: frozenset[str] = frozenset()
    moving_no_more: frozenset[str] = frozenset()
    self_time_holds_waits: bool = False
    work_is_known: bool = True
    work_goes_on: bool = False
    non_training_since_ns: int = 0
    stalled_since_ns: int = 0
    stalled_known_ns: int = 0
    longest_pause_ns: int = 0
    longest_stall_ns: int = 0
    processes_wait_since_ns: int = 0
    ended_at_once: Mapping[str, int] = field(default_factory=dict)

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """Return the given slowdown, or ``AS_EVER`` for a span that lies mostly before the job became slower."""
        is_before = (onset_ns + now_ns) / 2 < self.slower_since_ns
        return AS_EVER if self.slowdown and is_before else self.slowdown

    def self_time_excess_seconds(self, host: str) -> float | None:
        """Return the given excess of a host's own time over its peers', in seconds; None: not measured."""
        return self.self_time_excess.get(host)

    def grown_self_time_seconds(self, host: str, onset_ns: int) -> float:  # noqa: ARG002  # any onset has the same answer
        """Return the given growth of a host's excess, in seconds; 0: it did not grow."""
        return self.grown_self_time.get(host, 0.0)

    def costs_ratio(self, ranks: Collection[int], onset_ns: int, now_ns: int) -> float | None:  # noqa: ARG002  # as above
        """Return the given share of the step time that these ranks cost."""
        return self.cost_ratio

    def harmed_since(self, onset_ns: int, now_ns: int) -> Mapping[str, WitnessKind]:  # noqa: ARG002  # as above
        """Return the given hosts that are held up, and how that is known."""
        return self.harmed

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:  # noqa: ARG002  # as above
        """Return the given limit of the steps' growth, in seconds; None: too few steps tell."""
        return self.growth_seconds

    def more_work(self, host: str) -> Load | None:
        """Return the given additional load of a host; None: it has no more work than its peers."""
        return self.loads.get(host)

    def moves_no_more(self, host: str) -> bool:
        """Return whether the host was given as one that does no more than expected."""
        return host in self.moving_no_more

    def wastes_power(self, host: str) -> bool:
        """Return whether the host was given as one that draws power for nothing."""
        return host in self.wasting

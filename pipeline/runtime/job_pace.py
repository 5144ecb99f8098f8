"""The job's progress and slowdown for root-cause analysis: by its steps, or by the work of its machines."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.pipeline.detect.steps.costs import least_communication_ratio
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.rca.rules.timing import SELF_TIME_SHARE_RATIO
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import WitnessKind

_WAITING_SHARE_RATIO = 0.5
"""The work per second must have fallen by at least this fraction of the growth in step time."""
_LEAST_COST_RATIO = 0.01
"""Share of a step below which computing longer explains no cost; step times cannot resolve less."""


@dataclass(frozen=True, slots=True)
class JobPace:
    """The job's progress at the end of one slice, measured by its steps.

    Where steps are unknown, by the work that its machines do per second.
    """

    steps: StepDetector
    peers: PeerDetector
    _excess_seconds: dict[str, float | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Host -> what ``StepDetector.self_time_excess_seconds`` said of it; several rules ask in a slice."""

    @property
    def median_step_ns(self) -> int:
        """Median step time of the job over its history in ns, 0 = unknown."""
        return self.steps.median_step_ns

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """Return how much longer the steps (or work) take since ``onset_ns``; None if this cannot be measured."""
        if self.steps.median_step_ns:
            found = self.steps.history.slowdown_since(onset_ns, now_ns)
            if found is not None and found.is_of_own and self.self_time_holds_waits:
                return replace(found, is_of_own=False)
            return found
        return self.peers.work.slowdown_since(onset_ns, now_ns)

    def self_time_excess_seconds(self, host: str) -> float | None:
        """Return by how many seconds per step the slowest rank of a host recently computes longer than its peers.

        Returns:
            Seconds per step, None = not measured.
        """
        if host not in self._excess_seconds:
            self._excess_seconds[host] = self.steps.self_time_excess_seconds(host)
        excess_seconds = self._excess_seconds[host]
        growth = self.steps.own_growth
        if excess_seconds is None or growth is None:
            return excess_seconds
        least_seconds = SELF_TIME_SHARE_RATIO * growth[1] * self.median_step_ns / NS_PER_SECOND
        return None if excess_seconds < least_seconds and self.self_time_holds_waits else excess_seconds

    def grown_self_time_seconds(self, host: str, onset_ns: int) -> float:
        """Return how much a host's excess compute time per step has grown since ``onset_ns``, beyond all other hosts.

        Returns:
            Seconds per step; 0 = it has not grown, or that is unknown.
        """
        return self.steps.grown_self_time_seconds(host, onset_ns)

    def costs_ratio(self, ranks: Collection[int], onset_ns: int, now_ns: int) -> float | None:
        """Return the share of the job's step time that these ranks cost now, 0 to 1; None = it cannot be told.

        It is what they compute longer than their peers. Without ranks, or where they do not compute longer, it is the
        growth of the job's steps since ``onset_ns``.
        """
        costs_ratio = self.steps.costs_ratio(ranks, onset_ns) if ranks else None
        if costs_ratio is not None and costs_ratio >= _LEAST_COST_RATIO:
            return costs_ratio
        slowdown = self.slowdown_since(onset_ns, now_ns)
        if slowdown is None or not slowdown.is_certain or not math.isfinite(slowdown.ratio):
            return costs_ratio
        return slowdown.ratio / (1.0 + slowdown.ratio)

    @property
    def least_communication_ratio(self) -> float | None:
        """Share of the newest steps that the rank communicates which does so least; None = not measured."""
        return least_communication_ratio(self.steps.window)

    def harmed_since(self, onset_ns: int, now_ns: int) -> Mapping[str, WitnessKind]:
        """Return host -> kind of witness, for hosts whose own steps show a delay since ``onset_ns``.

        Without step data, the work of their machines decides.
        """
        if by_steps := self.steps.harmed_since(onset_ns, now_ns):
            return by_steps
        if self.steps.median_step_ns and self.steps.history.slowdown_since(onset_ns, now_ns) is not None:
            return {}
        line = self.peers.work.waiting_line(onset_ns, now_ns)
        return {} if line is None else dict.fromkeys(self.peers.host_work.below(line), WitnessKind.PEERS_WAIT)

    @property
    def self_time_holds_waits(self) -> bool:
        """Whether all ranks' self time has grown while the machines do less work per second.

        Self time then contains waiting. Ranks that only have more to compute do as much work per second as before, for
        longer.
        """
        growth = self.steps.own_growth
        if growth is None:
            return False
        since_ns, growth_ratio = growth
        work = self.peers.work.slowdown_since(since_ns, self.steps.history.newest_ns)
        return work is not None and work.is_certain and work.ratio >= _WAITING_SHARE_RATIO * growth_ratio

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        """By how much the job's steps may at most be longer since then; None: too few steps tell."""
        return self.steps.history.most_growth_seconds(onset_ns, now_ns)

    def more_work(self, host: str) -> Load | None:
        """Return how much more work than its peers a host has done recently; None = not more, or unknown."""
        return self.peers.load.more_work(host)

    def moves_no_more(self, host: str) -> bool:
        """Return whether a host's tensor cores and links are known to do no more than expected."""
        return self.peers.load.moves_no_more(host)

    def wastes_power(self, host: str) -> bool:
        """Return whether a host recently draws more power than expected without doing correspondingly more work."""
        return self.peers.load.wastes_power(host)

    @property
    def work_is_known(self) -> bool:
        """Whether metrics show how much work the machines do."""
        return self.peers.work.is_known

    @property
    def work_goes_on(self) -> bool:
        """Whether the machines recently did at least half of their usual work, regardless of the steps."""
        return self.peers.work.goes_on

    @property
    def non_training_since_ns(self) -> int:
        """Since when the machines compute as much as usual but communicate much less, 0 = they do not, or unknown."""
        return self.peers.work.non_training_since_ns

    @property
    def stalled_since_ns(self) -> int:
        """Since when the machines have done no work, 0 = they work, or unknown."""
        return self.peers.work.stalled_since_ns

    @property
    def stalled_known_ns(self) -> int:
        """Time at which the stall of ``stalled_since_ns`` became known."""
        return self.peers.work.stalled_known_ns

    @property
    def longest_pause_ns(self) -> int:
        """The longest time between two steps that ended, beyond a usual step; not where the job announced a pause."""
        return self.steps.history.longest_pause_ns

    @property
    def longest_stall_ns(self) -> int:
        """Longest time without work that ended by itself, in ns."""
        return self.peers.work.longest_stall_ns

    @property
    def processes_wait_since_ns(self) -> int:
        """Since when GPUs draw less power while their memory stays in use (the processes are alive and wait).

        0 = they do not.
        """
        return self.peers.work.resting_since_ns if self.peers.memory_is_held else 0

    @property
    def ended_at_once(self) -> Mapping[str, int]:
        """Host -> approximate end of its processes, if nearly all hosts' processes ended within seconds.

        Otherwise empty.
        """
        return self.peers.ended_at_once

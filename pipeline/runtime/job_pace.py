"""The job's pace, for root cause: by its steps, else by the work that its machines do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.rca.rules.timing import OWN_SHARE_RATIO
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import WitnessKind

_WAITING_SHARE_RATIO = 0.5
"""Of what the steps are longer by, the work per second must be less by so much."""


@dataclass(frozen=True, slots=True)
class JobPace:
    """The job's pace by its steps; where it tells none, by the work its machines do per second."""

    steps: StepDetector
    peers: PeerDetector

    @property
    def median_step_ns(self) -> int:
        """The job's step time over its history, 0: not known."""
        return self.steps.median_step_ns

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """How much longer the steps take since then; None: nobody can tell."""
        if self.steps.median_step_ns:
            found = self.steps.history.slowdown_since(onset_ns, now_ns)
            if found is not None and found.is_of_own and self.own_time_holds_waits:
                return replace(found, is_of_own=False)
            return found
        return self.peers.work.slowdown_since(onset_ns, now_ns)

    def own_excess_seconds(self, host: str) -> float | None:
        """How much longer than its peers the slowest rank of a host computes in a step; None: not measured."""
        excess_seconds = self.steps.own_excess_seconds(host)
        growth = self.steps.own_growth
        if excess_seconds is None or growth is None:
            return excess_seconds
        least_seconds = OWN_SHARE_RATIO * growth[1] * self.median_step_ns / NS_PER_SECOND
        return None if excess_seconds < least_seconds and self.own_time_holds_waits else excess_seconds

    def grown_excess_seconds(self, host: str, onset_ns: int) -> float:
        """By how much more than before an onset a host computes longer than its peers, beyond all others; 0: not."""
        return self.steps.grown_excess_seconds(host, onset_ns)

    def harmed_since(self, onset_ns: int, now_ns: int) -> Mapping[str, WitnessKind]:
        """Hosts whose own steps (without steps: whose own machine) show that they are held up since then, and how."""
        if by_steps := self.steps.harmed_since(onset_ns, now_ns):
            return by_steps
        if self.steps.median_step_ns and self.steps.history.slowdown_since(onset_ns, now_ns) is not None:
            return {}
        line = self.peers.work.waiting_line(onset_ns, now_ns)
        return {} if line is None else dict.fromkeys(self.peers.host_work.below(line), WitnessKind.PEERS_WAIT)

    @property
    def own_time_holds_waits(self) -> bool:
        """Whether all ranks' own time is longer, and the machines do less work a second since: they wait within it.

        Ranks that have more to compute do as much work a second as before, for longer.
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
        """How much more work than its peers a host lately does, None: no more, or nobody knows."""
        return self.peers.load.more_work(host)

    def moves_no_more(self, host: str) -> bool:
        """Whether a host's tensor cores and links are known to do no more than expected."""
        return self.peers.load.moves_no_more(host)

    def wastes_power(self, host: str) -> bool:
        """Whether a host lately draws more power than expected and does not do as much more with it."""
        return self.peers.load.wastes_power(host)

    @property
    def work_is_known(self) -> bool:
        """Whether metrics show the machines' work."""
        return self.peers.work.is_known

    @property
    def work_goes_on(self) -> bool:
        """Whether the machines work about as much as ever, whatever the steps do."""
        return self.peers.work.goes_on

    @property
    def other_work_since_ns(self) -> int:
        """Since when the machines compute as much as ever and move much less, 0: they do not, or nobody knows."""
        return self.peers.work.other_work_since_ns

    @property
    def stalled_since_ns(self) -> int:
        """Since when the machines do no work, 0: they work, or nobody knows."""
        return self.peers.work.stalled_since_ns

    @property
    def stalled_known_ns(self) -> int:
        """When that became known."""
        return self.peers.work.stalled_known_ns

    @property
    def longest_pause_ns(self) -> int:
        """The longest time between two steps that ended, beyond a usual step; not where the job announced a pause."""
        return self.steps.history.longest_pause_ns

    @property
    def longest_stall_ns(self) -> int:
        """The longest such time that ended by itself."""
        return self.peers.work.longest_stall_ns

    @property
    def processes_wait_since_ns(self) -> int:
        """Since when GPUs draw less while their memory is in use as ever: processes live and wait; 0: they do not."""
        return self.peers.work.resting_since_ns if self.peers.memory_is_held else 0

    @property
    def ended_at_once(self) -> Mapping[str, int]:
        """Host -> about when its processes ended, where those of nearly all did so within seconds; else empty."""
        return self.peers.ended_at_once

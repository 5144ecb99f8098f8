"""The kinds of drill: how each fault is injected, which verdict is right, and a sentence that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tocsin.cli.drill.orders import OrderKind


class Target(StrEnum):
    """Part into which the fault is injected."""

    RANK = "rank"
    ALL_RANKS = "all_ranks"
    STAGE = "stage"
    """All ranks of one pipeline stage: that of the rank that the seed chooses."""
    AGENT = "agent"
    NOBODY = "nobody"


class Outside(StrEnum):
    """Action of the drill on a process from outside."""

    KILL = "kill"
    FREEZE = "freeze"
    THROTTLE = "throttle"
    KILL_AGENT = "kill_agent"
    SLOW_RELAY = "slow_relay"
    HOST_DOWN = "host_down"
    """The rank and its host's agent get SIGKILL at once."""
    LATE_START = "late_start"
    """The rank sleeps before it joins the others; the fault is there from the start."""


class ExpectedVerdict(StrEnum):
    """The right verdict."""

    ACCUSE = "accuse"
    """A verdict that accuses the host of the rank with the fault, and nobody else."""
    EXPLAIN = "explain"
    """A verdict without suspects that names the cause; any accusation is wrong."""
    NO_ACCUSATION = "no_accusation"
    """Verdicts without suspects are allowed but not required; any accusation is wrong."""
    SILENCE = "silence"
    """No verdict at all."""


@dataclass(frozen=True, slots=True)
class DrillKind:
    """One kind of drill.

    Attributes:
        name: value of ``--kind``.
        sentence: description for the display; ``{rank}`` and ``{magnitude}`` are filled in.
        target: what the fault is injected into.
        wanted: which verdict is right.
        faults: fault names that are right in the verdict.
        causes: cause names that are right in the verdict.
        orders: faults that the affected ranks inject into themselves (the seed chooses one).
        outside: what the drill does to them from outside, None: nothing.
        magnitude: smallest and greatest strength; the seed chooses a value between.
        ends_job: whether the job cannot reach its normal end afterwards.
        least_ranks_count: ranks that the fault needs to show; a job with fewer gets so many.
        stage_count: pipeline stages of the job, 1: no pipeline.
        has_own_batches: whether each rank has batches of its own, of which it tells the lengths.
        answer_seconds: longest time from the onset to the right verdict.
        watch_seconds: how long a drill without a required verdict is watched.
    """

    name: str
    sentence: str
    target: Target
    wanted: ExpectedVerdict
    faults: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    orders: tuple[OrderKind, ...] = ()
    outside: Outside | None = None
    magnitude: tuple[float, float] = (0.0, 0.0)
    ends_job: bool = False
    least_ranks_count: int = 1
    stage_count: int = 1
    has_own_batches: bool = False
    answer_seconds: float = 30.0
    watch_seconds: float = 20.0

    def fits(self, rank_count: int) -> bool:
        """Return whether a job of so many ranks can have this kind: a stage needs two replicas to be compared."""
        return self.stage_count == 1 or (
            rank_count % self.stage_count == 0 and rank_count >= _LEAST_REPLICAS * self.stage_count
        )


def _accuse(
    name: str,
    sentence: str,
    right: tuple[str, str],
    how: Outside | tuple[OrderKind, ...],
    magnitude: tuple[float, float] = (0.0, 0.0),
) -> DrillKind:
    """Return a kind whose right verdict accuses the rank's host with one fault and one cause."""
    fault, cause = right
    return DrillKind(
        name=name,
        sentence=sentence,
        target=Target.RANK,
        wanted=ExpectedVerdict.ACCUSE,
        faults=frozenset({fault}),
        causes=frozenset({cause}),
        orders=() if isinstance(how, Outside) else how,
        outside=how if isinstance(how, Outside) else None,
        magnitude=magnitude,
        ends_job=fault in {"fail_stop", "hang"},
    )


_O = OrderKind
_LEAST_REPLICAS = 2
_CAUSE_SECONDS = 90.0
"""Longest time to a cause that rests on two windows of 24 steps that share none, and on half a minute."""

KINDS: Mapping[str, DrillKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _accuse("kill", "rank {rank} gets SIGKILL", ("fail_stop", "process_exit"), Outside.KILL),
            _accuse("freeze", "rank {rank} gets SIGSTOP", ("hang", "process_frozen"), Outside.FREEZE),
            _accuse(
                "host_down",
                "the host of rank {rank} goes down: its agent and its rank get SIGKILL at once",
                ("fail_stop", "machine_unreachable"),
                Outside.HOST_DOWN,
            ),
            _accuse(
                "exception",
                "rank {rank} raises a ValueError of its own",
                ("fail_stop", "process_exit"),
                (_O.EXCEPTION,),
            ),
            _accuse(
                "slow_compute",
                "rank {rank} computes {magnitude:.1f} times as long as before",
                ("fail_slow", "unknown"),
                (_O.SLOW_COMPUTE,),
                (2.0, 4.0),
            ),
            _accuse(
                "cpu_throttle",
                "rank {rank} may run {magnitude:.0%} of the time only (SIGSTOP, SIGCONT, ten times a second)",
                ("fail_slow", "cpu_contention"),
                Outside.THROTTLE,
                (0.35, 0.45),
            ),
            _accuse(
                "loader_stall",
                "rank {rank} waits {magnitude:.2f} s longer for each batch",
                ("fail_slow", "loader_stall"),
                (_O.SLOW_LOADER,),
                (0.15, 0.4),
            ),
            DrillKind(
                name="loader_stall_all",
                sentence="every rank waits {magnitude:.2f} s longer for each batch: nobody's fault",
                target=Target.ALL_RANKS,
                wanted=ExpectedVerdict.EXPLAIN,
                faults=frozenset({"fail_slow", "degraded"}),
                causes=frozenset({"shared_service"}),
                orders=(_O.SLOW_LOADER,),
                magnitude=(0.15, 0.4),
            ),
            _accuse(
                "skip_collective",
                "rank {rank} enters another collective than its peers",
                ("hang", "collective_mismatch"),
                (_O.SKIP_REDUCE, _O.BROADCAST),
            ),
            _accuse(
                "nan",
                "rank {rank} computes NaN once; the next all_reduce spreads it",
                ("silent_corruption", "nan_gradient"),
                (_O.NAN_GRADIENT, _O.NAN_LOSS),
            ),
            _accuse(
                "slow_network",
                "every packet from and to rank {rank} takes {magnitude:.0f} ms longer",
                ("fail_slow", "network_slow"),
                Outside.SLOW_RELAY,
                (5.0, 15.0),
            ),
            DrillKind(
                name="slow_startup",
                sentence="rank {rank} needs {magnitude:.0f} s longer than the others until it joins them at the start",
                target=Target.RANK,
                wanted=ExpectedVerdict.ACCUSE,
                faults=frozenset({"fail_slow"}),
                causes=frozenset({"startup_slow"}),
                outside=Outside.LATE_START,
                magnitude=(35.0, 45.0),
                least_ranks_count=6,
            ),
            DrillKind(
                name="slow_stage",
                sentence="the stage of rank {rank} computes {magnitude:.1f} times as long on every replica",
                target=Target.STAGE,
                wanted=ExpectedVerdict.EXPLAIN,
                faults=frozenset({"fail_slow", "degraded"}),
                causes=frozenset({"stage_imbalance"}),
                orders=(_O.LONG_STAGE,),
                magnitude=(1.7, 2.3),
                stage_count=2,
                answer_seconds=_CAUSE_SECONDS,
            ),
            DrillKind(
                name="uneven_data",
                sentence="sequences differ in length from now on (spread of the logarithm {magnitude:.2f})",
                target=Target.ALL_RANKS,
                wanted=ExpectedVerdict.EXPLAIN,
                faults=frozenset({"fail_slow", "degraded"}),
                causes=frozenset({"data_imbalance"}),
                orders=(_O.UNEVEN_DATA,),
                magnitude=(0.5, 0.8),
                least_ranks_count=4,
                has_own_batches=True,
                answer_seconds=_CAUSE_SECONDS,
            ),
            DrillKind(
                name="gc_pauses",
                sentence="changing ranks collect garbage for about {magnitude:.2f} s: nobody's fault",
                target=Target.ALL_RANKS,
                wanted=ExpectedVerdict.NO_ACCUSATION,
                orders=(_O.GC_PAUSES,),
                magnitude=(0.12, 0.25),
                watch_seconds=50.0,
            ),
            DrillKind(
                name="agent_killed",
                sentence="the agent of rank {rank} gets SIGKILL; the training is fine: nobody's fault",
                target=Target.AGENT,
                wanted=ExpectedVerdict.NO_ACCUSATION,
                outside=Outside.KILL_AGENT,
            ),
            DrillKind(
                name="none",
                sentence="nothing happens",
                target=Target.NOBODY,
                wanted=ExpectedVerdict.SILENCE,
            ),
        )
    }
)
"""Kind by name, in the order in which ``--all`` runs them."""

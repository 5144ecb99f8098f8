"""One round of chaos: a cluster, a stream with several faults at ten times its speed, and kills meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.kills import Reaper, schedule
from tests.chaos.learned import Learned
from tests.chaos.outcome import Outcome, embedded, outcome, read_tables
from tests.chaos.plays import Play, PlayPace, as_job, judged_with, play_together
from tests.chaos.recordings import several_faults
from tests.chaos.settle import Chain
from tests.chaos.up import JOB, cluster_up
from tocsin.pipeline.lab.simulation.faults import FAULTS
from tocsin.pipeline.recording.replay import ReplayConfig
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.schemas.kafka.settings import kafka_settings

SPEED = 10.0
SETTLE_SECONDS = 240.0
PREFIX = "chaos"


@dataclass(frozen=True)
class RoundConfig:
    """How a round goes.

    Attributes:
        seed: of faults and kills.
        is_exactly_once: verdicts leave in transactions.
        kills_each_count: how often each component is killed.
        gap_seconds: between two kills, from and to; one of three is longer (``schedule``).
        checkpoint_seconds: what is said between two is said again after a failure.
        jobs_count: jobs in the stream.
        faults_count: faults of each.
        stream_seconds: length of the recording; kills go on for as long as they take.
        learned: learned detectors that judge, too, and models that are announced meanwhile.
    """

    seed: int
    is_exactly_once: bool = False
    kills_each_count: int = 2
    gap_seconds: tuple[float, float] = (1.0, 6.0)
    checkpoint_seconds: float = 5.0
    jobs_count: int = 6
    faults_count: int = 3
    stream_seconds: float = 1200.0
    learned: Learned = field(default_factory=Learned)


@dataclass
class Reported:
    """What came of a round."""

    outcomes: list[Outcome]
    counts: Counter[str] = field(default_factory=Counter)
    recovery_seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return not self.problems and not any(one.differs for one in self.outcomes)


def plays_of(config: RoundConfig) -> list[Play]:
    """The stream of a round."""
    order = random.Random(config.seed)
    plays = []
    for number in range(config.jobs_count):
        kinds = order.sample(sorted(FAULTS), config.faults_count)
        recording = several_faults(order.randrange(1 << 30), kinds, seconds=config.stream_seconds)
        plays.append(Play("+".join(kinds), as_job(recording, f"job-{config.seed}-{number}"), ReplayConfig()))
    return judged_with(plays, config.learned)


def run_round(config: RoundConfig, folder: Path) -> Reported:
    """Play, kill, wait until all is judged, compare."""
    plays, data = plays_of(config), folder / "data"
    said = embedded(plays, data)
    flags = [f"--checkpoint-seconds={config.checkpoint_seconds}", *config.learned.flags]
    flags += ["--exactly-once"] if config.is_exactly_once else []
    with cluster_up(folder, PREFIX, *flags) as cluster:
        reaper = Reaper(cluster, schedule(config.seed, config.kills_each_count, config.gap_seconds))
        reaper.start()
        settings = kafka_settings(cluster.state.addresses["kafka"])
        play_together(plays, settings, PREFIX, PlayPace(SPEED).on_second)
        reaper.join()
        cluster.check()
        chain = Chain(settings, PREFIX, cluster.rest, JOB, f"{PREFIX}.flink")
        reported = Reported([], reaper.counts, reaper.recovery_seconds, [reaper.error] if reaper.error else [])
        if not chain.wait_settled(SETTLE_SECONDS):
            reported.problems.append(f"not settled within {SETTLE_SECONDS:.0f} s")
        lines = chain.lines()
        wanted, found = read_tables(data), read_tables(data, parse_address(cluster.state.addresses["clickhouse"]))
    reported.outcomes = [
        outcome(play, said[play.job_id], [line for job, line in lines if job == play.job_id], wanted, found)
        for play in plays
    ]
    reported.problems += _doubled(reported.outcomes) if config.is_exactly_once else []
    return reported


def _doubled(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"{one.name}: {one.repeated_count} lines stand twice on the topic" for one in outcomes if one.repeated_count
    ]

"""Recordings played side by side into one set of topics, as the records of several jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from tests.chaos.learned import Learned
from tocsin.pipeline.kafka.client import Writer, input_partitions, producer
from tocsin.pipeline.recording.replay import ReplayConfig, arrivals_by_second, replay
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import topic_of
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, Tick
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

MOST_PLAYS = 24
"""Jobs of one stream: more take longer than one likes to wait for the first result."""


@dataclass(frozen=True)
class Play:
    """One job of a stream.

    Attributes:
        name: of the recording, for a human.
        recording: what is played; its job is like no other in the stream.
        config: order and repetition; the embedded engine gets it in order, once. Detectors and models are for both.
    """

    name: str
    recording: Recording
    config: ReplayConfig

    @property
    def job_id(self) -> str:
        return self.recording.manifest.job_id

    def embedded(self) -> list[Verdict]:
        """What the embedded engine says."""
        return list(replay(self.recording, self.in_order()))

    def in_order(self) -> ReplayConfig:
        """The settings without shuffling and repetition."""
        return replace(self.config, shuffle_seed=None, repeat_count=1)


def as_job(recording: Recording, job_id: str) -> Recording:
    """The same recording of another job: verdicts get other ids, in both engines."""
    return replace(recording, manifest=replace(recording.manifest, job_id=job_id))


def both_orders(name: str, recording: Recording, seed: int) -> list[Play]:
    """In order; and shuffled within the lateness with every record twice. Two jobs."""
    shuffled = ReplayConfig(shuffle_seed=seed, repeat_count=2)
    return [
        Play(name, as_job(recording, f"{name}-ordered"), ReplayConfig()),
        Play(f"{name}, shuffled, twice", as_job(recording, f"{name}-shuffled"), shuffled),
    ]


def judged_with(plays: Sequence[Play], learned: Learned) -> list[Play]:
    """The plays of one stream with learned detectors; all jobs hear of the same models."""
    announcements = learned.announced_after(max(play.recording.manifest.start_ns for play in plays))
    return [
        replace(play, config=replace(play.config, engine=learned.of(play.config.engine), announcements=announcements))
        for play in plays
    ]


def streams(plays: Iterable[Play]) -> list[list[Play]]:
    """Plays that can share topics: a replay ends with its recording, so these end together."""
    found: dict[int, list[Play]] = {}
    for play in plays:
        found.setdefault(-(-play.recording.manifest.end_ns // NS_PER_SECOND), []).append(play)
    return [part[at : at + MOST_PLAYS] for part in found.values() for at in range(0, len(part), MOST_PLAYS)]


def merged(plays: Sequence[Play]) -> Iterator[tuple[int, list[JobRecord]]]:
    """All plays' seconds, as (tick, records that arrive before it): one tick a second for all of them.

    Records stand in the order of their arrival, whichever play they are of. They share partitions, whose watermark
    follows the newest stamp: one play's second behind another one's would make shuffled records late.
    """
    waiting = [arrivals_by_second(play.recording, play.config) for play in plays]
    heads = [next(seconds, None) for seconds in waiting]
    tick_ns = min(head[0] for head in heads if head is not None)
    while any(head is not None for head in heads):
        arrived: list[tuple[int, JobRecord]] = []
        for index, head in enumerate(heads):
            if head is not None and head[0] == tick_ns:
                arrived += head[1]
                heads[index] = next(waiting[index], None)
        yield tick_ns, [record for _, record in sorted(arrived, key=itemgetter(0))]
        tick_ns += NS_PER_SECOND


class PlayPace:
    """Holds up a player so that it plays at a speed."""

    def __init__(self, speed: float) -> None:
        """Begin with the first second.

        Args:
            speed: recording seconds a second, 0: as fast as it goes.
        """
        self._speed = speed
        self._begun: tuple[int, float] | None = None

    def on_second(self, tick_ns: int) -> None:
        self._begun = self._begun or (tick_ns, time.monotonic())
        if self._speed:
            due = self._begun[1] + (tick_ns - self._begun[0]) / NS_PER_SECOND / self._speed
            time.sleep(max(0.0, due - time.monotonic()))


def play_together(
    plays: Sequence[Play],
    settings: KafkaSettings,
    prefix: str,
    on_second: Callable[[int], None] = lambda _: None,
    is_ours: Callable[[JobRecord], bool] = lambda _: True,
) -> int:
    """Send all plays with one set of ticks, as ``tocsin replay --to-kafka`` sends one; the records sent.

    Args:
        plays: they end together.
        settings: the brokers. One that is away for two minutes is waited for.
        prefix: of the topics.
        on_second: called after each second.
        is_ours: False: somebody else sends this record.
    """
    count, announced = 0, {one.name: one for play in plays for one in play.config.announcements}
    with producer(settings, linger_ms=50) as client:
        partitions = input_partitions(client, prefix)
        writer = Writer(client)
        for tick_ns, records in merged(plays):
            for model in [one for one in announced.values() if one.ts_ns < tick_ns]:
                writer.send(topic_of(model, prefix), announced.pop(model.name), encode(model))
            for record in filter(is_ours, records):
                writer.send(topic_of(record, prefix), record, encode(record))
                count += 1
            tick = Tick(tick_ns)
            for topic, number in partitions:
                writer.send(topic, tick, encode(tick), number)
            writer.check()
            on_second(tick_ns)
        writer.finish()
    return count

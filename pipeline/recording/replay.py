"""Replay a recording through the same operators that judge a running job.

Recording time replaces the clock: one tick a second, with the watermark one lateness behind. The same folder gives the
same output bytes, in whatever order the records arrive within the lateness.
"""

from __future__ import annotations

import heapq
import json
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.pipeline.recording.coverage import Coverage
from tocsin.pipeline.recording.judged_range import in_span, judged_span_ns
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.traced_causes import read_with_traces, with_traces
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig, played
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, ModelAnnouncement
from tocsin.schemas.verdicts import Verdict

_LOG = logging.getLogger("tocsin.replay")
VERDICTS_FILE = "verdicts.jsonl"


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Settings of a replay.

    Attributes:
        engine: settings of the engine and its operators.
        shuffle_seed: seed to shuffle the records' order within the lateness, None = keep the order.
        repeat_count: how often each record is delivered.
        announcements: models to announce during the replay, each at its own time.
    """

    engine: EngineConfig = field(default_factory=lambda: EngineConfig(history=None))
    shuffle_seed: int | None = None
    repeat_count: int = 1
    announcements: tuple[ModelAnnouncement, ...] = ()


def replay_folder(
    folder: Path, config: ReplayConfig | None = None, on_second: Callable[[int], None] | None = None
) -> list[Verdict]:
    """Replay a recording's folder and return all verdict updates.

    Args:
        folder: the recording.
        config: settings, None = the defaults.
        on_second: called with the recording time after each second (progress, real-time pace).

    Raises:
        RecordingError: the folder does not match the format.
    """
    return list(replay(read_with_traces(folder), config or ReplayConfig(), on_second))


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a complete replay.

    Attributes:
        verdicts: all verdict updates, in order.
        reason: why nothing could be judged, None = something was.
        failures: one sentence for each second in which an operator raised an error and the job was reset; the last
            hundred.
    """

    verdicts: tuple[Verdict, ...]
    reason: Reason | None
    failures: tuple[str, ...] = ()


def replay_whole(
    recording: Recording,
    config: ReplayConfig,
    on_second: Callable[[int], None] | None = None,
    refused: Counter[str] | None = None,
    detector: str = "",
) -> Replayed:
    """Replay a recording to its end, and determine whether anything in it could be judged.

    Args:
        recording: the recording.
        config: settings.
        on_second: called with the recording time after each second.
        refused: counts the records that the engine refused, by error.
        detector: determine this for one detector, whether or not there are verdicts; "" = for any detector.
    """
    engine = EmbeddedEngine(with_traces(played(config.engine), recording))
    coverage = Coverage(engine, config.engine.job.peers, detector)
    verdicts = tuple(drive(engine, recording, config, on_second, refused))
    failures = tuple(
        f"second {(one.end_ns - recording.manifest.start_ns) // NS_PER_SECOND} of job {one.job.job_id}: {one.text}"
        for one in engine.failures
    )
    return Replayed(verdicts, None if verdicts and not detector else coverage.reason(recording), failures)


def replay(
    recording: Recording,
    config: ReplayConfig,
    on_second: Callable[[int], None] | None = None,
    refused: Counter[str] | None = None,
) -> Iterator[Verdict]:
    """Replay a recording in memory and yield verdict updates as they arise; arguments as for ``drive``."""
    engine = EmbeddedEngine(with_traces(played(config.engine), recording))
    yield from drive(engine, recording, config, on_second, refused)


def drive(
    engine: EmbeddedEngine,
    recording: Recording,
    config: ReplayConfig,
    on_second: Callable[[int], None] | None = None,
    refused: Counter[str] | None = None,
) -> Iterator[Verdict]:
    """Feed a recording to an engine second by second, and yield verdict updates as they arise.

    Args:
        engine: a new engine, or one whose time is before the recording.
        recording: the recording.
        config: settings.
        on_second: called with the recording time after each second.
        refused: counts the records that the engine refused, by error; None: they are logged.
    """
    left_out = Counter[str]() if refused is None else refused
    for tick_ns, records in seconds_with_models(recording, config):
        for record in records:
            try:
                engine.take_record(record)
            except SchemaError as error:  # a value that the reader let pass: the rest goes on
                left_out[str(error)] += 1
        yield from engine.tick(tick_ns).verdicts
        if on_second is not None:
            on_second(tick_ns)
    for text, count in left_out.most_common(10) if refused is None else ():
        _LOG.warning("records are left out", extra={"error": text, "count": count})


def seconds_with_models(
    recording: Recording, config: ReplayConfig
) -> Iterator[tuple[int, list[JobRecord | ModelAnnouncement]]]:
    """Yield (tick, records) as ``seconds_of`` does, with the model announcements of each second first."""
    announced = deque(sorted(config.announcements, key=lambda one: one.ts_ns))
    for tick_ns, records in seconds_of(recording, config):
        now: list[JobRecord | ModelAnnouncement] = []
        while announced and announced[0].ts_ns < tick_ns:
            now.append(announced.popleft())
        yield tick_ns, [*now, *records]


def seconds_of(recording: Recording, config: ReplayConfig) -> Iterator[tuple[int, list[JobRecord]]]:
    """Yield (tick, records that arrive before it) for each second of a recording.

    Feeding these to an engine in this order replays the recording. The last tick is one lateness after its end.
    """
    for tick_ns, arrivals in arrivals_by_second(recording, config):
        yield tick_ns, [record for _, record in arrivals]


def arrivals_by_second(recording: Recording, config: ReplayConfig) -> Iterator[tuple[int, list[tuple[int, JobRecord]]]]:
    """Yield (tick, (arrival time in ns, record) of each record that arrives before it), as ``seconds_of`` does."""
    lateness_ns = config.engine.slices.lateness_ns
    arrivals = _arrivals(in_span(records_of(recording), recording.manifest), config, lateness_ns)
    held: tuple[int, JobRecord] | None = next(arrivals, None)
    if held is None:
        return
    last_ns = judged_span_ns(recording.manifest)[1] + lateness_ns
    tick_ns = (max(recording.manifest.start_ns, held[0]) // NS_PER_SECOND + 1) * NS_PER_SECOND
    while tick_ns <= last_ns:
        arrived: list[tuple[int, JobRecord]] = []
        while held is not None and held[0] < tick_ns:
            arrived.append(held)
            held = next(arrivals, None)
        yield tick_ns, arrived
        tick_ns += NS_PER_SECOND


def _arrivals(records: Iterable[JobRecord], config: ReplayConfig, lateness_ns: int) -> Iterator[tuple[int, JobRecord]]:
    """Yield (arrival time in ns, record), ascending; each record arrives up to one lateness after its event time."""
    if config.shuffle_seed is None and config.repeat_count == 1:
        for record in records:
            yield record.ts_ns, record
        return
    order = random.Random(config.shuffle_seed)
    waiting: list[tuple[int, int, JobRecord]] = []
    number = 0
    for record in records:
        while waiting and waiting[0][0] <= record.ts_ns:
            arrival_ns, _, ready = heapq.heappop(waiting)
            yield arrival_ns, ready
        for _ in range(config.repeat_count):
            delay_ns = 0 if config.shuffle_seed is None else order.randrange(lateness_ns)
            heapq.heappush(waiting, (record.ts_ns + delay_ns, number, record))
            number += 1
    while waiting:
        arrival_ns, _, ready = heapq.heappop(waiting)
        yield arrival_ns, ready


def verdict_lines(verdicts: Iterable[Verdict]) -> str:
    """Return the text of ``verdicts.jsonl``."""
    return "".join(json.dumps(verdict.to_line(), ensure_ascii=False) + "\n" for verdict in verdicts)

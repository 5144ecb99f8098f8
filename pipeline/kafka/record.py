"""Record a job's records from Kafka topics into a recording's folder."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kafka import TopicPartition

from tocsin.pipeline.core.frame_blocks import MetricSlice
from tocsin.pipeline.core.slices import (
    RecordOutcome,
    SliceBuffer,
    SliceBundle,
    SliceConfig,
)
from tocsin.pipeline.job.rank_filter import RankFilter
from tocsin.pipeline.job.rank_holders import RankFilterConfig
from tocsin.pipeline.kafka.client import consumer
from tocsin.pipeline.recording.recorder import JobRecorder
from tocsin.schemas.errors import EngineError, FieldError, SchemaError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import (
    INPUTS,
    KIND_HEADER,
    KIND_TICK,
    parse_key,
    topic_name,
)
from tocsin.schemas.metric_groups import GROUP_OF_TABLE, join_frames
from tocsin.schemas.records import Frame, JobKey, JobRecord, ModelAnnouncement, Slice, Tick
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.recorder")
_NS_PER_MS: Final = 1_000_000
_POLL_MS: Final = 500
_LEAD_NS: Final = 120 * 1_000_000_000
"""Greatest lead in reading one partition over another, which bounds the records in memory."""
_DISORDER_NS: Final = 5 * 1_000_000_000
"""Span beyond the requested end in which to look for earlier records, because they are not in order of time."""
_AHEAD_NS: Final = 3 * 1_000_000_000
"""Maximum lead of a record's own time over its message's time."""
_FAR_NS: Final = 2**62
_FAR_FUTURE: Final = SliceConfig(  # partitions are read at different speeds, and a backlog is held
    max_ahead_ns=_FAR_NS, host_held_bytes=_FAR_NS, held_bytes=_FAR_NS
)
_SHOWN_JOBS: Final = 20
_SHOWN_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """Job and time span to record.

    Attributes:
        job_id: the job.
        cluster: cluster of the job, "" = the only cluster that has such a job.
        since_ns: first event time.
        until_ns: end of event time (exclusive), None = the current end of the topics.
        has_late: whether to include records that came too late to be judged.
    """

    job_id: str
    cluster: str = ""
    since_ns: int = 0
    until_ns: int | None = None
    has_late: bool = True


@dataclass(slots=True)
class RecordCounts:
    """Counts of a recording run: records, late records, duplicates, undecodable records, and all jobs seen."""

    record_count: int = 0
    late_count: int = 0
    duplicate_count: int = 0
    undecodable: Counter[str] = field(default_factory=Counter)
    jobs: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _PartitionProgress:
    """Progress of reading one partition: offsets, newest tick and newest time."""

    end: int
    at: int
    tick_ns: int = 0
    newest_ns: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the partition has been read to its end."""
        return self.at >= self.end


def record(settings: KafkaSettings, prefix: str, folder: Path, wanted: RecordRequest) -> RecordCounts:
    """Record a job's records from the input topics, and return counts of them.

    A record is late if an earlier tick in its own partition had closed its slice. With late records the recording holds
    all measurements; without them a replay gives the verdicts that were given live.

    Raises:
        EngineError: a topic is missing, the broker refuses, or there is no such job.
        RecordingError: the folder is not empty, or cannot be written.
    """
    recorder = JobRecorder(folder, wanted.job_id, f"from Kafka, topics {prefix}.*")
    with consumer(settings) as client:
        places = _places(client, prefix, wanted)
        run = _RecordRun(wanted, recorder, places)
        reading: set[TopicPartition] = set()
        while not recorder.error and not all(place.is_done for place in places.values()):
            reading = _choose(client, places, reading)
            for at, messages in client.poll(timeout_ms=_POLL_MS).items():
                for message in messages:
                    run.take(places[at], message)
            for at in reading:
                places[at].at = max(places[at].at, client.position(at))
            run.advance()
    run.end()
    recorder.close()
    return run.counts


def _places(client: Any, prefix: str, wanted: RecordRequest) -> dict[TopicPartition, _PartitionProgress]:
    """Return partition -> its first and last offset to read."""
    found = []
    for name in INPUTS:
        topic = topic_name(name, prefix)
        numbers = client.partitions_for_topic(topic)
        if not numbers:
            raise EngineError(f"topic {topic} is not found: see --topic-prefix, or run 'tocsin topics apply'")
        found += [TopicPartition(topic, number) for number in sorted(numbers)]
    ends = dict(client.end_offsets(found))
    if wanted.until_ns is not None:
        later = client.offsets_for_times(dict.fromkeys(found, (wanted.until_ns + _DISORDER_NS) // _NS_PER_MS))
        ends.update({at: offset.offset for at, offset in later.items() if offset is not None})
    begins = client.beginning_offsets(found)
    if wanted.since_ns:
        since = client.offsets_for_times(dict.fromkeys(found, wanted.since_ns // _NS_PER_MS))
        begins = {at: ends[at] if since[at] is None else since[at].offset for at in found}
    return {at: _PartitionProgress(ends[at], min(begins[at], ends[at])) for at in found}


def _choose(
    client: Any, places: dict[TopicPartition, _PartitionProgress], reading: set[TopicPartition]
) -> set[TopicPartition]:
    """Assign the partitions to read now, so that none runs far ahead of the others, and return them.

    Assignment is used instead of ``pause``, because in kafka-python 3.0 fetched records of a paused partition block
    others.
    """
    open_places = {at: place for at, place in places.items() if not place.is_done}
    slowest_ns = min((place.newest_ns for place in open_places.values()), default=0)
    wanted = {at for at, place in open_places.items() if place.newest_ns <= slowest_ns + _LEAD_NS}
    if wanted <= reading and all(places[at].newest_ns <= slowest_ns + 2 * _LEAD_NS for at in reading):
        return reading
    client.assign(sorted(wanted))
    for at in wanted:
        client.seek(at, places[at].at)
    return wanted


class _RecordRun:
    """Turns messages into slice bundles and passes them to the recorder."""

    def __init__(
        self, wanted: RecordRequest, recorder: JobRecorder, places: dict[TopicPartition, _PartitionProgress]
    ) -> None:
        self.counts = RecordCounts()
        self._wanted = wanted
        self._recorder = recorder
        self._places = places
        self._buffer = SliceBuffer(_FAR_FUTURE)
        self._filters: dict[JobKey, RankFilter] = {}
        self._late: dict[bytes, JobRecord | None] = {}
        self._clusters: set[str] = set()
        self._newest_ns = 0

    def take(self, place: _PartitionProgress, message: Any) -> None:
        """Process one message of a partition."""
        if message.offset >= place.end:
            return
        stamp_ns = message.timestamp * _NS_PER_MS
        place.newest_ns = max(place.newest_ns, stamp_ns)
        if dict(message.headers).get(KIND_HEADER) == KIND_TICK:
            place.tick_ns = max(place.tick_ns, stamp_ns)
            return
        if not self._is_wanted(message):
            return
        if message.value is None:
            self.counts.undecodable["no value"] += 1
            return
        try:
            record = decode(message.value)
        except SchemaError as error:
            self.counts.undecodable[str(error)] += 1
            return
        if isinstance(record, Tick | ModelAnnouncement) or record.job.job_id != self._wanted.job_id:
            return
        if record.ts_ns >= stamp_ns + _AHEAD_NS:  # the job refuses it, too; each second up to it would be gone through
            self.counts.undecodable["its own stamp lies after Kafka's"] += 1
            return
        self._add(place, record, message.value)

    def _is_wanted(self, message: Any) -> bool:
        """Return whether a message's key and time belong to the requested job and span."""
        try:
            cluster, job_id, _ = parse_key(message.key or b"")
        except FieldError:  # a dead letter
            return False
        self.counts.jobs.add(f"{cluster}/{job_id}")
        wanted = self._wanted
        if job_id != wanted.job_id or wanted.cluster not in {"", cluster}:
            return False
        self._clusters.add(cluster)
        if len(self._clusters) > 1:
            names = ", ".join(f"{name}/{job_id}" for name in sorted(self._clusters))
            raise EngineError(f"several clusters have a job {job_id}: name one of {names}")
        stamp_ns = message.timestamp * _NS_PER_MS
        return wanted.since_ns <= stamp_ns and (wanted.until_ns is None or stamp_ns < wanted.until_ns)

    def _add(self, place: _PartitionProgress, record: JobRecord, data: bytes) -> None:
        """Add a record to the slice buffer, or to the late records."""
        if self._buffer.slice_end_ns(record) <= place.tick_ns - _FAR_FUTURE.lateness_ns:
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if digest in self._late:
                self.counts.duplicate_count += 1
                return
            self.counts.late_count += 1
            self._late[digest] = record if self._wanted.has_late else None
            return
        self._newest_ns = max(self._newest_ns, self._buffer.slice_end_ns(record))
        if self._buffer.add(record, data) is RecordOutcome.DUPLICATE:
            self.counts.duplicate_count += 1
        else:
            self.counts.record_count += 1

    def advance(self) -> None:
        """Pass on the slices that the ticks of all partitions have completed."""
        tick_ns = min((place.tick_ns for place in self._places.values() if not place.is_done), default=0)
        if tick_ns:
            self._hand_on(self._buffer.advance(tick_ns))

    def end(self) -> None:
        """Pass on the remaining slices and the late records.

        Raises:
            EngineError: the job had no records at all.
        """
        self._hand_on(self._buffer.advance(self._newest_ns + _FAR_FUTURE.lateness_ns))
        self._hand_on(self._late_bundles())
        if not self.counts.record_count and not self.counts.late_count:
            jobs = sorted(self.counts.jobs)
            shown = (
                job if len(job) <= _SHOWN_CHARACTERS else f"{job[: _SHOWN_CHARACTERS - 3]}..."
                for job in jobs[:_SHOWN_JOBS]
            )
            listing = ", ".join(shown) + (" ..." if len(jobs) > _SHOWN_JOBS else "")
            raise EngineError(
                f"no record of job {self._wanted.job_id} in that time; there are records of: {listing or '-'}"
            )
        for text, count in self.counts.undecodable.most_common(10):
            _LOG.warning("records are left out", extra={"error": text, "count": count})

    def _late_bundles(self) -> Iterator[SliceBundle]:
        """Yield the late records as separate slice bundles; the recording's files are sorted at the end."""
        slices: dict[tuple[JobKey, int], list[JobRecord]] = {}
        for record in self._late.values():
            if record is None:
                continue
            slices.setdefault((record.job, self._buffer.slice_end_ns(record)), []).append(record)
        for (job, end_ns), records in sorted(slices.items()):
            start_ns = min(record.ts_ns for record in records)
            fast = Slice(job, start_ns, end_ns, tuple(r for r in records if not isinstance(r, Frame)))
            metrics = MetricSlice(job, start_ns, end_ns, tuple(r for r in records if isinstance(r, Frame)))
            yield SliceBundle(job, end_ns, fast, (metrics,))

    def _hand_on(self, bundles: Iterator[SliceBundle] | list[SliceBundle]) -> None:
        """Pass slice bundles to the recorder, without records that their hosts may not send."""
        for bundle in bundles:
            rank_filter = self._filters.setdefault(bundle.job, RankFilter(RankFilterConfig()))
            accepted, _ = rank_filter.admit(
                bundle.fast.records, bundle.end_ns
            )  # a recording keeps no hosts beside its rows
            fast = replace(bundle.fast, records=tuple(accepted))
            self._recorder.on_bundle(replace(bundle, fast=fast, metrics=tuple(map(_whole, bundle.metrics))))


def _whole(metrics: MetricSlice) -> MetricSlice:
    """Return a metric slice with frames that were split by metric group joined again."""
    records: list[JobRecord] = []
    cut: dict[object, list[Frame]] = {}
    for record in metrics.records:
        if isinstance(record, Frame) and record.table_id in GROUP_OF_TABLE:
            cut.setdefault(replace(record, table_id=0, gpu_matrix=b"", host_matrix=b""), []).append(record)
        else:
            records.append(record)
    return replace(metrics, records=(*records, *map(join_frames, cut.values()))) if cut else metrics

"""Plays many hosts into Kafka in real time, from bytes prepared before: ``python -m tests.bench.stream_load``.

A process of its own, so that its CPU is not the pipeline's. Prints one JSON line when it begins and one when it ends.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaConsumer
from numpy.typing import NDArray

from tests.bench.stream_send import Message, Wire, requests_of
from tocsin.pipeline.runtime.flink.placement import slot_of
from tocsin.schemas.events import PHASE
from tocsin.schemas.kafka.topics import (
    TICKED,
    headers_of,
    key_of,
    tick_key,
    timestamp_ms,
    topic_name,
    topic_of,
)
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.metric_groups import split_frame
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    Event,
    Frame,
    JobKey,
    JobRecord,
    RankPlace,
    StepBatch,
    StepRecord,
    Tick,
    Topology,
)
from tocsin.schemas.wire.codec import encode

SLICE_SECONDS, GPU_COUNT = 5, 8
CLUSTER = "bench"
SLICE_NS = SLICE_SECONDS * NS_PER_SECOND
Numbers = NDArray[Any]
_PIECE_COUNT = 500


class Part(NamedTuple):
    """What is sent at once.

    Attributes:
        due_seconds: after the slice's end.
        requests: ready for the wire.
        record_count: of them.
        bytes_count: of the records' values.
    """

    due_seconds: float
    requests: list[bytes]
    record_count: int
    bytes_count: int


@dataclass(frozen=True)
class Load:
    """What is played."""

    host_count: int
    job_count: int
    slice_count: int
    prefix: str
    is_cut: bool = False
    names: tuple[str, ...] = ()

    def job_of(self, host: int) -> JobKey:
        return JobKey(CLUSTER, self.names[host % self.job_count], 0)

    def ranks_of(self, host: int) -> range:
        first = host // self.job_count * GPU_COUNT
        return range(first, first + GPU_COUNT)


def names_of(job_count: int, slot_count: int, *, is_spread: bool) -> tuple[str, ...]:
    """Names of jobs that Flink spreads evenly over the slots; or that all fall into one, which happens."""
    slots = [number % slot_count if is_spread else slot_count - 1 for number in range(job_count)]
    found: list[str] = []
    for slot in slots:
        names = (f"job-{number}" for number in itertools.count())
        found.append(next(one for one in names if one not in found and slot_of(f"{CLUSTER}/{one}", slot_count) == slot))
    return tuple(found)


def main() -> None:
    """Prepare, wait for the next slice, play, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--one-slot", action="store_true")
    parser.add_argument("--cut", action="store_true")
    parser.add_argument(
        "--backlog", action="store_true", help="all of it is past: send it as fast as the broker takes it"
    )
    args = parser.parse_args()
    names = names_of(args.jobs, args.slots, is_spread=not args.one_slot)
    load = Load(args.hosts, args.jobs, args.seconds // SLICE_SECONDS, args.prefix, args.cut, names)
    partitions = _partitions(args.kafka, load.prefix)
    # The stamps lie in the future while the bytes are made: a slice costs some 60 us a host, and Java compiles
    # meanwhile: what begins late begins with a backlog that is the load's own.
    lead_seconds = 5 + (300e-6 if load.is_cut else 190e-6) * load.host_count * load.slice_count
    if args.backlog:
        lead_seconds = -float((load.slice_count + 2) * SLICE_SECONDS)
    start_ns = (int(time.time() + lead_seconds) // SLICE_SECONDS + 1) * SLICE_NS
    gc.disable()  # it would walk through ten million prepared objects, seconds each time, while agents wait
    slices = [_parts(_slice(load, start_ns, index), partitions) for index in range(load.slice_count)]
    late_seconds = time.time() - start_ns / NS_PER_SECOND
    print(json.dumps({"start_ns": start_ns, "prepared_late_seconds": round(max(0.0, late_seconds), 2)}), flush=True)
    _play(Wire(args.kafka), load, start_ns, slices, partitions)


def _partitions(servers: str, prefix: str) -> dict[str, int]:
    """Topic -> its number of partitions, of those that have ticks."""
    client = KafkaConsumer(bootstrap_servers=servers)
    try:
        names = [topic_name(name, prefix) for name in TICKED]
        return {name: len(client.partitions_for_topic(name) or ()) for name in names}
    finally:
        client.close()


def _parts(messages: list[Message], partitions: dict[str, int]) -> list[Part]:
    """What agents send in the first half of the next second, cut into pieces of it."""
    pieces = [messages[first : first + _PIECE_COUNT] for first in range(0, len(messages), _PIECE_COUNT)]
    return [
        Part(
            0.5 * place / len(pieces), requests_of(piece, partitions), len(piece), sum(len(one.value) for one in piece)
        )
        for place, piece in enumerate(pieces)
    ]


def _play(wire: Wire, load: Load, start_ns: int, slices: list[list[Part]], partitions: dict[str, int]) -> None:
    seconds = range(load.slice_count * SLICE_SECONDS + 4)
    ticks = [_tick(start_ns + second * NS_PER_SECOND, partitions) for second in seconds]
    cpu_seconds, behind_seconds, sent_count, sent_bytes = time.process_time(), 0.0, 0, 0
    for second in seconds:
        at_seconds = start_ns / NS_PER_SECOND + second
        time.sleep(max(0.0, at_seconds - time.time()))
        wire.send(ticks[second])
        index = second // SLICE_SECONDS - 1
        if second % SLICE_SECONDS == 0 and 0 <= index < load.slice_count:
            parts, slices[index] = slices[index], []
            for part in parts:
                time.sleep(max(0.0, at_seconds + part.due_seconds - time.time()))
                wire.send(part.requests)
                sent_bytes += part.bytes_count
                sent_count += part.record_count
            behind_seconds = max(behind_seconds, time.time() - at_seconds)
    report = {
        "records": sent_count,
        "bytes": sent_bytes,
        "cpu_seconds": round(time.process_time() - cpu_seconds, 2),
        "longest_send_seconds": round(behind_seconds, 2),
    }
    print(json.dumps(report), flush=True)


def _tick(now_ns: int, partitions: dict[str, int]) -> list[bytes]:
    tick = Tick(now_ns)
    value, headers, stamp_ms = encode(tick), headers_of(tick), timestamp_ms(tick)
    messages = [
        Message(name, tick_key(name), value, headers, stamp_ms, partition)
        for name, count in partitions.items()
        for partition in range(count)
    ]
    return requests_of(messages, partitions)


def _slice(load: Load, start_ns: int, index: int) -> list[Message]:
    """All that the hosts send at one slice's end, in a drawn order."""
    end_ns = start_ns + (index + 1) * SLICE_NS
    draw = np.random.default_rng(index)
    shape = (load.host_count, GPU_COUNT, len(BUILTIN_TABLE.gpu), SLICE_SECONDS)
    gpu = (0.7 + 0.01 * draw.standard_normal(shape, np.float32)).astype("<f4")
    host = (0.3 + 0.01 * draw.standard_normal((load.host_count, len(BUILTIN_TABLE.host), SLICE_SECONDS))).astype("<f4")
    lasted = 4.9 + 0.01 * draw.standard_normal((load.host_count, GPU_COUNT))
    messages: list[Message] = []
    for number in draw.permutation(load.host_count).tolist():
        records = _records(load, number, end_ns, index, (gpu[number], host[number], lasted[number]))
        if load.is_cut:
            records[:1] = split_frame(records[0])  # type: ignore[arg-type]  # the first one is the frame
        for record in records:
            key = key_of(record)
            assert key is not None
            value, headers = encode(record), headers_of(record)
            messages.append(Message(topic_of(record, load.prefix), key, value, headers, timestamp_ms(record)))
    return messages


def _records(
    load: Load, number: int, end_ns: int, index: int, values: tuple[Numbers, Numbers, Numbers]
) -> list[JobRecord]:
    job, name, ranks = load.job_of(number), f"host-{number:05d}", load.ranks_of(number)
    gpu, host, lasted = values
    stamp_ns, uuids = end_ns - NS_PER_SECOND // 1000, tuple(f"GPU-{number}-{gpu}" for gpu in range(GPU_COUNT))
    first_ns = end_ns - SLICE_NS
    records: list[JobRecord] = [
        Frame(
            job,
            name,
            stamp_ns,
            BUILTIN_TABLE.table_id,
            first_ns,
            NS_PER_SECOND,
            SLICE_SECONDS,
            uuids,
            gpu.tobytes(),
            host.tobytes(),
        ),
        StepBatch(
            job,
            name,
            stamp_ns,
            tuple(
                StepRecord(stamp_ns, rank, index, float(seconds), 0.1, 1.5, 2.5, 0.3, 0.5)
                for rank, seconds in zip(ranks, lasted, strict=True)
            ),
        ),
    ]
    if index % 2 == number % 2:  # each communicator's last operation, every 10 s
        rows = tuple(
            CollectiveRecord(
                ts_ns=stamp_ns,
                record="completion",
                rank=rank,
                comm_id=f"tp-{number}",
                op_name="all_reduce",
                op_seq=1 + index * 20,
                msg_bytes=1 << 20,
                start_ns=stamp_ns - 30_000_000,
                end_ns=stamp_ns - 10_000_000,
            )
            for rank in ranks
        )
        records.append(CollectiveBatch(job, name, stamp_ns, rows))
    if index % 6 == number % 6:  # re-announced every 30 s
        world = load.host_count // load.job_count * GPU_COUNT
        places = tuple(RankPlace(rank, name, local, uuids[local], world_size=world) for local, rank in enumerate(ranks))
        records.append(Topology(job, name, stamp_ns, places))
    if (number + index) % 997 == 0:
        payload = {"phase": "compile", "edge": "end"}
        records.append(Event(job, name, stamp_ns, ranks[0], EventSource.JOB, PHASE, Severity.INFO, payload))
    return records


if __name__ == "__main__":
    main()

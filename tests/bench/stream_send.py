"""Produce requests, made before and sent as they are: what the agents' own machines spend on them is nobody's here."""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.partitioner.default import murmur2
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

_VERSION, _MAGIC, _LZ4, _ALL = 9, 2, 3, -1
_BATCH_BYTES = 1 << 20
_TIMEOUT_MS = 30_000
_LENGTH = struct.Struct(">i")


class Message(NamedTuple):
    """One record.

    Attributes:
        topic: its name.
        key: what its partition follows from, as Kafka's own clients do it; None: the partition is given.
        value: its bytes.
        headers: names and values.
        stamp_ms: its time.
        partition: None: by the key.
    """

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    stamp_ms: int
    partition: int | None = None


def requests_of(messages: Iterable[Message], partitions: Mapping[str, int]) -> list[bytes]:
    """All of them as requests, ready for the wire; each partition's in their order."""
    groups: dict[tuple[str, int], list[Message]] = defaultdict(list)
    places: dict[tuple[str, bytes], int] = {}
    for message in messages:
        place = message.partition
        if place is None:
            known = message.topic, message.key or b""
            if known not in places:
                places[known] = (murmur2(known[1]) & 0x7FFFFFFF) % partitions[message.topic]
            place = places[known]
        groups[message.topic, place].append(message)
    rounds: dict[int, dict[str, list[object]]] = defaultdict(lambda: defaultdict(list))
    for (topic, partition), group in groups.items():
        for number, batch in enumerate(_batches(group)):
            data = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch)
            rounds[number][topic].append(data)  # a request takes one batch of a partition
    return [_encoded(topics) for _, topics in sorted(rounds.items())]


def _batches(messages: Iterable[Message]) -> Iterable[bytes]:
    builder, count = _builder(), 0
    for message in messages:
        parts = (message.stamp_ms, message.key, message.value, message.headers)
        if builder.append(count, *parts) is None:
            yield bytes(builder.build())
            builder, count = _builder(), 0
            builder.append(count, *parts)
        count += 1
    yield bytes(builder.build())


def _builder() -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(_MAGIC, _LZ4, False, -1, -1, -1, _BATCH_BYTES)


def _encoded(topics: Mapping[str, list[object]]) -> bytes:
    data = [ProduceRequest.TopicProduceData(name=name, partition_data=parts) for name, parts in topics.items()]
    request = ProduceRequest(transactional_id=None, acks=_ALL, timeout_ms=_TIMEOUT_MS, topic_data=data)
    request.with_header(correlation_id=0, client_id="load")
    return bytes(request.encode(version=_VERSION, header=True, framed=True))


class Wire:
    """A connection to the broker."""

    def __init__(self, address: str) -> None:
        """Connect to ``host:port``."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, requests: Iterable[bytes]) -> None:
        """Send them, each when the one before is acknowledged.

        Raises:
            RuntimeError: the broker refused one.
        """
        for request in requests:
            self._socket.sendall(request)
            answer = self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])
            response = ProduceResponse.decode(answer, version=_VERSION, header=True)
            codes = {part.error_code for topic in response.responses for part in topic.partition_responses}
            if codes != {0}:
                raise RuntimeError(f"the broker refused records: error codes {sorted(codes)}")

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise RuntimeError("the broker closed the connection")
            found += more
        return bytes(found)

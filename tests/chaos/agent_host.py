"""One host's agent as far as its sink goes: a process that sends a host's records when their time comes.

What was not sent before it died is not sent later, as with a real agent that was not there to collect it; what
stands in the spool on its disk is.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.kafka_client import KafkaSinkConfig
from tocsin.collectors.transport.kafka_sink import KafkaSink
from tocsin.collectors.transport.spool import DiskSpool
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import decode, encode

_LENGTH = struct.Struct("<I")
_SPOOL_BYTES = 1 << 24
_LOOK_SECONDS = 0.02
SENDING = "agent_host: sending"
"""What it says when it begins to send: from then on it may be killed."""


@dataclass(frozen=True)
class Order:
    """What the process is told.

    Attributes:
        kafka: the broker.
        prefix: of the topics.
        host: whose records.
        records: file that holds them.
        spool: folder.
        begun_seconds: wall clock at which the recording begins.
        start_ns: the recording's first instant.
        speed: recording seconds a second.
    """

    kafka: str
    prefix: str
    host: str
    records: str
    spool: str
    begun_seconds: float
    start_ns: int
    speed: float

    def now_ns(self) -> int:
        """Recording time now."""
        return self.start_ns + round((time.time() - self.begun_seconds) * self.speed * 1e9)

    def command(self) -> list[str]:
        """The process that obeys."""
        return [sys.executable, "-m", "tests.chaos.agent_host", json.dumps(asdict(self))]


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write records to a file, in the order of their times; how many."""
    found = [encode(record) for record in sorted(records, key=lambda one: one.ts_ns)]
    path.write_bytes(b"".join(_LENGTH.pack(len(data)) + data for data in found))
    return len(found)


def _read_records(path: Path) -> Iterator[Record]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        yield decode(data[at : at + size])
        at += size


def main() -> None:
    """Send until the end of the recording."""
    parser = argparse.ArgumentParser()
    parser.add_argument("order")
    order = Order(**json.loads(parser.parse_args().order))
    config = KafkaSinkConfig(kafka_settings(order.kafka), order.host, order.prefix)
    sink = KafkaSink(config, DiskSpool(order.spool, _SPOOL_BYTES), SteadyClock(SystemClock()), lambda: None)
    sink.start()
    print(SENDING, flush=True)
    born_ns = order.now_ns()
    for record in _read_records(Path(order.records)):
        if record.ts_ns < born_ns - round(order.speed * 1e9) * (born_ns > order.start_ns):
            continue
        while record.ts_ns > order.now_ns():
            time.sleep(_LOOK_SECONDS)
        sink.put(record)
    sink.close(20.0)


if __name__ == "__main__":
    main()

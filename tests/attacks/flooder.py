"""A hostile peer in a process of its own: ``python -m tests.attacks.flooder ADDRESS KIND SECONDS``."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import MappingProxyType

from tocsin.pipeline.runtime.embedded.listener.listener import parse_address
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, Severity
from tocsin.schemas.wire.codec import encode

BATCH = 400


def _event(job_id: str, host: str, ts_ns: int) -> bytes:
    return encode(Event(JobKey("test", job_id), host, ts_ns, 0, EventSource.PROCESS, "hello", Severity.INFO))


def _batches(make: Callable[[int], bytes]) -> Iterator[bytes]:
    """Batches of messages; those that look alike are made once: a flood costs its sender little."""
    numbers = itertools.count()
    while True:
        messages = [make(next(numbers)) for _ in range(BATCH)]
        yield b"".join(len(data).to_bytes(4, "little") + data for data in messages)


KINDS: MappingProxyType[str, Callable[[int], bytes]] = MappingProxyType(
    {
        "late": lambda number: _event("old", "evil", time.time_ns() - 600 * NS_PER_SECOND + number),
        "garbage": lambda number: b"garbage %d" % number,
        "jobs": lambda number: _event(f"made-up-{number}", "evil", time.time_ns()),
        "hosts": lambda number: _event("job", f"made-up-{number}", time.time_ns()),
    }
)


def main(address: str, kind: str, seconds: float) -> int:
    """Send as fast as the peer takes it; connect again where it closes."""
    until = time.monotonic() + seconds
    batches, sent = _batches(KINDS[kind]), 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(2.0)
            peer.connect(parse_address(address)[1])
            hello = json.dumps({"t": "hello", "host": "evil"}).encode()
            peer.sendall(len(hello).to_bytes(4, "little") + hello)
            while time.monotonic() < until:
                peer.sendall(next(batches))
                sent += BATCH
                with contextlib.suppress(BlockingIOError):
                    while peer.recv(1 << 18, socket.MSG_DONTWAIT):
                        pass
    sys.stdout.write(f"{sent}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))

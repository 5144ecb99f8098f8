"""Records of idle hosts that lose a GPU, one after another, and the fleet's lines that follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tocsin.schemas import events
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    NS_PER_SECOND,
    Event,
    EventSource,
    HostStatus,
    JobKey,
    Record,
    Severity,
    Tick,
)

IDLE = JobKey("c1", IDLE_JOB_ID)


def second_of(index: int, begin_ns: int, hosts_count: int) -> Iterator[Record]:
    """One second of a fleet: from the third one on, the next host loses a GPU."""
    ts_ns = begin_ns + index * NS_PER_SECOND
    for host in range(hosts_count):
        yield HostStatus(IDLE, f"spare{host}", ts_ns, 0, 0, (), False, 0, 0)
    if 0 <= index - 3 < hosts_count:
        code = {"code": 79, "pci": "0000:c1:00.0"}
        yield Event(IDLE, f"spare{index - 3}", ts_ns, -1, EventSource.KERNEL, events.XID, Severity.FATAL, code)
    yield Tick(ts_ns)


def lines_of(values: Iterable[bytes | None]) -> list[tuple[str, int, str]]:
    """Job, number and id of verdict lines."""
    verdicts = [decode_verdict(value or b"") for value in values]
    return [(one.job.job_id, one.update, one.verdict_id) for one in verdicts]

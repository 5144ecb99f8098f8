"""One record of each kind, as a real host would send it. The golden files hold their bytes."""

from __future__ import annotations

import math
import struct

from tocsin.schemas.metrics import BUILTIN_TABLE, Metric, MetricTable
from tocsin.schemas.model_announcement import content_hash
from tocsin.schemas.records import (
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    EventSource,
    Frame,
    GroupKind,
    Groups,
    HostStatus,
    JobKey,
    ModelAnnouncement,
    ProbeAnswer,
    RankPlace,
    Record,
    Severity,
    StepBatch,
    StepRecord,
    TableAnnouncement,
    Tick,
    Topology,
)

SLICE_NS = 1_800_000_000_000_000_000
END_NS = SLICE_NS + 4_999_000_000
SECOND_NS = 1_000_000_000
JOB = JobKey("prod-eu-west-1", "llama-70b-pretrain-2026-11-21-0007", 3)
HOST = "gpu-node-0123.rack17.example.net"
UUIDS = tuple(f"GPU-{gpu:08x}-7f3a-5b1c-9d2e-0123456789ab" for gpu in range(8))


def matrix(rows: int, ticks: int) -> bytes:
    """Plain numbers, the last sample of each row missing."""
    series = [[row + tick / 8 for tick in range(ticks - 1)] + [math.nan] for row in range(rows)]
    return b"".join(struct.pack(f"<{ticks}f", *row) for row in series)


FRAME = Frame(
    JOB,
    HOST,
    END_NS,
    BUILTIN_TABLE.table_id,
    SLICE_NS,
    SECOND_NS,
    5,
    UUIDS,
    matrix(8 * len(BUILTIN_TABLE.gpu), 5),
    matrix(len(BUILTIN_TABLE.host), 5),
)
STEPS = StepBatch(
    JOB,
    HOST,
    END_NS,
    (
        StepRecord(SLICE_NS + 10, 8, 41, 0.5, 0.01, 0.125, 0.25, 0.015, 0.1, 2.75, 1.5),
        StepRecord(SLICE_NS + 10, 9, 41, 0.5, None, 0.125, 0.25, 0.015, 0.1, math.nan, math.inf),
        StepRecord(SLICE_NS + 500_000_000, 8, 42, 0.1),
    ),
)
COLLECTIVES = CollectiveBatch(
    JOB,
    HOST,
    END_NS,
    (
        CollectiveRecord(
            SLICE_NS + 10,
            "completion",
            8,
            "dp0",
            "all_reduce",
            7,
            4_096,
            SLICE_NS,
            SLICE_NS + 9,
            dtype="bf16",
        ),
        CollectiveRecord(SLICE_NS + 20, "state", 9, "pp1", "send", 3, start_ns=SLICE_NS + 11, peer=17),
    ),
)
EVENT = Event(
    JOB,
    HOST,
    END_NS,
    9,
    EventSource.PROCESS,
    "exit",
    Severity.FATAL,
    {"code": 1, "signal": 0, "stderr_tail": "RuntimeError: ☠"},
)
TOPOLOGY = Topology(
    JOB,
    HOST,
    END_NS,
    (
        RankPlace(8, HOST, 0, UUIDS[0], 1, 0, 0, "leaf3", "pod1", 16, 4_711),
        RankPlace(9, HOST),
    ),
)
GROUPS = Groups(
    JOB,
    HOST,
    END_NS,
    (CommGroup("dp0", GroupKind.DP, (0, 8)), CommGroup("7f00:1", GroupKind.OTHER, (8, 9))),
)
TABLE = TableAnnouncement(
    JOB,
    HOST,
    END_NS,
    MetricTable(16, (), (Metric("disk_latency_seconds", "host", 0.0, None, "high"),)),
)
HOST_STATUS = HostStatus(
    JOB,
    HOST,
    END_NS,
    -1_500_000,
    250_000_000,
    (8, 9),
    hook_present=True,
    dropped_count=2,
    spooled_count=0,
    collectors={"cpu": {"ok": True, "seconds": 0.0005, "reason": ""}},
)
PROBE_ANSWER = ProbeAnswer(JOB, HOST, END_NS, 9, "p-1", "stacks", b"\x80\x05stack\x00")
TICK = Tick(END_NS)
MODEL_PAYLOAD = b'{"working":{"alarm_sum":12.5}}'
MODEL = ModelAnnouncement(
    END_NS, "peers", "2026-11-21.1", "peers/1", content_hash(MODEL_PAYLOAD), MODEL_PAYLOAD, SLICE_NS + 60 * SECOND_NS
)

SAMPLES: dict[str, Record] = {
    "frame": FRAME,
    "steps": STEPS,
    "collectives": COLLECTIVES,
    "event": EVENT,
    "topology": TOPOLOGY,
    "groups": GROUPS,
    "table": TABLE,
    "host_status": HOST_STATUS,
    "probe_answer": PROBE_ANSWER,
    "tick": TICK,
    "model": MODEL,
}

"""One job's records, and the windows and timers in which Flink would hand them to the driver."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter

from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.schemas.kafka.topics import VERDICTS
from tocsin.schemas.metric_groups import group_of, split_frame
from tocsin.schemas.records import NS_PER_SECOND, Frame, JobRecord
from tocsin.schemas.wire.codec import decode, encode

CONFIG = DriverConfig(snapshot_seconds=20)
KEY = b"test/job"
FAULT_SECOND, END_SECOND = 100, 150


def records_of_a_kill() -> list[JobRecord]:
    """A job of eight machines whose rank 3 is killed."""
    job = MetricsJob(JobShape(rank_count=8, step_seconds=2.0), MachineShape())
    found: list[JobRecord] = []
    for second in range(END_SECOND):
        if second == FAULT_SECOND:
            job.kill(3)
        found.extend(job.second())
    return found


@dataclass
class Stream:
    """Windows of a second and their timers, as Flink would hand them in."""

    records: list[JobRecord]
    shuffle_seed: int | None = None
    repeat_count: int = 1
    is_cut: bool = False
    config: DriverConfig = CONFIG
    outputs: list[Output] = field(default_factory=list)
    state: MemoryState = field(default_factory=MemoryState)

    def run(self, *, kill_at: tuple[int, ...] = (), save_every: int = 5, stride: int = 1) -> Stream:
        """Play it; at each of these seconds the worker dies and goes on from the last checkpoint.

        Args:
            kill_at: seconds from the start.
            save_every: seconds between two checkpoints.
            stride: seconds that the watermark moves at once: so many windows come before their timers.
        """
        windows: dict[int, list[bytes]] = defaultdict(list)
        for record in self.records:
            parts = split_frame(record) if self.is_cut and isinstance(record, Frame) else (record,)
            windows[record.ts_ns // NS_PER_SECOND + 1].extend(map(encode, parts))
        first, last = min(windows), max(windows) + 3
        order = random.Random(self.shuffle_seed)
        driver, saved, saved_second = JobDriver(self.config, KEY, self.state), self.state.saved(), first
        second, kills = first, sorted(first + at for at in kill_at)
        while second <= last:
            if kills and second >= kills[0]:
                kills.pop(0)
                self.state = saved.saved()
                driver, second = JobDriver(self.config, KEY, self.state), saved_second
                continue
            beyond = min(last + 1, second + stride)
            for end_ns, data in self._windows(windows, range(second, beyond), order):
                driver.on_window(end_ns, data)
            while driver.next_ns < beyond * NS_PER_SECOND:
                self.outputs += driver.on_time((beyond - 1) * NS_PER_SECOND + 1)
            if (beyond - saved_second) >= save_every:
                saved, saved_second = self.state.saved(), beyond
            second = beyond
        return self

    def _windows(
        self, windows: dict[int, list[bytes]], seconds: range, order: random.Random
    ) -> list[tuple[int, bytes]]:
        """A window for each second and metric group: in order of time, or in each group's."""
        found: list[tuple[str, int, bytes]] = []
        for second in seconds:
            held = windows[second] * self.repeat_count
            if self.shuffle_seed is not None:
                order.shuffle(held)
            groups: dict[str, list[bytes]] = defaultdict(list)
            for data in held:
                groups[group_of_bytes(data)].append(data)
            for group, own in groups.items():
                packed = reduce_and_pack(own, ["t:0:0"] * len(own), group)
                found.append((group, second * NS_PER_SECOND, packed))
        if self.shuffle_seed is not None:
            found.sort(key=itemgetter(0))
        return [(end_ns, data) for _, end_ns, data in found]

    def verdicts(self) -> list[bytes]:
        """What consumers keep: the first of each (id, update), in order."""
        seen, kept = set(), []
        for output in self.outputs:
            name = (output.headers.get("id"), output.headers.get("update"))
            if output.topic == VERDICTS and name not in seen:
                seen.add(name)
                kept.append(output.value)
        return kept


def group_of_bytes(data: bytes) -> str:
    """Metric group of a frame, "" of another record: it is part of the key."""
    record = decode(data)
    return group_of(record) if isinstance(record, Frame) else ""


def second_of(record: JobRecord) -> int:
    """End of the second that a record lies in."""
    return (record.ts_ns // NS_PER_SECOND + 1) * NS_PER_SECOND

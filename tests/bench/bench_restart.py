"""What keeping its state costs an engine: 1,000 hosts of 8 ranks, a snapshot each 10 s, a kill, a start.

Prints how long a snapshot holds up the ticks, what is written a minute, and how long a start takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.bench.stream_load import GPU_COUNT, SLICE_NS, Load, _records
from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.recovery import Recovery, RecoveryConfig, ReplayFunctions
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

HOST_COUNT, SECONDS = 1000, 120
START_NS = 1_800_000_000 * NS_PER_SECOND
GOAL = "goal: a pause below 1 s at 1,000 hosts"


def slice_of(load: Load, index: int) -> Iterator[bytes]:
    """What all hosts send at one metric slice's end."""
    end_ns = START_NS + (index + 1) * SLICE_NS
    draw = np.random.default_rng(index)
    shape = (load.host_count, GPU_COUNT, len(BUILTIN_TABLE.gpu), METRIC_SLICE_NS // NS_PER_SECOND)
    gpu = (0.7 + 0.01 * draw.standard_normal(shape, np.float32)).astype("<f4")
    host = (0.3 + 0.01 * draw.standard_normal((load.host_count, len(BUILTIN_TABLE.host), 5))).astype("<f4")
    lasted = 4.9 + 0.01 * draw.standard_normal((load.host_count, GPU_COUNT))
    for number in range(load.host_count):
        for record in _records(load, number, end_ns, index, (gpu[number], host[number], lasted[number])):
            yield encode(record)


def memory_of(engine: EmbeddedEngine) -> ServiceMemory:
    """What the service would remember: nothing is said."""
    return ServiceMemory(100, ProposalBook(HoldRules(), START_NS, engine.changes_of))


def main() -> None:
    """Run an engine for two minutes of stream time, kill it, start it again."""
    load = Load(HOST_COUNT, 1, SECONDS // 5, "bench", names=("job",))
    with tempfile.TemporaryDirectory() as folder:
        engine = EmbeddedEngine(EngineConfig(history=None))
        recovery = Recovery(RecoveryConfig(Path(folder) / "state"), engine, memory_of(engine))
        recovery.restore(START_NS, ReplayFunctions(engine.tick, engine.begin_anew))
        pauses, ticks = [], []
        for second in range(1, SECONDS + 1):
            if second % 5 == 0:
                for data in slice_of(load, second // 5 - 1):
                    engine.take(data)
                recovery.ledger.commit()
            begin = time.perf_counter()
            engine.tick(START_NS + second * NS_PER_SECOND)
            ticks.append(time.perf_counter() - begin)
            before = recovery.pause_seconds
            recovery.keep(START_NS + second * NS_PER_SECOND)
            if recovery.pause_seconds != before:
                pauses.append(recovery.pause_seconds)
                time.sleep(1.0)  # the thread that writes has nine seconds for it
        figures = recovery.figures
        written_mb = (figures["snapshot_bytes"] + figures["journal_bytes"]) / 1e6
        on_disk_mb = sum(path.stat().st_size for path in (Path(folder) / "state").iterdir()) / 1e6
        recovery.abandon()
        begin = time.perf_counter()
        again = EmbeddedEngine(EngineConfig(history=None))
        started = Recovery(RecoveryConfig(Path(folder) / "state"), again, memory_of(again))
        found = started.restore(START_NS + SECONDS * NS_PER_SECOND, ReplayFunctions(again.tick, again.begin_anew))
        start_seconds = time.perf_counter() - begin
        started.abandon()
    if not found.is_restored:
        raise AssertionError("the state was not taken up")
    print(f"{HOST_COUNT} hosts x {GPU_COUNT} ranks, {figures['snapshots']} snapshots in {SECONDS} s of stream time")
    print(f"pause of the ticks: median {np.median(pauses):.3f} s, longest {max(pauses):.3f} s ({GOAL})")
    print(f"tick: median {np.median(ticks):.3f} s, longest {max(ticks):.3f} s")
    print(f"written: {written_mb / SECONDS * 60:.0f} MB a minute, {on_disk_mb:.0f} MB on disk")
    print(f"start: {start_seconds:.2f} s, {found.replayed_count} records of the journal again")

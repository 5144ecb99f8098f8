"""What signatures cost the Flink job: the same windows packed and judged with and without them, in one run."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.identity.verdict_signatures import new_engine_key
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.metric_groups import group_of, split_frame
from tocsin.schemas.records import NS_PER_SECOND, Frame
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.wire.codec import encode

HOST_COUNT, SECOND_COUNT, ROUND_COUNT = 500, 60, 3
GOAL_RATIO = 1.15
_KEY = b"test/job"
Windows = dict[int, dict[str, list[bytes]]]


def main() -> None:
    """Print CPU seconds of both, and their ratio."""
    plain, signed, identity = _windows()
    best: dict[str, float] = {}
    for _ in range(ROUND_COUNT):
        for name, windows, who in (("unsigned", plain, None), ("signed", signed, identity)):
            seconds = _cpu_seconds(windows, who)
            best[name] = min(seconds, best.get(name, seconds))
    ratio = best["signed"] / best["unsigned"]
    print(f"{HOST_COUNT} hosts, {SECOND_COUNT} s of stream, frames cut by metric group, best of {ROUND_COUNT}")
    print(f"  unsigned {best['unsigned']:.2f} s of CPU, signed {best['signed']:.2f} s")
    print(f"  {ratio:.3f} times the CPU (goal {GOAL_RATIO})")


def _windows() -> tuple[Windows, Windows, StreamIdentity]:
    job = MetricsJob(JobShape(rank_count=HOST_COUNT, step_seconds=2.0), MachineShape())
    plain: Windows = defaultdict(lambda: defaultdict(list))
    signed: Windows = defaultdict(lambda: defaultdict(list))
    keys = {f"n{number}": new_credential(Role.AGENT, f"n{number}", 1) for number in range(HOST_COUNT)}
    for _ in range(SECOND_COUNT):
        for record in job.second():
            for part in split_frame(record) if isinstance(record, Frame) else (record,):
                group = (group_of(part) or "all") if isinstance(part, Frame) else ""
                end, data = part.ts_ns // NS_PER_SECOND + 1, encode(part)
                plain[end][group].append(data)
                key = keys.setdefault(part.host, new_credential(Role.AGENT, part.host, 1))
                signed[end][group].append(sign_record(data, key))
    with tempfile.TemporaryDirectory() as name:
        hosts, engine = Path(name) / "hosts.json", Path(name) / "engine.json"
        write_credentials(hosts, tuple(keys.values()))
        write_credentials(engine, (new_engine_key("engine", 1),))
        return plain, signed, StreamIdentity.of_config(SignatureConfig(str(hosts), signing_key=str(engine)), 2)


def _cpu_seconds(windows: Windows, identity: StreamIdentity | None) -> float:
    driver = JobDriver(DriverConfig(), _KEY, MemoryState(), identity=identity)
    guard = identity.guard if identity else None
    begin = time.process_time()
    for second in range(min(windows), max(windows) + 3):
        for group, values in sorted(windows.get(second, {}).items()):
            origins = [f"t:0:{number}" for number in range(len(values))]
            packed = reduce_and_pack(values, origins, group, _KEY.decode(), second, guard)
            driver.on_window(second * NS_PER_SECOND, packed)
        driver.on_time(second * NS_PER_SECOND + 1)
    return time.process_time() - begin

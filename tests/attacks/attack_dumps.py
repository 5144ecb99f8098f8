"""C3: Flight Recorder dumps that hang or fill whoever reads them."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.hostile_dumps import HOSTILE_DUMPS, ODD_DUMPS, healthy
from tests.pipeline.rca.evidence.test_hostile_dumps import poisoned, replay_of
from tocsin.cli.main import main
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.formats.flight_recorder import parse_dump
from tocsin.schemas.formats.plain_pickle import MAX_MADE, MAX_OPCODES
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

_SHAPE = JobShape(rank_count=4)
_SMALL_BYTES = 50_000


@attack("C3", "small hostile dumps")
def small_dumps() -> Outcome:
    """Those of less than 50 kB: they cost as little as their size."""
    tried = {name: data for name, make in HOSTILE_DUMPS.items() if len(data := make()) <= _SMALL_BYTES}
    passed = [name for name, data in tried.items() if _is_read(data)]
    return Outcome(len(tried), f"read as dumps: {passed}", not passed)


@attack("C3", "all hostile dumps at four doors", slow=True)
def all_doors() -> Outcome:
    """Engine, Flink driver, replay and command: each judges on, and says whose dump is none."""
    wrong = [f"{name} is read" for name, make in HOSTILE_DUMPS.items() if _is_read(make())]
    engine, driver = EmbeddedEngine(EngineConfig()), JobDriver(DriverConfig(), b"test/job", MemoryState())
    job, suspects, outputs = FakeJob(_SHAPE), set(), []
    for records in poisoned(job):
        data = list(map(encode, records))
        end_ns = -(-job.now_ns // NS_PER_SECOND) * NS_PER_SECOND
        for one in data:
            engine.take(one)
        suspects |= {s.ranks for v in engine.tick(job.now_ns).verdicts for s in v.suspects}
        driver.on_window(end_ns, pack(data, [f"events:0:{number}" for number in range(len(data))]))
        outputs += driver.on_time(end_ns)
    if suspects != {(3,)}:
        wrong.append(f"the engine names {suspects}")
    if driver.counters["operator_failed"] or not any(b"fail_stop" in output.value for output in outputs):
        wrong.append(f"the Flink driver's counters: {dict(driver.counters)}")
    with tempfile.TemporaryDirectory() as folder:
        wrong += _command(Path(folder) / "command")
        reported = replay_of(Path(folder) / "replay")
        if reported.count("is no whole dump") < len(HOSTILE_DUMPS):
            wrong.append(f"replay: {reported[-500:]}")
    tries = 4 * (len(HOSTILE_DUMPS) + len(ODD_DUMPS))
    bounds = f"at most {MAX_OPCODES} opcodes and {MAX_MADE} containers a dump"
    return Outcome(tries, f"{bounds}; wrong: {wrong}", not wrong)


def _is_read(data: bytes) -> bool:
    try:
        parse_dump(data)
    except SchemaError:
        return False
    return True


def _command(folder: Path) -> list[str]:
    """Each beside three healthy ones."""
    folder.mkdir()
    for rank in (0, 1, 2):
        (folder / f"dump_{rank}").write_bytes(healthy(rank))
    wrong = []
    for name, make in {**HOSTILE_DUMPS, **ODD_DUMPS}.items():
        (folder / "dump_3").write_bytes(make())
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = main(["flight-recorder", str(folder)])
        if status or (name in HOSTILE_DUMPS and "dump_3 is unreadable" not in out.getvalue()):
            wrong.append(f"command: {name}: {status} {out.getvalue()[:200]}")
    return wrong

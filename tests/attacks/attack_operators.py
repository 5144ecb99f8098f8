"""C1: whatever an operator raises harms one job; and an engine that does not judge says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from tests.attacks.registry import Outcome, attack
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.lab.testing import FakeJob, JobShape, MemoryStore
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.job_pipeline import BundleResult, JobPipeline
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, Severity
from tocsin.schemas.wire.codec import encode

_RAISED: tuple[Callable[[], Exception], ...] = (
    lambda: TypeError("'<' not supported between instances of 'str' and 'int'"),
    lambda: OverflowError("int too large to convert to float"),
    lambda: ValueError("Exceeds the limit (4300 digits) for integer string conversion"),
    lambda: RecursionError("maximum recursion depth exceeded"),
    MemoryError,
    lambda: KeyError("ranks"),
    ZeroDivisionError,
    lambda: AssertionError("unforeseen"),
)


def _odd(job: JobKey, number: int, ts_ns: int) -> bytes:
    return encode(Event(job, "n00", ts_ns, 0, EventSource.PROCESS, f"odd-{number}", Severity.INFO))


@attack("C1", "operators that raise in a live engine")
def operators_raise() -> Outcome:
    """Each second one more kind of error in one job's turn: another job's killed rank is named as ever."""
    real = JobPipeline.on_bundle

    def on_bundle(self: JobPipeline, turn: SliceBundle) -> BundleResult:
        result = real(self, turn)
        for record in turn.fast.records:
            if isinstance(record, Event) and record.name.startswith("odd-"):
                make = _RAISED[int(record.name[4:]) % len(_RAISED)]
                raise make()
        return result

    struck, other = (FakeJob(JobShape(rank_count=4), JobKey("test", name, 0)) for name in ("struck", "other"))
    engine = EmbeddedEngine(EngineConfig(history=None))
    named: list[str] = []
    failures = 0
    with mock.patch.object(JobPipeline, "on_bundle", on_bundle):
        for second in range(30):
            if second == 20:
                other.kill(2)
            for record in (*struck.second(), *other.second()):
                engine.take(encode(record))
            if second < len(_RAISED):
                engine.take(_odd(struck.job, second, struck.now_ns - 1))
            output = engine.tick(struck.now_ns)
            failures += len(output.failures)
            named += [s.component.name for line in output.verdicts if line.job == other.job for s in line.suspects]
    held = set(named) == {"n02"} and failures == len(_RAISED)
    return Outcome(
        len(_RAISED), f"{failures} turns of the struck job failed; in the other job named: {sorted(set(named))}", held
    )


@attack("C1", "parts of the service that raise")
def parts_raise() -> Outcome:
    """Model shelf, evidence, actions, health rows, taps, verdict lines: ticks go on, or a dead thread is told."""
    job = FakeJob(JobShape(rank_count=4))
    held: list[str] = []
    parts = ("_evidence", "_changes_of", "_publish")
    for part in (*parts, "tap"):
        with TemporaryDirectory() as folder, ExitStack() as stack:
            job = FakeJob(JobShape(rank_count=4))
            service = EngineService(_config(folder), MemoryStore(), lambda job=job: job.now_ns)  # type: ignore[misc]
            stack.callback(service.server.close)
            if part == "tap":
                service.engine.taps.append(_raise)
            else:
                stack.enter_context(mock.patch.object(service._output, part, _raise))  # noqa: SLF001  # each
            for second in range(25):
                if second == 18:
                    job.kill(2)
                for record in job.second():
                    service.engine.take(encode(record))
                service.tick(job.now_ns)
            if service.writer.waiting_count and service.health.tick_age_seconds() < NS_PER_SECOND:
                held.append(part)
    return Outcome(
        len(parts) + 1, f"the verdict was written although these raised: {held}", len(held) == len(parts) + 1
    )


def _config(folder: str) -> ServiceConfig:
    return ServiceConfig(f"unix:{folder}/e.sock", Path(folder) / "c.sock")


def _raise(*_: Any) -> Any:
    raise RuntimeError("unforeseen")

"""A service that ends without a word and starts again on the same folder, in one process; and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.pipeline.waiting import until
from tocsin.pipeline.lab.testing import FakeJob, JobShape, MemoryStore
from tocsin.pipeline.runtime.embedded.catch_up import CatchUpConfig
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.pipeline.runtime.embedded.recovery import RecoveryConfig
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode


class Life:
    """An engine's life, over the ends of its processes.

    Attributes:
        store: outlives the engine.
        service: the present one.
        kept: records that agents hold while nobody listens.
    """

    def __init__(self, folder: Path, shape: JobShape | None = None) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.job = FakeJob(shape or JobShape())
        self.kept: list[bytes] = []
        self.is_up = False
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Begin; who was known is back at once, with what it kept."""
        self.starts += 1
        config = ServiceConfig(
            f"unix:{self.folder}/e{self.starts}.sock",
            self.folder / f"c{self.starts}.sock",
            dead_letter_folder=self.folder,
            model_folder=self.folder,
            recovery=RecoveryConfig(self.folder / "state"),
            catch_up=CatchUpConfig(wait_seconds=0.0),
        )
        self.service = EngineService(config, self.store, lambda: self.job.now_ns, StoreWriter(self.store))
        self.attached()
        self.service.start(ticking=False)
        self.is_up = True
        for data in self.kept:
            self.service.engine.take(data)
        self.kept.clear()
        self.service.recovery.ledger.commit()  # type: ignore[union-attr]  # it was made with one
        self.service.catch_up()

    def attached(self) -> None:
        """Attach followers to the new service; a subclass has some."""

    def kill(self) -> None:
        """End as by SIGKILL: no snapshot, no flush; what the database's thread was given is lost with it, or not."""
        self.is_up = False
        service = self.service
        assert service.recovery is not None
        service.recovery.abandon()
        service.server.close()
        service.writer.stop()
        service.dead_letters.close()
        service._control.close()  # noqa: SLF001  # a killed process closes it too

    def run(self, seconds: int, on_second: Callable[[int], None] = lambda _second: None) -> None:
        for second in range(seconds):
            on_second(second)
            records = [encode(record) for record in self.job.second()]
            if not self.is_up:
                self.kept += records
                continue
            for data in records:
                self.service.engine.take(data)
            self.service.recovery.ledger.commit()  # type: ignore[union-attr]  # it was made with one
            self.service.tick(self.job.now_ns)

    def written(self) -> None:
        """Until the snapshot that was taken last is on the disk."""
        until(lambda: not self.service.recovery.is_writing)  # type: ignore[union-attr]  # it was made with one

    def end(self) -> None:
        self.service.stop()

    @property
    def client(self) -> ControlClient:
        """Asks the present service."""
        return ControlClient(self.folder / f"c{self.starts}.sock")

    def lines(self) -> list[dict[str, Any]]:
        return [line["verdict"] for line in self.service.memory.lines]

    def incidents(self) -> dict[str, Verdict]:
        return self.store.latest()

    def actions(self) -> dict[tuple[object, ...], tuple[str, int]]:
        """Row -> state and deadline."""
        return {
            (one.action.verdict_id, one.action.verdict_update, one.action.kind, one.action.target): (
                one.state.value,
                one.action.deadline_ns,
            )
            for one in self.store.actions_of(list(self.incidents()))
        }

    def standing(self) -> int:
        return sum(state == ActionState.PROPOSED.value for state, _ in self.actions().values())


def wait_written(lives: Iterable[Life]) -> None:
    """Until the database's threads are done."""
    for life in lives:
        until(lambda one=life: one.service.writer.waiting_count == 0)  # type: ignore[misc]  # bound now


SECOND_NS = NS_PER_SECOND

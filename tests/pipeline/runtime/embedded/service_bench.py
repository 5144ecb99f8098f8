"""An embedded service that a test drives second by second, with a fake job and a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.pipeline.waiting import until
from tocsin.pipeline.incidents.proposals import HoldRules
from tocsin.pipeline.lab.testing import FakeJob, JobShape, MemoryStore
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.pipeline.stores.backoff import BackoffConfig
from tocsin.schemas.wire.codec import encode


class ServiceBench:
    """A service without a clock of its own: the time is the fake job's.

    Attributes:
        store: what the service has written.
        job: its records go to the service.
        service: started, without its ticking thread.
        client: asks the service's control socket.
    """

    def __init__(self, folder: Path, hold: HoldRules | None = None) -> None:
        self.store = MemoryStore()
        self.job = FakeJob(JobShape())
        control = folder / "c.sock"
        hold = hold or HoldRules(0, 0)  # a bench runs for a minute
        config = ServiceConfig(f"unix:{folder}/e.sock", control, dead_letter_folder=folder, hold=hold)
        writer = StoreWriter(self.store, config=BackoffConfig(first_seconds=0.01, longest_seconds=0.02))
        self.service = EngineService(config, self.store, lambda: self.job.now_ns, writer)
        self.attach()
        self.service.start(ticking=False)
        self.client = ControlClient(control)

    def attach(self) -> None:
        """Attach what the service is to have beside itself before it starts; a subclass has some."""

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for record in self.job.second():
                self.service.engine.take(encode(record))
            self.service.tick(self.job.now_ns)

    def wait(self, done: Callable[[], bool]) -> None:
        """Until the database thread has come so far."""
        until(done)

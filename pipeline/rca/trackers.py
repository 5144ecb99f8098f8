"""The evidence that one job's records leave over time: which tracker takes which record, and their state."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.diagnose_config import DiagnoseConfig
from tocsin.pipeline.rca.evidence.backlog import BacklogTracker
from tocsin.pipeline.rca.evidence.dumps import DumpTracker
from tocsin.pipeline.rca.evidence.flows import FlowTracker
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog
from tocsin.pipeline.rca.evidence.loaders import LoaderTracker
from tocsin.pipeline.rca.evidence.loading import LoadingTracker
from tocsin.pipeline.rca.evidence.loss_spikes import LossSpikes
from tocsin.pipeline.rca.evidence.nan import NanTracker
from tocsin.pipeline.rca.evidence.network import NetworkTracker
from tocsin.pipeline.rca.evidence.phases import PhaseTracker
from tocsin.pipeline.rca.evidence.waits import WaitTracker
from tocsin.schemas import events
from tocsin.schemas.records import CollectiveBatch, Event, ProbeAnswer, Slice, StepBatch


class EvidenceTrackers:
    """The trackers of one job.

    Attributes:
        hardware: hardware events of the job's machines.
        nan: lost numbers (NaN, infinity) in the ranks' losses and gradients.
        losses: spikes of the training loss.
        loaders: ranks that wait for their own data loader.
        loading: sources, fetch times and lengths that loaders report.
        phases: announced phases of each rank.
        waits: the operations that ranks wait in.
        flows: chunk counters of collectives that have not ended.
        dumps: Flight Recorder dumps.
        network: transfer times per communicator.
        backlog: data that hosts have posted and not seen acknowledged.
    """

    def __init__(self, config: DiagnoseConfig, graph: JobGraph) -> None:
        """Start without evidence.

        Args:
            config: settings.
            graph: the job.
        """
        self.hardware = HardwareLog(config.hardware)
        self.nan = NanTracker(config.nan, graph)
        self.losses = LossSpikes(config.losses, graph)
        self.loaders = LoaderTracker(config.loaders, graph)
        self.loading = LoadingTracker(config.loading, graph)
        self.phases = PhaseTracker(config.phases, graph)
        self.waits = WaitTracker(config.waits, graph)
        self.flows = FlowTracker(config.flows, graph)
        self.dumps = DumpTracker(config.dumps, graph, config.waits.mute_after_seconds)
        self.network = NetworkTracker(config.network, graph)
        self.backlog = BacklogTracker(config.backlog, graph)

    def follow(self, older: EvidenceTrackers) -> None:
        """Take over what the trackers of the attempt before this one know and this attempt may meet again."""
        self.nan.follow(older.nan)

    def take(self, data: Slice) -> None:
        """Take one second of the job's records."""
        for record in data.records:
            if isinstance(record, CollectiveBatch):
                self.waits.take_collectives(record.rows)
                self.flows.take_collectives(record.rows)
                self.dumps.take_collectives(record.rows)
                self.network.take(record.rows)
                self.backlog.take(record.rows)
            elif isinstance(record, StepBatch):
                self.waits.take_steps(record.rows)
                self.flows.take_steps(record.rows)
                self.nan.take_steps(record.rows)
                self.losses.take_steps(record.rows)
                self.phases.take_steps(record.rows)
                self.loading.take_steps(record.rows)
            elif isinstance(record, ProbeAnswer):
                if record.probe == "flight_recorder":
                    self.dumps.take(record)
            elif isinstance(record, Event):
                self._take_event(record)

    def _take_event(self, event: Event) -> None:
        """Take one event."""
        self.hardware.take(event)
        if event.name == events.PHASE:
            self.phases.take(event)
        elif event.name == events.LOADER:
            self.loaders.take(event)
            self.loading.take(event)
        if event.name == events.NAN and event.rank >= 0:
            self.nan.take(event)

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts, one for each tracker."""
        return {
            "hardware": pack_state(self.hardware.to_state()),
            "nan": pack_state(self.nan.to_state()),
            "losses": pack_state(self.losses.to_state()),
            "loaders": pack_state(self.loaders.to_state()),
            "loading": pack_state(self.loading.to_state()),
            "phases": pack_state(self.phases.to_state()),
            "waits": pack_state(self.waits.to_state()),
            "flows": pack_state(self.flows.to_state()),
            "dumps": pack_state(self.dumps.to_state()),
            "network": pack_state(self.network.to_state()),
            "backlog": pack_state(self.backlog.to_state()),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned; other parts are left out."""
        self.hardware.load_state(unpack_state(parts, "hardware"))
        self.nan.load_state(unpack_state(parts, "nan"))
        self.losses.load_state(unpack_state(parts, "losses"))
        self.loaders.load_state(unpack_state(parts, "loaders"))
        self.loading.load_state(unpack_state(parts, "loading"))
        self.phases.load_state(unpack_state(parts, "phases"))
        self.waits.load_state(unpack_state(parts, "waits"))
        self.flows.load_state(unpack_state(parts, "flows"))
        self.dumps.load_state(unpack_state(parts, "dumps"))
        self.network.load_state(unpack_state(parts, "network"))
        self.backlog.load_state(unpack_state(parts, "backlog"))

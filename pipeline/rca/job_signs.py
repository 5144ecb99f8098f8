"""Signs beside all others: numbers that jump, steps that become longer little by little, stages of a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.divergence import Divergence, DivergenceConfig
from tocsin.pipeline.rca.evidence.gradual_slowdown import GradualConfig, GradualSlowdown
from tocsin.pipeline.rca.evidence.job_numbers import JobNumbers
from tocsin.pipeline.rca.evidence.startup import StartupConfig, StartupDetector
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.records import NS_PER_SECOND, Event, Slice, StepBatch
from tocsin.schemas.verdicts import Anomaly

_PART = "job_signs"


@dataclass(frozen=True, slots=True)
class JobSignsConfig:
    """Settings of the signs."""

    divergence: DivergenceConfig = field(default_factory=DivergenceConfig)
    gradual: GradualConfig = field(default_factory=GradualConfig)
    startup: StartupConfig = field(default_factory=StartupConfig)


class JobSigns:
    """Finds the signs of one job; they are information beside all other findings, and change none of them."""

    def __init__(self, config: JobSignsConfig, graph: JobGraph) -> None:
        """Start without steps.

        Args:
            config: settings.
            graph: the job, for its announced phases.
        """
        self._graph = graph
        self._numbers = JobNumbers()
        self._divergence = Divergence(config.divergence)
        self._gradual = GradualSlowdown(config.gradual)
        self._startup = StartupDetector(config.startup, graph.placement.outsiders)

    def follow(self, older: JobSigns) -> None:
        """Take over what is known of the starts of earlier attempts."""
        self._startup.follow(older._startup)

    def on_slice(self, data: Slice, steps: Sequence[Anomaly]) -> list[Finding]:
        """Take one second of the job's records; return the signs that hold at its end.

        Args:
            data: the records.
            steps: anomalies of the job's steps. While there are any, they tell of a slowdown, and this does not.
        """
        for record in data.records:
            if isinstance(record, StepBatch):
                self._numbers.take_steps(record.rows)
                for row in record.rows[-1:]:
                    self._startup.on_step(row.ts_ns - round(row.duration_seconds * NS_PER_SECOND), data.end_ns)
            elif isinstance(record, Event):
                self._startup.on_event(record)
        for step in self._numbers.settled(data.end_ns):
            self._divergence.take(step)
            if not self._graph.in_announced_phase(step.begin_ns, step.ts_ns):
                self._gradual.take(step)
        found = (self._divergence.find(data.end_ns), self._gradual.find(data.end_ns, is_explained=bool(steps)))
        return [*(one for one in found if one is not None), *self._startup.on_time(data.end_ns)]

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one named part."""
        state = {
            "numbers": self._numbers.to_state(),
            "divergence": self._divergence.to_state(),
            "gradual": self._gradual.to_state(),
        }
        return {_PART: pack_state(state), **self._startup.snapshot()}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned; other parts are left out."""
        state = unpack_state(parts, _PART)
        self._numbers.load_state(state["numbers"])
        self._divergence.load_state(state["divergence"])
        self._gradual.load_state(state["gradual"])
        self._startup.restore(parts)

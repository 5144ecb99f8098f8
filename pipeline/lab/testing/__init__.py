"""Fakes that are part of the package: a job without machines, and readable timeline scenarios."""

from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.lab.testing.metrics_job import MachineShape, MetricsJob, MetricsScenario
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.lab.testing.scenario import Scenario, between
from tocsin.pipeline.lab.testing.store import MemoryStore

__all__ = [
    "FakeJob",
    "FakeProgress",
    "JobShape",
    "MachineShape",
    "MemoryStore",
    "MetricsJob",
    "MetricsScenario",
    "Scenario",
    "between",
]

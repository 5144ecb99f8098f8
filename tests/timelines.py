"""Builders of the whole jobs that timelines play (``tocsin.pipeline.lab.testing``): a scenario, and its job."""

from __future__ import annotations

from typing import Any

from tocsin.pipeline.lab.testing import FakeJob, JobShape, MachineShape, MetricsJob, MetricsScenario, Scenario


def build_scenario(**shape: Any) -> tuple[Scenario, FakeJob]:
    """Return a scenario without machine metrics, and its job; ``shape`` are fields of ``JobShape``."""
    scenario = Scenario(JobShape(**shape))
    return scenario, scenario.job


def build_metrics_scenario(
    machines: MachineShape | None = None, ranks: int = 8, **shape: Any
) -> tuple[MetricsScenario, MetricsJob]:
    """Return a scenario whose machines have metrics, and its job with steps of two seconds.

    Args:
        machines: settings of the machines; None: the defaults.
        ranks: number of ranks.
        shape: more fields of ``JobShape``.
    """
    scenario = MetricsScenario(
        JobShape(rank_count=ranks, step_seconds=2.0, **shape), machines=machines or MachineShape()
    )
    return scenario, scenario.job

"""A state of another shape has another version: a savepoint of an older program is refused by name, not by KeyError."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tocsin.pipeline.core.arrays import load_state
from tocsin.pipeline.core.operator import STATE_VERSION
from tocsin.pipeline.lab.testing import JobShape, MetricsScenario
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.errors import SnapshotError

SHAPE_OF_VERSION = (33, "ae3bdcce1ade8f50")
_JOB = re.compile(r"^pipeline/[^/]*/[^/]*/[^/]*/")


def _names(value: Any, path: str) -> Iterator[str]:
    """Names of a state's fields; what is counted by reason or told of a metric is content, and no field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in {"abstained", "detail", "metric_anomalies"}:
                yield from _names(inner, f"{path}.{name}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _names(value[0], f"{path}[]")
    else:
        yield path


@pytest.fixture(scope="module")
def parts() -> dict[str, bytes]:
    scenario = MetricsScenario(JobShape(rank_count=8, step_seconds=2.0))
    scenario.at(150).inject(scenario.job.shift, 3, "gpu_power_watts", 0.7)
    scenario.at(150).inject(scenario.job.slow, 3, "forward", 1.5)
    scenario.run(200)
    assert scenario.verdicts
    return scenario.engine.snapshot()


def test_whoever_changes_the_state_raises_its_version(parts: dict[str, bytes]) -> None:
    names = {name for part, data in parts.items() for name in _names(load_state(data)["state"], _JOB.sub("", part))}
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]

    reported = "\n".join(sorted(names))
    assert (STATE_VERSION, digest) == SHAPE_OF_VERSION, (
        f"raise STATE_VERSION, and name its shape here; fields:\n{reported}"
    )


def test_a_state_of_the_version_before_is_refused_by_name(parts: dict[str, bytes]) -> None:
    before = {name: data.replace(b'"version":%d' % STATE_VERSION, b'"version":15') for name, data in parts.items()}

    with pytest.raises(SnapshotError, match=r"has version 15, this program reads version 33"):
        EmbeddedEngine(EngineConfig()).restore(before)

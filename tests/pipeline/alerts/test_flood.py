"""Many verdicts at once: what is real is paged at once, and pages and memory stay bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.alerts.flood_load import REAL_COUNT, flood, run_flood
from tests.pipeline.alerts.verdict_samples import at
from tocsin.pipeline.alerts.flood import FloodLimits
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import Route, RouteConfig


@pytest.mark.parametrize("seed", [1, 2])
def test_real_incidents_in_a_flood_are_paged_and_pages_stay_few(tmp_path: Path, seed: int) -> None:
    found = run_flood(tmp_path, 2_000, 60, seed)

    assert len(found.page_seconds) == REAL_COUNT
    limits, signatures_count = FloodLimits(), 4
    most = REAL_COUNT + limits.route_count + signatures_count * 2
    assert found.pages_count <= most
    assert found.standing_count == found.pages_count


def test_memory_is_bounded_by_the_configured_counts() -> None:
    lines, real = flood(2_000, 20, 3)
    router = AlertRouter(RouterConfig(RouteConfig({}, (Route("all", "r"),)), max_standing_count=200))
    told = [one for second, verdicts in enumerate(lines) for one in router.on_verdicts(verdicts, at(second))]

    assert router.standing_count <= 200
    assert set(real) <= {one.verdict.verdict_id for one in told}
    assert router.untold["forgotten"] > 0
    assert len(router.to_state()["told"]) <= 200
    assert sum(len(one["members"]) for one in router.to_state()["summaries"].values()) <= 200

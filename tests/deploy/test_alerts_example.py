"""The examples of a routes file are right."""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.routes import DEFAULT_SEVERITIES, RouteConfig, load_routes

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_in_deploy_is_right() -> None:
    config = load_routes(ROOT / "deploy/alerts.yaml.example", ADAPTERS)

    assert [one.name for one in config.routes] == ["wake", "all"]
    assert config.watchdog is not None


def test_the_example_in_the_docs_is_right(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/alerts.md").read_text(), re.DOTALL)
    (whole,) = [one for one in blocks if one.startswith("# alerts.yaml")]
    (limits,) = [one for one in blocks if one.startswith("limits:")]
    path = tmp_path / "alerts.yaml"
    path.write_text(whole + limits)
    config = load_routes(path, ADAPTERS)

    assert [one.receiver for one in config.routes] == ["pager"]
    assert (config.limits, config.stale_seconds) == (RouteConfig({}, ()).limits, RouteConfig({}, ()).stale_seconds)


def test_the_table_of_severities_in_the_docs_has_each_default_row() -> None:
    text = (ROOT / "docs/alerts.md").read_text()
    (table,) = re.findall(r"\| fault \| cause \|.*?\n\n", text, re.DOTALL)
    severities = re.findall(r"\| `(\w+)`(?:, once an attempt)? \|$", table, re.MULTILINE)

    assert severities == [one.severity.value for one in DEFAULT_SEVERITIES]

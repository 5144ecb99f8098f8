"""The examples of a routes file are right."""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.routes import load_routes

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_in_deploy_is_right() -> None:
    config = load_routes(ROOT / "deploy/alerts.yaml.example", ADAPTERS)

    assert [one.name for one in config.routes] == ["wake", "all"]
    assert config.watchdog is not None


def test_the_example_in_the_docs_is_right(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/alerts.md").read_text(), re.DOTALL)
    path = tmp_path / "alerts.yaml"
    path.write_text(text)

    assert [one.receiver for one in load_routes(path, ADAPTERS).routes] == ["pager"]
